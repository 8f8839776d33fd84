"""The Model Context Protocol: graphs as tools."""
