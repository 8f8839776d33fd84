"""The server's runs, in its own process or as jobs of workers, and the events that they send."""
