"""A view that records what it is shown."""

from __future__ import annotations

from stategraph import (
    Observer,
)
from stategraph.visualize.live.progress import Progress


class Seen:
    """A view that keeps what it was given to draw. `on_draw` is called each time."""

    def __init__(self, on_draw=None):
        self.on_draw = on_draw
        self.headlines = []
        self.marks = []

    def draw(self, progress: Progress, now):
        self.progress = progress
        self.headlines.append(progress.headline(now))
        self.marks.append({id: (mark.state, mark.text) for id, mark in progress.marks().items()})
        if self.on_draw is not None:
            self.on_draw(self)

    @property
    def states(self):
        """The last state of each node."""
        return {id: state for id, (state, _) in self.marks[-1].items()}


class Log(Observer):
    """Notes every event, in few words."""

    def __init__(self):
        self.events = []

    def run_started(self, run):
        self.events.append(("run", run.graph))

    def thread_loaded(self, run, checkpoint_id, metadata):
        self.events.append(("loaded", metadata["step"]))

    def run_ended(self, run, status, seconds, error):
        self.events.append(("run ended", status, type(error).__name__))

    def step_started(self, run, step, nodes):
        self.events.append(("step", step, nodes))

    def step_ended(self, run, step, seconds):
        self.events.append(("step ended", step))

    def breakpoint_reached(self, run, nodes):
        self.events.append(("breakpoint", nodes))

    def task_started(self, task):
        self.events.append(("task", task.node))

    def task_restored(self, task, status, error):
        self.events.append(("restored", task.node, status))

    def task_cached(self, task):
        self.events.append(("cached", task.node))

    def attempt_failed(self, task, error, seconds):
        self.events.append(("failed", task.node, task.attempt, type(error).__name__))

    def task_retried(self, task, error, delay):
        self.events.append(("retried", task.node, task.attempt, delay))

    def task_ended(self, task, status, seconds, error):
        self.events.append(("task ended", task.node, status, task.attempt))

    def question_asked(self, task, question):
        self.events.append(("asked", task.node, question.value))

    def question_answered(self, task, question_id):
        self.events.append(("answered", task.node))

    def committed(self, run, step, seconds, size):
        assert seconds > 0 and size >= 0
        self.events.append(("committed", step))

    def conflicted(self, run, error):
        self.events.append(("conflict", type(error).__name__))

    def worker_lost(self, task, error):
        self.events.append(("lost", task.node))


