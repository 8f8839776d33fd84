"""Each table of a saver that holds data of threads is filled here, copied, pruned and deleted with its thread: a table that is
added and forgotten in one of these fails."""

from __future__ import annotations

from typing import Annotated, TypedDict

import psycopg
import pytest
from kit.graphs import CONFIG, EMPTY, chain_of, thread_config
from kit.savers import opened_saver

from stategraph import START, Command, Send, StateGraph, interrupt

ONE = CONFIG["configurable"]["thread_id"]
COLUMNS = {
    "sqlite": "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'",
    "postgres": "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()",
}


class State(TypedDict, total=False):
    log: Annotated[list[str], lambda old, new: [*old, *new]]


class Stored:
    """A saver, and its rows: `count` tells those of each thread, by table, of all tables that hold data of threads.

    Args:
        run: runs a statement and gives its rows.
    """

    def __init__(self, saver, kind, run):
        self.saver, self._run = saver, run
        self._columns = {}
        for table, column in run(COLUMNS[kind]):
            self._columns.setdefault(table, []).append(column)
        self._prefix = "stategraph_" if kind == "postgres" else ""

    def count(self):
        spaces = {id: as_text(name) for id, name in self._run(f"SELECT id, thread_id FROM {self._prefix}spaces")}
        counts = {}
        for table, columns in self._columns.items():
            for column in {"thread_id", "space"}.intersection(columns):
                mine = counts.setdefault(table.removeprefix(self._prefix), {})
                for (owner,) in self._run(f"SELECT {column} FROM {table}"):
                    name = as_text(owner) if column == "thread_id" else spaces.get(owner, "a thread that is gone")
                    mine[name] = mine.get(name, 0) + 1
        return counts


def as_text(name):
    return name if isinstance(name, str) else bytes(name).decode()


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request, tmp_path):
    with opened_saver(request.param, request, tmp_path) as saver:
        fill(saver)
        if request.param == "sqlite":
            yield Stored(saver, "sqlite", lambda statement: saver._database.execute(statement).fetchall())
        else:
            with psycopg.connect(request.getfixturevalue("postgres"), autocommit=True) as connection:
                yield Stored(saver, "postgres", lambda statement: connection.execute(statement).fetchall())


def fill(saver):
    """A thread with steps, a value that grows, a nested graph, a finished task, a question, a post, and metadata."""
    inner = chain_of(State, ask=lambda state: {"log": [interrupt("?")]}).compile()
    graph = StateGraph(State).add_node("a", lambda state: {"log": ["a" * 400]}).add_node("inner", inner)
    graph.add_node("sent", lambda state: {"log": ["sent"]})
    graph.add_conditional_edges("a", lambda state: ["inner", Send("sent", {})], ["inner", "sent"])
    app = graph.add_edge(START, "a").compile(saver, inbox=True)
    config = {**CONFIG, "metadata": {"user": "u"}}
    for given in ({"log": []}, Command(resume="1"), {"log": ["more"]}):
        app.invoke(given, config)
    app.post(CONFIG, {"log": ["post"]})


def test_each_table_is_filled_and_copied_with_its_thread(stored):
    before = stored.count()
    assert all(ONE in rows for rows in before.values()), f"`fill` leaves one empty: {before}"
    stored.saver.copy_thread(ONE, "copy")
    for table, rows in stored.count().items():
        if table != "labels":  # an index, which a search brings up to date
            assert rows == {ONE: before[table][ONE], "copy": before[table][ONE]}, table


def test_each_table_is_emptied_with_its_thread(stored):
    stored.saver.copy_thread(ONE, "copy")
    before = stored.count()
    stored.saver.delete_thread(ONE)
    left = {table: {name: n for name, n in rows.items() if name != ONE} for table, rows in before.items()}
    assert stored.count() == left


def test_each_table_is_pruned_with_its_thread(stored):
    before = stored.count()
    stored.saver.prune([ONE])
    after = stored.count()
    assert after["checkpoints"] == after["spaces"]
    stored.saver.prune([ONE], keep_last=0)
    assert stored.count() == {table: {} for table in before} | {"posts": before["posts"]}


@pytest.mark.trial
def test_values_that_none_needs_any_more_go_with_a_later_pruning(stored):
    """A value stays without its checkpoint as long as others build on it, and no longer."""
    graph = chain_of(State, a=lambda state: {"log": ["a" * 400]})
    app, config = graph.compile(stored.saver), thread_config("grows")
    most = 0
    for turn in range(1, 21):
        for _ in range(7):
            app.invoke(EMPTY, config)
        stored.saver.prune(["grows"])
        values = next(rows for table, rows in stored.count().items() if table.endswith("values"))
        most = max(most, values["grows"])
        assert app.get_state(config).values == {"log": ["a" * 400] * 7 * turn}
    assert most < 50
