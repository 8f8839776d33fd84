"""Small programs that use stategraph as a user would; each can be run by itself."""
