"""Checks of single writes and reads: put, put_writes, get_tuple. No graph runs here."""

from __future__ import annotations

import threading
from copy import deepcopy
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from ..checkpoint.base import (
    ERROR,
    INTERRUPT,
    RESUME,
    coordinates,
)
from .asserts import assert_raises, assert_same
from .conformance import register_check
from .harness import Harness, checkpoint

VALUES: dict[str, Any] = {
    "none": None,
    "yes": True,
    "one": 1,
    "text": "é\u0000\U0001f600",
    "empty": "",
    "big": 2**100,
    "low": -(2**63) - 1,
    "floats": [0.0, -0.0, 1e308, float("inf"), float("nan"), 5e-324],
    "bytes": b"\x00\xff",
    "array": bytearray(b"x"),
    "tuple": (1, (2, [3])),
    "set": {1, "a"},
    "frozen": frozenset({(1,)}),
    "nested": {"a": [{"b": ({},)}]},
    "keys": {1: "int", (1, 2): "tuple", None: "none"},
    "decimal": Decimal("1.10"),
    "fraction": Fraction(1, 3),
    "uuid": UUID(int=7),
    "when": datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
    "day": date(1, 1, 1),
    "long": timedelta(days=-1, microseconds=1),
    "path": PurePosixPath("a/b"),
    "error": ValueError("no", 3),
    "complex": 1 + 2j,
    "range": range(3, 9, 2),
    "large": "x" * 100_000,
}


# -- put -------------------------------------------------------------------------------------------


@register_check("put")
def put_returns_the_config_of_the_new_checkpoint(harness: Harness) -> None:
    """The next step names its parent by what put returned."""
    assert_same(coordinates(harness.put("1", ns="child:abc")), ("t", "child:abc", "1"), "put()")


@register_check("put")
def put_and_get_give_everything_back(harness: Harness) -> None:
    """A resumed run must see what the stopped one saw: every field of the checkpoint and its
    metadata."""
    values = {"s": "text", "i": 1, "l": [1, (2,)], "d": {"k": None}}
    harness.put("1", values, step=3, run_id="r", score=1.5, tags=["a"], parents={"": "root"})
    harness.reopen()
    found = harness.need()
    assert_same(coordinates(found.config), ("t", "", "1"), "config")
    assert_same(found.parent_config, None, "parent_config")
    assert_same(found.checkpoint, checkpoint("1", values, dict.fromkeys(values, 1)), "checkpoint")
    metadata = {
        "source": "loop",
        "step": 3,
        "run_id": "r",
        "score": 1.5,
        "tags": ["a"],
        "parents": {"": "root"},
    }
    assert_same(found.metadata, metadata, "metadata")
    assert_same(found.pending_writes, [], "pending_writes")


@register_check("put")
def values_come_back_equal_and_of_the_same_type(harness: Harness) -> None:
    """A tuple that comes back as a list makes a resumed run differ from an unbroken one."""
    harness.put("1", VALUES)
    harness.write("1", [*VALUES.items()])
    harness.reopen()
    harness.shows(values=VALUES)
    assert_same(
        {channel: value for _, channel, value in harness.pending()}, VALUES, "pending_writes"
    )


@register_check("put")
def the_format_number_is_kept(harness: Harness) -> None:
    """A later version must know what wrote a checkpoint."""
    old = checkpoint("1", {}, {})
    old["v"] = 7
    harness.call("put", harness.at(), old, {}, {})
    assert_same(harness.call("get", harness.at())["v"], 7, "v")


@register_check("put")
def namespaces_and_threads_are_apart(harness: Harness) -> None:
    """Nested graphs and other people's threads must not see each other, also where one name begins
    another."""
    places = [
        ("t", ""),
        ("t", "child:abc"),
        ("t", "child"),
        ("t", "child:abc|x"),
        ("u", ""),
        ("t2", ""),
        ("T", ""),
    ]
    for thread, ns in places:
        harness.put("1", {"a": [thread, ns]}, thread=thread, ns=ns)
    for thread, ns in places:
        harness.shows(thread=thread, ns=ns, values={"a": [thread, ns]})
    harness.shows(ns="child:", get=None)


