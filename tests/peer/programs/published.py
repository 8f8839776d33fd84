"""What others publish for the peer, a case for each package. A package that is not installed says so."""

import asyncio
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from program_cases import Scripted, Talking, case, run_cases, thread
from typing_extensions import TypedDict

NEEDS = "needs"


def with_packages(function):
    """A case that says which package is missing."""

    def noting(note):
        try:
            function(note)
        except ModuleNotFoundError as error:
            note(NEEDS, error.name)

    noting.__name__ = function.__name__
    return case(noting)


def folder():
    return tempfile.mkdtemp()


class State(TypedDict):
    log: Annotated[list, operator.add]
    messages: Annotated[list, operator.add]


def asking(saver, **options):
    """A graph that asks a question in its second step, beside another task."""
    graph = StateGraph(State)
    graph.add_node("first", lambda s: {"log": ["first"], "messages": [HumanMessage("hi", id="1")]})
    graph.add_node("ask", lambda s: {"log": [interrupt("ok?")]})
    graph.add_node("beside", lambda s: {"log": ["beside"], "messages": [AIMessage("ho", id="2")]})
    graph.add_node("last", lambda s: {"log": ["last"]})
    for one, two in [(START, "first"), ("first", "ask"), ("first", "beside"), (["ask", "beside"], "last"), ("last", END)]:
        graph.add_edge(one, two)
    return graph.compile(checkpointer=saver, **options)


def tell_of(note, app, config):
    """What there is to see of a thread that pauses and goes on."""
    note(app.invoke({"log": ["in"], "messages": []}, config)["log"])
    state = app.get_state(config)
    note(state.next, [task.interrupts[0].value for task in state.tasks if task.interrupts])
    note(app.invoke(Command(resume="yes"), config))
    note([(s.metadata["step"], s.metadata["source"], s.next, s.values.get("log")) for s in app.get_state_history(config)])
    app.update_state(config, {"log": ["edited"]})
    note(app.get_state(config).values["log"])


async def atell_of(note, app, config):
    """The same on an event loop."""
    note((await app.ainvoke({"log": ["in"], "messages": []}, config))["log"])
    note((await app.aget_state(config)).next)
    note(await app.ainvoke(Command(resume="yes"), config))
    note([(s.metadata["step"], s.next, s.values.get("log")) async for s in app.aget_state_history(config)])


def conform(note, factory):
    """The published conformance suite, in short."""
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    report = asyncio.run(validate(checkpointer_test(name="x")(factory)))
    base = {"put", "put_writes", "get_tuple", "list", "delete_thread"}
    for name, result in report.results.items():
        if name in base:
            note(name, result.detected, result.passed, result.tests_passed, result.failures)
        elif result.detected and result.failures:
            note(name, result.failures)


@with_packages
def conformance_in_memory(note):
    async def factory():
        yield InMemorySaver()

    conform(note, factory)


@with_packages
def conformance_on_sqlite(note):
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async def factory():
        async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            yield saver

    conform(note, factory)


@with_packages
def checkpoint_lmdb(note):
    import lmdb
    from langgraph_checkpoint_lmdb import AsyncLMDBSaver, LMDBSaver

    tell_of(note, asking(LMDBSaver(lmdb.open(folder(), max_dbs=10))), thread("1"))

    async def main():
        await atell_of(note, asking(AsyncLMDBSaver(lmdb.open(folder(), max_dbs=10))), thread("1"))

    asyncio.run(main())


@with_packages
def checkpoint_objectstorage(note):
    from langgraph_checkpoint_objectstorage import ObjectStorageSaver

    tell_of(note, asking(ObjectStorageSaver.from_conn_string(f"file://{folder()}")), thread("1"))

    async def main():
        await atell_of(note, asking(ObjectStorageSaver.from_conn_string(f"file://{folder()}")), thread("1"))

    asyncio.run(main())


@contextmanager
def redis_clients():
    """Of a real server where there is one, else of one in memory."""
    import fakeredis
    import redis

    program = shutil.which("redis-server")
    if program is None:
        yield fakeredis.FakeRedis, fakeredis.FakeAsyncRedis
        return
    path = f"{folder()}/redis.sock"
    server = subprocess.Popen([program, "--port", "0", "--unixsocket", path, "--save", ""], stdout=subprocess.DEVNULL)
    try:
        while not Path(path).exists():
            time.sleep(0.01)
        yield lambda: redis.Redis(unix_socket_path=path), lambda: redis.asyncio.Redis(unix_socket_path=path)
    finally:
        server.terminate()
        server.wait()


