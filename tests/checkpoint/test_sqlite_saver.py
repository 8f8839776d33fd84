"""`SqliteSaver`: what is specific to rows in SQLite. The rules of all savers are checked by `test_conformance`."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest
from kit.drive import each_durability
from kit.graphs import CONFIG, EMPTY, Log, chain_of, thread_config
from kit.pausing_graphs import graph, says

from stategraph import END
from stategraph.checkpoint import (
    CheckpointConflictError,
    DamagedError,
    InMemorySaver,
    StorageError,
    sqlite,
)
from stategraph.checkpoint.base import address
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.store.cache import SqliteCache
from stategraph.store.sqlite import SqliteStore


@pytest.fixture
def saver():
    with SqliteSaver.from_conn_string(":memory:", synchronous="off") as opened:
        yield opened


def checkpoint(id, value):
    return {
        "v": 1, "id": id, "ts": "2024-01-01T00:00:00+00:00", "channel_values": {"a": value},
        "channel_versions": {"a": 1}, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip


def test_a_checkpoint_may_be_put_again_as_its_own_parent(saver):
    found = []
    for each in (InMemorySaver(), saver):
        each.put(address("t", ""), checkpoint("1", "x" * 100), {}, {"a": 1})
        each.put(address("t", "", "1"), checkpoint("1", "y" * 100), {}, {"a": 1})
        found.append(each.get_tuple(address("t", "")))
    assert found[0] == found[1]


def test_an_older_checkpoint_is_read_as_of_one_moment(tmp_path, monkeypatch):
    app = chain_of(Log, a=says("a"), b=says("b"))
    with SqliteSaver.from_conn_string(tmp_path / "t.db") as saver, SqliteSaver.from_conn_string(tmp_path / "t.db") as other:
        app = app.compile(saver)
        app.invoke(EMPTY, CONFIG)
        older = next(each.config for each in app.get_state_history(CONFIG) if each.next == ("b",))
        expected = saver.get_tuple(older)
        rows = sqlite._SqliteSession.rows

        def pruned_meanwhile(session, statement, *values):
            found = rows(session, statement, *values)
            if statement == "look_at":
                monkeypatch.undo()
                other.prune(["t"], keep_last=1)
            return found

        monkeypatch.setattr(sqlite._SqliteSession, "rows", pruned_meanwhile)
        assert expected.pending_writes and saver.get_tuple(older) == expected
        assert saver.get_tuple(older) is None


def test_a_run_from_an_older_checkpoint_notices_that_the_newest_is_lost(drive, saver):
    app = chain_of(Log, a=says("a"), b=says("b"), c=says("c")).compile(saver)
    app.invoke(EMPTY, CONFIG)
    older = next(each.config for each in app.get_state_history(CONFIG) if each.next == ("b",))
    saver._database.execute("DELETE FROM checkpoints WHERE seq = (SELECT max(seq) FROM checkpoints)")
    with pytest.raises(DamagedError, match="its newest checkpoint"):
        drive.invoke(app, None, older)


@pytest.mark.parametrize("made", ["t", "other"])
def test_a_history_ends_where_its_thread_was_deleted_and_one_was_made_meanwhile(saver, made):
    app = chain_of(Log, say=says("a")).compile(saver)
    for _ in range(20):
        app.invoke(EMPTY, CONFIG)
    history, everything = app.get_state_history(CONFIG), saver.list(None)
    assert next(history).values and next(everything)
    saver.delete_thread("t")
    app.invoke(EMPTY, thread_config(made))  # under another number, though that of the newest thread is free
    assert all(each.values["log"] for each in history)
    assert {each.config["configurable"]["thread_id"] for each in everything} <= {"t", made}


def test_few_rows_are_kept_of_deleted_threads(saver):
    app = chain_of(Log, say=says("a")).compile(saver)
    for name in "abcde":
        app.invoke(EMPTY, thread_config(name))
    for name in "ecdab":
        saver.delete_thread(name)
    assert saver._database.execute("SELECT count(*) FROM dropped_spaces").fetchone() == (1,)


class Items(TypedDict, total=False):
    items: list[Any]
    other: int


CHANGES = {
    "at the front": lambda items, n: [n + 1, *items],
    "at both ends": lambda items, n: [n + 1, *items[1:], f"{n:040}", n],
}


@pytest.mark.parametrize("change", CHANGES)
def test_states_that_share_bytes_are_those_that_were_written(tmp_path, change):
    """Also where what 34 supersteps did is one delta, and beside a fork from before that."""
    items, written = [0, *(n % 100 for n in range(2000))], []

    def check():
        with SqliteSaver.from_conn_string(tmp_path / "t.db") as saver:  # knows no values yet
            reader = app.compile(saver)
            assert reader.get_state(CONFIG).values["items"] == newest
            assert [reader.get_state(config).values["items"] for config, _ in written] == [each for _, each in written]
        with SqliteSaver.from_conn_string(tmp_path / "t.db") as saver:
            found = app.compile(saver).get_state_history(CONFIG, limit=3)
            assert [each.values["items"] for each in found] == [*reversed([*last, newest])]

    app = chain_of(Items, keep=lambda state: {})
    with SqliteSaver.from_conn_string(tmp_path / "t.db", synchronous="off") as saver:
        writer = app.compile(saver)
        for n in range(70):
            written.append((writer.update_state(CONFIG, {"items": items}, as_node="keep"), items))
            newest, items = items, CHANGES[change](items, n)
            if n == 68:
                last = [items for _, items in written[-3:-1]]
                check()
        writer.update_state(written[0][0], {"other": 1}, as_node="keep")
        last, newest = [items for _, items in written[-2:]], written[0][1]
        check()


def test_links_that_lead_in_a_circle_are_damage(saver):
    for id, parent in (("1", None), ("2", "1"), ("3", "2")):
        saver.put(address("t", "", parent), checkpoint(id, id), {}, {"a": 1})
    saver._database.execute("UPDATE checkpoints SET link = seq WHERE checkpoint_id = '3'")
    with pytest.raises(DamagedError, match="checkpoint '2' is missing"):
        saver.get_tuple(address("t", ""))


def test_checkpoints_that_are_each_others_parents_end_without_one(saver):
    found = []
    for each in (InMemorySaver(), saver):
        each.put(address("t", "", "2"), checkpoint("1", 1), {}, {"a": 1})
        each.put(address("t", "", "1"), checkpoint("2", 2), {}, {"a": 1})
        each.prune(["t"], keep_last=1)
        found.append([*each.list(address("t", ""))])
    assert found[0] == found[1]
    assert found[1][0].parent_config is None


# -- what tasks wrote, in the row of the checkpoint that came of it ---------------------------------------------


class Shouted(TypedDict):
    log: Annotated[list[str], lambda old, new: old + [f"{word}!" for word in new]]


def looped(saver, word="x", steps=4, schema=Log, **place):
    """A thread of some supersteps, each of which adds a word."""
    app = (
        chain_of(schema, add=lambda state: {"log": [word]})
        .add_conditional_edges("add", lambda state: "add" if len(state["log"]) < steps else END)
        .compile(saver)
    )
    app.invoke(EMPTY, {"configurable": {"thread_id": "t", **place}, "run_id": f"run-{word}-{steps}"})
    return app


def written(saver):
    """What was written in each superstep of the thread, as listed, oldest first; read one by one, it is the same."""
    listed = [*saver.list(address("t", ""))]
    for found in listed:
        assert saver.get_tuple(found.config) == found
    return [[write[1:] for write in found.pending_writes] for found in listed][::-1]


def rows(saver: SqliteSaver, table):
    return saver._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.mark.parametrize(("length", "rows_beside"), [(1, 0), (5000, 4)])
def test_short_writes_are_stored_in_the_row_of_their_checkpoint_and_long_ones_in_their_own(saver, length, rows_beside):
    memory = InMemorySaver()
    looped(saver, "x" * length, schema=Shouted), looped(memory, "x" * length, schema=Shouted)
    assert rows(saver, "writes") == rows_beside
    assert written(saver) == written(memory)
    assert written(saver)[1][0] == ("log", ["x" * length])


def test_what_a_value_ends_with_is_not_stored_again_as_what_was_written(saver):
    memory = InMemorySaver()
    looped(saver, "x" * 5000), looped(memory, "x" * 5000)
    assert rows(saver, "writes") == 0
    (longest,) = saver._database.execute("SELECT max(length(body)) FROM checkpoints").fetchone()
    assert longest < 5500  # the name of the run has 5000, too
    assert written(saver) == written(memory)
    saver.copy_thread("t", "copy")
    assert [found.pending_writes for found in saver.list(address("copy", ""))] == [
        found.pending_writes for found in saver.list(address("t", ""))
    ]


@pytest.mark.parametrize("word", ["x", "x" * 99])
@pytest.mark.parametrize("forget", ["run", "put again"])
def test_writes_of_tasks_outlive_the_checkpoint_made_from_them(saver, forget, word):
    looped(saver, word)
    before = written(saver)
    child = [*saver.list(address("t", ""))][1]  # of the step before the last
    if forget == "run":
        saver._database.execute("UPDATE checkpoints SET run_id = 'other' WHERE checkpoint_id = ?", [child.checkpoint["id"]])
        saver.delete_for_runs(["other"])
        del before[-2]
    else:
        parent = child.parent_config
        assert parent is not None
        saver.put(parent, child.checkpoint, child.metadata, {})
        before = [*before[:-2], before[-1], before[-2]]
    assert written(saver) == before


def test_a_fork_does_not_hide_what_its_parent_wrote_first(saver):
    memory = InMemorySaver()
    found = []
    for each in (saver, memory):
        app = looped(each)
        second = [*each.list(address("t", ""))][-2]
        app.invoke(None, second.config)
        found.append(written(each))
    assert found[0] == found[1]


def test_a_damaged_checkpoint_leaves_the_one_before_it_readable(saver):
    looped(saver)
    last, before, *_ = [*saver.list(address("t", ""))]
    saver._database.execute(
        "UPDATE checkpoints SET body = CAST(substr(body, 1, 20) || x'00' || substr(body, 22) AS BLOB) WHERE checkpoint_id = ?",
        [last.checkpoint["id"]],
    )
    with pytest.raises(DamagedError):
        saver.get_tuple(last.config)
    with pytest.raises(DamagedError):
        [*saver.list(address("t", ""))]
    assert saver.get_tuple(before.config) == before._replace(pending_writes=[], spans={})


def test_a_copied_thread_has_the_writes_of_its_tasks(saver):
    looped(saver)
    before = written(saver)
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    saver.copy_thread("copy", "t")
    assert written(saver) == before


@pytest.mark.parametrize("which", ["", "-wal"])
@pytest.mark.parametrize("fault", ["deleted", "replaced", "moved"])
@each_durability
def test_a_missing_file_is_detected_at_the_next_commit(drive, tmp_path, fault, which, durability):
    """Else steps are told stored that nobody can find again: SQLite goes on writing into a file without a name."""
    file = tmp_path / f"threads.db{which}"

    def spoil(state):
        if fault == "moved":
            file.rename(tmp_path / "elsewhere")
        else:
            file.unlink()
        if fault == "replaced":
            file.write_bytes(b"")
        return {"log": ["lost"]}

    name = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(name) as saver, SqliteStore.from_conn_string(name) as store:
        thread = drive.on(graph("S>x", checkpointer=saver))
        thread.invoke({"log": ["in"]})
        store.put(("a",), "k", {})
        spoiled = graph("S>x", x=spoil, checkpointer=saver)
        with pytest.raises(StorageError, match="was deleted or replaced while it was open"):
            drive.invoke(spoiled, {"log": ["again"]}, CONFIG, durability=durability)
        with pytest.raises(StorageError, match="was deleted or replaced while it was open"):
            drive.call(store, "put", ("a",), "lost", {})
        if fault == "moved":
            (tmp_path / "elsewhere").rename(file)
            thread.invoke({"log": ["back"]})


def test_a_database_in_memory_has_no_file_to_watch():
    for name in (":memory:", "", "file:shared?mode=memory&cache=shared", "file:/nowhere?vfs=memdb"):
        with SqliteSaver.from_conn_string(name) as saver:
            app = graph("S>x", checkpointer=saver)
            assert app.invoke({"log": ["in"]}, CONFIG)["log"] == ["in", "x"]


@pytest.mark.trial
@pytest.mark.parametrize("index", ["checkpoints_by_space", "checkpoints_by_id", "channel_values_by_owner"])
def test_a_flipped_bit_in_an_index_makes_no_history_shorter(tmp_path, index):
    file = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        app = graph("S>x", x=says("x" * 100), checkpointer=saver)
        for turn in range(3):
            app.invoke({"log": [f"{turn}"]}, CONFIG)
        before = [*saver.list(CONFIG)]
        (page,) = saver._database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
    data = file.read_bytes()
    refused = 0
    for at in (at for at in range((page - 1) * 4096, page * 4096) if data[at]):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        file.write_bytes(changed)
        with SqliteSaver.from_conn_string(str(file), synchronous="off") as saver:
            for limit in (None, 4):
                try:
                    assert [*saver.list(CONFIG, limit=limit)] == before[:limit]
                except (DamagedError, StorageError):
                    refused += 1
            for found in before[1:4]:
                try:
                    assert saver.get_tuple(found.config) == found
                except (DamagedError, StorageError):
                    refused += 1
    assert refused


@each_durability
def test_the_loser_of_a_race_gets_the_same_error_in_each_durability(drive, tmp_path, durability):
    """With "async" two runs that make the same of the same give it the same id: that is a race, not a broken database."""
    name = str(tmp_path / "t.db")
    with SqliteSaver.from_conn_string(name) as mine, SqliteSaver.from_conn_string(name) as theirs:
        winner = graph("S>x>y", checkpointer=theirs)
        told = []

        def overtaken(state):
            if not told:
                told.append(winner.invoke(None, CONFIG, durability=durability))
            return {"log": ["x"]}

        app = graph("S>x>y", x=overtaken, checkpointer=mine, interrupt_before=["x"])
        drive.invoke(app, {"log": ["in"]}, CONFIG)
        with pytest.raises(CheckpointConflictError):
            drive.invoke(app, None, CONFIG, durability=durability)
        assert app.get_state(CONFIG).values == told[0]


@pytest.mark.parametrize("kind", [SqliteSaver, SqliteStore, SqliteCache])
@pytest.mark.parametrize("name", ["postgresql://me:secret@db/orders", "host=db dbname=orders password=secret", "sqlite:///a.db"])
def test_the_address_of_a_server_makes_no_file(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="must be a file name, .* for Postgres use PostgresSaver") as refused:
        kind(name)
    assert "secret" not in str(refused.value)
    assert not [*tmp_path.iterdir()]
