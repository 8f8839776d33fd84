"""A loop: a node improves a guess, and a router repeats it until the guess is good enough.

    python -m stategraph.examples.newton [NUMBER]

The recursion limit ends a loop that would never end: a negative number has no real root.
"""

from __future__ import annotations

import sys
from typing import Literal, TypedDict

from stategraph import START, CompiledStateGraph, GraphRecursionError, StateGraph


class State(TypedDict):
    """The state. Plain keys keep the last value written."""

    number: float
    guess: float


def improve(state: State) -> dict[str, float]:
    """Make one step of Newton's method for the square root."""
    guess = state["guess"] or 1.0  # never divide by zero
    return {"guess": (guess + state["number"] / guess) / 2}


def good_enough(state: State) -> Literal["improve", "__end__"]:
    """Route by the guess just made. The annotation declares the possible targets."""
    number, guess = state["number"], state["guess"]
    return "__end__" if abs(guess * guess - number) <= 1e-12 * abs(number) else "improve"


def build() -> CompiledStateGraph:
    """Build a graph of one node in a loop."""
    graph = StateGraph(State)
    graph.add_node("improve", improve)
    graph.add_edge(START, "improve")
    graph.add_conditional_edges("improve", good_enough)
    return graph.compile()


def main(number: float) -> None:
    """Print each guess. A superstep runs only when the next chunk is requested."""
    try:
        for chunk in build().stream({"number": number, "guess": 1.0}, {"recursion_limit": 20}):
            print(f"{chunk['improve']['guess']:.15g}")
    except GraphRecursionError as error:
        print(f"gave up: {error}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
