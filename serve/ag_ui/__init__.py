"""AG-UI: a protocol of frontends for agents."""
