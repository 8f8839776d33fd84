"""What runs next, as pure state: planned, started, its writes applied. Nothing here waits."""
