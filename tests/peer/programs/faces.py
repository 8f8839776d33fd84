"""A compiled graph as one of LangChain's Runnables: what can be made of it, and what it tells of itself.

Also run with the native names, where a graph becomes a Runnable by `as_runnable`.
"""

import asyncio
import operator
import os
from typing import Annotated, Any

from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.base import coerce_to_runnable
from program_cases import case, run_cases
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

if os.environ.get("NATIVE"):
    from stategraph import START, InMemorySaver, StateGraph, entrypoint
    from stategraph.compat.langchain.runnable import as_runnable
else:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.func import entrypoint
    from langgraph.graph import START, StateGraph

    def as_runnable(graph: Any) -> Any:
        return graph


class State(TypedDict, total=False):
    x: int
    log: Annotated[list, operator.add]


class Asked(TypedDict):
    q: str


class Answered(TypedDict):
    r: str


class Context(TypedDict):
    user: str


class Model(BaseModel):
    """A model."""

    x: int = Field(0, description="the x")
    y: str


def count(state):
    return {"x": state.get("x", 0) + 1, "log": ["a"]}


def get_x(state):
    return state["x"]


def made(function: Any = count, schema: Any = State, name: str | None = "made", **options: Any) -> Any:
    schemas = {key: options.pop(key) for key in ("context_schema", "input_schema", "output_schema") if key in options}
    graph = StateGraph(schema, **schemas)
    graph.add_node("a", function)
    graph.add_edge(START, "a")
    return as_runnable(graph.compile(name=name, **options))


def asked() -> Any:
    schemas = {"context_schema": Context, "input_schema": Asked, "output_schema": Answered}
    return made(lambda state: {"x": 1}, name="asked", **schemas)


def failing(times: int) -> Any:
    """A graph that fails so many times."""
    left = [times]

    def node(state):
        if left[0]:
            left[0] -= 1
            raise ValueError("not yet")
        return {"x": 9}

    return made(node)


@case
def chains(note):
    note((made() | RunnableLambda(get_x) | (lambda x: x * 2)).invoke({"x": 1}))
    note((RunnableLambda(lambda x: {"x": x}) | made()).invoke(5), ({"x": lambda v: v} | made()).invoke(5))
    note(made().pipe(get_x, lambda x: x + 1).invoke({"x": 1}))
    note(made().pick("x").invoke({"x": 1}), made().pick(["x", "log"]).invoke({"x": 1}))
    note(made().assign(z=get_x).invoke({"x": 1}))
    note(RunnableParallel(a=made(), b=made()).invoke({"x": 1}), RunnablePassthrough.assign(g=made()).invoke({"x": 1}))
    note(RunnableBranch((lambda s: True, made()), made()).invoke({"x": 1}))
    note(isinstance(made(), Runnable), type(coerce_to_runnable(made())) is type(made()))


@case
def chains_awaited(note):
    async def run():
        chain = made() | RunnableLambda(get_x)
        note(await chain.ainvoke({"x": 1}))
        note([chunk async for chunk in (made() | RunnableLambda(lambda s: s)).astream({"x": 1})])
        note(await chain.abatch([{"x": 1}, {"x": 2}]))

    asyncio.run(run())


@case
def chains_streamed(note):
    note(list((made() | RunnableLambda(lambda s: s)).stream({"x": 1})))
    note(list((RunnableLambda(lambda s: s) | made()).stream({"x": 1})))
    note(list(made().transform(iter([{"x": 1}]))))


@case
def bound(note):
    note(made().bind(stream_mode="updates").invoke({"x": 1}), type(made().bind()).__name__)
    note(made().bind().with_config(tags=["x"]).invoke({"x": 1}))


@case
def configured(note):
    graph = made().with_config({"tags": ["t"], "metadata": {"m": 1}}, run_name="named", recursion_limit=7)
    note(graph.config["tags"], graph.config["metadata"], graph.config["recursion_limit"], graph.get_name())
    note(graph.invoke({"x": 1}), made().with_config(tags=["a"]).with_config(tags=["b"]).config["tags"])
    note(made().with_config(configurable={"thread_id": "1"}).invoke({"x": 1}))


