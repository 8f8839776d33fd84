"""A graph that has changed since its thread was stored: an error names what cannot be resumed, and `migrate` can
repair it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, Optional

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, chain_of, graph_of
from kit.pausing_graphs import asks, says
from typing_extensions import TypedDict

from stategraph import START, Command, GraphChangedError, InMemorySaver, StateGraph, interrupt
from stategraph.channels import Topic
from stategraph.pregel import rename_node
from stategraph.pregel.program import version
from stategraph.upgrade import prove


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    n: int


def built(saver, node="q", body=None, schema=State, **options):
    builder = StateGraph(schema)
    builder.add_node(node, body or asks(node)).add_node("z", says("z"))
    return builder.add_edge(START, node).add_edge(node, "z").compile(saver, **options)


@pytest.fixture
def saver(drive):
    """A thread paused in node q."""
    saver = InMemorySaver()
    drive.invoke(built(saver), {"log": ["in"], "n": 1}, CONFIG)
    return saver


def test_the_same_graph_resumes_with_changed_code(drive, saver):
    def other(state):
        return {"log": ["other", interrupt("q?")]}

    assert drive.invoke(built(saver, body=other), Command(resume=1), CONFIG)["log"][-1] == "z"


def test_a_renamed_node_is_named(drive, saver):
    before = saver.head(CONFIG)
    for call in (None, Command(resume=1)):
        with pytest.raises(GraphChangedError, match="node 'q'"):
            drive.invoke(built(saver, "renamed"), call, CONFIG)
    assert saver.head(CONFIG) == before, "nothing is stored"


def test_a_node_that_has_become_a_graph_is_named(drive, saver):
    inner = graph_of(State, "S>i").compile()
    with pytest.raises(GraphChangedError, match="node 'q'"):
        drive.invoke(built(saver, body=inner), Command(resume=1), CONFIG)


class Retyped(TypedDict, total=False):
    log: str
    n: int


def test_a_key_of_another_kind_is_named_also_for_new_input(drive, saver):
    app = built(saver, schema=Retyped, body=lambda state: {})
    for call in (Command(resume=1), {"log": "new"}):
        with pytest.raises(GraphChangedError, match="key 'log'"):
            drive.invoke(app, call, CONFIG)


def test_a_key_is_named_that_only_a_finished_task_has_written(drive):
    saver = InMemorySaver()

    def app(typ):
        class Schema(TypedDict, total=False):
            item: typ

        return graph_of(Schema, "S>a S>q", a=lambda s: {"item": typ("x")}, q=lambda s: interrupt("q?")).compile(saver)

    drive.invoke(app(str), {}, CONFIG)
    changed = drive.on(app(list))
    for call in (None, Command(resume=None)):
        with pytest.raises(GraphChangedError, match="key 'item'"):
            changed.invoke(call)
    assert prove(app(list)).count()["breaks"] == 1
    assert changed.invoke({"item": []})["item"] == ["x"]  # drops what was pending


def test_a_key_is_named_whose_channel_cannot_hold_what_is_stored(drive, saver):
    class Gathered(TypedDict, total=False):
        log: list
        n: Annotated[int, Topic(int)]

    thread = drive.on(built(saver, schema=Gathered))
    for call in (thread.invoke, thread.update, lambda given: thread.state):
        with pytest.raises(GraphChangedError, match="key 'n'"):
            call({"n": 2})
    [verdict] = prove(thread.app).verdicts
    assert "key 'n'" in verdict.reasons[0]


def test_an_edit_takes_no_value_of_another_kind_along(drive, saver):
    thread = drive.on(built(saver, schema=Retyped, body=lambda state: {"log": state["log"] + "!"}))
    for values, as_node in (({"n": 2}, "q"), ({"n": 2}, None), (None, "__copy__")):
        with pytest.raises(GraphChangedError, match="key 'log'"):
            thread.update(values, as_node=as_node)
    thread.update({"log": "new"}, as_node="__start__")
    assert thread.log == "new"


class Wider(TypedDict, total=False):
    log: Annotated[list[str | int], operator.add]
    n: int
    more: str


def app_of(saver, hint):
    class Schema(TypedDict, total=False):
        item: hint

    return chain_of(Schema, q=lambda state: {"item": interrupt("q?")}).compile(saver)


NOTED = Annotated[str | None, "what it means"]


@each_case(
    "first, second, earlier",
    [
        (str | None, Optional[str], "UnionType"),
        (Optional[str], str | None, "Union"),
        (NOTED, NOTED, "Annotated"),
        (NOTED, Optional[str], None),
        (Optional[str], NOTED, None),
    ],
)
def test_two_spellings_of_a_type_are_no_other_graph(drive, monkeypatch, first, second, earlier):
    saver = InMemorySaver()
    with monkeypatch.context() as patch:
        if earlier is not None:  # a version that told them apart
            patch.setattr(version, "_spellings", lambda hint: iter([earlier]))
        drive.invoke(app_of(saver, first), {"item": "in"}, CONFIG)
    assert drive.invoke(app_of(saver, second), Command(resume="yes"), CONFIG) == {"item": "yes"}
    with pytest.raises(GraphChangedError, match="key 'item'"):
        drive.invoke(app_of(saver, str), {"item": "more"}, CONFIG)


def test_the_type_that_a_reducer_folds_belongs_to_the_kind_of_a_key(drive):
    saver = InMemorySaver()
    drive.invoke(app_of(saver, Annotated[list[Any], operator.add]), {"item": ["in"]}, CONFIG)
    for hint in (Annotated[str, operator.add], Annotated[list[Any], operator.or_], list[Any]):
        with pytest.raises(GraphChangedError, match="key 'item'"):
            drive.invoke(app_of(saver, hint), Command(resume="yes"), CONFIG)
    other = app_of(saver, Annotated[Sequence[int], operator.add])  # which is a list, too
    assert drive.invoke(other, Command(resume=[1]), CONFIG)["item"] == ["in", 1]


def test_new_keys_and_other_items_of_a_list_are_no_other_graph(drive, saver):
    assert drive.invoke(built(saver, schema=Wider), Command(resume=1), CONFIG)["log"] == ["in", ("q", 1), "z"]


def test_migrate_gets_the_change_and_can_repair_it(drive, saver):
    told = []

    def migrate(checkpoint, changed):
        told.append(changed)
        return rename_node(checkpoint, "q", "renamed")

    thread = drive.on(built(saver, "renamed", asks("q"), migrate=migrate))
    assert thread.state.next == ("renamed",)  # so it would go on
    assert thread.history()[0].next == ("renamed",)
    assert thread.call("explain")["renamed"].state == "next"
    told.clear()
    asked = thread.invoke(None)
    assert told == [["node 'q' is gone", "node 'renamed' is new"]]
    assert asked["__interrupt__"][0].value == "q?"  # it starts over
    assert thread.resume(1)["log"] == ["in", ("q", 1), "z"]
    # Once it has gone on, the thread is the new graph's.
    assert drive.invoke(built(saver, "renamed"), {"log": ["again"]}, CONFIG)["__interrupt__"]


@pytest.mark.filterwarnings("ignore:.*has ended without asking")  # the new node asks nothing
def test_migrate_can_give_a_key_another_kind(drive, saver):
    def migrate(checkpoint, changed):
        assert changed == ["key 'log' has changed its kind"]
        checkpoint["channel_values"]["log"] = ",".join(checkpoint["channel_values"]["log"])
        return checkpoint

    builder = chain_of(Retyped, q=lambda state: {"log": state["log"] + "!"})
    app = builder.add_node("z", lambda state: {}).add_edge("q", "z").compile(saver, migrate=migrate)
    assert drive.invoke(app, None, CONFIG)["log"] == "in!"
    thread = drive.on(builder.compile(saver))
    assert thread.log == "in!"
    assert thread.invoke({"log": "new"})["log"] == "new!"


def test_a_thread_without_a_fingerprint_resumes(drive):
    saver = InMemorySaver()
    thread = drive.on(built(saver))
    thread.invoke({"log": ["in"]})
    record = saver._threads["t"][""].records
    for each in record.values():
        each.seen.pop("__graph__", None)
    assert thread.resume(1)["log"][-1] == "z"
