"""What the queue and its workers cost, on one Postgres of this machine: `python
benchmarks/workers.py [PART ...]`.

Parts: `claims` (three ways to claim, side by side), `fleet` (1, 2, 4 workers), `calls` (submit,
wait, an idle worker), `sizes` (bytes). Prints JSON: benchmarks/simulation.py reads it. The server
is durable (fsync on) unless --lax.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fleets
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from kit import (
    cluster,
    fleet,
)

from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.workers import Queue
from stategraph.workers.jobs import JobEnd
from stategraph.workers.session import Terms, WorkerSession

JOBS, STEPS, LONG, SETTLE = 2000, 5, 50, 400
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


def quick(count: int, work: Callable[[int], Any]) -> float:
    """Microseconds that one of so many calls takes. Of ten the quickest counts: the machine may do
    other things too."""
    times = []
    for number in range(count):
        began = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - began)
    return round(sorted(times)[len(times) // 10] * 1e6, 1)


# -- three ways to claim ---------------------------------------------------------------------------

TABLE = """
    CREATE TABLE jobs (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        state TEXT NOT NULL DEFAULT 'waiting'
    );
    CREATE INDEX waiting ON jobs (id) WHERE state = 'waiting';
"""
FILL = "INSERT INTO jobs (state) SELECT 'waiting' FROM generate_series(1, %s)"
PICK = "SELECT id FROM jobs WHERE state = 'waiting' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
LOCK = (
    "SELECT id FROM jobs WHERE state = 'waiting' AND pg_try_advisory_lock(id) ORDER BY id LIMIT 1"
)
TAKE = f"UPDATE jobs SET state = 'running' WHERE id = ({PICK}) RETURNING id"
DONE = "UPDATE jobs SET state = 'done' WHERE id = %s"


def held(connection: Any) -> None:
    """(a) The job's row stays locked in a transaction that lasts as long as the run."""
    with connection.transaction():
        ((id,),) = connection.execute(PICK).fetchall()
        connection.execute(DONE, (id,))


def locked(connection: Any) -> None:
    """(b) An advisory lock for each job, kept by the worker's session. A row may have changed
    before it was locked."""
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
    """A claim and its end, the disk left out; the same after thousands went by while one run goes
    on; what locks and connections there can be. With the disk each way waits for it once: (b) and
    (c) need not for the claim."""
    found: dict[str, Any] = {}
    for name, way in WAYS.items():
        url = made.schema()
        with (
            psycopg.connect(url, autocommit=True) as one,
            psycopg.connect(url, autocommit=True) as long,
        ):
            one.execute(TABLE)
            one.execute(FILL, (JOBS + 2 * SETTLE + 10 * JOBS,))
            one.execute("ANALYZE jobs")
            one.execute("SET synchronous_commit = off")
            if name == "held":  # a run that goes on for long
                long.execute("BEGIN")
                long.execute(PICK)
            else:
                long.execute(TAKE)
                long.execute("SELECT pg_advisory_lock(1)")
            first = quick(SETTLE, lambda _: way(one))  # noqa: B023
            for _ in range(10 * JOBS):
                way(one)
            last = quick(SETTLE, lambda _: way(one))  # noqa: B023
            found[name] = {"claim_and_end_us": first, f"after_{10 * JOBS}_us": last}
    return {**found, **capacities(made)}


def capacities(made: cluster.Cluster) -> dict[str, Any]:
    """How many locks the server holds with its default settings, and what a connection takes."""
    with psycopg.connect(made.address, autocommit=True) as one:
        count = 0
        try:
            while True:
                one.execute(
                    "SELECT pg_advisory_lock(n) FROM generate_series(%s::bigint, %s) n",
                    (count, count + 199),
                )
                count += 200
        except psycopg.errors.OutOfMemory:
            one.execute("SELECT pg_advisory_unlock_all()")
        names = ("max_connections", "max_locks_per_transaction")
        settings = {name: int(one.execute(f"SHOW {name}").fetchone()[0]) for name in names}
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


# -- a fleet ---------------------------------------------------------------------------------------


