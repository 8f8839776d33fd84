"""Which modules a program of one node loads (PERFORMANCE P26)."""


from kit.programs import printed

FIRST = """
import sys
before = {*sys.modules}
import operator
from typing import Annotated, TypedDict
from stategraph import START, SqliteSaver, StateGraph
class State(TypedDict):
    words: Annotated[list, operator.add]
graph = StateGraph(State)
graph.add_node("hello", lambda state: {"words": ["hello"]})
graph.add_edge(START, "hello")
graph.compile().invoke({"words": []})
"""
STORED = """
with SqliteSaver.from_conn_string(":memory:") as saver:
    app = graph.compile(saver)
    app.invoke({"words": []}, {"configurable": {"thread_id": "1"}})
"""
OPTIONAL = {f"stategraph.pregel.drivers.{name}" for name in ("aio", "racing", "side_effects", "sleeping", "spending")}
UNUSED = (
    "stategraph.compat", "stategraph.executors", "stategraph.visualize", "langchain", "langsmith", "multiprocessing",
    "cloudpickle",
)  # fmt: skip
"""What a graph that does not use it must not pay for."""
HEAVY = {"asyncio", "concurrent.futures", "difflib", "graphlib", "logging", "networkx", "pydantic", "random", "traceback"}
"""What a first run does not need: each costs 1-5 % of its time, some far more."""


def loaded(program):
    """The modules that a program loads beside those of a bare Python."""
    program += "print(*({*sys.modules} - before))"
    return {*printed(program).split()}


def test_a_first_run_loads_nothing_heavy():
    assert not loaded(FIRST.replace("SqliteSaver, ", "")) & {*HEAVY, "hashlib", "json", "pickle", "sqlite3"}


def test_a_first_run_loads_nothing_that_it_does_not_use():
    assert not loaded(FIRST) & OPTIONAL


def test_a_graph_stored_in_sqlite_loads_only_what_it_needs():
    found = loaded(FIRST + STORED)
    assert not found & HEAVY
    assert not [name for name in found if name.startswith(UNUSED) or "observ" in name]