@case
def tried_again(note):
    note(failing(2).with_retry(stop_after_attempt=3, wait_exponential_jitter=False).invoke({"x": 1}))
    note(failing(1).with_fallbacks([made()]).invoke({"x": 1}))


@case
def many_at_once(note):
    note(made().map().invoke([{"x": 1}, {"x": 2}]), made().batch([{"x": 1}, {"x": 2}]), made().batch([]))
    note(made().batch([{"x": 1}, {"x": 2}], [{"tags": ["a"]}, {"tags": ["b"]}]))
    note(made().batch([{"x": 1}, {"x": 2}], {"max_concurrency": 1}))
    note(sorted(map(str, made().batch_as_completed([{"x": 1}, {"x": 2}]))))
    note(failing(1).batch([{"x": 1}, {"x": 2}], {"max_concurrency": 1}, return_exceptions=True))


@case
def many_at_once_awaited(note):
    async def run():
        note(await made().abatch([{"x": 1}, {"x": 2}]))
        note(sorted([str(each) async for each in made().abatch_as_completed([{"x": 1}, {"x": 2}])]))

    asyncio.run(run())


@case
def tools(note):
    plain, named = asked().as_tool(), asked().as_tool(name="ask", description="Asks.")
    note(plain.name, plain.description, plain.args, plain.args_schema.model_json_schema())
    note(named.name, named.description, named.args, named.invoke({"q": "1"}))
    model = made(lambda state: {"x": state.x + 1}, Model).as_tool(name="m", description="d")
    note(model.args, model.invoke({"y": "1"}))


@case
def names(note):
    note(made().name, made().get_name(), made().get_name("Input"), made(name="Big").get_name("Input"))
    note(made().get_name(name="z"), made().get_name("Out", name="z"), made().get_name("Out", name="Z"))


@case
def schemas(note):
    for graph in (made(), asked(), made(lambda state: {"x": state.x + 1}, Model, "model")):
        for schema in (graph.get_input_schema(), graph.get_output_schema(), graph.config_schema()):
            note(schema.__name__, schema.model_json_schema())
        note(graph.get_input_jsonschema(), graph.get_output_jsonschema(), graph.get_context_jsonschema())
        note(graph.InputType, graph.input_schema.__name__, graph.config_specs)
        note(graph.config_schema(include=["tags"]).model_json_schema())
    note(made().with_types(input_type=int).get_input_jsonschema())


@case
def schemas_of_functions(note):
    @entrypoint()
    def text(x: int) -> str:
        return str(x)

    graph = as_runnable(text)
    note(graph.InputType, graph.OutputType, graph.invoke(1), (graph | RunnableLambda(lambda s: s + "!")).invoke(1))


@case
def drawings(note):
    graph = (made() | RunnableLambda(get_x, name="last")).get_graph()
    note(sorted(node.name for node in graph.nodes.values()), len(graph.edges))
    outer = made(made(name="inner"), name="outer").get_graph(xray=True)
    note(sorted(outer.nodes), sorted((edge.source, edge.target) for edge in outer.edges))


HIDDEN = ("ls_integration",)  # says who tells it


def described(event):
    parts = {key: str(value) for key, value in event["data"].items()}
    keys = sorted(key.rpartition("graph_")[2] for key in event["metadata"] if key not in HIDDEN)
    return event["event"], event["name"], event["tags"], keys, parts, len(event["parent_ids"])


def events(note, graph, *args, **options):
    async def run():
        async for event in graph.astream_events({"x": 1}, *args, version="v2", **options):
            note(*described(event))

    asyncio.run(run())


@case
def events_of_a_graph(note):
    events(note, made())
    events(note, made(), include_names=["a"])
    events(note, made(), {"tags": ["t"]}, exclude_types=["chain"])
    events(note, made(), stream_mode=["values", "updates"])
    events(note, made(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "1"}})


@case
def events_of_a_chain(note):
    events(note, made() | RunnableLambda(lambda s: s))


@case
def listeners(note):
    def say(word):
        return lambda run: note(word, run.name, run.outputs)

    made().with_listeners(on_start=say("start"), on_end=say("end")).invoke({"x": 1})


run_cases()
