"""What the queue and its workers cost, on one Postgres of this machine: `python benchmarks/workers.py [PART ...]`.

Parts: `claims` (three ways to claim, side by side), `fleet` (1, 2, 4 workers), `calls` (submit, wait, an idle worker),
`sizes` (bytes). Prints JSON: benchmarks/simulation.py reads it. The server is durable (fsync on) unless --lax.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import cluster  # noqa: E402
import fleet  # noqa: E402

from stategraph.checkpoint.postgres import PostgresSaver  # noqa: E402
from stategraph.workers import Queue  # noqa: E402
from stategraph.workers.session import Session, Terms  # noqa: E402
from stategraph.workers.jobs import Ended  # noqa: E402

JOBS, STEPS, SETTLE = 2000, 5, 400
STRICT = ("fsync = on", "full_page_writes = on", "autovacuum = on", "max_connections = 200")


@contextmanager
def server(lax: bool) -> Iterator[cluster.Cluster]:
    """A server of our own, as durable as it comes."""
    made = cluster.Cluster(cluster.programs() or sys.exit("no Postgres server here"))
    try:
        if not lax:
            with open(made.folder / "data" / "postgresql.conf", "a") as config:
                config.write("\n".join(STRICT) + "\n")
            made.restart()
        yield made
    finally:
        made.remove()


def per(count: int, work: Callable[[], Any]) -> float:
    """Microseconds for each of so many things that are done by one call."""
    began = time.perf_counter()
    work()
    return round((time.perf_counter() - began) / count * 1e6, 1)


# -- three ways to claim ----------------------------------------------------------------------------------------

TABLE = """
    CREATE TABLE jobs (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state TEXT NOT NULL DEFAULT 'waiting');
    CREATE INDEX waiting ON jobs (id) WHERE state = 'waiting';
"""
FILL = "INSERT INTO jobs (state) SELECT 'waiting' FROM generate_series(1, %s)"
PICK = "SELECT id FROM jobs WHERE state = 'waiting' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
LOCK = "SELECT id FROM jobs WHERE state = 'waiting' AND pg_try_advisory_lock(id) ORDER BY id LIMIT 1"
TAKE = f"UPDATE jobs SET state = 'running' WHERE id = ({PICK}) RETURNING id"
DONE = "UPDATE jobs SET state = 'done' WHERE id = %s"


def held(connection: Any) -> None:
    """(a) The job's row stays locked in a transaction that lasts as long as the run."""
    with connection.transaction():
        ((id,),) = connection.execute(PICK).fetchall()
        connection.execute(DONE, (id,))


def locked(connection: Any) -> None:
    """(b) An advisory lock for each job, kept by the worker's session. A row may have changed before it was locked."""
    ((id,),) = connection.execute(TAKE).fetchall()
    connection.execute("SELECT pg_advisory_lock(%s)", (id,))
    connection.execute(DONE, (id,))
    connection.execute("SELECT pg_advisory_unlock(%s)", (id,))


def named(connection: Any) -> None:
    """(c) The row names the worker, whose session keeps one lock for all its claims."""
    ((id,),) = connection.execute(TAKE).fetchall()
    connection.execute(DONE, (id,))


WAYS = {"held": held, "locked": locked, "named": named}


def claims(made: cluster.Cluster) -> dict[str, Any]:
    """A claim and its end; the same after thousands went by while one run goes on; what 100 running jobs hold."""
    found: dict[str, Any] = {}
    for name, way in WAYS.items():
        url = made.schema()
        with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as long:
            one.execute(TABLE)
            one.execute(FILL, (JOBS + 2 * SETTLE + 10 * JOBS,))
            one.execute("ANALYZE jobs")
            if name == "held":  # a run that goes on for long
                long.execute("BEGIN")
                long.execute(PICK)
            else:
                long.execute(TAKE)
                long.execute("SELECT pg_advisory_lock(1)")
            first = per(SETTLE, lambda: [way(one) for _ in range(SETTLE)])
            for _ in range(10 * JOBS):
                way(one)
            last = per(SETTLE, lambda: [way(one) for _ in range(SETTLE)])
            found[name] = {"claim_and_end_us": first, f"after_{10 * JOBS}_us": last}
    return {**found, **capacities(made)}


