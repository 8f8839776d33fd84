"""Sub-interpreters as workers: the suite of `test_executors.py` on Python's own pool of them, and what is specific to
them.
"""

import itertools
import subprocess
import sys
from contextlib import ExitStack, closing
from importlib import import_module

import pytest
from kit.graphs import thread_config

if sys.version_info < (3, 14):
    pytest.skip("InterpreterPoolExecutor came with Python 3.14", allow_module_level=True)


from concurrent.futures import InterpreterPoolExecutor
from concurrent.interpreters import get_main

from kit.executor_suite import *

from stategraph import InvalidGraphError
from stategraph.executors import pickling, resolve_executor
from stategraph.executors.pools import InterpreterExecutor
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

# The workers are in the driver's process, and none can be ended alone.
del test_a_worker_that_dies_counts_as_an_attempt, test_a_task_that_kills_its_workers_fails_after_three
del test_a_worker_that_dies_is_detected_though_a_child_keeps_its_files_open
del test_a_child_forked_by_a_node_exits_and_sends_no_result  # they cannot fork


@pytest.fixture(scope="module")
def pool():
    with InterpreterPoolExecutor(2, thread_name_prefix="stategraph") as found:
        yield found


@pytest.fixture(scope="module")
def executor(pool):
    return pool


@pytest.fixture(scope="module")
def far(pool):
    return pool


@pytest.fixture
def world(drive):
    return drive


@pytest.fixture
def elsewhere():
    """The process is the same."""
    return False


@pytest.fixture
def ends_for_real():
    return False


@pytest.fixture
def new_store(tmp_path):
    """None on Postgres: psycopg's pool has daemon threads, see below."""
    names = (tmp_path / f"{n}.db" for n in itertools.count())
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(SqliteStore(next(names), index=INDEX)))


# One of the questions wants an `int`, which pydantic would check: see below.
@pytest.mark.parametrize("story", [story for story in STORIES if story != "questions"])
def test_a_run_is_equal_to_the_local_one_event_by_event(drive, executor, story):
    assert play(drive, story, executor=executor) == play(drive, story)


def test_an_interpreter_pool_is_not_taken_for_a_thread_pool(pool):
    assert isinstance(resolve_executor(pool), InterpreterExecutor)
    assert resolve_executor(pool) is resolve_executor(pool)


# -- how functions find their way -------------------------------------------------------------------------------

MODULE = """
import os
import threading
from concurrent.interpreters import get_current

from stategraph import START, InMemorySaver, StateGraph, interrupt
from kit.executor_graphs import State

def which(state: State) -> State:
    return {"log": [get_current().id]}

def imports_late(state: State) -> State:
    import pydantic
    return {"log": [pydantic.VERSION]}

def asks_for_a_number(state: State) -> State:
    return {"n": interrupt("how many?", response_schema=int)}

def asks_in_json(state: State) -> State:
    return {"n": interrupt("how many?", response_schema={"type": "integer"})}

def stores(state: State) -> None:
    InMemorySaver().serde.dumps(state)

def reads(state: State) -> None:
    InMemorySaver().serde.loads(("msgpack", b"\\xc0"))

def starts_a_daemon(state: State) -> None:
    threading.Thread(target=int, daemon=True).start()

def forks(state: State) -> None:
    os.fork()

app = StateGraph(State).add_node(which).add_edge(START, "which").compile(InMemorySaver())
"""
ORDERS = """
from pydantic import BaseModel

class Order(BaseModel):
    n: int = 0

def of_order(state: Order):
    return {"n": state.n + 1}
"""


