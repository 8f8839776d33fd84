"""The functional API, as tutorials use it."""

import asyncio
import time

from langchain_core.runnables import RunnableConfig
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver, MemorySaver
from langgraph.config import get_config, get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy, StreamWriter, interrupt
from program_cases import (
    case,
    collect,
    in_both_worlds,
    run_cases,
    thread,
)
from typing_extensions import TypedDict

CALLS = []


@task
def double(x: int) -> int:
    return 2 * x


@task
async def adouble(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


@case
def a_simple_workflow(note):
    @entrypoint(checkpointer=MemorySaver())
    def workflow(numbers: list[int]) -> int:
        futures = [double(n) for n in numbers]
        return sum(f.result() for f in futures)

    note(workflow.invoke([1, 2, 3], thread()))
    for chunk in workflow.stream([4], thread("2")):
        note(chunk)
    for mode, chunk in workflow.stream([4], thread("3"), stream_mode=["updates", "values", "custom"]):
        note(mode, chunk)
    note(workflow.get_state(thread()).values)


@case
def a_workflow_on_a_loop(note):
    @entrypoint()
    async def workflow(numbers: list[int]) -> list[int]:
        return await asyncio.gather(*[adouble(n) for n in numbers])

    note(asyncio.run(workflow.ainvoke([1, 2, 3])))
    for chunk in asyncio.run(collect(workflow.astream([1, 2], stream_mode="updates"))):
        note(chunk)


@case
def an_essay_is_reviewed(note):
    runs = []

    @task
    def write_essay(topic: str) -> str:
        runs.append(topic)
        return f"An essay about {topic}"

    @entrypoint(checkpointer=MemorySaver())
    def workflow(topic: str) -> dict:
        essay = write_essay(topic).result()
        approved = interrupt({"essay": essay, "action": "Approve?"})
        return {"essay": essay, "approved": approved}

    for chunk in workflow.stream("cats", thread()):
        note({key: [i.value for i in value] if key == "__interrupt__" else value for key, value in chunk.items()})
    for chunk in workflow.stream(Command(resume=True), thread()):
        note(chunk)
    note(runs)


@case
def a_workflow_goes_on_after_an_error(note):
    tries, calls = [], []

    @task
    def flaky():
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("Failure")
        return "OK"

    @task
    def slow():
        calls.append(1)
        return "Ran slow task."

    @entrypoint(checkpointer=MemorySaver())
    def main(inputs, writer: StreamWriter):
        found = slow().result()
        writer("half")
        flaky().result()
        return found

    try:
        main.invoke({"any": "in"}, thread())
    except ValueError as error:
        note(error)
    note(main.invoke(None, thread()), len(calls), len(tries))


@case
def tasks_are_retried_and_cached(note):
    tries = []

    @task(retry_policy=RetryPolicy(retry_on=ValueError, initial_interval=0.001))
    def info():
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("no")
        return "OK"

    @task(cache_policy=CachePolicy(ttl=120))
    def slow_add(x: int) -> int:
        CALLS.append(x)
        return x * 2

    @entrypoint(cache=InMemoryCache())
    def main(inputs: dict) -> dict:
        one = slow_add(inputs["x"]).result()
        time.sleep(0.3)  # the peer stores it in its cache meanwhile, on another thread
        return {"one": one, "two": slow_add(inputs["x"]).result(), "info": info().result()}

    for chunk in main.stream({"x": 5}, stream_mode="updates"):
        note(chunk)
    note(main.invoke({"x": 5}), len(CALLS), len(tries))


@case
def the_previous_value(note):
    @entrypoint(checkpointer=MemorySaver())
    def accumulate(n: int, *, previous: int | None) -> entrypoint.final[int, int]:
        previous = previous or 0
        return entrypoint.final(value=previous, save=previous + n)

    in_both_worlds(note, lambda: accumulate, 1, 2, 3, config=thread())

    @entrypoint(checkpointer=MemorySaver())
    def count(n: int, *, previous=None) -> int:
        return n + (previous or 0)

    note([count.invoke(n, thread("2")) for n in (1, 2, 3)])
    note([state.values for state in count.get_state_history(thread("2"))])


@case
def everything_that_is_injected(note):
    class Context(TypedDict):
        who: str

    store = InMemoryStore()
    store.put(("users",), "1", {"name": "Al"})

    @entrypoint(checkpointer=InMemorySaver(), store=store, context_schema=Context)
    def workflow(inputs: dict, *, previous, store: BaseStore, writer: StreamWriter, config: RunnableConfig):
        writer({"name": store.get(("users",), "1").value["name"]})
        note(previous, config["configurable"]["thread_id"], get_config()["configurable"]["thread_id"])
        note(get_store() is store, get_runtime(Context).context)
        return inputs

    note(list(workflow.stream({"a": 1}, thread(), context={"who": "me"}, stream_mode=["custom", "updates"])))


@case
def a_workflow_calls_a_graph_and_another_workflow(note):
    class State(TypedDict):
        foo: int

    graph = StateGraph(State).add_node("double", lambda s: {"foo": s["foo"] * 2}).add_edge(START, "double").compile()

    @entrypoint()
    def multiply(inputs: dict) -> int:
        return inputs["a"] * inputs["b"]

    @entrypoint(checkpointer=MemorySaver())
    def workflow(x: int) -> dict:
        doubled = graph.invoke({"foo": x})["foo"]
        return {"bar": multiply.invoke({"a": doubled, "b": 10})}

    note(workflow.invoke(5, thread()))
    for ns, chunk in workflow.stream(5, thread("2"), subgraphs=True):
        note([level.partition(":")[0] for level in ns], chunk)


@case
def questions_in_parallel_tasks(note):
    @task
    def ask(what: str):
        return interrupt(what)

    @entrypoint(checkpointer=MemorySaver())
    def workflow(inputs):
        return [ask(each).result() for each in inputs]

    for given in (["a", "b"], Command(resume="one"), Command(resume="two")):
        found = workflow.invoke(given, thread())
        note([i.value for i in found["__interrupt__"]] if "__interrupt__" in found else found)


@case
def a_task_in_a_graph(note):
    @task
    def fetch(url: str):
        return f"page {url}"

    class State(TypedDict):
        urls: list[str]
        results: list[str]

    def call(state: State):
        futures = [fetch(url) for url in state["urls"]]
        return {"results": [f.result() for f in futures]}

    app = StateGraph(State).add_node(call).add_edge(START, "call").compile(checkpointer=InMemorySaver())
    note(app.invoke({"urls": ["a", "b"]}, thread()))
    for chunk in app.stream({"urls": ["c"]}, thread("2")):
        note(chunk)


if __name__ == "__main__":
    run_cases()
