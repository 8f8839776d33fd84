"""Threads are found by their metadata through an index: quick, and never one too few, whatever version has written the
file."""

from __future__ import annotations

import operator
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Annotated, TypedDict

import pytest
from kit.drive import each_case

from stategraph import END, START, StateGraph
from stategraph.checkpoint import InMemorySaver, Retention
from stategraph.checkpoint.encryption import Encryption
from stategraph.checkpoint.errors import DamagedError
from stategraph.checkpoint.labels import label_choices, labels_of
from stategraph.checkpoint.sqlite import SqliteSaver

RELEASES = sorted((Path(__file__).parent / "releases").glob("threads-*.db"))


class State(TypedDict):
    items: Annotated[list[int], operator.add]


def graph(saver):
    builder = StateGraph(State).add_node("a", lambda state: {"items": [1]}).add_node("b", lambda state: {"items": [2]})
    return builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile(saver)


def on(thread, **metadata):
    return {"configurable": {"thread_id": thread}, "metadata": metadata}


def places(found):
    return [(each.config["configurable"]["thread_id"], each.checkpoint["id"]) for each in found]


def scan(saver, wanted):
    """What a search that looks at each checkpoint finds."""
    gone = object()
    return places(
        each for each in saver.list(None) if all(each.metadata.get(key, gone) == value for key, value in wanted.items())
    )


def search(saver, wanted):
    return places(saver.list(None, filter=wanted))


def fill(saver, threads=20):
    app = graph(saver)
    for number in range(threads):
        app.invoke({"items": [number]}, on(f"{number}", user=f"user {number % 7}", number=number))


def make_old(file):
    """As the version before the index has left it."""
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("DROP INDEX spaces_unlabelled")
        raw.execute("ALTER TABLE spaces DROP COLUMN labelled")
        raw.execute("DROP TABLE labels")
    raw.close()


@pytest.fixture
def old(tmp_path):
    """A file of 20 threads without an index."""
    file = tmp_path / "old.db"
    with SqliteSaver.from_conn_string(str(file), synchronous="off") as saver:
        fill(saver)
    make_old(file)
    return file


def statements(saver, call):
    texts = []
    saver._database.connection.set_trace_callback(texts.append)
    try:
        call()
    finally:
        saver._database.connection.set_trace_callback(None)
    return texts


# -- labels --------------------------------------------------------------------------------------------------------


class Text(str):
    """Equal to a text, and none."""


EQUAL = [
    (1, 1.0), (1, True), (0, -0.0), (0, False), (2**70, float(2**70)), ("a", "a"), (None, None), (1.5, 1.5),
    ({"a": 1}, {"a": 1.0}), ([1], [True]), (Text("a"), "a"), ("a", Text("a")), (float("inf"), float("inf")),
    ("\ud800", "\ud800"), ((1,), (1,)),
]  # fmt: skip


@each_case("stored, wanted", EQUAL)
def test_what_is_equal_is_found(stored, wanted):
    assert stored == wanted
    labels = labels_of({"key": stored, "step": 3})
    assert len(labels) == 1
    assert all(labels & set(choice) for choice in label_choices({"key": wanted, "step": 3}))


@each_case("stored, wanted", [(1, "1"), (1, 2), (1, 1.5), (None, 0), ("a", "A"), ("x", None), (1, [])])
def test_very_different_values_share_no_labels(stored, wanted):
    assert not any(labels_of({"key": stored}) & set(choice) for choice in label_choices({"key": wanted}))
    assert not any(labels_of({"other": wanted}) & set(choice) for choice in label_choices({"key": wanted}))


# -- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.trial
@pytest.mark.parametrize("saver_type", ["memory", "sqlite"])
def test_a_search_finds_what_a_scan_finds(saver_type, tmp_path):
    """Runs, edits, copies, prunes, deletions in a random order."""
    random = Random(7)
    values = ["ann", "bob", 1, True, 1.5, "1"]
    saver = InMemorySaver() if saver_type == "memory" else SqliteSaver(tmp_path / "t.db", synchronous="off")
    app = graph(saver)
    for _ in range(150):
        thread = f"{random.randrange(8)}"
        match random.randrange(9):
            case 0:
                saver.delete_thread(thread)
            case 1:
                saver.prune([thread], keep_last=random.randrange(4))
            case 2:
                if app.get_state(on(thread)).values and not app.get_state(on("copy")).values:
                    saver.copy_thread(thread, "copy")
            case 3:
                saver.delete_for_runs([f"run {random.randrange(9)}"])
            case 4:
                if app.get_state(on(thread)).values:
                    app.update_state(on(thread, user=random.choice(values)), {"items": [3]}, as_node="b")
            case _:
                metadata = {key: random.choice(values) for key in random.sample(["user", "team"], random.randrange(3))}
                app.invoke({"items": [0]}, {**on(thread, **metadata), "run_id": f"run {random.randrange(9)}"})
        for wanted in ({"user": random.choice(values)}, {"user": random.choice(values), "team": random.choice(values)}):
            assert search(saver, wanted) == scan(saver, wanted)
    saver.close() if saver_type == "sqlite" else None


