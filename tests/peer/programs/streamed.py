"""Streams in every mode, as programs read them."""

import asyncio
import operator
from typing import Annotated

from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware
from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolRuntime, create_react_agent
from langgraph.stream import (
    CheckpointsTransformer,
    CustomTransformer,
    DebugTransformer,
    StreamChannel,
    StreamTransformer,
    TasksTransformer,
    UpdatesTransformer,
)
from langgraph.types import Command, StreamWriter, interrupt
from program_cases import Talking, add, case, collect, run_cases, saying, thread
from typing_extensions import TypedDict


class State(TypedDict):
    topic: str
    joke: str
    log: Annotated[list[str], operator.add]


def two_nodes(**options):
    def refine(state: State):
        return {"topic": state["topic"] + " and cats"}

    def joke(state: State, writer: StreamWriter):
        writer({"progress": 50})
        get_stream_writer()("half way")
        return {"joke": f"about {state['topic']}", "log": ["joke"]}

    return StateGraph(State).add_sequence([refine, joke]).add_edge(START, "refine").compile(**options)


GIVEN = {"topic": "ice cream", "log": []}
MODES = ["values", "updates", "custom", "messages"]
IDS = ("id", "checkpoint_id", "thread_ts", "timestamp", "ts", "checkpoint_ns", "langgraph_checkpoint_ns")


def stable(value):
    """Without ids and times, and a config shortened to its keys."""
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in IDS}
    if isinstance(value, (list, tuple)):
        return type(value)(stable(v) for v in value) if type(value) in (list, tuple) else value
    return value


@case
def one_mode_at_a_time(note):
    for mode in ("values", "updates", "custom", "messages"):
        for chunk in two_nodes().stream(GIVEN, stream_mode=mode):
            note(mode, chunk)


@case
def several_modes_at_once(note):
    for mode, chunk in two_nodes().stream(GIVEN, stream_mode=MODES):
        note(mode, chunk)
    for mode, chunk in asyncio.run(collect(two_nodes().astream(GIVEN, stream_mode=MODES))):
        note(mode, chunk)


@case
def the_default_mode(note):
    for chunk in two_nodes().stream(GIVEN):
        note(chunk)
    note(two_nodes().invoke(GIVEN, stream_mode="updates"))
    note(two_nodes().invoke(GIVEN, stream_mode=["updates", "values"]))
    note(two_nodes().invoke(GIVEN, output_keys="joke"))
    note(two_nodes().invoke(GIVEN, output_keys=["joke"]))


@case
def tasks_and_checkpoints(note):
    app = two_nodes(checkpointer=InMemorySaver())
    for mode, chunk in app.stream(GIVEN, thread(), stream_mode=["tasks", "checkpoints"]):
        note(mode, stable(chunk))


@case
def debugging(note):
    app = two_nodes(checkpointer=InMemorySaver())
    for chunk in app.stream(GIVEN, thread(), stream_mode="debug"):
        note(stable(chunk))


@case
def typed_parts(note):
    app = two_nodes(checkpointer=InMemorySaver())
    for part in app.stream(GIVEN, thread(), stream_mode=[*MODES, "tasks", "checkpoints"], version="v2"):
        note(part["type"], part["ns"], stable(part["data"]), part.get("interrupts"))
    found = two_nodes().invoke(GIVEN, version="v2")
    note(type(found).__name__, found.value, found.interrupts)


@case
def typed_parts_of_a_pause(note):
    def ask(state: State):
        return {"joke": interrupt("which?")}

    def make():
        return StateGraph(State).add_node(ask).add_edge(START, "ask").compile(checkpointer=InMemorySaver())

    async def main():
        app = make()
        async for part in app.astream(GIVEN, thread(), stream_mode=["values", "updates"], version="v2"):
            note(part["type"], part["ns"], [i.value for i in part.get("interrupts", ())], sorted(part["data"]))
        found = await app.ainvoke(Command(resume="this"), thread(), version="v2")
        note(found.value, found.interrupts)

    asyncio.run(main())
    paused = make().invoke(GIVEN, thread(), version="v2")
    note(paused.value, [each.value for each in paused.interrupts])


@case
def subgraphs_are_streamed(note):
    sub = two_nodes()
    app = StateGraph(State).add_node("sub", sub).add_edge(START, "sub").compile()
    for ns, mode, chunk in app.stream(GIVEN, stream_mode=["updates", "custom", "values"], subgraphs=True):
        note([level.partition(":")[0] for level in ns], mode, chunk)
    for part in app.stream(GIVEN, stream_mode=["updates", "custom"], subgraphs=True, version="v2"):
        note([level.partition(":")[0] for level in part["ns"]], part["type"], part["data"])


