"""The routes that the official clients of the HTTP API call."""
