"""Drawings and pages of a stored thread: timeline, report, branches, and the pieces that a page of
the server asks for."""
