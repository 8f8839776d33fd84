"""Mistakes in programs with `@entrypoint` and `@task`; see wrong.py."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    CachePolicy,
    InMemorySaver,
    RetryPolicy,
    RunnableConfig,
    Runtime,
    entrypoint,
    task,
)


class Context(TypedDict):
    user: str


class Order(TypedDict):
    id: str


@dataclass
class Report:
    text: str


class Receipt(BaseModel):
    total: float


# -- tasks -----------------------------------------------------------------------------------------------------


@task
def double(n: int, sign: int = 1) -> int:
    return 2 * n * sign


@task(retry_policy=RetryPolicy(max_attempts=3))
async def show(n: int) -> str:
    return str(n)


@task
def report(order: Order) -> Report:
    return Report(order["id"])


class Service:
    @task
    def method(self, n: int) -> int:
        return n


@entrypoint()
def calling(n: int) -> int:
    double()  # E
    double("x")  # E
    double(1, 2, 3)  # E
    double(1, sgn=2)  # E
    double(n=1, sign="-")  # E
    double(1) + 1  # E
    double(1).upper()  # E
    double(1).result().upper()  # E
    double(1).result(timeout="3")  # E
    double(1).exception().upper()  # E
    sum([double(1), double(2)])  # E
    report({"id": 1})  # E
    report({"idd": "1"})  # E
    report({"id": "1"}).result().txt  # E
    Service().method("x")  # E but pyrefly
    Service().method(1).result().upper()  # E but pyrefly
    return double(1)  # E


@entrypoint()
async def acalling(n: int) -> str:
    await show("x")  # E
    show(n) + "!"  # E
    (await show(n)) + 1  # E
    a, b = await asyncio.gather(show(1), double(2))
    a + b  # E
    texts = await asyncio.gather(*[show(i) for i in range(n)])
    texts[0].real  # E
    return await double(n)  # E


task(3)  # E
task(name=3)  # E
task(retries=3)  # E
task(retry_policy=3)  # E
task(retry_policy=[RetryPolicy(), 3])  # E
task(retry_policy=RetryPolicy(max_attempts="3"))  # E
task(retry_policy=RetryPolicy(retry_on=3))  # E
task(retry_policy=RetryPolicy(attempts=3))  # E
task(cache_policy=60)  # E
task(cache_policy=CachePolicy(ttl="60"))  # E
task(timeout="3")  # E
double.clear_cache(InMemorySaver())  # E


# -- entrypoints -----------------------------------------------------------------------------------------------


@entrypoint()  # E
def takes_nothing() -> int:
    return 1


@entrypoint  # E
def without_brackets(n: int) -> int:
    return n


@entrypoint()
def wrong_final(n: int) -> entrypoint.final[str, int]:
    return entrypoint.final(value=n, save=n)  # E


@entrypoint()
def wrong_save(n: int) -> entrypoint.final[str, int]:
    return entrypoint.final(value="x", save="y")  # E


@entrypoint()
def half_a_final(n: int) -> entrypoint.final[int, int]:
    return entrypoint.final(value=n)  # E


@entrypoint()
def wrong_previous(n: int, *, previous: str | None) -> str:
    return previous + str(n)  # E


@entrypoint(context_schema=Context)
def wrong_context(n: int, *, runtime: Runtime[Context]) -> str:
    return runtime.context["name"]  # E


@entrypoint()
def wrong_config(n: int, config: RunnableConfig) -> int:
    return config["limit"]  # E


entrypoint(checkpointer="memory")  # E
entrypoint(saver=InMemorySaver())  # E
entrypoint(context_schema=3)  # E
entrypoint(retry_policy=3)  # E
entrypoint(timeout="3")  # E
entrypoint(cache_policy=60)  # E


@entrypoint(context_schema=Context)
def workflow(order: Order) -> Report:
    return Report(order["id"])


@entrypoint()
def text(n: int) -> str:
    return str(n)


@entrypoint()
async def receipt(n: int) -> Receipt:
    return Receipt(total=n)


@entrypoint()
def final(n: int) -> entrypoint.final[str, int]:
    return entrypoint.final(value="x", save=n)


config: RunnableConfig = {"configurable": {"thread_id": "1"}}
text("x")  # E
text.result()  # E
text.invoke("x")  # E
text.invoke()  # E
text.invoke(1, context={"user": "a"})  # E
text.invoke(1, durability="later")  # E
text.invoke(1).real  # E
text.invoke(1, version="v2").valeu  # E
text.invoke(1, version="v2").value.real  # E
workflow.invoke({"id": 1})  # E
workflow.invoke({})  # E
workflow.invoke({"id": "1"}, context={"usr": "a"})  # E
workflow.invoke({"id": "1"}, version="v2").value.txt  # E
final.invoke(1).real  # E
final.invoke(1, version="v2").value.save  # E
text.get_state(config).values.real  # E
next(text.stream(1, stream_mode="values")).real  # E
next(text.stream("x"))  # E


async def calls() -> None:
    text.ainvoke(1).upper()  # E
    (await text.ainvoke(1)).real  # E
    await text.ainvoke("x")  # E
    (await receipt.ainvoke(1, version="v2")).value.totl  # E
    async for chunk in text.astream(1, stream_mode="values"):
        chunk.real  # E

