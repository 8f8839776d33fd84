"""Old data opens, part two: what threads hold beside plain state, stores, caches and encrypted files, as each release from
0.2.0 on has written them.

`STATEGRAPH_RENEW=1 make test ARGS=tests/checkpoint/test_old_features.py` writes the files of the present version, if it has none yet.
"""

from __future__ import annotations

import operator
import os
import shutil
import sqlite3
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.graphs import EMPTY, graph_of
from pydantic import BaseModel
from typing_extensions import TypedDict

import stategraph
from stategraph import (
    Command,
    RemoveMessage,
    Runtime,
    add_messages,
    entrypoint,
    interrupt,
    task,
)
from stategraph.channels import Topic
from stategraph.checkpoint import Serializer
from stategraph.checkpoint.encryption import Encryption
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.store.cache import SqliteCache
from stategraph.store.sqlite import SqliteStore

FOLDER = Path(__file__).parent / "releases"
VERSIONS = sorted(path.stem.removeprefix("features-") for path in FOLDER.glob("features-*.db"))
KEY = bytes(range(32))
"""No secret: a key for a file that everybody may read."""


CACHED = [("log", [1, "x"]), ("tags", {"a"})]


class Color(Enum):
    RED = "red"


class Order(BaseModel):
    item: str
    color: Color


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    messages: Annotated[list[Any], add_messages]
    order: Order
    topic: Annotated[list[str], Topic(str, accumulate=True)]


CALLED = []


def config(thread):
    return {"configurable": {"thread_id": thread}, "metadata": {"customer": "Ada"}}


def chat(state):
    messages = [{"role": "user", "content": "hello", "id": "1"}, {"role": "assistant", "content": "hi", "id": "2"}]
    return {"messages": messages, "order": Order(item="tea", color=Color.RED), "topic": ["a", "b"]}


def shorten(state):
    return {"messages": [RemoveMessage("1")]}


def charge(state, runtime: Runtime[Any]):
    receipt = runtime.once("charge", lambda: CALLED.append("charge") or "receipt 1")
    return {"log": [receipt, interrupt("ship it?", key="ship")]}


def features(saver):
    """Messages, models, an accumulating topic; then an effect that is had once and a question, beside a node that has
    finished; then a join of the two."""
    builder = graph_of(State, "S>chat>shorten>charge shorten>beside [charge,beside]>both", chat=chat, shorten=shorten, charge=charge)
    return builder.compile(saver)


@task
def double(number):
    CALLED.append(f"double {number}")
    return 2 * number


def workflow(saver):
    """Calls of tasks, a question, and a value for the next call."""

    @entrypoint(checkpointer=saver)
    def run(number, *, previous: int | None = None):
        doubled = double(number).result()
        answer = interrupt("go on?")
        return entrypoint.final(value=[doubled, answer, previous], save=doubled)

    return run


def write(file, **options):
    with SqliteSaver.from_conn_string(str(file), **options) as saver:
        features(saver).invoke(EMPTY, config("features"))
        flow = workflow(saver)
        flow.invoke(3, config("workflow"))
        flow.invoke(Command(resume="first"), config("workflow"))
        flow.invoke(4, config("workflow"))
    _close(file)


def write_store(file):
    with SqliteStore.from_conn_string(str(file)) as store:
        store.put(("users", "1"), "food", {"likes": "tea", "cups": 3})
        store.put(("users", "2"), "food", {"likes": "coffee"})
    _close(file)


def write_cache(file):
    with closing(SqliteCache(str(file))) as cache:
        cache.set({(("node", "a"), "key"): (Serializer().dumps(CACHED), None)})
    _close(file)


def _close(file):
    """One file, without a journal beside it."""
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.execute("PRAGMA journal_mode=DELETE")


WRITERS = {
    "features": write,
    "encrypted": lambda file: write(file, integrity=Encryption(KEY)),
    "store": write_store,
    "cache": write_cache,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_this_version_has_its_file(kind):
    file = FOLDER / f"{kind}-{stategraph.__version__}.db"
    if os.environ.get("STATEGRAPH_RENEW") and not file.exists():
        WRITERS[kind](file)
    assert file.exists()


def copy(kind, version, folder):
    return shutil.copy(FOLDER / f"{kind}-{version}.db", folder / f"{kind}.db")


@pytest.mark.parametrize("kind", ["features", "encrypted"])
@pytest.mark.parametrize("version", VERSIONS)
def test_threads_load_and_resume(kind, version, tmp_path, drive):
    if kind == "encrypted":
        pytest.importorskip("cryptography")
    options = {"integrity": Encryption(KEY)} if kind == "encrypted" else {}
    CALLED.clear()
    with SqliteSaver.from_conn_string(copy(kind, version, tmp_path), **options) as saver:
        app = features(saver)
        asking = drive.get_state(app, config("features"))
        assert [question.value for question in asking.interrupts] == ["ship it?"]
        assert [message["content"] for message in asking.values["messages"]] == ["hi"]
        assert asking.values["order"] == Order(item="tea", color=Color.RED)
        assert asking.values["topic"] == ["a", "b"]
        done = drive.invoke(app, Command(resume={asking.interrupts[0].id: "yes"}), config("features"))
        assert done["log"] == ["beside", "receipt 1", "yes", "both"]
        flow = workflow(saver)
        assert drive.invoke(flow, Command(resume="second"), config("workflow")) == [8, "second", 6]
        assert not CALLED, "what was done is recorded"
        found = drive.items(saver, "list", None, filter={"customer": "Ada"})
        assert {each.config["configurable"]["thread_id"] for each in found} == {"features", "workflow"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_is_read_and_written(version, tmp_path, drive):
    with SqliteStore.from_conn_string(copy("store", version, tmp_path)) as store:
        assert drive.call(store, "get", ("users", "1"), "food").value == {"likes": "tea", "cups": 3}
        drive.call(store, "put", ("users", "3"), "food", {"likes": "milk"})
        found = drive.call(store, "search", ("users",))
        assert {item.value["likes"] for item in found} == {"tea", "coffee", "milk"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cache_is_read(version, tmp_path):
    with closing(SqliteCache(copy("cache", version, tmp_path))) as cache:
        key = (("node", "a"), "key")
        assert Serializer().loads(cache.get([key])[key]) == CACHED
