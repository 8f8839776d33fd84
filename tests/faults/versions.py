"""R61: two versions of a graph on one queue, whose workers are killed: no thread is lost, stuck, or run by both."""

import time

from kit import cluster, fleet
from kit.shapes import POSTED, each_shape, shaped

from stategraph import Command, InMemorySaver
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.testing import CheckFailed, assert_same
from stategraph.workers import Queue

from .campaign import trial
from .fleets import PATIENCE
from .stages import config

THREADS = 500


def finish(app, given):
    """The log of a thread whose run nothing disturbs."""
    app.invoke(given, config())
    while (state := app.get_state(config())).next:
        app.invoke(Command(resume={each.id: "yes" for each in state.interrupts}) if state.interrupts else None, config())
    return sorted(state.values["log"])


class Upgrade:
    """Threads in all shapes, which two versions share; their questions are answered a few at a time."""

    def __init__(self, round, queue, app, whole, newest):
        self.round, self.queue, self.app, self.whole, self.newest = round, queue, app, whole, newest
        shapes = each_shape()
        self.given = {f"t{number}": shapes[number % len(shapes)] for number in range(THREADS if round.number else len(shapes))}
        self.open = dict(zip(self.given, queue.submit_many(self.given.items()), strict=True))
        self.posted = {name for name, given in self.given.items() if given["kind"] == "post"}

    def go_on(self):
        """Take note of what has ended, and answer what is asked."""
        random = self.round.random
        for name, run_id in [*self.open.items()]:
            found = self.queue.result(name, run_id=run_id, wait=0)
            if found.status == "paused":
                if name in self.posted:
                    self.posted.remove(name)
                    self.app.post(config(name), {"log": [POSTED]})
                some = random.sample(found.interrupts, random.randint(1, len(found.interrupts)))
                self.open[name] = self.queue.submit(name, Command(resume={each.id: "yes" for each in some}))
                self.round.count("answers", len(some))
            elif not found.open:
                self.check(name, sorted(found.unwrap()["log"]))
                del self.open[name]

    def check(self, name, log):
        """One version has made all of a thread's log."""
        given = self.given[name]
        assert_same(log.count(POSTED), int(given["kind"] == "post"), f"{name}, {given}: how often its post was taken")
        own = [each for each in log if each != POSTED]
        version = next(each for each in own if each in self.whole)
        assert_same(own, self.whole[version][each_shape().index(given)], f"{name}, {given}: its log")
        self.round.count("threads of the newest version", version == self.newest)


@trial("R61", quick=1, full=20)
def versions_under_kills(round):
    """500 threads (40 at first) in 40 shapes (pauses at 8 places, half open joins, Sends, graphs inside, memories, sleeps,
    races, posts) of either schedule are run by four workers of two versions; again and again one of each is killed and
    another started. Each thread ends as one that nothing disturbs, and all of it was run by one version."""
    schedule = ("supersteps", "ready")[round.number % 2]
    url, apps = cluster.shared().schema(), {version: shaped(version, schedule) for version in "12"}
    whole = {v: [finish(app.copy({"checkpointer": InMemorySaver()}), given) for given in each_shape()] for v, app in apps.items()}
    fleets = []
    with Queue.from_conn_string(url, apps["1"]) as queue, PostgresSaver.from_conn_string(url) as saver:
        queue.setup()
        try:
            for version in apps:
                own = round.folder / version
                own.mkdir()
                fleets.append(fleet.Fleet(url, own, round.bench.bug, graph=(version, schedule), concurrency=3, tries=99))
                fleets[-1].start()
                fleets[-1].start()
            fleet.until(lambda: len(queue.versions()) == 2)
            upgrade = Upgrade(round, queue, apps["1"].copy({"checkpointer": saver}), whole, newest=queue.ramp(50))
            deadline = time.monotonic() + PATIENCE
            while upgrade.open:
                for workers in fleets:
                    workers.kill(round.random.choice(workers.processes))
                    workers.start()
                    round.count("kills")
                    time.sleep(round.random.uniform(0.1, 0.5))
                upgrade.go_on()
                if time.monotonic() > deadline:
                    raise CheckFailed(f"after {PATIENCE} s {len(upgrade.open)} threads are stuck: {queue.counts()}")
        finally:
            for each in fleets:
                each.__exit__()
        assert_same(queue.counts().get(apps["1"].name, {}).keys() - {"done", "paused"}, set(), "how jobs ended")
    round.count("threads", len(upgrade.given))
