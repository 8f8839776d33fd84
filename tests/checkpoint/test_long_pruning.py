"""A long thread is pruned in several transactions: it comes out as in one, and is whole after each, also where it moves on
meanwhile, is forked from what goes, or is killed."""

from __future__ import annotations

import operator
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from itertools import pairwise
from random import Random
from typing import Annotated, TypedDict

import pytest
from kit.graphs import chain_of

import stategraph.checkpoint.sql.pruning as long_module
import stategraph.checkpoint.sql.pruning as pruner_module
from stategraph import END, Command, interrupt
from stategraph.checkpoint.errors import DamagedError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import check_saver


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int
    note: str


class Inside(TypedDict, total=False):
    trail: Annotated[list[str], operator.add]
    n: int
    note: str


def graph(saver):
    """A loop whose list grows; a graph inside a node stores, too, and may ask."""
    inner = chain_of(
        Inside,
        say=lambda state: {"trail": ["inside " + "x" * 90]},
        ask=lambda state: {"note": interrupt("?")} if state["n"] % 7 == 3 else {},
    )
    return (
        chain_of(State, add=lambda state: {"n": state["n"] + 1, "log": [f"{state['n']:070}"]}, deep=inner.compile())
        .add_conditional_edges("deep", lambda state: "add" if state["n"] % 5 else END)
        .compile(saver)
    )


def on(thread="t", **more):
    return {"configurable": {"thread_id": thread, **more}, "recursion_limit": 1000, "metadata": {"number": 1}}


def grow(saver, random, calls=12):
    """Runs, answers, forks from anywhere, edits."""
    app = graph(saver)
    for number in range(calls):
        state = app.get_state(on())
        if state.interrupts:
            app.invoke(Command(resume=f"answer {number}"), on())
            continue
        history = [*app.get_state_history(on())]
        config = random.choice(history).config if history and random.random() < 0.4 else on()
        if random.random() < 0.3 and history:
            app.update_state(config, {"note": f"edit {number}" * 20}, as_node="deep")
        else:
            app.invoke({"n": random.randrange(4)}, {**on(), **config})


def shown(saver):
    """All that can be read."""
    return [tuple(found) for found in saver.list(None)]


def stored(file):
    """How many rows there are of each kind, and the counts of namespaces."""
    with closing(sqlite3.connect(file)) as raw, raw:
        counts = [raw.execute(f"SELECT count(*) FROM {name}").fetchone() for name in ("checkpoints", "channel_values", "labels")]
        spaces = raw.execute("SELECT thread_id, checkpoint_ns, head, head_id, stamp, size FROM spaces ORDER BY 1, 2").fetchall()
    raw.close()
    return [*counts, spaces]


@pytest.fixture
def in_steps(monkeypatch):
    """Every thread is a long one; three checkpoints go at a time."""
    monkeypatch.setattr(pruner_module, "LONG", 0)
    monkeypatch.setattr(long_module, "AT_ONCE", 3)
    for module in (pruner_module, long_module):
        monkeypatch.setattr(module, "PAGE", 5)
    yield


LIMITS = [{"keep_last": 1}, {"keep_last": 4}, {"keep_last": 15}, {"keep_last": 0}, {}]


@pytest.mark.trial
@pytest.mark.parametrize("seed", range(6))
def test_pruning_in_steps_gives_the_result_of_one_transaction(tmp_path, seed, monkeypatch):
    random = Random(seed)
    with SqliteSaver.from_conn_string(str(tmp_path / "all.db"), synchronous="off") as saver:
        grow(saver, random)
    for number, limits in enumerate(LIMITS):
        found = []
        for long in (10**9, 0):
            file = tmp_path / f"{number} {long}.db"
            shutil.copy(tmp_path / "all.db", file)
            monkeypatch.setattr(pruner_module, "LONG", long)
            monkeypatch.setattr(long_module, "AT_ONCE", random.choice([1, 2, 7]))
            with SqliteSaver.from_conn_string(str(file), synchronous="off") as saver:
                saver.prune(**limits)
                found.append((shown(saver), stored(file)))
                if limits != {"keep_last": 0}:
                    grow(saver, Random(1), 4)
                    found[-1] += (shown(saver)[0][1]["channel_values"],)
        assert found[0] == found[1]


