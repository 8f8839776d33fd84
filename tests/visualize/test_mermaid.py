"""A compiled graph as Mermaid text: every kind of node and arrow, names that Mermaid would trip over, no user code."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, NoReturn, TypedDict

import pytest
from kit.graphs import chain_of

from stategraph import END, START, Command, NodeBuilder, Pregel, Send, StateGraph
from stategraph.channels import EphemeralValue, LastValue
from stategraph.pregel import ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry, PregelNode


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


def node(state: State) -> NoReturn:
    """Drawing runs no user code, so this is never called."""
    raise AssertionError("a node was called")


def graph(*names):
    builder = StateGraph(State)
    for name in names:
        builder.add_node(name, node)
    return builder.add_edge(START, names[0])


def lines(builder: StateGraph | Pregel):
    """Of its drawing, without the styles at the end."""
    app = builder.compile() if isinstance(builder, StateGraph) else builder
    drawn = [line.strip() for line in app.get_graph().draw_mermaid().splitlines()]
    return [line for line in drawn if not line.startswith("class")]


def styles(builder):
    drawn = [line.strip() for line in builder.compile().get_graph().draw_mermaid().splitlines()]
    return [line for line in drawn if line.startswith("class")]


def arrows(builder: StateGraph | Pregel):
    return [line for line in lines(builder) if "->" in line]


def test_a_chain_with_rounded_ends():
    builder = graph("a", "b").add_edge("a", "b").add_edge("b", END)
    assert builder.compile().get_graph().draw_mermaid() == (
        "graph TD\n"
        '    __start__(["START"])\n'
        '    a["a"]\n'
        '    b["b"]\n'
        '    __end__(["END"])\n'
        "    __start__ --> a\n"
        "    a --> b\n"
        "    b --> __end__\n"
        "    classDef first font-weight:bold\n"
        "    class __start__ first\n"
        "    classDef last font-weight:bold\n"
        "    class __end__ last\n"
    )


def test_a_node_that_leads_nowhere_leads_to_the_end():
    assert arrows(graph("a")) == ["__start__ --> a", "a --> __end__"]


def test_the_end_is_drawn_only_if_something_leads_there():
    builder = graph("a", "b").add_edge("a", "b").add_edge("b", "a")
    assert not any("__end__" in line for line in lines(builder))


def test_the_declared_ends_of_a_router_are_dashed_and_labelled_where_the_label_says_more():
    def named(state: State):
        raise AssertionError("a router was called")

    builder = graph("a", "b", "c").add_conditional_edges("a", named, {"go": "b", "c": "c", True: END})
    assert arrows(builder)[1:4] == ['a -.->|"go"| b', "a -.-> c", 'a -.->|"True"| __end__']


def test_a_router_declares_by_literal_too():
    def either(state: State) -> Literal["b", "__end__"]:
        raise AssertionError("a router was called")

    assert arrows(graph("a", "b").add_conditional_edges("a", either))[1:3] == ["a -.-> b", "a -.-> __end__"]


def test_a_router_at_start():
    builder = StateGraph(State).add_node("a", node).add_conditional_edges(START, lambda state: "a", ["a"])
    assert arrows(builder) == ["__start__ -.-> a", "a --> __end__"]


def test_a_router_that_does_not_say_where_it_goes():
    def anywhere(state: State):
        raise AssertionError("a router was called")

    builder = graph("a", "b").add_conditional_edges("a", anywhere)
    found = lines(builder)
    assert 'a_{"any node"}' in found
    assert 'a -.->|"anywhere"| a_' in found
    assert 'a_ -.->|"perhaps"| b' in found


def test_a_join_is_a_circle_that_all_lead_to():
    builder = graph("a", "b", "c").add_edge(START, "b").add_edge(["a", "b"], "c")
    assert lines(builder)[1:] == [
        '__start__(["START"])',
        'a["a"]',
        'b["b"]',
        'c["c"]',
        'join_a_b_c(("all"))',
        '__end__(["END"])',
        "__start__ --> a",
        "__start__ --> b",
        "a --> join_a_b_c",
        "b --> join_a_b_c",
        "c --> __end__",
        "join_a_b_c --> c",
    ]


def test_deferred_nodes_have_a_style():
    builder = graph("a").add_node("late", node, defer=True).add_edge("a", "late")
    assert styles(builder)[-2:] == ["classDef deferred stroke-dasharray:5 5", "class late deferred"]


def test_where_commands_may_go_is_dashed():
    def jump(state: State) -> Command[Literal["b"]]:
        raise AssertionError("a node was called")

    assert arrows(chain_of(State, a=jump).add_node("b", node, destinations={"a": "again"})) == [
        "__start__ --> a",
        "a -.-> b",
        'b -.->|"again"| a',
    ]


def test_names_that_mermaid_would_trip_over():
    hostile = 'say "hi" <now> #1 & *go* %%{\\n}'
    assert lines(graph("end", hostile).add_edge("end", hostile))[2:] == [
        'node_end["end"]',
        'say_hi_now_1_go_n["say #quot;hi#quot; #lt;now#gt; #35;1 #amp; #42;go#42; #37;#37;{#92;n}"]',
        '__end__(["END"])',
        "__start__ --> node_end",
        "node_end --> say_hi_now_1_go_n",
        "say_hi_now_1_go_n --> __end__",
    ]


def test_ids_made_up_clash_with_no_name():
    found = lines(graph("a b", "a_b", "a  b", "数").add_edge("a b", "a_b").add_edge("a b", "a  b").add_edge("a b", "数"))
    assert found[2:6] == ['a_b_["a b"]', 'a_b["a_b"]', 'a_b__["a  b"]', 'node_4["数"]']


@pytest.mark.filterwarnings("ignore:node .* will run more than once")
def test_two_compiles_draw_the_same():
    builder = graph("a", "b", "c", "d").add_edge("a", "d").add_edge("a", "c").add_edge("a", "b")
    builder.add_edge(["b", "c"], "d")
    assert builder.compile().get_graph().draw_mermaid() == builder.compile().get_graph().draw_mermaid()


def test_edges_added_after_compile_are_not_drawn():
    builder = graph("a", "b").add_edge("a", "b")
    app = builder.compile()
    before = app.get_graph().draw_mermaid()
    builder.edges.add(("b", "a"))
    assert app.get_graph().draw_mermaid() == before


def test_a_raw_pregel_shows_its_channels_on_the_arrows():
    app = Pregel(
        nodes={
            "one": NodeBuilder().subscribe_only("a").do(node).write_to("b"),
            "two": NodeBuilder().subscribe_only("b").do(node).write_to("c"),
        },
        channels={"a": EphemeralValue(str), "b": LastValue(str), "c": LastValue(str)},
        input_channels="a",
        output_channels=["c"],
    )
    assert arrows(app) == ['__start__ -->|"a"| one', 'one -->|"b"| two', 'two -->|"c"| __end__']


def test_writes_that_may_be_left_out_are_dashed():
    entries = [ChannelWriteEntry("a", skip_none=True), Send("one", 1), ChannelWriteTupleEntry(lambda value: [])]
    app = Pregel(
        nodes={"one": PregelNode(channels="a", triggers=["a"], writers=[ChannelWrite(entries)])},
        channels={"a": LastValue(str)},
        input_channels="a",
        output_channels="a",
    )
    assert arrows(app)[1:] == [
        'one -.->|"a"| one',
        'one -.->|"a"| __end__',
        'one -.->|"\u00d7n"| one',
        "one -.-> one_",
    ]


# -- how it is to look --------------------------------------------------------------------------------------------


def drawn(**how):
    builder = graph("a", "b")
    builder.add_conditional_edges("a", lambda state: "b", {"one two three four five": "b"})
    return builder.compile().get_graph().draw_mermaid(**how).splitlines()


def test_it_may_be_without_styles():
    assert drawn(with_styles=False) == [line for line in drawn() if not line.strip().startswith("class")]


def test_labels_are_wrapped_after_a_number_of_words():
    def label(most):
        [line] = [line for line in drawn(wrap_label_n_words=most) if "one" in line]
        return line.split('"')[1]

    assert label(9) == "one two three four five"
    assert label(2) == "one two<br/>three four<br/>five"
    with pytest.raises(ValueError, match="wrap_label_n_words must be an integer >= 1, got 0"):
        drawn(wrap_label_n_words=0)


class Curve(Enum):
    BASIS = "basis"


@pytest.mark.parametrize("curve", [Curve.BASIS, "basis"])
def test_curves_and_other_settings_are_written_before_the_graph(curve):
    config = {"config": {"theme": "neutral", "flowchart": {"padding": 5}}, "title": "A: graph"}
    found = drawn(curve_style=curve, frontmatter_config=config)
    assert found[:5] == [
        "---",
        'config: {"theme": "neutral", "flowchart": {"curve": "basis", "padding": 5}}',
        'title: "A: graph"',
        "---",
        "graph TD",
    ]
    assert found[4:] == drawn()
    assert config["config"] == {"theme": "neutral", "flowchart": {"padding": 5}}, "and the dict that was given is as it was"


@dataclass
class Colors:
    default: str = "fill:#123"
    first: str = "fill:#456"
    last: str = ""


@pytest.mark.parametrize("colors", [Colors(), {"default": "fill:#123", "first": "fill:#456"}])
def test_nodes_may_have_custom_colours(colors):
    found = [line.strip() for line in drawn(node_colors=colors) if "classDef" in line]
    assert found == ["classDef default fill:#123", "classDef first fill:#456", "classDef last font-weight:bold"]
