"""R1, R3, R22 for many workers on one Postgres: killed at random under load, or by the jobs themselves."""

from __future__ import annotations

import time

import cluster
import fleet

from stategraph.testing import same
from stategraph.workers import Queue

from .campaign import Round, trial

THREADS, STEPS, WORKERS = 500, 5, 3
POISONED, INNOCENT = 10, 90


def given(**more: object) -> dict[str, object]:
    return {"log": [], "left": STEPS, **more}


@trial("R1", quick=0, full=10)
def killed_workers(round: Round) -> None:
    """500 threads of five steps are submitted; of three workers one is killed every 0.1 to 0.5 s and another started:
    every thread ends with each step once, every step's effect has one key, nothing is parked."""
    url = cluster.shared().schema()
    names = [f"t{number}" for number in range(THREADS)]
    with Queue.from_conn_string(url, fleet.counting) as queue, fleet.Fleet(url, round.folder) as workers:
        queue.setup()
        for _ in range(WORKERS):
            workers.start()
        queue.submit_many([(name, given(pause=round.random.choice([0, 0.01, 0.03]))) for name in names])
        while not fleet.all_ended(queue):
            time.sleep(round.random.uniform(0.1, 0.5))
            workers.kill(round.random.choice(workers.processes))
            workers.start()
            round.count("kills")
        fleet.judged(queue, workers, names, STEPS)
        same(queue.counts(), {"counting": {"done": THREADS}}, "how the jobs ended")
        round.count("threads", THREADS)
        round.count("effects repeated under their key", workers.repeats())


@trial("R22", quick=0, full=20)
def poisoned_jobs(round: Round) -> None:
    """Ten of a hundred jobs kill the process that runs them; workers are started anew as they die. Each such job is tried
    three times and parked, at most at its own step; all others end well."""
    url = cluster.shared().schema()
    order = [("bad", number) for number in range(POISONED)] + [("good", number) for number in range(INNOCENT)]
    round.random.shuffle(order)
    with Queue.from_conn_string(url, fleet.counting) as queue, fleet.Fleet(url, round.folder) as workers:
        queue.setup()
        queue.submit_many([(f"{kind} {number}", given(kills=kind == "bad", pause=0.002)) for kind, number in order])
        while not fleet.all_ended(queue):
            workers.reap()
            while len(workers.processes) < WORKERS:
                workers.start()
            time.sleep(0.02)
        tries = [name for name, *_ in workers.notes.read() if name.startswith("bad")]
        same(sorted(tries), sorted(3 * [f"bad {n}" for n in range(POISONED)]), "tries of the poisoned")
        same(queue.counts(), {"counting": {"done": INNOCENT, "parked": POISONED}}, "how the jobs ended")
        for number in range(INNOCENT):
            same(queue.result(f"good {number}").unwrap()["log"], [*range(STEPS)], "an innocent's log")
        round.count("jobs parked", POISONED)
        round.count("workers", workers.started)