def capacities(made: cluster.Cluster) -> dict[str, Any]:
    """How many locks the server holds with its default settings, and what a connection takes."""
    with psycopg.connect(made.address, autocommit=True) as one:
        count = 0
        try:
            while True:
                one.execute("SELECT pg_advisory_lock(g) FROM generate_series(%s::bigint, %s::bigint) AS g", (count, count + 199))
                count += 200
        except psycopg.errors.OutOfMemory:
            one.execute("SELECT pg_advisory_unlock_all()")
        settings = {name: one.execute(f"SHOW {name}").fetchone()[0] for name in ("max_connections", "max_locks_per_transaction")}
        before = free()
        many = [psycopg.connect(made.address, autocommit=True) for _ in range(100)]
        for each in many:
            each.execute("SELECT count(*) FROM pg_class")
        memory = (before - free()) / 100
        for each in many:
            each.close()
    return {"advisory_locks": count, **settings, "connection_bytes": round(memory)}


def free() -> float:
    """Bytes of memory that are free, as Linux sees it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0.0


# -- a fleet ----------------------------------------------------------------------------------------------------


def fleets(made: cluster.Cluster, jobs: int) -> dict[str, Any]:
    """Threads of five supersteps per second, by 1, 2, 4 worker processes of four jobs at once."""
    found = {}
    for number in (1, 2, 4):
        url = made.schema()
        with tempfile.TemporaryDirectory() as folder, Queue.from_conn_string(url, fleet.counting) as queue:
            queue.setup()
            with fleet.Fleet(url, Path(folder), poll=1.0) as workers:
                for _ in range(number):
                    workers.start()
                fleet.until(lambda queue=queue, number=number: len(queue.workers()) == number)
                warm(queue, number)
                before, began = told(made, url), time.perf_counter()
                queue.submit_many([(f"t{n}", {"log": [], "left": STEPS}) for n in range(jobs)])
                fleet.until(lambda queue=queue: fleet.all_ended(queue), 600)
                seconds, after = time.perf_counter() - began, told(made, url)
        wrote = {key: after[key] - before[key] for key in after}
        found[str(number)] = {
            "threads_per_s": round(jobs / seconds),
            "commits_per_s": round(jobs * (STEPS + 1) / seconds),
            "transactions_per_s": round(wrote["transactions"] / seconds),
            "wal_bytes_per_thread": round(wrote["wal"] / jobs),
        }
    return found


def warm(queue: Queue, number: int) -> None:
    """A few jobs that do not count."""
    queue.submit_many([(f"warm{n}", {"log": [], "left": STEPS}) for n in range(20 * number)])
    fleet.until(lambda: fleet.all_ended(queue))
    time.sleep(1.2)  # until the server's counters are written


def told(made: cluster.Cluster, url: str) -> dict[str, float]:
    """What the server has counted."""
    time.sleep(1.2)
    with psycopg.connect(url, autocommit=True) as one:
        row = one.execute(
            "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float FROM pg_stat_database "
            "WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return {"transactions": row[0], "wal": row[1]}


# -- single calls -----------------------------------------------------------------------------------------------


def calls(made: cluster.Cluster) -> dict[str, Any]:
    """Submit, claim and end by the statements themselves; the way of one job there and back; an idle worker."""
    url = made.schema()
    graph = fleet.counting
    with Queue.from_conn_string(url, graph) as queue, PostgresSaver.from_conn_string(url) as saver:
        queue.setup()
        saver.setup()
        given = {"log": [], "left": STEPS}
        found = {
            "submit_us": per(SETTLE, lambda: [queue.submit(f"s{n}", given) for n in range(SETTLE)]),
            "submit_many_us": per(JOBS, lambda: queue.submit_many([(f"m{n}", given) for n in range(JOBS)])),
        }
        session = Session(url, Terms("counting", "bench", 3, 30))
        for room in (1, 8):
            taken: list[Any] = []
            found[f"claim_{room}_us"] = per(SETTLE, lambda: [taken.extend(session.claim(room)) for _ in range(SETTLE // room)])  # noqa: B023
            done = [Ended(job.id, job.attempt, "done", b"x" * 100) for job in taken]
            batches = [done[n : n + room] for n in range(0, len(done), room)]
            found[f"end_{room}_us"] = per(len(done), lambda: [session.end(batch) for batch in batches])  # noqa: B023
        found["watch_us"] = per(SETTLE, lambda: [session.watch() for _ in range(SETTLE)])
        queue.limit(1000)
        found["claim_within_limit_us"] = per(SETTLE, lambda: [session.claim(1) for _ in range(SETTLE)])
        session.close()
        found |= {"floor_us": floor(url)}
    url = made.schema()
    with Queue.from_conn_string(url, graph) as queue, fleet.working(graph, url, poll=1.0):
        for n in range(20):
            queue.submit(f"w{n}", given)
            queue.result(f"w{n}")
        times = []
        for n in range(200):
            began = time.perf_counter()
            queue.submit(f"t{n}", given)
            queue.result(f"t{n}")
            times.append(time.perf_counter() - began)
        found["there_and_back_ms"] = round(statistics.median(times) * 1000, 2)
        with PostgresSaver.from_conn_string(url) as saver:
            app = graph.copy({"checkpointer": saver})
            app.invoke(given, {"configurable": {"thread_id": "x"}})
            names = iter(range(10**6))
            found["invoke_ms"] = per(100, lambda: [app.invoke(given, {"configurable": {"thread_id": f"x{next(names)}"}}) for _ in range(100)]) / 1000
    return found


def floor(url: str) -> dict[str, float]:
    """Round trips: one that only asks, one that stores a row."""
    with psycopg.connect(url, autocommit=True) as one:
        one.execute("CREATE TABLE floor (n BIGINT)")
        one.execute("SELECT 1")
        asks = per(SETTLE, lambda: [one.execute("SELECT 1") for _ in range(SETTLE)])
        stores = per(SETTLE, lambda: [one.execute("INSERT INTO floor VALUES (1)") for _ in range(SETTLE)])
    return {"select": asks, "insert": stores}


# -- bytes ------------------------------------------------------------------------------------------------------


def sizes(made: cluster.Cluster) -> dict[str, Any]:
    """Bytes on disk, indexes included, of a waiting job, and of a thread of five supersteps with its ended job."""
    url = made.schema()
    tables = ("jobs", "spaces", "checkpoints", "values", "writes")
    with Queue.from_conn_string(url, fleet.counting) as queue, psycopg.connect(url, autocommit=True) as one:

        def measured() -> dict[str, float]:
            rows = ((name, one.execute(f"SELECT pg_total_relation_size('stategraph_{name}')").fetchone()) for name in tables)
            return {name: round(row[0] / JOBS) for name, row in rows if row}

        queue.setup()
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
        queue.submit_many([(f"t{n}", {"log": [], "left": STEPS}) for n in range(JOBS)])
        waiting = measured()["jobs"]
        with fleet.working(fleet.counting, url):
            fleet.until(lambda: fleet.all_ended(queue), 600)
        return {"waiting_job": waiting, "ended": measured()}


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["claims", "calls", "fleet", "sizes"])
    parser.add_argument("--jobs", type=int, default=JOBS, help="of each fleet")
    parser.add_argument("--lax", action="store_true", help="without fsync")
    asked = parser.parse_args()
    found: dict[str, Any] = {"cores": os.cpu_count(), "durable": not asked.lax}
    with server(asked.lax) as made:
        for part in asked.parts:
            found[part] = {
                "claims": claims, "calls": calls, "sizes": sizes, "fleet": lambda made: fleets(made, asked.jobs)
            }[part](made)  # fmt: skip
            print(json.dumps({part: found[part]}, indent=1), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
