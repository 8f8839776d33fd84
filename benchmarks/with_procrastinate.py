"""A fleet's case with procrastinate: `python with_procrastinate.py CASE` prints one number.

A job is one task, an async function that counts 1 or 3 times; no step is kept. Four jobs at once,
psycopg's async connector.
"""

from __future__ import annotations

import asyncio
import sys

import fleets


def work(url: str, nodes: int, meter: fleets.Meter) -> None:
    asyncio.run(serve(url, nodes, meter))


async def serve(url: str, nodes: int, meter: fleets.Meter) -> None:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="job")
    async def job(n: int) -> int:
        for _ in range(nodes):
            n += 1
        meter.count()
        return n

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await job.batch_defer_async(*({"n": 0} for _ in range(meter.submitted)))
        await app.run_worker_async(concurrency=fleets.AT_ONCE, install_signal_handlers=False)


CASES = {
    "P28-1": lambda: fleets.measure("P28-1", work),
    "P28-3": lambda: fleets.measure("P28-3", work),
    "P36-1": lambda: fleets.measure("P36-1", work),
    "P36-3": lambda: fleets.measure("P36-3", work),
}

if __name__ == "__main__":
    fleets.end(CASES[sys.argv[1]]())
