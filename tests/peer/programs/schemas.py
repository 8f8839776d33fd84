"""States of all kinds, contexts, configs and what nodes are given."""

import asyncio
import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.prebuilt import (
    InjectedState,
    InjectedStore,
    ToolNode,
    create_react_agent,
    tools_condition,
)
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Overwrite, Send
from program_cases import (
    Talking,
    add,
    case,
    conversation,
    in_both_worlds,
    run_cases,
    saying,
    thread,
)
from pydantic import BaseModel, Field, ValidationError, field_validator
from typing_extensions import TypedDict


@case
def a_pydantic_state(note):
    class Inner(BaseModel):
        n: int

    class State(BaseModel):
        a: str
        inner: Inner = Field(default_factory=lambda: Inner(n=0))
        log: Annotated[list[str], operator.add] = []

        @field_validator("a")
        @classmethod
        def short(cls, value):
            if len(value) > 5:
                raise ValueError("too long")
            return value

    def node(state: State):
        return {"a": state.a + "!", "inner": {"n": state.inner.n + 1}, "log": [type(state).__name__]}

    def make():
        return StateGraph(State).add_sequence([("one", node), ("two", node)]).add_edge(START, "one").compile()

    in_both_worlds(note, make, {"a": "x"}, State(a="y", inner=Inner(n=5)))
    try:
        make().invoke({"a": "much too long"})
    except ValidationError as error:
        note("refused", error.error_count())
    note(make().get_input_jsonschema()["title"], sorted(make().get_input_jsonschema()["properties"]))


@case
def a_dataclass_state(note):
    @dataclass
    class State:
        text: str
        log: Annotated[list[str], operator.add] = field(default_factory=list)
        opt: Optional[int] = None

    def node(state: State):
        return {"log": [f"{state.text} {state.opt}"]}

    def whole(state: State):
        return State(text=state.text.upper(), log=["whole"])

    def make():
        return StateGraph(State).add_sequence([node, whole]).add_edge(START, "node").compile(checkpointer=InMemorySaver())

    in_both_worlds(note, make, {"text": "x"}, config=thread())
    note(make().get_state(thread()).values)


@case
def input_and_output_schemas(note):
    class In(TypedDict):
        question: str

    class Out(TypedDict):
        answer: str

    class Overall(In, Out):
        pass

    class Private(TypedDict):
        secret: str

    def first(state: In) -> Private:
        return {"secret": state["question"] + "?"}

    def second(state: Private) -> Overall:
        return {"answer": state["secret"] + " yes", "question": "changed"}

    def make():
        graph = StateGraph(Overall, input_schema=In, output_schema=Out)
        return graph.add_sequence([first, second]).add_edge(START, "first").compile()

    in_both_worlds(note, make, {"question": "q"})
    for chunk in make().stream({"question": "q", "answer": "dropped"}, stream_mode=["values", "updates"]):
        note(chunk)
    note(sorted(make().get_input_jsonschema()["properties"]), sorted(make().get_output_jsonschema()["properties"]))


@case
def reducers(note):
    def keep_longest(left: str, right: str) -> str:
        return max(left or "", right, key=len)

    class State(TypedDict):
        longest: Annotated[str, keep_longest]
        total: Annotated[int, operator.add]
        merged: Annotated[dict, lambda a, b: {**a, **b}]
        last: str

    def make():
        graph = StateGraph(State)
        graph.add_node("a", lambda s: {"longest": "aa", "total": 1, "merged": {"a": 1}, "last": "a"})
        graph.add_node("b", lambda s: {"longest": "b", "total": 2, "merged": {"b": 2}})
        graph.add_node("c", lambda s: {"total": Overwrite(100)})
        return graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c").compile()

    in_both_worlds(note, make, {"longest": "x", "total": 1, "merged": {"in": 0}}, {})


@case
def managed_values(note):
    class State(TypedDict):
        log: Annotated[list, operator.add]
        is_last: IsLastStep
        remaining: RemainingSteps

    def node(state: State):
        return {"log": [(state["is_last"], state["remaining"])]}

    def route(state: State):
        return END if state["remaining"] <= 2 else "node"

    def make():
        return StateGraph(State).add_node(node).add_edge(START, "node").add_conditional_edges("node", route).compile()

    in_both_worlds(note, make, {"log": []}, config={"recursion_limit": 6})


