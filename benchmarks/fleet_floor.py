"""The floor of a fleet's cases: a bare `SKIP LOCKED` loop on four threads with as many commits as
ours has. A claim that waits for no disk, one commit with the input, one for each node, one with the
end of the job; rows as long as ours. No order, no lease, no checks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import fleets
import psycopg

TABLES = """
    CREATE TABLE jobs (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        state TEXT NOT NULL DEFAULT 'waiting', task BYTEA, outcome BYTEA
    );
    CREATE INDEX waiting ON jobs (id) WHERE state = 'waiting';
    CREATE TABLE steps (job BIGINT, number INT, body BYTEA, PRIMARY KEY (job, number));
"""
TAKE = """
    UPDATE jobs SET state = 'running' WHERE id = (
        SELECT id FROM jobs WHERE state = 'waiting' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
    ) RETURNING id, task, set_config('synchronous_commit', 'off', true)
"""
KEEP = "INSERT INTO steps (job, number, body) VALUES (%s, %s, %s)"
DONE = "UPDATE jobs SET state = 'done', outcome = %s WHERE id = %s"
BODY = bytes(300)


def work(url: str, nodes: int, meter: fleets.Meter, at_once: int = fleets.AT_ONCE) -> None:
    with psycopg.connect(url, autocommit=True) as one:
        one.execute(TABLES)
        fill = "INSERT INTO jobs (task) SELECT %s FROM generate_series(1, %s)"
        one.execute(fill, (BODY, meter.submitted))

    def loop() -> None:
        with psycopg.connect(url, autocommit=True) as one:
            one.prepare_threshold = 1
            while found := one.execute(TAKE, binary=True).fetchone():
                for number in range(nodes + 1):
                    one.execute(KEEP, (found[0], number, BODY))
                meter.count()
                one.execute(DONE, (BODY, found[0]))

    threads = [threading.Thread(target=loop) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


CASES: dict[str, Callable[[], float]] = {
    case: partial(fleets.measure, case, work) for case in ("P28-1", "P28-3", "P36-1", "P36-3")
}
