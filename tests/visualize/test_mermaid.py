"""A compiled graph as Mermaid text: every kind of node and arrow, names that Mermaid would trip over, no user code."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, NoReturn, TypedDict

import pytest

from stategraph import START, Pregel, Send, StateGraph
from stategraph.channels import LastValue
from stategraph.pregel import ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry, PregelNode


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


def node(state) -> NoReturn:
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


def test_the_end_is_drawn_only_if_something_leads_there():
    builder = graph("a", "b").add_edge("a", "b").add_edge("b", "a")
    assert not any("__end__" in line for line in lines(builder))


def test_a_router_at_start():
    builder = StateGraph(State).add_node("a", node).add_conditional_edges(START, lambda state: "a", ["a"])
    assert arrows(builder) == ["__start__ -.-> a", "a --> __end__"]


def test_ids_made_up_clash_with_no_name():
    found = lines(graph("a b", "a_b", "a  b", "数").add_edge("a b", "a_b").add_edge("a b", "a  b").add_edge("a b", "数"))
    assert found[2:6] == ['a_b_["a b"]', 'a_b["a_b"]', 'a_b__["a  b"]', 'node_4["数"]']


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
