"""R53: schedules of a fleet that was away, and is killed when it comes back: each planned time is fired once, or as
`missed` says."""

import time
from datetime import UTC, datetime, timedelta

import psycopg
from kit import cluster, fleet

from stategraph.testing import CheckFailed, assert_same
from stategraph.workers import Queue

from .campaign import trial
from .fleets import WORKERS, given

DAY = timedelta(days=1)
SCHEDULES = 9
PATIENCE = 120
"""Seconds after which a fleet that is not done is stuck."""


def planned(name, missed, first, days):
    """The run ids of a daily schedule whose fleet was away for so many of its planned times."""
    times = [first + number * DAY for number in range(days)]
    kept = {"all": times, "one": times[-1:], "none": []}[missed]
    return [f"{name}@{each:%Y-%m-%dT%H:%M:%SZ}" for each in kept]


@trial("R53", quick=2, full=200)
def killed_schedulers(round):
    """Nine daily schedules have come due 1 to 40 times, and nobody was there. Three workers start at once, and one is killed
    every 0 to 0.2 s and another started: of each schedule exactly the planned times that `missed` says are fired, once, and
    each of their jobs ends with each of its steps once."""
    url = cluster.shared().schema()
    hour = (datetime.now(UTC) + DAY / 2).replace(minute=0, second=0, microsecond=0)  # nothing comes due meanwhile
    expected = []
    with (
        Queue.from_conn_string(url, fleet.counting) as queue,
        fleet.Fleet(url, round.folder, round.bench.bug, concurrency=4) as workers,
        psycopg.connect(url, autocommit=True) as admin,
    ):
        queue.setup()
        for number in range(SCHEDULES):
            name, missed = f"s{number}", ("one", "all", "none")[number % 3]
            days = round.random.randint(1, 8 if round.bench.bug else 40)
            first = hour - DAY * days
            queue.schedule(name, f"0 {hour.hour} * * *", given(), missed=missed)
            admin.execute("UPDATE stategraph_schedules SET next_at = %s WHERE name = %s", [first, name.encode()])
            expected += planned(name, missed, first, days)
            round.count("planned times", days)
        for _ in range(WORKERS):
            workers.start()
        deadline = time.monotonic() + PATIENCE
        while not fleet.all_ended(queue) or any(each.next_at < datetime.now(UTC) for each in queue.schedules()):
            if time.monotonic() > deadline:
                raise CheckFailed(f"after {PATIENCE} s there is work left: {queue.counts()}")
            time.sleep(round.random.uniform(0, 0.2))
            for job in queue.jobs(("parked",)):  # three kills may meet one job at one step
                queue.retry(job.run_id, thread_id=job.thread_id)
            if workers.started < 40:  # so that the last ones come to their ends
                workers.kill(round.random.choice(workers.processes))
                workers.start()
                round.count("kills")
        found = sorted(job.run_id for job in queue.jobs(("done",), limit=10_000))
        assert_same(found, sorted(expected), "the jobs of the schedules")
        assert_same(queue.counts(), {"counting": {"done": len(expected)}} if expected else {}, "how they ended")
        fleet.judged(queue, workers, [job.thread_id for job in queue.jobs(("done",), limit=10_000)])
        round.count("fired", len(expected))
