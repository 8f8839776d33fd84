"""`Send(..., key=...)`: many memories of one graph, each with a history of its own on the thread."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from kit import cluster
from kit.drive import Drive
from kit.graphs import CONFIG, chain_of, thread_config

from stategraph import (
    START,
    CachePolicy,
    Command,
    InMemoryCache,
    InMemorySaver,
    RetryPolicy,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
)
from stategraph.checkpoint import Serializer
from stategraph.pregel.errors import InvalidUpdateError
from stategraph.pregel.names import keyed_level, memory_below, memory_ns, split_key
from stategraph.visualize import report, timeline

postgres = cluster.emptied
ODD_KEYS = ["", "|", ":", "%", "%7C", "a|b:c%d", "=", ":=x", "7", "Ω ☃ 🦉", "\n\t\x1b", "x" * 2000, "agent:1d44|2"]


class Memory(TypedDict, total=False):
    heard: Annotated[list[str], operator.add]
    news: str


class Desk(TypedDict, total=False):
    mail: list[tuple[str | None, str]]
    said: Annotated[list[str], operator.add]


class Asked(TypedDict):
    news: str


def remember(state: Memory):
    return {"heard": [state["news"]]}


async def aremember(state: Memory):
    return remember(state)


def make_agent(drive, node=None, anode=None):
    body = (anode or aremember) if drive.is_async else (node or remember)
    return chain_of(Memory, hear=body).compile(checkpointer=True)


def make_desk(drive, saver, agent=None, **policies):
    """Sends each letter of the mail to the memory of its key."""
    builder = StateGraph(Desk).add_node("agent", agent or make_agent(drive), **policies)
    builder.add_conditional_edges(
        START, lambda state: [Send("agent", {"news": news}, key=key) for key, news in state["mail"]], ["agent"]
    )
    return builder.compile(saver)


def heard(drive, app, subgraph):
    return drive.get_state(app, CONFIG, subgraph=subgraph).values.get("heard")


def memories(drive, app, **options):
    return [subgraph for subgraph, _ in drive.items(app, "get_subgraphs", CONFIG, **options)]


# -- a memory for each key ----------------------------------------------------------------------------------------


def test_each_key_has_a_memory_of_its_own_and_sends_without_one_keep_theirs(drive, saver):
    for mail in ([("ann", "1"), ("bob", "2"), (None, "3")], [("bob", "4"), (None, "5")], [("ann", "6")]):
        drive.invoke(make_desk(drive, saver), {"mail": mail}, CONFIG)
    app = make_desk(drive, saver)  # on an idle thread, by a graph that has not run
    assert heard(drive, app, ("agent", "ann")) == ["1", "6"]
    assert heard(drive, app, ("agent", "bob")) == ["2", "4"]
    assert heard(drive, app, "agent") == ["3", "5"]
    assert heard(drive, app, ["agent"]) == ["3", "5"]
    assert memories(drive, app) == ["agent", ("agent", "ann"), ("agent", "bob")]
    assert memories(drive, app, namespace="agent") == memories(drive, app)
    assert memories(drive, app, namespace="other") == []


def test_any_string_is_a_key(drive, saver):
    for turn in "12":
        drive.invoke(make_desk(drive, saver), {"mail": [(key, key + turn) for key in ODD_KEYS]}, CONFIG)
    app = make_desk(drive, saver)
    for key in ODD_KEYS:
        assert heard(drive, app, ("agent", key)) == [key + "1", key + "2"]
    assert sorted(memories(drive, app)) == sorted(("agent", key) for key in ODD_KEYS)


def test_keys_have_separate_namespaces():
    levels = {keyed_level("agent", key): key for key in ODD_KEYS}
    assert len(levels) == len(ODD_KEYS)
    for level, key in levels.items():
        assert split_key(level) == ("agent", key)
        assert memory_below(memory_ns("", [("team", "x"), ("agent", key)]), "team:=x") == [("agent", key)]


@pytest.mark.parametrize("key", ["a\0b", 7, b"x"])
def test_invalid_keys_are_refused_when_a_send_is_made(key):
    with pytest.raises((TypeError, ValueError), match="Send: key must"):
        Send("agent", {}, key=key)


def test_two_sends_with_one_key_are_refused_by_name(drive, saver):
    with pytest.raises(RuntimeError, match="run the graph of 'agent:=ann'.*Send"):
        drive.invoke(make_desk(drive, saver), {"mail": [("ann", "1"), ("ann", "2")]}, CONFIG)


def test_a_graph_inside_a_graph_remembers_by_the_keys_of_both(drive, saver):
    inner = make_desk(drive, True)
    for turn in "12":
        app = make_desk(drive, saver, _relay(drive, inner))
        drive.invoke(app, {"mail": [("red", turn), ("blue", turn)]}, CONFIG)
    app = make_desk(drive, saver, _relay(drive, inner))
    assert heard(drive, app, [("agent", "red"), ("agent", "ann")]) == ["1", "2"]
    assert memories(drive, app) == [("agent", "blue"), ("agent", "red")]
    inside = memories(drive, app, recurse=True)
    assert [("agent", "blue"), ("agent", "ann")] in inside and len(inside) == 4


def _relay(drive, inner):
    """A graph with a memory, which sends what it gets to a graph with memories of its own."""
    builder = StateGraph(Memory).add_node("agent", make_agent(drive))
    builder.add_conditional_edges(START, lambda state: [Send("agent", {"news": state["news"]}, key="ann")], ["agent"])
    return builder.compile(checkpointer=True)


def test_a_function_that_runs_a_graph_has_its_memories_too(drive, saver):
    agent = make_agent(drive)

    def call(asked: Asked):
        return {"said": [f"{len(agent.invoke(asked)['heard'])}"]}

    async def acall(asked: Asked):
        return {"said": [f"{len((await agent.ainvoke(asked))['heard'])}"]}

    for turn in (1, 2):
        app = make_desk(drive, saver, acall if drive.is_async else call)
        assert drive.invoke(app, {"mail": [("ann", "x"), ("bob", "y")]}, CONFIG)["said"] == [
            str(n) for n in range(1, turn + 1) for _ in range(2)
        ]
    fresh = make_desk(drive, saver, acall if drive.is_async else call)
    assert drive.items(fresh, "get_subgraphs", CONFIG) == [(("agent", "ann"), None), (("agent", "bob"), None)]


def test_a_command_and_an_entrypoint_take_keys_as_well(drive, saver):
    @entrypoint(checkpointer=True)
    def count(asked: Asked, *, previous: Any = None):
        total = (previous or 0) + 1
        return entrypoint.final(value={"said": [f"{asked['news']}{total}"]}, save=total)

    def sort(state: Desk):
        return Command(goto=[Send("count", {"news": news}, key=key) for key, news in state["mail"]])

    for turn in (1, 2):
        builder = StateGraph(Desk).add_node("sort", sort, destinations=("count",)).add_node("count", count)
        app = builder.add_edge(START, "sort").compile(saver)
        said = drive.invoke(app, {"mail": [("a", "a"), ("b", "b")]}, CONFIG)["said"]
        assert said[-2:] == [f"a{turn}", f"b{turn}"]


# -- refused ------------------------------------------------------------------------------------------------------


def plain(asked: Asked):
    return {"said": [asked["news"]]}


def test_a_key_for_a_function_without_a_graph_is_refused(drive, saver):
    with pytest.raises(InvalidUpdateError, match="node 'agent' has key='ann'"):
        drive.invoke(make_desk(drive, saver, plain), {"mail": [("ann", "1")]}, CONFIG)


def test_a_key_for_a_graph_without_a_memory_is_refused_before_it_runs(drive, saver):
    ran = []
    agent = chain_of(Memory, hear=lambda state: ran.append("hear")).compile()
    with pytest.raises(InvalidUpdateError, match="node 'agent' has key='ann'.*checkpointer=True"):
        drive.invoke(make_desk(drive, saver, agent), {"mail": [("ann", "1")]}, CONFIG)
    assert not ran


def test_a_subgraph_that_is_unknown_or_keeps_no_memory_is_refused(drive, saver):
    thread = drive.on(make_desk(drive, saver))
    with pytest.raises(ValueError, match="unknown subgraph 'agnet'"):
        thread.get_state(subgraph=("agnet", "ann"))
    other = make_desk(drive, saver, chain_of(Memory, hear=plain).compile())
    with pytest.raises(ValueError, match="keeps no memory of its own.*checkpointer=True"):
        drive.get_state(other, CONFIG, subgraph="agent")
    done = thread.state.config
    thread.invoke({"mail": [("ann", "1")]})
    done = thread.state.config
    with pytest.raises(ValueError, match="leave out its checkpoint_id"):
        thread.get_state(done, subgraph=("agent", "ann"))


# -- retry, resume, replay, fork, edits ---------------------------------------------------------------------------


def test_a_question_in_one_memory_is_answered_there(drive, saver):
    def ask(state: Memory):
        answer = interrupt("sure?") if state["news"] == "ask" else ""
        return {"heard": [state["news"] + answer]}

    async def aask(state: Memory):
        return ask(state)

    def make():
        return make_desk(drive, saver, make_agent(drive, ask, aask))

    asked = drive.invoke(make(), {"mail": [("ann", "ask"), ("bob", "ask"), (None, "told")]}, CONFIG)
    assert len(asked["__interrupt__"]) == 2
    states = {task.key: task.state for task in drive.get_state(make(), CONFIG).tasks}
    assert states["ann"]["configurable"]["checkpoint_ns"] == "agent:=ann"
    deep = drive.get_state(make(), CONFIG, subgraphs=True)
    assert [task.state.next for task in deep.tasks if task.key == "bob"] == [("hear",)]
    first, second = asked["__interrupt__"]
    drive.invoke(make(), Command(resume={first.id: " yes", second.id: " no"}), CONFIG)
    assert heard(drive, make(), ("agent", "ann")) == ["ask yes"]
    assert heard(drive, make(), ("agent", "bob")) == ["ask no"]
    assert heard(drive, make(), "agent") == ["told"]


def test_a_retry_continues_with_the_same_memory(drive, saver):
    failures = []

    def fail_once(state: Memory):
        if state["news"] not in failures:
            failures.append(state["news"])
            raise ConnectionError
        return {"heard": [state["news"]]}

    async def afail_once(state: Memory):
        return fail_once(state)

    retry = RetryPolicy(max_attempts=2, initial_interval=0, retry_on=ConnectionError)
    app = make_desk(drive, saver, make_agent(drive, fail_once, afail_once), retry_policy=retry)
    drive.invoke(app, {"mail": [("ann", "1"), ("bob", "2")]}, CONFIG)
    drive.invoke(app, {"mail": [("ann", "3"), ("bob", "4")]}, CONFIG)
    assert heard(drive, app, ("agent", "ann")) == ["1", "3"]


def test_replay_and_fork_go_back_in_the_memory_of_each_key(drive, saver):
    """As a memory without a key does: what the branch has not done is not remembered."""
    for news in "123":
        drive.invoke(make_desk(drive, saver), {"mail": [("ann", news), ("bob", news)]}, CONFIG)
    app = make_desk(drive, saver)
    starts = [s for s in drive.history(app, CONFIG) if s.next == ("agent", "agent")]
    second = starts[1]
    drive.invoke(app, None, second.config)
    assert heard(drive, app, ("agent", "ann")) == ["1", "2"]
    assert heard(drive, app, ("agent", "bob")) == ["1", "2"]
    fork = drive.update_state(app, second.config, {"mail": [("bob", "other")]}, as_node=START)
    drive.invoke(app, None, fork)
    assert heard(drive, app, ("agent", "bob")) == ["1", "other"]


def test_the_history_of_a_memory_is_read_by_its_key_and_run_again_from(drive, saver):
    app = make_desk(drive, saver)
    for number in "12":
        drive.invoke(app, {"mail": [("ann", number), ("bob", "x")]}, CONFIG)
    history = drive.items(app, "get_state_history", CONFIG, subgraph=("agent", "ann"), filter={"source": "loop"})
    assert [snapshot.values.get("heard", []) for snapshot in history] == [["1", "2"], ["1"], ["1"], []]
    drive.invoke(app, None, history[2].config)
    assert heard(drive, app, ("agent", "ann")) == ["1"]
    with pytest.raises(ValueError, match="leave out its checkpoint_id"):
        drive.items(app, "get_state_history", history[0].config, subgraph=("agent", "ann"))


def test_a_memory_can_be_edited_by_its_key(drive, saver):
    drive.invoke(make_desk(drive, saver), {"mail": [("ann", "1"), ("bob", "2")]}, CONFIG)
    app = make_desk(drive, saver)
    drive.update_state(app, CONFIG, {"heard": ["edited"]}, subgraph=("agent", "ann"))
    drive.invoke(app, {"mail": [("ann", "3"), ("bob", "4")]}, CONFIG)
    assert heard(drive, app, ("agent", "ann")) == ["1", "edited", "3"]
    assert heard(drive, app, ("agent", "bob")) == ["2", "4"]


@pytest.mark.trial
@pytest.mark.parametrize("stop", range(1, 7))
def test_stopped_before_any_step_and_resumed_by_a_freshly_compiled_graph(drive, saver, stop):
    """The recursion limit stops it after so many supersteps, of the graphs inside as well."""
    class Stop(Exception):
        pass

    calls = []

    def hear(state: Memory):
        calls.append(state["news"])
        if len(calls) == stop:
            raise Stop
        return {"heard": [state["news"]]}

    async def ahear(state: Memory):
        return hear(state)

    def make():
        return make_desk(drive, saver, make_agent(drive, hear, ahear))

    for news in "12":
        mail = [(key, news) for key in ("ann", "bob", None)]
        try:
            drive.invoke(make(), {"mail": mail}, CONFIG, durability="sync")
        except Stop:
            drive.invoke(make(), None, CONFIG)
    for subgraph in (("agent", "ann"), ("agent", "bob"), "agent"):
        assert heard(drive, make(), subgraph) == ["1", "2"]


# -- stored -------------------------------------------------------------------------------------------------------


def test_memories_are_deleted_copied_and_pruned_with_the_thread(drive, saver):
    app = make_desk(drive, saver)
    for news in "123":
        drive.invoke(app, {"mail": [("ann", news), ("bob", news)]}, CONFIG)
    drive.call(saver, "copy_thread", "t", "copy")
    ns = thread_config(checkpoint_ns="agent:=ann")
    assert len(drive.history(app, ns)) > 3
    drive.call(saver, "prune", ["t"])
    assert len(drive.history(app, ns)) == 1
    assert heard(drive, app, ("agent", "ann")) == ["1", "2", "3"], "the newest outlives the checkpoint around it"
    drive.call(saver, "delete_thread", "t")
    assert memories(drive, app) == []
    copied = thread_config("copy")
    assert drive.get_state(app, copied, subgraph=("agent", "bob")).values["heard"] == ["1", "2", "3"]


def test_a_send_with_a_key_survives_serialization():
    serde = Serializer()
    for send in (Send("a", 1), Send("a", {"x": 2}, key="k"), Send("a", None, key="", timeout=2)):
        again = serde.loads(serde.dumps(send))
        assert again == send and repr(again) == repr(send) and again.key == send.key
    assert Send("a", 1, key="k") != Send("a", 1) and hash(Send("a", 1, key="k")) == hash(Send("a", 1, key="k"))
    assert repr(Send("a", 1, key="k")) == "Send(node='a', arg=1, key='k')"


def test_a_send_without_a_key_is_stored_as_before():
    """Files of earlier versions hold such Sends, and earlier versions read those of this one."""
    from stategraph.pregel.types import _parts_of_send, _send_of_parts

    assert _parts_of_send(Send("a", 1)) == ("a", 1, None)
    assert _send_of_parts(("a", 1, None)) == Send("a", 1)


def test_a_cached_result_is_of_one_memory(drive):
    saver, cache = InMemorySaver(), InMemoryCache()
    policy = CachePolicy(key_func=lambda asked: asked["news"])
    builder = StateGraph(Desk).add_node("agent", make_agent(drive), cache_policy=policy)
    builder.add_conditional_edges(
        START, lambda state: [Send("agent", {"news": news}, key=key) for key, news in state["mail"]], ["agent"]
    )
    app = builder.compile(saver, cache=cache)
    for _ in range(2):
        drive.invoke(app, {"mail": [("ann", "same"), ("bob", "same")]}, CONFIG)
    assert heard(drive, app, ("agent", "ann")) == heard(drive, app, ("agent", "bob")) == ["same"]


def test_custom_savers_list_namespaces_by_their_list(drive):
    class Mine(InMemorySaver):
        def list(self, config, **options):
            listed.append(config)
            return super().list(config, **options)

    listed = []
    saver = Mine()
    drive.invoke(make_desk(drive, saver), {"mail": [("ann", "1")]}, CONFIG)
    listed.clear()
    assert memories(drive, make_desk(drive, saver)) == [("agent", "ann")] and listed


def test_a_report_and_explain_show_the_key(tmp_path):
    sync = Drive(False)

    def ask(state: Memory):
        return {"heard": [interrupt("sure?")]}

    app = make_desk(sync, InMemorySaver(), make_agent(sync, ask))
    app.invoke({"mail": [("ann", "1"), ("bob", "2")]}, CONFIG)
    assert "keys 'ann', 'bob'" in app.explain(CONFIG)["agent"].why
    page = report(app, CONFIG, tmp_path / "report.html").read_text()
    assert "agent [ann]" in page and "agent [bob]" in page
    app.invoke(Command(resume={q.id: "yes" for q in app.get_state(CONFIG).interrupts}), CONFIG)
    assert "hear" in timeline(app, CONFIG).draw_text(), "what the graph of a key has done is found"
