"""One case with LangGraph: `python peer.py CASE` prints one number; `CURVE@SIZE` is a point of a
curve.

Brings the names and nothing else.
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("langgraph.graph"))
    if case == "P26":
        return fresh.process("-c", fresh.FIRST.format(package="langgraph.graph"))
    import curves
    from cases import Engine
    from everything import CASES
    from langgraph.cache.memory import InMemoryCache
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages
    from langgraph.types import CachePolicy, Send

    @contextmanager
    def sqlite(file: str, synchronous: str) -> Iterator[Any]:
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(file, check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()  # turns WAL on
        connection.execute(f"PRAGMA synchronous={synchronous}")
        yield saver
        connection.close()

    engine = Engine(
        StateGraph,
        START,
        END,
        Send,
        InMemorySaver,
        sqlite,
        stores_all=True,
        add_messages=add_messages,
        call_model=lambda model, messages: model.invoke(messages),
        CachePolicy=CachePolicy,
        InMemoryCache=InMemoryCache,
        delta=lambda: DeltaChannel(lambda items, writes: [*items, *(x for w in writes for x in w)]),
    )
    return curves.point(case, engine) if "@" in case else CASES[case](engine)


print(main(sys.argv[1]))
