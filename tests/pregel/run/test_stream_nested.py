"""Streams of nested graphs: which chunks a reader gets, and that each message is shown once, however often the run
pauses.
"""

import asyncio
from itertools import product

import pytest
from kit.graphs import CONFIG, chain_of, graph_of, parallel_of

from stategraph import (
    Command,
    InMemorySaver,
    MessagesState,
    entrypoint,
    get_stream_writer,
    interrupt,
    task,
)
from stategraph.graph import stream_text

NAMES = ("n0", "n1", "n2")


def message(id, *, named=True):
    return {"role": "assistant", "content": id, **({"id": id} if named else {})}


def says(name, *, pauses=False, named=True):
    def node(state):
        if pauses:
            interrupt(name)
        return {"messages": [message(name, named=named)]}

    return node


def chain(nodes, saver=None):
    return chain_of(MessagesState, **nodes).compile(saver)


def side_by_side(nodes):
    return parallel_of(MessagesState, nodes).compile()


def called(child):
    """A function that runs the graph, and returns all it has."""
    return lambda _: {"messages": child.invoke({"messages": []})["messages"]}


PLACES = {
    "a node": lambda child: child,
    "a function": called,
    "a node of a node": lambda child: chain({"middle": child, "after": says("after")}),
    "a function in a node": lambda child: chain({"middle": called(child), "after": says("after")}),
    "two graphs in a function": lambda child: called_twice(child),
}


def called_twice(child):
    before = chain({"before": says("before")})
    return lambda _: {"messages": [m for g in (before, child) for m in g.invoke({"messages": []})["messages"]]}


def whole_stream(drive, app, mode, **options):
    """The chunks of a call and of those that answer its questions, one at a time."""
    chunks = drive.stream(app, {"messages": []}, CONFIG, stream_mode=mode, **options)
    while asked := drive.get_state(app, CONFIG).interrupts:
        answer = Command(resume={asked[-1].id: "yes"})
        chunks += drive.stream(app, answer, CONFIG, stream_mode=mode, **options)
    return chunks


@pytest.mark.trial
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("build", [chain, side_by_side])
def test_each_message_is_shown_once_wherever_the_run_pauses(drive, build, place, subgraphs):
    for *pauses, named in product([False, True], repeat=len(NAMES) + 1):
        bodies = zip(NAMES, pauses, strict=True)
        nodes = {name: says(name, pauses=pausing, named=named) for name, pausing in bodies}
        app = chain({"first": says("first"), "sub": PLACES[place](build(nodes)), "last": says("last")}, InMemorySaver())
        chunks = whole_stream(drive, app, "messages", subgraphs=subgraphs)
        shown = [(chunk[1] if subgraphs else chunk)[0]["content"] for chunk in chunks]
        said = [each["content"] for each in drive.get_state(app, CONFIG).values["messages"]]
        assert sorted(shown) == sorted(said), (pauses, named)


def test_what_a_call_had_returned_before_a_pause_is_not_shown_again(drive):
    @task
    def speak(name):
        return message(name)

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        said = speak("said").result()
        interrupt("?")
        return [said, message("end")]

    @entrypoint(checkpointer=InMemorySaver())
    async def aflow(_):
        said = await speak("said")
        interrupt("?")
        return [said, message("end")]

    thread = drive.on(aflow if drive.is_async else flow)
    assert [m["id"] for m, _ in thread.stream(1, stream_mode="messages")] == ["said"]
    assert [m["id"] for m, _ in thread.stream(Command(resume=1), stream_mode="messages")] == ["end"]


def test_what_a_failed_run_had_shown_is_not_shown_again(drive):
    left = [1]

    def fails(state):
        if left:
            left.pop()
            raise ValueError("later")
        return {"messages": [message("n1")]}

    thread = drive.on(chain({"sub": chain({"n0": says("n0"), "n1": fails})}, InMemorySaver()))
    with pytest.raises(ValueError, match="later"):
        thread.stream({"messages": []}, stream_mode="messages", subgraphs=True)
    again = thread.stream(None, stream_mode="messages", subgraphs=True)
    assert [m["id"] for _, (m, _) in again] == ["n1"]


def talks(name):
    """Sends an event, and its message in parts."""

    def node(state):
        get_stream_writer()(name)
        return {"messages": [stream_text(["a ", "b"], id=name)]}

    return node


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["custom", "tasks", "updates", "debug", "checkpoints", "values", "messages"])
def test_without_subgraphs_only_what_the_node_returns_is_shown(drive, place, mode):
    inner = PLACES[place](chain({"n0": talks("n0")}))
    app = chain({"sub": inner, "last": talks("last")}, InMemorySaver())
    told = [chunk for ns, chunk in whole_stream(drive, app, mode, subgraphs=True) if not ns and mode != "messages"]
    other = chain({"sub": inner, "last": talks("last")}, InMemorySaver())
    chunks = whole_stream(drive, other, mode)
    if mode == "messages":
        parts = [(m["content"], metadata["stategraph_node"]) for m, metadata in chunks]
        assert ("a b", "sub") in parts and parts[-2:] == [("a ", "last"), ("b", "last")]
        assert {node for _, node in parts} == {"sub", "last"}
    else:
        assert len(chunks) == len(told)
    if mode == "custom":
        assert chunks == ["last"]


def test_what_had_ended_inside_when_a_sibling_outside_fails_is_shown_as_it_is_kept():
    left = [1]

    async def quick(_):
        return {"messages": [message("quick")]}

    async def slow(_):
        while left:
            await asyncio.Event().wait()
        return {"messages": [message("slow")]}

    async def fails(_):
        if left:
            left.pop()
            raise ValueError("outside")
        return {"messages": [message("outside")]}

    graph = graph_of(
        MessagesState, "S>inside S>outside", inside=side_by_side({"quick": quick, "slow": slow}), outside=fails
    )
    app = graph.compile(InMemorySaver())
    shown = []

    async def read(given):
        async for _, (said, _) in app.astream(given, CONFIG, stream_mode="messages", subgraphs=True):
            shown.append(said["id"])

    with pytest.raises(ValueError, match="outside"):
        asyncio.run(read({"messages": []}))
    assert shown == ["quick"]
    asyncio.run(read(None))
    assert sorted(shown) == ["outside", "quick", "slow"]
