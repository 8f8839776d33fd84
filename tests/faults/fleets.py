"""R1, R3, R22, R40 for many workers on one Postgres: killed at random under load, cut off, killed by the jobs, or failing."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from itertools import count

from kit import cluster, fleet, machines

from stategraph.testing import CheckFailed, assert_same
from stategraph.workers import Queue, Worker
from stategraph.workers.session import WorkerSession

from .campaign import patched, trial

STEPS, WORKERS = 5, 3
THREADS = 500
CUT_OFF = 100
"""Threads whose workers' cables are pulled."""

POISONED, INNOCENT = 4, 36
PATIENCE = 300
"""Seconds after which a fleet that is not done is stuck."""


def given(**more):
    return {"log": [], "left": STEPS, **more}


@contextmanager
def fleet_of(round, concurrency=4):
    """Three workers, with the planted bug in them, and an empty queue."""
    url = cluster.shared().schema()
    with (
        Queue.from_conn_string(url, fleet.counting) as queue,
        fleet.Fleet(url, round.folder, round.bench.bug, concurrency=concurrency) as workers,
    ):
        queue.setup()
        for _ in range(WORKERS):
            workers.start()
        yield queue, workers


def until_all_ended(queue, disturb, seconds=PATIENCE):
    """Disturb again and again, until nothing is left to do."""
    deadline = time.monotonic() + seconds
    while not fleet.all_ended(queue):
        if time.monotonic() > deadline:
            raise CheckFailed(f"after {seconds} s there is work left: {queue.counts()}")
        disturb()


def kill_at_random(round, queue, workers: fleet.Fleet, threads):
    """Of three workers one is killed again and again; every thread must end as if none had been."""
    names = [f"t{number}" for number in range(threads)]

    def disturb():
        time.sleep(round.random.uniform(0.1, 0.5))
        workers.kill(round.random.choice(workers.processes))
        workers.start()
        round.count("kills")

    bug = round.bench.bug is not None  # then there are few, and they last, so that kills do not miss them
    pauses = [0.2] if bug else [0, 0.01, 0.03]
    queue.submit_many([(name, given(pause=round.random.choice(pauses))) for name in names])
    until_all_ended(queue, disturb, 10 if bug else PATIENCE)
    fleet.judged(queue, workers, names, STEPS)
    assert_same(queue.counts(), {"counting": {"done": threads}}, "how the jobs ended")
    round.count("threads", threads)
    round.count("effects repeated under their key", workers.repeats())


@trial("R1", quick=0, full=10)
def killed_workers(round):
    """500 threads of five steps are submitted; of three workers one is killed every 0.1 to 0.5 s and another started:
    every thread ends with each step once, every step's effect has one key, nothing is parked."""
    with fleet_of(round) as (queue, workers):
        kill_at_random(round, queue, workers, 12 if round.bench.bug else THREADS)


@trial("R22", quick=1, full=50)
def poisoned_jobs(round):
    """4 of 40 jobs kill the process that runs them; workers are started anew as they die. Each such job is parked, after
    exactly three tries where a worker runs one job at a time; where it runs four, one may die of another's kill before
    it has begun, and the last try is its own. All others end well."""
    concurrency = 4 if round.bench.bug else (4, 1)[round.number % 2]
    order = [("bad", number) for number in range(POISONED)] + [("good", number) for number in range(INNOCENT)]
    round.random.shuffle(order)
    with fleet_of(round, concurrency) as (queue, workers):

        def disturb():
            workers.reap()
            while len(workers.processes) < WORKERS:
                workers.start()
            if workers.started > WORKERS + 3 * POISONED + 5:
                raise CheckFailed(f"{workers.started} workers, and no end: {queue.counts()}")
            time.sleep(0.02)

        queue.submit_many([(f"{kind} {number}", given(kills=kind == "bad", pause=0.002)) for kind, number in order])
        until_all_ended(queue, disturb)
        tries = Counter(name for name, *_ in workers.notes.read() if name.startswith("bad"))
        fewest = 3 if concurrency == 1 else 1
        wrong = [name for number in range(POISONED) if not fewest <= tries[name := f"bad {number}"] <= 3]
        assert_same(wrong, [], f"the poisoned that were not tried {fewest} to 3 times: {tries}")
        assert_same(queue.counts(), {"counting": {"done": INNOCENT, "parked": POISONED}}, "how the jobs ended")
        for number in range(INNOCENT):
            assert_same(queue.result(f"good {number}").unwrap()["log"], [*range(STEPS)], "an innocent's log")
        round.count("jobs parked", POISONED)
        round.count("workers", workers.started)


