"""Right programs of every kind: type checkers find nothing in them. `assert_type` holds what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Annotated, Any, Literal, NotRequired, assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    CompiledStateGraph,
    InMemorySaver,
    Interrupt,
    MessagesState,
    NodeError,
    RetryPolicy,
    RunnableConfig,
    Runtime,
    Send,
    SqliteSaver,
    StateGraph,
    StateSnapshot,
    StreamWriter,
    entrypoint,
    get_runtime,
    interrupt,
    task,
)
from stategraph.lab import compare
from stategraph.prebuilt import create_agent
from stategraph.pregel.types import GraphOutput
from stategraph.store import BaseStore


class State(TypedDict):
    n: int
    log: Annotated[list[str], add]


class Asking(TypedDict):
    n: int
    __interrupt__: NotRequired[list[Interrupt]]


class Context(TypedDict):
    user: str


class Item(TypedDict):
    name: str


class Question(TypedDict):
    text: str


class Answer(TypedDict):
    text: str


@dataclass
class Data:
    n: int = 0
    log: Annotated[list[str], add] = field(default_factory=list)


class Model(BaseModel):
    n: int = 0
    log: Annotated[list[str], add] = []


# -- nodes of every shape --------------------------------------------------------------------------------------


def partial_dict(state: State) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def exact_dict(state: State) -> dict[str, int]:
    return {"n": 1}


def whole_state(state: State) -> State:
    return state


def mapping(state: State) -> Mapping[str, object]:
    return {"n": 1}


def nothing(state: State) -> None: ...


def maybe(state: State) -> dict[str, int] | None:
    return None


def with_config(state: State, config: RunnableConfig) -> dict[str, int]:
    return {"n": len(config.get("tags", []))}


def with_other_name(state: State, cfg: RunnableConfig) -> dict[str, int]:
    return {"n": 1}


def with_runtime(state: State, runtime: Runtime[Context]) -> dict[str, list[str]]:
    return {"log": [runtime.context["user"]]}


def with_runtime_by_another_name(state: State, rt: Runtime[Context]) -> dict[str, list[str]]:
    return {"log": [rt.context["user"]]}


def with_bare_runtime(state: State, runtime: Runtime) -> dict[str, int]:
    runtime.heartbeat()
    return {"n": runtime.execution_info.node_attempt}


def with_config_and_runtime(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, int]:
    return {}


def with_runtime_and_config(state: State, runtime: Runtime[Context], config: RunnableConfig) -> dict[str, int]:
    return {}


def with_store(state: State, store: BaseStore) -> dict[str, int]:
    return {}


def with_store_by_name(state: State, *, store: BaseStore | None, writer: StreamWriter) -> dict[str, int]:
    writer("hello")
    return {}


def with_everything(
    state: State, config: RunnableConfig, *, store: BaseStore, writer: StreamWriter, runtime: Runtime[Context]
) -> dict[str, int]:
    return {}


def with_default(state: State, times: int = 3) -> dict[str, int]:
    return {"n": times}


def worker(item: Item) -> dict[str, list[str]]:
    return {"log": [item["name"]]}


def counting_worker(n: int) -> dict[str, int]:
    return {"n": n}


def plain_dict_worker(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"]}


async def coroutine(state: State) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"n": 1}


def generator(state: State) -> Iterator[dict[str, int]]:
    yield {"n": 1}


async def async_generator(state: State) -> AsyncIterator[dict[str, int]]:
    yield {"n": 1}


def routing(state: State) -> Command[Literal["worker", "__end__"]]:
    if state["n"]:
        return Command(goto="worker", update={"n": 0})
    return Command(goto=END)


def routing_to_sends(state: State) -> Command[Literal["worker"]]:
    return Command(goto=[Send("worker", {"name": name}) for name in state["log"]])


def routing_anywhere(state: State) -> Command:
    name = "worker" if state["n"] else "counting_worker"
    return Command(goto=name)


def to_the_parent(state: State) -> Command[Literal["other"]]:
    return Command(graph=Command.PARENT, goto="other")


def sends(state: State) -> list[Send]:
    return [Send("worker", {"name": "a"})]


def commands(state: State) -> list[Command[str] | dict[str, int]]:
    return [Command(goto="worker"), {"n": 1}]


def untyped(state):  # type: ignore[no-untyped-def]
    return {"n": state["n"]}


class Callable_:
    def __call__(self, state: State) -> dict[str, int]:
        return {"n": 1}


class Nodes:
    def method(self, state: State) -> dict[str, int]:
        return {"n": 1}

    @staticmethod
    def static(state: State) -> dict[str, int]:
        return {"n": 1}


class Invocable:
    def invoke(self, input: State, config: RunnableConfig | None = None) -> dict[str, int]:
        return {"n": 1}


def configured(state: State, times: int) -> dict[str, int]:
    return {"n": times}


def make_node(n: int) -> Callable[[State], dict[str, int]]:
    return lambda state: {"n": n}


def on_error(state: State, error: NodeError) -> dict[str, Any]:
    return {"log": [str(error)]}


graph = StateGraph(State, Context)
graph.add_node(partial_dict).add_node(exact_dict).add_node(whole_state).add_node(mapping).add_node(nothing)
graph.add_node(maybe).add_node(with_config).add_node(with_other_name).add_node(with_runtime)
graph.add_node(with_runtime_by_another_name).add_node(with_bare_runtime).add_node(with_config_and_runtime)
graph.add_node(with_runtime_and_config).add_node(with_store).add_node(with_store_by_name).add_node(with_everything)
graph.add_node(with_default).add_node(worker).add_node(counting_worker).add_node(plain_dict_worker)
graph.add_node(coroutine).add_node(generator).add_node(async_generator).add_node(routing)
graph.add_node(routing_to_sends).add_node(routing_anywhere).add_node(to_the_parent).add_node(sends)
graph.add_node(commands).add_node("untyped", untyped).add_node("callable", Callable_())
graph.add_node("method", Nodes().method).add_node("static", Nodes.static).add_node("invocable", Invocable())
graph.add_node("partial", partial(configured, times=3)).add_node("made", make_node(1))
graph.add_node("lambda", lambda state: {"n": state["n"] + 1}).add_node("lambda2", lambda _: {"n": 1})
graph.add_node("lambda3", lambda state: Command(goto="worker")).add_node("lambda4", lambda state: None)
graph.add_node("policies", exact_dict, retry_policy=RetryPolicy(), timeout=3, defer=True, error_handler=on_error)
graph.add_node("own_input", worker, input_schema=Item)
graph.add_node("inner", StateGraph(State).add_node(exact_dict).add_edge(START, "exact_dict").compile())
graph.add_sequence([("first", exact_dict), ("second", coroutine)])
graph.add_edge(START, "partial_dict").add_edge(["first", "second"], "maybe")
graph.add_conditional_edges("maybe", lambda state: END if state["n"] else "worker")
graph.add_conditional_edges("first", lambda state: state["n"] > 1, {True: "maybe", False: END})

# -- calls -----------------------------------------------------------------------------------------------------

app = graph.compile(checkpointer=InMemorySaver(), interrupt_before=["maybe"])
thread = {"configurable": {"thread_id": "1"}}  # a dict to checkers, and taken as one
app_with_thread = graph.compile(InMemorySaver())
app_with_thread.invoke({"n": 1}, thread)
app_with_thread.get_state(thread)
app_with_thread.update_state(thread, {"n": 2})
config: RunnableConfig = {"configurable": {"thread_id": "1"}, "recursion_limit": 10}
assert_type(app.invoke({"n": 1}), State)
assert_type(app.invoke({"n": 1, "log": []}, config, context={"user": "a"}, durability="exit"), State)
assert_type(app.invoke(None, config), State)
assert_type(app.invoke(Command(resume=1), config), State)
assert_type(app.invoke(Command(resume={"id": 1}, update={"n": 1}, goto=["worker"]), config), State)
assert_type(app.invoke({"n": 1}, version="v2"), GraphOutput[State])
assert_type(app.invoke({"n": 1}, version="v2").value["n"], int)
app.invoke({"n": 1}, output_keys=["n"])["n"]
app.invoke({"n": 1}, config, stream_mode="updates")[0]
paused = app.invoke({"n": 1}).get("__interrupt__")
assert_type(app.get_state(config).interrupts, tuple[Interrupt, ...])
assert_type(app.invoke({"n": 1}, version="v2").interrupts, tuple[Interrupt, ...])
for state in app.stream({"n": 1}, stream_mode="values"):
    assert_type(state, State)
for update in app.stream({"n": 1}, stream_mode="updates"):
    assert_type(update, dict[str, Any])
for mode, chunk in app.stream({"n": 1}, stream_mode=["updates", "custom"]):
    print(mode == "custom", chunk)
for message, metadata in app.stream({"n": 1}, stream_mode="messages"):
    print(message, metadata["node"])
for part in app.stream({"n": 1}, stream_mode=["values", "updates", "messages"], version="v2", subgraphs=True):
    if part["type"] == "values":
        assert_type(part["data"], State)
    elif part["type"] == "updates":
        assert_type(part["data"], dict[str, Any])
    elif part["type"] == "messages":
        print(part["ns"], part["data"][0])
for namespace, chunk in app.stream({"n": 1}, subgraphs=True):
    print(namespace, chunk)
snapshot = app.get_state(config)
assert_type(snapshot, StateSnapshot[State])
assert_type(snapshot.values["n"], int)
question: Interrupt = snapshot.interrupts[0]
app.update_state(config, {"n": 3}, as_node="maybe")
for past in app.get_state_history(config, limit=3):
    assert_type(past.values["log"], list[str])
app.batch([{"n": 1}, {"n": 2}])


async def calls() -> None:
    assert_type(await app.ainvoke({"n": 1}), State)
    assert_type(await app.ainvoke({"n": 1}, version="v2"), GraphOutput[State])
    async for state in app.astream({"n": 1}, stream_mode="values"):
        assert_type(state, State)
    async for mode, chunk in app.astream({"n": 1}, stream_mode=["updates"]):
        print(mode, chunk)
    assert_type((await app.aget_state(config)).values, State)
    assert_type((await app.aget_state(config, version="v2")).values, State)
    async for past in app.aget_state_history(config):
        assert_type(past.values["n"], int)


# -- other schemas ---------------------------------------------------------------------------------------------


def data_node(state: Data) -> Data:
    return Data(n=state.n + 1)


def data_update(state: Data) -> dict[str, int]:
    return {"n": state.n + 1}


def model_node(state: Model) -> Model:
    return Model(n=state.n + 1)


def model_update(state: Model) -> dict[str, int]:
    return {"n": state.n + 1}


data = StateGraph(Data).add_node(data_node).add_node(data_update).add_edge(START, "data_node").compile()
print(data.invoke(Data(n=1))["n"], data.invoke({"n": 1})["n"])
assert_type(data.invoke({"n": 1}, version="v2").value, Data)
model = StateGraph(Model).add_node(model_node).add_node(model_update).add_edge(START, "model_node").compile()
print(model.invoke(Model(n=1))["n"])
assert_type(model.invoke({"n": 1}, version="v2").value.n, int)
for model_part in model.stream({"n": 1}, stream_mode="values", version="v2"):
    if model_part["type"] == "values":
        print(model_part["data"].n)  # or a dict, before an instance can be made
print(model.get_state(config, version="v2").values.n)
for model_past in model.get_state_history(config, version="v2"):
    print(model_past.values.n)
print(data.get_state(config, version="v2").values.n)
assert_type(app.get_state(config, version="v2").values, State)
print(model.get_state(config).values["n"])


def ask(state: Question) -> Answer:
    return {"text": state["text"]}


narrow = StateGraph(State, input_schema=Question, output_schema=Answer).add_node(ask).compile()
assert_type(narrow.invoke({"text": "?"}), Answer)
whole = StateGraph(int).add_node("double", lambda n: 2 * n).add_edge(START, "double").compile()
assert_type(whole.invoke(1), int)
items = StateGraph(Annotated[list[str], add]).add_node("more", lambda items: ["more"]).compile()
print(items.invoke(["a"]))


def chat(state: MessagesState) -> dict[str, list[dict[str, str]]]:
    return {"messages": [{"role": "ai", "content": "hello"}]}


said = StateGraph(MessagesState).add_node(chat).add_edge(START, "chat").compile().invoke({"messages": [{"role": "user"}]})
paused_state = StateGraph(Asking).add_node(exact_dict).compile().invoke({"n": 1})
if "__interrupt__" in said and "__interrupt__" in paused_state:  # without it, pyright says that the key may be missing
    assert_type(said["__interrupt__"], list[Interrupt])
    assert_type(paused_state["__interrupt__"], list[Interrupt])


def annotated(builder: StateGraph[State], app: CompiledStateGraph[State, Context]) -> StateGraph[State, Context]:
    print(builder.compile().invoke({"n": 1})["n"], app.invoke({"n": 1}, context={"user": "a"}))
    return StateGraph(State, Context)


def bare(builder: StateGraph, app: CompiledStateGraph) -> None:
    builder.add_node("a", lambda state: {"n": state["n"]})
    print(app.invoke({"anything": 1})["n"], app.invoke(3))


# -- in a node -------------------------------------------------------------------------------------------------


class Verdict(BaseModel):
    good: bool


def asking(state: State) -> dict[str, int]:
    verdict = interrupt("good?", response_schema=Verdict)
    assert_type(verdict, Verdict)
    assert_type(interrupt("how many?", key="many", response_schema=int), int)
    if interrupt("yes?") == "yes":
        assert_type(get_runtime(Context).context, Context)
    return {"n": int(verdict.good)}


# -- functional ------------------------------------------------------------------------------------------------


@task
def double(n: int) -> int:
    return 2 * n


@task(name="slow", retry_policy=RetryPolicy())
async def slow(n: int) -> str:
    return str(n)


@entrypoint(checkpointer=SqliteSaver(":memory:"))
def workflow(ns: list[int]) -> int:
    futures = [double(n) for n in ns]
    assert_type(futures[0].result(), int)
    return sum(future.result() for future in futures)


@entrypoint(context_schema=Context)
async def aworkflow(n: int, *, previous: int | None = None, runtime: Runtime[Context]) -> str:
    assert_type(await slow(n), str)
    texts = await asyncio.gather(slow(1), slow(2))
    return texts[0] + runtime.context["user"]


@entrypoint()
def keeping(n: int) -> entrypoint.final[str, int]:
    return entrypoint.final(value="x", save=n)


assert_type(workflow.invoke([1, 2]), int)
assert_type(aworkflow.invoke(1, context={"user": "a"}), str)
assert_type(keeping.invoke(1), str)

helper = create_agent("gpt-5", context_schema=Context, checkpointer=SqliteSaver(":memory:"))
helper.invoke({"messages": "hello"}, context={"user": "a"})
stored: dict[str, dict[str, str]] = {"configurable": {"thread_id": "1"}}
compare(helper, stored, stored)

with closing(helper.stream({"messages": "hello"})) as parts:
    next(parts)


async def read() -> None:
    async with aclosing(helper.astream({"messages": "hello"})) as parts:
        await anext(parts)
