"""AG-UI: a protocol between frontends and agents."""