@register_check("put")
def the_namespace_defaults_to_the_root(harness: Harness) -> None:
    """Callers name a thread; only nested graphs have a namespace."""
    bare: Any = {"configurable": {"thread_id": "t"}}
    harness.call("put", bare, checkpoint("1", {}, {}), {}, {})
    assert_same(coordinates(harness.call("get_tuple", bare).config), ("t", "", "1"), "config")


@register_check("put")
def a_thread_id_may_be_a_number(harness: Harness) -> None:
    """Threads are often named by a row's number; 7 and "7" are the same thread."""
    harness.put("1", {"a": 1}, thread=7)
    harness.shows(thread="7", values={"a": 1})


@register_check("put")
def parents_are_tracked_and_old_checkpoints_stay(harness: Harness) -> None:
    """Going back in time reads old checkpoints by their ids, and history follows parents."""
    harness.put("1", {"a": 1})
    harness.put("2", {"a": 2}, parent="1")
    harness.put("3", {"a": 3}, parent="1")
    for id, parent in (("2", "1"), ("3", "1")):
        harness.shows(id, parent=parent)
    assert_same(
        [harness.values(id)["a"] for id in "123"], [1, 2, 3], "values of the three checkpoints"
    )


@register_check("put")
def an_unchanged_channel_is_read_from_before(harness: Harness) -> None:
    """A step names the channels it changed; the others keep their value, and old checkpoints
    theirs."""
    harness.put("1", {"a": "old", "b": "old"})
    harness.put("2", {"a": "new", "b": "old"}, parent="1", versions={"a": 2, "b": 1}, new={"a": 2})
    harness.put(
        "3",
        {"a": "new", "b": "old", "c": 1},
        parent="2",
        versions={"a": 2, "b": 1, "c": 3},
        new={"c": 3},
    )
    harness.reopen()
    harness.shows("1", values={"a": "old", "b": "old"})
    harness.shows("2", values={"a": "new", "b": "old"})
    harness.shows("3", values={"a": "new", "b": "old", "c": 1})


@register_check("put")
def a_value_that_no_parent_has_is_stored_though_not_new(harness: Harness) -> None:
    """A value must never be lost because somebody did not name its channel as changed."""
    harness.put("1", {"a": 1}, new={})
    harness.put("2", {"a": 1, "b": 2}, parent="1", versions={"a": 1, "b": 1}, new={})
    harness.put("3", {"a": 5}, parent="gone", versions={"a": 9}, new={})
    assert_same(
        [harness.values(id) for id in "123"],
        [{"a": 1}, {"a": 1, "b": 2}, {"a": 5}],
        "values of the three checkpoints",
    )


@register_check("put")
def a_channel_may_become_empty_or_go(harness: Harness) -> None:
    """A consumed channel holds nothing, though it has a version; one of a node that was removed has
    not even that."""
    harness.put("1", {"a": 1, "b": 2, "c": 3})
    harness.put("2", {"b": 2}, parent="1", versions={"a": 2, "b": 1}, new={"a": 2})
    harness.put("3", {"b": 2}, parent="2", versions={"a": 2, "b": 1}, new={})
    for id in "23":
        harness.shows(id, values={"b": 2})
        assert_same(
            harness.need(id).checkpoint["channel_versions"], {"a": 2, "b": 1}, f"versions of {id!r}"
        )
    harness.shows("1", values={"a": 1, "b": 2, "c": 3})
    harness.put("4", {"a": 1, "b": 2}, versions={"a": 1})
    harness.shows("4", values={"a": 1})


@register_check("put")
def putting_an_id_again_replaces_it_and_makes_it_the_head(harness: Harness) -> None:
    """Whoever repeats a put after an error must not leave two of it, or an older head."""
    harness.put("1", {"a": 1})
    harness.put("2", {"a": 2}, parent="1")
    harness.put("1", {"a": 3}, parent="2")
    harness.shows(values={"a": 3}, ids=["1", "2"])
    harness.shows("2", values={"a": 2})
    harness.put("alone", parent="gone")
    harness.put("2", {"a": 4}, parent="1")
    harness.shows("alone", parent="gone")


