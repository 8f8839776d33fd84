"""One task: an execution of a node with its attempts, questions, answers and outcome. Nothing here
waits."""
