"""Where trials are played: storages by an address that other processes understand, and graphs that note what they do."""

from __future__ import annotations

import operator
import os
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, TypedDict

from kit import cluster

from stategraph import (
    END,
    START,
    Command,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    UnknownInterruptError,
    interrupt,
)
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import Ledger

SERVER = "STATEGRAPH_CHAOS_POSTGRES"


class Storage(NamedTuple):
    """A storage, as other processes find it.

    Attributes:
        kind: "sqlite" or "postgres".
        address: a file, or a connection string.
    """

    kind: str
    address: str
    synchronous: str = "off"

    @contextmanager
    def open(self, **options):
        """A saver on it."""
        if self.kind == "postgres":
            opened = PostgresSaver.from_conn_string(self.address, pool_size=4, **options)
        else:
            opened = SqliteSaver.from_conn_string(self.address, synchronous=self.synchronous, **options)
        with opened as saver:
            yield saver

    def writes(self):
        """All writes that are stored: (task, channel, value)."""
        with self.open() as saver:
            return [each for found in saver.list(None) for each in found.pending_writes or ()]


def sqlite(round, name="threads", synchronous="off"):
    """A file of this round's. What a killed process has written stays, so nothing need wait for a disk."""
    return Storage("sqlite", str(round.folder / f"{name}.db"), synchronous)


def postgres(round):
    """A fresh schema of the tests' own server."""
    return Storage("postgres", cluster.shared().schema())


def config(thread="t", **more):
    """The config of a thread."""
    return {"configurable": {"thread_id": thread}, "recursion_limit": 100_000, **more}


class Synced(Ledger):
    """A ledger whose lines are on the disk when `note` returns."""

    def note(self, *words):
        super().note(*words)
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())


# -- a graph with everything ------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int
    seen: set[int]
    size: tuple[int, ...]


LANES = 3


def journey(saver, ledger, ask_at, nest_every=5):
    """As often as `left` says: three tasks side by side, then one that gathers. Now and then a nested graph of two
    steps; once a question. Every node notes its key and its place before it returns: that is its effect."""

    def work(task, runtime: Runtime):
        ledger.note(runtime.idempotency_key, "work", task["round"], task["lane"])
        return {"log": [("work", task["round"], task["lane"])]}

    def gather(state, runtime: Runtime):
        left = state["left"]
        ledger.note(runtime.idempotency_key, "gather", left)
        return {"left": left - 1, "seen": set(range(left % 7)), "size": (len(state["log"]),)}

    def ask(state, runtime: Runtime):
        answer = interrupt("go on?")
        ledger.note(runtime.idempotency_key, "ask", state["left"])
        return {"log": [("answer", answer)]}

    def inner(name):
        def node(state, runtime: Runtime):
            ledger.note(runtime.idempotency_key, name, state["left"])
            return {"log": [(name, state["left"])]}

        return node

    def spread(state):
        return [Send("work", {"round": state["left"], "lane": n}) for n in range(LANES)] if state["left"] else END

    def after(state):
        if state["left"] == ask_at:
            return "ask"
        return "nested" if state["left"] % nest_every == 2 else spread(state)

    nested = StateGraph(State, output_schema=Nested)
    nested.add_node("first", inner("first")).add_node("second", inner("second")).add_node("told", told)
    nested.add_edge(START, "first").add_edge("first", "second").add_edge("second", "told")
    graph = StateGraph(State)
    graph.add_node("work", work).add_node("gather", gather).add_node("ask", ask).add_node("nested", nested.compile())
    graph.add_conditional_edges(START, spread, ["work", END]).add_edge("work", "gather")
    graph.add_conditional_edges("gather", after, ["work", "ask", "nested", END])
    graph.add_conditional_edges("ask", spread, ["work", END]).add_conditional_edges("nested", spread, ["work", END])
    return graph.compile(saver)


class Nested(TypedDict, total=False):
    size: tuple[int, ...]


def told(state):
    return {"size": (len(state["log"]), -1)}


def effects(rounds, ask_at, nest_every=5):
    """What an unbroken journey notes, without keys."""
    wanted = set()
    for left in range(rounds, 0, -1):
        wanted |= {("work", left, lane) for lane in range(LANES)} | {("gather", left)}
        if left - 1 == ask_at:
            wanted.add(("ask", left - 1))
        elif (left - 1) % nest_every == 2:
            wanted |= {("first", left - 1), ("second", left - 1)}
    return wanted


# -- a shop -----------------------------------------------------------------------------------------------------

ENTRIES, TURNS = ("charge", "mail"), 3
EFFECTS = {
    *((turn, lane, what) for turn in range(1, TURNS + 1) for lane in range(LANES) for what in ENTRIES),
    *((turn, -1, "close") for turn in range(1, TURNS + 1)),
}
"""All that a shop does: (turn, lane, what)."""
AGAIN = RetryPolicy(max_attempts=2, initial_interval=0, retry_on=ConnectionError)


def shop(saver, is_async, do, ado, fails, schedule="supersteps"):
    """`TURNS` times: three tasks side by side with two effects each, of which some fail at first; then one with an
    effect, which asks in one of the turns.

    Args:
        do, ado: have an effect, called with the runtime, the turn, the lane and what it is.
        fails: whether this attempt of a task is to fail, after its effects; called with the runtime, turn and lane.
    """

    def end(task, runtime):
        if fails(runtime, task["turn"], task["lane"]):
            raise ConnectionError
        return {"log": [("paid", task["turn"], task["lane"])]}

    def pay(task, runtime: Runtime):
        for what in ENTRIES:
            do(runtime, task["turn"], task["lane"], what)
        return end(task, runtime)

    async def apay(task, runtime: Runtime):
        for what in ENTRIES:
            await ado(runtime, task["turn"], task["lane"], what)
        return end(task, runtime)

    def close(state, runtime: Runtime):
        do(runtime, state["left"], -1, "close")
        if state["left"] == 2:
            interrupt("go on?")
        return {"left": state["left"] - 1, "log": [("closed", state["left"])]}

    def sends(state):
        return [Send("pay", {"turn": state["left"], "lane": n}) for n in range(LANES)] if state["left"] else END

    graph = StateGraph(State).add_node("pay", apay if is_async else pay, retry_policy=AGAIN).add_node("close", close)
    graph.add_conditional_edges(START, sends, ["pay", END]).add_edge("pay", "close")
    return graph.add_conditional_edges("close", sends, ["pay", END]).compile(saver, schedule=schedule)


# -- a program ------------------------------------------------------------------------------------------------


def carry_through(app, given, at, world, durability):
    """What a program does that finds a thread in any state: begin, answer, go on, until nothing is left."""
    if not world.call(app, "get_state", at).created_at:
        world.call(app, "invoke", given, {**at, "run_id": "first"}, durability=durability)
    while (state := world.call(app, "get_state", at)).next:
        try:
            answers = Command(resume={each.id: "yes" for each in state.interrupts}) if state.interrupts else None
            world.call(app, "invoke", answers, at, durability=durability)
        except UnknownInterruptError:  # a run that was killed has taken the answer
            world.call(app, "invoke", None, at, durability=durability)
