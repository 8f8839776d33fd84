"""Example graphs for tests of drawings, each with a special feature. Their nodes and routers are never called."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import Annotated, Literal, NoReturn, TypedDict

from stategraph import END, START, Command, NodeBuilder, Pregel, Send, StateGraph, entrypoint
from stategraph.channels import EphemeralValue, LastValue, Topic

MODEL = object()


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


def node(state) -> NoReturn:
    """Drawing runs no user code, so this is never called."""
    raise AssertionError("a node was called")


def router(name, returns=None):
    """A router of this name, with this return annotation."""

    def route(state):
        raise AssertionError("a router was called")

    route.__name__ = name
    if returns is not None:
        route.__annotations__["return"] = returns
    return route


def graph(*names, **options):
    """A builder with these nodes, of which the first is the entry."""
    builder = StateGraph(State)
    for name in names:
        builder.add_node(name, node, **options)
    return builder.add_edge(START, names[0])


def joined(builder, *edges):
    for start, end in edges:
        builder.add_edge(start, end)
    return builder


def chain():
    return joined(graph("a", "b", "c"), ("a", "b"), ("b", "c")).compile().get_graph()


def one_router():
    builder = graph("decide", "left", "right")
    return builder.add_conditional_edges("decide", router("side"), {"l": "left", "right": "right", True: END}).compile().get_graph()


def loop():
    return graph("improve").add_conditional_edges("improve", router("again"), {"again": "improve", "done": END}).compile().get_graph()


def two_in_a_circle():
    return joined(graph("ping", "pong"), ("ping", "pong"), ("pong", "ping")).compile().get_graph()


def tool_agent():
    builder = joined(graph("think", "call_tool"), ("call_tool", "think"))
    return builder.add_conditional_edges("think", router("calls", list[Send] | Literal["__end__"]), ["call_tool", END]).compile().get_graph()


def join():
    return joined(graph("plan", "a", "b", "sum"), ("plan", "a"), ("plan", "b"), (["a", "b"], "sum")).compile().get_graph()


def fan():
    """One to many to one, with plain edges."""
    many = [f"part_{number}" for number in range(5)]
    edges = [("split", name) for name in many] + [(name, "merge") for name in many]
    return joined(graph("split", *many, "merge"), *edges).compile().get_graph()


def deferred():
    builder = graph("a", "b").add_node("late", node, defer=True)
    return joined(builder, ("a", "b"), ("a", "late"), ("b", "late")).compile().get_graph()


def map_reduce():
    builder = graph("plan", "count", "sum").add_conditional_edges("plan", router("texts", list[Send]), ["count"])
    return joined(builder, ("count", "sum")).compile().get_graph()


def inner(name="child", *names):
    names = names or ("first", "second")
    return joined(graph(*names), *pairwise(names)).compile(name=name)


def nested():
    middle = joined(graph("before").add_node("deep", inner()), ("before", "deep")).compile(name="middle")
    return joined(graph("a", "z").add_node("sub", middle), ("a", "sub"), ("sub", "z"))


def subgraph_closed():
    return nested().compile().get_graph()


def subgraph_one_level():
    return nested().compile().get_graph(xray=1)


def subgraph_two_levels():
    return nested().compile().get_graph(xray=True)


def error_handlers():
    def clean_up(state):
        raise AssertionError("a handler was called")

    builder = StateGraph(State).add_node("risky", node, error_handler=clean_up).add_node("next", node)
    builder.set_node_defaults(error_handler=lambda state: None)
    return joined(builder, (START, "risky"), ("risky", "next")).compile().get_graph()


def breakpoints():
    builder = joined(graph("write", "review", "send"), ("write", "review"), ("review", "send"))
    return builder.compile(interrupt_before=["send"], interrupt_after=["review"]).get_graph()


def command_goto():
    def choose(state) -> Command[Literal["left", "right", "__end__"]]:
        raise AssertionError("a node was called")

    builder = StateGraph(State).add_node("choose", choose).add_node("left", node).add_node("right", node)
    return joined(builder, (START, "choose"), ("left", "choose")).compile().get_graph()


def destinations():
    builder = StateGraph(State).add_node("clerk", node, destinations={"boss": "escalate", END: "done"})
    builder.add_node("boss", node, destinations=["clerk"])
    return joined(builder, (START, "clerk")).compile().get_graph()


def unknown_router():
    return graph("a", "b", "c").add_conditional_edges("a", router("anywhere")).compile().get_graph()


def unreachable():
    builder = joined(graph("a", "lost", "found"), ("lost", "found"), ("a", "found"))
    return builder.compile().get_graph()


def two_routers():
    builder = graph("a", "b", "c")
    builder.add_conditional_edges("a", router("first"), {"yes": "b", "no": END})
    builder.add_conditional_edges("a", router("second"), {"yes": "c", "maybe": "b"})
    return builder.compile().get_graph()


def metadata():
    about = {"owner": "Ada", "level": 3, "tags": ["x", "y"], "model": MODEL, "note": "long " * 20}
    return graph("a", metadata=about).compile().get_graph()


def raw_pregel():
    app = Pregel(
        nodes={
            "one": NodeBuilder().subscribe_only("a").do(lambda x: x).write_to("b", log=lambda x: x),
            "two": NodeBuilder().subscribe_only("b").do(lambda x: x).write_to("c"),
            "tell": NodeBuilder().subscribe_only("log").do(lambda x: x),
        },
        channels={"a": EphemeralValue(str), "b": LastValue(str), "c": LastValue(str), "log": Topic(str)},
        input_channels="a",
        output_channels="c",
    )
    return app.get_graph()


def functional():
    @entrypoint()
    def work(x):
        raise AssertionError("an entrypoint was called")

    return work.get_graph()


def hostile_names():
    names = ["end", 'say "hi" <b>now</b> #1 & go; %% -->', "a\\n\\b{c}[d](e)", "数据 处理", "two\nlines", "--> x", "é" * 3]
    builder = joined(graph(*names), *pairwise(names))
    return builder.add_conditional_edges("end", router("r"), {'a "quoted" <label> | & #2': "two\nlines"}).compile().get_graph()


def wide():
    """Too wide for a text drawing."""
    many = [f"a_rather_long_name_{number}" for number in range(12)]
    return joined(graph("split", *many), *(("split", name) for name in many)).compile().get_graph()


DRAWN = {
    make.__name__: make
    for make in (
        chain, one_router, loop, two_in_a_circle, tool_agent, join, fan, deferred, map_reduce, subgraph_closed,
        subgraph_one_level, subgraph_two_levels, error_handlers, breakpoints, command_goto, destinations,
        unknown_router, unreachable, two_routers, metadata, raw_pregel, functional, hostile_names, wide,
    )
}  # fmt: skip
