"""Views of a run while it executes, from the events of its tasks."""
