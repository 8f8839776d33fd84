"""The frozen graph: what is read from callables once, nodes, writers, and the table that everything
reads."""