@pytest.mark.trial
def test_the_checks_of_savers_hold_where_every_thread_is_long(in_steps):
    report = check_saver(
        lambda folder: SqliteSaver.from_conn_string(str(folder / "t.db"), synchronous="off"),
        only=["prune", "copy", "a_search_follows_what_is_forgotten_and_copied"],
    )
    assert report.ok, str(report)


def steps(monkeypatch, between):
    """Do something between the transactions of a prune."""
    count = [0]

    def sleep(seconds):
        count[0] += 1
        between(count[0])

    monkeypatch.setattr(pruner_module.time, "sleep", sleep)
    return count


@pytest.mark.trial
@pytest.mark.parametrize("seed", range(3))
def test_the_thread_is_whole_after_each_transaction(tmp_path, in_steps, monkeypatch, seed):
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver:
        grow(saver, Random(seed))
        app = graph(saver)
        all_states = {found.config["configurable"]["checkpoint_id"]: found for found in saver.list(on())}
        head = app.get_state(on())
        seen = []

        def look(number):
            found = {each.config["configurable"]["checkpoint_id"]: each for each in saver.list(on())}
            assert all(found[id].checkpoint == all_states[id].checkpoint for id in found)
            last = {id: found[id].pending_writes for id in found}
            assert all(len(writes or ()) == len(all_states[id].pending_writes or ()) for id, writes in last.items())
            assert app.get_state(on()) == head
            seen.append(set(found))

        count = steps(monkeypatch, look)
        saver.prune(["t"], keep_last=3)
        assert count[0] > 5 and all(later <= earlier for earlier, later in pairwise(seen))


def test_what_others_store_meanwhile_stays(tmp_path, in_steps, monkeypatch):
    """Runs of another process go on from the head, and fork from what is about to go."""
    with (
        SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver,
        SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as other,
    ):
        app = graph(other)
        for _ in range(8):
            app.invoke({"n": 4}, on())
        old = [*app.get_state_history(on())]
        made = {}

        def work(number):
            history = [*app.get_state_history(on())]
            left = [state for state in history if state.config in [each.config for each in old]]
            source = left[-1] if number % 2 else history[0]
            app.update_state(source.config, {"note": f"{number} " * 40}, as_node="add")
            state = app.get_state(on())
            assert state.values["log"] == source.values.get("log", [])
            made[state.config["configurable"]["checkpoint_id"]] = state.values

        count = steps(monkeypatch, work)
        saver.prune(["t"], keep_last=2)
        assert count[0] > 10
        history = {each.config["configurable"]["checkpoint_id"]: each.values for each in app.get_state_history(on())}
        assert {id: history[id] for id in made} == made
        monkeypatch.setattr(pruner_module, "LONG", 10**9)
        newest = app.get_state(on()).values
        saver.prune(["t"], keep_last=1)
        assert app.get_state(on()).values == newest
        assert app.invoke({"n": 4}, on())["log"][:-2] == newest["log"]


@pytest.mark.parametrize("again", [False, True])
def test_a_thread_that_is_deleted_meanwhile_stays_deleted_or_is_another(tmp_path, in_steps, monkeypatch, again):
    """A new thread of its name may have the sequences and the number of the old one."""
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver:
        app = graph(saver)
        for _ in range(5):
            app.invoke({"n": 4}, on())

        def work(number):
            if number == 6:
                saver.delete_thread("t")
                for _ in range(4 * again):
                    app.invoke({"n": 4}, on())

        count = steps(monkeypatch, work)
        saver.prune(["t"], keep_last=2)
        assert count[0] >= 6
        assert len([*app.get_state_history(on())]) == (4 * 4 if again else 0)


