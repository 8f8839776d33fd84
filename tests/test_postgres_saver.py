"""What is Postgres's own about `PostgresSaver`: round trips, races, servers that restart, hang or refuse. That it keeps
the contract of a saver is shown in `test_memory_saver`."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import add
from time import monotonic
from typing import Annotated, Any, TypedDict

import cluster
import psycopg
import pytest
from cluster import Cluster, Proxy, free_port
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool
from test_memory_saver import Run, checkpoint

from stategraph import END, START, Command, StateGraph, interrupt
from stategraph.checkpoint import CheckpointConflictError, Commit, DamagedError, Retention, StorageError, TaskWrites
from stategraph.checkpoint import postgres_tables as tables
from stategraph.checkpoint import server as server_module
from stategraph.checkpoint.base import address
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.server import ConnectionLostError

postgres = cluster.postgres
LONG = "x" * 200
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def saver(postgres: str) -> Iterator[PostgresSaver]:
    with PostgresSaver.from_conn_string(postgres) as opened:
        yield opened


@pytest.fixture
def server() -> Cluster:
    return cluster.shared()


@pytest.fixture
def proxy(server: Cluster) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


def running(saver: PostgresSaver, thread: str = "t") -> Run:
    """Commits supersteps as the engine does."""
    return Run(lambda method, *args: getattr(saver, method)(*args), saver, thread)


def ids(saver: PostgresSaver, thread: str = "t") -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(address(thread, ""))]


# -- a whole graph ----------------------------------------------------------------------------------------------


class State(TypedDict):
    log: Annotated[list[str], add]


def graph(saver: Any) -> Any:
    """A loop with a nested graph in it, which asks."""
    inner = StateGraph(State)
    inner.add_node("ask", lambda state: {"log": [interrupt(len(state["log"]))]})
    inner.add_edge(START, "ask")
    nested = inner.compile()
    outer = StateGraph(State)
    outer.add_node("say", lambda state: {"log": [f"said {len(state['log'])}"]})
    outer.add_node("inside", lambda state: {"log": nested.invoke({"log": state["log"]})["log"][len(state["log"]) :]})
    outer.add_edge(START, "say")
    outer.add_edge("say", "inside")
    outer.add_conditional_edges("inside", lambda state: END if len(state["log"]) > 4 else "say", ["say", END])
    return outer.compile(checkpointer=saver)


def config(thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread}}


def test_a_run_pauses_inside_and_goes_on_from_another_saver(drive: Any, postgres: str) -> None:
    answers = ["a", "b", "c"]
    with PostgresSaver.from_conn_string(postgres) as one:
        assert drive.invoke(graph(one), {"log": []}, config())["__interrupt__"][0].value == 1
    for number, answer in enumerate(answers):
        with PostgresSaver.from_conn_string(postgres) as again:
            app = graph(again)
            found = drive.invoke(app, Command(resume=answer), config())
            assert ("__interrupt__" in found) == (number < 2)
    assert found["log"] == ["said 0", "a", "said 2", "b", "said 4", "c"]
    with PostgresSaver.from_conn_string(postgres) as last:
        history = drive.history(graph(last), config())
    assert [len(each.values["log"]) for each in history] == [6, 5, 4, 3, 2, 1, 0, 0][: len(history)]


# -- round trips ------------------------------------------------------------------------------------------------


class Traced:
    """A connection that writes down what it sends; each `Sync` or `Query` is a round trip."""

    def __init__(self, conninfo: str, path: Any) -> None:
        self.connection = psycopg.connect(conninfo, autocommit=True)
        self._path = path
        self._file = open(path, "w")  # noqa: SIM115
        self.connection.pgconn.trace(self._file.fileno())

    def trips(self) -> int:
        """How many since the last time this was asked."""
        self.connection.pgconn.untrace()
        lines = self._path.read_text().splitlines()
        self._file.truncate(0)
        self._file.seek(0)
        self.connection.pgconn.trace(self._file.fileno())
        return sum(line.split("\t")[1:2] == ["F"] and line.split("\t")[3:4] in (["Sync"], ["Query"]) for line in lines)

    def close(self) -> None:
        self.connection.close()
        self._file.close()


@pytest.fixture
def traced(postgres: str, tmp_path: Any) -> Iterator[Traced]:
    made = Traced(postgres, tmp_path / "trace")
    yield made
    made.close()


def test_a_superstep_is_one_round_trip_and_reading_a_thread_at_most_two(traced: Traced) -> None:
    saver = PostgresSaver(traced.connection)
    saver.setup()
    traced.trips()
    run = running(saver)
    run.step("0", a=1, b=LONG)
    assert traced.trips() == 1, "the first of a thread"
    for step in range(1, 10):  # psycopg prepares a statement when it comes again, which is a round trip once
        run.step(str(step), a=step, b=LONG * step, writes=[("task", [("a", step)])])
    traced.trips()
    for step in range(10, 30):
        run.step(str(step), a=step, b=LONG * step, writes=[("task", [("a", step)])])
        assert traced.trips() == 1
    assert saver.get_tuple(address("t", "")) is not None
    assert traced.trips() == 2
    assert saver.head(address("t", "")) == "29"
    assert traced.trips() == 1
    assert saver.get_tuple(address("nobody", "")) is None
    assert traced.trips() == 1
    saver.commit_writes("t", "", "29", [TaskWrites("task", "", [("a", saver.serde.dumps(1))])])
    assert traced.trips() == 1


def test_short_values_are_read_in_one_round_trip(traced: Traced) -> None:
    saver = PostgresSaver(traced.connection)
    for step, run in enumerate([running(saver)] * 5):
        run.step(str(step), a=step)
    traced.trips()
    found = saver.get_tuple(address("t", ""))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 4}
    assert traced.trips() == 1


def test_a_run_of_a_graph_takes_at_most_two_round_trips_a_superstep(traced: Traced) -> None:
    builder = StateGraph(State)
    builder.add_node("say", lambda state: {"log": [LONG]})
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: END if len(state["log"]) >= 50 else "say", ["say", END])
    saver = PostgresSaver(traced.connection)
    app = builder.compile(checkpointer=saver)
    app.invoke({"log": []}, config())
    traced.trips()
    app.invoke({"log": []}, config("next"))
    trips = traced.trips()
    checkpoints = len(ids(saver, "next"))
    assert trips <= checkpoints + 3, "reading the thread, and little else"


def test_the_set_of_sql_texts_is_fixed() -> None:
    sent: set[str] = set()

    class Watched(psycopg.RawCursor[Any]):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            sent.add(query)
            return super().execute(query, *args, **kwargs)

    attacks = ["'; DROP TABLE stategraph_spaces; --", "$1", "%s", "\\", '"', "a\0b", "{}", "ü", "\x01", "%", "_", "*"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "RawCursor", Watched)
        with PostgresSaver.from_conn_string(cluster.shared().schema(), retention=Retention(keep_last=5)) as saver:
            for text in attacks:
                run = running(saver, text)
                run.step(text, **{text: LONG, "run": text})
                run.step(text * 2, **{text: LONG * 2})
                saver.put(address(text, text, text), checkpoint(text, {text: text}, {text: 1}), {"run_id": text}, {})  # type: ignore[typeddict-item]
                saver.put_writes(address(text, text, text), [(text, text)], text, text)
                saver.run_of(address(text, text), text)
                assert [*saver.list(address(text, ""), filter={text: text})] == []
                assert ids(saver, text) == [text * 2, text]
                found = saver.get_tuple(address(text, text))
                assert found is not None
                assert (found.checkpoint["channel_values"], found.pending_writes) == ({text: text}, [(text, text, text)])
            for text in attacks:
                saver.copy_thread(text, f"copy of {text}")
                saver.prune([text], keep_last=1)
                saver.delete_for_runs([text])
                assert ids(saver, text) == [text * 2]
                assert saver.head(address(text, text)) is None
                saver.delete_thread(text)
                assert ids(saver, f"copy of {text}") == [text * 2, text]
    known = {*tables.STATEMENTS.values(), *(text for group in tables.MIGRATIONS for text in group)}
    known |= {text for text in vars(server_module).values() if isinstance(text, str)}
    assert sent <= known
    assert len(sent & set(tables.STATEMENTS.values())) > 25
