"""Right programs with `@entrypoint` and `@task`: type checkers find nothing in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    CachePolicy,
    Command,
    InMemorySaver,
    InMemoryStore,
    Pregel,
    RetryPolicy,
    RunnableConfig,
    Runtime,
    StateGraph,
    StateSnapshot,
    StreamWriter,
    TimeoutPolicy,
    entrypoint,
    interrupt,
    task,
)
from stategraph.graph.functional import TaskFuture
from stategraph.pregel.types import GraphOutput
from stategraph.store import BaseStore, InMemoryCache


class Context(TypedDict):
    user: str


class Order(TypedDict):
    id: str
    items: list[str]


@dataclass
class Report:
    text: str
    words: int = 0


class Receipt(BaseModel):
    total: float


# -- tasks -----------------------------------------------------------------------------------------------------


@task
def bare(n: int) -> int:
    return n


@task()
def with_brackets(n: int) -> int:
    return n


@task(name="other")
def named(n: int) -> int:
    return n


@task
def defaults(n: int, times: int = 2, *more: int, sign: int = 1, **options: str) -> list[int]:
    return [n] * times


@task
def without_arguments() -> None: ...


@task
async def coroutine(n: int) -> str:
    return str(n)


@task(retry_policy=RetryPolicy(max_attempts=3, retry_on=ValueError), timeout=3)
def retried(n: int) -> Report:
    return Report(str(n))


@task(retry_policy=[RetryPolicy(retry_on=(OSError, KeyError)), RetryPolicy(retry_on=lambda e: True)])
async def retried_later(n: int) -> Receipt:
    return Receipt(total=n)


@task(cache_policy=CachePolicy(ttl=60), timeout=timedelta(seconds=3))
def cached(order: Order) -> Order:
    return order


@task(timeout=TimeoutPolicy(run_timeout=3), executor="processes")
def elsewhere(texts: Sequence[str]) -> dict[str, int]:
    return {text: len(text) for text in texts}


@task
def in_node(n: int, config: RunnableConfig, *, writer: StreamWriter) -> int:
    writer(n)
    return n


@task
def optional(n: int | None = None) -> int | None:
    return n


@task
def asking(question: str) -> bool:
    return interrupt(question, response_schema=bool)


class Service:
    @task
    def method(self, n: int) -> int:
        return n

    @task
    async def amethod(self, n: int) -> str:
        return str(n)

    @staticmethod
    @task
    def static(n: int) -> int:
        return n


def plain(n: int) -> int:
    return n


made = task(plain)
made_named = task(name="made")(plain)
from_lambda = task(name="lambda")(lambda n: n)


# -- entrypoints that call them --------------------------------------------------------------------------------


@entrypoint()
def calling(n: int) -> int:
    assert_type(bare(n), TaskFuture[int])
    assert_type(bare(n=n).result(), int)
    assert_type(bare(n).result(timeout=3), int)
    assert_type(bare(n).exception(), BaseException | None)
    assert_type(bare(n).done(), bool)
    assert_type(with_brackets(n).result(), int)
    assert_type(named(n).result(), int)
    assert_type(defaults(n, 3, 4, sign=-1, color="red").result(), list[int])
    without_arguments().result()
    assert_type(retried(n).result(), Report)
    assert_type(cached({"id": "1", "items": []}).result()["items"], list[str])
    assert_type(elsewhere(["a"]).result(), dict[str, int])
    assert_type(optional().result(), int | None)
    assert_type(asking("sure?").result(), bool)
    assert_type(made(n).result(), int)
    assert_type(made_named(n).result(), int)
    from_lambda(n).result()
    by_method: int = Service().method(n).result()
    assert_type(Service.static(n).result(), int)
    futures = [bare(i) for i in range(n)]
    return by_method + sum(future.result() for future in futures)


@entrypoint()
async def acalling(n: int) -> list[str]:
    assert_type(await coroutine(n), str)
    assert_type(await bare(n), int)
    assert_type((await retried_later(n)).total, float)
    by_method: str = await Service().amethod(n)
    print(by_method)
    text, number = await asyncio.gather(coroutine(1), bare(2))
    assert_type((text, number), tuple[str, int])
    return await asyncio.gather(*(coroutine(i) for i in range(n)))


def waits(future: TaskFuture[int]) -> Awaitable[int]:
    return future


# -- entrypoints of every shape --------------------------------------------------------------------------------


@entrypoint()
def only_input(n: int) -> str:
    return str(n)


@entrypoint()
def with_previous(n: int, *, previous: int | None) -> int:
    return n + (previous or 0)


@entrypoint()
def with_previous_and_default(n: int, previous: list[int] | None = None) -> list[int]:
    return [*(previous or []), n]


@entrypoint()
def with_config(n: int, config: RunnableConfig) -> int:
    return len(config.get("tags", []))


@entrypoint(store=InMemoryStore())
def with_store(n: int, *, store: BaseStore) -> int:
    store.put(("a",), "b", {"n": n})
    return n


@entrypoint(context_schema=Context)
def with_runtime(n: int, runtime: Runtime[Context]) -> str:
    return runtime.context["user"]


@entrypoint(context_schema=Context)
def with_bare_runtime(n: int, *, runtime: Runtime) -> None:
    runtime.heartbeat()


@entrypoint(InMemorySaver(), InMemoryStore(), InMemoryCache(), Context)
async def with_everything(
    order: Order,
    *,
    previous: Receipt | None,
    config: RunnableConfig,
    store: BaseStore,
    writer: StreamWriter,
    runtime: Runtime[Context],
) -> Receipt:
    return previous or Receipt(total=1)


@entrypoint(retry_policy=RetryPolicy(), cache_policy=CachePolicy(), timeout=3)
def with_policies(n: int) -> int:
    return n


@entrypoint(retry_policy=[RetryPolicy()], timeout=timedelta(seconds=3), executor="threads")
def with_more_policies(n: int) -> int:
    return n


@entrypoint(checkpointer=True)
def of_the_parent(n: int) -> int:
    return n


@entrypoint()
def final(n: int) -> entrypoint.final[str, int]:
    return entrypoint.final(value="x", save=n)


@entrypoint()
async def afinal(n: int) -> entrypoint.final[Report, list[int]]:
    return entrypoint.final(value=Report("x"), save=[n])


@entrypoint()
def final_of_any(n: int) -> entrypoint.final[Any, Any]:
    return entrypoint.final(value=n, save=None)


@entrypoint()
def no_result(n: int) -> None: ...


@entrypoint()
def untyped(n):  # type: ignore[no-untyped-def]
    return n


@entrypoint()
def dict_to_dict(state: dict[str, Any]) -> dict[str, Any]:
    return state


@entrypoint()
def union(n: int | str) -> int | str:
    return n


@entrypoint()
def model(order: Order) -> Receipt:
    return Receipt(total=len(order["items"]))


from_a_function = entrypoint(checkpointer=InMemorySaver())(plain)


class Callable_:
    def __call__(self, n: int) -> str:
        return str(n)


from_a_callable = entrypoint()(Callable_())

# -- calls -----------------------------------------------------------------------------------------------------

config: RunnableConfig = {"configurable": {"thread_id": "1"}}
assert_type(only_input.invoke(1), str)
assert_type(only_input.invoke(1, version="v2"), GraphOutput[str])
assert_type(only_input.invoke(None, config), str)
assert_type(only_input.invoke(Command(resume=True), config), str)
assert_type(with_previous.invoke(1), int)
assert_type(with_previous_and_default.invoke(1), list[int])
assert_type(with_runtime.invoke(1, context={"user": "a"}), str)
assert_type(final.invoke(1), str)
assert_type(final_of_any.invoke(1), Any)
assert_type(union.invoke(1), int | str)
assert_type(from_a_function.invoke(1), int)
assert_type(from_a_callable.invoke(1), str)
assert_type(dict_to_dict.invoke({"a": 1})["a"], Any)
print(calling.batch([1, 2]))
print(model.invoke({"id": "1", "items": []}).total)
assert_type(model.invoke({"id": "1", "items": []}, version="v2").value, Receipt)
for chunk in only_input.stream(1, stream_mode="values"):
    assert_type(chunk, str)
for update in only_input.stream(1, stream_mode="updates"):
    assert_type(update, dict[str, Any])
for part in only_input.stream(1, stream_mode=["values", "custom"], version="v2"):
    if part["type"] == "values":
        assert_type(part["data"], str)
snapshot = only_input.get_state(config)
assert_type(snapshot, StateSnapshot[str])
assert_type(snapshot.values, str)


async def calls() -> AsyncIterator[str]:
    assert_type(await acalling.ainvoke(1), list[str])
    assert_type((await afinal.ainvoke(1, version="v2")).value, Report)
    print(await with_everything.abatch([{"id": "1", "items": []}]))
    async for chunk in only_input.astream(1, stream_mode="values"):
        yield chunk
    assert_type((await only_input.aget_state(config)).values, str)


def takes(app: Pregel[str, None, int, str], f: Callable[[int], TaskFuture[int]]) -> None:
    print(app.invoke(1).upper(), f(1).result())


takes(only_input, bare)

# -- beside graphs ---------------------------------------------------------------------------------------------


class State(TypedDict):
    n: int


def node(state: State) -> State:
    return {"n": bare(state["n"]).result() + calling.invoke(state["n"])}


async def anode(state: State) -> State:
    return {"n": await bare(state["n"]) + len(await acalling.ainvoke(state["n"]))}


graph = StateGraph(State).add_node(node).add_node(anode).add_node("workflow", dict_to_dict).compile()


@entrypoint()
def around(n: int) -> int:
    return graph.invoke({"n": n})["n"]


assert_type(around.invoke(1), int)
