"""The page at `/`: threads, their steps and their open questions."""
