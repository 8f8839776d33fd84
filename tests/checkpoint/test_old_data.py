"""Old data opens: a file that each release has written is kept here, and every thread in it loads and goes on.

`STATEGRAPH_RENEW=1 make test ARGS=tests/checkpoint/test_old_data.py` writes the file of the present version, if it has none yet.
"""

from __future__ import annotations

import operator
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.graphs import EMPTY, chain_of, graph_of, thread_config
from typing_extensions import TypedDict

import stategraph
from stategraph import END, Command, Send, interrupt
from stategraph.checkpoint import CheckpointConflictError, Serializer
from stategraph.checkpoint.sqlite import SqliteSaver

FOLDER = Path(__file__).parent / "releases"
FILES = sorted(FOLDER.glob("threads-*.db"))
NOW = FOLDER / f"threads-{stategraph.__version__}.db"


@dataclass
class Note:
    text: str
    when: datetime


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    notes: dict[str, Note]
    tags: set[str]
    n: int
    fail: bool


def begin(state):
    note = Note("x" * 200, datetime(2026, 1, 1, tzinfo=UTC))
    return {"log": ["begin"], "notes": {f"note {i}": note for i in range(3)}, "tags": {"a", "b"}}


def work(state):
    if state.get("fail"):
        raise ValueError("as told")
    return {"log": [("work", state["i"])]}


def spread(state):
    return [Send("work", {"i": i, "fail": state.get("fail") and i == 1}) for i in range(3)]


def count(state):
    return {"n": state.get("n", 0) + 1, "log": ["y" * 100]}


def graph(saver):
    inner = chain_of(State, ask=lambda state: {"log": [interrupt("inside?")]})
    builder = graph_of(
        State, "S>begin work>inside>count", begin=begin, work=work, count=count,
        inside=lambda state: {"log": inner.compile().invoke(EMPTY)["log"]}
    )
    builder.add_conditional_edges("begin", spread, ["work"]).add_conditional_edges("count", lambda state: "count" if state["n"] < 40 else END, ["count", END])
    return builder.compile(saver)


DONE = ["begin", ("work", 0), ("work", 1), ("work", 2), "yes", *["y" * 100] * 40]


def write(file):
    """Four threads: done, asking inside a nested graph, failed beside finished siblings, pruned and copied."""
    with SqliteSaver.from_conn_string(str(file)) as saver:
        app = graph(saver)
        for thread in ("done", "asking", "failed"):
            try:
                app.invoke({"fail": thread == "failed"}, thread_config(thread))
            except ValueError:
                pass
        app.invoke(Command(resume="yes"), thread_config("done"))
        saver.copy_thread("done", "pruned")
        saver.prune(["pruned"], keep_last=5)
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.execute("PRAGMA journal_mode=DELETE")


def test_this_version_has_its_file():
    if os.environ.get("STATEGRAPH_RENEW") and not NOW.exists():
        write(NOW)
    assert NOW in FILES or NOW.exists()


@pytest.mark.parametrize("kept", FILES, ids=lambda file: file.stem)
def test_every_thread_loads_and_resumes(kept, tmp_path, drive):
    file = tmp_path / "threads.db"
    shutil.copy(kept, file)
    with SqliteSaver.from_conn_string(str(file)) as saver:
        app = graph(saver)
        done = drive.get_state(app, thread_config("done"))
        assert done.values["log"] == DONE and not done.next
        assert done.values["notes"]["note 2"] == Note("x" * 200, datetime(2026, 1, 1, tzinfo=UTC))
        assert done.values["tags"] == {"a", "b"}
        steps = [len(state.values.get("log", ())) for state in drive.history(app, thread_config("done"))]
        assert steps == [*range(len(DONE), 3, -1), 1, 0, 0]
        asking = drive.get_state(app, thread_config("asking"), subgraphs=True)
        assert [question.value for question in asking.interrupts] == ["inside?"]
        assert drive.invoke(app, Command(resume="yes"), thread_config("asking"))["log"] == DONE
        failed = drive.get_state(app, thread_config("failed"))
        assert isinstance(failed.tasks[1].error, ValueError)
        assert all(task.spans for task in failed.tasks[:2])
        assert len(drive.history(app, thread_config("pruned"))) == 5
        assert drive.get_state(app, thread_config("pruned")).values == done.values


def test_a_list_that_grew_before_deltas_were_joined_grows_on(tmp_path):
    """Up to a thousand deltas built on each other: all are read, and the next one stands for all of them."""
    file = tmp_path / "threads.db"
    shutil.copy(FOLDER / "threads-0.1.0-deltas.db", file)

    def more(state):
        return {"log": [f"{len(state['log']):040}"]}

    builder = chain_of(State, more=more).add_conditional_edges(
        "more", lambda state: "more" if len(state["log"]) < 250 else END, ["more", END]
    )
    with SqliteSaver.from_conn_string(str(file)) as saver:
        app = builder.compile(saver)
        log = [f"{number:040}" for number in range(250)]
        assert app.get_state(thread_config("long")).values["log"] == log[:150]
        before = [state.values.get("log", []) for state in app.get_state_history(thread_config("long"))]
        assert app.invoke(EMPTY, thread_config("long"))["log"] == log
        after = [state.values.get("log", []) for state in app.get_state_history(thread_config("long"))]
        assert after == [*(log[:size] for size in range(250, 149, -1)), log[:150], *before]
        saver.prune(["long"], keep_last=2)
        assert [state.values["log"] for state in app.get_state_history(thread_config("long"))] == [log, log[:249]]


CONFLICT = (
    b"\xc8\x01\xab\"\x94\xd94stategraph.checkpoint.thread:CheckpointConflictError\xd9\x9dthread 't': another run committed "
    b"checkpoint b while this one was working from a. Nothing of this step was stored; read the thread again and repeat "
    b"the call.\x90\xc4\xd2\x93\x91\xd9\x9dthread 't': another run committed checkpoint b while this one was working from a. "
    b"Nothing of this step was stored; read the thread again and repeat the call.\x84\xa9thread_id\xa1t\xadcheckpoint_ns"
    b"\xa0\xa8expected\xa1a\xa6actual\xa1b\x80"
)


def test_a_stored_conflict_error_is_restored_though_its_class_has_moved():
    conflict = Serializer().loads(("msgpack", CONFLICT))
    assert isinstance(conflict, CheckpointConflictError)
    assert (conflict.thread_id, conflict.expected, conflict.actual) == ("t", "a", "b")
    assert Serializer().dumps(conflict) == ("msgpack", CONFLICT)