METHODS = ("claim", "end", "end_and_claim", "watch", "find_cancelled", "wait")


@trial("R40", quick=3, full=1_000)
def workers_that_fail(round):
    """The loop of a worker ends with an error at one of the first calls of its session, chosen at random, before or
    after it: six threads that it has begun, or was about to, go on in the next worker."""
    names = [f"t{number}" for number in range(6)]
    name, error = round.random.choice(METHODS), round.random.choice([KeyboardInterrupt, MemoryError])
    real, calls = getattr(WorkerSession, name), count(round.random.randrange(-4, 0))
    after = round.random.random() < 0.5

    def call(self: WorkerSession, *args):
        now = next(calls) == 0
        if now and not after:
            raise error
        found = real(self, *args)
        if now:
            raise error
        return found

    url = cluster.shared().schema()
    with Queue.from_conn_string(url, fleet.counting) as queue:
        queue.submit_many([(name, given(pause=0.01)) for name in names])
        with patched(WorkerSession, name, call):
            try:
                # Ends of jobs that run at once may be stored together, and so in too few calls.
                at_once = 1 if name == "end_and_claim" else 4
                Worker(fleet.counting, url, poll=0.01, concurrency=at_once).run()
            except error:
                round.count("workers that failed")
        with fleet.working(fleet.counting, url):
            for name in names:
                found = queue.result(name, wait=3 if round.bench.bug else 30)
                assert_same(found.status, "done", f"thread {name}, long after its worker failed")
                assert_same(found.unwrap()["log"], [*range(STEPS)], "its log")


class Cables:
    """Three workers' machines and the server's, each with its cable; and what can happen to them."""

    def __init__(self, round, network: machines.Network, workers: fleet.Fleet, server: machines.Host):
        self._round, self._random = round, round.random
        self._workers, self._server = workers, server
        self._hosts = [network.host() for _ in range(WORKERS)]
        self._running = {host: workers.start(host) for host in self._hosts}

    def disturb(self):
        """Mostly a cable is pulled for a moment; now and then for so long that TCP gives up; or a machine's power goes."""
        for host, process in self._running.items():
            if not process.is_alive():  # whoever is cut off as it starts says so and ends
                self._running[host] = self._workers.start(host)
        kind = self._random.choices(["short", "long", "power"], [8, 1, 2])[0]
        host = self._random.choice(self._hosts if kind == "power" else [self._server, *self._hosts])
        self._round.count({"short": "cables pulled", "long": "for half a minute", "power": "losses of power"}[kind])
        if kind == "power":
            host.lose_power()
            self._workers.reap()
            host.switch_on()
            time.sleep(self._random.uniform(0, 2))
            return
        host.pull()
        time.sleep(self._random.uniform(0.05, 3) if kind == "short" else self._random.uniform(26, 34))
        host.plug()
        time.sleep(self._random.uniform(0, 1))


@trial("R1", quick=0, full=5)
def pulled_cables(round):
    """100 threads of five steps on three machines and a server's, with a network between them: cables are pulled at
    random, for moments and for half a minute, the server's too, and machines lose their power. Every thread ends with
    each step once, every step's effect has one key, nothing is parked."""
    machines.require()
    names = [f"t{number}" for number in range(CUT_OFF)]
    timeout = round.random.choice([2, 30])  # how soon workers give a statement up
    with machines.Network() as network:
        server = network.host()
        with machines.postgres_on(server) as postgres:
            url = postgres.schema()
            with (
                Queue.from_conn_string(postgres.console(url), fleet.counting) as queue,
                fleet.Fleet(url, round.folder, round.bench.bug, concurrency=4, timeout=timeout) as workers,
            ):
                queue.setup()
                cables = Cables(round, network, workers, server)
                queue.submit_many([(name, given(pause=round.random.choice([0.1, 0.5, 1.0]))) for name in names])
                until_all_ended(queue, cables.disturb, 2 * PATIENCE)
                fleet.judged(queue, workers, names, STEPS)
                assert_same(queue.counts(), {"counting": {"done": CUT_OFF}}, "how the jobs ended")
                round.count("threads", CUT_OFF)
                round.count("effects repeated under their key", workers.repeats())
