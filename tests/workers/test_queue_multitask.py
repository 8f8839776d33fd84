"""`Queue.submit(multitask=)`: what a job does if its thread is busy."""

from __future__ import annotations

import operator
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import pytest
from kit import cluster
from kit.fleet import log_of, queue_at_work, working
from kit.graphs import graph_of
from typing_extensions import TypedDict

from stategraph import Runtime, ThreadBusyError
from stategraph.workers import JobOpenError, Queue, When

postgres = cluster.emptied


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    waits: bool


class Gate:
    def __init__(self):
        self.reached, self.opened = threading.Event(), threading.Event()


def make_flow(gate: Gate):
    """a → b → c; b waits at the gate, if the input says so, or until its run is asked to stop."""

    def b(state, runtime: Runtime):
        if state.get("waits"):
            gate.reached.set()
            until = time.monotonic() + 30
            while not gate.opened.is_set() and not runtime.drain_requested and time.monotonic() < until:
                time.sleep(0.002)
        return {"log": ["b"]}

    return graph_of(Log, "S>a>b>c", b=b).compile(name="flow")


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def busy(postgres, gate):
    """A queue with a job of the thread `t` that stands at the gate, behind one that is done."""
    flow = make_flow(gate)
    with queue_at_work(flow, postgres) as queue:
        queue.submit("t", {"log": ["0"]})
        queue.result("t", wait=30)
        queue.submit("t", {"log": ["1"], "waits": True}, run_id="first")
        assert gate.reached.wait(30)
        try:
            yield flow, queue
        finally:
            gate.opened.set()


def test_reject_refuses_a_busy_thread_and_takes_a_free_one(busy, gate):
    _, queue = busy
    with pytest.raises(ThreadBusyError, match="'first'"):
        queue.submit("t", {"log": ["2"]}, multitask="reject")
    assert queue.submit("other", {"log": ["2"]}, multitask="reject", run_id="x") == "x"
    gate.opened.set()
    assert log_of(queue, "first") == ["0", "a", "b", "c", "1", "a", "b", "c"]
    queue.submit("t", {"log": ["2"], "waits": False}, run_id="second", multitask="reject")
    assert log_of(queue, "second")[-4:] == ["2", "a", "b", "c"]


def test_interrupt_ends_the_running_job_at_its_barrier_and_drops_the_waiting_one(busy, gate):
    _, queue = busy
    queue.submit("t", {"log": ["2"]}, run_id="waits")
    queue.submit("t", {"log": ["3"], "waits": False}, run_id="last", multitask="interrupt")
    assert log_of(queue, "last") == ["0", "a", "b", "c", "1", "a", "b", "3", "a", "b", "c"]
    for run_id in ("first", "waits"):
        assert queue.result("t", run_id=run_id, wait=30).status == "cancelled"


def test_rollback_starts_before_the_input_of_what_it_takes_back(busy, gate):
    _, queue = busy
    queue.submit("t", {"log": ["2"], "waits": False}, run_id="last", multitask="rollback")
    assert log_of(queue, "last") == ["0", "a", "b", "c", "2", "a", "b", "c"]


def test_rollback_of_the_first_job_of_a_thread_starts_from_nothing(postgres, gate):
    flow = make_flow(gate)
    with queue_at_work(flow, postgres) as queue:
        queue.submit("t", {"log": ["1"], "waits": True}, run_id="first")
        assert gate.reached.wait(30)
        queue.submit("t", {"log": ["2"], "waits": False}, run_id="last", multitask="rollback")
        gate.opened.set()
        assert log_of(queue, "last") == ["2", "a", "b", "c"]


def test_rollback_of_a_job_that_has_not_started_replaces_it(postgres, gate):
    flow = make_flow(gate)
    with Queue.from_conn_string(postgres, flow) as queue:
        queue.submit("t", {"log": ["1"]}, run_id="first")
        queue.submit("t", {"log": ["2"]}, run_id="last", multitask="rollback")
        with working(flow, postgres):
            assert log_of(queue, "last") == ["2", "a", "b", "c"]
            with pytest.raises(JobOpenError, match="cancelled"):
                queue.result("t", run_id="first").unwrap()