@with_packages
def checkpoint_plainredis(note):
    from langgraph_checkpoint_plainredis import AsyncRedisSaver, RedisSaver

    async def main(client):
        await atell_of(note, asking(AsyncRedisSaver(client)), thread("2"))
        await client.aclose()

    with redis_clients() as (make, amake):
        tell_of(note, asking(RedisSaver(make())), thread("1"))
        asyncio.run(main(amake()))


def mongo():
    """A database in memory. It does not know some arguments of today's client."""
    import mongomock
    import mongomock.collection as mocked

    add, index = mocked.BulkOperationBuilder.add_update, mocked.Collection.create_index
    mocked.BulkOperationBuilder.add_update = lambda self, *a, sort=None, **k: add(self, *a, **k)
    mocked.Collection.create_index = lambda self, a=None, *, keys=None, **k: index(self, [p if isinstance(p, tuple) else (p, 1) for p in a or keys], **k)
    return mongomock.MongoClient()


@with_packages
def checkpoint_mongodb(note):
    from langgraph.checkpoint.mongodb import MongoDBSaver

    tell_of(note, asking(MongoDBSaver(mongo())), thread("1"))


@with_packages
def checkpoint_aws(note):
    from langgraph_checkpoint_aws import DeferredCheckpointSaver

    saver = DeferredCheckpointSaver(InMemorySaver())
    app = asking(saver)
    note(app.invoke({"log": ["in"], "messages": []}, thread("1"))["log"])
    note(app.get_state(thread("1")).next)


@with_packages
def checkpoint_redis(note):
    from langgraph.checkpoint.redis.jsonplus_redis import JsonPlusRedisSerializer

    serde = JsonPlusRedisSerializer()
    value = {"a": [1, "x", None], "m": HumanMessage("hi", id="1")}
    note(serde.loads_typed(serde.dumps_typed(value)))


@with_packages
def store_core(note):
    from langgraph_store_core import KVStore

    class Rows(KVStore):
        def __init__(self, **options):
            super().__init__(**options)
            self.rows = {}

        def _read(self, prefix, key):
            return self.rows.get((prefix, key))

        def _write(self, row):
            self.rows[row["prefix"], row["key"]] = row

        def _remove(self, prefix, key):
            self.rows.pop((prefix, key), None)

        def _scan(self, prefix):
            return [row for (there, _), row in self.rows.items() if there.startswith(prefix)]

    def embed(texts):
        return [[float(len(text)), 1.0] for text in texts]

    for store in (Rows(), Rows(index={"dims": 2, "embed": embed, "fields": ["text"]})):
        store.put(("a", "b"), "k", {"text": "hello", "n": 1})
        store.put(("a", "c"), "k2", {"text": "hi", "n": 2})
        note(store.get(("a", "b"), "k").value, store.list_namespaces(prefix=("a",)))
        note([item.key for item in store.search(("a",), filter={"n": 2})])
        note(sorted(item.key for item in store.search(("a",), query="hello")))
    note(asyncio.run(store.aget(("a", "b"), "k")).value)


def remembering(store, saver=None):
    def node(state, *, store):
        store.put(("notes",), "n", {"text": state["log"][-1]})
        return {"log": [item.value["text"] for item in store.search(("notes",))]}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(store=store, checkpointer=saver)


@with_packages
def store_mongodb(note):
    from langgraph.store.mongodb import MongoDBStore

    store = MongoDBStore(mongo()["db"]["items"])
    store.put(("a", "b"), "k", {"n": 1})
    note(store.get(("a", "b"), "k").value, [item.key for item in store.search(("a",))], store.supports_ttl)
    note(store.list_namespaces(prefix=("a",)))
    store.delete(("a", "b"), "k")
    note(store.get(("a", "b"), "k"))


@with_packages
def agentsync(note):
    from agentsync import SyncedStore

    store = SyncedStore()
    note(remembering(store).invoke({"log": ["x"], "messages": []})["log"])
    with store.acting_as("other"):
        store.put(("notes",), "n", {"text": "y"})
    note(store.get(("notes",), "n").value)


@with_packages
def tenancy(note):
    from langgraph_tenancy import InMemoryUsageLedger, TenantScopedCheckpointer, TenantScopedStore

    ledger = InMemoryUsageLedger()
    saver = TenantScopedCheckpointer(InMemorySaver(), usage_ledger=ledger)
    app = asking(saver, store=TenantScopedStore(InMemoryStore()))
    config = {"configurable": {"thread_id": "1", "tenant_id": "acme"}}
    tell_of(note, app, config)
    other = {"configurable": {"thread_id": "1", "tenant_id": "other"}}
    note(app.get_state(other).values, ledger.totals("acme").messages)
    try:
        app.invoke({"log": [], "messages": []}, thread("1"))
    except Exception as error:
        note(type(error).__name__)


