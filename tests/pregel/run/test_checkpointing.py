"""Checkpoints of a run: what each durability stores and when, what a resume runs, get_state, history, replays and
forks.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from collections import Counter

import pytest
from kit.drive import each_case, each_durability
from kit.graphs import CONFIG, Count, chain_of, graph_of

from stategraph import Runtime
from stategraph.channels import BinaryOperatorAggregate, LastValue, NamedBarrierValue, Topic
from stategraph.checkpoint import InMemorySaver, Serializer
from stategraph.pregel import (
    ChannelWriteEntry,
    CheckpointConflictError,
    InvalidUpdateError,
    NodeBuilder,
    Pregel,
)

WAIT = 5.0


def only(channel):
    return NodeBuilder().subscribe_only(channel)


def graph(nodes, saver=None, **kwargs):
    channels = {k: LastValue(object) for k in "abcd"}
    channels["log"] = BinaryOperatorAggregate(list, operator.add)
    kwargs = {"output_channels": "log", **kwargs}
    return Pregel(nodes=nodes, channels=channels, input_channels="a", checkpointer=saver or InMemorySaver(), **kwargs)


def chain(saver=None, calls=None, **kwargs):
    def body(name):
        def run(_):
            if calls is not None:
                calls[name] += 1
            return [name]

        return run

    return graph(
        {
            "n1": only("a").do(body("n1")).write_to("log", ChannelWriteEntry("b", 1)),
            "n2": only("b").do(body("n2")).write_to("log", ChannelWriteEntry("c", 1)),
            "n3": only("c").do(body("n3")).write_to("log"),
        },
        saver, **kwargs,
    )  # fmt: skip


def at(snapshot):
    return snapshot.metadata["source"], snapshot.metadata["step"]


# -- the record (M20) -----------------------------------------------------------------------------------------


def test_m20_a_checkpoint_per_superstep_with_its_parent_and_the_writes_that_led_on(drive):
    nodes = {"n1": only("a").do(lambda x: x + 1).write_to("b"), "n2": only("b").do(lambda x: x + 1).write_to("c")}
    app = graph(nodes, output_channels="c")
    assert [drive.invoke(app, i, CONFIG) for i in (1, 10)] == [3, 12]
    found = [*app.checkpointer.list(CONFIG)][::-1]
    assert [(t.metadata["source"], t.metadata["step"]) for t in found] == [
        ("input", -1), ("loop", 0), ("loop", 1), ("input", 2), ("loop", 3), ("loop", 4),
    ]  # fmt: skip
    assert [{k: t.checkpoint["channel_values"].get(k) for k in "abc"} for t in found] == [
        {"a": 1, "b": None, "c": None}, {"a": 1, "b": 2, "c": None}, {"a": 1, "b": 2, "c": 3},
        {"a": 10, "b": 2, "c": 3}, {"a": 10, "b": 11, "c": 3}, {"a": 10, "b": 11, "c": 12},
    ]  # fmt: skip
    assert [tuple(t.checkpoint["channel_versions"].get(k) for k in "abc") for t in found] == [
        (1, None, None), (1, 2, None), (1, 2, 3), (4, 2, 3), (4, 5, 3), (4, 5, 6),
    ]  # fmt: skip
    seen = [t.checkpoint["versions_seen"] for t in found]
    assert [each["__input__"] for each in seen] == [{}] * 6
    assert [(each.get("n1"), each.get("n2")) for each in seen] == [
        (None, None), ({"a": 1}, None), *[({"a": 1}, {"b": 2})] * 2, ({"a": 4}, {"b": 2}), ({"a": 4}, {"b": 5}),
    ]  # fmt: skip
    assert [t.checkpoint["updated_channels"] for t in found] == [["a"], ["b"], ["c"]] * 2
    assert [[(c, v) for _, c, v in t.pending_writes] for t in found] == [
        [("b", 2)], [("c", 3)], [], [("b", 11)], [("c", 12)], [],
    ]  # fmt: skip
    assert [t.parent_config for t in found] == [None, *(t.config for t in found[:-1])]
    assert set(found[0].checkpoint) == {
        "v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels",
    }  # fmt: skip
    assert all(
        t.metadata["parents"] == {} and t.checkpoint["id"] == t.config["configurable"]["checkpoint_id"] for t in found
    )


def test_plain_settings_of_the_config_are_kept_in_metadata(drive):
    app = chain()
    drive.invoke(app, 1, {"configurable": {"thread_id": "t", "user": "u", "__hidden": 1, 5: 6},
                          "metadata": {"who": "me", "flt": 1.5, "list": [1], "nul": "x\0y", 3: 4}})  # fmt: skip
    assert drive.get_state(app, CONFIG).metadata == {
        "source": "loop", "step": 2, "parents": {}, "user": "u", "who": "me", "flt": 1.5, "nul": "xy",
    }  # fmt: skip
    assert [s.metadata["who"] for s in drive.history(app, CONFIG)] == ["me"] * 4


# -- resume after an error (M19) ------------------------------------------------------------------------------


class Careful(InMemorySaver):
    """Not quick, so that early finishers are recorded on their own."""

    in_memory = False


@pytest.mark.parametrize("saver", [InMemorySaver, Careful])
@each_durability
@pytest.mark.parametrize("watch", ["tasks", None])
def test_m19_a_resume_runs_only_what_failed(drive, saver, durability, watch):
    calls = Counter()
    ok_ended = threading.Event()

    def ok(_, runtime):
        calls["ok"] += 1
        return [f"ok {len(runtime.execution_info.task_id)}"]

    def bad(_):
        calls["bad"] += 1
        if calls["bad"] < 3:
            raise ValueError(f"try {calls['bad']}")
        return ["bad"]

    nodes = {
        "first": only("a").do(lambda _: calls.update(["first"])).write_to(ChannelWriteEntry("b", 1)),
        "ok": only("b").do(ok).write_to("log"),
        "slow_bad": only("b").do(bad).write_to("log"),
        "last": only("log"),
    }
    thread = drive.on(graph(nodes, saver()))
    given = 1
    for attempt in (1, 2):
        with pytest.raises(ValueError, match=f"try {attempt}"):
            # One at a time, so that `ok` has ended when `slow_bad` fails, in both worlds.
            thread.stream(given, {**CONFIG, "max_concurrency": 1}, durability=durability, stream_mode=watch or "values"
            )
        given = None
        snapshot = thread.state
        assert (snapshot.next, snapshot.values["log"], at(snapshot)) == (("slow_bad",), ["ok 36"], ("loop", 0))
        assert {t.name: (t.result, str(t.error)) for t in snapshot.tasks} == {
            "ok": ({"log": ["ok 36"]}, "None"), "slow_bad": (None, f"try {attempt}"),
        }  # fmt: skip
    assert thread.invoke(None, durability=durability) == ["ok 36", "bad"]
    assert calls == {"first": 1, "ok": 1, "bad": 3}
    assert not ok_ended.is_set()


def test_conflicting_writes_leave_the_thread_unchanged(drive):
    def nodes(second):
        return {"x": only("a").write_to("b", "log"), "y": only("a").write_to(second, "log")}

    for durability in ("sync", "async", "exit"):
        for saver in (InMemorySaver(), Careful()):
            thread = drive.on(graph(nodes("b"), saver))
            for given_input in ([1], None):
                with pytest.raises(InvalidUpdateError, match="'b'") as caught:
                    thread.invoke(given_input, durability=durability)
                assert "written by x, y" in " ".join(caught.value.__notes__)
                snapshot = thread.state
                assert (snapshot.next, snapshot.values) == (("x", "y"), {"a": [1], "log": []})
                assert len(thread.history()) == 1
            assert drive.invoke(graph(nodes("c"), saver), None, CONFIG) == [1, 1], "mended code goes on from there"


def test_an_unserializable_value_is_named_and_leaves_the_thread_unchanged(drive):
    thread = drive.on(graph({"n": only("a").do(lambda x: object() if x else [x]).write_to("b", "log")}))
    with pytest.raises(Exception, match="object") as caught:
        thread.invoke(1)
    assert "'b'" in caught.value.__notes__[0]
    assert "'t'" in caught.value.__notes__[0]
    assert thread.invoke(0) == [0]


# -- looking (M22) --------------------------------------------------------------------------------------------


def test_m22_history_is_newest_first_with_next_nodes(drive):
    thread = drive.on(chain())
    thread.invoke(1)
    history = thread.history()
    assert [(at(s), s.next, s.values["log"]) for s in history] == [
        (("loop", 2), (), ["n1", "n2", "n3"]), (("loop", 1), ("n3",), ["n1", "n2"]), (("loop", 0), ("n2",), ["n1"]),
        (("input", -1), ("n1",), []),
    ]  # fmt: skip
    assert [s.parent_config for s in history] == [*(s.config for s in history[1:]), None]
    assert [[(t.name, t.path, t.result) for t in s.tasks] for s in history[1:3]] == [
        [("n3", ("__pregel_pull", "n3"), {"log": ["n3"]})], [("n2", ("__pregel_pull", "n2"), {"log": ["n2"], "c": 1})],
    ]  # fmt: skip
    assert thread.state == history[0]
    assert all(thread.get_state(s.config) == s for s in history)
    assert all(thread.history(s.config) == [s] for s in history)


def test_values_of_a_single_stream_channel_are_bare(drive):
    thread = drive.on(chain(stream_channels="log"))
    thread.invoke(1)
    assert [s.values for s in thread.history()] == [["n1", "n2", "n3"], ["n1", "n2"], ["n1"], []]
    assert thread.history()[1].tasks[0].result == ["n3"]


def test_get_state_neither_runs_nor_stores_anything(drive):
    calls = Counter()
    app = chain(calls=calls)
    thread = drive.on(app)
    thread.invoke(1, interrupt_before=["n2"])
    before = [*app.checkpointer.list(CONFIG)]
    thread.get_state()
    thread.history()
    assert calls == {"n1": 1}
    assert [*app.checkpointer.list(CONFIG)] == before


# -- history does not change ----------------------------------------------------------------------------------


class Later(InMemorySaver):
    """Stores in the background, once it is allowed to: by then the run has gone on."""

    in_memory = False

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def commit(self, commits):
        self.gate.wait(0.002)  # long enough for a superstep of a run that does not wait
        super().commit(commits)


@each_case("saver", [InMemorySaver, Later])
@each_case("durability", ["sync", "async"])
def test_history_keeps_old_values_even_if_reducers_mutate_in_place(drive, saver, durability):
    def extend(old, new):
        old.extend(new)
        return old

    nodes = {
        "n": only("a").do(lambda _: ["n"]).write_to("r", "t", ChannelWriteEntry("bar", "n"), ChannelWriteEntry("b", 1)),
        "m": only("b").do(lambda _: ["m"]).write_to("r", "t", ChannelWriteEntry("bar", "m")),
    }
    channels = {"a": LastValue(int), "b": LastValue(int), "r": BinaryOperatorAggregate(list, extend),
                "t": Topic(str, accumulate=True), "bar": NamedBarrierValue(str, {"n", "m", "x"})}  # fmt: skip
    app = Pregel(nodes=nodes, channels=channels, input_channels="a", output_channels="r", checkpointer=saver())
    drive.invoke(app, 1, CONFIG, durability=durability)
    stored = [t.checkpoint["channel_values"] for t in app.checkpointer.list(CONFIG)]
    assert [v.get("r", []) for v in stored] == [["n", "m"], ["n"], []]
    assert [v.get("t", []) for v in stored] == [["n", "m"], ["n"], []]
    assert [v.get("bar", set()) for v in stored] == [{"n", "m"}, {"n"}, set()]


def test_changing_a_snapshot_does_not_change_the_thread(drive):
    thread = drive.on(chain())
    thread.invoke(1)
    snapshot = thread.state
    snapshot.values["log"].append("MUT")
    snapshot.metadata["step"] = 99
    assert thread.log == ["n1", "n2", "n3"]
    assert thread.state.metadata["step"] == 2


# -- durability (D8) ------------------------------------------------------------------------------------------


class Noting(InMemorySaver):
    """Counts what comes in, and may hold back or fail."""

    in_memory = False

    def __init__(self, fail_at=None):
        super().__init__()
        self.steps = []
        self.fail_at = fail_at

    def commit(self, commits):
        commit = commits[-1]
        if commit.metadata["step"] == self.fail_at:
            raise OSError("disk full")
        super().commit(commits)
        self.steps.append(commit.metadata["step"])


def test_sync_stores_a_step_before_its_chunk_reaches_the_reader():
    for mode in ("values", "updates", "tasks"):
        saver = Noting()
        seen = [saver.steps[-1] for _ in chain(saver).stream(1, CONFIG, stream_mode=mode)]
        assert seen == {"values": [0, 1, 2], "updates": [0, 1, 2], "tasks": [-1, 0, 0, 1, 1, 2]}[mode] or (
            mode == "values" and seen == [-1, 0, 1, 2]
        )


def test_sync_stores_a_step_before_the_next_one_starts(drive):
    saver = Noting()
    seen = []
    nodes = {
        "n1": only("a").do(lambda _: seen.append([*saver.steps])).write_to(ChannelWriteEntry("b", 1)),
        "n2": only("b").do(lambda _: seen.append([*saver.steps])).write_to(ChannelWriteEntry("c", 1)),
    }
    drive.invoke(graph(nodes, saver), 1, CONFIG)
    assert seen == [[-1], [-1, 0]]


def test_exit_stores_once(drive):
    saver = Noting()
    thread = drive.on(chain(saver))
    thread.invoke(1, durability="exit")
    assert saver.steps == [2]
    [snapshot] = thread.history()
    assert (at(snapshot), snapshot.parent_config, snapshot.values["log"]) == (("loop", 2), None, ["n1", "n2", "n3"])
    thread.invoke(1, durability="exit")
    assert [at(s) for s in thread.history()] == [("loop", 6), ("loop", 2)]


class Held(Noting):
    """A commit of step 0 ends only when allowed to."""

    def __init__(self, fail_at=None):
        super().__init__(fail_at)
        self.arrived, self.allowed = threading.Event(), threading.Event()

    def commit(self, commits):
        commit = commits[-1]
        if commit.metadata["step"] == 0:
            self.arrived.set()
            assert self.allowed.wait(WAIT)
        super().commit(commits)


def test_async_runs_at_most_one_superstep_ahead_of_storage(drive):
    saver = Held()
    ran = []
    two_ran = threading.Event()

    def body(name):
        def run(_):
            ran.append(name)
            if name == "n2":
                assert saver.arrived.wait(WAIT)
                assert saver.steps == [-1], "step 0 is not stored yet"
                two_ran.set()
            if name == "n3":
                assert 0 in saver.steps

        return run

    nodes = {
        "n1": only("a").do(body("n1")).write_to(ChannelWriteEntry("b", 1)),
        "n2": only("b").do(body("n2")).write_to(ChannelWriteEntry("c", 1)),
        "n3": only("c").do(body("n3")),
    }
    helper = threading.Thread(target=lambda: (two_ran.wait(WAIT), saver.allowed.set()))
    helper.start()
    drive.invoke(graph(nodes, saver), 1, CONFIG, durability="async")
    helper.join()
    assert ran == ["n1", "n2", "n3"]
    assert saver.steps == [-1, 0, 1, 2], "in order, and all there when the call returns"


def test_async_has_finished_saving_when_an_error_reaches_the_caller(drive):
    saver = Held()
    nodes = {
        "n1": only("a").write_to(ChannelWriteEntry("b", 1)),
        "n2": only("b").do(lambda _: (saver.allowed.set(), 1 / 0)),
    }
    thread = drive.on(graph(nodes, saver))
    with pytest.raises(ZeroDivisionError):
        thread.invoke(1, durability="async")
    assert saver.steps == [-1, 0]
    [task] = thread.state.tasks
    assert type(task.error) is ZeroDivisionError


@each_durability
@pytest.mark.parametrize("step", [-1, 0, 1, 2])
def test_a_failed_save_stops_the_run_and_resume_continues_from_the_last_checkpoint(drive, durability, step):
    calls = Counter()
    app = chain(Noting(step), calls)
    thread = drive.on(app)
    if durability == "exit" and step < 2:
        thread.invoke(1, durability=durability)
        return
    with pytest.raises(OSError, match="disk full"):
        thread.invoke(1, durability=durability)
    assert app.checkpointer.steps == ([] if durability == "exit" else list(range(-1, step)))
    assert sum(calls.values()) <= step + 1 + (durability == "async")
    app.checkpointer.fail_at = None
    given = None if app.checkpointer.steps else 1
    assert thread.invoke(given) == ["n1", "n2", "n3"]


class Late(Noting):
    """A step cannot be stored, which is told only when what runs ahead of it has begun."""

    def __init__(self, fail_at):
        super().__init__(fail_at)
        self.ahead = threading.Event()

    def commit(self, commits):
        commit = commits[-1]
        if commit.checkpoint_ns:
            InMemorySaver.commit(self, commits)
            return
        if commit.metadata["step"] == self.fail_at:
            assert self.ahead.wait(WAIT)
        super().commit(commits)


    async def acommit(self, commits):
        await asyncio.to_thread(self.commit, commits)


@pytest.mark.parametrize("same", [True, False])
def test_idempotency_keys_survive_a_lost_checkpoint_only_if_the_state_is_equal(drive, same):
    """Keys that stayed although the state is another would make receivers drop what is new (RELIABILITY R3)."""
    saver, keys, drawn = Late(1), [], iter([1, 1 if same else 2])

    def note(state, runtime: Runtime):
        keys.append((state["n"], runtime.idempotency_key))
        saver.ahead.set()
        return {}

    inner = chain_of(Count, inner=note)
    outer = graph_of(
        Count, "S>draw>nested draw>plain", draw=lambda state: {"n": next(drawn)}, nested=inner.compile(), plain=note
    )
    thread = drive.on(outer.compile(saver))
    with pytest.raises(OSError, match="disk full"):
        thread.invoke({"n": 0}, durability="async")
    before = list(keys)  # of one node, or of both
    assert {n for n, _ in before} == {1}
    space = saver._threads["t"][""]
    assert space.writes.keys() <= space.records.keys(), "nothing waits for a checkpoint that was not stored"
    keys.clear()
    saver.fail_at = None
    thread.invoke(None, durability="async")
    if same:
        assert len({key for _, key in [*before, *keys]}) == 2
    else:
        assert {key for _, key in before}.isdisjoint(key for _, key in keys)


@pytest.mark.parametrize(("run_id", "ran"), [("order-7", 1), (None, 2)])
def test_a_run_with_an_id_starts_no_node_before_its_input_is_stored(drive, run_id, ran):
    saver, keys = Late(-1), []
    if run_id:
        saver.ahead.set()  # nothing runs ahead

    def note(_, runtime: Runtime):
        keys.append(runtime.idempotency_key)
        saver.ahead.set()

    app = graph({"note": only("a").do(note)}, saver)
    for fail_at in (-1, None):
        saver.fail_at = fail_at
        try:
            drive.invoke(app, 1, {**CONFIG, "run_id": run_id} if run_id else CONFIG, durability="async")
        except OSError:
            continue
    assert len(keys) == len(set(keys)) == ran


def test_a_step_that_could_not_be_stored_is_not_shown(drive):
    chunks = []
    with pytest.raises(OSError):
        drive.stream(chain(Noting(1)), 1, CONFIG, stream_mode="updates", each=chunks.append)
    assert [name for chunk in chunks for name in chunk] == ["n1"]


def test_a_node_error_and_a_failed_save_are_both_raised(drive):
    class Failing(Careful):
        def record(self, *args):
            raise OSError("disk full")

    app = graph({"bad": only("a").do(lambda _: 1 / 0), "ok": only("a").write_to("b")}, Failing())
    with pytest.raises((ZeroDivisionError, OSError)) as caught:
        drive.invoke(app, 1, CONFIG)
    shown = [repr(caught.value), *getattr(caught.value, "__notes__", ()), repr(caught.value.__context__)]
    assert "disk full" in " ".join(shown)


def test_durability_without_a_saver_is_pointless_and_harmless(drive):
    app = graph({"n": only("a")})
    app.checkpointer = None
    for durability in ("sync", "async", "exit"):
        with pytest.warns(UserWarning, match="durability has no effect"):
            drive.invoke(app, 1, durability=durability)


# -- one writer per thread (D12) ------------------------------------------------------------------------------


@each_durability
def test_two_runs_on_one_thread_conflict_and_do_not_fork_it(drive, durability):
    """The second run starts and ends inside a node of the first, on the same thread."""
    app = chain()
    inner = chain(app.checkpointer)
    threads = []

    def meddle(_):
        other = threading.Thread(target=lambda: inner.invoke(1, CONFIG))
        other.start()
        other.join(WAIT)
        return ["meddled"]

    outer = graph(
        {"n1": only("a").do(meddle).write_to("log", ChannelWriteEntry("b", 1)), "n2": only("b")}, app.checkpointer
    )
    with pytest.raises(CheckpointConflictError, match="'t'") as caught:
        drive.invoke(outer, 1, CONFIG, durability=durability)
    head = drive.get_state(app, CONFIG)
    assert head.values["log"] == ["n1", "n2", "n3"]
    assert head.config["configurable"]["checkpoint_id"] in str(caught.value)
    assert drive.invoke(inner, 1, CONFIG) == ["n1", "n2", "n3"] * 2
    assert not threads


# -- replay and fork ------------------------------------------------------------------------------------------


def test_a_fork_that_is_the_head_is_not_forked_again(drive):
    thread = drive.on(chain())
    thread.invoke(1)
    then = thread.history()[2]
    thread.invoke(None, then.config, interrupt_before=["n2"])
    thread.stream(None, then.config, take=1)
    fork = thread.state
    assert at(fork)[0] == "fork"
    count = len(thread.history())
    assert thread.invoke(None, fork.config) == ["n1", "n2", "n3"]
    assert len(thread.history()) == count + 2


# -- what is encoded --------------------------------------------------------------------------------------------


class Counting(Serializer):
    """Notes how often each text is encoded by itself."""

    def __init__(self):
        super().__init__()
        self.texts = Counter()

    def dumps(self, value):
        if isinstance(value, str):
            self.texts[value] += 1
        return super().dumps(value)


def test_a_value_that_a_task_wrote_is_encoded_once(drive):
    serde = Counting()
    thread = drive.on(graph({"n": only("a").do(lambda _: "long text").write_to("b")}, InMemorySaver(serde=serde)))
    thread.invoke(1)
    assert serde.texts == {"long text": 1}
    assert [s.values.get("b") for s in thread.history()] == ["long text", None]


def test_what_a_reducer_makes_of_a_write_is_what_is_stored(drive):
    """A reducer may give back the very object that was written, changed."""

    def onto(old, new):
        new.extend(old)
        return new

    channels = {"a": LastValue(int), "log": BinaryOperatorAggregate(list, onto)}
    thread = drive.on(Pregel(
        nodes={"n": only("a").do(lambda a: [a]).write_to("log")},
        channels=channels,
        input_channels="a",
        output_channels="log",
        checkpointer=InMemorySaver(),
    ))
    for number in (1, 2):
        thread.invoke(number)
    assert thread.log == [2, 1]
