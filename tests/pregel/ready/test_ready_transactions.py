"""`runtime.transaction` with schedule="ready": the record is stored at the origin of its task, while the head has
moved.
"""

from __future__ import annotations

import pytest
from kit.bank import Bank, bank, node_of
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import build, by_order, elsewhere, ends_by

from stategraph import (
    CheckpointConflictError,
    get_runtime,
    interrupt,
)
from stategraph.checkpoint.base import RETURN
from stategraph.checkpoint.errors import StorageError

__all__ = ["bank"]
CHAIN_FIRST = by_order("x", "a", "b", "c", "long")


@pytest.fixture(autouse=True)
def chain_first():
    with ends_by(CHAIN_FIRST):
        yield


def app_of(drive, body, saver, schedule="ready", **policies):
    """`long` behind x, beside a > b > c, which end before it begins, and d behind both. `long` is made of `body`: see
    `node_of`."""
    builder = build("S>a>b>c S>x>long [c,long]>d", nodes={"long": lambda state: {}})
    del builder.nodes["long"]
    builder.add_node("long", node_of(drive, body), **policies)
    return builder.compile(saver, schedule=schedule)


def pay_and_ask(bank: Bank):
    def body(state):
        receipt = yield "pay", bank.pay
        return {"log": [receipt, interrupt("content?")]}

    return body


def places(saver):
    """The steps beside which something is recorded that a transaction has returned."""
    return [
        found.metadata["step"]
        for found in saver.list(CONFIG)
        for _, channel, _ in found.pending_writes or ()
        if channel == RETURN
    ]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_resume_finds_the_record_at_the_origin(drive, bank, durability):
    asked = drive.invoke(app_of(drive, pay_and_ask(bank), bank.saver), EMPTY, CONFIG, durability=durability)
    assert asked["__interrupt__"][0].value == "content?"
    head = bank.saver.get_tuple(CONFIG)
    assert (places(bank.saver), head.metadata["step"]) == ([1], 4), "the origin is the step in which x has ended"
    thread = drive.on(app_of(drive, pay_and_ask(bank), bank.saver))
    end = thread.resume("yes", durability=durability)
    assert end["log"] == ["x", "a", "b", "c", "receipt 1", "yes", "d"]
    assert bank.calls == bank.rows() == ["book"]


def test_an_edit_takes_it_along(drive, bank):
    thread = drive.on(app_of(drive, pay_and_ask(bank), bank.saver))
    thread.invoke(EMPTY)
    thread.update({"log": ["edited"]}, as_node="x")
    end = thread.resume("yes")
    assert end["log"] == ["x", "a", "b", "c", "edited", "receipt 1", "yes", "d"]
    assert bank.calls == bank.rows() == ["book"]


@pytest.mark.parametrize(("first", "second"), [("ready", "supersteps"), ("supersteps", "ready")])
def test_the_other_schedule_finds_it(drive, bank, first, second):
    drive.invoke(app_of(drive, pay_and_ask(bank), bank.saver, first), EMPTY, CONFIG)
    thread = drive.on(app_of(drive, pay_and_ask(bank), bank.saver, second))
    end = thread.resume("yes")
    assert "receipt 1" in end["log"] and "yes" in end["log"]
    assert bank.calls == bank.rows() == ["book"]


def test_an_outdated_run_writes_nothing(drive, bank):
    """Another run goes on from the same head: it asks, and so records something beside the origin of the same task."""
    first = [True]

    def body(state):
        if first and first.pop():
            elsewhere(lambda: thread.invoke(None))
        receipt = yield "pay", bank.pay
        return {"log": [receipt, interrupt("content?")]}

    thread = drive.on(app_of(drive, body, bank.saver))
    with pytest.raises(CheckpointConflictError):
        thread.invoke(EMPTY)
    assert bank.calls == bank.rows() == ["book"], "the other run's"
    assert thread.resume("yes")["log"] == ["x", "a", "b", "c", "receipt 1", "yes", "d"]


def test_a_run_with_a_recorded_transaction_resumes(drive, bank):
    """What it records after that, and its next step, are stored: it knows what it has recorded itself."""
    calls = []

    def body(state):
        receipt = yield "pay", bank.pay
        calls.append(get_runtime().once("mail", lambda: "sent") if not drive.is_async else "sent")
        return {"log": [receipt, *calls]}

    end = drive.invoke(app_of(drive, body, bank.saver), EMPTY, CONFIG)
    assert end["log"] == ["x", "a", "b", "c", "receipt 1", "sent", "d"]


class Died(BaseException):
    pass


@pytest.mark.parametrize("stored", [True, False])
def test_a_run_that_dies_around_a_transaction_leaves_rows_and_record_or_neither(drive, bank, monkeypatch, stored):
    transact = bank.saver._transact

    def dies(*given):
        if stored:
            transact(*given)
        raise Died

    monkeypatch.setattr(bank.saver, "_transact", dies)
    with pytest.raises((Died, StorageError)):
        drive.invoke(app_of(drive, pay_and_ask(bank), bank.saver), EMPTY, CONFIG)
    monkeypatch.undo()
    assert (bank.rows(), places(bank.saver)) == ((["book"], [1]) if stored else ([], []))
    thread = drive.on(app_of(drive, pay_and_ask(bank), bank.saver))
    thread.invoke(None)
    assert thread.resume("yes")["log"][4:] == ["receipt 1", "yes", "d"]
    assert bank.calls == bank.rows() == ["book"]
