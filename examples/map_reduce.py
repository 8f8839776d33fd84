"""Map-reduce: one task per file counts its words, a reducer adds up the counts, and a last node
picks the most frequent.

    python -m stategraph.examples.map_reduce [--processes] [FILE ...]

Without files it reads the examples. With `--processes` the same graph counts on all CPUs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from stategraph import END, START, CompiledStateGraph, Send, StateGraph


class State(TypedDict):
    """The state. Many tasks of one superstep write `words`; the reducer adds their counts in the
    order of the Sends."""

    files: list[Path]
    words: Annotated[Counter[str], add]
    top: list[tuple[str, int]]


def one_task_per_file(state: State) -> list[Send]:
    """Map: return one task per file, each with its own input."""
    return [Send("count", path) for path in state["files"]]


def count(path: Path) -> dict[str, Any]:
    """Count the words of one file."""
    return {"words": Counter(re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower()))}


def pick(state: State) -> dict[str, Any]:
    """Pick the most frequent words, once, in the superstep after all counts."""
    ranked = sorted(state["words"].items(), key=lambda item: (-item[1], item[0]))
    return {"top": ranked[:10]}


def build(executor: str = "threads") -> CompiledStateGraph:
    """Build the graph: the tasks that the router at START sends run concurrently on the executor;
    then `pick` runs in this process."""
    graph = StateGraph(State)
    graph.add_node("count", count, executor=executor)
    graph.add_node("pick", pick)
    graph.add_conditional_edges(START, one_task_per_file, ["count"])
    graph.add_edge("count", "pick")
    graph.add_edge("pick", END)
    return graph.compile()


def main(names: list[str]) -> None:
    """Count the words of some files and print the most frequent."""
    executor = "processes" if "--processes" in names else "threads"
    files = [Path(name) for name in names if name != "--processes"] or sorted(
        Path(__file__).parent.glob("*.py")
    )
    result = build(executor).invoke({"files": files})
    print(f"{result['words'].total():,} words in {len(files)} files")
    for word, times in result["top"]:
        print(f"{times:>6} {word}")


if __name__ == "__main__":
    main(sys.argv[1:])
