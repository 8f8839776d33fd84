"""Stores, caches, savers and serializers, as programs use them."""

import asyncio
import operator
import os
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated
from uuid import UUID

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import CachePolicy, StateUpdate
from program_cases import case, conversation, run_cases, saying, thread
from pydantic import BaseModel
from typing_extensions import TypedDict

CALLS = []


class State(TypedDict):
    log: Annotated[list, operator.add]


def counting(**options):
    def n(state: State):
        return {"log": [len(state["log"])]}

    return StateGraph(State).add_node(n).add_edge(START, "n").compile(**options)


@case
def a_bot_that_knows_its_user(note):
    model = saying("noted", "you like pizza")

    def call(state: MessagesState, config: RunnableConfig, *, store: BaseStore):
        namespace = ("memories", config["configurable"]["user_id"])
        known = [item.value["data"] for item in store.search(namespace, query="food")]
        note("knows", known)
        if "remember" in state["messages"][-1].content:
            store.put(namespace, "k1", {"data": "likes pizza"})
        return {"messages": model.invoke(state["messages"])}

    app = StateGraph(MessagesState).add_node(call).add_edge(START, "call")
    app = app.compile(checkpointer=InMemorySaver(), store=InMemoryStore())
    note(conversation(app.invoke({"messages": "remember: pizza"}, thread("1", user_id="u"))))
    note(conversation(app.invoke({"messages": "what do I like?"}, thread("2", user_id="u"))))


@case
def a_store(note):
    store = InMemoryStore()
    store.put(("a", "b"), "1", {"x": 1, "tags": ["p"]})
    store.put(("a", "c"), "2", {"x": 2})
    store.put(("a", "c"), "3", {"x": 3}, index=False)
    item = store.get(("a", "b"), "1")
    note(item.key, item.namespace, item.value, isinstance(item.created_at, datetime), sorted(item.dict()))
    note(store.get(("a", "b"), "nope"))
    note(sorted(i.key for i in store.search(("a",))), [i.key for i in store.search(("a",), filter={"x": {"$gt": 2}})])
    note([i.key for i in store.search(("a",), filter={"x": 1})], [i.score for i in store.search(("a", "b"))])
    note(len(store.search(("a",), limit=2)), len(store.search(("a",), limit=1, offset=2)))
    note(store.list_namespaces(), store.list_namespaces(prefix=("a",), max_depth=1), store.list_namespaces(suffix=("c",)))
    store.delete(("a", "b"), "1")
    note(store.get(("a", "b"), "1"))
    found = store.batch([PutOp(("z",), "k", {"v": 1}), GetOp(("a", "c"), "2"), SearchOp(("a",))])
    note(found[0], found[1].value, sorted(i.key for i in found[2]))


@case
def a_store_on_a_loop(note):
    async def main():
        store = InMemoryStore()
        await store.aput(("u", "1"), "m", {"text": "hi"})
        note((await store.aget(("u", "1"), "m")).value)
        note([i.value for i in await store.asearch(("u",))], await store.alist_namespaces())
        await store.adelete(("u", "1"), "m")
        note(await store.asearch(("u",)))

    asyncio.run(main())


@case
def a_store_that_searches_by_meaning(note):
    def embed(texts: list[str]) -> list[list[float]]:
        words = ["pizza", "plumber", "food"]
        return [[text.count(word) + 0.1 for word in words] for text in texts]

    store = InMemoryStore(index={"embed": embed, "dims": 3, "fields": ["text"]})
    store.put(("m",), "1", {"text": "I love pizza food"})
    store.put(("m",), "2", {"text": "I am a plumber"})
    store.put(("m",), "3", {"text": "pizza"}, index=False)
    store.put(("m",), "4", {"text": "x", "other": "food food"}, index=["other"])
    for query in ("pizza", "plumber", "food"):
        note(query, [(i.key, i.score and round(i.score, 4)) for i in store.search(("m",), query=query, limit=2)])
    note(sorted(i.key for i in store.search(("m",))))
    lc = InMemoryStore(index={"embed": DeterministicFakeEmbedding(size=8), "dims": 8, "fields": ["text"]})
    lc.put(("d",), "1", {"text": "a", "n": 1})
    lc.put(("d",), "2", {"text": "b", "n": 2})
    note([(i.key, round(i.score, 3)) for i in lc.search(("d",), query="a", filter={"n": {"$lte": 2}})])


@case
def a_store_in_a_node_by_its_runtime(note):
    @dataclass
    class Context:
        user: str

    def remember(state: State, runtime: Runtime[Context]):
        runtime.store.put((runtime.context.user,), "k", {"n": len(state["log"])})
        runtime.stream_writer(runtime.context.user)
        return {"log": [runtime.store.get((runtime.context.user,), "k").value]}

    async def aremember(state: State, runtime: Runtime[Context]):
        found = await runtime.store.aget((runtime.context.user,), "k")
        return {"log": [found.value["n"]]}

    graph = StateGraph(State, context_schema=Context).add_sequence([remember, aremember]).add_edge(START, "remember")
    app = graph.compile(store=InMemoryStore())
    note(asyncio.run(app.ainvoke({"log": []}, context=Context("al"))))
    note(asyncio.run(app.ainvoke({"log": []}, context={"user": "bo"})))