def many_fleets(made: cluster.Cluster, jobs: int) -> dict[str, Any]:
    """Threads per second by 1, 2, 4 worker processes of four jobs at once, and their cost; longer
    threads too."""
    found = {str(number): fleet_of(made, number, jobs, STEPS) for number in (1, 2, 4)}
    return {**found, "long": fleet_of(made, 2, jobs // 10, LONG)}


def fleet_of(made: cluster.Cluster, number: int, jobs: int, steps: int) -> dict[str, float]:
    """So many workers do so many jobs."""
    url = made.schema()
    with (
        tempfile.TemporaryDirectory() as folder,
        Queue.from_conn_string(url, fleet.counting) as queue,
    ):
        queue.setup()
        with fleet.Fleet(url, Path(folder), poll=1.0) as workers:
            for _ in range(number):
                workers.start()
            fleet.until(lambda: len(queue.workers()) == number)
            warm(queue, number)
            pids = [process.pid for process in workers.processes]
            before, began = told(made, url, pids), time.perf_counter()
            queue.submit_many([(f"t{n}", {"log": [], "left": steps}) for n in range(jobs)])
            drained(url)
            seconds, after = time.perf_counter() - began, told(made, url, pids)
    wrote = {key: after[key] - before[key] for key in after}
    return {
        "steps": steps,
        "threads_per_s": round(jobs / seconds, 1),
        "commits_per_s": round(jobs * (steps + 1) / seconds),
        "transactions_per_thread": round(wrote["transactions"] / jobs, 2),
        "wal_bytes_per_thread": round(wrote["wal"] / jobs),
        "worker_cpu_us_per_thread": round(wrote["workers"] / jobs * 1e6),
        "server_cpu_us_per_thread": round(wrote["server"] / jobs * 1e6),
    }


def drained(url: str) -> None:
    """Wait until nothing is left, and take little of the server's time for it."""
    left = (
        "SELECT EXISTS (SELECT FROM stategraph_jobs "
        "WHERE state IN ('waiting', 'running', 'parked'))"
    )
    with psycopg.connect(url, autocommit=True) as one:
        one.execute("SET enable_seqscan = off")
        while one.execute(left).fetchone() == (True,):
            time.sleep(0.05)


def server_cpu(made: cluster.Cluster) -> float:
    """That of the server, all its processes."""
    return fleets.server_cpu(int((made.folder / "data" / "postmaster.pid").read_text().split()[0]))


def warm(queue: Queue, number: int) -> None:
    """A few jobs that do not count."""
    queue.submit_many([(f"warm{n}", {"log": [], "left": STEPS}) for n in range(20 * number)])
    fleet.until(lambda: fleet.all_ended(queue))
    time.sleep(1.2)  # until the server's counters are written


def told(made: cluster.Cluster, url: str, pids: list[int]) -> dict[str, float]:
    """What the server and the system have counted."""
    time.sleep(1.2)
    with psycopg.connect(url, autocommit=True) as one:
        row = one.execute(
            "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float "
            "FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    used = {"workers": sum(map(fleets.process_cpu, pids)), "server": server_cpu(made)}
    return {"transactions": row[0], "wal": row[1], **used}


# -- single calls ----------------------------------------------------------------------------------


def calls(made: cluster.Cluster) -> dict[str, Any]:
    """Submit, claim and end by the statements themselves; the way of one job there and back; an
    idle worker."""
    url = made.schema()
    graph = fleet.counting
    with Queue.from_conn_string(url, graph) as queue, PostgresSaver.from_conn_string(url) as saver:
        queue.setup()
        saver.setup()
        given = {"log": [], "left": STEPS}
        found = {
            "submit_us": quick(SETTLE, lambda n: queue.submit(f"s{n}", given)),
            "submit_100_us": quick(
                20, lambda n: queue.submit_many([(f"m{n}.{m}", given) for m in range(100)])
            ),
        }
        session = WorkerSession(url, Terms("counting", "bench", 3, 30)).open()
        for room in (1, 8):
            taken: list[Any] = []
            found[f"claim_{room}_us"] = quick(
                SETTLE // room,
                lambda _, taken=taken, room=room: taken.extend(session.claim(room)),
            )
            done = [JobEnd(job.id, job.attempt, "done", b"x" * 100) for job in taken]
            batches = [done[n : n + room] for n in range(0, len(done), room)]
            found[f"end_{room}_us"] = quick(
                len(batches), lambda n, batches=batches: session.end(batches[n])
            )
        running = session.claim(1)
        found["end_and_claim_us"] = quick(SETTLE, lambda _: exchange(session, running))
        other = WorkerSession(url, Terms("counting", "neighbour", 3, 30)).open()
        before = server_cpu(made)
        found["watch_us"] = quick(SETTLE, lambda _: (session.watch(), session.find_cancelled()))
        found["look_cpu_us"] = round((server_cpu(made) - before) / SETTLE / 2 * 1e6, 1)
        queue.limit(10_000)
        session.claim(1)
        found["claim_within_limit_us"] = quick(SETTLE, lambda _: session.claim(1))
        other.close()
        session.close()
        found |= {"floor_us": floor(url), "notice_us": notices(made, queue)}
    url = made.schema()
    with Queue.from_conn_string(url, graph) as queue, fleet.working(graph, url, poll=1.0):
        for n in range(20):
            queue.submit(f"w{n}", given)
            queue.result(f"w{n}")
        found["there_and_back_us"] = quick(
            200, lambda n: (queue.submit(f"t{n}", given), queue.result(f"t{n}"))
        )
        with PostgresSaver.from_conn_string(url) as saver:
            app = graph.copy({"checkpointer": saver})
            app.invoke(given, {"configurable": {"thread_id": "x"}})
            found["invoke_us"] = quick(
                200, lambda n: app.invoke(given, {"configurable": {"thread_id": f"x{n}"}})
            )
    return found


def exchange(session: WorkerSession, running: list[Any]) -> None:
    """End the job that runs and claim the next."""
    job = running.pop()
    running += session.end_and_claim([JobEnd(job.id, job.attempt, "done", b"x" * 100)], 1)


def notices(made: cluster.Cluster, queue: Queue) -> dict[str, float]:
    """Processor time of the server for a notice that so many idle sessions hear."""
    found = {}
    with psycopg.connect(made.address, autocommit=True) as one:
        for number in (1, 100):
            many = [psycopg.connect(made.address, autocommit=True) for _ in range(number)]
            for each in many:
                each.execute("LISTEN stategraph_work")
            before = server_cpu(made)
            for _ in range(JOBS // 2):
                one.execute("SELECT pg_notify('stategraph_work', '1')")
            found[str(number)] = round((server_cpu(made) - before) / (JOBS // 2) * 1e6, 1)
            for each in many:
                each.close()
    return found


def floor(url: str) -> dict[str, float]:
    """Round trips: one that only asks, one that stores a row."""
    with psycopg.connect(url, autocommit=True) as one:
        one.execute("CREATE TABLE floor (n BIGINT)")
        one.execute("SELECT 1")
        asks = quick(SETTLE, lambda _: one.execute("SELECT 1"))
        stores = quick(SETTLE, lambda _: one.execute("INSERT INTO floor VALUES (1)"))
    return {"select": asks, "insert": stores}


# -- bytes -----------------------------------------------------------------------------------------


def sizes(made: cluster.Cluster) -> dict[str, Any]:
    """Bytes on disk, indexes included, of a waiting job, and of a thread of five supersteps with
    its ended job."""
    url = made.schema()
    tables = ("jobs", "spaces", "checkpoints", "values", "writes")
    with (
        Queue.from_conn_string(url, fleet.counting) as queue,
        psycopg.connect(url, autocommit=True) as one,
    ):

        def measured() -> dict[str, float]:
            size = "SELECT pg_total_relation_size('stategraph_{}')"
            return {
                name: round(one.execute(size.format(name)).fetchone()[0] / JOBS) for name in tables
            }

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
                "claims": claims,
                "calls": calls,
                "sizes": sizes,
                "fleet": lambda made: many_fleets(made, asked.jobs),
            }[part](made)
            print(json.dumps({part: found[part]}, indent=1), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