def test_rollback_of_a_rollback_that_has_not_started_takes_back_the_same_jobs(postgres, gate):
    flow = make_flow(gate)
    with Queue.from_conn_string(postgres, flow) as queue:
        queue.submit("t", {"log": ["1"], "waits": True}, run_id="first")
        with working(flow, postgres):
            assert gate.reached.wait(30)  # it stops half done
        for run_id in ("second", "last"):
            queue.submit("t", {"log": [run_id], "waits": False}, run_id=run_id, multitask="rollback")
        assert queue.replaced_by("last", thread_id="t") == ["first", "second"]
        with working(flow, postgres):
            assert log_of(queue, "last") == ["last", "a", "b", "c"]


def test_jobs_of_other_graphs_on_the_thread_count(postgres, gate):
    flow = make_flow(gate)
    with Queue.from_conn_string(postgres, flow) as queue, Queue.from_conn_string(postgres, "other") as other:
        other.submit("t", {"log": ["1"]}, run_id="first")
        with pytest.raises(ThreadBusyError, match="'first'"):
            queue.submit("t", {"log": ["2"]}, multitask="reject")
        for how in ("interrupt", "rollback"):
            with pytest.raises(ValueError, match="belongs to the graph 'other'"):
                queue.submit("t", {"log": ["2"]}, run_id="first", multitask=how)  # type: ignore[arg-type]
        assert other.result("t", run_id="first", wait=0).status == "waiting"
        queue.submit("t", {"log": ["2"]}, run_id="last", multitask="rollback")
        assert other.result("t", run_id="first", wait=0).status == "cancelled"
        assert queue.replaced_by("last", thread_id="t") == ["first"]
        with working(flow, postgres):
            assert log_of(queue, "last") == ["2", "a", "b", "c"]


def test_a_job_knows_which_jobs_it_rolled_back(postgres, gate):
    with Queue.from_conn_string(postgres, make_flow(gate)) as queue:
        queue.submit("t", {"log": ["1"]}, run_id="later", when=When(delay=3600))
        queue.submit("t", {"log": ["2"]}, run_id="first")
        for _ in range(2):  # the second time nothing is stored
            queue.submit("t", {"log": ["3"]}, run_id="last", multitask="rollback")
            assert queue.replaced_by("last", thread_id="t") == ["first"]
        assert queue.replaced_by("first", thread_id="t") == queue.replaced_by("none", thread_id="t") == []
        assert queue.result("t", run_id="later", wait=0).status == "delayed"


@pytest.mark.parametrize("how", ["reject", "interrupt", "rollback"])
def test_what_is_submitted_twice_under_one_name_is_one_job(postgres, gate, how):
    flow = make_flow(gate)
    with Queue.from_conn_string(postgres, flow) as queue:
        for _ in range(2):
            queue.submit("t", {"log": ["1"]}, run_id="only", multitask=how)
        with working(flow, postgres):
            assert log_of(queue, "only") == ["1", "a", "b", "c"]
            queue.submit("t", {"log": ["1"]}, run_id="only", multitask=how)
            assert queue.counts() == {"flow": {"done": 1}}


def test_of_many_that_reject_at_the_same_time_one_gets_in(postgres, gate):
    flow = make_flow(gate)
    with Queue.from_conn_string(postgres, flow) as queue, ThreadPoolExecutor(8) as pool:

        def submit(number):
            try:
                queue.submit("t", {"log": [str(number)]}, multitask="reject")
            except ThreadBusyError:
                return False
            return True

        assert sum(pool.map(submit, range(24))) == 1
        assert queue.counts() == {"flow": {"waiting": 1}}


@pytest.mark.parametrize("time", [{"delay": 1}, {"debounce": 1}])
def test_a_job_that_does_not_enqueue_has_no_time(postgres, gate, time):
    with Queue.from_conn_string(postgres, make_flow(gate)) as queue:
        with pytest.raises(ValueError, match="must have no"):
            queue.submit("t", {}, multitask="reject", when=When(**time))
        with pytest.raises(ValueError, match='got "wait"|got \'wait\''):
            queue.submit("t", {}, multitask="wait")  # type: ignore[arg-type]
        assert queue.counts() == {}
