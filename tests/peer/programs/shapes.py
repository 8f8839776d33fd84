"""What programs and packages rely on beside running graphs: shapes of tuples, names of parameters, contracts of their own
savers, channels and stores."""

import asyncio
import inspect
import logging
import operator
import threading
import warnings
from datetime import datetime
from typing import Annotated, ClassVar

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.base import BaseCache
from langgraph.callbacks import GraphCallbackHandler
from langgraph.channels import LastValue, Topic, UntrackedValue
from langgraph.channels.base import MISSING, BaseChannel
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyChannelError, NodeCancelledError, NodeTimeoutError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel._read import ChannelRead
from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry
from langgraph.runtime import BaseUser, ExecutionInfo, Runtime, get_runtime
from langgraph.store.base import BaseStore, Item, SearchItem
from langgraph.store.base.embed import ensure_embeddings, get_text_at_path, tokenize_path
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import (
    CachePolicy,
    Command,
    GraphOutput,
    Interrupt,
    Send,
    TimeoutPolicy,
    default_retry_on,
    interrupt,
)
from program_cases import Scripted, calling, case, run_cases, thread
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Log(TypedDict):
    log: Annotated[list, operator.add]


def one_node(node, saver=None, **options):
    return StateGraph(Log).add_node("a", node).add_edge(START, "a").compile(checkpointer=saver, **options)


@case
def classes_are_subscripted(note):
    for cls in (BaseCheckpointSaver, BaseCache, CachePolicy):
        note(cls.__name__, cls[str] is not None)

    class Mine(BaseCheckpointSaver[str]):
        pass

    note(issubclass(Mine, BaseCheckpointSaver), isinstance(InMemorySaver(), BaseCheckpointSaver))


@case
def tuples_are_unpacked(note):
    saver = InMemorySaver()
    app = one_node(lambda state: {"log": [interrupt("ok?")]}, saver)
    app.invoke({"log": []}, thread("1"))
    config, checkpoint, metadata, parent, writes = saver.get_tuple(thread("1"))
    note(sorted(config), sorted(checkpoint["channel_values"]), metadata["step"], parent is None, len(writes))
    values, following, _, _, _, _, tasks, interrupts = app.get_state(thread("1"))
    note(values, following, len(tasks), [each.value for each in interrupts])
    _, name, path, error, asked, state, result = tasks[0]
    note(name, path, error, len(asked), state, result)
    note(CheckpointTuple._fields, type(tasks[0])._fields, type(app.get_state(thread("1")))._fields)
    note(repr(app.get_state(thread("1"))).count("="), repr(tasks[0]._replace(interrupts=(), id="1")))
    note(GraphOutput({"a": 1}), Interrupt.from_ns("v", "ns").value, len(Interrupt.from_ns("v", "ns").id))


@case
def items_are_made_and_told(note):
    now = datetime(2026, 1, 1)
    found = SearchItem(("a", "b"), "k", {"x": 1}, now, now, 0.5)
    note(found.namespace, found.score, found.dict())
    note(Item(value={"x": 1}, key="k", namespace=("a",), created_at=now, updated_at=now).dict())


@case
def parameters_are_named(note):
    note(LastValue(int).from_checkpoint(checkpoint=1).get(), Topic(int).from_checkpoint(checkpoint=[1]).values)
    note(TimeoutPolicy.coerce(value=3.0).run_timeout, default_retry_on(exc=ValueError()))
    for error in (
        NodeTimeoutError("n", 1.5, kind="run", run_timeout=1.0),
        NodeTimeoutError(node="n", elapsed=2.0, kind="idle", idle_timeout=1.0),
    ):
        note(error.node, error.elapsed, error.kind, error.run_timeout, error.idle_timeout)
    note(NodeCancelledError("n", message="x").node)


@case
def a_runtime_is_merged(note):
    one = Runtime(context=1, previous=7)
    note(one.merge(Runtime(context=2)).context, one.merge(Runtime(context=2)).previous, one.override(context=3).context)
    info = ExecutionInfo(checkpoint_id="c", checkpoint_ns="n", task_id="t")
    note(info.patch(task_id="u"), one.override(execution_info=info).patch_execution_info(task_id="v").execution_info.task_id)

    class User:
        identity = display_name = "u"
        is_authenticated = True
        permissions = ()

        def __getitem__(self, key):
            return None

        def __contains__(self, key):
            return False

        def __iter__(self):
            return iter(())

    note(isinstance(User(), BaseUser), isinstance("x", BaseUser))

    def node(state):
        return {"log": [get_runtime(context_schema=dict).context]}

    app = StateGraph(Log, dict).add_node("a", node).add_edge(START, "a").compile()
    note(app.invoke({"log": []}, context={"a": 1}))


