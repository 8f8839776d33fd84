"""Timelines made of plain records, for tests of their summaries and drawings."""

from __future__ import annotations

from stategraph import Interrupt
from stategraph.checkpoint.base import UNDER_WAY
from stategraph.visualize.render.timeline import build_timeline
from stategraph.visualize.trace.records import Source, TaskState, Trace, TraceStep, TraceTask

QUESTION = Interrupt("ok?", "q1")


def task(node, *spans, state: TaskState = "done", **kwargs):
    waits = (kwargs.pop("wait", 0.0),) * len(spans)
    return TraceTask(kwargs.pop("id", node), node, node.rpartition(":")[2], state, spans, waits, **kwargs)


def step(number, *tasks: TraceTask, source: Source = "loop", at=None, **kwargs):
    return TraceStep(number, source, tasks, None if source == "open" else f"c{number}", at, **kwargs)


def told_of(*steps: TraceStep):
    return build_timeline(Trace("graph", "t", "", "c", steps))


START = step(0, task("__start__", (100.0, 0.0)), source="input")


def overlapping(number, *tasks: TraceTask, **kwargs):
    """A step after which other tasks go on."""
    return step(number, *tasks, metadata={UNDER_WAY: True, **kwargs.pop("metadata", {})}, **kwargs)