@with_packages
def replay(note):
    from langgraph_replay import (
        ForkManager,
        ReplayCallbackHandler,
        ReplayCheckpointer,
        StateDiffEngine,
    )

    path = str(Path(folder()) / "replay.db")
    app = asking(ReplayCheckpointer(path))
    config = {**thread("1"), "callbacks": [ReplayCallbackHandler(path)]}
    tell_of(note, app, config)
    note(type(ForkManager(path)).__name__, type(StateDiffEngine()).__name__)


@with_packages
def memory(note):
    from langgraph_memory import ExtractedFact, MemoryEngine

    store = InMemoryStore(index={"dims": 2, "embed": lambda texts: [[1.0, float(len(t))] for t in texts]})
    facts = [ExtractedFact(content="likes tea", importance=0.9)]
    engine = MemoryEngine(store, extractor=lambda *_: facts, consolidator=lambda *_: None)
    engine.remember([HumanMessage("I like tea")], namespace=("memories", "u"))
    note([match.record.content for match in engine.recall("tea", namespace=("memories", "u"))])


@with_packages
def events(note):
    from langgraph_events import Command as Order
    from langgraph_events import DomainEvent, EventGraph, Namespace, on

    class Orders(Namespace):
        class Place(Order):
            customer_id: str

            class Placed(DomainEvent):
                order_id: str

            def handle(self):
                return Orders.Place.Placed(order_id=f"o-{self.customer_id}")

    Orders.Place.handle.__annotations__["return"] = Orders.Place.Placed
    log = EventGraph([Orders.Place]).invoke(Orders.Place(customer_id="alice"))
    note(log.latest(Orders.Place.Placed), len(log), on is not None)


def agent(name, *answers):
    model = Scripted(messages=iter([AIMessage(text, id=f"{name}{n}") for n, text in enumerate(answers)]))
    return create_agent(model, [], name=name)


@with_packages
def groupchat(note):
    from langgraph_groupchat import create_groupchat

    order = iter(["alice", "bob", "alice", END])
    chat = create_groupchat([agent("alice", "a1", "a2"), agent("bob", "b1")], lambda *_: next(order))
    found = chat.compile(checkpointer=InMemorySaver()).invoke({"messages": [("user", "hi")]}, thread("1"))
    note([(type(message).__name__, message.name, message.content) for message in found["messages"]])


YAML = """
nodes:
  - {name: greeter, function: greet}
edges:
  - {source: START, target: greeter}
  - {source: greeter, target: END}
"""


@with_packages
def declarative(note):
    from langgraph_declarative import Registry, build_graph

    registry = Registry()
    registry.node("greet")(lambda state: {"messages": [AIMessage("hello", id="1")]})
    path = Path(folder()) / "w.yaml"
    path.write_text(YAML)
    app = build_graph(path, registry)
    note([message.content for message in app.invoke({"messages": [("user", "hi")]})["messages"]])


@with_packages
def agent_teams(note):
    from langgraph_agent_teams import TeamMemberSpec, create_agent_team

    def spec(name, *answers):
        model = Scripted(messages=iter([AIMessage(text, id=f"{name}{n}") for n, text in enumerate(answers)]))
        return TeamMemberSpec(name=name, model=model, system_prompt="x")

    team = create_agent_team(spec("lead", "done"), [spec("helper", "ok")], base_dir=folder(), poll_interval=0.01)
    found = asyncio.run(team.compile().ainvoke({"messages": [HumanMessage("hi", id="0")]}))
    note([message.content for message in found["messages"]], sorted(found))


@with_packages
def state_machine(note):
    from section_flow import SectionConfig, SectionFlowMiddleware

    sections = {
        "gather": SectionConfig(name="gather", prompt="Gather.", allowed_transitions=["end"]),
        "end": SectionConfig(name="end", prompt="End.", allowed_transitions=[]),
    }
    flow = SectionFlowMiddleware(sections=sections, initial_section="gather", include_transition_tool=False)
    model = Scripted(messages=iter([AIMessage("hello", id="1")]))
    found = create_agent(model, [], middleware=[flow]).invoke({"messages": [HumanMessage("hi", id="0")]})
    note({key: value for key, value in found.items() if key != "messages"}, [m.content for m in found["messages"]])


def saying(*texts, saver=None):
    model = Scripted(messages=iter([AIMessage(text, id=f"i{n}") for n, text in enumerate(texts)]))
    graph = StateGraph(MessagesState).add_node("bot", lambda state: {"messages": [model.invoke(state["messages"])]})
    return graph.add_edge(START, "bot").compile(checkpointer=saver)