@pytest.fixture(scope="module")
def late(pool, tmp_path_factory):
    """A module on a path that is younger than the interpreters, and builds a graph with a saver."""
    assert all(pool.map(int, ["1"] * 8))
    folder = tmp_path_factory.mktemp("late")
    (folder / "late_nodes.py").write_text(MODULE)
    (folder / "late_orders.py").write_text(ORDERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module("late_nodes")
        for name in ("late_nodes", "late_orders"):
            sys.modules.pop(name, None)


def test_a_function_is_imported_by_the_drivers_current_path(drive, pool, late):
    assert drive.invoke(row(late.which, executor=pool), {})["log"] != [get_main().id]


SCRIPT = """
from concurrent.futures import InterpreterPoolExecutor
from dataclasses import dataclass, field
from operator import add
from typing import Annotated

from stategraph import START, Send, StateGraph

@dataclass
class Word:
    text: str

@dataclass
class State:
    texts: list = field(default_factory=list)
    words: Annotated[list[Word], add] = field(default_factory=list)

def split(sent):
    return {"words": [Word(text) for text in sent["text"].split()]}

def shout(state: State):
    return {"words": [Word(word.text.upper()) for word in state.words]}

graph = StateGraph(State).add_node(split).add_node(shout).add_node("last", lambda state: {"words": [Word("!")]})
graph.add_conditional_edges(START, lambda state: [Send("split", {"text": text}) for text in state.texts], ["split"])
graph.add_edge("split", "shout").add_edge("shout", "last")
with InterpreterPoolExecutor(2) as pool:
    print(graph.compile(executor=pool).invoke({"texts": ["a b", "c"]})["words"])
"""


def test_what_a_script_defines_goes_by_value_and_needs_no_guard(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    told = subprocess.check_output([sys.executable, tmp_path / "script.py"], text=True)
    assert told == str([f"Word(text='{word}')" for word in "abcABC!"]).replace('"', "") + "\n"


def test_what_has_no_name_there_is_refused_at_compile(pool, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    pickling._value_pickler.cache_clear()
    with pytest.raises(InvalidGraphError, match=r"'lambda' cannot run on an executor: its function: .*install cloudpickle"):
        row(("lambda", lambda state: None), executor=pool)
    monkeypatch.setattr(count, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "count", count, raising=False)
    with pytest.raises(InvalidGraphError, match="it is defined in the script itself, which workers cannot import"):
        row(count, executor=pool)


# -- what does not load there -----------------------------------------------------------------------------------

def test_a_pydantic_state_is_refused_with_a_way_out(drive, pool, late):
    orders = import_module("late_orders")
    with pytest.raises(ShippingError, match='its function or input.*pydantic_core.*executor="processes" for this node'):
        drive.invoke(row(orders.of_order, schema=orders.Order, executor=pool), {"n": 1})


NOT_THERE = {
    "imports_late": "pydantic_core",
    "asks_for_a_number": "pydantic_core",
    "stores": "nothing can be stored .* ormsgpack",
    "reads": "loaded: .* ormsgpack",
    "starts_a_daemon": "daemon threads",
    "forks": "fork",
}


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_sub_interpreters_do_not_have_is_named_with_its_node(drive, pool, late, name):
    app = row(getattr(late, name), executor=pool, checkpointer=InMemorySaver())
    told = rf"node '{name}' runs on an executor: what it uses: .*{NOT_THERE[name]}.*; use executor=\"processes\""
    with pytest.raises(ShippingError, match=told):
        drive.invoke(app, {"n": 0}, thread_config("1"))


def test_a_store_on_postgres_is_refused_with_a_way_out(drive, pool, postgres):
    with (
        closing(PostgresStore(postgres)) as store,
        pytest.raises(ShippingError, match='node \'puts\' .*daemon threads.*; use executor="processes"'),
    ):
        drive.invoke(row(puts, executor=pool, store=store), {})


def test_a_json_schema_of_an_answer_needs_no_pydantic(drive, pool, late):
    app = row(late.asks_in_json, executor=pool, checkpointer=InMemorySaver())
    thread = thread_config("1")
    assert drive.invoke(app, {"n": 0}, thread)["__interrupt__"][0].response_schema == {"type": "integer"}
    assert drive.invoke(app, Command(resume=3), thread)["n"] == 3


# -- the pool -----------------------------------------------------------------------------------------------------


def test_a_pool_that_was_shut_down_says_so(drive):
    with InterpreterPoolExecutor(1, thread_name_prefix="stategraph") as pool:
        app = row(count, executor=pool)
        assert drive.invoke(app, {"n": 0})["n"] == 1
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        drive.invoke(app, {"n": 0})


def refuses():
    raise ValueError("not today")


def test_a_pool_whose_interpreters_do_not_start_is_named(drive, caplog):
    with (
        InterpreterPoolExecutor(1, thread_name_prefix="stategraph", initializer=refuses) as pool,
        pytest.raises(WorkerLostError, match="'count' lost its worker on InterpreterPoolExecutor once: .* make a new pool"),
    ):
        drive.invoke(row(count, executor=pool), {"n": 0})
    assert "Exception in initializer" in caplog.text
