"""Messages as state and as a stream: the reducer against a slow model of it, the shapes it takes, and what readers see
of messages that nodes push, tell part by part, or get from a chat model.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import weakref
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import Drive, each_case, each_schedule
from kit.graphs import CONFIG, chain_of, thread_config
from kit.programs import OF_THE_PACKAGE, find_peer, output_of
from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    START,
    InMemorySaver,
    InvalidUpdateError,
    MessagesState,
    Overwrite,
    RemoveMessage,
    add_messages,
)
from stategraph.channels import MISSING, BinaryOperatorAggregate
from stategraph.checkpoint import Serializer
from stategraph.graph import (
    REMOVE_ALL_MESSAGES,
    acall_model,
    astream_text,
    call_model,
    push_message,
    stream_text,
)
from stategraph.graph.messages import emit_message_delta
from stategraph.graph.messages import reducer as room
from stategraph.pregel.run.tokens import (
    emitter,
    is_message,
    is_removal,
    unstreamed,
    written_messages,
)

CLEAR = RemoveMessage(id=REMOVE_ALL_MESSAGES)
MESSAGES = BinaryOperatorAggregate(list, add_messages)


def says(id, content="", role="user"):
    return {"role": role, "content": content} | ({} if id is None else {"id": id})


class Plain:
    """A message that knows neither pydantic nor dataclasses."""

    def __init__(self, content, id=None):
        self.content, self.id = content, id


class Stubborn(Plain):
    """A message that cannot be copied."""

    def __copy__(self):
        raise TypeError("no copies")


@dataclass(frozen=True)
class Frozen:
    content: str
    id: str | None = None


class Model(BaseModel):
    content: Any
    id: str | None = None
    type: str = "ai"
    tool_calls: list[Any] = []


class ModelChunk(Model):
    type: str = "ModelChunk"

    def __add__(self, other: ModelChunk):
        return ModelChunk(content=self.content + other.content, id=self.id)


def ids(messages):
    return [m["id"] if isinstance(m, dict) else m.id for m in messages]


def contents(messages):
    return [m["content"] if isinstance(m, dict) else m.content for m in messages]


# -- the rules of merging --------------------------------------------------------------------------------------


def test_of_two_old_ones_with_one_id_the_last_is_replaced():
    left = [says("1", "a"), says("1", "b")]
    assert add_messages(left, says("1", "c")) == [says("1", "a"), says("1", "c")]


def test_remove():
    left = [says("1"), says("2")]
    assert add_messages(left, RemoveMessage(id="1")) == [says("2")]
    assert add_messages(left, [{"role": "remove", "id": "1"}, says("3")]) == [says("2"), says("3")]
    assert add_messages(left, [RemoveMessage("1"), RemoveMessage("1")]) == [says("2")]
    assert add_messages(left, [RemoveMessage("1"), says("1", "new")]) == [says("1", "new"), says("2")]
    assert add_messages(left, [says("3"), RemoveMessage("3")]) == left


def test_an_object_whose_type_is_remove_removes():
    assert add_messages(says("1"), Model(content="", id="1", type="remove")) == []


@pytest.mark.parametrize("id", ["9", None])
def test_removing_what_is_not_there_is_an_error_that_names_it(id):
    with pytest.raises(ValueError, match=repr(id)):
        add_messages([says("1")], {"role": "remove", "id": id})


def test_remove_all_drops_what_is_before_it_and_merges_what_follows():
    left = [says("1"), says("2")]
    assert add_messages(left, [says("3"), CLEAR]) == []
    assert add_messages(left, [CLEAR, says("3", "a"), says("3", "b")]) == [says("3", "b")]
    assert add_messages(left, [CLEAR, says("3"), RemoveMessage("3"), says("4")]) == [says("4")]
    assert add_messages(left, [CLEAR, says("3"), CLEAR, ("user", "hi")])[0]["content"] == "hi"
    assert add_messages(left, [RemoveMessage("no such"), CLEAR]) == []
    with pytest.raises(ValueError, match="'1'"):
        add_messages(left, [CLEAR, RemoveMessage("1")])


def test_both_sides_are_needed():
    for call in (
        lambda: add_messages(None, [says("1")]),
        lambda: add_messages([says("1")], None),
        lambda: add_messages(None, None),
        lambda: add_messages([says("1")]),  # type: ignore[call-overload]
        lambda: add_messages(right=[says("1")]),  # type: ignore[call-overload]
    ):
        with pytest.raises(ValueError, match="needs two lists"):
            call()


@given(st.lists(st.lists(st.tuples(st.sampled_from("abcd-!"), st.sampled_from("123456")), max_size=4), max_size=8))
def test_merging_is_what_its_rules_say(batches):
    """Against a slow model; called, and as the reducer of a channel, which keeps an index."""
    left = []
    channel = MESSAGES.from_checkpoint(MISSING)
    for batch in batches:
        right = [CLEAR if w == "!" else RemoveMessage(id) if w == "-" else says(id, w) for w, id in batch]
        expected = slow_merge(left, right)
        if expected is None:
            for merge in (lambda: add_messages(left, right), lambda: channel.preview([right])):  # noqa: B023
                with pytest.raises(ValueError):
                    merge()
        else:
            kept, before, left = copy.deepcopy(left), left, add_messages(left, right)
            assert left == expected and before == kept
            assert add_messages(kept, right) == expected
            assert channel.preview([right]) == expected
            channel = channel.copy()
            channel.update([right])
            assert channel.get() == expected


def slow_merge(left, right):
    """What `add_messages` must give; None for an error. A removed message keeps its place for one with its id."""
    places = [(m["id"], m) for m in left]
    if CLEAR in right:
        places, right = [], right[len(right) - right[::-1].index(CLEAR) :]
    for new in right:
        id = new.id if isinstance(new, RemoveMessage) else new["id"]
        message = None if isinstance(new, RemoveMessage) else new
        if id in dict(places):
            places = [(i, message if i == id else m) for i, m in places]
        elif message is None:
            return None
        else:
            places.append((id, message))
    return [m for _, m in places if m is not None]


# -- what counts as a message ----------------------------------------------------------------------------------


def test_short_forms():
    merged = add_messages("hi", [("ai", "hello"), ["system", "be kind"], ("human", [{"type": "text", "text": "x"}])])
    assert [(m["role"], m["content"]) for m in merged] == [
        ("user", "hi"),
        ("assistant", "hello"),
        ("system", "be kind"),
        ("user", [{"type": "text", "text": "x"}]),
    ]
    assert len(set(ids(merged))) == 4 and all(ids(merged))
    assert contents(add_messages([], ("user", "hi"))) == ["hi"]
    assert contents(add_messages((says("1", "a"), says("2", "b")), [])) == ["a", "b"]


@each_case(
    "wrong, kind, says_so",
    [
        (("usr", "hi"), ValueError, "did you mean 'user'"),
        ({"content": "hi"}, ValueError, "must have a role"),
        ({"role": None, "content": "hi"}, ValueError, "must have a role"),
        (7, TypeError, "int: 7"),
        ([7], TypeError, "int: 7"),
    ],
)
def test_what_is_no_message_is_refused(wrong, kind, says_so):
    with pytest.raises(kind, match=says_so):
        add_messages([], wrong)


def test_missing_ids_are_set_in_copies():
    given = [says(None, "d"), Plain("p"), Model(content="m"), Frozen("f"), says("", "empty")]
    merged = add_messages([], given)
    assert contents(merged) == ["d", "p", "m", "f", "empty"]
    assert len(set(ids(merged))) == 5 and all(isinstance(id, str) and id for id in ids(merged))
    assert "id" not in given[0] and [m.id for m in given[1:4]] == [None] * 3
    assert [type(m) for m in merged[1:4]] == [Plain, Model, Frozen]


def test_an_object_that_cannot_be_copied_gets_its_id_itself():
    message = Stubborn("s")
    assert add_messages([], message) == [message] and message.id


def test_an_object_that_can_neither_be_copied_nor_changed_is_refused():
    class Fixed:
        id = property(lambda self: None)

    with pytest.raises(TypeError, match="writable attributes id, got Fixed"):
        add_messages([], Fixed())


def test_messages_with_ids_are_shared_and_may_be_of_several_kinds():
    message, other = says("1"), Plain("p", "2")
    merged = add_messages([message], [other])
    assert merged[0] is message and merged[1] is other
    assert contents(add_messages(merged, [Model(content="m", id="1"), says("2", "d")])) == ["m", "d"]


def test_ids_are_set_on_the_left_too():
    left = [says(None, "a")]
    assert all(ids(add_messages(left, []))) and "id" not in left[0]


def test_a_chunk_becomes_the_message_it_is_a_chunk_of():
    [message] = add_messages([], ModelChunk(content="hi", id="1"))
    assert message == Model(content="hi", id="1") and type(message) is Model


# -- long lists ------------------------------------------------------------------------------------------------


@pytest.fixture
def long():
    return add_messages([], [says(str(n), str(n)) for n in range(1000)])


def test_appending_to_a_long_list_touches_only_what_is_new(long, monkeypatch):
    channel = MESSAGES.from_checkpoint(long)
    channel.preview([[]])  # a loaded list is looked at once
    touched = []
    real = room.Normalizer.read
    monkeypatch.setattr(room.Normalizer, "read", lambda self, message: touched.append(message) or real(self, message))

    def write(message):
        channel.preview([message])  # as for a router
        updated = channel.copy()
        updated.update([message])
        return updated

    for n in range(20):
        channel = write(says(f"new {n}"))
    channel = write(says("3", "replaced"))
    assert len(touched) == 2 * 21
    merged = channel.get()
    assert len(merged) == 1020 and merged[3]["content"] == "replaced"


def test_a_kept_index_is_not_used_for_another_list(long):
    first = add_messages(long, says("x"))
    assert add_messages(long, says("x"))[-1] == says("x")  # a fork: the index knows x already
    assert len(first) == len(long) + 1 == 1001
    changed = [*first[:5], says("other"), *first[6:]]  # same length, same last message
    assert len(add_messages(changed, says("5"))) == 1002


def test_changing_a_result_does_not_change_the_stored_value(long):
    long[3] = says("other")
    assert add_messages(long, says("3", "new"))[-1] == says("3", "new")
    long.pop(0)
    assert add_messages(long, says("0", "new"))[-1] == says("0", "new")


def test_a_failed_merge_leaves_nothing_behind(long):
    for _ in range(2):
        with pytest.raises(ValueError, match="no such"):
            add_messages(long, [says("new"), RemoveMessage("no such")])
    assert add_messages(long, says("new"))[-1] == says("new") and len(long) == 1000


def test_messages_that_cannot_be_compared_are_indexed_again(long):
    class Array:
        def __eq__(self, other: object):
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    mixed = add_messages([says("a", Array()), *long], [])
    again = [dict(mixed[0], content=Array()), *mixed[1:]]
    assert len(add_messages(again, says("new"))) == 1002


def test_a_collected_list_is_released():
    message = Plain("hi", "1")
    alive = weakref.ref(message)
    channel = MESSAGES.from_checkpoint([message])
    channel.update([says("2")])
    channel.preview([says("3")])
    assert len(add_messages(channel.get(), says("4"))) == 3
    del message, channel
    gc.collect()
    assert alive() is None


def test_a_reducer_that_wraps_add_messages_is_called():
    @functools.wraps(add_messages)
    def last_two(left, right):
        return add_messages(left, right)[-2:]

    channel = BinaryOperatorAggregate(list, last_two)
    channel.update([[says(str(n)) for n in range(3)], says("3")])
    assert ids(channel.get()) == ["2", "3"]


def test_removals_are_stored_under_a_stable_name():
    assert b"stategraph.graph.messages:RemoveMessage" in Serializer().dumps(CLEAR)[1]


def test_a_format_has_an_index_of_its_own(long):
    merged = add_messages(long, says("b", [{"type": "text", "text": "x"}]))
    assert add_messages(merged, [], format="openai")[-1]["content"] == "x"


# -- formats ---------------------------------------------------------------------------------------------------


def test_openai_contents_keep_ids():
    blocks = [{"type": "text", "text": "a", "cache_control": {}}, "b"]
    given = [says("1", blocks, "ai"), Model(content=blocks, id="2"), says("3", "as it is")]
    merged = add_messages(given, [], format="openai")
    assert ids(merged) == ["1", "2", "3"] and contents(merged) == ["a\nb", "a\nb", "as it is"]
    assert merged[0]["role"] == "assistant" and merged[2] is given[2]
    assert given[0]["content"] is blocks


def test_openai_images():
    text, url = {"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    data = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0"}}
    source = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    flat = {"type": "image", "base64": "R0", "mime_type": "image/gif"}
    unknown, bare = {"type": "image", "file_id": "f"}, {"type": "audio"}
    [message] = add_messages([], says("1", ["look", data, flat, source, url, unknown, bare, 5]), format="openai")
    gif = {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0"}}
    assert message["content"] == [text, gif, gif, url, url, unknown, bare, 5]


def test_openai_tool_calls():
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    call = {"type": "function", "id": "t1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    given = [
        says("1", ["ok", use], "assistant"),
        {**says("2", [use], "assistant"), "tool_calls": [call]},
        Model(content=["ok", use], id="3", tool_calls=[call]),
        Model(content=["ok", use], id="4"),
    ]
    merged = add_messages([], given, format="langchain-openai")
    assert contents(merged) == ["ok", "", "ok", [{"type": "text", "text": "ok"}, use]]
    assert merged[0]["tool_calls"] == merged[1]["tool_calls"] == [call]


def test_options_alone_give_a_reducer():
    reducer = add_messages(format="openai")
    assert contents(reducer("hi", says("1", ["a", "b"]))) == ["hi", "a\nb"]
    assert add_messages(format="openai") is reducer  # so that two schemas agree on it


@pytest.mark.parametrize("sides", [(), ([], [])])
def test_an_unknown_format_is_refused(sides):
    with pytest.raises(ValueError, match="'xml'"):
        add_messages(*sides, format="xml")  # type: ignore[arg-type]


# -- in a graph ------------------------------------------------------------------------------------------------


class Chat(MessagesState):
    note: str


class Formatted(TypedDict):
    messages: Annotated[list, add_messages(format="openai")]


def graph(node, schema=MessagesState, **options):
    builder = chain_of(schema, say=node)
    return builder.compile(**options)


def seen(drive, app, input="hi", **options):
    """The messages that a reader of the stream got."""
    return [m for m, _ in drive.stream(app, {"messages": input}, stream_mode="messages", **options)]


def test_messages_state(drive):
    app = graph(lambda state: {"messages": ("ai", state["messages"][-1]["content"] + "!"), "note": "n"}, Chat)
    state = drive.invoke(app, {"messages": "hi"})
    assert contents(state["messages"]) == ["hi", "hi!"] and state["note"] == "n"


def test_a_reducer_with_options_in_a_schema(drive):
    app = graph(lambda state: {"messages": says("1", ["a", "b"])}, Formatted)
    assert contents(drive.invoke(app, {"messages": ["hi"]})["messages"]) == ["hi", "a\nb"]


def test_messages_are_stored_and_removed(drive):
    app = graph(lambda state: {"messages": RemoveMessage(id="1")}, checkpointer=InMemorySaver())
    config = CONFIG
    drive.invoke(app, {"messages": [says("1"), says("2")]}, config)
    assert drive.get_state(app, config).values == {"messages": [says("2")]}


def test_a_remove_message_can_be_stored():
    assert Serializer().loads(Serializer().dumps(RemoveMessage("1"))) == RemoveMessage("1")
    assert RemoveMessage("1").role == "remove"


# -- pushed ----------------------------------------------------------------------------------------------------


def test_a_pushed_message_is_streamed_and_written(drive):
    def node(state):
        assert push_message(says("p", "one")) == says("p", "one")
        return {"messages": says("r", "two")}

    assert says("p", "one") in seen(drive, graph(node))
    assert contents(drive.invoke(graph(node), {"messages": "hi"})["messages"]) == ["hi", "one", "two"]


def test_a_message_can_be_pushed_to_readers_only(drive):
    def node(state):
        push_message(says("p"), state_key=None)

    assert seen(drive, graph(node)) == [says("p")]
    assert contents(drive.invoke(graph(node), {"messages": "hi"})["messages"]) == ["hi"]


@pytest.mark.parametrize("message", ["hi", says(None, "hi"), Plain("hi")])
def test_a_pushed_message_needs_an_id(message, drive):
    with pytest.raises(ValueError, match="must have an id"):
        drive.invoke(graph(lambda state: push_message(message)), {"messages": []})


def test_pushing_to_an_unknown_key_is_an_error(drive):
    with pytest.raises(InvalidUpdateError, match="did you mean 'messages'"):
        drive.invoke(graph(lambda state: push_message(says("1"), state_key="message")), {"messages": []})


@pytest.mark.parametrize(
    "call", [lambda: push_message(says("1")), lambda: stream_text(["a"]), lambda: emit_message_delta("1")]
)
def test_outside_of_a_node_nothing_can_be_sent(call):
    with pytest.raises(RuntimeError, match="inside a running node"):
        call()


# -- told part by part -----------------------------------------------------------------------------------------


def telling(*deltas, **options):
    return lambda state: {"messages": stream_text(deltas, **options)}


def test_text_is_streamed_part_by_part(drive):
    app = graph(telling("he", "", None, "llo", id="a"))
    parts = drive.stream(app, {"messages": "hi"}, {"metadata": {"user": "u"}, "tags": ["t"]}, stream_mode="messages")
    assert [m for m, _ in parts][:2] == [says("a", "he", "assistant"), says("a", "llo", "assistant")]
    metadata = parts[0][1]
    assert metadata["user"] == "u" and metadata["tags"] == ["t"] and metadata["stategraph_node"] == "say"
    assert drive.invoke(app, {"messages": []})["messages"] == [says("a", "hello", "assistant")]


def test_the_parts_of_a_text_share_a_random_id(drive):
    parts = seen(drive, graph(telling("a", "b", role="tool")))
    assert parts[0]["id"] == parts[1]["id"] and parts[0]["role"] == "tool"


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_async_text(kind):
    async def tokens():
        for token in "ab":
            yield token

    async def node(state):
        return {"messages": await astream_text(tokens() if kind == "async" else "ab", id="x")}

    app = graph(node)
    assert contents(seen(Drive(is_async=True), app))[:2] == ["a", "b"]
    assert contents(asyncio.run(app.ainvoke({"messages": []}))["messages"]) == ["ab"]


def test_single_deltas(drive):
    def node(state):
        emit_message_delta("1", "a")
        emit_message_delta("1", content=["b"], role="tool")

    assert seen(drive, graph(node)) == [says("1", "a", "assistant"), says("1", ["b"], "tool")]
    drive.invoke(graph(node), {"messages": []})  # nobody listens


def test_nostream_sends_no_tokens_but_what_is_pushed(drive):
    def node(state):
        push_message(says("p"))
        emit_message_delta("q", "x")
        stream_text("abc")
        call_model(FakeModel(), [])

    got = drive.stream(graph(node), {"messages": []}, {"tags": ["nostream"]}, stream_mode="messages")
    assert [m for m, _ in got] == [says("p")]


def test_a_nested_graph_is_streamed_on_request(drive):
    app = graph(graph(telling("he", "llo")))
    assert "he" not in contents(seen(drive, app))
    heard = drive.stream(app, {"messages": []}, stream_mode="messages", subgraphs=True)
    assert "he" in contents([message for _, (message, _) in heard])


# -- chat models -----------------------------------------------------------------------------------------------


class FakeModel:
    """Answers in two chunks, or at once. `chunk_id`: what its chunks are called."""

    def __init__(self, chunk_id="m"):
        self.chunk_id = chunk_id
        self.calls = []

    def invoke(self, messages, **options):
        self.calls.append("invoke")
        return Model(content="hello", id=self.chunk_id)

    async def ainvoke(self, messages, **options):
        return self.invoke(messages, **options)

    def stream(self, messages, *, stop=""):
        self.calls.append(f"stream {stop}")
        yield ModelChunk(content="he", id=self.chunk_id)
        yield ModelChunk(content="llo")

    async def astream(self, messages, *, stop=""):
        for chunk in self.stream(messages, stop=stop):
            yield chunk


def asking(model, drive):
    def node(state):
        return {"messages": call_model(model, state["messages"], stop=".")}

    async def anode(state):
        return {"messages": await acall_model(model, state["messages"], stop=".")}

    return graph(anode if drive.is_async else node)


@pytest.mark.parametrize("chunk_id", ["m", None])
def test_a_model_is_streamed_if_messages_are_requested(drive, chunk_id):
    model = FakeModel(chunk_id)
    got = drive.stream(asking(model, drive), {"messages": "hi"}, stream_mode=["messages", "values"])
    chunks = [data[0] for mode, data in got if mode == "messages"][:2]
    assert model.calls == ["stream ."] and contents(chunks) == ["he", "llo"]
    answer = got[-1][1]["messages"][-1]
    assert ids(chunks) == [answer.id] * 2 and chunk_id in (answer.id, None)
    assert type(answer) is Model and answer.content == "hello"


def test_a_model_is_invoked_if_messages_are_not_requested(drive):
    model = FakeModel()
    answer = drive.invoke(asking(model, drive), {"messages": "hi"})["messages"][-1]
    assert model.calls == ["invoke"] and type(answer) is Model and answer.content == "hello"


def test_a_model_without_a_stream_is_invoked(drive):
    class Mute:
        def invoke(self, messages, **options):
            return Model(content="mute", id="m")

        async def ainvoke(self, messages, **options):
            return self.invoke(messages)

    got = drive.stream(asking(Mute(), drive), {"messages": "hi"}, stream_mode=["messages", "values"])
    assert got[-1][1]["messages"][-1].content == "mute"


def test_a_model_can_be_called_outside_of_a_graph():
    assert call_model(FakeModel(), []).content == "hello"
    assert asyncio.run(acall_model(FakeModel(), [])).content == "hello"


def test_an_empty_stream_is_an_error(drive):
    class Empty(FakeModel):
        def stream(self, messages, *, stop=""):
            return iter(())

    with pytest.raises(ValueError, match="without a chunk"):
        seen(drive, asking(Empty(), drive))


# -- messages that were returned -------------------------------------------------------------------------------


def test_what_was_not_streamed_is_found_once_and_in_order():
    a, b, c = says("a"), Plain("b", "b"), says("c")
    writes = [("messages", [a, b]), ("other", c), ("messages", c), ("n", 1), ("text", "hi"), ("cls", Model)]
    assert unstreamed({}, written_messages(writes), set()) == [a, b, c]
    assert unstreamed({}, written_messages(writes), {"a", "c"}) == [b]
    for write in (Overwrite([a, c]), {"__overwrite__": [a, c]}, {"type": "__overwrite__", "value": [a, c]}):
        assert unstreamed({}, written_messages([("messages", write)]), ()) == [a, c]
    assert unstreamed({}, written_messages([("messages", [RemoveMessage("a"), {"role": "remove", "id": "a", "content": ""}])]), ()) == []


@dataclass
class Record:
    messages: list[Any]


@each_case(
    "given",
    [{"messages": [says("a")], "n": 1}, {"last": says("a")}, Record([says("a")]), [says("a")], says("a")],
)
def test_what_the_task_was_given_is_not_shown_again(given):
    assert unstreamed(given, written_messages([("messages", [says("a", "new"), says("b")])]), ()) == [says("b")]


@pytest.mark.parametrize("given", [None, 5, "hi"])
def test_the_input_may_hold_no_messages(given):
    assert unstreamed(given, written_messages([("messages", says("a"))]), ()) == [says("a")]


@each_schedule
@pytest.mark.parametrize("written", [says(None, "yo"), [says(None, "yo")], (says("1"), says(None, "yo"))])
def test_a_message_without_an_id_is_streamed_under_its_id_in_the_state(drive, schedule, written):
    """Also where it is written, recorded early and shown beside another task, and where the step is stored."""
    builder = chain_of(MessagesState, n=lambda state: {"messages": written})
    builder.add_node("m", lambda state: {"messages": says(None, "beside")}).add_edge(START, "m")
    app = builder.compile(InMemorySaver(), schedule=schedule)
    thread = thread_config("1")
    got = drive.stream(app, {"messages": []}, thread, stream_mode=["messages", "values"])
    streamed = {room.message_id(data[0]) for mode, data in got if mode == "messages"}
    kept = {room.message_id(each) for each in drive.get_state(app, thread).values["messages"]}
    assert None not in streamed and streamed == kept


def test_an_unnamed_message_is_shown_with_an_id_and_stays_as_it_is():
    given = says(None, "a")
    [shown] = unstreamed({"messages": [says(None, "a")]}, written_messages([("messages", given)]), ())
    assert shown["id"] and "id" not in given


@each_case("value", [{"role": "x"}, {"content": "x"}, {"role": 1, "content": ""}, Model, [], 1])
def test_no_messages(value):
    assert not is_message(value)


def test_a_table_with_columns_named_like_a_message_is_none():
    assert not is_message(replace(Frozen("x"), id=[1, 2]))  # type: ignore[arg-type]


# -- late words ------------------------------------------------------------------------------------------------


def test_an_abandoned_attempt_emits_no_more():
    task = FakeTask()
    emit = emitter(task)
    assert emit is not None
    emit("in time")
    task.attempt = 2
    emit("late")
    assert [message for message, _ in task.heard] == ["in time"]


class FakeTask:
    """As much of a task as sending needs."""

    attempt = 1

    def __init__(self):
        self.config = {"metadata": {"k": 1}}
        self.heard = []

    def listens(self, mode):
        return mode == "messages"

    def emit(self, mode, data):
        self.heard.append(data)


LANGCHAIN = """
from langchain_core.messages import AIMessage, HumanMessage
from stategraph import START, InMemorySaver, MessagesState, StateGraph
graph = StateGraph(MessagesState).add_node("n", lambda state: {"messages": [AIMessage("yo", id="2")]}).add_edge(START, "n")
thread = {"configurable": {"thread_id": "1"}}
app = graph.compile(InMemorySaver())
app.invoke({"messages": [HumanMessage("hi", id="1")]}, thread)
print(app.get_state(thread).values["messages"] == [HumanMessage("hi", id="1"), AIMessage("yo", id="2")])
"""


LANGCHAIN_CHUNKS = """
from functools import reduce
from operator import add
from langchain_core.messages import AIMessageChunk
from stategraph.graph.messages.models import add_up

