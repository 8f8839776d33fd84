"""Where many workers on one Postgres bend, on paper: `python benchmarks/simulation.py`. Takes what
was measured by benchmarks/workers.py (workers.json) and computes, for fleets up to 10,000 workers
and a million live threads, what they ask of the database, for three ways to claim; then plays the
commits of a fleet, event by event, to see whether they queue.

The model, and what it leaves out:
- A live thread is one that runs, waits for its turn, or asks. Of the threads, WORKERS x SLOTS run
at a time. A run has
  STEPS supersteps of SECONDS each (a call of a model); each ends with one commit.
- The database has CORES cores, as quick as the measured one; a statement holds one core for its
measured processor
  time, first come first served, then waits FLUSH seconds for the disk. Commits that wait are
  flushed together, so the disk limits bytes, not commits.
- Left out: caches that no longer hold all, vacuum, replicas, the network's bandwidth, quicker or
slower cores.
"""

from __future__ import annotations

import heapq
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

KEPT = Path(__file__).with_name("workers.json")
FLEETS = (10, 100, 1_000, 3_000, 10_000)
FLUSH = 0.001  # seconds: a disk of a server; the one measured here takes three
FULL = 0.7  # beyond that share of a resource, waits grow fast


class Costs(NamedTuple):
    """What was measured, in seconds of the server's processor and in bytes."""

    per_commit: float
    per_job: float
    per_look: float
    per_notice: float
    per_wake: float
    per_dead_row: float
    wal_per_commit: float
    wal_per_job: float
    disk_per_thread: float
    disk_per_job: float
    connection: float
    locks: float

    @classmethod
    def measured(cls, found: dict[str, Any]) -> Costs:
        """Two fleets whose threads have 5 and 50 supersteps tell what a superstep costs, and what a
        job does."""
        short, long = found["fleet"]["2"], found["fleet"]["long"]
        steps = long["steps"] - short["steps"]

        def split(key: str, unit: float) -> tuple[float, float]:
            each = (long[key] - short[key]) / steps
            return each * unit, max(0.0, short[key] - each * (short["steps"] + 1)) * unit

        cpu, wal = split("server_cpu_us_per_thread", 1e-6), split("wal_bytes_per_thread", 1)
        claims, calls, ended = found["claims"], found["calls"], found["sizes"]["ended"]
        before, after = (claims["held"][key] for key in ("claim_and_end_us", "after_20000_us"))
        notices = calls["notice_us"]
        wake = (notices["100"] - notices["1"]) / 99
        return cls(
            *cpu[:1],
            cpu[1],
            calls["look_cpu_us"] * 1e-6,
            (notices["1"] - wake) * 1e-6,
            wake * 1e-6,
            max(0.0, after - before) / 20_000 * 1e-6,
            *wal,
            sum(ended.values()) - ended["jobs"],
            ended["jobs"],
            claims["connection_bytes"],
            claims["advisory_locks"],
        )


@dataclass(frozen=True)
class Load:
    """A fleet and what it runs."""

    workers: int
    slots: int = 8
    seconds: float = 2.0
    steps: int = 10
    poll: float = 1.0
    live: int = 1_000_000

    @property
    def running(self) -> int:
        return self.workers * self.slots

    @property
    def commits(self) -> float:
        return self.running / self.seconds

    @property
    def jobs(self) -> float:
        return self.commits / (self.steps + 1)


@dataclass(frozen=True)
class Server:
    """A large database server of today."""

    cores: int = 64
    wal: float = 500e6  # bytes a second
    connections: int = 5_000
    memory: float = 64e9  # for connections
    locks: int = 64  # for each connection, by default


def demands(load: Load, costs: Costs, server: Server, way: str) -> dict[str, float]:
    """What a fleet asks of each resource, as a share of what there is.

    Args:
        way: "held": a transaction is open while a job runs. "locked": a lock for each job. "named":
            for each worker.
    """
    looks = 2 * load.workers / load.poll
    dead = (
        2 * load.jobs * load.seconds * load.steps if way == "held" else 0
    )  # rows that no vacuum may take
    cpu = (
        load.commits * costs.per_commit
        + load.jobs * (costs.per_job + dead * costs.per_dead_row)
        + looks * costs.per_look
    )
    pooled = (
        load.commits * (costs.per_commit + FLUSH) * 2
    )  # statements under way, by Little's law, and as many idle
    sessions = load.workers + (
        load.running if way == "held" else load.workers
    )  # a worker's pool holds one at least
    locks = {"held": 0, "locked": load.running, "named": load.workers}[way]
    return {
        "processor": cpu / server.cores,
        "log": (load.commits * costs.wal_per_commit + load.jobs * costs.wal_per_job) / server.wal,
        "connections": (sessions + pooled) / server.connections,
        "memory": (sessions + pooled) * costs.connection / server.memory,
        "locks": locks / (server.locks * server.connections),
    }


def herd(load: Load, costs: Costs, server: Server, listeners: float) -> float:
    """The share of the processor that goes to telling and waking so many idle workers of each
    submit; all then look."""
    return (
        load.jobs
        * (costs.per_notice + listeners * (costs.per_wake + costs.per_look))
        / server.cores
    )


