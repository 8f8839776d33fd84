"""What a node returned becomes (channel, value) pairs: raw entries, and the one normaliser of StateGraph results."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from kit.drive import each_case
from pydantic import BaseModel

from stategraph.pregel import (
    ChannelWrite,
    ChannelWriteTupleEntry,
    Command,
    InvalidUpdateError,
    ParentCommand,
    Send,
)
from stategraph.pregel.names import is_reserved
from stategraph.pregel.program.writes import StateWriter, WriteScope

TASKS = "__pregel_tasks"


class Doing:
    """The part of a task that writers see."""

    name = "n"

    def __init__(self, *channels):
        self.writes = []
        self.channels = {*channels, TASKS}

    def known_channels(self):
        return self.channels

    def known_nodes(self):
        return {"a", "b"}


def raw(result, *entries):
    task = Doing("x", "y")
    ChannelWrite(entries).write(result, task)
    return task.writes


SCOPE = WriteScope(frozenset({"x", "y"}), {"a": "branch:to:a", "b": "branch:to:b"})
ROOT_SCOPE = WriteScope(frozenset({"__root__"}), SCOPE.triggers)


def state(result, scope: WriteScope = SCOPE, fixed=()):
    task = Doing()
    StateWriter(scope, fixed).write(result, task)
    return task.writes


# -- raw ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("xx", r"'n' wrote to the unknown channel 'xx'; did you mean 'x'\?"),
        (Send("c", 1), "'n' sends to the unknown node 'c'; known: 'a', 'b'"),
        (ChannelWriteTupleEntry(lambda _: [(TASKS, "a")]), "'n': a write to '__pregel_tasks' must be a Send, got str: 'a'"),
    ],
)
def test_an_invalid_raw_write_names_node_and_channel(entry, text):
    with pytest.raises(InvalidUpdateError, match=text):
        raw(1, entry)


@each_case("name", ["__interrupt__", "__error__", "__pregel_anything", "|", "checkpoint_ns"])
def test_names_the_engine_needs_are_reserved(name):
    assert is_reserved(name)
    assert not is_reserved(name + "x") or name.startswith("__pregel_")


# -- StateGraph -----------------------------------------------------------------------------------------------


class Model(BaseModel):
    x: int = 0
    y: int = 0


@dataclass
class Record:
    x: int = 0
    other: int = 0


class Row(NamedTuple):
    x: int
    y: int


class Annotated:
    x: int
    y: int


def annotated(**values):
    found = Annotated()
    found.__dict__.update(values)
    return found


@each_case(
    "result, writes",
    [
        (None, []),
        ({}, []),
        ({"y": 1, "x": 2}, [("y", 1), ("x", 2)]),
        (OrderedDict(x=1), [("x", 1)]),
        (Model(x=1), [("x", 1)]),
        (Model(), []),
        (Record(x=1), [("x", 1)]),
        (Row(1, 2), [("x", 1), ("y", 2)]),
        (annotated(y=1), [("y", 1)]),
        ([{"x": 1}, {"x": 2, "y": 3}, None], [("x", 1), ("x", 2), ("y", 3)]),
        ([], []),
        ({"x": None}, [("x", None)]),
        (({"x": 1},), [("x", 1)]),
        (Send("a", 1), [(TASKS, Send("a", 1))]),
        ([Send("a", 1), {"x": 1}, Send("b", 2)], [(TASKS, Send("a", 1)), ("x", 1), (TASKS, Send("b", 2))]),
        (Command(), []),
        (Command(update={"x": 1}), [("x", 1)]),
        (Command(update=[("x", 1), ("x", 2)]), [("x", 1), ("x", 2)]),
        (Command(update=(["x", 1],)), [("x", 1)]),
        (Command(update=Model(y=2)), [("y", 2)]),
        (Command(goto="a"), [("branch:to:a", None)]),
        (Command(goto=["b", "a"]), [("branch:to:b", None), ("branch:to:a", None)]),
        (Command(goto="__end__"), []),
        (Command(update={"x": 1}, goto=[Send("b", 5), "a"]),
         [("x", 1), (TASKS, Send("b", 5)), ("branch:to:a", None)]),
        ([Command(goto="a"), {"x": 1}], [("branch:to:a", None), ("x", 1)]),
    ],
)  # fmt: skip
def test_what_a_state_node_may_return(result, writes):
    assert state(result) == writes


def test_fixed_edges_follow_whatever_was_returned():
    fixed = [("branch:to:a", None), ("join:n+m:b", "n")]
    assert state(None, fixed=fixed) == fixed
    assert state({"x": 1}, fixed=fixed) == [("x", 1), *fixed]


@each_case("value", [5, "s", [1, 2], {"x": 1}, Row(1, 2), Model(x=1)])
def test_a_graph_whose_state_is_one_value_accepts_any_type(value):
    assert state(value, ROOT_SCOPE) == [("__root__", value)]
    assert state(Command(update=value, goto="a"), ROOT_SCOPE) == [("__root__", value), ("branch:to:a", None)]


def test_a_list_with_a_command_in_it_is_no_root_value():
    assert state([5, Command(goto="a")], ROOT_SCOPE) == [("__root__", 5), ("branch:to:a", None)]


def test_a_command_for_the_parent_leaves_as_a_signal():
    command = Command(graph=Command.PARENT, update={"q": 1}, goto="out")
    for result in (command, [command, {"x": 1}]):
        with pytest.raises(ParentCommand) as caught:
            state(result)
        assert caught.value.command is command
