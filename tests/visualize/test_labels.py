"""What all drawings share: unique ids, and notes that run no user code."""

import re
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from stategraph.visualize.labels import (
    EDGE_KINDS,
    NODE_KINDS,
    RESERVED,
    make_ids,
    notes,
    to_plain_data,
    traits,
)
from stategraph.visualize.model import EdgeKind, GraphNode, NodeKind


@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["end", "node", "a b", "a_b", "a_b_", "node_end", "END"])), unique=True))
def test_every_name_gets_a_unique_id(names):
    ids = make_ids(names)
    assert sorted(ids) == sorted(names) and len(set(ids.values())) == len(names)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word) and word.lower() not in RESERVED for word in ids.values())


def test_a_name_that_is_an_identifier_is_kept_in_any_order():
    assert make_ids(["a b", "a_b", "Graph", "1st"]) == {"a_b": "a_b", "a b": "a_b_", "Graph": "node_Graph", "1st": "node_1st"}


def test_every_kind_is_explained():
    assert set(EDGE_KINDS) == set(get_args(EdgeKind))
    assert set(get_args(NodeKind)) <= set(NODE_KINDS)
    odd = GraphNode("x", "x", "subgraph", deferred=True, handler=True, before=True, reached=False)
    assert set(traits(odd)) == {"subgraph", "deferred", "handler", "breakpoint", "unreached"} <= set(NODE_KINDS)
    assert traits(GraphNode("x", "x")) == []


def test_notes_are_short_lines():
    metadata = {"owner": "Ada", "text": "two\nlines " * 20, "model": object(), 3: "three"}
    assert notes(GraphNode("x", "x", before=True, after=True, metadata=metadata)) == [
        "owner = Ada",
        "text = " + ("two lines " * 20)[:39] + "…",
        "model = <object>",
        "<int> = three",
        "stops before and after",
    ]


def test_plain_data_stays_and_all_else_is_named_by_its_type():
    class Mine(str):
        """Its methods may be anybody's."""

    given = {"a": [1, 2.5, None, True, "x"], "b": (Mine("x"), {1}, {"c": b"x"})}
    assert to_plain_data(given) == {"a": [1, 2.5, None, True, "x"], "b": ["<Mine>", "<set>", {"c": "<bytes>"}]}
