"""One call of a graph: what it means, the loop that owns the order of effects, and what it shows
and stores."""
