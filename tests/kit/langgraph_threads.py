"""Graphs that LangGraph and stategraph build alike. Run by LangGraph, it writes `langgraph_threads.db`: threads of
langgraph 1.2.24 with langgraph-checkpoint-sqlite 3.1.2. `.compat/bin/python -P tests/kit/langgraph_threads.py`; with the
address of a Postgres server it writes them there.
"""

from __future__ import annotations

import operator
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypedDict

FILE = Path(__file__).with_suffix(".db")


class Talk(TypedDict, total=False):
    topics: list[str]
    facts: Annotated[list[str], operator.add]
    best: str
    when: datetime


def build(lib):
    """The graphs by name.

    Args:
        lib: has `StateGraph`, `START`, `END`, `Send` and `interrupt`.
    """
    def study(state: Talk):
        return {"facts": [state["topics"][0] + "!"]}

    def rank(state: Talk):
        return {"best": max(state["facts"]), "when": datetime(2026, 1, 2)}

    def ask(state: Talk):
        return {"facts": [lib.interrupt("ok?")]}

    def spread(state: Talk):
        return [lib.Send("study", {"topics": [topic]}) for topic in state["topics"]]

    fan = lib.StateGraph(Talk)
    for node in (study, rank, ask):
        fan.add_node(node.__name__, node)
    fan.add_conditional_edges(lib.START, spread, ["study"])
    fan.add_edge("study", "rank")
    fan.add_edge("rank", "ask")

    inner = lib.StateGraph(Talk)
    inner.add_node("study", study)
    inner.add_node("ask", ask)
    inner.add_edge(lib.START, "study")
    inner.add_edge("study", "ask")
    outer = lib.StateGraph(Talk)
    outer.add_node("inner", inner.compile())
    outer.add_node("rank", rank)
    outer.add_edge(lib.START, "inner")
    outer.add_edge("inner", "rank")

    def left(state: Talk):
        return {"facts": ["left"]}

    def right(state: Talk):
        return {"facts": ["right"]}

    def more(state: Talk):
        return "left" if len(state["facts"]) < 5 else lib.END

    join = lib.StateGraph(Talk)
    for node in (left, right, rank):
        join.add_node(node.__name__, node)
    for name in ("left", "right"):
        join.add_edge(lib.START, name)
    join.add_edge(["left", "right"], "rank")
    join.add_conditional_edges("rank", more, ["left", lib.END])
    return {"fan": fan, "outer": outer, "join": join}


def main():
    from langgraph import graph as lib
    from langgraph import types

    assert "stategraph" not in sys.modules, "to be run by LangGraph"
    lib.Send, lib.interrupt = types.Send, types.interrupt
    if sys.argv[1:]:
        from langgraph.checkpoint.postgres import PostgresSaver as Saver
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver as Saver

        FILE.unlink(missing_ok=True)
    with Saver.from_conn_string(sys.argv[1] if sys.argv[1:] else str(FILE)) as saver:
        saver.setup()
        for name, made in build(lib).items():
            app = made.compile(saver)
            for number in range(3):
                config = {"configurable": {"thread_id": f"{name}-{number}", "kind": name}}
                for turn in range(1 + number % 2):
                    done = app.invoke({"topics": ["a", "b", "c"][: number + 1], "facts": [f"turn {turn}"]}, config)
                    if "__interrupt__" in done and number < 2:
                        app.invoke(types.Command(resume=f"yes {turn}"), config)
        if not sys.argv[1:]:
            saver.conn.execute("PRAGMA journal_mode=DELETE")
            saver.conn.execute("VACUUM")


if __name__ == "__main__":
    main()
