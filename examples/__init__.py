"""Small programs that use stategraph as a user would; each runs on its own."""
