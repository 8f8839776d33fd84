"""Races with schedule="ready": who wins is decided as its end is found.

Pure, as `race` is for supersteps. The win is the step in which the winner's end is applied: the
losers leave what is under way with it, so no state has a winner and a loser.

Theory of operation: the racers of one task start together. One that has finished wins, if what it
wrote can be applied. One that has failed or asks stays aside as long as others of its race are at
work. If none of them wins, the handlers of those that have failed take over, and race on; where
there are none, the race waits for answers, or it fails, if all of it have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..errors import ParentCommand
from .machine import in_path_order
from .race import RaceKey, RacerKey, has_ended, is_cut_off, race_of, racer_of
from .task import Task


class ReadyRaces:
    """The races of a call.

    Attributes:
        aside: the racers that have failed or ask, while others of their race are at work.
    """

    __slots__ = ("_failed", "_members", "_open", "aside")

    def __init__(self) -> None:
        self.aside: list[Task] = []
        self._members: dict[RaceKey, set[RacerKey]] = {}
        self._failed: set[RacerKey] = set()
        self._open: set[RaceKey] = set()  # a racer was cut off that may still win in a later call

    def enter(self, tasks: Iterable[Task]) -> None:
        """Note the races that tasks are in which start."""
        for task in tasks:
            race = race_of(task)
            if race is not None:
                self._members.setdefault(race, set()).add(racer_of(task))

    def choose(self, ended: Sequence[Task]) -> tuple[list[Task], list[Task]]:
        """Of tasks that ended together, those whose end counts: in each race the first in path
        order that finished. Racers that failed or ask are set aside.

        Returns:
            These, and the racers that finished after the first of their race.
        """
        chosen: list[Task] = []
        behind: list[Task] = []
        won: set[RaceKey] = set()
        for task in in_path_order(ended):
            race = race_of(task)
            if race is None or is_signal(task):
                chosen.append(task)
                if race is not None and is_cut_off(task):
                    self._open.add(race)
            elif not task.finished:
                if has_ended(task):
                    self.aside.append(task)
            elif race in won:
                behind.append(task)
            else:
                won.add(race)
                chosen.append(task)
        return chosen, behind

    def take_over(self, at_work: Iterable[Task]) -> list[Task]:
        """The racers set aside whose race nobody runs any more: nobody has won it."""
        if not self.aside:
            return []
        going_on = {*self._open, *(race_of(task) for task in at_work)}
        over = [task for task in self.aside if race_of(task) not in going_on]
        self.aside = [task for task in self.aside if race_of(task) in going_on]
        return over

    def drop(self, losers: Collection[Task]) -> None:
        """Drop tasks that have lost."""
        lost = stand_behind(self.aside, losers)
        self.aside = [task for task in self.aside if task not in lost]

    def note_failure(self, task: Task) -> bool:
        """A task has failed, and nobody handles that. Returns whether the run fails by it: of
        racers the last one does it, if all have failed. Any thread may call it."""
        race = race_of(task)
        if race is None:
            return True
        self._failed.add(racer_of(task))
        return self._failed >= self._members[race]

    def has_failed(self, task: Task) -> bool:
        """Whether the error of a task is one of the run: a racer's is, if all of its race have
        failed. A signal is, whoever raised it."""
        race = race_of(task)
        return race is None or is_signal(task) or self._failed >= self._members[race]


def find_winners(ended: Iterable[Task]) -> list[Task]:
    """Those that have won their races, of tasks whose ends count. A command for the graph around is
    no failure: it ends this graph."""
    return [
        task
        for task in ended
        if race_of(task) is not None and (task.finished or isinstance(task.error, ParentCommand))
    ]


def is_signal(task: Task) -> bool:
    """Whether a task has ended with a signal, which is no failure."""
    return task.error is not None and not isinstance(task.error, Exception)


def stand_behind(tasks: Iterable[Task], racers: Collection[Task]) -> list[Task]:
    """Those of the tasks that run for these racers: themselves, or the handlers of their errors."""
    return [task for task in tasks if (task.cause or task) in racers]
