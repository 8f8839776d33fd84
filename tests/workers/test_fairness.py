"""Fairness at size: one user's 10,000 queued jobs do not delay another user's first."""

from contextlib import closing
from typing import TypedDict

import pytest
from kit.fleet import until, working
from kit.graphs import chain_of

from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.workers import Queue
from stategraph.workers.session import Terms, WorkerSession

MANY = 10_000


class Told(TypedDict):
    user: str


def make_graph(begun):
    graph = chain_of(Told, note=lambda state: begun.append(state["user"]))
    return graph.compile(name="noting")


@pytest.fixture
def queue(postgres):
    """A queue in which 10,000 jobs of ann wait."""
    with Queue.from_conn_string(postgres, make_graph([])) as opened:
        for first in range(0, MANY, 1000):
            jobs = [(f"ann{first + number}", {"user": "ann"}) for number in range(1000)]
            opened.submit_many(jobs, fairness_key="ann")
        yield opened


@pytest.mark.trial
def test_behind_ten_thousand_jobs_of_one_user_the_first_of_another_is_the_next_but_one_at_most(postgres, queue):
    with PostgresSaver.from_conn_string(postgres) as saver:
        saver.setup()
    with closing(WorkerSession(postgres, Terms("noting", "tester", 3, 20)).open()) as session:
        for number in range(50):
            assert session.claim(1)[0].name.thread_id.startswith("ann")
            user = f"user{number}"
            queue.submit(user, {"user": user}, fairness_key=user)
            assert user in [session.claim(1)[0].name.thread_id for _ in range(2)]


@pytest.mark.trial
def test_workers_that_have_ten_thousand_jobs_of_one_user_run_those_of_others_at_once(postgres, queue):
    """Counted, not timed: how many of ann's jobs begin between the submission of a user's first and its begin. Some do,
    as the threads of the workers are not woken in order."""
    begun = []
    between = []
    with working(make_graph(begun), postgres, 4):
        until(lambda: len(begun) > 40)
        for number in range(20):
            user = f"user{number}"
            queue.submit(user, {"user": user}, fairness_key=user)
            before = len(begun)
            until(lambda user=user: user in begun)
            between.append(begun.index(user) - before)
        assert MANY - begun.count("ann") > MANY / 2
        assert max(between) <= MANY / 100
