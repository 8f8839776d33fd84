"""One superstep as pure state: planned, its tasks' outcomes decided, its writes applied. Nothing
here waits."""