@case
def tokens_by_node_and_by_tag(note):
    jokes, poems = saying("ha ha"), saying("roses are red")

    class Both(TypedDict):
        joke: str
        poem: str

    def joke(state: Both, config: RunnableConfig):
        return {"joke": jokes.with_config(tags=["joke"]).invoke("joke", config).content}

    def poem(state: Both, config: RunnableConfig):
        return {"poem": poems.with_config(tags=["poem"]).invoke("poem", config).content}

    app = StateGraph(Both).add_sequence([joke, poem]).add_edge(START, "joke").compile()
    for message, metadata in app.stream({}, stream_mode="messages"):
        note(metadata["tags"], metadata["langgraph_node"], repr(message.content))


@case
def custom_events(note):
    async def node(state: State, config: RunnableConfig):
        await adispatch_custom_event("step", {"n": 1}, config=config)
        return {"joke": "j"}

    def other(state: State):
        dispatch_custom_event("other", 2)
        return

    app = StateGraph(State).add_sequence([node, RunnableLambda(other)])
    app = app.add_edge(START, "node").compile()

    async def main():
        async for event in app.astream_events(GIVEN, version="v2"):
            if event["event"] == "on_custom_event":
                note(event["name"], event["data"], event["metadata"]["langgraph_node"])

    asyncio.run(main())


@case
def events(note):
    model = saying("one two")

    async def call(state: MessagesState):
        return {"messages": await model.ainvoke(state["messages"])}

    app = StateGraph(MessagesState).add_node(call).add_edge(START, "call").compile()

    async def main():
        async for event in app.astream_events({"messages": [("user", "hi")]}, version="v2"):
            data = event["data"]
            shown = data["chunk"].content if event["event"] == "on_chat_model_stream" else sorted(data)
            note(event["event"], event["name"], event["tags"], stable(event["metadata"]), shown)
        names = ["call"]
        async for event in app.astream_events({"messages": []}, version="v2", include_names=names):
            note(event["event"], event["name"])

    model.messages = iter([AIMessage("one two", id="1"), AIMessage("three", id="2")])
    asyncio.run(main())


@case
def events_of_an_agent(note):
    app = create_react_agent(Talking(answers=[{"calls": [("add", {"a": 1, "b": 2})]}, "three it is"]), [add])

    async def main():
        async for event in app.astream_events({"messages": [("user", "1+2")]}, version="v2"):
            note(event["event"], event["name"], event["tags"], event["metadata"].get("langgraph_node"))

    asyncio.run(main())


@case
def a_stream_is_left_early(note):
    app = two_nodes(checkpointer=InMemorySaver())
    for chunk in app.stream(GIVEN, thread()):
        note(chunk)
        break
    note(app.get_state(thread()).next)

    async def main():
        stream = app.astream(GIVEN, thread("2"))
        async for chunk in stream:
            note(chunk)
            break
        await stream.aclose()
        note((await app.aget_state(thread("2"))).next)

    asyncio.run(main())


class Counted(MessagesState):
    n: int


