"""A task's identity: ids that stay the same, paths that sort, and what a running node can access."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.graphs import thread_config

from stategraph.channels import LastValue
from stategraph.checkpoint import InMemorySaver
from stategraph.pregel import ChannelWriteTupleEntry, NodeBuilder, Pregel, Send
from stategraph.pregel.names import TASKS, path_text
from stategraph.pregel.task.ids import task_id
from stategraph.pregel.task.task import Task, in_path_order


def node(name="n", triggers=("a",)):
    identity = "\0".join(("__pregel_pull", *sorted(triggers)))
    return SimpleNamespace(name=name, triggers=triggers, path=("__pregel_pull", name), identity=identity)


def pull(name, triggers=("a",)):
    return Task(node(name, triggers), ("__pregel_pull", name), None)


def push(index, name="n"):
    return Task(node(name), ("__pregel_push", index, False), None)


# -- paths ----------------------------------------------------------------------------------------------------


def test_a_path_as_text():
    assert path_text(()) == "~"
    assert path_text(("__pregel_pull", "n")) == "~__pregel_pull, n"
    assert path_text(("__pregel_push", 3, False)) == "~__pregel_push, 0000000003, 0000000000"
    assert path_text(("__pregel_push", ("__pregel_pull", "wf"), 1, True)) == (
        "~__pregel_push, ~__pregel_pull, wf, 0000000001, 0000000001"
    )


@given(st.lists(st.integers(0, 10**9), min_size=2))
def test_text_of_send_paths_sorts_like_their_index(indexes):
    texts = [path_text(("__pregel_push", i, False)) for i in indexes]
    assert sorted(texts) == [path_text(("__pregel_push", i, False)) for i in sorted(indexes)]


@given(st.lists(st.text(max_size=3), unique=True), st.lists(st.integers(0, 2000), unique=True), st.randoms())
def test_order_is_nodes_by_name_then_sends_by_index(names, indexes, random):
    tasks = [*map(pull, names), *map(push, indexes)]
    random.shuffle(tasks)
    ordered = [t.path[1] for t in in_path_order(tasks)]
    assert ordered == [*sorted(names), *sorted(indexes)]


# -- ids ------------------------------------------------------------------------------------------------------


def test_an_id_has_the_form_of_a_uuid_and_depends_on_nothing_else():
    one, two = task_id("c1", "", 0, pull("n")), task_id("c1", "", 0, pull("n"))
    assert one == two
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", one)


def test_task_ids_differ_whenever_tasks_differ():
    base = pull("n")
    ids = [
        task_id("c1", "", 0, base), task_id("c2", "", 0, base), task_id("c1", "p:1", 0, base), task_id("c1", "", 1, base),
        task_id("c1", "", 0, pull("m")), task_id("c1", "", 0, pull("n", ("b",))), task_id("c1", "", 0, pull("n", ("a", "b"))),
        task_id("c1", "", 0, push(0)), task_id("c1", "", 0, push(1)), task_id("c1", "", 0, push(0, "m")),
        task_id("c1", "n", 0, base), task_id("c", "1", 0, base), task_id("c1", "", 10, push(0)), task_id("c1", "", 1, push(0)),
    ]  # fmt: skip
    assert len(set(ids)) == len(ids)


def test_the_order_of_triggers_in_a_declaration_does_not_change_an_id(drive):
    def ids(*triggers):
        graph = Pregel(nodes={"n": NodeBuilder().subscribe_to(*triggers)}, channels={k: LastValue(int) for k in "ab"},
                       input_channels="a", output_channels="a", checkpointer=saver)  # fmt: skip
        return [task.id for task in drive.get_state(graph, config).tasks]

    saver, config = InMemorySaver(), thread_config("1")
    paused = Pregel(nodes={"n": NodeBuilder().subscribe_to("a", "b")}, channels={k: LastValue(int) for k in "ab"},
                    input_channels="a", output_channels="a", checkpointer=saver, interrupt_before_nodes="*")  # fmt: skip
    drive.invoke(paused, 1, config)
    assert ids("a", "b") == ids("b", "a") != []


def graph_of_sends(saver=None, body=None):
    plan = (
        NodeBuilder()
        .subscribe_only("a")
        .write_to(ChannelWriteTupleEntry(lambda n: [(TASKS, Send("work", i)) for i in range(n)]))
    )
    work = NodeBuilder().subscribe_only("never").do(body or (lambda i: i))
    return Pregel(nodes={"plan": plan, "work": work}, channels={"a": LastValue(int), "never": LastValue(int)},
                  input_channels="a", output_channels="a", checkpointer=saver)  # fmt: skip


def test_a_task_sees_the_id_that_streams_and_snapshots_show(drive):
    seen = []

    def body(value, runtime):
        info = runtime.execution_info
        seen.append((info.task_id, info.checkpoint_ns, runtime.idempotency_key, info.thread_id, info.node_attempt))

    config = thread_config("1")
    graph = graph_of_sends(InMemorySaver(), body)
    chunks = drive.stream(graph, 1, config, stream_mode="tasks")
    [shown] = {chunk["id"] for chunk in chunks if chunk["name"] == "work"}
    [stored] = [task.id for task in drive.history(graph, config)[1].tasks]
    assert seen == [(shown, f"work:{shown}", shown, "1", 1)]
    assert stored == shown


def test_ids_without_a_saver_differ_between_runs(drive):
    """What an outer system takes for one piece of work must not be shared by two runs."""
    seen = []
    graph = graph_of_sends(body=lambda value, runtime: seen.append(runtime.idempotency_key))
    for _ in range(2):
        drive.invoke(graph, 2)
    assert len(set(seen)) == 4


def test_a_failed_attempt_leaves_no_writes_and_no_counters():
    task = pull("n")
    task.writes, task.current.asked, task.current.graphs = [("a", 1)], 2, 3
    task.begin_attempt()
    assert (task.writes, task.current.asked, task.current.graphs, task.attempt) == ([], 0, 0, 2)


@pytest.mark.parametrize(("task", "triggers"), [(pull("n", ("a", "b")), ("a", "b")), (push(0), ("__pregel_push",))])
def test_triggers_of_a_task(task, triggers):
    assert task.triggers == triggers