@case
def cached_nodes(note):
    def make(cache, policy):
        CALLS.clear()

        def slow(state: State):
            CALLS.append(1)
            return {"log": [len(CALLS)]}

        graph = StateGraph(State).add_node("slow", slow, cache_policy=policy).add_edge(START, "slow")
        return graph.compile(cache=cache)

    app = make(InMemoryCache(), CachePolicy(ttl=60))
    note(app.invoke({"log": []}, stream_mode="updates"))
    note(app.invoke({"log": []}, stream_mode="updates"))
    note(app.invoke({"log": [1]}, stream_mode="updates"))
    app.clear_cache()
    note(app.invoke({"log": []}, stream_mode="updates"))
    app = make(InMemoryCache(), CachePolicy(key_func=lambda *a, **k: "same"))
    note(app.invoke({"log": []}), app.invoke({"log": [5]}))
    with tempfile.TemporaryDirectory() as folder:
        app = make(SqliteCache(path=str(Path(folder) / "c.db")), CachePolicy())
        note(app.invoke({"log": []}), asyncio.run(app.ainvoke({"log": []}, stream_mode="updates")))


@case
def a_saver_on_sqlite(note):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "db.sqlite")
        for _ in range(2):
            with SqliteSaver.from_conn_string(path) as saver:
                app = counting(checkpointer=saver)
                note(app.invoke({"log": []}, thread()), app.get_state(thread()).metadata["step"])
        with SqliteSaver.from_conn_string(":memory:") as saver:
            saver.setup()
            counting(checkpointer=saver).invoke({"log": []}, thread())
            found = list(saver.list(thread()))
            note(len(found), found[0].metadata["source"], found[0].checkpoint["channel_values"])
            note(saver.get_tuple(thread()).config["configurable"]["checkpoint_ns"] == "")
            saver.delete_thread("1")
            note(list(saver.list(None)))
    import sqlite3

    connection = sqlite3.connect(":memory:", check_same_thread=False)
    note(counting(checkpointer=SqliteSaver(connection)).invoke({"log": []}, thread()))


@case
def a_saver_on_sqlite_on_a_loop(note):
    async def main():
        async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            app = counting(checkpointer=saver)
            for _ in range(2):
                note(await app.ainvoke({"log": []}, thread()))
            note([c.metadata["step"] async for c in saver.alist(thread())])
            note((await saver.aget_tuple(thread())).checkpoint["channel_values"])
            note([state.next async for state in app.aget_state_history(thread())])

    asyncio.run(main())


@case
def savers_of_postgres_are_there(note):
    note(PostgresSaver.__name__, AsyncPostgresSaver.__name__, hasattr(PostgresSaver, "from_conn_string"))


@case
def a_store_on_sqlite(note):
    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        store.put(("a",), "1", {"x": 1})
        note(store.get(("a",), "1").value, [i.key for i in store.search(("a",), filter={"x": 1})])


class Colour(Enum):
    RED = "r"


@dataclass
class Point:
    x: int


class Model(BaseModel):
    a: int


VALUES = [
    None, 1, 1.5, "s", b"b", True, [1], {"a": {1, 2}}, {3}, frozenset({4}), datetime(2020, 1, 1, tzinfo=UTC),
    UUID(int=1), Decimal("1.5"), Path("/x"), HumanMessage("h", id="1"),
    AIMessage("a", tool_calls=[{"name": "f", "args": {}, "id": "c"}], id="2"), Document(page_content="d", metadata={"k": 1}),
]  # fmt: skip


@case
def values_that_are_stored(note):
    for value in VALUES:
        serde: SerializerProtocol = JsonPlusSerializer()
        found = serde.loads_typed(serde.dumps_typed(value))
        note(type(found).__name__, found == value)


@case
def values_that_a_state_keeps(note):
    class Any(TypedDict):
        value: object

    class Own(TypedDict):
        colour: Colour
        points: list[Point]
        model: Model | None

    app = StateGraph(Own).add_node("n", lambda s: None).add_edge(START, "n").compile(checkpointer=InMemorySaver())
    app.invoke({"colour": Colour.RED, "points": [Point(1)], "model": Model(a=1)}, thread())
    note(app.get_state(thread()).values)
    app = StateGraph(Any).add_node("n", lambda s: None).add_edge(START, "n").compile(checkpointer=InMemorySaver())
    for index, value in enumerate(VALUES):
        app.invoke({"value": value}, thread(str(index)))
        note(type(app.get_state(thread(str(index))).values["value"]).__name__)


@case
def durability(note):
    for mode in ("sync", "async", "exit"):
        app = counting(checkpointer=InMemorySaver())
        app.invoke({"log": []}, thread(), durability=mode)
        note(mode, len(list(app.get_state_history(thread()))))


@case
def threads_are_apart(note):
    app = counting(checkpointer=InMemorySaver())
    for name in ("1", "2", "1", "1"):
        note(app.invoke({"log": []}, thread(name)))
    app.checkpointer.delete_thread("1")
    note(app.get_state(thread("1")).values, app.get_state(thread("2")).values)
    app.update_state(thread("3"), {"log": ["by hand"]})
    note(app.get_state(thread("3")).values)
    app.bulk_update_state(thread("4"), [[StateUpdate({"log": ["x"]}, "n")]])
    note(app.get_state(thread("4")).values)


@case
def a_serializer_that_encrypts_is_there(note):
    os.environ["LANGGRAPH_AES_KEY"] = "0123456789abcdef"
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    note(EncryptedSerializer.__name__)


@case
def a_model_is_stored_as_its_fields(note):
    class Profile(BaseModel):
        name: str
        tags: list[str] = []

    for store in (InMemoryStore(), InMemoryStore(index={"dims": 1, "embed": embed_length, "fields": ["name"]})):
        store.put(("users",), "1", Profile(name="Ada"))
        item = store.get(("users",), "1")
        note(type(item.value).__name__, item.value, [each.key for each in store.search(("users",), filter={"name": "Ada"})])


def embed_length(texts):
    return [[float(len(text))] for text in texts]


if __name__ == "__main__":
    run_cases()
