"""`stategraph.prebuilt` in a process that has LangChain loaded: its messages, tools and models beside dicts and functions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langchain_core.tools import InjectedToolCallId as LangChainsCallId
from pydantic import BaseModel, Field
from side_by_side import PROGRAMS, ROOT
from typing_extensions import TypedDict

sys.path[:0] = [str(PROGRAMS), str(ROOT / ".types")]

from program_cases import Handler  # noqa: E402

from stategraph import (  # noqa: E402
    END,
    START,
    Command,
    InMemorySaver,
    MessagesState,
    Runtime,
    StateGraph,
    add_messages,
)
from stategraph.prebuilt import InjectedState, ToolNode, create_agent, tools_condition  # noqa: E402
from stategraph.testing import ScriptedModel, tool_call  # noqa: E402


class Typed(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Notes(MessagesState):
    note: str


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def double(x):
    """Twice x."""
    return {"double": 2 * x}


@tool
def look(state: Annotated[dict[str, Any], InjectedState], runtime: Runtime, what: str) -> str:
    """Look at the state."""
    return f"{what} of {len(state['messages'])}, {runtime.context}"


@tool
def note(text: str, call: Annotated[str, LangChainsCallId]) -> Command[Any]:
    """Keep a note."""
    return Command(update={"note": text, "messages": [ToolMessage("kept", tool_call_id=call)]})


@tool
async def later(x: int) -> str:
    """Wait, then answer."""
    return f"later {x}"


class Wrong(BaseModel):
    x: int = Field(gt=0)


class Own(BaseTool):
    name: str = "own"
    description: str = "A tool of its own class."
    args_schema: type[BaseModel] = Wrong

    def _run(self, x):
        return f"own {x}"


def calling(*calls):
    return AIMessage("", tool_calls=[{"name": n, "args": a, "id": f"c{i}"} for i, (n, a) in enumerate(calls)], id="ai")


def run_tools(tools: Sequence[Any], message, schema=MessagesState, *, is_async=False, **options):
    graph = StateGraph(schema, dict)
    graph.add_node("tools", ToolNode(tools, **options)).add_conditional_edges(START, tools_condition, ["tools", END])
    app, given = graph.compile(), {"messages": [HumanMessage("hi", id="h"), message]}
    if is_async:
        return asyncio.run(app.ainvoke(given, context={"user": "u"}))
    return app.invoke(given, context={"user": "u"})


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("schema", [MessagesState, Typed])
def test_calls_of_langchains_messages_are_answered_by_langchains_messages(schema, is_async):
    message = calling(("add", {"a": 1, "b": 2}), ("double", {"x": 4}), ("own", {"x": 3}), ("nothing", {}))
    found = run_tools([add, double, Own()], message, schema, is_async=is_async)["messages"][2:]
    assert [type(each) for each in found] == [ToolMessage] * 4
    assert [(each.name, each.tool_call_id, each.status) for each in found] == [
        ("add", "c0", "success"), ("double", "c1", "success"), ("own", "c2", "success"), ("nothing", "c3", "error"),
    ]  # fmt: skip
    assert [each.content for each in found[:3]] == ["3", '{"double":8}', "own 3"]


def test_langchains_tools_answer_dict_messages_with_dicts():
    message = {"role": "assistant", "content": "", "tool_calls": [tool_call("add", a=1, b=2)]}
    (answer,) = run_tools([add], message)["messages"][2:]
    assert (answer["role"], answer["name"], answer["content"]) == ("tool", "add", "3")


def test_calls_in_langchains_form_are_read_in_dicts_too():
    message = {"role": "assistant", "content": "", "tool_calls": [{"name": "double", "args": {"x": 1}, "id": "c"}]}
    (answer,) = run_tools([double], message)["messages"][2:]
    assert answer["content"] == '{"double":2}'


def test_only_unanswered_calls_run():
    graph = StateGraph(MessagesState).add_node("tools", ToolNode([add])).add_edge(START, "tools")
    message = calling(("add", {"a": 1, "b": 2}), ("add", {"a": 2, "b": 2}))
    found = graph.compile().invoke({"messages": [message, ToolMessage("3", tool_call_id="c0", id="t")]})
    assert [each.content for each in found["messages"]] == ["", "3", "4"]


def test_a_langchain_tool_gets_what_the_model_does_not_see():
    node = ToolNode([look, note])
    shown = {each["function"]["name"]: each["function"]["parameters"] for each in node.schemas}
    assert list(shown["look"]["properties"]) == ["what"] == shown["look"]["required"]
    assert list(shown["note"]["properties"]) == ["text"]
    (answer,) = run_tools([look], calling(("look", {"what": "size"})))["messages"][2:]
    assert answer.content == "size of 2, {'user': 'u'}"
    found = run_tools([note], calling(("note", {"text": "tea"})), Notes)
    assert (found["note"], found["messages"][-1].content, len(found["messages"])) == ("tea", "kept", 3)


def test_arguments_that_do_not_fit_are_told_to_the_model():
    (answer,) = run_tools([Own()], calling(("own", {"x": 0})))["messages"][2:]
    assert answer.status == "error" and "error in own" in answer.content and "greater than 0" in answer.content
    with pytest.raises(ZeroDivisionError):
        run_tools([tool(divide)], calling(("divide", {"x": 0})))


def divide(x):
    """Divide by x."""
    return 1 / x


def test_an_async_tool_of_langchain_runs_in_an_async_run():
    (answer,) = run_tools([later], calling(("later", {"x": 3})), is_async=True)["messages"][2:]
    assert answer.content == "later 3"


def test_handlers_hear_of_tools_below_the_node():
    heard = []
    handler = Handler(lambda *words: heard.append(" ".join(map(str, words[:4]))))
    graph = StateGraph(MessagesState).add_node("tools", ToolNode([add])).add_edge(START, "tools")
    graph.compile().invoke({"messages": [calling(("add", {"a": 1, "b": 2}))]}, {"callbacks": [handler]})
    assert [line for line in heard if line.startswith("tool ") and " in " in line] == ["tool add in add"]


def test_an_approval_of_a_langchain_tool_survives_the_resume():
    thread = {"configurable": {"thread_id": "1"}}
    graph = StateGraph(MessagesState).add_node("tools", ToolNode([add], approve=True)).add_edge(START, "tools")
    app = graph.compile(InMemorySaver())
    (question,) = app.invoke({"messages": [calling(("add", {"a": 1, "b": 2}))]}, thread)["__interrupt__"]
    assert question.value == {"tool": "add", "arguments": '{"a": 1, "b": 2}'}
    assert app.invoke(Command(resume={"decision": "approve"}), thread)["messages"][-1].content == "3"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_of_a_langchain_model_and_langchain_tools(is_async):
    model = ScriptedModel([{"tool_calls": [tool_call("add", a=1, b=2)]}, "It is 3."]).as_langchain()
    app = create_agent(model, [add, double], system_prompt="Be brief.")
    given = {"messages": [("user", "1 + 2?")]}
    found = asyncio.run(app.ainvoke(given)) if is_async else app.invoke(given)
    assert [type(each).__name__ for each in found["messages"]] == ["dict", "AIMessage", "ToolMessage", "AIMessage"]
    assert [each.content for each in found["messages"][2:]] == ["3", "It is 3."]


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="a model cannot fill"):
        ToolNode([BaseMessage])


def test_a_structured_tool_of_a_json_schema_is_shown_as_it_is():
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    remote = StructuredTool(name="remote", description="Far away.", args_schema=schema, func=lambda **given: f"got {given['q']}")
    assert ToolNode([remote]).schemas[0]["function"]["parameters"] == {**schema, "description": "Far away."}
    assert run_tools([remote], calling(("remote", {"q": "x"})))["messages"][-1].content == "got x"

