"""What a fresh process costs: the time of an import, and the memory held after it. Imports next to
nothing itself."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter

FIRST = """
import operator
from typing import Annotated, TypedDict
from {package} import START, StateGraph
class State(TypedDict):
    words: Annotated[list, operator.add]
graph = StateGraph(State)
graph.add_node("hello", lambda state: {{"words": ["hello"]}})
graph.add_edge(START, "hello")
assert graph.compile().invoke({{"words": []}}) == {{"words": ["hello"]}}
"""
"""A program of one node: what a user waits for who starts it."""


def seconds(load: Callable[[], object]) -> float:
    """How long `load` takes."""
    start = perf_counter()
    load()
    return perf_counter() - start


def megabytes() -> float:
    """Resident memory of this process (Linux)."""
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def measure(case: str, load: Callable[[], object]) -> float:
    """P13-time in seconds, or P13-memory in MB."""
    spent = seconds(load)
    return spent if case == "P13-time" else megabytes()


def process(*arguments: str) -> float:
    """Milliseconds that a fresh Python with these arguments takes, the best of three. Bytecode is
    kept, as users keep it."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    call = partial(
        subprocess.check_call, [sys.executable, *arguments], stdout=subprocess.DEVNULL, env=kept
    )
    return 1000 * min(seconds(call) for _ in range(3))