@case
def configurable_fields(note):
    class Config(TypedDict, total=False):
        model: str

    seen = []

    def node(state: MessagesState, config: RunnableConfig):
        seen.append((config["configurable"].get("model", "none"), config.get("tags"), config["metadata"].get("k")))
        return {"messages": saying("x").invoke(state["messages"])}

    graph = StateGraph(MessagesState, Config).add_node(node).add_edge(START, "node")
    app = graph.compile()
    app.invoke({"messages": "q"})
    app.invoke({"messages": "q"}, {"configurable": {"model": "big"}, "tags": ["t"], "metadata": {"k": 1}})
    app.with_config(configurable={"model": "bound"}, tags=["b"]).invoke({"messages": "q"})
    app.invoke({"messages": "q"}, {"configurable": {"model": "big"}, "run_name": "r", "max_concurrency": 2})
    note(seen)


@case
def contexts(note):
    @dataclass
    class Context:
        user: str = "nobody"
        limit: int = 3

    def node(state: dict, runtime: Runtime[Context]):
        note(runtime.context, get_runtime(Context).context.user, runtime.previous, runtime.store)
        return {"x": runtime.context.limit}

    class State(TypedDict):
        x: int

    graph = StateGraph(State, context_schema=Context).add_node(node).add_edge(START, "node")
    app = graph.compile()
    note(app.invoke({"x": 1}, context=Context(user="al")))
    note(app.invoke({"x": 1}, context={"limit": 7}))
    note(asyncio.run(app.ainvoke({"x": 1}, context={"user": "bo"})))
    note(sorted(app.get_context_jsonschema()["properties"]))


@case
def a_messages_state_with_more(note):
    class State(MessagesState):
        documents: list[str]

    def node(state: State) -> dict[str, Any]:
        return {"messages": AIMessage("a", id="2"), "documents": [*state.get("documents", []), "d"], "unknown": 1}

    def make():
        return StateGraph(State).add_node(node).add_edge(START, "node").compile()

    in_both_worlds(note, make, {"messages": [HumanMessage("q", id="1")]}, {"messages": "text"} and {"messages": [], "zzz": 1})


@case
def a_graph_of_runnables(note):
    class State(TypedDict):
        n: int

    inc = RunnableLambda(lambda s: {"n": s["n"] + 1}).with_config(run_name="inc")
    chain = RunnableLambda(lambda s: s["n"]) | RunnableLambda(lambda n: {"n": n * 10})
    graph = StateGraph(State).add_node("inc", inc).add_node("chain", chain).add_edge(START, "inc").add_edge("inc", "chain")
    in_both_worlds(note, graph.compile, {"n": 1})


