"""Kills processes at a place of a plan: inside a saver's call, around it, behind an effect, or after some time."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple

from stategraph.testing import KillAt, assert_same, kill
from stategraph.testing.harness import Mode

from .stages import carry_through, config

WRITING = ("commit", "record")
"""The methods of a saver that store."""


class Kill(NamedTuple):
    """When to kill: at the n-th call inside the saver, before or after the n-th write, after the n-th effect, or after
    some milliseconds; `at` 0 never."""

    how: str
    at: int


class Killer:
    """Counts how often each place is passed, and kills where the plan says."""

    def __init__(self, plan: Kill):
        self._plan = plan
        self._passed = Counter()
        self._lock = threading.Lock()
        self._inside = KillAt(plan.at if plan.how == "saver" else None)

    def start(self):
        """Begin to count the milliseconds, if the plan does."""
        if self._plan.how == "moment":
            timer = threading.Timer(self._plan.at / 1000, kill)
            timer.daemon = True
            timer.start()

    def passing(self, how):
        """This place is passed."""
        with self._lock:
            self._passed[how] += 1
            if self._plan == (how, self._passed[how]):
                kill()

    def watch(self, saver, methods=WRITING):
        """Pass "before" and "after" around each of a saver's methods, and "saver" at each call inside."""
        self._inside.around(saver, *methods)
        for name in methods:
            setattr(saver, name, self._around(getattr(saver, name)))

    def _around(self, method):
        def call(*args):
            self.passing("before")
            result = method(*args)
            self.passing("after")
            return result

        return call

    @property
    def passed(self):
        """How often each place was passed."""
        return {**self._passed, "saver": self._inside.calls}


NEVER = Kill("", 0)


def carry(storage, play, given, plan: Kill, make, *methods):
    """Carry the graph that is made through, in a process that may be killed; how often each place was passed."""
    killer = Killer(plan)
    with storage.open() as saver, Mode(play.world) as world:
        killer.watch(saver, methods or WRITING)
        killer.start()
        carry_through(make(saver, killer), given, config(), world, play.durability)
    return killer.passed


class Kills:
    """Runs a job again and again, in processes that are killed.

    Args:
        job: a function and its arguments, but for the plan, which comes last.
        dry: the same at places of its own: it is run once, to see how often each place is passed.
        key: for which plays that is the same; the play by default.

    Attributes:
        number: how many processes were killed.
    """

    def __init__(self, round, play, job, dry, key=None):
        self.round, self.play, self.job = round, play, job
        self.most = round.bench.once(key or play, lambda: round.bench.one(*dry, NEVER))
        self.number = 0

    def kill(self, how, most, *beside):
        """Run the job until it is killed, beside others; which play and plan this was.

        Args:
            most: of places that are not counted, such as milliseconds.
        """
        plan = Kill(how, self.round.random.randrange(1, self.most.get(how, most) + 1))
        ended = self.round.bench.run((*self.job, plan), *beside)
        where = f"{self.play}, {plan}"
        assert_same([each.error for each in ended], [""] * len(ended), f"{where}: errors before the kill")
        self.number += ended[0].killed
        return where

    def end(self):
        """Let the job end; which play this was."""
        (ended,) = self.round.bench.run((*self.job, NEVER))
        where = f"{self.play}, {self.number} kills"
        assert_same((ended.error, ended.killed), ("", False), f"{where}: how it ends")
        return where
