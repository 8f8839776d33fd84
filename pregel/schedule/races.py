"""Races: of the `Send`s with one `race` from one task, the first that finishes wins.

Pure: who has won, who has lost, whose end counts. What is done with losers is in `drivers.racing`.

Theory of operation: one that has finished wins. In supersteps the record of the winner's writes is
the win and nothing else is; with schedule="ready" it is the step in which they are applied, if they
can be: the losers leave what is open with it, so no state has a winner and a loser. So a resume, a
snapshot and a run that goes on come to the same from the same records.

One that has failed or asks stays aside as long as others of its race are at work. If none of them
wins, the handlers of those that have failed take over, and race on; where there are none, the race
waits for answers, or it fails, if all of it have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..task.task import Task, handler_of, in_path_order
from ..types import Send
from .states import TaskState, end_of

RaceKey = tuple[str, str]
RacerKey = tuple[RaceKey | None, int]


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


def find_lost(tasks: Sequence[Task], records: Mapping[str, Any]) -> list[Task]:
    """Return the racers among these tasks that have lost, as the records of all tell."""
    winners: dict[RaceKey, int] = {}
    for task in tasks:
        race = race_of(task)
        if race is not None and race not in winners and _has_won(task, records):
            winners[race] = index_of(task)
    return [task for task in tasks if winners.get(race_of(task), index_of(task)) != index_of(task)]  # type: ignore[arg-type]


def _has_won(task: Task, records: Mapping[str, Any]) -> bool:
    """Whether a racer, or the handler of its error, is recorded as finished."""
    found = records.get(task.id)
    if found is not None and found.finished:
        return True
    return task.node.handler is not None and _has_won(handler_of(task), records)


class Races:
    """The races of a call, or of one superstep of it."""

    __slots__ = ("_aside", "_failed", "_members", "_open")

    def __init__(self) -> None:
        self._aside: list[Task] = []  # so that not all tasks are looked at for each that ends
        self._members: dict[RaceKey, set[RacerKey]] = {}
        self._failed: set[RacerKey] = set()
        self._open: set[RaceKey] = set()  # a racer was cut off that may still win in a later call

    def enter(self, tasks: Iterable[Task]) -> None:
        """Note the races that tasks are in which start."""
        for task in tasks:
            race = race_of(task)
            if race is not None:
                self._members.setdefault(race, set()).add(racer_of(task))

    def choose(self, ended: Sequence[Task]) -> tuple[list[Task], list[Task], list[Task]]:
        """Of tasks that ended together, find those whose end counts: in each race the first in path
        order that finished.

        Returns:
            These, the racers that finished after the first of their race, and those that failed or
            ask.
        """
        chosen: list[Task] = []
        behind: list[Task] = []
        aside: list[Task] = []
        won: set[RaceKey] = set()
        for task in in_path_order(ended):
            race = race_of(task)
            if race is None:
                chosen.append(task)
            elif end_of(task) == "is cut off":
                chosen.append(task)
                self._open.add(race)
            elif not wins(task):
                aside.append(task)
            elif race in won:
                behind.append(task)
            else:
                won.add(race)
                chosen.append(task)
        self._aside += aside
        return chosen, behind, aside

    def take_over(self, states: Mapping[Task, TaskState]) -> list[Task]:
        """Return the racers set aside whose race nobody runs any more: nobody has won it."""
        self._aside = [task for task in self._aside if states.get(task) == "aside"]
        if not self._aside:
            return []
        at_work = (race_of(task) for task, state in states.items() if state == "at work")
        going_on = {*self._open, *at_work}
        return [task for task in self._aside if race_of(task) not in going_on]

    def note_failure(self, task: Task) -> bool:
        """A task has failed, and nobody handles that. Returns whether the run fails by it: of
        racers the last one does it, if all have failed. Any thread may call it."""
        race = race_of(task)
        if race is None:
            return True
        if is_signal(task):  # one that was cancelled, for example, may win in a later call
            return False
        self._failed.add(racer_of(task))
        return self._failed >= self._members[race]

    def has_failed(self, task: Task) -> bool:
        """Whether the error of a task is one of the run: a racer's is, if all of its race have
        failed. A signal is, whoever raised it."""
        race = race_of(task)
        return race is None or is_signal(task) or self._failed >= self._members[race]


def find_winners(ended: Iterable[Task]) -> list[Task]:
    """Those that have won their races, of tasks whose ends count."""
    return [task for task in ended if race_of(task) is not None and wins(task)]


def wins(task: Task) -> bool:
    """Return whether a racer wins by its end. A command for the graph around is no failure: it ends
    this graph."""
    return end_of(task) in ("finishes", "leaves")


def is_signal(task: Task) -> bool:
    """Whether a task has ended with a signal, which is no failure."""
    return end_of(task) in ("is cut off", "leaves")
