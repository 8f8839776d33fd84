"""One case with our engine: `python ours.py CASE` prints one number. Brings the names and nothing else."""

import sys
from typing import Any

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("stategraph"))
    from cases import CASES, Engine

    from stategraph import END, START, InMemorySaver, Send, StateGraph
    from stategraph.checkpoint.sqlite import SqliteSaver

    def sqlite(file: str, synchronous: str) -> Any:
        return SqliteSaver.from_conn_string(file, synchronous=synchronous)

    return CASES[case](Engine(StateGraph, START, END, Send, InMemorySaver, sqlite))


print(main(sys.argv[1]))
