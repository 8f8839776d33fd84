"""Savers on SQL databases: rows, statements, connections. Each database's own saver is a file
beside this folder."""
