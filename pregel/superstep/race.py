"""Races: of the `Send`s with one `race` from one task, the first that finishes wins.

Pure: who has won, who has lost, whose end counts. What is done with losers is in `drivers.racing`;
what differs with schedule="ready", in `ready_races`.

Theory of operation: the win is the record of the winner's writes and nothing else. A racer has lost
if another one of its race has finished, so a resume, a snapshot and a run that goes on come to the
same from the same records. A racer that fails or asks has not ended the race: its end counts only
once nobody can win any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import ParentCommand
from ..types import Send
from .machine import handler_of
from .task import Task

RaceKey = tuple[str, str]
RacerKey = tuple[RaceKey | None, int]


class Finished(Protocol):
    """What is recorded of a task."""

    @property
    def finished(self) -> bool: ...


def race_of(task: Task) -> RaceKey | None:
    """The race that a task is in, or that of the task whose error it handles."""
    send = (task.cause or task).send
    return None if send is None else race_of_send(send)


def race_of_send(send: Send) -> RaceKey | None:
    """The race that a `Send` is in; None if it is in none."""
    return None if send.race is None else (send.sender, send.race)


def index_of(task: Task) -> int:
    """The place of a racer, which the handler of its error takes over."""
    order: Any = (task.cause or task).order
    return order if order.__class__ is int else order[1]


def racer_of(task: Task) -> RacerKey:
    """What tells a racer from all others of a call. The handler of its error is the same racer."""
    return race_of(task), index_of(task)


def find_losers(winners: Iterable[Task], under_way: Iterable[Task]) -> list[Task]:
    """Those that are under way and lose by these winners."""
    won = {race_of(task) for task in winners} - {None}
    if not won:
        return []
    mine = {racer_of(task) for task in winners}
    return [t for t in under_way if race_of(t) in won and racer_of(t) not in mine]


def has_ended(task: Task) -> bool:
    """Whether the task has ended. A racer that was told to begin after another had won has not."""
    return task.finished or task.error is not None or task.paused


def is_cut_off(task: Task) -> bool:
    """Whether a task has ended with a signal, so that it runs again in a later call. A command for
    the graph around is none: it ends this graph."""
    error = task.error
    return error is not None and not isinstance(error, (Exception, ParentCommand))


def find_lost(tasks: Iterable[Task], records: Mapping[str, Any]) -> list[Task]:
    """The racers among these tasks that have lost, as the records of all tell."""
    races = Races(tasks, records)
    return [task for task in races.tasks if races.has_lost(task)]


def _has_won(task: Task, records: Mapping[str, Finished]) -> bool:
    """Whether a racer, or the handler of its error, is recorded as finished."""
    found = records.get(task.id)
    if found is not None and found.finished:
        return True
    return task.node.handler is not None and _has_won(handler_of(task), records)


class Races:
    """The races of one superstep.

    Args:
        tasks: those that it began with.
        records: what is recorded of them.

    Attributes:
        tasks: the racers.
    """

    def __init__(self, tasks: Iterable[Task], records: Mapping[str, Any]) -> None:
        self.tasks: Sequence[Task] = [task for task in tasks if race_of(task) is not None]
        self._members: dict[RaceKey, set[int]] = {}
        self._winners: dict[RaceKey, int] = {}
        self._failed: set[int] = set()
        self._stopped: set[int] = set()
        for task in self.tasks:
            key = race_of(task)
            assert key is not None
            self._members.setdefault(key, set()).add(index_of(task))
            if records and key not in self._winners and _has_won(task, records):
                self._winners[key] = index_of(task)

    def has_lost(self, task: Task) -> bool:
        """Whether another one has won its race."""
        key = race_of(task)
        return key in self._winners and self._winners[key] != index_of(task)

    def decide(self, ended: Sequence[Task]) -> list[Task]:
        """Note what has ended together. The first in path order that has finished wins its race.

        Returns:
            Those whose end counts now: not the losers, nor who failed or asked in a race that goes
            on.
        """
        for task in sorted(filter(race_of, ended), key=index_of):
            # A command for the graph around is no failure: it ends this graph.
            if task.finished or isinstance(task.error, ParentCommand):
                self._winners.setdefault(race_of(task), index_of(task))  # type: ignore[arg-type]
        return [
            task
            for task in ended
            if race_of(task) is None or self._winners.get(race_of(task)) == index_of(task)  # type: ignore[arg-type]
        ]

    def find_unwon(self, tasks: Iterable[Task]) -> list[Task]:
        """The racers among these tasks whose race nobody has won."""
        return [t for t in tasks if race_of(t) is not None and race_of(t) not in self._winners]

    def leave_out_open(self, failed: Sequence[Task], tasks: Iterable[Task]) -> list[Task]:
        """The tasks that have failed, without those whose race another racer may still win: one
        that was cut off, or has not begun, and so runs in a later call.

        Args:
            tasks: those of the superstep.
        """
        left = (task for task in tasks if is_cut_off(task) or not has_ended(task))
        races = {race_of(task) for task in left} - {None}
        return [task for task in failed if race_of(task) not in races]

    def take_losers(self, at_work: Collection[Task]) -> list[Task]:
        """Those among these tasks that have lost, and are to be stopped; each once."""
        losers = [
            task for task in at_work if self.has_lost(task) and index_of(task) not in self._stopped
        ]
        self._stopped.update(map(index_of, losers))
        return losers

    def leave_out_losers(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks of the superstep that count, now that no racer is at work."""
        self.decide(tasks)
        return [task for task in tasks if not self.has_lost(task)]

    def note_failure(self, task: Task) -> bool:
        """A task has failed, and nobody handles that. Returns whether its superstep fails by it: of
        racers the last one does it, if none of them has paused. Any thread may call it."""
        key = race_of(task)
        if key is None:
            return True
        self._failed.add(index_of(task))
        return self._failed >= self._members[key]

    def has_failed(self, task: Task, tasks: Iterable[Task]) -> bool:
        """Whether the error of a task is one of the superstep: a racer's is, if all of its race
        have failed. A signal is, whoever raised it.

        Args:
            tasks: those of the superstep, ended.
        """
        if not isinstance(task.error, Exception):
            return task.error is not None
        key = race_of(task)
        return key is None or all(
            isinstance(other.error, Exception) for other in tasks if race_of(other) == key
        )
