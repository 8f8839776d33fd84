"""Objects of LangChain and NumPy in the state: what can be stored is decided when it is written, and what is read back is
equal and of the same types, on every saver."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from kit.programs import printed
from langchain_core.documents import Document
from langchain_core.documents.base import Blob
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    ToolMessageChunk,
)
from pydantic import BaseModel, ConfigDict
from side_by_side import ROOT
from typing_extensions import TypedDict

sys.path[:0] = [str(ROOT / ".types")]


from stategraph import START, StateGraph  # noqa: E402
from stategraph.checkpoint import UnknownTypeError, UnserializableError  # noqa: E402
from stategraph.checkpoint.sqlite import SqliteSaver  # noqa: E402

THREAD = {"configurable": {"thread_id": "1"}}
ARRAY = np.arange(6.0).reshape(2, 3)
CALL = {"name": "f", "args": {"a": 1}, "id": "1"}
USED = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


@dataclass
class Held:
    x: Any


class Model(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    x: Any


class State(TypedDict, total=False):
    value: Any
    held: Held
    model: Model


VALUES = {
    "an answer": AIMessage("x", tool_calls=[CALL], usage_metadata=USED, response_metadata={"p": np.float32(0.5)}),
    "an answer of blocks": AIMessage(content_blocks=[{"type": "text", "text": "x"}]),
    "a question of blocks": HumanMessage([{"type": "text", "text": "a"}, {"type": "image", "base64": "x", "mime_type": "image/png"}]),
    "messages of every kind": [
        SystemMessage("s"), HumanMessage("h", name="n"), ChatMessage("c", role="r"), FunctionMessage("f", name="f"),
        RemoveMessage(id="1"), ToolMessage("t", tool_call_id="1", status="error"),
    ],
    "chunks": [
        AIMessageChunk("x", tool_call_chunks=[{"name": "f", "args": "{", "id": "1", "index": 0}]),
        ToolMessageChunk("x", tool_call_id="1"),
    ],
    "an array as an artifact": ToolMessage("x", tool_call_id="1", artifact=ARRAY),
    "documents as an artifact": ToolMessage(
        "x", tool_call_id="1", artifact=[Document("d", id="1", metadata={"score": np.int64(3), "vector": ARRAY})]
    ),
    "a dataclass as an artifact": ToolMessage("x", tool_call_id="1", artifact=Held((ARRAY, {1: np.bool_(True)}))),
    "a model as an artifact": ToolMessage("x", tool_call_id="1", artifact=Model(x=[AIMessage("y")])),
    "additional_kwargs": AIMessage("x", additional_kwargs={"a": ARRAY, "m": HumanMessage("q"), "t": (1, 2)}),
    "fields of one's own": HumanMessage("x", mood=ARRAY),
    "a document": Document("x", metadata={"n": np.str_("a")}),
    "a blob": Blob.from_data("x", mime_type="text/plain"),
    "nested in dicts and lists": {"a": [HumanMessage("x"), ARRAY, {"t": (Document("y"), np.datetime64("2026-01-02"))}]},
    "nested in a dataclass": Held({"m": [AIMessage("x"), Held(ARRAY)]}),
    "nested in a model": Model(x=[AIMessage("x"), Model(x=ARRAY)]),
    "scalars": [np.int8(1), np.float16(2), np.complex64(1j), np.bool_(False), np.bytes_(b"a\0"), np.timedelta64(3, "s")],
    "in a set, and as a key": [{np.int64(1)}, {np.int64(2): "two"}],
    "views": [ARRAY.T, ARRAY[::-1], ARRAY[:, 1], np.array(3), np.array(["a", ""]), np.zeros((0, 2))],
}  # fmt: skip


def same(left, right):
    """Whether two values are equal and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and bool((left == right).all())
    if isinstance(left, dict):
        return list(map(type, left)) == list(map(type, right)) and all(k in right and same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, BaseModel):
        return left.model_fields_set == right.model_fields_set and same(parts(left), parts(right))
    if is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    return bool(left == right)


