"""The floor of P19: bare Postgres transactions of the same rows, one for each superstep, on as many
connections as ours has. One prepared statement each; no order of steps, no checks."""

from __future__ import annotations

import threading
from itertools import count

import psycopg
import server
import sizes
from timing import best

TABLES = """
    CREATE SEQUENCE numbers;
    CREATE TABLE spaces (id BIGINT PRIMARY KEY, head BIGINT NOT NULL, head_id BYTEA);
    CREATE TABLE checkpoints (space BIGINT, seq BIGINT PRIMARY KEY, checkpoint_id BYTEA,
        parent_id BYTEA, link BIGINT, body BYTEA);
    CREATE UNIQUE INDEX a ON checkpoints (space, checkpoint_id);
"""
STEP = """
    WITH moved AS (
        UPDATE spaces SET head = nextval('numbers'), head_id = %s WHERE id = %s RETURNING id, head
    )
    INSERT INTO checkpoints SELECT id, head, %s, %s, 1, %s FROM moved
"""
BODY = bytes(292)
CONNECTIONS = 10


def p19() -> float:
    """Seconds per transaction while so many threads take turns."""
    with server.made(durable=True) as made:
        assert made is not None, "the programs of the Postgres server are not installed"
        options = {"autocommit": True, "prepare_threshold": 1}
        connections = [psycopg.connect(made.address, **options) for _ in range(CONNECTIONS)]
        connections[0].execute(TABLES)
        fill = "INSERT INTO spaces (id, head) SELECT n, 0 FROM generate_series(1, %s) AS n"
        connections[0].execute(fill, (sizes.LIVE_SERVER,))
        names = count()

        def work(number: int) -> None:
            for _ in range(sizes.LIVE_TURNS):
                for space in range(number + 1, sizes.LIVE_SERVER + 1, CONNECTIONS):
                    name = b"%036d" % next(names)
                    connections[number].execute(STEP, (name, space, name, name, BODY))

        def round() -> None:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(CONNECTIONS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        spent = best(round, sizes.LIVE_SERVER * sizes.LIVE_TURNS)
        for connection in connections:
            connection.close()
        return spent
