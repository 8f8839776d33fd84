"""A stored thread as plain records: its steps, what they changed, and the values in words."""
