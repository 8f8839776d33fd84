"""Jobs whose runs sleep: requeued until their time, and resumed by whichever worker is there then."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from kit import cluster
from kit.fleet import until, working
from kit.graphs import Log, chain_of, graph_of, thread_config

from stategraph import Command, Runtime, interrupt
from stategraph.pregel.clock import CLOCK
from stategraph.workers import Queue

postgres = cluster.emptied
DAY = timedelta(days=1)


RAN = []


def nap(state, runtime: Runtime):
    RAN.append("nap")
    runtime.sleep(DAY)
    return {"log": ["woke"]}


def ask(state):
    return {"log": [interrupt("content?")]}


napping = chain_of(Log, nap=nap).compile(name="napping")
asking = (
    graph_of(Log, "S>nap S>ask", nap=nap, ask=ask)
).compile(name="asking")


@pytest.fixture
def queue(postgres):
    RAN.clear()
    with Queue.from_conn_string(postgres, napping) as opened:
        opened.setup()
        yield opened


def let_a_day_pass(url, monkeypatch):
    """For the engine and, as far as jobs that wait for a time are concerned, for the database."""
    ahead = CLOCK.time() + 2 * DAY.total_seconds()
    monkeypatch.setattr(CLOCK, "time", lambda: ahead)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("UPDATE stategraph_jobs SET run_at = now() WHERE state IN ('sleeping', 'delayed')")


def test_a_sleeping_job_is_resumed_by_another_worker(postgres, queue, monkeypatch):
    with working(napping, postgres):
        queue.submit("t", {})
        asleep = until(lambda: (found := queue.result("t", wait=0)).status == "sleeping" and found)
    assert asleep.open and asleep.run_at == napping_state(postgres).wake_at
    assert asleep.value == {"log": []} and RAN == ["nap"]
    with working(napping, postgres):
        assert queue.result("t", wait=0).status == "sleeping", "no worker takes it before its time"
    let_a_day_pass(postgres, monkeypatch)
    with working(napping, postgres):
        ended = queue.result("t", wait=60)
    assert (ended.status, ended.value, RAN) == ("done", {"log": ["woke"]}, ["nap", "nap"])


def napping_state(url, thread_id="t"):
    from stategraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(url) as saver:
        app = napping.copy({"checkpointer": saver})
        return app.get_state(thread_config(thread_id))


def test_a_worker_whose_clock_is_behind_requeues_a_sleeping_job(postgres, queue, monkeypatch):
    """The database says that it is time. The run itself looks at the clock of its process."""
    with working(napping, postgres):
        queue.submit("t", {})
        until(lambda: queue.result("t", wait=0).status == "sleeping")
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute("UPDATE stategraph_jobs SET run_at = now()")
        until(lambda: queue.result("t", wait=0).attempts == 2)
        again = until(lambda: (found := queue.result("t", wait=0)).status == "sleeping" and found)
        assert again.run_at == napping_state(postgres).wake_at and RAN == ["nap"]
        let_a_day_pass(postgres, monkeypatch)
        assert queue.result("t", wait=60).value == {"log": ["woke"]}


def test_an_interrupt_is_answered_while_a_sibling_sleeps(postgres, queue, monkeypatch):
    with Queue.from_conn_string(postgres, asking) as jobs, working(asking, postgres):
        jobs.submit("t", {}, run_id="first")
        first = until(lambda: (found := jobs.result("t", run_id="first", wait=0)).status == "delayed" and found)
        assert [question.value for question in first.interrupts] == ["content?"]
        jobs.submit("t", Command(resume="yes"), run_id="answer")
        until(lambda: jobs.result("t", run_id="answer", wait=0).status == "sleeping")
        let_a_day_pass(postgres, monkeypatch)
        ended = [jobs.result("t", run_id=each, wait=60) for each in ("first", "answer")]
    assert [each.status for each in ended] == ["done", "done"]
    assert {"log": ["yes", "woke"]} in [{"log": sorted(each.value["log"], reverse=True)} for each in ended]
    assert RAN == ["nap", "nap"], "it has gone on once"
