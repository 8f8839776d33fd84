"""`queue_clock`: planned times of a queue come when a test says so."""

import time
from datetime import timedelta

import psycopg
import pytest
from kit import cluster
from kit.fleet import all_ended, counting, until, working
from kit.graphs import Log, chain_of

from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.pregel.clock import CLOCK
from stategraph.testing import queue_clock
from stategraph.workers import JobDeadlineError, Queue, When

postgres = cluster.emptied
ONE = {"log": [], "left": 1}
DAY = timedelta(days=1)


def nap(state, runtime):
    runtime.sleep(DAY)
    return {"log": ["woke"]}


napping = chain_of(Log, nap=nap).compile(name="napping")


@pytest.fixture
def clock(postgres):
    with PostgresSaver.from_conn_string(postgres) as saver, Queue.from_conn_string(postgres, counting) as queue:
        saver.setup()
        queue.setup()
    with queue_clock(postgres) as opened:
        yield opened


def test_schedules_and_delays_are_due_when_the_clock_reaches_them(clock, postgres):
    pytest.importorskip("cronsim")
    with Queue.from_conn_string(clock.url, counting) as queue, working(counting, clock.url):
        queue.schedule("daily", "30 7 * * *", ONE, missed="all")
        queue.submit("later", ONE, run_id="later", when=When(delay=4 * DAY))
        planned = queue.schedules()[0].next_at
        for _ in range(2):
            clock.advance(DAY)
            until(lambda: queue.schedules()[0].next_at > clock.now)
        assert queue.schedules()[0].next_at == planned + 2 * DAY
        assert queue.result("later", wait=0).status == "delayed"
        clock.advance(2 * DAY)
        assert queue.result("later", wait=30).status == "done"
        until(lambda: all_ended(queue))
        assert len([job for job in queue.jobs(["done"]) if job.run_id.startswith("daily@")]) == 4
    with psycopg.connect(postgres) as real, psycopg.connect(clock.url) as moved:
        times = [each.execute("SELECT now()").fetchone()[0] for each in (real, moved)]
        assert times[1] - times[0] > 3 * DAY


def test_sleeps_and_deadlines_of_jobs_are_due_when_the_clock_reaches_them(clock):
    with Queue.from_conn_string(clock.url, napping) as queue, working(napping, clock.url):
        queue.submit("t", {})
        until(lambda: queue.result("t", wait=0).status == "sleeping")
        soon = {"deadline": clock.now + DAY}
        queue.submit("late", {}, config=soon, when=When(delay=2 * DAY))
        clock.advance(2 * DAY)
        assert queue.result("t", wait=30).value == {"log": ["woke"]}
        with pytest.raises(JobDeadlineError):
            queue.result("late", wait=30).unwrap()


def test_time_does_not_go_back(clock):
    before = clock.now
    with pytest.raises(ValueError, match="advance must be 0 seconds or more, and finite, got -1"):
        clock.advance(-1)
    clock.advance(60)
    assert clock.now - before >= timedelta(seconds=60)


def test_nothing_is_left_of_it(clock, postgres):
    with queue_clock(postgres) as again:
        again.advance(2 * DAY)
    assert abs(CLOCK.time() - time.time()) < DAY.total_seconds()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT to_regnamespace('stategraph_clock')").fetchone() == (None,)
