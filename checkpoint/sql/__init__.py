"""Checkpointers on SQL databases: rows, statements, connections. The checkpointers themselves are
files beside this folder."""