@register_check("put")
def a_refused_value_leaves_no_trace(harness: Harness) -> None:
    """A value that cannot be stored must raise an error when it is put, not be missing at the
    resume."""
    harness.put("1", {"a": 1})
    lock = {"x": [threading.Lock()]}
    assert_raises(TypeError, harness.put, "2", {"a": 2, "b": lock}, parent="1")
    assert_raises(TypeError, harness.write, "1", [("v", 1), ("w", lock)])
    harness.shows(ids=["1"], values={"a": 1}, pending=[])


@register_check("put")
def a_missing_thread_is_a_clear_error(harness: Harness) -> None:
    """A forgotten thread_id must not start, or read, a thread of an accidental name."""
    configs: list[Any] = [{}, {"configurable": {}}, {"configurable": {"thread_id": ""}}]
    for config in configs:
        calls: dict[str, tuple[Any, ...]] = {
            "get_tuple": (), "put": (checkpoint("1", {}, {}), {}, {}), "put_writes": ([], "t"),
        }  # fmt: skip
        for method, args in calls.items():
            assert_raises(ValueError, harness.call, method, config, *args)
        assert_raises(ValueError, harness.listed, config)


@register_check("put")
def history_does_not_change_with_what_it_was_made_of(harness: Harness) -> None:
    """Nodes and reducers go on changing the live values after they were stored."""
    live: dict[str, Any] = {"a": [1], "b": {"k": {1}}}
    metadata: Any = {"parents": {"": "x"}, "tags": ["a"]}
    found = checkpoint("1", live, {"a": 1, "b": 1})
    harness.call("put", harness.at(), found, metadata, {"a": 1, "b": 1})
    harness.write("1", [("w", live["a"])])
    live["a"].append(2)
    live["b"]["k"].add(2)
    found["versions_seen"]["node"]["a"] = found["channel_versions"]["a"] = 99
    (found["updated_channels"] or []).append("z")
    metadata["parents"][""] = metadata["tags"][0] = "y"
    kept = harness.need()
    assert_same(
        kept.checkpoint,
        checkpoint("1", {"a": [1], "b": {"k": {1}}}, {"a": 1, "b": 1}),
        "checkpoint",
    )
    assert_same(kept.metadata, {"parents": {"": "x"}, "tags": ["a"]}, "metadata")
    assert_same(kept.pending_writes, [("task", "w", [1])], "pending_writes")


@register_check("put")
def history_does_not_change_with_what_was_read(harness: Harness) -> None:
    """Whoever looks at a thread and edits what came must not edit the thread."""
    harness.put("0", {"a": [1]}, tags=["x"])
    harness.write("0", [("b", [2])])
    one = harness.need()
    kept = deepcopy(one)
    one.config["configurable"]["thread_id"] = "changed"
    one.checkpoint["channel_values"]["a"].append(9)
    one.checkpoint["channel_versions"].clear()
    one.checkpoint["versions_seen"]["node"].clear()
    (one.checkpoint["updated_channels"] or []).append("z")
    one.metadata["parents"]["x"] = "y"
    one.metadata["tags"].append("z")  # type: ignore[typeddict-item]  # a key of one's own
    (one.pending_writes or [])[0][2].append(9)
    now = harness.need()
    assert_same([*now, now.spans], [*kept, kept.spans], "what is read after that")


@register_check("put")
def what_is_unknown_is_none(harness: Harness) -> None:
    """A missing checkpoint is not an error: each run on a new thread begins by looking for one."""
    assert_same(
        [harness.get(), harness.get("1"), harness.call("get", harness.at()), harness.head()],
        [None] * 4,
        "an empty storage",
    )
    harness.put("1")
    assert_same(
        [harness.get("2"), harness.get("1", thread="u"), harness.get("1", ns="n")],
        [None] * 3,
        "beside checkpoint '1'",
    )


# -- put_writes ------------------------------------------------------------------------------------


