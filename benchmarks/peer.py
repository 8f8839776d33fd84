"""One case with LangGraph: `python peer.py CASE` prints one number. Brings the names and nothing else."""

import sys

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("langgraph.graph"))
    from cases import CASES, Engine
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    return CASES[case](Engine(StateGraph, START, END, Send, InMemorySaver))


print(main(sys.argv[1]))