def played(load: Load, costs: Costs, server: Server, until: float = 6.0) -> list[float]:
    """The waits of commits, in seconds, played event by event: each run thinks for a time drawn at
    random, then its commit waits for a core and for the disk."""
    chance = random.Random(1)
    cores = [0.0] * server.cores
    thinking = [chance.uniform(0, load.seconds) for _ in range(load.running)]
    heapq.heapify(thinking)
    cost = costs.per_commit + costs.per_job / (load.steps + 1)
    waits = []
    while thinking[0] < until:
        now = heapq.heappop(thinking)
        ended = max(now, heapq.heappop(cores)) + cost
        heapq.heappush(cores, ended)
        if now > until / 2:
            waits.append(ended + FLUSH - now)
        heapq.heappush(thinking, ended + FLUSH + chance.expovariate(1 / load.seconds))
    return sorted(waits)


def shards(load: Load, costs: Costs, server: Server, way: str) -> int:
    """How many such servers keep every resource below its bend: threads are dealt out by their
    names."""
    return max(1, -(-max(demands(load, costs, server, way).values()) // FULL).__int__())


# -- the tables ------------------------------------------------------------------------------------


def checked(found: dict[str, Any]) -> Iterator[str]:
    """Does the model tell what was measured? Workers and server share the cores; each of four slots
    waits on disk."""
    yield "| workers | threads/s measured | by the model | commits/s measured |"
    yield "|---|---|---|---|"
    for number in ("1", "2", "4"):
        row = found["fleet"][number]
        used = (row["worker_cpu_us_per_thread"] + row["server_cpu_us_per_thread"]) * 1e-6
        waits = found["calls"]["invoke_us"] * 1e-6
        one = min(4 / waits, 1e6 / row["worker_cpu_us_per_thread"])
        at_most = min(found["cores"] / used, int(number) * one)
        yield f"| {number} | {row['threads_per_s']:,.0f} | at most {at_most:,.0f} | {row['commits_per_s']:,} |"


def asked(costs: Costs, server: Server) -> Iterator[str]:
    """What fleets ask of one server."""
    yield "| workers | running | commits/s | claims/s | processor | WAL | commit, median/99 % | first bottleneck | servers |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for workers in FLEETS:
        load = Load(workers, poll=max(1.0, workers / 500))
        share = demands(load, costs, server, "named")
        waits = played(load, costs, server)
        middle, late = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        first = max(share, key=lambda name: share[name])
        yield (
            f"| {workers:,} | {load.running:,} | {load.commits:,.0f} | {load.jobs:,.0f} | {share['processor']:.0%} | "
            f"{share['log']:.0%} | {middle * 1e3:.1f} / {late * 1e3:.1f} ms | {first} {share[first]:.0%} | "
            f"{shards(load, costs, server, 'named')} |"
        )


def ways(costs: Costs, server: Server) -> Iterator[str]:
    """The three ways to claim beside each other."""
    yield "| workers | claim | connections | memory for them | locks | processor | servers |"
    yield "|---|---|---|---|---|---|---|"
    for workers in FLEETS:
        load = Load(workers, poll=max(1.0, workers / 500))
        for way in ("held", "locked", "named"):
            share = demands(load, costs, server, way)
            locks = {"held": 0, "locked": load.running, "named": load.workers}[way]
            yield (
                f"| {workers:,} | {way} | {share['connections'] * server.connections:,.0f} | "
                f"{share['memory'] * server.memory / 1e9:,.1f} GB | {locks:,} | {share['processor']:.0%} | "
                f"{shards(load, costs, server, way)} |"
            )


def bytes_kept(costs: Costs) -> Iterator[str]:
    """A million live threads on disk."""
    yield "| live threads | checkpoints (5 supersteps) | jobs | all |"
    yield "|---|---|---|---|"
    for live in (10_000, 100_000, 1_000_000):
        threads, jobs = live * costs.disk_per_thread, live * costs.disk_per_job
        yield f"| {live:,} | {threads / 1e9:.2f} GB | {jobs / 1e9:.2f} GB | {(threads + jobs) / 1e9:.2f} GB |"


def noticed(costs: Costs, server: Server) -> Iterator[str]:
    """Telling idle workers: all of them, or eight while the others look every so often."""
    yield "| workers, a tenth idle | submits/s | processor, all told | eight told, others look |"
    yield "|---|---|---|---|"
    for workers in FLEETS:
        load = Load(workers)
        looks = workers / 10 / max(1.0, workers / 500) * costs.per_look / server.cores
        few = herd(load, costs, server, min(8.0, workers / 10)) + looks
        yield f"| {workers:,} | {load.jobs:,.0f} | {herd(load, costs, server, workers / 10):.1%} | {few:.1%} |"


def main() -> None:
    """Print all tables."""
    found = json.loads((Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT).read_text())
    costs, server = Costs.measured(found), Server()
    print(
        "Costs:",
        ", ".join(f"{name} {value:.3g}" for name, value in costs._asdict().items()),
        end="\n\n",
    )
    for rows in (
        checked(found),
        asked(costs, server),
        ways(costs, server),
        noticed(costs, server),
        bytes_kept(costs),
    ):
        print("\n".join(rows), end="\n\n")


if __name__ == "__main__":
    main()
