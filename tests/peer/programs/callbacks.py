"""What handlers are told of graphs, nodes, routers, tasks, models and tools."""

import asyncio
import contextlib
import itertools
import logging
import operator
from typing import Annotated, TypedDict

from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    dispatch_custom_event,
)
from langchain_core.runnables import RunnableLambda, ensure_config
from langchain_core.tools import tool
from langchain_core.tracers.base import AsyncBaseTracer, BaseTracer
from langgraph.callbacks import GraphCallbackHandler
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, TracePolicy, interrupt, omit_payload
from program_cases import Handler, case, run_cases, saying


class State(TypedDict):
    x: Annotated[list, operator.add]


def one_node(function, **options):
    graph = StateGraph(State)
    graph.add_node("a", function, **options)
    graph.add_edge(START, "a")
    return graph


def route(state):
    return "b"


def two_nodes(router=route):
    graph = one_node(lambda s: {"x": [1]})
    graph.add_node("b", lambda s: {"x": [2]}, metadata={"m": 1})
    graph.add_conditional_edges("a", router, ["b"])
    return graph


@case
def a_graph_its_nodes_and_its_router(note):
    config = {"callbacks": [Handler(note)], "tags": ["t"], "metadata": {"u": 1}, "configurable": {"thread_id": "9"}}
    note(two_nodes().compile(name="mine").invoke({"x": []}, config))


@case
def a_router_without_a_name(note):
    two_nodes(lambda s: "b").compile().invoke({"x": []}, {"callbacks": [Handler(note)]})


@case
def a_router_that_is_a_runnable(note):
    two_nodes(RunnableLambda(route, name="router")).compile().invoke({"x": []}, {"callbacks": [Handler(note)]})


@case
def async_nodes_routers_and_handlers(note):
    async def node(state):
        return {"x": [1]}

    async def router(state):
        return "b"

    class Async(AsyncCallbackHandler):
        async def on_chain_start(self, serialized, inputs, *, name=None, **_):
            await asyncio.sleep(0)
            note("start", name, inputs)

        async def on_chain_end(self, outputs, **_):
            await asyncio.sleep(0)
            note("end", outputs)

    graph = one_node(node)
    graph.add_node("b", lambda s: {"x": [2]})
    graph.add_conditional_edges("a", router, ["b"])
    note(asyncio.run(graph.compile().ainvoke({"x": []}, {"callbacks": [Async()]})))


@case
def a_model_that_is_given_no_config(note):
    model = saying("hello world")
    graph = StateGraph(MessagesState)
    graph.add_node("a", lambda s: {"messages": model.invoke(s["messages"])})
    graph.add_edge(START, "a")
    graph.compile().invoke({"messages": [{"role": "user", "content": "hi", "id": "1"}]}, {"callbacks": [Handler(note)]})


@case
def a_node_that_fails(note):
    config = {"callbacks": [Handler(note)], "run_name": "named"}
    try:
        one_node(lambda s: 1 / 0).compile().invoke({"x": []}, config)
    except ZeroDivisionError:
        note("raised ZeroDivisionError")


@case
def a_node_that_is_tried_again(note):
    tries = []

    def node(state):
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError
        return {"x": [1]}

    graph = one_node(node, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    graph.compile().invoke({"x": []}, {"callbacks": [Handler(note)]})


@case
def graphs_inside(note):
    inner = one_node(lambda s: {"x": [1]})
    graph = StateGraph(State)
    graph.add_node("sub", inner.compile(name="inner"))
    graph.add_node("function", lambda s: inner.compile().invoke({"x": []}))
    graph.add_edge(START, "sub")
    graph.add_edge("sub", "function")
    note(graph.compile().invoke({"x": []}, {"callbacks": [Handler(note)]}))


@case
def a_command_for_the_graph_around(note):
    inner = one_node(lambda s: Command(graph=Command.PARENT, update={"x": [7]}))
    graph = StateGraph(State)
    graph.add_node("sub", inner.compile(name="inner"))
    graph.add_edge(START, "sub")
    note(graph.compile().invoke({"x": []}, {"callbacks": [Handler(note)]}))


@case
def an_entrypoint_and_its_task(note):
    @task
    def double(n):
        return n * 2

    @entrypoint()
    def run(n):
        return double(n).result()

    note(run.invoke(1, {"callbacks": [Handler(note)]}))


@case
def a_question_and_its_answer(note):
    app = one_node(lambda s: {"x": [interrupt("?")]}).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}, "callbacks": [Handler(note)]}
    app.invoke({"x": []}, config)
    note("then")
    app.invoke(Command(resume=5), config)


@case
def handlers_of_pauses(note):
    class Pauses(GraphCallbackHandler):
        def on_interrupt(self, event):
            note("pause", event.status, event.checkpoint_ns, [i.value for i in event.interrupts], event.checkpoint_id != "")

        def on_resume(self, event):
            note("resume", event.status, event.checkpoint_ns)

    graph = StateGraph(State)
    graph.add_node("sub", one_node(lambda s: {"x": [interrupt("?")]}).compile(name="inner"))
    graph.add_node("last", lambda s: {"x": [2]})
    graph.add_edge(START, "sub")
    graph.add_edge("sub", "last")
    app = graph.compile(checkpointer=InMemorySaver(), interrupt_before=["last"])
    config = {"configurable": {"thread_id": "1"}, "callbacks": [Pauses()]}
    for given in ({"x": []}, Command(resume=5), None):
        note("call")
        app.invoke(given, config)


