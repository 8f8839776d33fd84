"""Where everything in a drawing stands, without Graphviz: numbers in, numbers out. Begin at
`arrange`."""
