"""Savers on SQL databases: rows, statements, connections. The savers themselves are files beside
this folder."""