@case
def tools_with_injected_state_and_store(note):
    @tool
    def look(query: str, state: Annotated[dict, InjectedState], store: Annotated[Any, InjectedStore()]) -> str:
        """Look."""
        return f"{query} {len(state['messages'])} {store.get(('n',), 'k').value}"

    @tool
    def last(field: Annotated[list, InjectedState("messages")]) -> str:
        """Last."""
        return field[-1].type

    @tool
    def move(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Move."""
        return Command(update={"messages": [ToolMessage("moved", tool_call_id=tool_call_id)], "where": "there"})

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]
        where: str

    store = InMemoryStore()
    store.put(("n",), "k", {"v": 1})
    calls = [
        {"name": "look", "args": {"query": "q"}, "id": "c1", "type": "tool_call"},
        {"name": "last", "args": {}, "id": "c2", "type": "tool_call"},
        {"name": "move", "args": {}, "id": "c3", "type": "tool_call"},
        {"name": "nope", "args": {}, "id": "c4", "type": "tool_call"},
    ]
    app = StateGraph(State).add_node("tools", ToolNode([look, last, move])).add_edge(START, "tools").compile(store=store)
    found = app.invoke({"messages": [AIMessage("", tool_calls=calls, id="1")]})
    note(found["where"], conversation(found))
    note(sorted(look.args), look.tool_call_schema.model_json_schema()["required"])
    note(conversation(asyncio.run(app.ainvoke({"messages": [AIMessage("", tool_calls=calls[:1], id="1")]}))))


@case
def tools_that_fail(note):
    @tool
    def divide(a: int, b: int) -> float:
        """Divide."""
        return a / b

    call = {"name": "divide", "args": {"a": 1, "b": 0}, "id": "c1", "type": "tool_call"}
    for handle in (True, "oops", lambda e: f"handled {type(e).__name__}", (ZeroDivisionError,), False):
        app = StateGraph(MessagesState).add_node("tools", ToolNode([divide], handle_tool_errors=handle))
        try:
            found = app.add_edge(START, "tools").compile().invoke({"messages": [AIMessage("", tool_calls=[call])]})
            note(found["messages"][-1].content, found["messages"][-1].status)
        except ZeroDivisionError:
            note("raised")
    bad = {**call, "args": {"a": "x"}}
    app = StateGraph(MessagesState).add_node("tools", ToolNode([divide])).add_edge(START, "tools").compile()
    note(app.invoke({"messages": [AIMessage("", tool_calls=[bad])]})["messages"][-1].status)


@case
def calls_of_tools_are_sent_one_by_one(note):
    def spread(state):
        return [Send("tools", [call]) for call in state["messages"][-1].tool_calls]

    calls = [{"name": "add", "args": {"a": i, "b": 1}, "id": f"c{i}", "type": "tool_call"} for i in range(3)]
    graph = StateGraph(MessagesState).add_node("tools", ToolNode([add])).add_node("ask", lambda s: None)
    graph.add_edge(START, "ask").add_conditional_edges("ask", spread, ["tools"])
    note(conversation(graph.compile().invoke({"messages": [AIMessage("", tool_calls=calls, id="1")]})))
    note(tools_condition({"messages": [AIMessage("")]}), tools_condition([AIMessage("", tool_calls=calls)]))


@case
def agents_with_options(note):
    class Answer(BaseModel):
        n: int

    class Structured(Talking):
        def with_structured_output(self, schema, **_):
            return RunnableLambda(lambda _: schema(n=3))

    def model():
        return Structured(answers=[{"calls": [("add", {"a": 1, "b": 2})]}, "three it is"])

    found = create_react_agent(model(), [add], prompt="Be brief", response_format=Answer).invoke({"messages": "1+2"})
    note(conversation(found), found["structured_response"])

    def trim(state):
        return {"llm_input_messages": state["messages"][-1:]}

    app = create_react_agent(model(), [add], pre_model_hook=trim, post_model_hook=lambda s: None)
    note(conversation(app.invoke({"messages": "1+2"})))
    app = create_react_agent(model(), [add], prompt=lambda state: [("system", "s"), *state["messages"]], name="calc")
    for chunk in app.stream({"messages": "1+2"}, stream_mode="updates"):
        note({node: conversation(update) for node, update in chunk.items()})
    note(conversation(create_react_agent(model(), []).invoke({"messages": "q"}, {"recursion_limit": 3})))
    note(create_react_agent(model(), [add]).get_graph().draw_mermaid())


@case
def an_agent_runs_out_of_steps(note):
    forever = Talking(answers=[{"calls": [("add", {"a": 1, "b": 2})]}])
    note(conversation(create_react_agent(forever, [add]).invoke({"messages": "1+2"}, {"recursion_limit": 6}))[-1])


@case
def literal_routes(note):
    class State(TypedDict):
        n: int

    def route(state: State) -> Literal["even", "odd"]:
        return "even" if state["n"] % 2 == 0 else "odd"

    async def aroute(state: State) -> Literal["odd", "__end__"]:
        return "odd" if state["n"] < 5 else END

    graph = StateGraph(State)
    graph.add_node("even", lambda s: {"n": s["n"] + 1})
    graph.add_node("odd", lambda s: {"n": s["n"] + 2})
    graph.add_conditional_edges(START, route)
    graph.add_conditional_edges("odd", aroute)
    app = graph.compile()
    note(asyncio.run(app.ainvoke({"n": 1})), asyncio.run(app.ainvoke({"n": 2})))
    note(app.get_graph().draw_mermaid())
    note(sorted(app.get_graph().nodes), app.get_graph().edges)


@case
def stores_are_typed(note):
    note(issubclass(InMemoryStore, BaseStore), isinstance(InMemoryStore(), BaseStore))


if __name__ == "__main__":
    run_cases()
