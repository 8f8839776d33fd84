"""Random graphs, run without interruption, and ways to compare their threads."""

from __future__ import annotations

import threading
from collections import Counter

from hypothesis import HealthCheck, assume, event, settings

import stategraph
from kit.drive import Drive
from kit.graph_specs import (
    Boom,
    Described,
    build,
    plain,
)
from kit.graph_specs import given as taken


def look(share=1.0):
    """This share of the profile's examples."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=max(1, int(settings.default.max_examples * share)), suppress_health_check=checks)


PATIENCE = 80  # calls that a run may be stopped for


class Calls:
    """Counts the calls of every task, by its id; raises on those whose number in the run is given."""

    def __init__(self, *failing):
        self.count = Counter()
        self.failing = set(failing)
        self.failed = Counter()
        self._lock = threading.Lock()

    def __call__(self, name, given):
        """The probe that `build` takes."""
        task_id = stategraph.get_runtime().idempotency_key
        with self._lock:
            self.count[task_id] += 1
            if self.count.total() in self.failing:
                self.failed[task_id] += 1
                raise Boom(name)

    @property
    def repeated(self):
        """Tasks that were called again although they had not failed."""
        return {task_id for task_id, count in self.count.items() if count > 1} - self.failed.keys()


class Thread:
    """One thread of one graph, in one world, to be run in pieces."""

    def __init__(self, graph: Described, drive, *failing, **build_options):
        self.drive = drive
        self.calls = Calls(*failing)
        saver = stategraph.InMemorySaver()
        self.app = build(
            graph, stategraph, is_async=drive.is_async, saver=saver, probe=self.calls, **build_options
        )  # fmt: skip
        self.config = {"configurable": {"thread_id": "1"}, "recursion_limit": graph["limit"]}
        self.input = taken(graph["inputs"][0], stategraph)

    def invoke(self, value, **options):
        """Run on; the name of the error that ended it."""
        try:
            self.drive.invoke(self.app, value, self.config, **options)
        except Exception as error:
            return type(error).__name__
        return None

    def finish(self, **options):
        """Resume until nothing is left to do."""
        for _ in range(PATIENCE):
            if not self.state.next:
                return
            error = self.invoke(None, **options)
            assert error in (None, "Boom")
        raise AssertionError(f"does not come to an end; next is {self.state.next}")

    @property
    def state(self):
        return self.drive.get_state(self.app, self.config)

    @property
    def values(self):
        """The thread's state."""
        return plain(self.state.values)

    @property
    def stored(self):
        """The state of the newest checkpoint, with nothing of what its tasks have written since."""
        return plain(self.drive.history(self.app, self.config)[0].values)


def unbroken(graph: Described, drive: Drive):
    """The thread after a run that nothing stopped; a graph that cannot come to its end by itself is left out."""
    thread = Thread(graph, drive)
    error = thread.invoke(thread.input)
    event(f"the unbroken run ends with {error}")
    assume(error is None)
    assert not thread.state.next and not thread.calls.repeated
    return thread
