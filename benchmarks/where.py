"""Where a superstep's time goes: `python benchmarks/where.py P1 P4 P5` prints a table each,
function by function.

A timer interrupts the running case a thousand times per second of its processor time and notes
which function is at work; a function written in C counts for its caller. That costs the case next
to nothing, unlike a profiler, which makes small functions look slow. Shares of samples times the
microseconds of a superstep are the table's microseconds.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from types import FrameType
from typing import Any
from uuid import uuid4

from cases import Count, Engine, limit, loop, tick

from stategraph import END, START, InMemorySaver, Send, StateGraph
from stategraph.checkpoint.sqlite import SqliteSaver

ROOT = Path(__file__).resolve().parents[1]
STEPS = 500
SECONDS = 20.0
LEAST = 0.01
"""Functions with a smaller share are told together."""

Where = tuple[str, str]
"""(file, function)"""


def sampled(work: Callable[[], Any]) -> tuple[Counter[Where], float]:
    """Which functions are at work while it is done again and again, and the processor's seconds in
    all per round."""
    found: Counter[Where] = Counter()

    def note(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            code = frame.f_code
            found[code.co_filename, code.co_qualname] += 1

    work()
    signal.signal(signal.SIGPROF, note)
    began, rounds = process_time(), 0
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    try:
        while process_time() - began < SECONDS:
            work()
            rounds += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return found, (process_time() - began) / rounds


def case(name: str, folder: str) -> Callable[[], Any]:
    """The loop of a case, on a new thread each time."""
    engine = Engine(StateGraph, START, END, Send, InMemorySaver, None)  # type: ignore[arg-type]  # no case opens one
    builder = loop(engine, STEPS, Count, tick)
    if name == "P1":
        app = builder.compile()
        return lambda: app.invoke({"n": 0}, limit(STEPS))
    if name == "P4":
        there = limit(STEPS, thread_id="t")
        return lambda: builder.compile(checkpointer=InMemorySaver()).invoke({"n": 0}, there)
    if name == "P5":
        saver = SqliteSaver(Path(folder) / "threads.db", synchronous="normal")
        app = builder.compile(checkpointer=saver)
        return lambda: app.invoke({"n": 0}, limit(STEPS, thread_id=uuid4().hex))
    raise SystemExit(f"no such case: {name}; there are P1, P4, P5")


def shown(where: Where) -> str:
    """A function by its file in this repository, or by its module's name elsewhere."""
    path = Path(where[0])
    inside = path.is_relative_to(ROOT) and ".venv" not in path.parts
    return f"`{path.relative_to(ROOT) if inside else path.stem}` {where[1]}"


def main(names: list[str]) -> None:
    for name in names or ["P1", "P4", "P5"]:
        with TemporaryDirectory() as folder:
            found, seconds = sampled(case(name, folder))
        each, all_ = seconds / STEPS * 1e6, found.total()
        print(f"\n{name}: {each:.1f} µs of processor time per superstep, {all_:,} samples\n")
        print("| function | µs | share |\n|---|---|---|")
        rest = 0
        for where, count in found.most_common():
            if count / all_ < LEAST:
                rest += count
            else:
                print(f"| {shown(where)} | {each * count / all_:.2f} | {count / all_:.0%} |")
        print(f"| all others | {each * rest / all_:.2f} | {rest / all_:.0%} |")


if __name__ == "__main__":
    main(sys.argv[1:])