def call(n):
    return {"name": "f" if n == 0 else None, "args": "{" if n == 0 else "1", "id": "c" if n == 0 else None, "index": 0}

usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
texts = [AIMessageChunk(content=text, id="1", response_metadata={"m": "x"} if text == "a" else {}) for text in "abc"]
calls = [AIMessageChunk(content="", id="1", tool_call_chunks=[call(n)], usage_metadata=usage) for n in range(5)]
blocks = [AIMessageChunk(content=[{"type": "text", "text": text, "index": 0}], id="1") for text in "abc"]
print(*(add_up(chunks) == reduce(add, chunks) for chunks in (texts, calls, blocks)))
"""


def run_with_langchain(code):
    """What a program prints where LangChain is installed."""
    return output_of(find_peer(), "-P", "-c", code, env=OF_THE_PACKAGE)


def test_messages_of_langchain_are_stored_where_the_program_has_loaded_it():
    assert run_with_langchain(LANGCHAIN) == "True\n"


class Extras(BaseModel, extra="allow"):
    content: str = ""
    id: str | None = None


@pytest.mark.parametrize("declared", [{"role": "remove"}, {"type": "remove"}])
def test_what_is_removed_may_be_said_in_any_attribute(declared):
    """Of a pydantic model: a field, one of its extras, a class attribute, a property, or made up on demand."""

    class Declared(Extras):
        role: Any = None
        type: Any = None

    class Typed(Extras):
        type: Any = None

    class Attribute(Extras):
        role: ClassVar[Any] = declared.get("role")
        type: ClassVar[Any] = declared.get("type")

    class Computed(Extras):
        @property
        def role(self):
            return declared.get("role")

        @property
        def type(self):
            return declared.get("type")

    class OnDemand(Extras):
        def __getattr__(self, name):
            return declared.get(name)

    for removal in (Declared(**declared), Typed(**declared), Extras(**declared), Attribute(), Computed(), OnDemand()):
        assert is_removal(removal), removal
    for other in (Declared(), Typed(role="user", type="ai"), Typed.__new__(Typed), Extras(role="user"), Extras(), Model(content="")):
        assert not is_removal(other), other


def test_the_sum_of_langchain_chunks_is_theirs(tmp_path):
    assert run_with_langchain(LANGCHAIN_CHUNKS) == "True True True\n"


def test_an_id_that_cannot_be_hashed_is_named():
    message = {"role": "user", "content": "hi", "id": ["1"]}
    for left, right in (([message], []), ([], [message]), ([], [RemoveMessage(id=["1"])])):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"id of a message must be a text .*got list: \['1'\]"):
            add_messages(left, right)