def test_two_that_prune_at_once(tmp_path, in_steps, monkeypatch):
    with (
        SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver,
        SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as other,
    ):
        grow(saver, Random(5))
        head = graph(saver).get_state(on())
        step = [None]

        def work(number):
            if number == 7:
                next(step[0] or iter([0.0]), None)
                for _ in other._prune_in_steps(["t"], pruner_module.RetentionLimits(keep_last=1)):
                    pass

        steps(monkeypatch, work)
        saver.prune(["t"], keep_last=6)
        assert graph(saver).get_state(on()).values == head.values
        assert len([*saver.list(on(checkpoint_ns=""))]) == 1
        grow(saver, Random(1), 5)


def test_what_was_to_stay_is_deleted_meanwhile(tmp_path, in_steps, monkeypatch):
    """What builds on it keeps its values."""
    with (
        SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver,
        SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as other,
    ):
        for _ in range(6):
            graph(saver).invoke({"n": 3}, on())
        head, whole = graph(saver).get_state(on()), on(checkpoint_ns="")
        size = len([*saver.list(whole)])

        def work(number):
            if 15 < len([*other.list(whole)]) < size:
                monkeypatch.setattr(pruner_module, "LONG", 10**9)
                other.prune(["t"])
                monkeypatch.setattr(pruner_module, "LONG", 0)

        steps(monkeypatch, work)
        saver.prune(["t"], keep_last=15)
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver:
        assert [state.values for state in graph(saver).get_state_history(on())] == [head.values]
        graph(saver).invoke({"n": 3}, on())


def test_a_damaged_long_thread_is_reported_and_kept(tmp_path, in_steps):
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver:
        for thread in "abc":
            graph(saver).invoke({"n": 4}, on(thread))
        saver._database.execute(
            "UPDATE checkpoints SET body = x'00' WHERE seq = (SELECT min(c.seq) FROM checkpoints AS c "
            "JOIN spaces AS s ON s.id = c.space WHERE s.thread_id = 'b')"
        )
        count = saver._database.execute("SELECT sum(size) FROM spaces WHERE thread_id = 'b'").fetchone()
        with pytest.raises(DamagedError, match="thread 'b'"):
            saver.prune(keep_last=1)
        assert saver._database.execute("SELECT sum(size) FROM spaces WHERE thread_id = 'b'").fetchone() == count
        assert [len([*saver.list(on(thread, checkpoint_ns=""))]) for thread in "ac"] == [1, 1]


KILLED = """
    import os, signal, sys
    import stategraph.checkpoint.sql.pruning as long_module
    import stategraph.checkpoint.sql.pruning as pruner_module
    from stategraph.checkpoint.sqlite import SqliteSaver

    pruner_module.LONG, long_module.AT_ONCE = 0, 3
    count = int(sys.argv[3])

    def die(text):
        global count
        count -= sys.argv[2] in text
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
        saver._database.connection.set_trace_callback(die)
        saver.prune(keep_last=4)
"""


@pytest.mark.trial
@pytest.mark.parametrize(
    ("where", "count"), [("DELETE FROM checkpoints", 1), ("DELETE FROM checkpoints", 4), ("UPDATE checkpoints", 1), ("DELETE FROM writes", 3)]
)
def test_a_prune_that_is_killed_is_ended_by_the_next(tmp_path, where, count):
    file = tmp_path / "t.db"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        grow(saver, Random(3))
        head = graph(saver).get_state(on())
        newest = {found.checkpoint["id"]: found.checkpoint for found in saver.list(on(checkpoint_ns=""), limit=4)}
    code = [sys.executable, "-P", "-c", textwrap.dedent(KILLED), str(file), where, str(count)]
    assert subprocess.run(code, timeout=60).returncode == -9
    with SqliteSaver.from_conn_string(str(file)) as saver:
        assert graph(saver).get_state(on()).values == head.values
        for _ in saver.list(None):
            pass
        saver.prune(keep_last=4)
        left = {found.checkpoint["id"]: found.checkpoint for found in saver.list(on(checkpoint_ns=""))}
        assert left == newest
        grow(saver, Random(1), 4)
