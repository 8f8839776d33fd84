"""Computes the layout of a drawing without Graphviz: numbers in, numbers out. Begin at
`arrange`."""
