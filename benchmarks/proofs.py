"""How long `stategraph upgrade` takes for 10,000 stored threads of 40 shapes in an SQLite file.

    .venv/bin/python benchmarks/proofs.py [threads]

The shapes: pauses at 16 places of a chain, joins that 0 to 7 of 8 nodes have reached, 1 to 8
`Send`s, pauses at 4 places of a nested graph, and 4 sleeps. The new version has one more edge.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from operator import add
from typing import Annotated, TypedDict

from stategraph import START, Runtime, Send, StateGraph, interrupt
from stategraph.checkpoint.sqlite import SqliteSaver

SHAPES = {"chain": 16, "join": 8, "send": 8, "nested": 4, "sleep": 4}


class State(TypedDict, total=False):
    """A log, and the shape of the thread: its kind, and how far it goes."""

    log: Annotated[list[str], add]
    kind: str
    number: int


def step(place: int, at: Callable[[int, int], bool]) -> Callable[[State], State]:
    """Return a node that asks a question if its place and the thread's number are `at`."""

    def run(state: State) -> State:
        if at(place, state.get("number", place)):
            interrupt("continue?")
        return {"log": [f"step {place}"]}

    return run


def sleep(state: State, runtime: Runtime[None]) -> State:
    """Sleep for days."""
    runtime.sleep(timedelta(days=1 + state["number"]))
    return {}


def choose(state: State) -> str | list[Send]:
    """Lead a thread to the node of its kind."""
    if state["kind"] == "send":
        return [Send("send", {"log": []})] * (state["number"] + 1)
    return state["kind"]


def make(*, more: bool = False) -> StateGraph:
    """Build the graph; with `more`, its new version."""
    inner = StateGraph(State).add_sequence([(f"in{n}", step(n, int.__eq__)) for n in range(4)])
    builder = StateGraph(State).add_sequence([(f"step{n}", step(n, int.__eq__)) for n in range(16)])
    builder.add_node("chain", lambda _: {}).add_edge("chain", "step0")
    builder.add_node("join", lambda _: {}).add_node("joined", lambda _: {})
    for place in range(8):
        builder.add_node(f"side{place}", step(place, int.__ge__)).add_edge("join", f"side{place}")
    builder.add_edge([f"side{n}" for n in range(8)], "joined")
    builder.add_node("send", step(0, int.__eq__)).add_node("sleep", sleep)
    builder.add_node("nested", inner.add_edge(START, "in0").compile())
    builder.add_conditional_edges(START, choose, [*SHAPES])
    return builder.add_edge("step9", "joined") if more else builder


def main(threads: str = "10000") -> None:
    """Store the threads, prove them, and print what that found and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        db = f"{folder}/threads.db"
        with SqliteSaver.from_conn_string(db) as saver:
            app = old.copy({"checkpointer": saver})
            for kind, count in SHAPES.items():
                for number in range(count):
                    first, *others = (f"{kind} {number} {n}" for n in range(int(threads) // 40))
                    config = {"configurable": {"thread_id": first}}
                    app.invoke({"kind": kind, "number": number}, config)
                    for other in others:
                        saver.copy_thread(first, other)
        command = [sys.executable, "-m", "stategraph", "upgrade", f"{__file__}:new", "--db", db]
        begin = time.perf_counter()
        subprocess.run([*command, "--old", f"{__file__}:old"], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = used.ru_utime + used.ru_stime
        print(f"{time.perf_counter() - begin:.1f} s, {processor:.1f} s of processor time")


old, new = make().compile(), make(more=True).compile()

if __name__ == "__main__":
    main(*sys.argv[1:])
