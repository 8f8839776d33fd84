"""Raw Pregel: what a hand-written graph may contain, what it refuses, and what `invoke` does with it, sync and async."""

from __future__ import annotations

import operator
import threading

import pytest
from kit.drive import each_case, each_durability
from kit.graphs import thread_config

from stategraph import interrupt
from stategraph.channels import (
    BaseChannel,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    UntrackedValue,
)
from stategraph.checkpoint import InMemorySaver
from stategraph.pregel import (
    PASSTHROUGH,
    SKIP_WRITE,
    ChannelWrite,
    ChannelWriteEntry,
    ChannelWriteTupleEntry,
    Command,
    EmptyInputError,
    GraphRecursionError,
    InvalidGraphError,
    InvalidUpdateError,
    NodeBuilder,
    Pregel,
    PregelNode,
    Send,
)
from stategraph.pregel.names import TASKS

Cfg = thread_config("1")


def on(*channels):
    return NodeBuilder().subscribe_to(*channels)


def only(channel):
    return NodeBuilder().subscribe_only(channel)


def cells(names, kind=LastValue):
    return {name: kind(object) for name in names}


def app(nodes, channels, inputs="a", outputs="o", **kwargs):
    return Pregel(nodes=nodes, channels=channels, input_channels=inputs, output_channels=outputs, **kwargs)


def seen_by(builder: NodeBuilder, drive, input, channels="abco", inputs=("a", "b", "c")):
    """What a node with these subscriptions is called with; None if it never is."""
    seen = []
    graph = app({"n": builder.do(lambda value: seen.append(value)), "sink": on(*inputs)}, cells(channels), inputs)
    drive.invoke(graph, input)
    return seen[0] if seen else None


# -- what a node reads ----------------------------------------------------------------------------------------


