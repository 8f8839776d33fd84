"""What a trial is, and how its rounds are run, counted and taken up again after a stop. No trial lives here.

A round is a function of its number: the same seed and number do the same again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stategraph.testing import CheckFailed, Processes

from .stages import postgres, sqlite

QUICK = "quick"
FULL = "full"
MOST_FAILURES = 5
"""After so many a trial is given up: the rest would say the same."""


class Skipped(Exception):
    """A trial cannot be run here; says why."""


@dataclass(frozen=True)
class Trial:
    """One promise, tried in independent rounds.

    Attributes:
        promise: its number in docs/explanation/reliability.md.
        about: what a round does, and what must hold.
        quick, full: rounds of either size.
    """

    promise: str
    name: str
    about: str
    quick: int
    full: int
    run: Callable[[Round], None]

    def rounds(self, size):
        """How many rounds a size means; a number means itself."""
        return int({QUICK: self.quick, FULL: self.full}.get(size, size))


TRIALS = {}
"""All by name, in the order of their promises."""


def trial(promise, *, quick, full, on_postgres=None):
    """Make a function a trial: its name is the trial's, its docstring says what a round does.

    Args:
        on_postgres: rounds of either size of another trial that does the same on Postgres. The function gets the round and
            its storage.
    """

    def add(function):
        name, about = function.__name__, " ".join(function.__doc__.split())
        if on_postgres is None:
            keep(Trial(promise, name, about, quick, full, function))
            return function
        keep(Trial(promise, name, about, quick, full, lambda round: function(round, sqlite(round))))
        name = name.replace("sqlite", "postgres") if "sqlite" in name else f"{name}_on_postgres"
        keep(Trial(promise, name, "The same on Postgres.", *on_postgres, lambda round: function(round, postgres(round))))
        return function

    return add


def keep(trial):
    """Add a trial to all others."""
    assert trial.name not in TRIALS and trial.about, trial.name
    TRIALS[trial.name] = trial


class Bench:
    """What rounds share because it is dear: processes, and what was found out once. A context manager.

    Attributes:
        bug: the planted bug that is to be found, by name; None for the product as it is.

    Args:
        processes: those that other benches use as well; own ones are started when the first is needed.
    """

    def __init__(self, bug=None, processes: Processes | None = None):
        self.bug = bug
        self._shared = processes
        self._stack = ExitStack()
        self._known = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    @cached_property
    def _processes(self):
        return self._shared or self._stack.enter_context(Processes())

    def once(self, key, make):
        """What `make` gave when this was asked for the first time."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def keep(self, key, opened: Callable[[], AbstractContextManager[Any]]):
        """Something that is open until the bench is closed."""
        return self.once(key, lambda: self._stack.enter_context(opened()))

    def run(self, *jobs):
        """Do jobs side by side, each in a process of its own, with the planted bug in it."""
        return self._processes.run(*((in_child, self.bug, *job) for job in jobs))

    def one(self, *job):
        """Do one job that must not fail; its result."""
        (ended,) = self.run(job)
        if ended.killed or ended.error:
            raise CheckFailed(f"{job[0].__name__} in a process of its own: {ended.error or 'it was killed'}")
        return ended.result


def in_child(bug, function, *args):
    """What a process of its own does."""
    from .planted import planted

    with planted(bug):
        return function(*args)


class Round:
    """One round of a trial.

    Attributes:
        random: the only source of chance.
        tally: what was done, in words; added up over all rounds.
    """

    def __init__(self, bench: Bench, name, seed, number):
        self.bench = bench
        self.number = number
        self.random = Random(f"{seed}/{name}/{number}")
        self.tally = Counter()

    @cached_property
    def folder(self):
        """An empty folder, gone after the round."""
        return Path(tempfile.mkdtemp(prefix="chaos-"))

    def count(self, what, number=1):
        """Note that so many things were done."""
        self.tally[what] += number

    def close(self):
        """Forget the folder."""
        if "folder" in self.__dict__:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Record:
    """How far a trial has come; kept in a file, so that a campaign can be taken up again."""

    rounds: int = 0
    seconds: float = 0.0
    tally: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    @classmethod
    def read(cls, path):
        """What was kept, or a fresh one."""
        return cls(**json.loads(path.read_text())) if path is not None and path.exists() else cls()

    def write(self, path):
        """Keep it. A stop in the middle leaves the one before."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(asdict(self)))
            beside.replace(path)


def run_trial(
    trial,
    rounds,
    *,
    seed=0,
    bug=None,
    path=None,
    most=MOST_FAILURES,
    processes: Processes | None = None,
):
    """Do rounds of a trial that were not done yet, with a planted bug or none.

    Args:
        processes: those that other trials use as well.
        path: where to keep how far it has come.
        most: after so many failures the rest is left.
    """
    from .planted import planted

    record = Record.read(path)
    with Bench(bug, processes) as bench, planted(bug):
        for number in rounds:
            if number < record.rounds or len(record.failures) >= most:
                continue
            began = time.perf_counter()
            try:
                failure = run_round(trial, Round(bench, trial.name, seed, number), record)
            except Skipped as error:
                record.skipped = str(error)
                break
            if failure:
                again = f'make chaos ARGS="--only {trial.name} --seed {seed} --round {number}"'
                record.failures.append(f"round {number}: {failure}\n    again: {again}")
            record.rounds = number + 1
            record.seconds += time.perf_counter() - began
            record.write(path)
    return record


def run_round(trial, round, record: Record):
    """Do one round; what went wrong, in words.

    Raises:
        Skipped: it cannot be done here.
    """
    try:
        trial.run(round)
    except (Skipped, pytest.skip.Exception) as error:
        raise Skipped(str(error)) from error
    except CheckFailed as error:
        return f"{error}"
    except Exception as error:
        places = [f"{Path(at.filename).name}:{at.lineno}" for at in traceback.extract_tb(error.__traceback__)]
        return f"{type(error).__name__}: {error} ({' < '.join(reversed(places[-4:]))})"
    finally:
        round.close()
    record.tally = dict(Counter(record.tally) + round.tally)
    return ""


def chosen(only):
    """The trials of these names or promises; all by default.

    Raises:
        ValueError: there is none of this name.
    """
    only = [*only]
    for name in only:
        if not any(name in (each.name, each.promise) for each in TRIALS.values()):
            raise ValueError(f"there is no trial {name!r}: {', '.join(TRIALS)}")
    order = sorted(TRIALS.values(), key=lambda each: int(each.promise.removeprefix("R")))
    return (each for each in order if not only or each.name in only or each.promise in only)


@contextmanager
def patched(owner, name, value):
    """Inside, an attribute is another one."""
    there = name in vars(owner) if hasattr(owner, "__dict__") else True
    old = vars(owner)[name] if there and hasattr(owner, "__dict__") else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if there:
            setattr(owner, name, old)
        else:
            delattr(owner, name)
