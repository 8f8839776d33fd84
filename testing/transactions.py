"""Checks of transact: a function and its record in one transaction. No graph runs here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checkpoint.base import RETURN, CheckpointConflictError, TaskWrites
from ..checkpoint.records import Expected, Transacted, TransactionPlace
from .asserts import assert_raises, assert_same, assert_that
from .conformance import register_check
from .harness import Harness


def _returning(harness: Harness, value: Any, calls: list[Any]) -> Callable[[Any], TaskWrites]:
    def function(connection: Any) -> TaskWrites:
        assert_that(connection is not None, "the function is given a connection")
        calls.append(value)
        return TaskWrites("effect", "", [(RETURN, harness.saver.serde.dumps(value))])

    return function


def _transact(
    harness: Harness,
    id: str,
    revision: int | None,
    function: Callable[[Any], TaskWrites],
    head: str | None = None,
) -> Transacted:
    place = TransactionPlace(("t", ""), id, Expected(head or id, revision), "effect")
    done: Transacted = harness.call("transact", place, function)
    return done


@register_check("transactions", "transact")
def a_transaction_is_recorded_beside_the_head(harness: Harness) -> None:
    """Who runs the task again finds what the function has returned; it is called once."""
    harness.run().step("1", a=1)
    calls: list[Any] = []
    done = _transact(harness, "1", 0, _returning(harness, 7, calls))
    assert_same(done.revision, 1, "how often something is recorded")
    harness.reopen()
    harness.shows("1", pending=[("effect", RETURN, 7)])
    again = _transact(harness, "1", None, _returning(harness, 8, calls))
    assert_same((again.record.task_id, again.revision), ("effect", 1), "the record that was there")
    assert_same(calls, [7], "calls of the function")


@register_check("transactions", "transact", "commit")
def a_transaction_is_recorded_where_its_task_has_started(harness: Harness) -> None:
    """A task may have started at an earlier checkpoint than the head; who runs it again looks
    there. Another run that works from the head is told."""
    run = harness.run()
    run.step("1", a=1)
    run.step("2", a=2)
    calls: list[Any] = []
    done = _transact(harness, "1", 0, _returning(harness, 7, calls), head="2")
    assert_same(done.revision, 1, "how often something is recorded beside the head")
    harness.reopen()
    harness.shows("1", pending=[("effect", RETURN, 7)])
    harness.shows("2", pending=[])
    again = _transact(harness, "1", None, _returning(harness, 8, calls), head="2")
    assert_same(again.record.task_id, "effect", "the record that was there")
    other = TransactionPlace(("t", ""), "1", Expected("2", 0), "another")
    late = _returning(harness, 9, calls)
    assert_raises(CheckpointConflictError, harness.call, "transact", other, late)
    assert_raises(CheckpointConflictError, _transact, harness, "1", 1, late, head="1")
    assert_same(calls, [7], "calls of the function")
    run.step("3", a=3)
    harness.reads_back(run)


@register_check("transactions", "transact")
def a_transaction_whose_function_raises_leaves_nothing(harness: Harness) -> None:
    """The error is the function's own; the next try is as the first."""
    harness.run().step("1", a=1)

    def fails(connection: Any) -> TaskWrites:
        raise LookupError("no such item")

    assert_raises(LookupError, _transact, harness, "1", 0, fails)
    harness.shows("1", pending=[])
    calls: list[Any] = []
    _transact(harness, "1", 0, _returning(harness, 7, calls))
    assert_same(calls, [7], "calls of the next try")


@register_check("transactions", "transact", "commit")
def a_transaction_of_a_run_that_was_overtaken_is_refused(harness: Harness) -> None:
    """Its thread has moved on, or somebody else has recorded something: nothing is called."""
    run = harness.run()
    run.step("1", a=1)
    calls: list[Any] = []
    late = _returning(harness, 7, calls)
    harness.record(None, {"1": [run.task("other", [("a", 2)])]})
    assert_raises(CheckpointConflictError, _transact, harness, "1", 0, late)
    run.step("2", a=2)
    assert_raises(CheckpointConflictError, _transact, harness, "1", 0, late)
    assert_same(calls, [], "calls of the function")