def test_what_is_found_takes_few_rows_however_many_threads_there_are(tmp_path):
    """PERFORMANCE P33: the namespaces without labels, those with the wanted ones, their rows; no scan."""
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver:
        fill(saver, 300)
        saver.copy_thread("7", "copy")
        texts = statements(saver, lambda: search(saver, {"number": 150}))
        plans = [saver._database.execute(f"EXPLAIN QUERY PLAN {text}").fetchall() for text in texts if "SELECT" in text]
        few = ("json_each", "spaces_unlabelled")
        scans = [step for plan in plans for *_, step in plan if step.startswith("SCAN") and not any(map(step.count, few))]
        assert len(search(saver, {"number": 150})) == 4 and not scans
        assert len(texts) <= 20


def test_a_superstep_writes_labels_only_when_its_metadata_changes(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), synchronous="off") as saver:
        app, config = graph(saver), on("t", user="ann", number=3)
        first = statements(saver, lambda: app.invoke({"items": []}, config))
        again = statements(saver, lambda: app.invoke({"items": []}, config))
        other = statements(saver, lambda: app.invoke({"items": []}, on("t", user="bob", number=3)))
        count = [sum("INTO labels" in text for text in texts) for texts in (first, again, other)]
        assert count == [1, 0, 1]


@pytest.mark.trial
def test_unused_labels_are_dropped(tmp_path):
    """Each run has an id of its own: with a retention the index does not grow for ever."""
    memory = InMemorySaver(retention=Retention(keep_last=2))
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), retention=Retention(keep_last=2)) as saver:
        for each in (memory, saver):
            app = graph(each)
            for number in range(80):
                app.invoke({"items": []}, on("t", request=number))
        ((count,),) = saver._database.execute("SELECT count(*) FROM labels").fetchall()
        assert count <= 20 and len(memory._labels._places) <= 20
        for each in (memory, saver):
            each.delete_thread("t")
        assert saver._database.execute("SELECT count(*) FROM labels").fetchall() == [(0,)]
        assert not memory._labels._places


def test_what_is_encrypted_has_no_labels(tmp_path):
    """They would tell who has the same metadata."""
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db"), integrity=Encryption(bytes(32))) as saver:
        fill(saver, 5)
        assert search(saver, {"number": 3}) == scan(saver, {"number": 3}) != []
        assert saver._database.execute("SELECT count(*) FROM labels").fetchall() == [(0,)]


# -- files of the version before -----------------------------------------------------------------------------------


def test_threads_without_labels_are_found_beside_those_that_have_them(old):
    with SqliteSaver.from_conn_string(str(old)) as saver:
        graph(saver).invoke({"items": []}, on("new", user="user 3"))
        graph(saver).invoke({"items": []}, on("5", user="user 3"))
        saver.copy_thread("10", "copy")
        for user in range(7):
            assert search(saver, {"user": f"user {user}"}) == scan(saver, {"user": f"user {user}"}) != []


@pytest.mark.parametrize("kept", RELEASES, ids=lambda file: file.stem)
def test_a_released_file_is_searched(kept, tmp_path):
    shutil.copy(kept, tmp_path / "t.db")
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db")) as saver:
        graph(saver).invoke({"items": []}, on("new", user="ann"))
        assert {thread for thread, _ in search(saver, {"user": "ann"})} == {"new"}
        assert search(saver, {"user": "nobody"}) == []


def test_a_file_without_labels_that_may_only_be_read_is_searched(old):
    before = old.read_bytes()
    with SqliteSaver.from_conn_string(str(old), read_only=True) as saver:
        assert search(saver, {"user": "user 3"}) == scan(saver, {"user": "user 3"}) != []
    assert old.read_bytes() == before


def test_a_damaged_thread_is_reported_and_hides_no_other(old):
    with SqliteSaver.from_conn_string(str(old)) as saver:
        saver._database.execute(
            "UPDATE checkpoints SET body = x'00' WHERE space = (SELECT id FROM spaces WHERE thread_id = '5')"
        )
        with pytest.raises(DamagedError, match="thread '5'"):
            search(saver, {"user": "user 3"})
        saver.delete_thread("5")
        assert search(saver, {"user": "user 3"}) == scan(saver, {"user": "user 3"}) != []
