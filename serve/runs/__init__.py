"""Runs behind the server: in its own process, or as jobs of workers; and the events they send."""