def without_ids(data):
    if isinstance(data, dict):
        return {k: without_ids(v) for k, v in data.items() if k not in ("id", "created", "created_at")}
    return [without_ids(each) for each in data] if isinstance(data, list) else data


@with_packages
def graphserve(note):
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from graphserve import GraphRegistry, create_openai_router

    registry = GraphRegistry()
    registry.register("bot", saying("hello there", "again"))
    app = FastAPI()
    app.include_router(create_openai_router(registry), prefix="/v1")
    client = TestClient(app)
    path, asked = "/v1/chat/completions", {"model": "bot", "messages": [{"role": "user", "content": "hi"}]}
    answer = client.post(path, json=asked)
    note(answer.status_code, without_ids(answer.json()))
    with client.stream("POST", path, json={**asked, "stream": True}) as stream:
        note(stream.status_code, sum(line.startswith("data:") for line in stream.iter_lines()))


@with_packages
def openai_serve(note):
    from fastapi.testclient import TestClient
    from langgraph_openai_serve import GraphConfig, GraphRegistry, LanggraphOpenaiServe

    registry = GraphRegistry(graphs={"bot": GraphConfig(graph=saying("hello there", "again"), description="x")})
    serve = LanggraphOpenaiServe(registry)
    serve.bind_openai_api()
    client = TestClient(serve.openai_app)
    answer = client.post("/chat/completions", json={"model": "bot", "messages": [{"role": "user", "content": "hi"}]})
    note(answer.status_code, without_ids(answer.json()))


@with_packages
def ag_ui(note):
    from ag_ui.core import RunAgentInput
    from ag_ui_langgraph import LangGraphAgent

    async def main():
        runner = LangGraphAgent(name="bot", graph=saying("hello there", saver=InMemorySaver()))
        asked = RunAgentInput(
            thread_id="1", run_id="r", state={}, messages=[{"id": "u", "role": "user", "content": "hi"}],
            tools=[], context=[], forwarded_props={},
        )  # fmt: skip
        async for event in runner.run(asked):
            if event.type.value != "RAW":
                note(event.type.value, getattr(event, "step_name", ""), getattr(event, "delta", ""))

    asyncio.run(main())


@with_packages
def copilotkit(note):
    from copilotkit import CopilotKitState

    graph = StateGraph(CopilotKitState).add_node("a", lambda state: {"messages": [AIMessage("x", id="1")]})
    note([m.content for m in graph.add_edge(START, "a").compile().invoke({"messages": []})["messages"]])


SERVER = """
from mcp.server.fastmcp import FastMCP

server = FastMCP("sums")

@server.tool()
def add(a: int, b: int) -> int:
    "Add numbers."
    return a + b

server.run()
"""


@with_packages
def mcp_adapters(note):
    from langchain_mcp_adapters.client import MultiServerMCPClient  # needs mcp below 2

    path = Path(folder()) / "server.py"
    path.write_text(SERVER)
    started = {"command": sys.executable, "args": [str(path)], "transport": "stdio"}

    async def main():
        tools = await MultiServerMCPClient({"sums": started}).get_tools()
        model = Talking(answers=[{"calls": [("add", {"a": 1, "b": 2})]}, "three"])
        found = await create_agent(model, tools).ainvoke({"messages": [("user", "1+2")]})
        note([(message.type, re.sub(r"lc_[0-9a-f-]*", "", str(message.content))) for message in found["messages"]])

    asyncio.run(main())


@with_packages
def openinference(note):
    from openinference.instrumentation.langchain import LangChainInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    LangChainInstrumentor().instrument(tracer_provider=provider)
    saying("hello").invoke({"messages": [("user", "hi")]}, thread("1"))
    LangChainInstrumentor().uninstrument()
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    note(sorted((span.name, names.get(span.parent.span_id) if span.parent else None) for span in spans))


@with_packages
def langfuse(note):
    from langfuse.langchain import CallbackHandler

    note(len(saying("hello").invoke({"messages": [("user", "hi")]}, {**thread("1"), "callbacks": [CallbackHandler()]})["messages"]))


def said(app):
    return [message.content for message in app.invoke({"messages": [("user", "hi")]})["messages"]]


@with_packages
def opik(note):
    os.environ["OPIK_TRACK_DISABLE"] = "true"  # there is no server
    from opik.integrations.langchain import OpikTracer, track_langgraph

    note(said(track_langgraph(saying("hello"), OpikTracer(project_name="x"))))


@with_packages
def trulens(note):
    from trulens.apps.langgraph import TruGraph
    from trulens.core import TruSession

    TruSession(database_url="sqlite:///:memory:")
    app = saying("hello")
    with TruGraph(app, app_name="x", app_version="1"):
        note(said(app))


if __name__ == "__main__":
    run_cases()
