"""The protocols besides the HTTP API: sessions, AG-UI and MCP. Each encodes the events of runs in
its own form."""