@each_case(
    "builder, input, seen",
    [
        (lambda: only("a"), {"a": 1}, 1),
        (lambda: on("a"), {"a": 1}, {"a": 1}),
        (lambda: on("a", "b"), {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (lambda: on("a", "b"), {"b": 2}, {"b": 2}),
        (lambda: NodeBuilder().subscribe_to("a", read=False), {"a": 1, "b": 2}, {}),
        (lambda: NodeBuilder().subscribe_to("a", read=False).read_from("b"), {"a": 1, "b": 2}, {"b": 2}),
        (lambda: NodeBuilder().subscribe_to("a", read=False).read_from("b"), {"a": 1}, {}),
        (lambda: on("a").read_from("b"), {"b": 2}, None),
        (lambda: on("a").read_from("a", "b"), {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (lambda: NodeBuilder().subscribe_to("a", read=False).subscribe_only("b"), {"a": 1, "b": 2}, 2),
        (lambda: NodeBuilder().subscribe_to("a", read=False).subscribe_only("b"), {"b": 2}, 2),
        (lambda: NodeBuilder().subscribe_to("a", read=False).subscribe_only("b"), {"a": 1}, None),
    ],
)
def test_forms_of_subscribing(drive, builder, input, seen):
    assert seen_by(builder(), drive, input) == seen


def test_none_is_a_value_like_any_other(drive):
    assert seen_by(on("a", "b"), drive, {"a": None}) == {"a": None}


@each_case(
    "wrong",
    [
        lambda: only("a").subscribe_only("b"),
        lambda: on("a").subscribe_only("b"),
        lambda: NodeBuilder().read_from("a").subscribe_only("b"),
        lambda: only("a").subscribe_to("b"),
        lambda: only("a").read_from("b"),
    ],
)
def test_a_bare_input_and_a_dict_do_not_mix(wrong):
    with pytest.raises(ValueError, match=r"'a'.*|subscribe_only"):
        wrong()


# -- what a node calls ----------------------------------------------------------------------------------------


def test_without_a_body_the_input_goes_to_the_writers(drive):
    assert drive.invoke(app({"n": only("a").write_to("o")}, cells("ao")), 5) == 5


def test_several_bodies_run_in_a_row(drive):
    node = only("a").do(lambda x: x + 1).do(lambda x: x * 10).write_to("o")
    assert drive.invoke(app({"n": node}, cells("ao")), 1) == 20


def test_a_row_may_mix_plain_and_async_functions_in_an_async_run():
    import asyncio

    async def times_ten(value):
        return value * 10

    graph = app({"n": only("a").do(lambda x: x + 1).do(times_ten).do(lambda x: x - 1).write_to("o")}, cells("ao"))
    assert asyncio.run(graph.ainvoke(1)) == 19
    with pytest.raises(TypeError, match="node 'n' is async"):
        graph.invoke(1)


def test_an_object_with_invoke_is_a_body(drive):
    class Doubler:
        def invoke(self, value):
            return 2 * value

        async def ainvoke(self, value):
            return 2 * value

    assert drive.invoke(app({"n": only("a").do(Doubler()).write_to("o")}, cells("ao")), 4) == 8


def test_a_node_without_body_and_writes_runs_and_shows_as_none(drive):
    graph = app({"n": only("a")}, cells("ao"))
    assert drive.stream(graph, 1, stream_mode="updates") == [{"n": None}]


def test_a_handmade_node_without_writers_runs_too(drive):
    ran = []
    graph = app({"n": PregelNode(channels="a", triggers=["a"], bound=ran.append)}, cells("ao"))
    drive.invoke(graph, 1)
    assert ran == [1]


# -- what a node writes ---------------------------------------------------------------------------------------


def test_forms_of_writing(drive):
    node = (
        only("a")
        .do(lambda x: x + 1)
        .write_to(
            "o",
            ChannelWriteEntry("m", mapper=lambda x: x * 10),
            ChannelWriteEntry("k", 77),
            ChannelWriteEntry("km", 7, mapper=lambda x: x + 1),
            ChannelWriteEntry("skipped", None, skip_none=True),
            ChannelWriteEntry("none", None),
            ChannelWriteEntry("marker", mapper=lambda _: SKIP_WRITE),
            ChannelWriteEntry("marker", mapper=lambda _: None, skip_none=True),
            ChannelWriteEntry("p", PASSTHROUGH),
            ChannelWriteTupleEntry(lambda x: [("t1", x), ("t2", -x)]),
            ChannelWriteTupleEntry(lambda x: None),
            ChannelWriteTupleEntry(lambda x: [("t3", x)], 9),
            u=5,
            v=lambda x: x - 1,
        )
    )
    outputs = ["o", "m", "k", "km", "skipped", "none", "marker", "p", "t1", "t2", "t3", "u", "v"]
    graph = app({"n": node}, {k: LastValue(object) for k in ["a", *outputs]}, outputs=outputs)
    assert drive.invoke(graph, 1) == {
        "o": 2, "m": 20, "k": 77, "km": 8, "none": None, "p": 2, "t1": 2, "t2": -2, "t3": 9, "u": 5, "v": 1,
    }  # fmt: skip


def test_writes_are_in_the_order_declared(drive):
    node = (
        only("a")
        .write_to(ChannelWriteEntry("o", [1]), ChannelWriteEntry("o", [2]), o=[3])
        .write_to(ChannelWriteEntry("o", [4]))
    )
    graph = app({"n": node}, {"a": LastValue(int), "o": BinaryOperatorAggregate(list, operator.add)})
    assert drive.invoke(graph, 0) == [1, 2, 3, 4]


def test_a_send_is_allowed_among_the_writes(drive):
    plan = PregelNode(channels="a", triggers=["a"], writers=[ChannelWrite([Send("work", 7)])])
    nodes = {"plan": plan, "work": only("never").write_to("o")}
    assert drive.invoke(app(nodes, {**cells("ao"), "never": LastValue(int)}), 0) == 7


def test_a_command_is_a_plain_value_for_a_raw_node(drive):
    command = Command(update={"x": 1})
    assert drive.invoke(app({"n": only("a").do(lambda _: command).write_to("o")}, cells("ao")), 0) is command


@pytest.mark.parametrize("bad", [Send("wrok", 1), "work", None])
def test_a_send_to_an_unknown_node_fails_in_its_task_and_leaves_the_thread_unchanged(drive, bad):
    node = only("a").write_to(ChannelWriteTupleEntry(lambda x: [(TASKS, bad)] if x else [("o", x)]))
    thread = drive.on(app({"n": node, "work": on("o")}, cells("ao"), checkpointer=InMemorySaver()), Cfg)
    with pytest.raises(InvalidUpdateError, match="node 'n'"):
        thread.invoke(1)
    assert thread.state.next == ("n",)
    assert thread.invoke(0) == 0


def test_a_built_node_does_not_change_with_its_builder():
    builder = only("a").do(lambda x: x).write_to("b").meta("t", k=1)
    node = builder.build()
    before = (node.triggers, len(node.bound), len(node.writers[0].writes), node.tags, node.metadata)
    builder.write_to("c").do(lambda x: x).meta("u", l=2).add_retry_policies()
    assert before == (node.triggers, len(node.bound), len(node.writers[0].writes), node.tags, node.metadata)


def test_meta_reaches_the_config_of_the_task(drive):
    def body(value, config):
        return {k: config[k] for k in ("tags", "metadata", "run_name")}

    node = only("a").do(body).meta("t1").meta("t2", k="v").write_to("o")
    found = drive.invoke(app({"n": node}, cells("ao")), 1, {"tags": ["call", "t1"], "metadata": {"mine": 1}})
    assert (found["tags"], found["run_name"]) == (["call", "t1", "t2"], "n")
    metadata = found["metadata"]
    assert (metadata["mine"], metadata["k"], metadata["stategraph_node"], metadata["stategraph_step"]) == (
        1,
        "v",
        "n",
        0,
    )
    assert metadata["stategraph_triggers"] == ("a",)
    assert metadata["stategraph_path"] == ("__pregel_pull", "n")


# -- what a graph refuses -------------------------------------------------------------------------------------


def mistakes(**kwargs):
    with pytest.raises(InvalidGraphError) as caught:
        app(**{"nodes": {"n": only("a").write_to("o")}, "channels": cells("ao"), **kwargs})
    return str(caught.value)


@each_case(
    "change, sentence",
    [
        ({"nodes": {"n": on("a", "x")}}, "node 'n' subscribes to unknown channel 'x'"),
        ({"nodes": {"n": on("a").read_from("x")}}, "node 'n' reads unknown channel 'x'"),
        ({"nodes": {"n": PregelNode(channels="x", triggers=["a"])}}, "node 'n' reads 'x', which is not a channel"),
        ({"nodes": {"n": only("a").write_to("x")}}, "node 'n' writes to the unknown channel 'x'"),
        ({"nodes": {"n": only("a").write_to(TASKS)}}, "reserved channel '__pregel_tasks'"),
        ({"nodes": {"n": lambda x: x}}, "node 'n' must be a PregelNode or NodeBuilder, got function"),
        ({"nodes": {}}, "no node subscribes to the input channels ['a']"),
        ({"nodes": {"__interrupt__": only("a")}}, "node '__interrupt__' has a reserved name"),
        ({"nodes": {"x|y": only("a")}}, "separators in namespaces"),
        ({"nodes": {"x:y": only("a")}}, "separators in namespaces"),
        ({"nodes": {"n": PregelNode(channels="a", triggers=["a"], writers=[ChannelWriteEntry("o")])}}, "ChannelWrite"),
        ({"inputs": "x"}, "input channel 'x' does not exist"),
        ({"inputs": "o"}, "no node subscribes to the input channels ['o']"),
        ({"inputs": []}, "no node subscribes to the input channels []"),
        ({"outputs": "x"}, "output channel 'x' does not exist"),
        ({"outputs": ["o", "x"]}, "output channel 'x' does not exist"),
        ({"stream_channels": ["x"]}, "stream channel 'x' does not exist"),
        ({"channels": {**cells("ao"), "__input__": LastValue(int)}}, "channel '__input__': the name is reserved"),
        ({"channels": {**cells("ao"), "b": int}}, "channel 'b' must be a channel instance, got type"),
        ({"channels": {**cells("ao"), "b": LastValue}}, "channel 'b' must be a channel instance, got type"),
        ({"channels": {**cells("ao"), TASKS: LastValue(int)}}, "must be a Topic"),
        ({"interrupt_before_nodes": ["x"]}, "a breakpoint names the unknown node 'x'"),
        ({"interrupt_after_nodes": ["x"]}, "a breakpoint names the unknown node 'x'"),
    ],
)
def test_each_mistake_gets_a_sentence(change, sentence):
    assert sentence in mistakes(**change)


def test_all_mistakes_are_named_at_once():
    text = mistakes(nodes={"n": on("a", "x1").write_to("x2"), "m": 5}, outputs="x3", stream_channels=["x4"])
    assert [name for name in ("x1", "x2", "'m'", "x3", "x4") if name not in text] == []


def test_a_mistake_names_the_nearest_name():
    assert "did you mean 'answer'?" in mistakes(
        channels={**cells("ao"), "answer": LastValue(int)}, nodes={"n": only("a").write_to("anwser")}
    )


def test_a_body_that_cannot_be_called_names_its_node():
    with pytest.raises(TypeError, match="node 'n' must be a function"):
        app({"n": only("a").do(5)}, cells("ao"))


def test_only_the_first_of_a_row_may_ask_for_more_than_the_input():
    with pytest.raises(InvalidGraphError, match=r"node 'n'.*only the first"):
        app({"n": only("a").do(lambda x: x).do(lambda x, config: x)}, cells("ao"))


def test_the_callers_channels_are_not_changed(drive):
    channels = cells("ao")
    drive.invoke(app({"n": only("a").write_to("o")}, channels), 1)
    assert list(channels) == ["a", "o"]
    assert not channels["o"].is_available()
    assert channels["o"].key == ""


# -- input and output -----------------------------------------------------------------------------------------


def test_one_input_channel_takes_the_bare_value_and_a_list_takes_a_dict(drive):
    assert drive.invoke(app({"n": only("a").write_to("o")}, cells("ao")), {"a": 1}) == {"a": 1}
    assert drive.invoke(app({"n": only("a").write_to("o")}, cells("ao"), ["a"], ["o", "a"]), {"a": 1}) == {
        "o": 1,
        "a": 1,
    }


def test_a_dict_output_contains_only_channels_with_a_value(drive):
    assert drive.invoke(app({"n": only("a").write_to("o")}, cells("aox"), outputs=["x", "o"]), 1) == {"o": 1}


def test_unknown_input_keys_are_ignored(drive):
    assert drive.invoke(app({"n": only("a").write_to("o")}, cells("ao"), ["a"]), {"a": 1, "zz": 2}) == 1


@pytest.mark.parametrize("empty", [None, {}, {"zz": 1}])
def test_an_input_without_an_input_channel_is_refused(drive, empty):
    with pytest.raises(EmptyInputError, match="input"):
        drive.invoke(app({"n": only("a").write_to("o")}, cells("ao"), ["a"]), empty)


def test_the_current_output_is_returned_when_a_call_wrote_none(drive):
    """D3: the last view of this call; if there was none, the channels as they stand."""
    node = only("a").write_to(ChannelWriteEntry("o", mapper=lambda x: x if x else SKIP_WRITE))
    graph = app({"n": node}, cells("ao"), checkpointer=InMemorySaver())
    assert drive.invoke(graph, 5, Cfg) == 5
    assert drive.invoke(graph, 0, Cfg) == 5
    assert drive.invoke(app({"n": node}, cells("ao")), 0) is None


def test_a_volatile_output_is_the_last_one_shown_in_this_call(drive):
    nodes = {"n": only("a").write_to("o", "b"), "m": only("b").write_to("c")}
    assert drive.invoke(app(nodes, {**cells("abc"), "o": EphemeralValue(int)}), 5) == 5


# -- the articles' examples (MISSION M1-M11, M14) ---------------------------------------------------------------


def test_m1_tasks_read_the_values_frozen_at_the_start_of_their_superstep(drive):
    """Two nodes that swap two values see each other's old one."""
    nodes = {"x": on("a", "b").do(lambda s: s["b"]).write_to("a"), "y": on("a", "b").do(lambda s: s["a"]).write_to("b")}
    graph = app(nodes, cells("ab"), ["a", "b"], ["a", "b"])
    with pytest.raises(GraphRecursionError):
        drive.invoke(graph, {"a": 1, "b": 2}, {"recursion_limit": 1})
    chunks = []
    for limit in (1, 2):
        graph = app(nodes, cells("ab"), ["a", "b"], ["a", "b"], checkpointer=InMemorySaver())
        with pytest.raises(GraphRecursionError):
            drive.invoke(graph, {"a": 1, "b": 2}, {**Cfg, "recursion_limit": limit})
        chunks.append(drive.get_state(graph, Cfg).values)
    assert chunks == [{"a": 2, "b": 1}, {"a": 1, "b": 2}]


def test_m2_a_channel_of_the_users_decides_how_to_update(drive):
    class Max(BaseChannel[int, int, int]):
        __slots__ = ("value",)

        def __init__(self, typ, key=""):
            super().__init__(typ, key)
            self.value = 0

        def from_checkpoint(self, stored):
            new = Max(self.typ, self.key)
            new.value = stored if isinstance(stored, int) else 0
            return new

        def get(self):
            return self.value

        def update(self, values):
            best = max([self.value, *values])
            changed, self.value = best != self.value, best
            return changed

    graph = app({n: only("a").do(lambda _, i=i: i).write_to("o") for i, n in enumerate("xyz")},
                {**cells("a"), "o": Max(int)})  # fmt: skip
    assert drive.invoke(graph, 1) == 2


def test_m7_untracked_values_are_in_no_checkpoint(drive):
    nodes = {"x": only("a").write_to("u", "b"), "y": on("b").read_from("u").do(lambda s: s["u"]).write_to("o")}
    graph = app(nodes, {**cells("abo"), "u": UntrackedValue(int)}, checkpointer=InMemorySaver())
    assert drive.invoke(graph, 5, Cfg) == 5
    history = drive.history(graph, Cfg)
    assert [sorted(snapshot.values) for snapshot in history] == [["a", "b", "o"], ["a", "b"], ["a"]]
    assert all("u" not in write[1] for t in graph.checkpointer.list(Cfg) for write in t.pending_writes)


@each_durability
def test_untracked_values_of_a_send_are_in_no_checkpoint(drive, durability):
    """The task that follows sees them; once it is loaded again, it does not."""
    lock, seen = threading.Lock(), []

    def work(state):
        seen.append(state)
        return interrupt("ok?")

    nodes = {
        "plan": only("a").write_to(ChannelWriteTupleEntry(lambda n: [(TASKS, [Send("work", {"n": n, "u": lock})])])),
        "work": NodeBuilder().do(work).write_to("o"),
    }
    thread = drive.on(app(nodes, {**cells("ao"), "u": UntrackedValue(object)}, checkpointer=InMemorySaver()), Cfg)
    thread.invoke(5, durability=durability)
    assert thread.resume("yes") == "yes"
    assert seen == [{"n": 5, "u": lock}, {"n": 5}]


def test_m11_a_node_that_feeds_itself_ends_when_it_writes_nothing(drive):
    node = only("v").do(lambda x: x + x if len(x) < 10 else None).write_to(ChannelWriteEntry("v", skip_none=True))
    assert drive.invoke(app({"n": node}, {"v": EphemeralValue(str)}, "v", "v"), "a") == "a" * 16


# -- the rest of the face -------------------------------------------------------------------------------------


def test_a_copy_takes_new_attributes_and_refuses_unknown_ones():
    graph = app({"n": only("a")}, cells("ao"))
    assert (graph.copy({"name": "other"}).name, graph.name) == ("other", "Pregel")
    with pytest.raises(AttributeError, match="nmae"):
        graph.copy({"nmae": 1})


def test_writers_may_be_appended_to_a_built_node_until_it_goes_into_a_graph(drive):
    built = only("i").do(lambda x: x + 1).write_to("o").build()
    bare = PregelNode(channels="i", triggers=["i"], bound=lambda x: x * 2)
    built.writers.append(ChannelWrite(["o2"]))
    bare.writers.append(ChannelWrite(["o3"]))
    channels = {"i": EphemeralValue(int), "o": LastValue(int), "o2": LastValue(int), "o3": LastValue(int)}
    outputs = ["o", "o2", "o3"]
    app = Pregel(nodes={"n": built, "m": bare}, channels=channels, input_channels="i", output_channels=outputs)
    built.writers.append(ChannelWrite(["o3"]))
    assert drive.invoke(app, 1) == {"o": 2, "o2": 2, "o3": 2}, "what comes later is not for this graph"