def counting(*, asks=False, fails=False):
    """A graph that counts, says something, and does so in a graph inside of it."""

    def count(state):
        return {"n": state["n"] + 1}

    def say(state):
        return {"messages": [saying("hi there").invoke("x")]}

    def end(state):
        return {"n": 1 // 0 if fails else interrupt("more?") if asks else state["n"] + 10}

    leaf = StateGraph(Counted).add_node("leaf", end).add_edge(START, "leaf").compile()
    inner = StateGraph(Counted).add_node("count", count).add_node("say", say).add_node("deep", leaf)
    inner.add_edge(START, "count").add_edge("count", "say").add_edge("say", "deep")
    graph = StateGraph(Counted).add_node("count", count).add_node("say", say).add_node("sub", inner.compile())
    graph.add_edge(START, "count").add_edge("count", "say").add_edge("say", "sub")
    return graph.compile(InMemorySaver())


START_OF_COUNT = {"messages": [], "n": 0}


def seen(item):
    """An item of a projection, as far as it is the same in each run."""
    if hasattr(item, "message_id"):
        return type(item).__name__, item.node, item.namespace
    if hasattr(item, "graph_name"):
        return type(item).__name__, item.path, item.graph_name
    if isinstance(item, dict) and "messages" in item:
        return [each.content for each in item["messages"]], item["n"]
    return item


@case
def a_run_is_read_by_projections(note):
    def opened(config="1", given=START_OF_COUNT, **options):
        return counting(**options).stream_events(given, thread(config), version="v3")

    for event in opened():
        params = event["params"]
        data = params["data"][0] if event["method"] == "messages" else seen(params["data"])
        note(event["seq"], event["method"], params["namespace"], data, params.get("interrupts"))
    run = opened()
    note([seen(each) for each in run.values], seen(run.output), run.interrupted, run.interrupts)
    for name, item in opened().interleave("lifecycle", "messages", "subgraphs", "values"):
        note(name, seen(item))
    for message in opened().messages:
        note(list(message.text), message.output.content, message.output.id)
    for sub in opened().subgraphs:
        note([seen(each) for each in sub.values], [seen(each) for each in sub.subgraphs], list(sub.lifecycle))
        note(sub.status, sub.trigger_call_id, seen(sub.output), sub.interrupted)
    note([len(list(each)) for each in opened().values.tee(2)])
    with opened() as run:
        values = iter(run.values)
        note(seen(next(values)))
    note([seen(each) for each in values], seen(run.output))


@case
def a_run_that_pauses_or_fails_is_read_by_projections(note):
    app = counting(asks=True)
    run = app.stream_events(START_OF_COUNT, thread(), version="v3")
    note([each["event"] for each in run.lifecycle], run.interrupted, [each.value for each in run.interrupts])
    run = app.stream_events(Command(resume=7), thread(), version="v3")
    note([each["event"] for each in run.lifecycle], seen(run.output), run.interrupted)
    run = counting(fails=True).stream_events(START_OF_COUNT, thread(), version="v3")
    told = iter(run.lifecycle)
    for read in (lambda: [note(each) for each in told], lambda: run.output, lambda: run.interrupted):
        try:
            note(read())
        except ZeroDivisionError as error:
            note("raised", error)
    run = counting().stream_events(START_OF_COUNT, thread(), version="v3")
    list(run.values)
    for wrong in (lambda: list(run.values), lambda: list(run.interleave("nothing")), lambda: counting().stream_events({}, stream_mode="x", version="v3")):
        try:
            wrong()
        except Exception as error:
            note(type(error).__name__)


@case
def a_run_on_a_loop_is_read_by_projections(note):
    async def opened(**options):
        return await counting(**options).astream_events(START_OF_COUNT, thread(), version="v3")

    async def read(run, name):
        return name, [seen(each) async for each in getattr(run, name)]

    async def main():
        run = await opened()
        note(await asyncio.gather(*(read(run, name) for name in ("values", "lifecycle", "messages", "subgraphs"))))
        note(seen(await run.output()), await run.interrupted(), await run.interrupts())
        note([event["method"] async for event in await opened()])
        async for message in (await opened()).messages:
            note([part async for part in message.text], (await message.output).content)
        async for sub in (await opened(asks=True)).subgraphs:
            note(await read(sub, "values"), sub.status, await sub.interrupted())
        async with await opened() as run:
            async for each in run.values:
                note(seen(each))
                break

    asyncio.run(main())


class Counting(StreamTransformer):
    """Counts the events of its graph and of those inside of it."""

    def __init__(self, scope=()):
        super().__init__(scope)
        self.n = 0

    def init(self):
        self.counts, self.named = StreamChannel(), StreamChannel("counted")
        return {"counts": self.counts, "named": self.named, "plain": self}

    def process(self, event):
        self.n += 1
        if event["method"] == "values":
            self.counts.push(self.n)
            self.named.push(self.n)
        return event["method"] != "messages"

    def finalize(self):
        self.counts.push("end")

    def fail(self, err):
        self.counts.push(repr(err))


class Waiting(Counting):
    """Does so on an event loop, and later."""

    async def aprocess(self, event):
        await asyncio.sleep(0)
        if event["method"] == "values":
            self.schedule(self.later())
        return super().process(event)

    async def later(self):
        self.named.push("later")

    async def afinalize(self):
        self.counts.push("end")


def count_events(*transformers, given=START_OF_COUNT, compiled=(), **options):
    graph = counting(**options)
    graph = graph.builder.compile(InMemorySaver(), transformers=compiled) if compiled else graph
    return graph.stream_events(given, thread(), version="v3", transformers=transformers)


@case
def transformers_make_projections(note):
    run = count_events(Counting)
    note([*run.extensions], type(run.plain).__name__ if hasattr(run, "plain") else "in extensions", run.extensions["plain"].n)
    for name, item in run.interleave("counts", "named", "values"):
        note(name, seen(item))
    note([(event["method"], event["seq"]) for event in count_events(Counting)])
    for sub in count_events(Counting).subgraphs:
        note([*sub.extensions], [*sub.extensions["counts"]], [[*each.extensions["named"]] for each in sub.subgraphs])
    note([[*each] for each in count_events(Counting).extensions["counts"].tee(2)])
    run = count_events(Counting)
    counts = iter(run.extensions["counts"])
    note(next(counts))
    run.abort()
    note([*counts])
    run = count_events(Counting, fails=True)
    try:
        note([*run.extensions["counts"]])
    except ZeroDivisionError as error:
        note(error)


@case
def transformers_on_a_loop(note):
    async def main():
        app = counting()
        for name in ("counts", "named"):
            run = await app.astream_events(START_OF_COUNT, thread(name), version="v3", transformers=[Waiting])
            note(sorted(map(str, [each async for each in run.extensions[name]])))
        run = await app.astream_events(START_OF_COUNT, thread(), version="v3", transformers=[Waiting])
        one, two = run.extensions["counts"].atee(2)
        note([each async for each in one], [each async for each in two])

    asyncio.run(main())


@case
def transformers_of_stream_modes(note):
    modes = (UpdatesTransformer, CustomTransformer, CheckpointsTransformer, TasksTransformer, DebugTransformer)
    run = count_events(CustomTransformer, CheckpointsTransformer, TasksTransformer, DebugTransformer, compiled=[UpdatesTransformer])
    note([*run.extensions])
    for name, item in run.interleave("updates", "custom", "tasks", "debug"):
        note(name, sorted(item))
    note([event["method"] for event in count_events(*modes)])


@case
def transformers_that_are_refused(note):
    class Clashing(Counting):
        def init(self):
            return {"values": 1}

    class Nothing(Counting):
        def init(self):
            return None

    class Failing(Counting):
        def process(self, event):
            raise KeyError("x")

    class Unable(StreamTransformer):
        def init(self):
            return {}

    for wrong in (Clashing, Nothing, Failing, Unable, Waiting, Counting()):
        try:
            note(count_events(wrong).output)
        except Exception as error:
            note(type(error).__name__)
    for wrong in (StreamTransformer, lambda: list(StreamChannel()), lambda: list(count_events(Counting).interleave("plain"))):
        try:
            note(wrong())
        except Exception as error:
            note(type(error).__name__)


@case
def an_agent_shows_its_tools_and_agents(note):
    @tool
    def check(a: int, runtime: ToolRuntime) -> int:
        """Check a number."""
        runtime.emit_output_delta("half")
        return 10 // a

    def agent(*calls, tools=(check, add), name=None):
        model = Talking(answers=[{"calls": calls}, "that is it"])
        return create_agent(model, [*tools], name=name)

    def opened(app):
        return app.stream_events({"messages": [("user", "x")]}, version="v3")

    both = [("check", {"a": 2}), ("add", {"a": 1, "b": 2})]
    note([*opened(agent(*both)).extensions])
    for call in opened(agent(both[0])).tool_calls:
        note(call.tool_name, call.input, [*call.output_deltas], call.output, call.error, call.completed)
    run = opened(agent(("check", {"a": 0})))
    try:
        for event in run:
            note(event["method"], event["params"]["data"] if event["method"] == "tools" else "")
    except ZeroDivisionError as error:
        note(error)
    helper = agent(both[1], name="helper")

    @tool
    def ask(what: str) -> str:
        """Ask the helper."""
        return helper.invoke({"messages": [("user", what)]})["messages"][-1].content[0]["text"]

    boss = agent(("ask", {"what": "y"}), tools=[ask], name="boss")
    for sub in opened(boss).subagents:
        note(sub.name, sub.cause, sub.graph_name, sub.status, [each.output.content for each in sub.messages], sub.status)
    for told in opened(boss).lifecycle:
        note(told["event"], told.get("graph_name"), told.get("cause"))

    async def main():
        run = await boss.astream_events({"messages": [("user", "x")]}, version="v3")
        async for sub in run.subagents:
            note(sub.name, sub.cause, [(await each.output).content async for each in sub.messages], sub.status)

    asyncio.run(main())


@case
def what_middleware_hides_is_hidden_in_events(note):
    model = Talking(answers=["write to joe@example.com now please"])
    redact = PIIMiddleware("email", strategy="redact", apply_to_output=True)
    run = create_agent(model, [], middleware=[redact]).stream_events({"messages": [("user", "x")]}, version="v3")
    for message in run.messages:
        note(list(message.text), message.output.content)


if __name__ == "__main__":
    run_cases()