@case
def a_node_is_tested_by_itself(note):
    async def later(state):
        return {"log": ["later"]}

    app = StateGraph(Log).add_node("a", lambda state: {"log": ["now"]}).add_node("b", later).add_edge(START, "a").add_edge("a", "b")
    app = app.compile(interrupt_before=["b"])
    note(app.nodes["a"].invoke({"log": []}), asyncio.run(app.nodes["b"].ainvoke({"log": []})))
    note(app.interrupt_before_nodes, app.interrupt_after_nodes, app.stream_channels_list, app.debug)


@case
def channels_are_read_and_written_by_name(note):
    def spread(state, config):
        ChannelWrite.do_write(config, [ChannelWriteEntry("log", ["by hand"])])
        note(ChannelRead.do_read(config, select="log"), ChannelRead.do_read(config, select="log", fresh=True))
        ChannelWrite.do_write(config, [Send("b", {"log": ["x"]})])
        return {"log": ["returned"]}

    graph = StateGraph(Log).add_node("a", spread).add_node("b", lambda state: {"log": [f"b of {state['log']}"]})
    note(sorted(graph.add_edge(START, "a").compile().invoke({"log": []})["log"]))


@case
def a_list_of_sends_is_several(note):
    def spread(state, config):
        config["configurable"]["__pregel_send"]([("__pregel_tasks", [Send("b", {"log": [1]}), Send("b", {"log": [2]})])])

    graph = StateGraph(Log).add_node("a", spread).add_node("b", lambda state: {"log": [state["log"][0] * 10]})
    note(graph.add_edge(START, "a").compile().invoke({"log": []}))


