"""A fleet's case with DBOS: `python with_dbos.py CASE` prints one number.

A job is a workflow of 1 or 3 steps, each of which is kept; four at once, sync functions on threads.
Its queue is looked at every 10 ms; by default it is once a second, for four jobs.
"""

from __future__ import annotations

import sys

import fleets

JOBS = 100
"""Each takes many times the time of the others'."""


def work(url: str, nodes: int, meter: fleets.Meter) -> None:
    from dbos import DBOS, DBOSClient, EnqueueOptions
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(url)
    address = "postgresql+psycopg://{user}@{host}:{port}/{dbname}".format(**parts)
    quiet = {"log_level": "ERROR", "console_log_level": "ERROR"}
    DBOS(config={"name": "jobs", "system_database_url": address, **quiet})  # type: ignore[typeddict-item]

    @DBOS.step()
    def tick(n: int) -> int:
        return n + 1

    @DBOS.step()
    def last(n: int) -> int:
        meter.count()
        return n + 1

    @DBOS.workflow()
    def job(n: int) -> int:
        for number in range(nodes):
            n = last(n) if number == nodes - 1 else tick(n)
        return n

    DBOS.launch()
    client = DBOSClient(system_database_url=address)
    options: EnqueueOptions = {"queue_name": "fleet", "workflow_name": job.__qualname__}
    for _ in range(meter.submitted):
        client.enqueue(options, 0)
    DBOS.register_queue("fleet", worker_concurrency=fleets.AT_ONCE, polling_interval_sec=0.01)


CASES = {
    "P28-1": lambda: fleets.measure("P28-1", work, JOBS),
    "P28-3": lambda: fleets.measure("P28-3", work, JOBS),
    "P36-1": lambda: fleets.measure("P36-1", work, JOBS),
    "P36-3": lambda: fleets.measure("P36-3", work, JOBS),
}

if __name__ == "__main__":
    fleets.end(CASES[sys.argv[1]]())
