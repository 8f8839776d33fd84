"""R42, R44 for the queue: jobs whose rows were moved, and run ids that several graphs and threads use."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
from kit import cluster, fleet

from stategraph.checkpoint.encryption import Encryption
from stategraph.testing import assert_same
from stategraph.workers import Queue
from stategraph.workers.jobs import hash_name

from .campaign import Round, trial

KEY = bytes(range(32))
GRAPHS, THREADS, RUNS = ("a", "b"), ("t", "u", "v"), ("r", "s")


@trial("R44", quick=3, full=1_000)
def run_ids_of_others(round: Round) -> None:
    """20 jobs of two graphs, three threads and two run ids, at random: each is a job of its own, the same job again, or
    refused because the thread's job of that name is another graph's."""
    url = cluster.shared().schema()
    known = {}
    with ExitStack() as stack:
        queues = {name: stack.enter_context(Queue.from_conn_string(url, name)) for name in GRAPHS}
        for _ in range(20):
            graph, thread, run = (round.random.choice(each) for each in (GRAPHS, THREADS, RUNS))
            try:
                queues[graph].submit(thread, {"log": []}, run_id=run)
                told = False
            except ValueError:
                told = True
            owner = known.setdefault((thread, run), graph)
            assert_same(told, owner != graph, f"whether {run!r} of {thread!r} is refused to {graph!r}")
            round.count("jobs submitted")
        found = {(job.thread_id, job.run_id): job.graph for job in queues["a"].jobs(limit=100)}
        assert_same(found, known, "the jobs")


@trial("R42", quick=2, full=500)
def jobs_that_were_moved(round: Round) -> None:
    """Of four encrypted jobs one gets the name or the input of another: it fails, and no thread sees what is another's."""
    url, integrity = cluster.shared().schema(), Encryption(KEY)
    names = ["ann", "bob", "cy", "dee"]
    with Queue.from_conn_string(url, fleet.counting, integrity=integrity) as queue:
        queue.submit_many([(name, {"log": [name], "left": 3}) for name in names], run_ids=["r"] * 4)
        source, target = round.random.sample(names, 2)
        column = round.random.choice(["task", "thread_id"])
        with psycopg.connect(url, autocommit=True) as admin:
            values = [source.encode(), target.encode()]
            if column == "task":
                admin.execute(
                    "UPDATE stategraph_jobs SET task = (SELECT task FROM stategraph_jobs WHERE thread_id = %s) "
                    "WHERE thread_id = %s", values,
                )  # fmt: skip
            else:  # the input of `source` under the name of `target`, whose own job is gone
                admin.execute("DELETE FROM stategraph_jobs WHERE thread_id = %s", values[1:])
                admin.execute(
                    "UPDATE stategraph_jobs SET lane = %s, thread_id = %s WHERE thread_id = %s",
                    [hash_name(target), *values[::-1]],
                )
                names.remove(source)
        with fleet.working(fleet.counting, url, integrity=integrity):
            for name in names:
                found = queue.result(name, wait=30)
                assert_same(found.status, "failed" if name == target else "done", f"how the job of {name} ended")
                if name != target:
                    assert_same(found.unwrap()["log"], [name, 1, 2], f"the log of {name}")
        round.count("jobs moved")
