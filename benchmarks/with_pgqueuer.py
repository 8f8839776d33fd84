"""A fleet's case with PgQueuer: `python with_pgqueuer.py CASE` prints one number.

A job is one call of an entrypoint, an async function that counts 1 or 3 times; no step is kept, and
nothing of what it returns. Jobs are fetched four at a time, which is as near as it comes to four at
once, and deleted when they are done; what is written of that is collected into batches. psycopg's
async connection.
"""

from __future__ import annotations

import asyncio
import sys

import fleets


def work(url: str, nodes: int, meter: fleets.Meter) -> None:
    asyncio.run(serve(url, nodes, meter))


async def serve(url: str, nodes: int, meter: fleets.Meter) -> None:
    from pgqueuer import Job, PgQueuer, PsycopgDriver
    from psycopg import AsyncConnection

    connection = await AsyncConnection.connect(url, autocommit=True)
    driver = PsycopgDriver(connection)
    pgq = PgQueuer(driver)
    await pgq.qm.queries.install()

    @pgq.entrypoint("job")
    async def job(_: Job) -> None:
        n = 0
        while n < nodes:
            n += 1
        meter.count()

    count = meter.submitted
    await pgq.qm.queries.enqueue(["job"] * count, [b'{"n": 0}'] * count, [0] * count)
    await pgq.run(batch_size=fleets.AT_ONCE)


CASES = {
    "P28-1": lambda: fleets.measure("P28-1", work),
    "P28-3": lambda: fleets.measure("P28-3", work),
    "P36-1": lambda: fleets.measure("P36-1", work),
    "P36-3": lambda: fleets.measure("P36-3", work),
}

if __name__ == "__main__":
    fleets.end(CASES[sys.argv[1]]())
