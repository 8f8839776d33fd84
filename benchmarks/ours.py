"""One case with our engine: `python ours.py CASE` prints one number. Brings the names and nothing else."""

import sys

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("stategraph"))
    from cases import CASES, Engine

    from stategraph import END, START, InMemorySaver, Send, StateGraph

    return CASES[case](Engine(StateGraph, START, END, Send, InMemorySaver))


print(main(sys.argv[1]))
