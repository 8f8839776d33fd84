"""The contract of a saver, kept by the one in memory: sync and async must show the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster
import pytest
from conftest import Drive
from hypothesis import given
from hypothesis import strategies as st

from stategraph.checkpoint import (
    CHECKPOINT_FORMAT,
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointConflictError,
    CheckpointTuple,
    Commit,
    InMemorySaver,
    MemorySaver,
    Registry,
    Serializer,
    TaskWrites,
    UnserializableError,
)
from stategraph.checkpoint.base import ERROR, INTERRUPT, RESUME, address
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.records import KEYFRAME
from stategraph.checkpoint.sqlite import SqliteSaver

TS = "2024-01-01T00:00:00+00:00"


class Desk:
    """A saver and short words for what the tests do with it, in one world."""

    def __init__(self, drive: Drive, saver: Any) -> None:
        self.drive = drive
        self.saver = saver

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.drive.call(self.saver, method, *args, **kwargs)

    def put(
        self,
        id: str,
        values: dict[str, Any] | None = None,
        *,
        thread: str = "t",
        ns: str = "",
        parent: str | None = None,
        versions: dict[str, int] | None = None,
        new: dict[str, int] | None = None,
        **metadata: Any,
    ) -> Any:
        values = values or {}
        versions = dict.fromkeys(values, 1) if versions is None else versions
        config = address(thread, ns, parent)
        metadata = {"source": "loop", "step": 0, "parents": {}, **metadata}
        found = checkpoint(id, values, versions)
        return self.call("put", config, found, metadata, versions if new is None else new)

    def get(self, id: str | None = None, *, thread: str = "t", ns: str = "") -> CheckpointTuple | None:
        return self.call("get_tuple", address(thread, ns, id))

    def values(self, id: str | None = None, **where: str) -> dict[str, Any]:
        found = self.get(id, **where)
        assert found is not None
        return found.checkpoint["channel_values"]

    def write(self, id: str, writes: list[tuple[str, Any]], task: str = "task", path: str = "", **where: str) -> None:
        config = address(where.get("thread", "t"), where.get("ns", ""), id)
        self.call("put_writes", config, writes, task, path)

    def pending(self, id: str | None = None, **where: str) -> Any:
        found = self.get(id, **where)
        assert found is not None
        return found.pending_writes

    def ids(self, config: Any = "t", **options: Any) -> list[str]:
        if isinstance(config, str):
            config = {"configurable": {"thread_id": config}}
        return [found.checkpoint["id"] for found in self.drive.items(self.saver, "list", config, **options)]


def checkpoint(id: str, values: dict[str, Any], versions: dict[str, int]) -> Checkpoint:
    return {
        "v": CHECKPOINT_FORMAT,
        "id": id,
        "ts": TS,
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"node": dict(versions)},
        "updated_channels": sorted(versions),
    }


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "postgres":
        with PostgresSaver.from_conn_string(cluster.shared().schema()) as opened:
            yield opened
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as opened:
            yield opened


IN_MEMORY = pytest.mark.parametrize("saver", ["memory"], indirect=True)
"""For tests that look into the saver in memory."""


@pytest.fixture
def desk(drive: Drive, saver: Any) -> Desk:
    return Desk(drive, saver)


# -- put --------------------------------------------------------------------------------------------------------


def test_put_returns_the_config_of_the_new_checkpoint(desk: Desk) -> None:
    assert desk.put("1", ns="child:abc") == address("t", "child:abc", "1")


def test_put_and_get_give_everything_back(desk: Desk) -> None:
    values = {"s": "text", "i": 1, "l": [1, (2,)], "d": {"k": None}}
    desk.put("1", values, step=3, run_id="r", score=1.5, tags=["a"], parents={"": "root"})
    found = desk.get()
    assert found is not None
    assert found.config == address("t", "", "1")
    assert found.parent_config is None
    assert found.checkpoint == checkpoint("1", values, dict.fromkeys(values, 1))
    assert found.metadata == {
        "source": "loop", "step": 3, "run_id": "r", "score": 1.5, "tags": ["a"], "parents": {"": "root"},
    }  # fmt: skip
    assert found.pending_writes == []


def test_format_number_is_kept(desk: Desk) -> None:
    old = checkpoint("1", {}, {})
    old["v"] = 7
    desk.call("put", address("t", ""), old, {}, {})
    assert desk.call("get", address("t", ""))["v"] == 7


def test_namespaces_and_threads_are_apart(desk: Desk) -> None:
    desk.put("1", {"a": "root"})
    desk.put("1", {"a": "child"}, ns="child:abc")
    desk.put("1", {"a": "other"}, thread="u")
    assert desk.values() == {"a": "root"}
    assert desk.values(ns="child:abc") == {"a": "child"}
    assert desk.values("1", thread="u") == {"a": "other"}
    assert desk.get(ns="child") is None


def test_namespace_defaults_to_the_root(desk: Desk) -> None:
    desk.call("put", {"configurable": {"thread_id": "t"}}, checkpoint("1", {}, {}), {}, {})
    found = desk.call("get_tuple", {"configurable": {"thread_id": "t"}})
    assert found.config == address("t", "", "1")


def test_thread_id_may_be_any_scalar(desk: Desk) -> None:
    desk.put("1", thread=7)  # type: ignore[arg-type]
    assert desk.ids("7") == ["1"]


def test_parent_is_tracked_and_old_checkpoints_stay(desk: Desk) -> None:
    desk.put("1", {"a": 1})
    desk.put("2", {"a": 2}, parent="1")
    found = desk.get()
    assert found is not None
    assert found.parent_config == address("t", "", "1")
    assert desk.values("1") == {"a": 1}


def test_unchanged_channel_comes_from_the_parent(desk: Desk) -> None:
    desk.put("1", {"a": "old", "b": "old"})
    desk.put("2", {"a": "new", "b": "not looked at"}, parent="1", versions={"a": 2, "b": 1}, new={"a": 2})
    desk.put("3", {"a": "newer"}, parent="2", versions={"a": 3, "b": 1}, new={"a": 3})
    assert desk.values("1") == {"a": "old", "b": "old"}
    assert desk.values("2") == {"a": "new", "b": "old"}
    assert desk.values("3") == {"a": "newer", "b": "old"}


def test_value_that_no_parent_has_is_stored_though_not_new(desk: Desk) -> None:
    desk.put("1", {"a": 1}, new={})
    desk.put("2", {"a": 1, "b": 2}, parent="1", versions={"a": 1, "b": 1}, new={})
    desk.put("3", {"a": 5}, parent="gone", versions={"a": 9}, new={})
    assert desk.values("1") == {"a": 1}
    assert desk.values("2") == {"a": 1, "b": 2}
    assert desk.values("3") == {"a": 5}


def test_channel_that_emptied_and_one_that_was_removed(desk: Desk) -> None:
    desk.put("1", {"a": 1, "b": 2, "c": 3})
    desk.put("2", {"b": 2}, parent="1", versions={"a": 2, "b": 1}, new={"a": 2})
    found = desk.get()
    assert found is not None
    assert found.checkpoint["channel_values"] == {"b": 2}
    assert found.checkpoint["channel_versions"] == {"a": 2, "b": 1}
    desk.put("3", {"b": 2}, parent="2", versions={"a": 2, "b": 1}, new={})
    assert desk.values() == {"b": 2}
    assert desk.values("1") == {"a": 1, "b": 2, "c": 3}


def test_value_without_a_version_is_not_kept(desk: Desk) -> None:
    desk.put("1", {"a": 1, "b": 2}, versions={"a": 1})
    assert desk.values() == {"a": 1}


def test_putting_an_id_again_replaces_it_and_makes_it_the_head(desk: Desk) -> None:
    desk.put("1", {"a": 1})
    desk.put("2", {"a": 2}, parent="1")
    desk.put("1", {"a": 3}, parent="2")
    assert desk.values() == {"a": 3}
    assert desk.ids() == ["1", "2"]
    assert desk.values("2") == {"a": 2}


def test_order_is_that_of_commits_not_of_ids_or_clocks(desk: Desk) -> None:
    for id in ("5", "1", "9", "3"):
        desk.put(id)
    assert desk.ids() == ["3", "9", "1", "5"]
    assert desk.call("head", address("t", "")) == "3"


def test_refused_value_names_channel_and_place_and_leaves_no_trace(desk: Desk) -> None:
    desk.put("1", {"a": 1})
    with pytest.raises(UnserializableError, match=r"at \['b'\]\['x'\]\[0\]: cannot store _thread.lock"):
        desk.put("2", {"a": 2, "b": {"x": [threading.Lock()]}}, parent="1")
    assert desk.ids() == ["1"]
    assert desk.values() == {"a": 1}
    with pytest.raises(UnserializableError, match=r"at \['w'\]: cannot store"):
        desk.write("1", [("v", 1), ("w", print)])
    assert desk.pending() == []


@pytest.mark.parametrize("config", [{}, {"configurable": {}}, {"configurable": {"thread_id": ""}}])
def test_a_missing_thread_is_a_clear_error(desk: Desk, config: Any) -> None:
    for method, args in (("get_tuple", ()), ("put", (checkpoint("1", {}, {}), {}, {})), ("put_writes", ([], "t"))):
        with pytest.raises(ValueError, match="thread_id"):
            desk.call(method, config, *args)
    with pytest.raises(ValueError, match="thread_id"):
        desk.ids(config)


# -- writes -----------------------------------------------------------------------------------------------------


def test_writes_hang_on_their_checkpoint(desk: Desk) -> None:
    desk.put("1")
    desk.write("1", [("a", (1, 2)), ("b", "x")], "one")
    desk.write("1", [("a", None)], "two")
    assert desk.pending() == [("one", "a", (1, 2)), ("one", "b", "x"), ("two", "a", None)]
    desk.put("2", parent="1")
    assert desk.pending() == []
    assert len(desk.pending("1")) == 3


def test_writes_are_ordered_by_path_task_and_place(desk: Desk) -> None:
    desk.put("1")
    desk.write("1", [("x", 1), (ERROR, 2)], "b", "~2")
    desk.write("1", [("x", 3)], "z", "~1")
    desk.write("1", [("x", 4)], "a", "~2")
    desk.write("1", [("x", 5)], "y")
    assert [value for _, _, value in desk.pending()] == [5, 3, 4, 2, 1]


def test_writes_may_come_before_their_checkpoint(desk: Desk) -> None:
    desk.write("1", [("a", 1)])
    assert desk.get() is None
    assert desk.get("1") is None
    assert desk.ids() == []
    desk.put("1")
    assert desk.pending() == [("task", "a", 1)]


def test_sending_writes_again_keeps_the_first(desk: Desk) -> None:
    desk.put("1")
    for value in (1, 1, 2):
        desk.write("1", [("a", value)])
    desk.write("1", [("b", 3), ("c", 4)])
    assert desk.pending() == [("task", "a", 1), ("task", "c", 4)]


def test_control_writes_replace_also_beside_ordinary_ones(desk: Desk) -> None:
    desk.put("1")
    desk.write("1", [("a", 1), (ERROR, "e1"), (INTERRUPT, "i1")])
    desk.write("1", [("a", 2), (ERROR, "e2")])
    desk.write("1", [(RESUME, ["r"])])
    assert desk.pending() == [
        ("task", RESUME, ["r"]), ("task", INTERRUPT, "i1"), ("task", ERROR, "e2"), ("task", "a", 1),
    ]  # fmt: skip


def test_one_call_follows_the_same_rule(desk: Desk) -> None:
    desk.put("1")
    desk.write("1", [(ERROR, "e1"), (ERROR, "e2")])
    assert desk.pending() == [("task", ERROR, "e2")]


def test_writes_of_namespaces_and_threads_are_apart(desk: Desk) -> None:
    desk.put("1")
    desk.put("1", ns="n")
    desk.put("1", thread="u")
    desk.write("1", [("a", 1)], ns="n")
    assert desk.pending() == []
    assert desk.pending(thread="u") == []
    assert desk.pending(ns="n") == [("task", "a", 1)]


def test_writes_need_a_checkpoint_id(desk: Desk) -> None:
    with pytest.raises(ValueError, match="checkpoint_id"):
        desk.call("put_writes", address("t", ""), [], "task")


# -- get and list -----------------------------------------------------------------------------------------------


def test_unknown_is_none(desk: Desk) -> None:
    assert desk.get() is None
    assert desk.get("1") is None
    assert desk.call("get", address("t", "")) is None
    assert desk.call("head", address("t", "")) is None
    desk.put("1")
    assert desk.get("2") is None


@pytest.fixture
def shelf(desk: Desk) -> Desk:
    for step in range(4):
        desk.put(f"t{step}", {"a": step}, step=step, source="input" if step == 0 else "loop", odd=bool(step % 2))
        desk.put(f"n{step}", ns="n", step=step)
    desk.put("u0", thread="u", step=0, run_id="r")
    return desk


def test_list_takes_all_threads_or_one_or_a_namespace_or_a_checkpoint(shelf: Desk) -> None:
    assert shelf.ids(None) == ["u0", "n3", "t3", "n2", "t2", "n1", "t1", "n0", "t0"]
    assert shelf.ids("u") == ["u0"]
    assert shelf.ids("nobody") == []
    assert shelf.ids("t")[:3] == ["n3", "t3", "n2"]
    assert shelf.ids(address("t", "")) == ["t3", "t2", "t1", "t0"]
    assert shelf.ids(address("t", "n")) == ["n3", "n2", "n1", "n0"]
    assert shelf.ids(address("t", "", "t2")) == ["t2"]
    assert shelf.ids(address("t", "", "n2")) == []


def test_list_filters_by_equality_of_all_keys(shelf: Desk) -> None:
    root = address("t", "")
    assert shelf.ids(root, filter={"source": "input"}) == ["t0"]
    assert shelf.ids(root, filter={"step": 2}) == ["t2"]
    assert shelf.ids(root, filter={"odd": True, "step": 3}) == ["t3"]
    assert shelf.ids(root, filter={"odd": True, "step": 2}) == []
    assert shelf.ids(root, filter={"absent": None}) == []
    assert shelf.ids(root, filter={}) == ["t3", "t2", "t1", "t0"]
    assert shelf.ids(None, filter={"run_id": "r"}) == ["u0"]
    assert shelf.ids("t", filter={"step": 1}) == ["n1", "t1"]


def test_list_before_is_strict_and_limit_counts_what_is_left(shelf: Desk) -> None:
    root = address("t", "")
    assert shelf.ids(root, before=address("t", "", "t2")) == ["t1", "t0"]
    assert shelf.ids(root, before=address("t", "", "t0")) == []
    assert shelf.ids(root, before=address("t", "")) == ["t2", "t1", "t0"]
    assert shelf.ids(root, before={"configurable": {"checkpoint_id": "t1"}}) == ["t0"]
    assert shelf.ids("t", before=address("t", "n", "n1")) == ["t1", "n0", "t0"]
    assert shelf.ids(root, limit=1) == ["t3"]
    assert shelf.ids(root, limit=2, before=address("t", "", "t3")) == ["t2", "t1"]
    assert shelf.ids(root, limit=1, filter={"odd": True}) == ["t3"]
    assert shelf.ids(root, limit=0) == []
    with pytest.raises(ValueError, match="no checkpoint 'x'"):
        shelf.ids(root, before=address("t", "", "x"))
    with pytest.raises(ValueError):
        shelf.ids(root, limit=-1)


def test_list_gives_whole_tuples(shelf: Desk) -> None:
    shelf.write("t1", [("a", 1)])
    found = shelf.drive.items(shelf.saver, "list", address("t", "", "t1"))
    assert found == [shelf.get("t1")]
    assert found[0].pending_writes == [("task", "a", 1)]


def test_list_is_a_snapshot(desk: Desk) -> None:
    desk.put("1")
    desk.put("2")
    listing = desk.saver.list(None)
    assert next(listing).checkpoint["id"] == "2"
    desk.put("3")
    desk.call("delete_thread", "t")
    assert [found.checkpoint["id"] for found in listing] == ["1"]


# -- delete, prune, copy ----------------------------------------------------------------------------------------


def test_delete_thread(shelf: Desk) -> None:
    shelf.write("t3", [("a", 1)])
    shelf.call("delete_thread", "t")
    shelf.call("delete_thread", "nobody")
    assert shelf.ids(None) == ["u0"]
    assert shelf.call("head", address("t", "n")) is None
    shelf.put("t3")
    assert shelf.pending() == []


@IN_MEMORY
def test_delete_for_runs(desk: Desk) -> None:
    desk.put("1", {"a": 1}, run_id="r1")
    desk.put("2", {"a": 1, "b": 2}, parent="1", versions={"a": 1, "b": 2}, new={"b": 2}, run_id="r2")
    desk.put("3", {"a": 1, "b": 3}, parent="2", versions={"a": 1, "b": 3}, new={"b": 3}, run_id="r3")
    desk.put("n", ns="n", run_id="r3")
    desk.put("x", thread="u", run_id="r4")
    desk.write("3", [("a", 1)])
    desk.call("delete_for_runs", [])
    desk.call("delete_for_runs", ["unknown"])
    assert desk.ids(None) == ["x", "n", "3", "2", "1"]
    desk.call("delete_for_runs", ["r2"])
    found = desk.get("3")
    assert found is not None
    assert found.parent_config == address("t", "", "1")  # the nearest ancestor left
    assert found.checkpoint["channel_values"] == {"a": 1, "b": 3}
    desk.call("delete_for_runs", ["r3", "r4"])
    assert desk.ids(None) == ["1"]
    assert desk.call("head", address("t", "")) == "1"
    assert set(desk.saver._threads) == {"t"}
    with pytest.raises(TypeError, match=r"pass \['r1'\]"):
        desk.call("delete_for_runs", "r1")


def test_prune_keeps_the_newest_of_each_namespace(shelf: Desk) -> None:
    for id in ("t2", "t3"):
        shelf.write(id, [("a", 1)])
    shelf.call("prune", [])
    shelf.call("prune", ["nobody"])
    shelf.call("prune", ["t"], keep_last=2)
    assert shelf.ids(None) == ["u0", "n3", "t3", "n2", "t2"]
    shelf.call("prune", ["t", "u"])
    assert shelf.ids(None) == ["u0", "n3", "t3"]
    assert shelf.pending("t3") == [("task", "a", 1)]
    assert shelf.values() == {"a": 3}
    shelf.put("t2")
    assert shelf.pending("t2") == []
    shelf.call("prune", ["t"], keep_last=0)
    assert shelf.ids(None) == ["u0"]
    with pytest.raises(TypeError):
        shelf.call("prune", "t")
    with pytest.raises(ValueError):
        shelf.call("prune", ["t"], keep_last=-1)


@IN_MEMORY
def test_prune_lets_go_of_what_it_drops(desk: Desk) -> None:
    for step in range(10):
        desk.put(str(step), {"a": step}, parent=str(step - 1) if step else None)
    desk.call("prune", ["t"], keep_last=3)
    assert sorted(held(desk.saver)) == ["7", "8", "9"]
    found = desk.get("7")
    assert found is not None
    assert found.parent_config is None
    desk.put("10", {"a": 10}, parent="9")
    assert [desk.values(id)["a"] for id in desk.ids()] == [10, 9, 8, 7]


def held(saver: InMemorySaver) -> set[str]:
    """The ids of all records that can be reached from the saver."""
    waiting = [r for spaces in saver._threads.values() for space in spaces.values() for r in space.records.values()]
    for record in waiting:
        if record.link is not None and record.link not in waiting:
            waiting.append(record.link)
    return {record.id for record in waiting}


def test_copy_thread(shelf: Desk) -> None:
    shelf.write("t2", [("a", 1)])
    shelf.write("t2", [("a", 1)])
    before = {id: shelf.get(id) for id in ("t0", "t1", "t2", "t3")}
    shelf.call("copy_thread", "t", "copy")
    assert shelf.ids("copy") == shelf.ids("t")
    for id, source in before.items():
        copied = shelf.get(id, thread="copy")
        assert copied is not None
        assert shelf.get(id) == source
        assert copied._replace(config=source.config, parent_config=source.parent_config) == source  # type: ignore[union-attr]
    assert shelf.call("head", address("copy", "n")) == "n3"
    shelf.write("t2", [("b", 2)], "later")
    shelf.put("new", thread="copy")
    assert len(shelf.pending("t2", thread="copy")) == 1
    shelf.write("t2", [("c", 3)], "later", thread="copy")
    assert shelf.pending("t2") == [("later", "b", 2), ("task", "a", 1)]
    assert shelf.ids(address("t", ""))[0] == "t3"


@pytest.mark.parametrize(("source", "target", "text"), [("nobody", "x", "no thread"), ("t", "u", "exists already")])
def test_copy_refuses(shelf: Desk, source: str, target: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        shelf.call("copy_thread", source, target)
    assert shelf.ids("u") == ["u0"]


# -- commit -----------------------------------------------------------------------------------------------------


class Run:
    """Commits supersteps as the engine does, and remembers what each checkpoint must hold."""

    def __init__(self, call: Callable[..., Any], saver: BaseCheckpointSaver, thread: str = "t") -> None:
        self.call = call
        self.dumps = saver.serde.dumps
        self.thread = thread
        self.head: str | None = None
        self.expected: dict[str, Checkpoint] = {}

    def step(self, id: str, parent: str | None = "head", *, writes: Any = (), **changed: Any) -> None:
        parent = self.head if parent == "head" else parent
        base = self.expected[parent] if parent else checkpoint("", {}, {})
        tick = max(base["channel_versions"].values(), default=0) + 1
        versions = dict.fromkeys(changed, tick)
        values = {**base["channel_values"], **changed}
        whole = checkpoint(
            id, {k: v for k, v in values.items() if v is not ...}, {**base["channel_versions"], **versions}
        )
        whole["versions_seen"] = {**base["versions_seen"], "node": {"a": tick}, f"node{tick % 5}": {"b": tick}}
        whole["updated_channels"] = sorted(changed)
        whole["ts"] = "1970-01-01T00:00:01.500000+00:00"
        seen = {k: whole["versions_seen"][k] for k in ("node", f"node{tick % 5}")}
        commit = Commit(
            self.thread, "", id, self.head, parent, 1.5, {"source": "loop", "step": tick, "parents": {}},
            {name: None if value is ... else self.dumps(value) for name, value in changed.items()},
            versions, seen, sorted(changed),
            [TaskWrites(task, "", [(n, self.dumps(v)) for n, v in pairs]) for task, pairs in writes],
            lambda: whole,
        )  # fmt: skip
        self.call("commit", commit)
        self.expected[id] = whole
        self.head = id


@pytest.fixture
def run(desk: Desk) -> Run:
    return Run(desk.call, desk.saver)


def check(desk: Desk, run: Run, ids: Any = None, thread: str = "t") -> None:
    for id in run.expected if ids is None else ids:
        found = desk.get(id, thread=thread)
        assert found is not None
        assert found.checkpoint == run.expected[id]


def test_commit_stores_checkpoint_writes_and_head(desk: Desk, run: Run) -> None:
    run.step("1", a=1)
    run.step("2", b=(2,), writes=[("task", [("b", (2,)), ("c", 3)])])
    check(desk, run)
    assert desk.pending("1") == [("task", "b", (2,)), ("task", "c", 3)]
    assert desk.call("head", address("t", "")) == "2"
    found = desk.get()
    assert found is not None
    assert found.metadata == {"source": "loop", "step": 2, "parents": {}}
    assert found.parent_config == address("t", "", "1")


def test_writes_recorded_early_and_again_in_the_commit(desk: Desk, run: Run) -> None:
    run.step("1", a=1)
    dumps = run.dumps
    early = [TaskWrites("one", "", [("a", dumps(1))]), TaskWrites("two", "", [(ERROR, dumps("e"))])]
    desk.call("commit_writes", "t", "", "1", early)
    desk.call("commit_writes", "t", "", "1", early[:1])
    run.step("2", a=1, writes=[("one", [("a", 9)]), ("two", [("b", 2)])])
    assert desk.pending("1") == [("one", "a", 1), ("two", ERROR, "e"), ("two", "b", 2)]


def test_the_loser_of_a_race_gets_the_name_of_the_winner_and_stores_nothing(desk: Desk) -> None:
    one, two = Run(desk.call, desk.saver), Run(desk.call, desk.saver)
    one.step("1", a=1)
    with pytest.raises(CheckpointConflictError) as caught:
        two.step("other", a=2, writes=[("task", [("a", 2)])])
    assert (caught.value.thread_id, caught.value.expected, caught.value.actual) == ("t", None, "1")
    two.head, two.expected = one.head, dict(one.expected)
    one.step("2", a=2)
    with pytest.raises(CheckpointConflictError):
        two.step("other", a=3, writes=[("task", [("a", 3)])])
    assert desk.ids() == ["2", "1"]
    assert desk.pending("1") == []


@IN_MEMORY
def test_a_conflict_on_an_empty_thread_leaves_no_thread(desk: Desk, run: Run) -> None:
    run.head, run.expected = "gone", {"gone": checkpoint("gone", {}, {})}
    with pytest.raises(CheckpointConflictError):
        run.step("1", a=1)
    assert desk.ids(None) == []
    assert not desk.saver._threads


def test_one_of_many_threads_wins_each_head() -> None:
    saver = InMemorySaver()
    wins: list[str] = []
    barrier = threading.Barrier(4)

    def race(name: int) -> None:
        run = Run(lambda method, *args: getattr(saver, method)(*args), saver)
        for turn in range(200):
            barrier.wait()
            run.head = f"{turn - 1}" if turn else None
            run.expected = {run.head: checkpoint("", {}, {})} if run.head else {}
            barrier.wait()
            try:
                run.step(f"{turn}", a=name)
                wins.append(f"{turn}")
            except CheckpointConflictError:
                pass

    threads = [threading.Thread(target=race, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == [f"{turn}" for turn in range(200)]


def test_several_event_loops_share_a_saver() -> None:
    saver = InMemorySaver()

    def work(name: int) -> None:
        async def steps() -> None:
            for step in range(50):
                config = address(f"{name}", "", f"{step - 1}" if step else None)
                await saver.aput(config, checkpoint(f"{step}", {"a": step}, {"a": step}), {}, {"a": step})
                await asyncio.sleep(0)

        asyncio.run(steps())

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len([*saver.list(address(f"{name}", ""))]) for name in range(4)] == [50] * 4


def test_history_does_not_change_with_what_it_was_made_of(desk: Desk) -> None:
    live: dict[str, Any] = {"a": [1], "b": {"k": {1}}}
    metadata: Any = {"parents": {"": "x"}, "tags": ["a"]}
    found = checkpoint("1", live, {"a": 1, "b": 1})
    desk.call("put", address("t", ""), found, metadata, {"a": 1, "b": 1})
    desk.write("1", [("w", live["a"])])
    live["a"].append(2)
    live["b"]["k"].add(2)
    found["versions_seen"]["node"]["a"] = 99
    found["channel_versions"]["a"] = 99
    found["updated_channels"].append("z")  # type: ignore[union-attr]
    metadata["parents"][""] = metadata["tags"][0] = "y"
    before = desk.get()
    assert before is not None
    assert before.checkpoint == checkpoint("1", {"a": [1], "b": {"k": {1}}}, {"a": 1, "b": 1})
    assert before.metadata == {"parents": {"": "x"}, "tags": ["a"]}
    assert before.pending_writes == [("task", "w", [1])]


def test_history_does_not_change_with_what_was_read(desk: Desk, run: Run) -> None:
    desk.put("0", {"a": [1]}, tags=["x"])
    run.head, run.expected = "0", {"0": checkpoint("0", {"a": [1]}, {"a": 1})}
    run.step("1", b=[2], writes=[("task", [("b", [2])])])
    for id in ("0", "1"):
        one = desk.get(id)
        assert one is not None
        kept = deepcopy(one)
        one.config["configurable"]["thread_id"] = "changed"
        one.checkpoint["channel_values"]["a"].append(9)
        one.checkpoint["channel_versions"].clear()
        one.checkpoint["versions_seen"]["node"].clear()
        one.checkpoint["updated_channels"].append("z")  # type: ignore[union-attr]
        one.metadata["parents"]["x"] = "y"
        one.metadata.get("tags", []).append("z")  # type: ignore[attr-defined]
        one.pending_writes.clear()  # type: ignore[union-attr]
        assert desk.get(id) == kept


# -- the chain --------------------------------------------------------------------------------------------------


def long_run(run: Run, steps: int = 200, keys: int = 10) -> None:
    for step in range(steps):
        changed = {f"k{step % keys}": ... if step % 7 == 6 else (step, [step])}
        run.step(f"{step}", **changed)


@IN_MEMORY
def test_every_checkpoint_of_a_long_thread_reads_back(desk: Desk, run: Run) -> None:
    long_run(run)
    check(desk, run)
    records = desk.saver._threads["t"][""].records.values()
    assert max(record.distance for record in records) == KEYFRAME - 1
    assert sum(record.link is None for record in records) == -(-200 // KEYFRAME)


def test_also_after_forks(desk: Desk, run: Run) -> None:
    long_run(run, 100)
    for at in (0, 31, 32, 33, 64, 99):
        run.step(f"fork {at}", parent=f"{at}", fork=at, k1=at)
        for step in range(40):
            run.step(f"fork {at} {step}", a=step)
    check(desk, run)


def test_also_after_pruning_and_going_on(desk: Desk, run: Run) -> None:
    long_run(run, 100)
    run.step("fork", parent="50", x=1)
    desk.call("prune", ["t"], keep_last=40)
    check(desk, run, desk.ids())
    assert len(desk.ids()) == 40
    found = desk.get("fork")
    assert found is not None
    assert found.parent_config is None
    for step in range(70):
        run.step(f"more {step}", y=step)
    check(desk, run, desk.ids())
    desk.call("copy_thread", "t", "copy")
    check(desk, run, desk.ids(), thread="copy")
    desk.call("delete_for_runs", ["unknown"])
    check(desk, run, desk.ids())


def test_a_commit_on_a_parent_that_was_pruned_stores_everything(desk: Desk, run: Run) -> None:
    long_run(run, 5)
    desk.call("prune", ["t"])
    run.step("fork", parent="1", z=1)
    run.step("next", z=2)
    check(desk, run, ["4", "fork", "next"])


def stored_entries(saver: InMemorySaver) -> int:
    """How many values, versions and seen entries all records hold together."""
    records = [r for spaces in saver._threads.values() for space in spaces.values() for r in space.records.values()]
    return sum(len(r.values) + len(r.versions) + len(r.seen) for r in records)


@IN_MEMORY
def test_memory_grows_with_what_changed(desk: Desk) -> None:
    keys, steps = 64, 320
    run = Run(desk.call, desk.saver)
    run.step("start", **{f"k{key}": 0 for key in range(keys)})
    long_run(run, steps, keys)
    changed = 2 * keys + steps * 4
    keyframes = steps // KEYFRAME * (2 * keys + 6)
    assert stored_entries(desk.saver) <= changed + keyframes
    by_put = Desk(desk.drive, InMemorySaver())
    parent = None
    for id, each in run.expected.items():
        new = {name: each["channel_versions"][name] for name in each["updated_channels"] or ()}
        config = address("t", "", parent)
        by_put.call("put", config, each, {}, new)
        parent = id
    check(by_put, run)
    assert stored_entries(by_put.saver) <= changed + keyframes


operations = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 4), st.integers() | st.just(...)),
        st.tuples(st.just("fork"), st.integers(0, 30), st.integers()),
        st.tuples(st.just("put"), st.integers(0, 30), st.sets(st.integers(0, 4))),
        st.tuples(st.just("prune"), st.integers(1, 20), st.none()),
        st.tuples(st.just("drop"), st.sets(st.integers(0, 5), max_size=2), st.none()),
    ),
    max_size=60,
)


@given(operations)
def test_any_history_reads_back_as_a_plain_dict_would(script: list[Any]) -> None:
    saver = InMemorySaver()
    desk = Desk(Drive(is_async=False), saver)
    run = Run(desk.call, saver)
    left: list[str] = []
    for number, (kind, one, two) in enumerate(script):
        id = str(number)
        if kind == "prune":
            saver.prune(["t"], keep_last=one)
            left = left[-one:]
        elif kind == "drop":
            dropped = {left[i] for i in one if i < len(left)}
            for each in dropped:
                saver._threads["t"][""].records[each].metadata["run_id"] = "dropped"
            saver.delete_for_runs(["dropped"])
            left = [each for each in left if each not in dropped]
            run.head = left[-1] if left else None
        elif kind == "put":
            parent = left[one % len(left)] if left else None
            base = run.expected[parent] if parent else checkpoint("", {}, {})
            names = sorted(f"k{i}" for i in two)
            versions = {n: v for n, v in base["channel_versions"].items() if n not in names[:1]}
            versions |= dict.fromkeys(names[1:], number + 1000)
            values = {n: v for n, v in base["channel_values"].items() if n in versions} | dict.fromkeys(names[1:], id)
            whole = checkpoint(id, values, versions)
            saver.put(address("t", "", parent), whole, {}, dict.fromkeys(names[1:], number + 1000))
            run.expected[id], run.head = whole, id
            left.append(id)
        else:
            parent = left[one % len(left)] if left and kind == "fork" else run.head
            run.step(id, parent=parent, **{f"k{one % 5}": two})
            left.append(id)
    assert desk.ids() == left[::-1]
    check(desk, run, left)
    assert held(saver) <= set(left)


# -- the rest ---------------------------------------------------------------------------------------------------


def test_the_inherited_commit_works_on_put_and_put_writes(drive: Drive) -> None:
    class Bare(BaseCheckpointSaver):
        """What a user's own saver needs at least."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = InMemorySaver()
            self.get_tuple = self.inner.get_tuple  # type: ignore[method-assign]
            self.put = self.inner.put  # type: ignore[method-assign]
            self.put_writes = self.inner.put_writes  # type: ignore[method-assign]

        def list(self, config: Any, **options: Any) -> Any:
            return self.inner.list(config, **options)

    desk = Desk(drive, Bare())
    run = Run(desk.call, desk.saver)
    long_run(run, 10)
    check(desk, run)
    assert desk.ids() == [str(step) for step in reversed(range(10))]
    assert desk.call("head", address("t", "")) == "9"
    run.step("x", a=1, writes=[("task", [("a", 1)])])
    desk.call("commit_writes", "t", "", "x", [TaskWrites("task", "", [("b", run.dumps(2))])])
    assert desk.pending("9") == [("task", "a", 1)]
    assert desk.pending("x") == [("task", "b", 2)]


def test_a_serializer_of_your_own(drive: Drive) -> None:
    @dataclass
    class Mine:
        a: int

    serializer = Serializer(Registry())
    serializer.register(Mine)
    desk = Desk(drive, MemorySaver(serde=serializer))
    desk.put("1", {"a": Mine(1)})
    assert desk.values() == {"a": Mine(1)}


def test_alias() -> None:
    assert MemorySaver is InMemorySaver
