"""The protocols besides the HTTP API: sessions, AG-UI, MCP and A2A. Each encodes the events of
runs in its own form."""
