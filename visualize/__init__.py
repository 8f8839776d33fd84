"""Looking at graphs and runs. Reads the compiled program and stored checkpoints; runs no user code."""
