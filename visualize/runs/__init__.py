"""Views of runs: live, from a run's events; and afterwards, from what its checkpointer has
stored."""
