"""Map-reduce: one task per file counts its words, a reducer adds the counts up, a joined node picks
the top ones.

    python -m stategraph.examples.map_reduce [--processes] [FILE ...]

Without files it reads the examples themselves. With `--processes` the same graph counts on all
CPUs.
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
    """`words` is written by many tasks of one superstep; the reducer adds their counts in the order
    of the Sends."""

    files: list[Path]
    words: Annotated[Counter[str], add]
    top: list[tuple[str, int]]


def one_task_per_file(state: State) -> list[Send]:
    """The map: as many tasks as there are files, each with an input of its own."""
    return [Send("count", path) for path in state["files"]]


def count(path: Path) -> dict[str, Any]:
    """One task: count the words of one file."""
    return {"words": Counter(re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower()))}


def pick(state: State) -> dict[str, Any]:
    """Runs once, in the superstep after all counts."""
    ranked = sorted(state["words"].items(), key=lambda item: (-item[1], item[0]))
    return {"top": ranked[:10]}


def build(executor: str = "threads") -> CompiledStateGraph:
    """START asks the router; whatever it sends runs side by side, on the executor; then `pick`,
    here."""
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
