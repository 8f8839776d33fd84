"""`prune()` lets others work: it goes in short transactions, and a crash between or inside them leaves each thread whole."""

import asyncio
import subprocess
import sys
import textwrap

import pytest
from kit.graphs import Count, chain_of, thread_config

import stategraph.checkpoint.sql.pruning as pruner_module
from stategraph import END
from stategraph.checkpoint.errors import DamagedError
from stategraph.checkpoint.sqlite import SqliteSaver


def counting(saver):
    return (
        chain_of(Count, add=lambda state: {"n": state["n"] + 1})
        .add_conditional_edges("add", lambda state: "add" if state["n"] % 5 else END)
        .compile(saver)
    )


NAMES = [f"thread {number}" for number in range(12)]


@pytest.fixture
def file(tmp_path):
    """A database of a dozen threads."""
    name = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(name, synchronous="off") as saver:
        for thread in NAMES:
            counting(saver).invoke({"n": 0}, thread_config(thread))
    return name


@pytest.mark.parametrize("is_async", [False, True])
def test_others_write_between_the_steps_of_a_prune(file, is_async, monkeypatch):
    """Another connection that does not wait at all for the file finds it free."""
    monkeypatch.setattr(pruner_module, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(pruner_module, "NAMESPACES_AT_ONCE", 5)
    with SqliteSaver.from_conn_string(file) as saver, SqliteSaver.from_conn_string(file, timeout=0.0) as other:
        turns = []

        def work(seconds):
            assert seconds > 0
            turns.append(counting(other).invoke({"n": 5 * len(turns)}, thread_config("other"))["n"])

        async def awork(seconds):
            work(seconds)

        if is_async:
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "sleep", awork)
                asyncio.run(saver.aprune(keep_last=1))
        else:
            monkeypatch.setattr(pruner_module.time, "sleep", work)
            saver.prune(keep_last=1)
        assert len(turns) >= len(NAMES) - 1
        assert turns == [5 * turn + 5 for turn in range(len(turns))]
        assert all(len([*saver.list(thread_config(thread))]) == 1 for thread in NAMES)
        assert all(saver.get_tuple(thread_config(thread)).checkpoint["channel_values"]["n"] == 5 for thread in NAMES)


def test_a_cancelled_aprune_stops_after_its_step(file, monkeypatch):
    monkeypatch.setattr(pruner_module, "STEP_SECONDS", 0.0)
    sleep = asyncio.sleep

    async def cancelled(seconds):
        asyncio.current_task().cancel()
        await sleep(0)

    with SqliteSaver.from_conn_string(file) as saver:
        with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
            patch.setattr(asyncio, "sleep", cancelled)
            asyncio.run(saver.aprune(keep_last=1))
        lengths = [len([*saver.list(thread_config(thread))]) for thread in NAMES]
        assert lengths.count(1) == 1


def test_a_thread_that_loses_nothing_takes_no_transaction(file, monkeypatch):
    with SqliteSaver.from_conn_string(file) as saver:
        before = [saver.get_tuple(thread_config(thread)) for thread in NAMES]
        monkeypatch.setattr(SqliteSaver, "_prune_thread", None)
        saver.prune(keep_last=50)
        assert [saver.get_tuple(thread_config(thread)) for thread in NAMES] == before


def test_a_damaged_thread_is_named_and_those_of_its_step_are_pruned(file):
    with SqliteSaver.from_conn_string(file) as saver:
        saver._database.execute(
            "UPDATE checkpoints SET body = x'00' WHERE space = (SELECT id FROM spaces WHERE thread_id = 'thread 3')"
        )
        with pytest.raises(DamagedError, match="thread 3"):
            saver.prune(keep_last=1)
        assert all(len([*saver.list(thread_config(thread))]) == 1 for thread in NAMES if thread != "thread 3")


KILLED = """
    import os, signal, sys
    import stategraph.checkpoint.sql.pruning as pruner_module
    from stategraph.checkpoint.sqlite import SqliteSaver

    where, count = sys.argv[2], int(sys.argv[3])

    def die(*_):
        global count
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if where == "between":
        pruner_module.STEP_SECONDS = 0.0
        pruner_module.time.sleep = die
    else:
        pruner_module.STEP_SECONDS = 1e9
        prune = SqliteSaver._prune_thread
        SqliteSaver._prune_thread = lambda *args: (prune(*args), die())
    with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
        saver.prune(keep_last=2)
"""


@pytest.mark.trial
@pytest.mark.parametrize("where", ["between", "inside"])
@pytest.mark.parametrize("count", [1, 5, 11])
def test_a_prune_that_is_killed_leaves_each_thread_whole(file, where, count):
    """Those of the steps before are pruned, the others as they were; the next prune does the rest."""
    code = [sys.executable, "-P", "-c", textwrap.dedent(KILLED), file, where, str(count)]
    assert subprocess.run(code, timeout=60).returncode == -9
    with SqliteSaver.from_conn_string(file) as saver:
        lengths = [len([*counting(saver).get_state_history(thread_config(thread))]) for thread in sorted(NAMES)]
        done = count if where == "between" else 0
        assert lengths == [2] * done + [7] * (len(NAMES) - done)
        assert all(counting(saver).get_state(thread_config(thread)).values == {"n": 5} for thread in NAMES)
        saver.prune(keep_last=2)
        assert all(len([*saver.list(thread_config(thread))]) == 2 for thread in NAMES)
        assert all(counting(saver).invoke({"n": 5}, thread_config(thread)) == {"n": 10} for thread in NAMES)
