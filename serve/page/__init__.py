"""The page at /: threads, their steps, and who asks what."""
