"""A RunControl reports how its run ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypedDict

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, chain_of, thread_config

from stategraph import InMemorySaver, RunControl, get_runtime, interrupt


class State(TypedDict, total=False):
    text: str


def make_app(node, **options):
    return chain_of(State, node=node).compile(InMemorySaver(), **options)


def done(state):
    return {"text": "b"}


def ask(state):
    return {"text": interrupt("text?")}


def wait(state):
    get_runtime().sleep(timedelta(days=1))


def inside(state):
    make_app(ask).invoke({"text": "a"}, thread_config("inner"))
    return {"text": "b"}


@each_case("streams", [False, True])
@each_case("node, options, paused", [
    (done, {}, False),
    (ask, {}, True),
    (wait, {}, True),
    (done, {"interrupt_before": ["node"]}, True),
    (done, {"interrupt_after": ["node"]}, True),
    (inside, {}, False),
])
def test_a_run_handle_reports_whether_the_run_paused(drive, node, options, paused, streams):
    app, control = make_app(node, **options), RunControl()
    assert control.paused is None
    call = drive.stream if streams else drive.invoke
    call(app, {"text": "a"}, CONFIG, control=control)
    assert control.paused is paused


def test_a_repeated_delivery_reports_the_same_outcome(drive):
    app = make_app(ask)
    for _ in range(2):
        control = RunControl()
        drive.invoke(app, {"text": "a"}, {**CONFIG, "run_id": "7"}, control=control)
        assert control.paused is True


def test_a_run_handle_reports_no_outcome_after_an_error(drive):
    def fail(state):
        raise LookupError("no")

    control = RunControl()
    with pytest.raises(LookupError):
        drive.invoke(make_app(fail), {"text": "a"}, CONFIG, control=control)
    assert control.paused is None


def test_a_run_handle_reports_the_outcome_with_a_deadline(drive):
    control = RunControl()
    config = {**CONFIG, "deadline": datetime.now(UTC) + timedelta(hours=1)}
    drive.invoke(make_app(ask), {"text": "a"}, config, control=control)
    assert control.paused is True
