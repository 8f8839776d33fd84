"""One case with our engine: `python ours.py CASE` prints one number; `CURVE@SIZE` is a point of a
curve.

Brings the names and nothing else.
"""

import sys
from typing import Any

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("stategraph").StateGraph)
    if case == "P26":
        return fresh.process("-c", fresh.FIRST.format(package="stategraph"))
    if case == "P26-help":
        return fresh.process("-P", "-m", "stategraph", "--help")
    import curves
    from cases import Engine
    from everything import CASES

    from stategraph import END, START, CachePolicy, InMemorySaver, Send, StateGraph, add_messages
    from stategraph.checkpoint.sqlite import SqliteSaver
    from stategraph.graph import call_model
    from stategraph.store import InMemoryCache

    def sqlite(file: str, synchronous: str) -> Any:
        return SqliteSaver.from_conn_string(file, synchronous=synchronous)

    def postgres(conninfo: str) -> Any:
        from stategraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver.from_conn_string(conninfo)

    engine = Engine(
        StateGraph,
        START,
        END,
        Send,
        InMemorySaver,
        sqlite,
        postgres,
        add_messages=add_messages,
        call_model=call_model,
        CachePolicy=CachePolicy,
        InMemoryCache=InMemoryCache,
    )
    return curves.point(case, engine) if "@" in case else CASES[case](engine)


if __name__ == "__main__":  # processes of P38 import this file
    print(main(sys.argv[1]))
