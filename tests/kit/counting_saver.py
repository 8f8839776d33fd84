"""A saver whose overrides count their calls, and a run that makes them."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from typing import Annotated

from typing_extensions import TypedDict

from kit.graphs import CONFIG
from stategraph import END, START, Command, StateGraph, interrupt

SYNC = ("get_tuple", "list", "head", "run_of", "put", "put_writes", "commit", "record")
THREAD = CONFIG


class State(TypedDict):
    log: Annotated[list[str], lambda old, new: old + new]


def counting(base: type, names):
    """A subclass that counts the calls of these methods and does what its base does."""

    def method(name):
        if name == "alist":

            async def alist(self, *args, **named):
                self.calls[name] += 1
                async for found in base.alist(self, *args, **named):  # type: ignore[attr-defined]
                    yield found

            return alist
        if inspect.iscoroutinefunction(getattr(base, name)):

            async def acall(self, *args, **named):
                self.calls[name] += 1
                return await getattr(base, name)(self, *args, **named)

            return acall

        def call(self, *args, **named):
            self.calls[name] += 1
            return getattr(base, name)(self, *args, **named)

        return call

    return type("Counting", (base,), {"calls": Counter(), **{name: method(name) for name in names}})


def script(app):
    """A run that stores, records, pauses, is answered twice by the same delivery, and forks from an older checkpoint."""
    yield "invoke", ({"log": ["in"]}, {**THREAD, "run_id": "a"})
    yield "invoke", (Command(resume="yes"), {**THREAD, "run_id": "b"})
    yield "invoke", (Command(resume="yes"), {**THREAD, "run_id": "b"})  # delivered again
    past = [found for found in app.get_state_history(THREAD) if found.next == ("first", "second")]
    yield "invoke", (None, past[0].config)
    yield "invoke", (Command(resume="again"), THREAD)


def build(saver, first=lambda state: {"log": ["first"]}):
    def ask(state):
        return {"log": [interrupt("?")]}

    graph = StateGraph(State)
    graph.add_node("first", first)
    graph.add_node("second", ask)
    graph.add_node("last", lambda state: {"log": ["last"]})
    for name in ("first", "second"):
        graph.add_edge(START, name)
        graph.add_edge(name, "last")
    graph.add_edge("last", END)
    return graph.compile(saver)


def play(saver, world):
    app = build(saver)
    done = None
    for method, args in script(app):
        done = getattr(app, method)(*args) if world == "sync" else asyncio.run(getattr(app, "a" + method)(*args))
    found = [(s.values, s.next, [t.name for t in s.tasks]) for s in app.get_state_history(THREAD)]
    return done, found