@case
def breakpoints_before_and_after(note):
    class Pauses(GraphCallbackHandler):
        def on_interrupt(self, event):
            note("pause", event.status)

        def on_resume(self, event):
            note("resume", event.status)

    for before, after in ((["b"], ["b"]), (["a"], ["a"]), (["b"], ["a"])):
        graph = one_node(lambda s: {"x": [1]}).add_node("b", lambda s: {"x": [2]}).add_edge("a", "b")
        app = graph.compile(checkpointer=InMemorySaver(), interrupt_before=before, interrupt_after=after)
        config = {"configurable": {"thread_id": "1"}, "callbacks": [Pauses()]}
        for given in ({"x": []}, None, None):
            app.invoke(given, config)
            note(app.get_state(config).next)


@case
def sends(note):
    graph = StateGraph(State)
    graph.add_node("w", lambda s: {"x": [s]})
    graph.add_conditional_edges(START, lambda s: [Send("w", 1), Send("w", 2)], ["w"])
    graph.compile().invoke({"x": []}, {"callbacks": [Handler(note)], "max_concurrency": 1})


@case
def a_tool_and_an_event_of_its_own(note):
    @tool
    def look(a: int) -> int:
        "Look."
        dispatch_custom_event("looked", {"a": a})
        return a

    def node(state):
        dispatch_custom_event("before", 1)
        return {"x": [look.invoke({"a": 1})]}

    one_node(node).compile().invoke({"x": []}, {"callbacks": [Handler(note)]})


@case
def in_a_chain(note):
    app = one_node(lambda s: {"x": [1]}).compile()
    chain = RunnableLambda(lambda s: s) | app | RunnableLambda(lambda s: app.invoke(s))
    note(chain.invoke({"x": []}, {"callbacks": [Handler(note)], "tags": ["t"]}))


@case
def the_config_of_a_node(note):
    def look(state, config):
        for each in (config, ensure_config()):
            note(each.get("tags"), sorted((k, v) for k, v in each["metadata"].items() if "checkpoint_ns" not in k))
            note(sorted(k for k in each["configurable"] if not k.startswith(("__", "checkpoint_"))))
            note(type(each["callbacks"]).__name__)

    config = {"tags": ["t"], "metadata": {"m": 1}, "configurable": {"thread_id": "1", "user": 3}, "run_name": "named"}
    one_node(look).compile(checkpointer=InMemorySaver()).invoke({"x": []}, {**config, "callbacks": [Handler(note)]})
    one_node(look).compile().invoke({"x": []})


@case
def nobody_listens(note):
    def node(state):
        dispatch_custom_event("before", 1)
        return {"x": [ensure_config()["configurable"]["user"]]}

    note(one_node(node).compile().invoke({"x": []}, {"configurable": {"user": 3}}))


@case
def what_a_node_reads_and_sends(note):
    def node(state, config):
        read, send = (config["configurable"][key] for key in ("__pregel_read", "__pregel_send"))
        send([("x", [5])])
        note(read("x"), read(["x"]), read("x", True), read("x", False))
        return {"x": [1]}

    note(one_node(node).compile().invoke({"x": [0]}))


@case
def trace_policies_change_what_tracers_record(note):
    class State(TypedDict):
        n: int

    class Records(BaseTracer):
        def _persist_run(self, run):
            for each in (run, *run.child_runs):
                note(each.name, each.inputs, each.outputs, (each.error or "")[:12])

    class AsyncRecords(AsyncBaseTracer):
        async def _persist_run(self, run):
            for each in (run, *run.child_runs):
                note(each.name, each.inputs, each.outputs)

    class Raw(BaseCallbackHandler):
        def on_chain_start(self, serialized, inputs, **_):
            note("start", inputs)

        def on_chain_end(self, outputs, **_):
            note("end", outputs)

    def fail(value):
        raise LookupError("policy")

    def kind(value):
        return {"kind": type(value).__name__, "value": str(value)}

    bodies = [lambda state: {"n": 2}, lambda state: Command(update={"n": 2}), lambda state: 1 / 0]
    policies = [
        TracePolicy(process_inputs=kind, process_outputs=kind), TracePolicy(process_inputs=omit_payload),
        TracePolicy(process_outputs=lambda value: "text"), TracePolicy(process_inputs=fail, process_outputs=fail),
    ]  # fmt: skip
    logging.disable()
    for body, policy in itertools.product(bodies, policies):
        app = StateGraph(State).add_node("a", body, trace_policy=policy).add_edge(START, "a").compile()
        with contextlib.suppress(ZeroDivisionError):
            app.invoke({"n": 1}, {"callbacks": [Records(), Raw()]})
        with contextlib.suppress(ZeroDivisionError):
            asyncio.run(app.ainvoke({"n": 1}, {"callbacks": [AsyncRecords()]}))
    logging.disable(logging.NOTSET)


if __name__ == "__main__":
    run_cases()
