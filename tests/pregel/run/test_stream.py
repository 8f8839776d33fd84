"""Streams: every mode's chunks, every envelope, the order of chunks, and readers that leave early."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest
from kit.drive import each_case, each_durability
from kit.graphs import CONFIG, chain_of

from stategraph.channels import BinaryOperatorAggregate, LastValue, UntrackedValue
from stategraph.checkpoint import InMemorySaver
from stategraph.pregel import (
    ChannelWriteEntry,
    ChannelWriteTupleEntry,
    GraphRecursionError,
    NodeBuilder,
    Pregel,
    Send,
)
from stategraph.pregel.names import TAG_HIDDEN, TASKS

MODES = ["values", "updates", "custom", "tasks", "checkpoints", "debug"]


def only(channel):
    return NodeBuilder().subscribe_only(channel)


def graph(nodes, saver=None, **kwargs):
    channels = {k: LastValue(object) for k in "abc"}
    channels |= {k: BinaryOperatorAggregate(list, operator.add) for k in ("x", "y")}
    kwargs = {"stream_channels": ["x", "y"], "output_channels": ["x", "y"], **kwargs}
    return Pregel(nodes=nodes, channels=channels, input_channels=["a", "x"], checkpointer=saver, **kwargs)


def chain(saver=None, **kwargs):
    """n1 writes x, n2 writes x and y."""
    nodes = {
        "n1": only("a").do(lambda _: ["1"]).write_to("x", "b"),
        "n2": only("b").do(lambda _: ["2"]).write_to("x", "y"),
    }
    return graph(nodes, saver, **kwargs)


INPUT = {"a": 0, "x": ["i"]}


# -- envelopes ------------------------------------------------------------------------------------------------


def test_one_mode_gives_bare_chunks_and_several_give_pairs(drive):
    bare = drive.stream(chain(), INPUT, stream_mode="updates")
    assert bare == [{"n1": {"x": ["1"]}}, {"n2": {"x": ["2"], "y": ["2"]}}]
    assert drive.stream(chain(), INPUT, stream_mode=["updates"]) == [("updates", chunk) for chunk in bare]
    assert drive.stream(chain(), INPUT, stream_mode=("updates",)) == [("updates", chunk) for chunk in bare]


def test_subgraphs_puts_the_namespace_first(drive):
    assert drive.stream(chain(), INPUT, stream_mode="updates", subgraphs=True)[0] == ((), {"n1": {"x": ["1"]}})
    assert drive.stream(chain(), INPUT, stream_mode=["updates"], subgraphs=True)[0] == (
        (), "updates", {"n1": {"x": ["1"]}},
    )  # fmt: skip


@each_case("mode", ["updates", ["updates"]])
@each_case("subgraphs", [False, True])
def test_version_two_has_one_shape_for_everything(drive, mode, subgraphs):
    chunks = drive.stream(chain(), INPUT, stream_mode=mode, subgraphs=subgraphs, version="v2")
    assert chunks[0] == {"type": "updates", "ns": (), "data": {"n1": {"x": ["1"]}}}


def test_values_of_version_two_have_interrupts_next_to_the_data(drive):
    from stategraph import interrupt

    app = graph({"ask": only("a").do(lambda _: [interrupt("why?")]).write_to("x")}, InMemorySaver())
    first, asked = drive.stream(app, INPUT, CONFIG, stream_mode="values", version="v2")[:2]
    assert (first["data"], first["interrupts"]) == ({"x": ["i"], "y": []}, ())
    assert asked["data"] == {"x": ["i"], "y": []}
    assert [question.value for question in asked["interrupts"]] == ["why?"]


def test_no_modes_give_no_chunks_but_run(drive):
    ran = []
    assert drive.stream(graph({"n": only("a").do(ran.append)}), INPUT, stream_mode=[]) == []
    assert ran == [0]


def test_the_graphs_own_mode_is_the_default(drive):
    assert drive.stream(chain(stream_mode="updates"), INPUT)[0] == {"n1": {"x": ["1"]}}
    assert drive.stream(chain(), INPUT)[0] == {"x": ["i"], "y": []}


def test_invoke_with_another_mode_is_the_list_of_its_chunks(drive):
    assert drive.invoke(chain(), INPUT, stream_mode="updates") == drive.stream(chain(), INPUT, stream_mode="updates")
    assert drive.invoke(chain(), INPUT, stream_mode=["values"])[-1] == ("values", {"x": ["i", "1", "2"], "y": ["2"]})


# -- values ---------------------------------------------------------------------------------------------------


def test_values_after_the_input_and_after_each_superstep(drive):
    assert drive.stream(chain(), INPUT, stream_mode="values") == [
        {"x": ["i"], "y": []}, {"x": ["i", "1"], "y": []}, {"x": ["i", "1", "2"], "y": ["2"]},
    ]  # fmt: skip


def test_values_only_when_a_shown_channel_was_written(drive):
    nodes = {"n1": only("a").write_to("b"), "n2": only("b").do(lambda _: []).write_to("x")}
    assert drive.stream(graph(nodes), {"a": 0}, stream_mode="values") == [{"x": [], "y": []}]
    assert drive.stream(chain(), INPUT, stream_mode="values", output_keys="y") == [["2"]]


def test_an_equal_value_written_again_still_shows(drive):
    nodes = {
        "n1": only("a").write_to(ChannelWriteEntry("c", 1), "b"),
        "n2": only("b").write_to(ChannelWriteEntry("c", 1)),
    }
    app = graph(nodes, stream_channels=["c"])
    assert drive.stream(app, {"a": 0}, stream_mode="values") == [{"c": 1}, {"c": 1}]


def test_a_resumed_run_first_shows_what_is_there(drive):
    thread = drive.on(chain(InMemorySaver()))
    thread.invoke(INPUT, interrupt_before=["n2"])
    assert thread.stream(None, stream_mode="values") == [
        {"x": ["i", "1"], "y": []}, {"x": ["i", "1", "2"], "y": ["2"]},
    ]  # fmt: skip


def test_a_reader_that_changes_what_it_got_does_not_change_the_run():
    found = []
    for chunk in chain().stream(INPUT, stream_mode="values"):
        found.append({k: [*v] for k, v in chunk.items()})
        chunk["x"].append("MUT")
        chunk["y"] = None
    assert found[-1] == {"x": ["i", "1", "2"], "y": ["2"]}


# -- updates --------------------------------------------------------------------------------------------------


def test_updates_of_each_kind_of_result(drive):
    nodes = {
        "dict": only("a").write_to(x=["1"], y=["2"]),
        "nothing": only("a"),
        "unseen": only("a").write_to("b"),
        "twice": only("a").write_to(ChannelWriteEntry("x", ["1"]), ChannelWriteEntry("x", ["2"]), y=["3"]),
    }
    chunks = drive.stream(graph(nodes), INPUT, stream_mode="updates")
    assert sorted(chunks, key=str) == [
        {"dict": {"x": ["1"], "y": ["2"]}},
        {"nothing": None},
        {"twice": [{"x": ["1"]}, {"x": ["2"]}, {"y": ["3"]}]},
        {"unseen": None},
    ]


def test_updates_are_limited_to_the_output_keys(drive):
    assert drive.stream(chain(), INPUT, stream_mode="updates", output_keys=["y"]) == [
        {"n1": None},
        {"n2": {"y": ["2"]}},
    ]
    assert drive.stream(chain(), INPUT, stream_mode="updates", output_keys="x") == [{"n1": ["1"]}, {"n2": ["2"]}]


def test_each_send_has_an_update_of_its_own(drive):
    nodes = {
        "plan": only("a").write_to(ChannelWriteTupleEntry(lambda _: [(TASKS, Send("w", [i])) for i in range(3)])),
        "w": only("b").write_to("x"),
    }
    chunks = drive.stream(graph(nodes), {"a": 0}, stream_mode="updates")
    assert chunks[0] == {"plan": None}
    assert sorted(chunks[1:], key=str) == [{"w": {"x": [i]}} for i in range(3)]


def test_hidden_nodes_never_show(drive):
    app = graph({"n": only("a").write_to(x=["1"]).meta(TAG_HIDDEN), "m": only("a").write_to(x=["2"])})
    chunks = drive.stream(app, INPUT, stream_mode=["updates", "tasks", "debug"])
    assert {name for _, chunk in chunks for name in ("n", "m") if f"'{name}'" in str(chunk)} == {"m"}


def test_a_failed_task_has_no_update(drive):
    seen = []
    app = graph({"bad": only("a").do(lambda _: 1 / 0).write_to("x")})
    with pytest.raises(ZeroDivisionError):
        drive.stream(app, INPUT, stream_mode="updates", each=seen.append)
    assert seen == []


def test_a_breakpoint_shows_as_an_empty_interrupt(drive):
    chunks = drive.stream(chain(), INPUT, stream_mode="updates", interrupt_before=["n2"])
    assert chunks == [{"n1": {"x": ["1"]}}, {"__interrupt__": ()}]
    chunks = drive.stream(chain(), INPUT, stream_mode="updates", interrupt_after=["n1"])
    assert chunks == [{"n1": {"x": ["1"]}}, {"__interrupt__": ()}]


def test_a_restored_task_shows_its_update_as_cached(drive):
    fail = [True]

    def bad(_):
        if fail.pop():
            raise ValueError
        return ["bad"]

    app = graph({"bad": only("a").do(bad).write_to("x"), "ok": only("a").write_to(x=["ok"])}, InMemorySaver())
    with pytest.raises(ValueError):
        drive.invoke(app, {"a": 0}, {**CONFIG, "max_concurrency": 1} if drive.is_async else CONFIG)
    fail.append(False)
    chunks = drive.stream(app, None, CONFIG, stream_mode="updates")
    if {"ok": {"x": ["ok"]}, "__metadata__": {"cached": True}} in chunks:
        assert chunks[-1] == {"bad": {"x": ["bad"]}}
    assert len(chunks) == 2


# -- tasks, checkpoints, debug --------------------------------------------------------------------------------


def test_tasks_show_start_and_result(drive):
    nodes = {
        "n": only("a").write_to(ChannelWriteEntry("x", ["1"]), ChannelWriteEntry("x", ["2"]), y=["3"]).meta("t", k=1)
    }
    start, end = drive.stream(graph(nodes), INPUT, {"metadata": {"u": 2}}, stream_mode="tasks")
    assert start == {"id": end["id"], "name": "n", "input": 0, "triggers": ("a",),
                     "metadata": {"u": 2, "k": 1, "tags": ["t"]}}  # fmt: skip
    assert end == {"id": end["id"], "name": "n", "error": None, "result": {"x": {"$writes": [["1"], ["2"]]}, "y": ["3"]},
                   "interrupts": []}  # fmt: skip


def test_a_failed_tasks_result_is_streamed_before_the_error_is_raised(drive):
    bad = only("a").do(lambda _: 1 / 0)
    for nodes in ({"bad": bad}, {"bad": bad, "ok": only("a")}):
        chunks = []
        with pytest.raises(ZeroDivisionError):
            drive.stream(graph(nodes), INPUT, stream_mode="tasks", each=chunks.append)
        [end] = [c for c in chunks if "result" in c and c["name"] == "bad"]
        assert (type(end["error"]), end["result"]) == (ZeroDivisionError, {})


def test_checkpoints_show_the_state_and_the_next_nodes(drive):
    thread = drive.on(chain(InMemorySaver()))
    chunks = thread.stream(INPUT, stream_mode="checkpoints")
    assert [(c["metadata"]["source"], c["metadata"]["step"], c["next"]) for c in chunks] == [
        ("input", -1, ["n1"]), ("loop", 0, ["n2"]), ("loop", 1, []),
    ]  # fmt: skip
    assert [c["values"] for c in chunks] == [s.values for s in reversed(thread.history())]
    assert [c["config"] for c in chunks] == [s.config for s in reversed(thread.history())]
    assert [c["parent_config"] for c in chunks] == [None, chunks[0]["config"], chunks[1]["config"]]
    [task] = chunks[0]["tasks"]
    assert task == {"id": task["id"], "name": "n1", "interrupts": (), "state": None}


def test_a_resumed_run_shows_the_checkpoint_it_resumes_from(drive):
    thread = drive.on(chain(InMemorySaver()))
    thread.invoke(INPUT, interrupt_before=["n2"])
    before = thread.state
    first, last = thread.stream(None, stream_mode="checkpoints")
    assert (first["config"], first["parent_config"], first["next"]) == (before.config, before.parent_config, ["n2"])
    assert (first["values"], first["metadata"]["step"], last["next"]) == (before.values, 0, [])
    [again] = thread.stream(None, stream_mode="checkpoints")
    assert again == last


def test_checkpoints_need_a_saver(drive):
    assert drive.stream(chain(), INPUT, stream_mode="checkpoints") == []


def test_the_last_checkpoint_shows_also_when_the_run_stops_early(drive):
    def steps(**options):
        app = chain(InMemorySaver())
        return [
            (c["metadata"]["step"], c["next"])
            for c in drive.stream(app, INPUT, CONFIG, stream_mode="checkpoints", **options)
        ]

    assert steps(interrupt_before=["n2"]) == [(-1, ["n1"]), (0, ["n2"])]
    assert steps(interrupt_after=["n1"]) == [(-1, ["n1"]), (0, ["n2"])]


def test_chunks_before_the_recursion_limit_are_delivered(drive):
    modes, config = [], {**CONFIG, "recursion_limit": 1}
    with pytest.raises(GraphRecursionError):
        drive.stream(
            chain(InMemorySaver()), INPUT, config, stream_mode=["updates", "checkpoints"], each=lambda c: modes.append(c[0])
        )
    assert modes == ["checkpoints", "updates", "checkpoints"]


def test_debug_wraps_tasks_and_checkpoints_with_step_and_time(drive):
    chunks = drive.stream(chain(InMemorySaver()), INPUT, CONFIG, stream_mode="debug")
    assert [(c["type"], c["step"]) for c in chunks] == [
        ("checkpoint", -1), ("task", 0), ("task_result", 0), ("checkpoint", 0), ("task", 1), ("task_result", 1),
        ("checkpoint", 1),
    ]  # fmt: skip
    assert all(c["timestamp"].endswith("+00:00") and set(c) == {"type", "step", "timestamp", "payload"} for c in chunks)
    assert chunks[1]["payload"]["name"] == "n1"


# -- order ----------------------------------------------------------------------------------------------------


def test_order_of_chunks_within_a_superstep(drive):
    def body(value, writer):
        writer("note")
        return ["1"]

    app = graph({"n": only("a").do(body).write_to("x")}, InMemorySaver())
    chunks = drive.stream(app, INPUT, CONFIG, stream_mode=["values", "updates", "custom", "tasks", "checkpoints"])
    assert [mode for mode, _ in chunks] == [
        "values", "checkpoints", "tasks", "custom", "updates", "tasks", "values", "checkpoints",
    ]  # fmt: skip


def test_task_starts_are_streamed_first_sends_in_order_then_nodes_by_name(drive):
    nodes = {
        "src": only("a").write_to("b", ChannelWriteTupleEntry(lambda _: [(TASKS, Send(n, 0)) for n in ("z", "q")])),
        **{n: only("b") for n in ("c", "b2")},
        **{n: only("c") for n in ("z", "q")},
    }
    chunks = drive.stream(graph(nodes), {"a": 0}, stream_mode="tasks")[2:]
    assert [c["name"] for c in chunks[:4]] == ["z", "q", "b2", "c"]
    assert all("result" in c for c in chunks[4:])


def test_a_finished_tasks_update_reaches_the_reader_while_its_sibling_runs(drive):
    release = threading.Event()

    def slow(_):
        assert release.wait(5)
        return ["s"]

    async def aslow(_):
        while not release.is_set():
            await asyncio.sleep(0)
        return ["s"]

    for body in [slow, aslow] if drive.is_async else [slow]:
        release.clear()
        app = graph({"fast": only("a").write_to(x=["f"]), "slow": only("a").do(body).write_to("y")})
        chunks = drive.stream(app, {"a": 0}, stream_mode="updates", each=lambda chunk: release.set())
        assert chunks == [{"fast": {"x": ["f"]}}, {"slow": {"y": ["s"]}}]


# -- custom events --------------------------------------------------------------------------------------------


@each_case("limit", [None, 1])
@each_case("nodes", [1, 2])
def test_custom_events_reach_the_reader_while_the_node_runs(drive, limit, nodes):
    """The node waits until its reader has seen the event: no reading ahead, no deadlock at one thread."""
    seen = [threading.Event() for _ in range(nodes)]

    def body(index):
        def run(value, writer):
            writer(index)
            assert seen[index].wait(5)
            return [index]

        async def arun(value, writer):
            writer(index)
            while not seen[index].is_set():
                await asyncio.sleep(0)
            return [index]

        return run, arun

    for kind in (0, 1) if drive.is_async else (0,):
        app = graph({f"n{i}": only("a").do(body(i)[kind]).write_to("x") for i in range(nodes)})
        config = {"max_concurrency": limit}
        found = drive.stream(app, {"a": 0}, config, stream_mode="custom", each=lambda index: seen[index].set())
        assert sorted(found) == list(range(nodes))
        for each in seen:
            each.clear()


def test_each_tasks_own_events_keep_their_order(drive):
    def body(name):
        def run(value, writer):
            for i in range(20):
                writer((name, i))

        return run

    chunks = drive.stream(graph({n: only("a").do(body(n)) for n in "pqr"}), {"a": 0}, stream_mode="custom")
    for name in "pqr":
        assert [i for n, i in chunks if n == name] == list(range(20))


def test_custom_writes_are_dropped_unless_custom_was_requested(drive):
    app = graph({"n": only("a").do(lambda value, writer: writer("lost"))})
    assert "lost" not in str(drive.stream(app, {"a": 0}, stream_mode=["values", "updates", "tasks"]))


def test_events_of_a_failed_attempt_stay_in_the_stream(drive):
    from stategraph import RetryPolicy

    tries = []

    def body(value, writer):
        tries.append(1)
        writer(len(tries))
        if len(tries) < 3:
            raise ConnectionError

    node = only("a").do(body).add_retry_policies(RetryPolicy(initial_interval=0, jitter=False))
    assert drive.stream(graph({"n": node}), {"a": 0}, stream_mode="custom") == [1, 2, 3]


# -- nested graphs --------------------------------------------------------------------------------------------


def nested():
    def note(value, writer):
        writer("inside")
        return ["s"]

    inner = Pregel(nodes={"s": only("a").do(note).write_to("x")}, output_channels="x",
                   channels={"a": LastValue(object), "x": LastValue(list)}, input_channels="a")  # fmt: skip
    return graph({"sub": only("a").do(inner).write_to("x")})


def test_a_nested_graph_is_invisible_but_for_its_custom_events_without_subgraphs(drive):
    chunks = drive.stream(nested(), {"a": 0}, stream_mode=["updates", "values", "tasks"])
    assert "'s'" not in str([c for m, c in chunks if m == "updates" and "sub" not in c])
    assert [c for m, c in chunks if m == "updates"] == [{"sub": {"x": ["s"]}}]


def test_subgraphs_show_under_their_tasks_namespace_before_the_parents_own_event(drive):
    chunks = drive.stream(nested(), {"a": 0}, stream_mode=["updates", "custom", "tasks"], subgraphs=True)
    [task] = [c for ns, m, c in chunks if m == "tasks" and c["name"] == "sub" and "input" in c]
    ns = (f"sub:{task['id']}",)
    inside = [(m, c) for n, m, c in chunks if n == ns]
    assert [m for m, _ in inside] == ["tasks", "custom", "updates", "tasks"]
    assert inside[1:3] == [("custom", "inside"), ("updates", {"s": {"x": ["s"]}})]
    assert [c for n, m, c in chunks if m == "updates"] == [{"s": {"x": ["s"]}}, {"sub": {"x": ["s"]}}]


@pytest.mark.parametrize("limit", [None, 1])
def test_nested_graphs_in_parallel_nodes_stream_and_end(drive, limit):
    inner = nested()
    app = graph(
        {f"n{i}": only("a").do(lambda _: {"a": 0}).do(inner).do(lambda s: s["x"]).write_to("x") for i in range(4)}
    )
    chunks = drive.stream(app, {"a": 0}, {"max_concurrency": limit}, stream_mode=["updates", "custom"], subgraphs=True)
    assert sum(m == "custom" for _, m, _ in chunks) == 4
    assert len({ns for ns, m, _ in chunks if m == "custom"}) == 4
    assert sorted(c["sub"]["x"][0] for ns, m, c in chunks if m == "updates" and "sub" in c) == ["s"] * 4


# -- leaving early --------------------------------------------------------------------------------------------


def test_nothing_runs_before_the_first_chunk_is_asked_for():
    ran = []
    source = graph({"n": only("a").do(ran.append)}).stream({"a": 0})
    source.close()
    assert ran == []


def test_the_next_superstep_waits_for_the_reader():
    ran = []
    app = graph(
        {"n1": only("a").do(lambda _: ran.append("n1")).write_to("b"), "n2": only("b").do(lambda _: ran.append("n2"))}
    )
    source = app.stream({"a": 0}, stream_mode="updates")
    next(source)
    assert ran == ["n1"]
    list(source)
    assert ran == ["n1", "n2"]


def test_closing_waits_for_running_threads_and_keeps_their_results():
    started, release = threading.Event(), threading.Event()
    runs = []

    def slow(_):
        runs.append("slow")
        started.set()
        assert release.wait(5)
        return ["slow"]

    def fast(_):
        runs.append("fast")
        assert started.wait(5)
        return ["fast"]

    app = graph({"fast": only("a").do(fast).write_to("x"), "slow": only("a").do(slow).write_to("x")}, InMemorySaver())
    source = app.stream({"a": 0}, CONFIG, stream_mode="updates")
    assert next(source) == {"fast": {"x": ["fast"]}}
    threading.Thread(target=release.set).start()
    source.close()
    assert release.is_set()
    assert app.get_state(CONFIG).values["x"] == ["fast", "slow"]
    assert app.invoke(None, CONFIG)["x"] == ["fast", "slow"]
    assert runs.count("fast") == runs.count("slow") == 1


async def test_closing_an_async_stream_cancels_what_runs_and_keeps_what_has_ended():
    runs = []
    cancelled = asyncio.Event()
    forever = [True]

    async def slow(_):
        runs.append("slow")
        try:
            if forever.pop():
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ["slow"]

    async def fast(_):
        runs.append("fast")
        return ["fast"]

    app = graph(
        {"fast": only("a").do(fast).write_to("x"), "slow": only("a").do(slow).write_to("x")}, InMemorySaver()
    )
    source = app.astream({"a": 0}, CONFIG, stream_mode="updates")
    assert await anext(source) == {"fast": {"x": ["fast"]}}
    await source.aclose()
    assert cancelled.is_set()
    assert (await app.aget_state(CONFIG)).next == ("slow",)
    forever.append(False)
    assert (await app.ainvoke(None, CONFIG))["x"] == ["fast", "slow"]
    assert (runs.count("fast"), runs.count("slow")) == (1, 2)


@each_durability
def test_every_mode_at_once_at_every_point_of_leaving(drive, durability):
    total = len(drive.stream(chain(InMemorySaver()), INPUT, CONFIG, stream_mode=MODES, durability=durability))
    for take in range(total):
        thread = drive.on(chain(InMemorySaver()))
        thread.stream(INPUT, stream_mode=MODES, take=take, durability=durability)
        if take:
            assert thread.invoke(None) == {"x": ["i", "1", "2"], "y": ["2"]}, take


class Odds(TypedDict, total=False):
    x: Annotated[Any, UntrackedValue]
    log: Annotated[list[str], operator.add]


def test_a_step_is_kept_whose_end_cannot_be_shown():
    class Odd(dict):
        def get(self, key, default=None):
            if key == "id":
                raise RuntimeError("it has no id yet")
            return super().get(key, default)

    runs = []

    def speak(state):
        runs.append("speak")
        return {"x": Odd(role="user", content="hi"), "log": ["speak"]}

    chain = chain_of(Odds, speak=speak, last=lambda state: {"log": ["last"]})
    app = chain.compile(InMemorySaver())
    with pytest.raises(RuntimeError, match="no id yet"):
        [*app.stream({"log": []}, CONFIG, stream_mode="messages")]
    assert app.get_state(CONFIG).next == ("last",)
    assert app.invoke(None, CONFIG)["log"] == ["speak", "last"] and runs == ["speak"]