class Own(BaseCheckpointSaver):
    """A saver of one's own by the documented contract."""

    def __init__(self):
        super().__init__()
        self.rows, self.writes, self.seen = [], {}, []

    def get_tuple(self, config):
        self.note("get", config)
        wanted = get_checkpoint_id(config)
        thread_id = config["configurable"]["thread_id"]
        for config, data, metadata in sorted(self.rows, key=lambda row: row[0]["configurable"]["checkpoint_id"], reverse=True):
            place = config["configurable"]
            if place["thread_id"] == thread_id and wanted in (None, place["checkpoint_id"]):
                parent = self.parents[place["checkpoint_id"]]
                return CheckpointTuple(
                    config, self.serde.loads_typed(data), metadata,
                    None if parent is None else {"configurable": {**place, "checkpoint_id": parent}},
                    [(task, name, value) for (task, _), (name, value) in sorted(self.writes.get(place["checkpoint_id"], {}).items())],
                )  # fmt: skip
        return None

    parents: ClassVar[dict] = {}

    def list(self, config, *, filter=None, before=None, limit=None):
        for row in sorted(self.rows, key=lambda row: row[0]["configurable"]["checkpoint_id"], reverse=True):
            found = self.get_tuple(row[0])
            if found is not None:
                yield found

    def put(self, config, checkpoint, metadata, new_versions: ChannelVersions):
        self.note("put", config)
        place = {"thread_id": config["configurable"]["thread_id"], "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}
        self.parents[checkpoint["id"]] = config["configurable"].get("checkpoint_id")
        saved = {"configurable": place}
        self.rows.append((saved, self.serde.dumps_typed(checkpoint), get_checkpoint_metadata(config, metadata)))
        return saved

    def put_writes(self, config, writes, task_id, task_path=""):
        self.note("writes", config)
        kept = self.writes.setdefault(config["configurable"]["checkpoint_id"], {})
        for index, (name, value) in enumerate(writes):
            kept[task_id, WRITES_IDX_MAP.get(name, index)] = (name, value)

    def note(self, what, config):
        self.seen.append((what, config["configurable"].get("user"), (config.get("metadata") or {}).get("run_id")))


@case
def a_saver_of_ones_own_gets_the_whole_config(note):
    saver = Own()
    app = one_node(lambda state: {"log": [interrupt("ok?")]}, saver)
    config = {"configurable": {"thread_id": "1", "user": "u"}, "metadata": {"run_id": "r", "team": "t"}}
    app.invoke({"log": []}, config)
    note(app.get_state(config).next, [s.metadata["step"] for s in app.get_state_history(config)])
    note(sorted(set(saver.seen), key=str))
    note([metadata.get("team") for _, _, metadata in saver.rows], [metadata.get("user") for _, _, metadata in saver.rows])
    note(saver.get_next_version(None, None) is not None, saver.config_specs, type(saver.with_allowlist([])).__name__)


@case
def ids_of_checkpoints_are_sorted(note):
    for durability in ("sync", "async", "exit"):
        saver = InMemorySaver()
        app = one_node(lambda state: {"log": [1]}, saver)
        for _ in range(3):
            app.invoke({"log": []}, thread("1"), durability=durability)
        ids = [found.checkpoint["id"] for found in saver.list(thread("1"))]
        note(ids == sorted(ids, reverse=True), len(ids))
    note(uuid6() < uuid6() or "same tick", uuid6().version)


class Cell(BaseChannel):
    """A channel of one's own that says by an error that it is empty, and stores nothing then."""

    ValueType = UpdateType = int

    def __init__(self, typ=int, key=""):
        super().__init__(typ, key)
        self.value = MISSING

    def from_checkpoint(self, checkpoint):
        new = self.__class__(self.typ, self.key)
        if checkpoint is not MISSING:
            new.value = checkpoint
        return new

    def update(self, values):
        if not values:
            return False
        self.value = values[-1]
        return True

    def get(self):
        if self.value is MISSING:
            raise EmptyChannelError()
        return self.value

    def checkpoint(self):
        return self.value


class Refusing(Cell):
    def checkpoint(self):
        return self.get()


@case
def a_channel_of_ones_own_may_be_empty(note):
    for cls in (Cell, Refusing):

        class State(TypedDict):
            cell: Annotated[int, cls]
            log: Annotated[list, operator.add]

        graph = StateGraph(State).add_node("a", lambda state: {"log": [state.get("cell")]})
        graph.add_node("b", lambda state: {"cell": 5}).add_node("c", lambda state: {"log": [state.get("cell")]})
        graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
        app = graph.compile(checkpointer=InMemorySaver())
        note(app.invoke({"log": []}, thread("1")))
        note([state.values for state in app.get_state_history(thread("1"))])


@case
def embeddings_are_ensured(note):
    plain = ensure_embeddings(lambda texts: [[float(len(text))] for text in texts])
    note(plain.embed_query("abc"), plain.embed_documents(["a", "ab"]))

    async def later(texts):
        return [[1.0] for _ in texts]

    note(asyncio.run(ensure_embeddings(later).aembed_query("x")))
    value = {"a": {"b": "v", "c": 2}, "l": [{"t": "one"}, {"t": "two"}], "n": None}
    for path in ("a.b", "l[0].t", "l[*].t", "l[-1].t", "a.{b,c}", "n"):
        note(path, tokenize_path(path), get_text_at_path(value, path))


@case
def a_store_says_what_it_can(note):
    store = InMemoryStore(index={"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]})
    note(store.index_config["dims"], store.embeddings.embed_query("x"), InMemoryStore().index_config, InMemoryStore().embeddings)
    note(BaseStore.supports_ttl, BaseStore.ttl_config)
    for name in ("setup", "sweep_ttl", "start_ttl_sweeper", "stop_ttl_sweeper"):
        note(name, inspect.iscoroutinefunction(getattr(AsyncSqliteStore, name)))

    async def main():
        async with AsyncSqliteStore.from_conn_string(":memory:", ttl={"default_ttl": 1, "omit_expired": True}) as store:
            await store.setup()
            await store.aput(("a",), "k", {"x": 1})
            note((await store.aget(("a",), "k")).value, await store.sweep_ttl())
            await store.start_ttl_sweeper()
            await store.stop_ttl_sweeper()

    asyncio.run(main())


@case
def a_message_gets_its_id(note):
    app = StateGraph(MessagesState).add_node("a", lambda state: {"messages": [AIMessage("x")]}).add_edge(START, "a").compile()
    given = HumanMessage("hi")
    found = app.invoke({"messages": [given]})
    note(given.id is not None, [message.id is not None for message in found["messages"]], found["messages"][0].id == given.id)


class Model(BaseModel):
    a: int = 5
    b: list = Field(default_factory=list)
    c: str | None = None
    d: int = 0
    e: Annotated[list, operator.add] = []


@case
def defaults_of_a_model_count_as_written(note):
    for node in (
        lambda state: Model(d=2),
        lambda state: Model(c="x"),
        lambda state: Command(update=Model(d=4)),
        lambda state: state.model_copy(update={"d": 9}),
        lambda state: {},
    ):
        app = StateGraph(Model).add_node("a", node).add_edge(START, "a").compile()
        note(app.invoke({"d": 3, "a": 7, "e": [1]}), app.invoke(Model(d=1)))


@tool
def look(x: int, runtime: ToolRuntime) -> str:
    """Look."""
    return f"{x} {sorted(runtime.state)} {runtime.tool_call_id} {runtime.context}"


@case
def an_agent_warns_of_nothing(note):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = create_agent(calling("look", {"x": 1}, "done"), [look]).invoke({"messages": [HumanMessage("hi", id="0")]})
    note([message.content for message in found["messages"]], [str(each.message) for each in caught])


class Raising(GraphCallbackHandler):
    def on_interrupt(self, event):
        raise ValueError

    def on_resume(self, event):
        raise ValueError


class RaisingLater(GraphCallbackHandler):
    async def on_interrupt(self, event):
        raise ValueError

    async def on_resume(self, event):
        raise ValueError


class Names(BaseCallbackHandler):
    def __init__(self):
        self.names = []

    def on_chain_start(self, serialized, inputs, *, name=None, **_):
        self.names.append(name)


@case
def handlers_that_raise_are_passed_over(note):
    logging.disable()
    app = one_node(lambda state: {"log": [interrupt("ok?")]}, InMemorySaver())
    config = {**thread("1"), "callbacks": [Raising()]}
    note(sorted(app.invoke({"log": []}, config)), app.invoke(Command(resume=1), config))
    config = {**thread("2"), "callbacks": [RaisingLater()]}

    async def main():
        note(sorted(await app.ainvoke({"log": []}, config)), await app.ainvoke(Command(resume=1), config))

    asyncio.run(main())
    logging.disable(logging.NOTSET)


@case
def handlers_of_the_graph_hear_of_streamed_events(note):
    names = Names()
    app = one_node(lambda state: {"log": [1]}).with_config({"callbacks": [names], "tags": ["t"]})

    async def main():
        return [event["event"] async for event in app.astream_events({"log": []}, version="v2")]

    note(asyncio.run(main()), names.names)


class Connected(TypedDict, total=False):
    log: Annotated[list, operator.add]
    connection: Annotated[object, UntrackedValue]


@case
def untracked_values_of_a_send_are_not_stored(note):
    def work(state):
        note(sorted(state))
        return {"log": [interrupt("ok?")]}

    graph = StateGraph(Connected).add_node("a", lambda state: {"connection": threading.Lock()}).add_node("work", work)
    graph.add_edge(START, "a").add_conditional_edges("a", lambda state: [Send("work", dict(state))], ["work"])
    app = graph.compile(checkpointer=InMemorySaver())
    app.invoke({"log": ["in"]}, thread("1"))
    note(app.invoke(Command(resume="yes"), thread("1"))["log"])


class Slow(Scripted):
    async def _astream(self, *args, **options):
        async for chunk in super()._astream(*args, **options):
            await asyncio.sleep(0.15)
            yield chunk


@case
def tokens_are_signs_of_life(note):
    async def node(state):
        return {"log": [(await Slow(messages=iter([AIMessage("a b c d")])).ainvoke("x")).content]}

    async def main():
        app = StateGraph(Log).add_node("a", node, timeout=TimeoutPolicy(idle_timeout=0.5)).add_edge(START, "a").compile()
        return [chunk async for chunk in app.astream({"log": []}, stream_mode=["messages", "values"])][-1]

    note(asyncio.run(main()))


if __name__ == "__main__":
    run_cases()
