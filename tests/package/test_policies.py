"""Each policy of a node can be set wherever a node is declared: a policy that is added to one and forgotten in another fails."""

import inspect
from dataclasses import fields

import pytest

from stategraph import StateGraph, entrypoint, task
from stategraph.graph.signatures import NodeOptions
from stategraph.graph.spec import NodeSpec
from stategraph.pregel import NodeBuilder, NodePolicies, PregelNode

POLICIES = {"retry_policy", "cache_policy", "timeout", "error_handler", "executor", "limit", "observer"}
"""What says how a node runs, by the name of its parameter in `add_node`; the rest of them say what it is."""

SAYS_WHAT_IT_IS = {"node", "action", "defer", "metadata", "input_schema", "destinations"}

# Where a policy is not set, and why.
ABSENT = {
    "set_node_defaults": {"executor": "compile has it", "limit": "a node's own", "observer": "compile has it"},
    "task": {"error_handler": "its caller catches the error", "limit": "a node's own", "observer": "its caller's"},
    "entrypoint": {"error_handler": "it is the whole graph", "limit": "a node's own"},
    "NodeBuilder": {"error_handler": "PregelNode has it", "limit": "PregelNode has it", "observer": "compile has it"},
    "PregelNode": {"observer": "compile has it"},
}


def names_of(function):
    return set(inspect.signature(function).parameters) - {"self", "function", "name"}  # type: ignore[arg-type]


def builder_names():
    methods = {name for name in vars(NodeBuilder) if name.startswith(("add_", "set_"))}
    spelt = {"add_retry_policies": "retry_policy"}
    return {spelt.get(name, name.removeprefix("add_").removeprefix("set_")) for name in methods}


IN_RECORDS = {"retry_policy": "retry", "cache_policy": "cache", "error_handler": "handler", "limit": "limits", "observer": "observers"}
"""What records call a policy that is not called as in `add_node`."""


def recorded(cls):
    """The policies that a node of this class has, itself or in its `NodePolicies`."""
    kept = {each.name for each in fields(cls)} | set(NodePolicies._fields)  # type: ignore[arg-type]
    return {name for name in POLICIES if name in kept or IN_RECORDS.get(name) in kept}


DECLARED = {
    "set_node_defaults": names_of(StateGraph.set_node_defaults),
    "task": names_of(task) - {"effect", "probe", "not_done", "undo"},  # they say what its function does; nodes have @effect
    "entrypoint": names_of(entrypoint.__init__) - {"checkpointer", "store", "cache", "context_schema"},
    "NodeBuilder": builder_names(),
    "PregelNode": recorded(PregelNode),
}


def test_a_parameter_of_add_node_is_a_policy_or_says_what_the_node_is():
    assert names_of(StateGraph.add_node) == POLICIES | SAYS_WHAT_IT_IS
    assert set(NodeOptions.__annotations__) == names_of(StateGraph.add_node) - {"node", "action", "input_schema"}


@pytest.mark.parametrize("where", ABSENT)
def test_each_declaration_has_each_policy_or_a_reason(where):
    assert DECLARED[where] == POLICIES - ABSENT[where].keys()


def test_the_record_of_a_node_has_each_policy():
    assert recorded(NodeSpec) == POLICIES
