"""schedule="ready": Ctrl-C at each call that the engine makes. A later call resumes: nothing is lost, and stored work
is not repeated.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextvars import copy_context
from pathlib import Path
from typing import Annotated

import pytest
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import ends_in, ready
from typing_extensions import TypedDict

import stategraph
from stategraph import START, StateGraph
from stategraph.pregel.drivers.threads import ThreadDriver
from stategraph.pregel.drivers.waits import run_task

ENGINE = str(Path(stategraph.__file__).parent / "pregel") + "/"
SAVER = str(Path(stategraph.__file__).parent / "checkpoint" / "memory")


def extend(old, new):
    return [*old, *new]


class State(TypedDict, total=False):
    log: Annotated[list[str], extend]


class CtrlC:
    """In its context Ctrl-C comes at the n-th call that counts. Whatever is at work has ended by then: it must not be stored
    on top of a step that is half made."""

    def __init__(self, number, batches):
        self._left = number
        self._batches = batches

    def __enter__(self):
        sys.setprofile(self._profile)

    def __exit__(self, *_):
        sys.setprofile(None)

    @property
    def came(self):
        return self._left <= 0

    def _profile(self, frame, event, arg):
        # Where CPython looks for signals: as a function begins, and after one that is not in Python.
        if event not in ("call", "c_return") or not _is_counted(frame.f_code):
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            for batch in self._batches:
                for task in [*batch._waiting]:
                    batch._waiting.remove(task)
                    copy_context().run(run_task, task)
                    batch._end(task)
            raise KeyboardInterrupt


COUNTED = tuple(ENGINE + each for each in ("task/", "schedule/", "run/loop", "run/progress", "run/recording"))


def _is_counted(code):
    """What is done around a step; drivers have tests of their own (`test_ctrl_c`)."""
    file = code.co_filename
    if file.startswith(SAVER):
        return True
    return file.startswith(COUNTED) or code is extend.__code__


def note_batches(made):
    """Note the batches that are made until `ends_by` puts its own way aside."""
    make = ThreadDriver.make_batch

    def note(driver, tasks):
        made.append(make(driver, tasks))
        return made[-1]

    ThreadDriver.make_batch = note  # type: ignore[method-assign]


@pytest.mark.parametrize("apart", [27, pytest.param(3, marks=pytest.mark.trial)])
@pytest.mark.parametrize(("durability", "first"), [("sync", 1), ("async", 2), ("exit", 3)])
def test_ctrl_c_loses_nothing(durability, first, apart):
    """At every 27th call, for time's sake; as a trial at every third."""
    runs = Counter()

    def node(name):
        def run(state):
            runs[name] += 1
            return {"log": [name]}

        return run

    graph = StateGraph(State)
    for name in ("a", "b", "c", "d"):
        graph.add_node(name, node(name))
    for before, after in ((START, "a"), (START, "b"), ("a", "c"), ("c", "d"), ("b", "d")):
        graph.add_edge(before, after)
    for number in range(first, 10**6, apart):
        runs.clear()
        app = ready(graph)
        batches = []
        ctrl_c = CtrlC(number, batches)
        with ends_in("a", "b", "c"):
            note_batches(batches)
            try:
                with ctrl_c:
                    app.invoke(EMPTY, CONFIG, durability=durability)
            except KeyboardInterrupt:
                pass
            else:
                if not ctrl_c.came:
                    break
            found = app.get_state(CONFIG)
            stored, begun = set(found.values.get("log", ())), Counter(runs)
            if found.next:
                app.invoke(None, CONFIG)
            elif "log" not in found.values:
                app.invoke(EMPTY, CONFIG)
        ended = app.get_state(CONFIG)
        assert (sorted(ended.values["log"]), ended.next) == (["a", "b", "c", "d"], ()), f"after call {number}"
        assert not stored & (runs - begun).keys(), f"after call {number}"
    assert number > 300
