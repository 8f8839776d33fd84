"""Programs with mistakes. Type checkers have to find each, at the line that ends with `# E`, and nothing else.

`# E but pyrefly`: all of them but that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    CompiledStateGraph,
    InMemorySaver,
    RetryPolicy,
    RunnableConfig,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)


class State(TypedDict):
    n: int
    log: Annotated[list[str], add]


class Context(TypedDict):
    user: str


class OtherContext(TypedDict):
    tenant: int


class Question(TypedDict):
    text: str


@dataclass
class Data:
    n: int = 0


class Verdict(BaseModel):
    good: bool


# -- nodes -----------------------------------------------------------------------------------------------------


def returns_int(state: State) -> int:
    return 1


def returns_text(state: State) -> str:
    return "done"


async def returns_int_later(state: State) -> int:
    return 1


def takes_nothing() -> dict[str, int]:
    return {}


def takes_more(state: State, times: int) -> dict[str, int]:
    return {}


def other_context(state: State, runtime: Runtime[OtherContext]) -> dict[str, int]:
    return {}


def other_context_by_name(state: State, rt: Runtime[OtherContext]) -> dict[str, int]:
    return {}


def right(state: State) -> dict[str, int]:
    return {"n": 1}


def misspelt_key(state: State) -> dict[str, Any]:
    return {"n": state["m"]}  # E


def wrong_use(state: State) -> dict[str, Any]:
    return {"n": state["n"] + "x"}  # E


def misspelt_field(state: Data) -> dict[str, Any]:
    return {"n": state.m}  # E


def misspelt_result(state: State) -> State:
    return {"n": 1, "lgo": []}  # E


def goes_elsewhere(state: State) -> Command[Literal["a", "b"]]:
    return Command(goto="c")  # E


def goes_to_a_number(state: State) -> Command[str]:
    return Command(goto=3)  # E


def sends_nothing(state: State) -> list[Send]:
    return [Send("worker")]  # E


def commands_more(state: State) -> Command[str]:
    return Command(update={}, got="a")  # E


def misused_answer(state: State) -> dict[str, Any]:
    verdict = interrupt("good?", response_schema=Verdict)
    return {"n": verdict.bad}  # E


def misused_context(state: State, runtime: Runtime[Context]) -> dict[str, Any]:
    return {"n": runtime.context["name"]}  # E


graph = StateGraph(State, Context)
graph.add_node("a", returns_int)  # E
graph.add_node(returns_text)  # E
graph.add_node("a", returns_int_later)  # E
graph.add_node("a", takes_nothing)  # E
graph.add_node("a", takes_more)  # E
graph.add_node("a", other_context)  # E
graph.add_node("a", other_context_by_name)  # E
graph.add_node("a", lambda state: 3)  # E
graph.add_node("a", 3)  # E
graph.add_node("a", right, input_schema=Question)  # E
graph.add_node("a", right, retries=3)  # E
graph.add_node("a", right, retry_policy=3)  # E
graph.add_node("a", right, timeout="3")  # E
graph.add_node("a", right, retry_policy=RetryPolicy(max_attempts="3"))  # E
graph.add_edge(START, 1)  # E
graph.add_edge(START, right)  # E
graph.add_conditional_edges("a", right, {True: 1})  # E
graph.invoke({"n": 1})  # E
graph.compile(checkpointer="memory")  # E
StateGraph(State, extra_keys="drop")  # E
StateGraph({"n": int})  # E

# -- calls -----------------------------------------------------------------------------------------------------

app = graph.compile(InMemorySaver())
config: RunnableConfig = {"configurable": {"thread_id": "1"}}
app.invoke(3)  # E
app.invoke("go")  # E
app.invoke(Data())  # E
app.invoke({"n": 1}, context=3)  # E
app.invoke({"n": 1}, context={"usr": "a"})  # E
app.invoke({"n": 1}, debgu=True)  # E
app.invoke({"n": 1}, durability="later")  # E
app.invoke({"n": 1}, {"recursion_limit": "10"})  # E
app.invoke({"n": 1}, {"configurable": "1"})  # E
app.invoke({"n": 1})["m"]  # E
app.invoke({"n": 1})["n"].upper()  # E
app.invoke({"n": 1}, version="v2").valeu  # E
app.invoke({"n": 1}, version="v2").value["m"]  # E
app.stream({"n": 1}, stream_mode="update")  # E
next(app.stream({"n": 1}, stream_mode="values"))["m"]  # E
for part in app.stream({"n": 1}, version="v2"):
    part["dta"]  # E
    part["data"]["n"]  # E
    if part["type"] == "values":
        part["data"]["m"]  # E
app.get_state(config).values["m"]  # E
app.get_state(config).nxt  # E
app.get_state()  # E
app.update_state(config)  # E
StateGraph(Data).compile().invoke({"n": 1}, version="v2").value.m  # E


async def forgets_to_wait() -> None:
    app.ainvoke({"n": 1})["n"]  # E


narrow = StateGraph(State, input_schema=Question, output_schema=Question).compile()
narrow.invoke({"text": 1})  # E
narrow.invoke({"txt": "?"})  # E
narrow.invoke({})  # E
narrow.invoke({"text": "?"})["n"]  # E


def wants_a_graph(app: CompiledStateGraph[State, Context]) -> None: ...


wants_a_graph(graph)  # E
wants_a_graph(narrow)  # E


# -- functional ------------------------------------------------------------------------------------------------


@task
def double(n: int) -> int:
    return 2 * n


@entrypoint()
def workflow(n: int) -> int:
    double("x")  # E
    double(1, 2)  # E
    double(1).result().upper()  # E
    return double(1)  # E


workflow.invoke("x")  # E
workflow.invoke(1).upper()  # E
task(retries=3)  # E
