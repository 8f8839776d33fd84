"""What a proof reads and leaves: nothing is run or stored, types and threads of other graphs are told apart, and the
threads of each reason are named.
"""

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from kit.drive import each_schedule
from kit.graphs import Log, chain_of, graph_of
from kit.pausing_graphs import asks, says
from kit.upgrades import config_of

import stategraph.pregel.drivers.undoing as undoing
import stategraph.pregel.undo as undo
from stategraph import START, Command, InMemorySaver, RetryPolicy, StateGraph, effect
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.upgrade import prove

ASKING = graph_of(Log, "S>q>z", q=asks("q"))


def test_a_proof_leaves_the_database_byte_identical(tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        app = ASKING.compile(saver, inbox=True)
        for name in "abc":
            app.invoke({"log": ["in"]}, config_of(name))
        app.post(config_of("a"), {"log": ["posted"]})
    before = path.read_bytes()
    with SqliteSaver.from_conn_string(str(path), read_only=True) as saver:
        proof = prove(ASKING.compile(saver, inbox=True), ASKING.compile(saver, inbox=True))
    assert proof.count()["same"] == 3
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["threads.db"]


def test_no_function_of_the_graph_runs():
    def never(state):
        raise AssertionError("it ran")

    saver = InMemorySaver()
    ASKING.compile(saver).invoke({"log": ["in"]}, config_of("t"))
    new = chain_of(Log, q=never, z=never)
    new.add_conditional_edges("z", never, ["q"])
    assert prove(new.compile(saver), ASKING.compile(saver)).count()["changes"] == 1


def stored_type(name):
    """A graph whose state holds a class of this name."""
    cls = dataclass(type(name, (), {"__annotations__": {"n": int}, "__module__": __name__, "__qualname__": name}))

    class Holding(TypedDict, total=False):
        item: cls  # type: ignore[valid-type]
        log: list[Any]

    return cls, StateGraph(Holding).add_node("q", asks("q")).set_entry_point("q")


def test_a_type_that_is_gone_breaks_the_thread(tmp_path):
    path = str(tmp_path / "threads.db")
    cls, graph = stored_type("Item")
    with SqliteSaver.from_conn_string(path) as one, SqliteSaver.from_conn_string(path) as two:
        old = graph.compile(one)
        old.invoke({"item": cls(1)}, config_of("t"))
        [verdict] = prove(stored_type("Thing")[1].compile(two), old).verdicts
    assert verdict.kind == "breaks"
    assert "UnknownTypeError" in verdict.reasons[0] and "Item" in verdict.reasons[0]


def test_threads_of_other_graphs_are_left_out():
    saver = InMemorySaver()
    chain_of(Log, other=asks("o")).compile(saver).invoke({"log": ["in"]}, config_of("other"))
    app = ASKING.compile(saver)
    app.invoke({"log": ["in"]}, config_of("mine"))
    proof = prove(app)
    assert ([each.thread_id for each in proof.verdicts], proof.others) == (["mine"], 1)


def test_a_thread_at_rest_breaks_if_its_next_input_is_refused():
    class Retyped(TypedDict, total=False):
        log: str

    saver = InMemorySaver()
    graph_of(Log, "S>a").compile(saver).invoke({"log": ["in"]}, config_of("t"))
    new = chain_of(Retyped, a=lambda state: {}).compile(saver)
    [verdict] = prove(new).verdicts
    assert (verdict.kind, verdict.next) == ("breaks", ())
    assert verdict.reasons == ("key 'log' has changed its kind",)


def test_the_memory_of_an_idle_graph_is_proved_too():
    class Retyped(TypedDict, total=False):
        log: str

    saver = InMemorySaver()
    around = graph_of(Log, "S>sub>end", sub=chain_of(Log, a=says("a")).compile(checkpointer=True))
    around.compile(saver).invoke({"log": ["in"]}, config_of("t"))
    inner = chain_of(Retyped, a=lambda state: {}).compile(checkpointer=True)
    [verdict] = prove(graph_of(Log, "S>sub>end", sub=inner).compile(saver)).verdicts
    assert verdict.reasons == ("in 'sub': key 'log' has changed its kind",)


@each_schedule
def test_a_thread_that_is_being_undone_goes_on_unless_what_undoes_it_is_gone(monkeypatch, schedule):
    failures = [ValueError("no")]

    @effect("keyed")
    def refund(item: str) -> None:
        if failures:
            raise failures.pop()

    @effect("keyed", undo=refund)
    def buy(item: str) -> str:
        return item

    saver = InMemorySaver()
    once = RetryPolicy(max_attempts=1)

    def made(*names):
        graph = StateGraph(Log)
        for name in names:
            graph.add_node(name, lambda state: {"log": [buy("tea")]}, retry_policy=once)
            graph.add_edge(START, name)
        return graph.compile(saver, schedule=schedule)

    old, new = made("a"), made("z", "a")
    old.invoke({"log": []}, config_of("t"))
    [question] = old.undo(config_of("t")).interrupts
    for proof in (prove(new, old), prove(new)):
        assert [(each.kind, each.next) for each in proof.verdicts] == [("same", ("__undo__",))]
    with monkeypatch.context() as patch:
        patch.setattr(undo, "DECLARED", {})
        patch.setattr(undoing, "DECLARED", {})
        [verdict] = prove(new, old).verdicts
        assert verdict.kind == "breaks"
        assert "this process does not have: import the module" in verdict.reasons[0]
        with pytest.raises(LookupError, match=r"refund', which this process does not have: import the module"):
            new.invoke(Command(resume={question.id: {"decision": "again"}}), config_of("t"))
    state = new.undo(config_of("t"))
    assert (state.next, state.values) == ((), {"log": []})


def test_threads_are_counted_by_reason_the_gravest_first():
    saver = InMemorySaver()
    old = ASKING.compile(saver)
    for name in "abc":
        old.invoke({"log": ["in"]}, config_of(name))
    old.update_state(config_of("c"), {"log": ["edited"]}, as_node="q")
    proof = prove(graph_of(Log, "S>new>z", new=asks("q")).compile(saver), old)
    reasons = [(kind, reason, len(verdicts)) for (kind, reason), verdicts in proof.by_reason().items()]
    assert reasons == [("breaks", "node 'q' is gone", 2), ("same", "", 1)]
    assert not proof.holds


def test_a_graph_without_a_checkpointer_is_refused():
    with pytest.raises(ValueError, match="the old graph must have a checkpointer"):
        prove(ASKING.compile(InMemorySaver()), ASKING.compile())


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"app must be a compiled graph.*compile\(\) it first"):
        prove(ASKING)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the old graph must have a checkpointer"):
        prove(ASKING.compile(InMemorySaver()), ASKING.compile())
