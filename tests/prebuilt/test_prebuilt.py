"""Agents without LangChain: plain functions as tools, dict messages, a scripted model."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import threading
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from kit.drive import Drive, each_case
from kit.graphs import chain_of, graph_of, thread_config
from pydantic import BaseModel, Field

from stategraph import (
    END,
    START,
    Command,
    InMemorySaver,
    InMemoryStore,
    MessagesState,
    Runtime,
    StateGraph,
    StreamWriter,
)
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.executors import ProcessExecutor
from stategraph.graph import call_model, strip_messages
from stategraph.prebuilt import (
    InjectedState,
    InjectedToolCallId,
    Tool,
    ToolCallError,
    ToolNode,
    create_agent,
    tools_condition,
)
from stategraph.store.base import BaseStore
from stategraph.testing import CheckFailed, ScriptedModel, tool_call

pytestmark = pytest.mark.filterwarnings("ignore:tool .* has no description:stategraph.GraphWarning")

THREAD = thread_config("1")


def double(x: int, times: int = 1) -> int:
    """Twice x."""
    return x * 2**times


def fail(text: str) -> str:
    raise KeyError(text)


def asking(*calls, content=""):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answers(state):
    return [message["content"] for message in state["messages"] if message["role"] == "tool"]


def call_tools(drive, node: ToolNode, *calls, **options):
    """The state after the calls of one message."""
    graph = chain_of(MessagesState, tools=node)
    return drive.invoke(graph.compile(**options), {"messages": [asking(*calls)]})


# -- what a model is told of a function -----------------------------------------------------------------------


def test_the_schema_of_a_tool_is_that_of_its_parameters():
    assert Tool(double).schema == {
        "type": "function",
        "function": {
            "name": "double",
            "description": "Twice x.",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "times": {"type": "integer", "default": 1}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }


def test_a_parameter_may_have_any_name_and_a_description():
    def look(schema: Annotated[str, Field(description="which one")], _x: int = 0, copy: Literal["a"] = "a") -> str:
        return f"{schema} {_x} {copy}"

    properties = Tool(look).schema["function"]["parameters"]["properties"]
    assert list(properties) == ["schema", "_x", "copy"]
    assert properties["schema"] == {"type": "string", "description": "which one"}
    assert look(**Tool(look).read('{"schema": "s", "_x": 2}')) == "s 2 a"


class Place(BaseModel):
    city: str


def test_arguments_arrive_with_the_types_that_the_function_declares():
    def book(place: Place, day: date, tags: set[str]): ...

    read = Tool(book).read('{"place": {"city": "Rome"}, "day": "2026-01-02", "tags": ["a", "a"]}')
    assert read == {"place": Place(city="Rome"), "day": date(2026, 1, 2), "tags": {"a"}}


@each_case("text", ["[", "3", "{}", '{"x": "many"}', '{"x": 1, "y": 2}'])
def test_arguments_that_do_not_fit_are_a_mistake_of_the_model(text):
    with pytest.raises(ToolCallError):
        Tool(double).read(text)


def test_what_the_graph_fills_the_model_does_not_see():
    def act(
        x: int,
        state: Annotated[dict[str, Any], InjectedState],
        messages: Annotated[list[Any], InjectedState("messages")],
        call: Annotated[str, InjectedToolCallId],
        runtime: Runtime[Any],
        memory: BaseStore | None,
        say: StreamWriter,
    ): ...

    assert list(Tool(act).schema["function"]["parameters"]["properties"]) == ["x"]


def test_a_parameter_that_no_model_can_fill_is_refused_when_the_tool_is_made():
    with pytest.raises(TypeError, match=r"tool 'f': a model cannot fill the parameter '\*words'"):
        Tool(lambda *words: None, name="f")


def test_a_tool_is_pickled_by_its_function():
    again = pickle.loads(pickle.dumps(Tool(double, name="twice")))
    assert (again.name, again.schema) == ("twice", Tool(double, name="twice").schema)


# -- the node -------------------------------------------------------------------------------------------------


def test_each_call_is_answered_in_the_order_of_the_calls(drive):
    state = call_tools(drive, ToolNode([double]), tool_call("double", id="a", x=1), tool_call("double", id="b", x=2, times=3))
    found = [(m["tool_call_id"], m["name"], m["content"]) for m in state["messages"][1:]]
    assert found == [("a", "double", "2"), ("b", "double", "16")]


def test_calls_run_side_by_side(drive):
    both = threading.Barrier(2, timeout=20)

    def meet(name: str) -> str:
        both.wait()
        return name

    state = call_tools(drive, ToolNode([meet]), tool_call("meet", name="a"), tool_call("meet", name="b"))
    assert answers(state) == ["a", "b"]


def test_coroutine_functions_are_awaited_side_by_side():
    met = asyncio.Event()

    async def wait(name: str) -> str:
        await met.wait()
        return name

    async def release(name: str) -> str:
        met.set()
        return name

    calls = [tool_call("wait", name="a"), tool_call("release", name="b"), tool_call("double", x=1)]
    assert answers(call_tools(Drive(True), ToolNode([wait, release, double]), *calls)) == ["a", "b", "2"]


@each_case(
    "result, content",
    [
        ("text", "text"),
        (3, "3"),
        (None, "null"),
        ({"a": date(2026, 1, 2)}, '{"a":"2026-01-02"}'),
        ([{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}]),
        ([], "[]"),
        ({"role": "tool", "content": "mine", "mark": 1}, "mine"),
    ],
)
def test_what_a_tool_returns_becomes_a_message(drive, result, content):
    state = call_tools(drive, ToolNode([Tool(lambda: result, name="give")]), tool_call("give", id="c"))
    assert (state["messages"][-1]["content"], state["messages"][-1]["tool_call_id"]) == (content, "c")


WRONG = [tool_call("fly"), tool_call("double", x="many"), tool_call("double")]


@pytest.mark.parametrize("call", WRONG)
def test_errors_of_a_models_calls_are_returned_to_it(drive, call):
    message = call_tools(drive, ToolNode([double]), call)["messages"][-1]
    assert message["status"] == "error"
    assert message["content"].startswith(f"error in {call['function']['name']}: ")


def test_an_error_of_a_tool_ends_the_run_by_default(drive):
    with pytest.raises(KeyError, match="oh"):
        call_tools(drive, ToolNode([fail]), tool_call("fail", text="oh"))


@each_case(
    "policy, told",
    [
        (True, "error in fail: KeyError('oh')"),
        (LookupError, "error in fail: KeyError('oh')"),
        ((OSError, KeyError), "error in fail: KeyError('oh')"),
        ("try again", "try again"),
        (lambda error: f"no {error.args[0]}", "no oh"),
        (False, None),
        (OSError, None),
    ],
)
def test_errors_returned_to_the_model_are_configured_once(drive, policy, told):
    node = ToolNode([fail], handle_tool_errors=policy)
    if told is None:
        with pytest.raises(KeyError):
            call_tools(drive, node, tool_call("fail", text="oh"))
    else:
        assert answers(call_tools(drive, node, tool_call("fail", text="oh"))) == [told]


def test_a_tool_gets_what_it_asks_of_the_running_graph(drive):
    def act(
        state: Annotated[dict[str, Any], InjectedState],
        messages: Annotated[list[Any], InjectedState("messages")],
        call: Annotated[str, InjectedToolCallId],
        runtime: Runtime[Any],
        memory: BaseStore | None,
    ):
        assert state["messages"] == messages
        assert runtime.store is memory
        return [len(messages), call, memory is not None]

    assert answers(call_tools(drive, ToolNode([act]), tool_call("act", id="c"), store=InMemoryStore())) == ['[1,"c",true]']


class Team(MessagesState, total=False):
    place: str


def test_a_tool_may_return_a_command(drive):
    def go(place: str, call: Annotated[str, InjectedToolCallId]) -> Command:
        return Command(goto="there", update={"place": place})

    graph = StateGraph(Team)
    graph.add_node("tools", ToolNode([go, double]), destinations=["there"])
    graph.add_node("there", lambda state: {"messages": ("user", f"I am in {state['place']}")})
    graph.add_edge(START, "tools")
    calls = asking(tool_call("go", place="Rome"), tool_call("double", x=1))
    state = drive.invoke(graph.compile(), {"messages": [calls]})
    assert [m["content"] for m in state["messages"][1:]] == ["done", "2", "I am in Rome"]


def test_a_commands_own_answer_to_the_call_is_the_only_one(drive):
    def go(call: Annotated[str, InjectedToolCallId]) -> Command:
        return Command(update={"messages": {"role": "tool", "tool_call_id": call, "content": "mine"}})

    assert answers(call_tools(drive, ToolNode([go]), tool_call("go"))) == ["mine"]


def test_calls_that_were_answered_are_not_made_again(drive):
    said = [asking(tool_call("double", id="a", x=1), tool_call("double", id="b", x=2))]
    said.append({"role": "tool", "tool_call_id": "a", "content": "by hand"})
    assert tools_condition({"messages": said}) == "tools"
    state = drive.invoke(chain_of(MessagesState, tools=ToolNode([double])).compile(), {"messages": said})
    assert answers(state) == ["by hand", "4"]
    assert tools_condition(state) == END


@dataclass
class Record:
    talk: list[Any]


def test_the_state_may_be_an_object_and_its_messages_have_another_key():
    assert tools_condition(Record([asking(tool_call("double", x=1))]), "talk") == "tools"
    assert tools_condition(Record([]), "talk") == END


def test_names_are_checked_when_the_node_is_made():
    with pytest.raises(ValueError, match="two tools have the name 'double'"):
        ToolNode([double, Tool(fail, name="double")])
    with pytest.raises(ValueError, match="approve names no tool: 'dubble'; did you mean 'double'"):
        ToolNode([double], approve=["dubble"])


def test_messages_that_are_no_dicts_are_refused_with_the_way_out(drive):
    class Foreign:
        id, content, tool_calls = "1", "", ()

    graph = chain_of(MessagesState, tools=ToolNode([double]))
    with pytest.raises(TypeError, match="must be dicts here, got Foreign"):
        drive.invoke(graph.compile(), {"messages": [Foreign()]})


# -- the agent ------------------------------------------------------------------------------------------------


def test_an_agent_calls_tools_until_the_model_asks_for_none(drive):
    model = ScriptedModel([asking(tool_call("double", x=4)), lambda said: f"It is {said[-1]['content']}."])
    app = create_agent(model, [double], system_prompt="Be brief.")
    state = drive.invoke(app, {"messages": "2 * 4?"})
    assert [m["role"] for m in state["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert state["messages"][-1]["content"] == "It is 8."
    (first, options), _ = model.requests
    assert [m["content"] for m in first] == ["Be brief.", "2 * 4?"]
    assert options == {"tools": [Tool(double).schema]}


def test_an_agent_without_tools_is_a_model(drive):
    model = ScriptedModel(["Hello."])
    assert drive.invoke(create_agent(model), {"messages": "hi"})["messages"][-1]["content"] == "Hello."
    assert model.requests[0][1] == {}  # servers refuse an empty list


def test_the_tokens_of_an_agent_are_streamed(drive):
    model = ScriptedModel([asking(tool_call("double", x=4), content="Let me see."), "It is 8."])
    chunks = drive.stream(create_agent(model, [double]), {"messages": "2 * 4?"}, stream_mode="messages")
    texts = [message["content"] for message, meta in chunks if meta["stategraph_node"] == "model"]
    assert [text for text in texts if text] == ["Let", " me", " see.", "It", " is", " 8."]


def test_streamed_or_not_the_messages_are_the_same(drive):
    script = [asking(tool_call("double", x=4), tool_call("double", x=5), content="So:"), "Done."]
    plain = drive.invoke(create_agent(ScriptedModel(script), [double]), {"messages": "?"})
    modes = ["messages", "values"]
    chunks = drive.stream(create_agent(ScriptedModel(script), [double]), {"messages": "?"}, stream_mode=modes)
    [*_, last] = [chunk for mode, chunk in chunks if mode == "values"]
    assert strip_messages(last["messages"]) == strip_messages(plain["messages"])


def approving(model: ScriptedModel, saver, done, approve=True):
    def delete(file: str) -> str:
        done.append(file)
        return f"deleted {file}"

    return create_agent(model, [delete], approve=approve, checkpointer=saver)


def test_a_call_waits_for_approval_and_no_call_is_made_twice(drive):
    done = []
    asked = asking(tool_call("delete", file="a"), tool_call("delete", file="b"), tool_call("delete", file="c"))
    app = approving(ScriptedModel([asked, "Well."]), InMemorySaver(), done)
    state = drive.invoke(app, {"messages": "Tidy up"}, THREAD)
    questions = {q.value["arguments"]: q.id for q in state["__interrupt__"]}
    assert (len(questions), done) == (3, [])
    first = {questions['{"file": "a"}']: {"decision": "approve"}}
    drive.invoke(app, Command(resume=first), THREAD)
    assert done == ["a"]
    rest = {questions['{"file": "b"}']: {"decision": "reject"}, questions['{"file": "c"}']: {"decision": "approve"}}
    state = drive.invoke(app, Command(resume=rest), THREAD)
    assert done == ["a", "c"]
    assert answers(state) == ["deleted a", "The call was rejected.", "deleted c"]
    assert state["messages"][-1]["content"] == "Well."


def test_an_answer_that_is_no_decision_is_asked_for_again(drive):
    done = []
    app = approving(ScriptedModel([asking(tool_call("delete", file="a")), "Well."]), InMemorySaver(), done)
    drive.invoke(app, {"messages": "Tidy up"}, THREAD)
    for wrong in ({"decision": "perhaps"}, True):
        shape = r'the answer must be {"decision": "approve"} or {"decision": "reject", "message": "why"}, got '
        with pytest.raises(ValueError, match=re.escape(shape) + re.escape(repr(wrong))):
            drive.invoke(app, Command(resume=wrong), THREAD)
    assert done == []
    drive.invoke(app, Command(resume={"decision": "approve"}), THREAD)
    assert done == ["a"]


@pytest.mark.parametrize(
    ("approve", "asks"),
    [(False, 0), (True, 2), (["delete"], 2), (lambda name, arguments: arguments["file"] == "b", 1)],
)
def test_approval_is_asked_for_where_it_is_wanted(drive, approve, asks):
    calls = asking(tool_call("delete", file="a"), tool_call("delete", file="b"))
    app = approving(ScriptedModel([calls, "Well."]), InMemorySaver(), [], approve)
    state = drive.invoke(app, {"messages": "?"}, THREAD)
    assert len(state.get("__interrupt__", ())) == asks


def test_wrong_arguments_are_not_put_before_a_person(drive):
    app = approving(ScriptedModel([asking(tool_call("delete", name="a")), "Well."]), InMemorySaver(), [])
    state = drive.invoke(app, {"messages": "?"}, THREAD)
    assert answers(state)[0].startswith("error in delete: file: Field required")


def test_after_a_crash_a_tool_that_had_finished_is_not_called_again(drive, tmp_path):
    done = []
    broken = [True]

    def count(x: int) -> int:
        done.append(x)
        return x

    def crash(x: int) -> int:
        if broken:
            raise OSError("no network")
        return x

    model = ScriptedModel([asking(tool_call("count", x=1), tool_call("crash", x=2)), "Well."])
    with SqliteSaver.from_conn_string(tmp_path / "threads.db") as saver:
        app = create_agent(model, [count, crash], checkpointer=saver)
        with pytest.raises(OSError, match="no network"):
            drive.invoke(app, {"messages": "?"}, THREAD)
        broken.clear()
        state = drive.invoke(app, None, THREAD)
    assert (done, answers(state)) == ([1], ["1", "2"])


def find_process(x: int) -> int:
    return os.getpid()


@pytest.mark.trial
def test_tools_run_where_the_graph_says_and_ask_from_there(drive):
    call = asking(tool_call("find_process", x=1), tool_call("fly"))
    with ProcessExecutor(1) as workers:
        graph = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([find_process], approve=True), executor="threads").add_edge(START, "tools")
        app = graph.compile(InMemorySaver(), executor=workers)
        drive.invoke(app, {"messages": [call]}, THREAD)
        state = drive.invoke(app, Command(resume={"decision": "approve"}), THREAD)
    where, unknown = answers(state)
    assert int(where) != os.getpid()
    assert unknown.startswith("error in fly")


def test_a_model_that_is_only_sync_serves_async_runs_too():
    class Echo:
        def invoke(self, messages: list[Any], **_):
            return {"role": "assistant", "content": messages[-1]["content"]}

    assert Drive(True).invoke(create_agent(Echo()), {"messages": "hi"})["messages"][-1]["content"] == "hi"


def test_an_answer_that_is_no_dict_is_refused_with_the_way_out(drive):
    class Foreign:
        def invoke(self, messages) -> object:
            return object()

    with pytest.raises(TypeError, match="the model must answer with a dict, got object"):
        drive.invoke(create_agent(Foreign()), {"messages": "hi"})


# -- what agents are made of ----------------------------------------------------------------------------------


def test_parts_of_tool_calls_are_put_together():
    def piece(name: str = "", arguments: str = "", **more):
        call = {**more, "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    class Model:
        def __init__(self, *parts):
            self.parts = parts

        def invoke(self, messages): ...

        def stream(self, messages):
            yield from self.parts

    def said(*parts):
        chunks = (
            chain_of(MessagesState, a=lambda state: {"messages": call_model(Model(*parts), state["messages"])})
            .compile()
            .stream({"messages": "?"}, stream_mode=["messages", "values"])
        )
        [*_, last] = [chunk for mode, chunk in chunks if mode == "values"]
        return [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in last["messages"][-1]["tool_calls"]]

    by_index = [piece("f", index=0, id="1"), piece("g", index=1, id="2"), piece("", "[1]", index=0), piece("", "[2]", index=1)]
    assert said(*by_index) == [("1", "f", "[1]"), ("2", "g", "[2]")]
    by_id = [piece("f", "[1]", index=0, id="1"), piece("g", "[2]", index=0, id="2")]  # as some servers do it
    assert said(*by_id) == [("1", "f", "[1]"), ("2", "g", "[2]")]


def test_what_apis_refuse_is_stripped_and_nothing_given_is_changed():
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    given = [
        {"type": "human", "content": "hi", "id": "1", "mark": 1},
        {"role": "ai", "content": None, "tool_calls": [call], "usage": {}, "id": "2", "reasoning_content": "r"},
        {"role": "assistant", "content": "no calls", "tool_calls": []},
        {"role": "tool", "tool_call_id": "c", "name": "f", "status": "error", "content": "x", "artifact": [1]},
    ]
    before = pickle.dumps(given)
    plain = {"id": "c", "type": "function", "function": call["function"]}
    assert strip_messages(given) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [plain]},
        {"role": "assistant", "content": "no calls"},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    assert strip_messages(given, keep=["reasoning_content"])[1]["reasoning_content"] == "r"
    assert pickle.dumps(given) == before
    foreign = object()
    assert strip_messages([foreign]) == [foreign]


def test_an_exhausted_script_raises_and_scripted_errors_are_raised():
    model = ScriptedModel([OSError("no network")])
    with pytest.raises(OSError, match="no network"):
        model.invoke([])
    with pytest.raises(CheckFailed, match="asked 2 times"):
        model.invoke([])


def test_a_handwritten_loop_is_drawn_as_one():
    graph = graph_of(MessagesState, "S>think tools>think", think=lambda state: None, tools=ToolNode([double]))
    graph.add_conditional_edges("think", tools_condition)
    lines = graph.compile().get_graph().draw_mermaid().splitlines()
    assert {"    think -.-> tools", "    think -.-> __end__", "    tools --> think"} <= {*lines}