@register_check("writes")
def writes_hang_on_their_checkpoint(harness: Harness) -> None:
    """What a finished task wrote saves it from running again; the next checkpoint begins with
    none."""
    harness.put("1")
    harness.write("1", [("a", (1, 2)), ("b", "x")], "one")
    harness.write("1", [("a", None)], "two")
    harness.reopen()
    harness.shows(pending=[("one", "a", (1, 2)), ("one", "b", "x"), ("two", "a", None)])
    harness.put("2", parent="1")
    assert_same(
        (harness.pending(), len(harness.pending("1"))),
        ([], 3),
        "pending writes of '2', and the number of those of '1'",
    )


@register_check("writes")
def writes_are_ordered_by_path_task_and_place(harness: Harness) -> None:
    """Tasks end in any order; reducers must get their writes in one order, whichever task was
    quicker."""
    harness.put("1")
    harness.write("1", [("x", 1), (ERROR, 2)], "b", "~2")
    harness.write("1", [("x", 3)], "z", "~1")
    harness.write("1", [("x", 4)], "a", "~2")
    harness.write("1", [("x", 5)], "y")
    harness.write("1", [(f"c{i}", 10 + i) for i in range(12)], "m", "~10")
    assert_same(
        [value for _, _, value in harness.pending()],
        [5, 3, *range(10, 22), 4, 2, 1],
        "values in their order",
    )


@register_check("writes")
def writes_may_come_before_their_checkpoint(harness: Harness) -> None:
    """A checkpointer that stores in the background may get them first; until then there is no
    checkpoint."""
    harness.write("1", [("a", 1)])
    harness.shows(get=None, ids=[])
    harness.shows("1", get=None)
    harness.put("1")
    harness.shows(pending=[("task", "a", 1)])


@register_check("writes")
def putting_a_checkpoint_again_keeps_the_writes_beside_it(harness: Harness) -> None:
    """Whoever repeats a put after an error must not lose what tasks have recorded in the
    meantime."""
    harness.put("1", {"a": 1})
    harness.write("1", [("a", 1)])
    harness.put("1", {"a": 2})
    harness.shows(values={"a": 2}, pending=[("task", "a", 1)])
    harness.put("2", parent="1")
    harness.put("1", {"a": 3})
    harness.shows("1", pending=[("task", "a", 1)])


@register_check("writes")
def sending_writes_again_keeps_the_first(harness: Harness) -> None:
    """A repeated call changes nothing: what another run may have read already stays."""
    harness.put("1")
    for value in (1, 1, 2):
        harness.write("1", [("a", value)])
    harness.write("1", [("b", 3), ("c", 4)])
    harness.shows(pending=[("task", "a", 1), ("task", "c", 4)])


@register_check("writes")
def control_writes_replace_also_beside_ordinary_ones(harness: Harness) -> None:
    """A second failure must show its own error, and a new answer must count, whatever else the call
    holds."""
    harness.put("1")
    harness.write("1", [("a", 1), (ERROR, "e1"), (INTERRUPT, "i1")])
    harness.write("1", [("a", 2), (ERROR, "e2")])
    harness.write("1", [(RESUME, ["r"])])
    control = [("task", RESUME, ["r"]), ("task", INTERRUPT, "i1"), ("task", ERROR, "e2")]
    harness.shows(pending=[*control, ("task", "a", 1)])
    harness.put("2")
    harness.write("2", [(ERROR, "e1"), (ERROR, "e2")])
    harness.shows("2", pending=[("task", ERROR, "e2")])


@register_check("writes")
def writes_of_namespaces_and_threads_are_apart(harness: Harness) -> None:
    """The same checkpoint id may stand in several places."""
    harness.put("1")
    harness.put("1", ns="n")
    harness.put("1", thread="u")
    harness.write("1", [("a", 1)], ns="n")
    found = [harness.pending(), harness.pending(thread="u"), harness.pending(ns="n")]
    assert_same(
        found,
        [[], [], [("task", "a", 1)]],
        "pending writes of the root, the other thread, the namespace",
    )


@register_check("writes")
def writes_need_a_checkpoint_id(harness: Harness) -> None:
    """Writes beside nothing would never be found again."""
    assert_raises(ValueError, harness.call, "put_writes", harness.at(), [("a", 1)], "task")