def parts(model: BaseModel):
    return {**model.__dict__, **(model.__pydantic_extra__ or {})}


def writing(value, saver):
    graph = StateGraph(State)
    graph.add_node("writer", lambda state: {"value": value})
    return graph.add_edge(START, "writer").compile(checkpointer=saver)


@pytest.mark.parametrize("name", VALUES)
def test_what_was_written_is_read_back_equal_and_of_the_same_types(name, saver):
    app = writing(VALUES[name], saver)
    app.invoke({}, THREAD)
    found = app.get_state(THREAD).values["value"]
    assert found is not VALUES[name]
    assert same(found, VALUES[name]), f"{found!r} is not {VALUES[name]!r}"


REFUSED = {
    ".additional_kwargs['k'][0]: cannot store _thread.lock": AIMessage("x", additional_kwargs={"k": [threading.Lock()]}),
    ".artifact['o']: cannot store numpy.ndarray: its dtype is dtype('O')": ToolMessage(
        "x", tool_call_id="1", artifact={"o": np.array([None])}
    ),
    "[0].metadata['a'][0]: cannot store _thread.lock": [Document("x", metadata={"a": (threading.Lock(),)})],
    ".x[0]['mood']: cannot store _thread.lock": Held([HumanMessage("x", mood=threading.Lock())]),
    ".x.response_metadata['z']: cannot store numpy.ma.MaskedArray": Model(
        x=AIMessage("x", response_metadata={"z": np.ma.array([1], mask=[1])})
    ),
}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_stored_is_refused_when_it_is_written(reason, durability, saver):
    with pytest.raises(UnserializableError) as raised:
        writing(REFUSED[reason], saver).invoke({}, THREAD, durability=durability)
    assert reason in str(raised.value)
    who = ", written by task 'writer'" if durability != "exit" else " after step 1"  # then only the last state is stored
    assert raised.value.__notes__[0].startswith(f"while storing key 'value'{who} of thread '1'")


def test_the_text_of_a_message_is_stored_as_str_and_a_message_read_back_has_its_own(saver):
    message = AIMessage([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    app = writing([message.text, message], saver)
    app.invoke({}, THREAD)
    text, again = app.get_state(THREAD).values["value"]
    assert (type(text), text) == (str, "ab")
    assert (type(again.text), again.text) == (type(message.text), "ab")
    assert isinstance(again.text, str)


class Note(HumanMessage):
    mood: str = "calm"


class Talk(TypedDict):
    messages: list[AnyMessage | Note]


def test_a_custom_message_class_is_stored_where_the_state_names_it(saver):
    graph = StateGraph(Talk)
    graph.add_node("writer", lambda state: {"messages": [Note("x", mood="wild")]})
    app = graph.add_edge(START, "writer").compile(checkpointer=saver)
    app.invoke({"messages": []}, THREAD)
    found = app.get_state(THREAD).values["messages"]
    assert same(found, [Note("x", mood="wild")])
    with pytest.raises(UnserializableError, match=r"cannot store .*Plain"):
        writing(type("Plain", (HumanMessage,), {"__module__": __name__})("x"), saver).invoke({}, THREAD)


READ = """
import sys
from stategraph import StateGraph
from stategraph.checkpoint.sqlite import SqliteSaver
{load}
with SqliteSaver.from_conn_string({path!r}) as saver:
    try:
        print(type(saver.get({{"configurable": {{"thread_id": "1"}}}})["channel_values"]["value"]).__name__)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_another_process_needs_the_library_loaded_and_no_more(tmp_path):
    path = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(path) as saver:
        writing(Document("x"), saver).invoke({}, THREAD)

    def read(load):
        code = READ.format(load=load, path=path)
        return printed(code)

    assert read("import langchain_core.messages") == "Document\n"
    said = read("")
    assert said.startswith(UnknownTypeError.__name__)
    assert "import langchain_core before loading" in said
