"""What is special about the saver in memory, and about savers that inherit: what all savers promise is checked by
`stategraph.testing`, in test_conformance."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.graphs import CONFIG, EMPTY, Log, chain_of
from kit.pausing_graphs import says

from stategraph.checkpoint import (
    BaseCheckpointSaver,
    CheckpointConflictError,
    InMemorySaver,
    MemorySaver,
    Registry,
    Serializer,
    TaskWrites,
    UnserializableError,
)
from stategraph.checkpoint.base import address
from stategraph.checkpoint.memory_chain import KEYFRAME, Chain, DeltaBlob
from stategraph.checkpoint.serde.delta import RUN, SharedBlob
from stategraph.testing import Commits, Harness, SaverChecks
from stategraph.testing.harness import checkpoint, long_run


class InMemory(SaverChecks):
    """Opens one, or hands out the saver that it was given."""

    durable = False

    def __init__(self, saver=None):
        self.saver = saver

    def open(self, folder):
        return self.saver or InMemorySaver()


@pytest.fixture
def desk(drive, tmp_path):
    with Harness(InMemory(), tmp_path, "async" if drive.is_async else "sync") as opened:
        yield opened


def threads(desk: Harness):
    return desk.saver._threads  # type: ignore[attr-defined]


# -- put and list -----------------------------------------------------------------------------------------------


def test_a_refused_value_is_named_by_channel_and_place(desk):
    desk.put("1", {"a": 1})
    with pytest.raises(UnserializableError, match=r"at \['b'\]\['x'\]\[0\]: cannot store _thread.lock"):
        desk.put("2", {"a": 2, "b": {"x": [threading.Lock()]}}, parent="1")
    with pytest.raises(UnserializableError, match=r"at \['w'\]: cannot store"):
        desk.write("1", [("v", 1), ("w", print)])


def test_a_listing_continues_though_its_thread_was_deleted(desk):
    desk.put("1")
    desk.put("2")
    listing = desk.saver.list(None)
    assert next(listing).checkpoint["id"] == "2"
    desk.put("3")
    desk.call("delete_thread", "t")
    assert [found.checkpoint["id"] for found in listing] == ["1"]


def test_a_checkpoint_is_read_with_what_stood_beside_it_then():
    saver = InMemorySaver()
    app = chain_of(Log, a=says("a"), b=says("b")).compile(saver, interrupt_before=["b"])
    app.invoke(EMPTY, CONFIG)
    lock = saver._lock

    class Released:
        """Another thread goes on as soon as the lock is free."""

        def __enter__(self):
            lock.acquire()

        def __exit__(self, *_):
            lock.release()
            saver._lock = lock
            app.invoke(None, CONFIG)

    saver._lock = Released()
    found = saver.get_tuple(CONFIG)
    assert (found.checkpoint["channel_values"]["log"], found.pending_writes) == (["a"], [])
    assert app.get_state(CONFIG).values == {"log": ["a", "b"]}


def test_the_newest_of_many_threads_are_listed_without_a_look_at_the_others(monkeypatch):
    """PERFORMANCE P41."""
    saver, looked_at = InMemorySaver(), []
    for number in range(100):
        saver.put(address(f"{number}", ""), checkpoint(f"{number:03}", {"a": number}, {"a": 1}), {}, {"a": 1})
    saver.put(address("7", "", "007"), checkpoint("100", {"a": 7}, {"a": 2}), {}, {"a": 2})
    find = Chain.newest
    monkeypatch.setattr(Chain, "newest", lambda chain: looked_at.append(chain) or find(chain))
    assert [found.checkpoint["id"] for found in saver.list(None, limit=4)] == ["100", "099", "098", "097"]
    assert len(looked_at) <= 5


def test_threads_stand_in_the_order_of_what_is_left(desk):
    for thread in "abc":
        desk.put(f"{thread}1", thread=thread, run_id="r1")
    for thread in "ab":
        desk.put(f"{thread}2", thread=thread, parent=f"{thread}1", run_id=f"{thread}2")
    assert [*desk.saver.threads()] == ["b", "a", "c"]
    desk.call("delete_for_runs", ["b2"])
    assert [*desk.saver.threads()] == ["a", "c", "b"]
    assert [found.checkpoint["id"] for found in desk.saver.list(None, limit=3)] == ["a2", "c1", "b1"]
    desk.call("copy_thread", "c", "d")
    assert [*desk.saver.threads()] == ["d", "a", "c", "b"]
    desk.call("delete_thread", "a")
    assert [*desk.saver.threads()] == ["d", "c", "b"]


# -- what is let go ---------------------------------------------------------------------------------------------


def test_threads_of_which_all_runs_were_deleted_are_let_go(desk):
    desk.put("1", {"a": 1}, run_id="r1")
    desk.put("n", ns="n", run_id="r3")
    desk.put("x", thread="u", run_id="r4")
    desk.call("delete_for_runs", ["r3", "r4"])
    assert set(threads(desk)) == {"t"}
    assert set(threads(desk)["t"]) == {""}
    with pytest.raises(TypeError, match=r"pass \['r1'\]"):
        desk.call("delete_for_runs", "r1")


def test_prune_lets_go_of_what_it_drops(desk):
    for step in range(10):
        desk.put(str(step), {"a": step}, parent=str(step - 1) if step else None)
    desk.call("prune", ["t"], keep_last=3)
    assert sorted(held(desk.saver)) == ["7", "8", "9"]
    desk.put("10", {"a": 10}, parent="9")
    assert [desk.values(id)["a"] for id in desk.ids()] == [10, 9, 8, 7]


def test_a_list_that_is_read_while_others_prune_is_as_of_one_moment(desk):
    for id in ("1", "2", "3"):
        desk.put(id, {"a": id})
        desk.write(id, [("a", id)])
    listed = desk.saver.list(CONFIG)
    next(listed)
    desk.call("prune", ["t"])
    assert [(found.checkpoint["id"], found.pending_writes) for found in listed] == [
        ("2", [("task", "a", "2")]),
        ("1", [("task", "a", "1")]),
    ]


def held(saver):
    """The ids of all records that can be reached from the saver."""
    waiting = [r for spaces in saver._threads.values() for space in spaces.values() for r in space.records.values()]
    for record in waiting:
        if record.link is not None and record.link not in waiting:
            waiting.append(record.link)
    return {record.id for record in waiting}


def test_a_conflict_on_an_empty_thread_leaves_nothing_behind(desk):
    run = desk.run()
    run.head, run.expected = "gone", {"gone": checkpoint("gone", {}, {})}
    with pytest.raises(CheckpointConflictError):
        run.step("1", a=1)
    assert not threads(desk)


# -- the chain --------------------------------------------------------------------------------------------------


def test_a_long_thread_has_a_keyframe_every_so_many_records(desk):
    run = desk.run()
    long_run(run)
    desk.reads_back(run)
    records = threads(desk)["t"][""].records.values()
    assert max(record.distance for record in records) == KEYFRAME - 1
    assert sum(record.link is None for record in records) == -(-200 // KEYFRAME)


def stored_entries(saver):
    """How many values, versions and seen entries all records hold together."""
    records = [r for spaces in saver._threads.values() for space in spaces.values() for r in space.records.values()]
    return sum(len(r.values) + len(r.versions) + len(r.seen) for r in records)


def test_memory_grows_with_what_changed(desk):
    keys, steps = 64, 320
    run = desk.run()
    run.step("start", **{f"k{key}": 0 for key in range(keys)})
    long_run(run, steps, keys)
    changed = 2 * keys + steps * 4
    keyframes = steps // KEYFRAME * (2 * keys + 6)
    assert stored_entries(desk.saver) <= changed + keyframes
    by_put = InMemorySaver()
    parent = None
    for id, each in run.expected.items():
        new = {name: each["channel_versions"][name] for name in each["updated_channels"] or ()}
        by_put.put(address("t", "", parent), each, {}, new)
        parent = id
    assert all(by_put.get(address("t", "", id)) == each for id, each in run.expected.items())
    assert stored_entries(by_put) <= changed + keyframes


operations = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 4), st.integers() | st.just(...)),
        st.tuples(st.sampled_from(["append", "edit", "cut"]), st.integers(0, 30), st.none()),
        st.tuples(st.just("fork"), st.integers(0, 30), st.integers()),
        st.tuples(st.just("put"), st.integers(0, 30), st.sets(st.integers(0, 4))),
        st.tuples(st.just("prune"), st.integers(1, 20), st.none()),
        st.tuples(st.just("drop"), st.sets(st.integers(0, 5), max_size=2), st.none()),
        st.tuples(st.just("copy"), st.none(), st.none()),
    ),
    max_size=60,
)


def changed(log, kind, size, id):
    """A list of long texts that was appended to, edited or cut."""
    at = size % (len(log) or 1)
    return {
        "append": [*log, *[f"{id:060}"] * (size % 4)],
        "edit": [*log[:at], f"edited in {id}", *log[at + 1 :]],
        "cut": log[size % 6 :],
    }[kind]


@given(operations)
def test_any_history_reads_back_as_a_plain_dict_would(script):
    saver = InMemorySaver()
    run = Commits(lambda method, *args: getattr(saver, method)(*args), saver)
    run.step("start", log=[f"{number:060}" for number in range(5)])
    left, copies = ["start"], 0
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
        elif kind == "copy":
            if left:
                copies += 1
                saver.copy_thread("t", f"copy {copies}")
                assert saver.get(address(f"copy {copies}", "", run.head)) == run.expected[run.head]
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
            values = run.expected[parent]["channel_values"] if parent else {}
            if kind in ("step", "fork"):
                run.step(id, parent=parent, **{f"k{one % 5}": two})
            else:
                run.step(id, parent=parent, log=changed(values.get("log", []), kind, one, id))
            left.append(id)
    assert [found.checkpoint["id"] for found in saver.list(address("t", ""))] == left[::-1]
    assert all(saver.get(address("t", "", id)) == run.expected[id] for id in left)
    assert copies or held(saver) <= set(left)


# -- long values ------------------------------------------------------------------------------------------------


def stored_values(saver):
    """The long values of all records, as they are stored."""
    records = [r for spaces in saver._threads.values() for space in spaces.values() for r in space.records.values()]
    return [each for record in records for name, each in record.values.items() if name == "log"]


def test_a_list_that_grows_is_stored_once(desk):
    """PERFORMANCE P40: whatever its length, reading it takes one copy and no delta."""
    run = desk.run()
    log = [f"{number:0200}" for number in range(10)]
    for step in range(200):
        run.step(str(step), log=[*log])
        log.append(f"{step:0200}")
    desk.reads_back(run)
    first, *grown = stored_values(desk.saver)
    assert not isinstance(first, SharedBlob)
    assert len({id(each.buffer) for each in grown}) == 1
    assert len(grown[0].buffer) <= 203 * 210 + 20


@pytest.mark.trial
@pytest.mark.parametrize("edit", [0, 5, -1])
def test_an_edited_list_takes_few_deltas_to_read(desk, edit):
    run = desk.run()
    log = [f"{number:0200}" for number in range(100)]
    for step in range(200):
        run.step(str(step), log=[*log])
        log[edit] = f"{step:0200}"
        log.append(f"{step:0200}")
    desk.reads_back(run)
    deltas = [len(each.deltas) for each in stored_values(desk.saver) if isinstance(each, DeltaBlob)]
    assert max(deltas) <= 2 * RUN
    assert len(deltas) >= 150


def test_what_a_deleted_run_appended_is_let_go(desk):
    log = [f"{number:0200}" for number in range(10)]
    for step in range(10):
        desk.put(str(step), {"log": [*log]}, parent=str(step - 1) if step else None, run_id="a" if step < 5 else "b")
        log.append(f"secret {step}" * 20)
    desk.call("copy_thread", "t", "copy")
    desk.call("delete_for_runs", ["b"])
    assert [len(desk.values(str(step))["log"]) for step in range(5)] == [10, 11, 12, 13, 14]
    assert not any(b"secret 7" in each.buffer for each in stored_values(desk.saver) if isinstance(each, SharedBlob))


# -- the rest ---------------------------------------------------------------------------------------------------


def test_the_inherited_commit_works_on_put_and_put_writes(drive, tmp_path):
    class Bare(BaseCheckpointSaver):
        """What a user's own saver needs at least."""

        def __init__(self):
            super().__init__()
            self.inner = InMemorySaver()
            self.get_tuple = self.inner.get_tuple  # type: ignore[method-assign]
            self.put = self.inner.put  # type: ignore[method-assign]
            self.put_writes = self.inner.put_writes  # type: ignore[method-assign]

        def list(self, config, **options):
            return self.inner.list(config, **options)

    with Harness(InMemory(Bare()), tmp_path, "async" if drive.is_async else "sync") as desk:
        run = desk.run()
        long_run(run, 10)
        desk.reads_back(run)
        assert desk.ids() == [str(step) for step in reversed(range(10))]
        assert desk.head() == "9"
        run.step("x", a=1, writes=[("task", [("a", 1)])])
        desk.record(None, {"x": [TaskWrites("task", "", [("b", run.dumps(2))])]})
        assert desk.pending("9") == [("task", "a", 1)]
        assert desk.pending("x") == [("task", "b", 2)]


def test_a_serializer_of_your_own(drive, tmp_path):
    @dataclass
    class Mine:
        a: int

    serializer = Serializer(Registry())
    serializer.register(Mine)
    with Harness(InMemory(MemorySaver(serde=serializer)), tmp_path, "async" if drive.is_async else "sync") as desk:
        desk.put("1", {"a": Mine(1)})
        assert desk.values() == {"a": Mine(1)}
