"""R25 to R27: the storing protocol, explored. A round is one program on one saver with everything that can happen."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf
from typing import NamedTuple

from properties.explorer.programs import PROGRAMS
from properties.explorer.search import RULES, Bounds, Explorer

from stategraph.testing import CheckFailed

from .campaign import trial

PLAIN, RACES, NAMED = Bounds(races=False), Bounds(), Bounds(races=False, named=True)
DURABILITIES = ("sync", "async", "exit")


class Case(NamedTuple):
    """What is explored, and how far."""

    program: str
    storage: str
    durability: str
    is_async: bool
    bounds: Bounds

    def __str__(self):
        names = " named" * self.bounds.named + " races" * self.bounds.races
        driver = "async driver" if self.is_async else "sync driver"
        return f"{self.program} {self.storage} {self.durability}, {driver}, {self.bounds.faults} faults{names}"


def _cases():
    """The small first: what they find, they find by short traces."""
    small, large = ("busy", "called", "inside"), ("pair", "tasks", "sends", "task_beside", "pair_then")
    deep = [replace(each, faults=2) for each in (PLAIN, RACES, NAMED)]
    found = [
        Case("called", "sqlite", "async", True, PLAIN),
        Case("busy", "model", "sync", True, RACES),
        Case("inside", "model", "sync", True, PLAIN),
        Case("one", "model", "sync", True, NAMED),
        Case("called", "model", "sync", False, PLAIN),
        Case("pair", "model", "sync", True, PLAIN),
        *(Case(*each) for each in product(small, ("model",), DURABILITIES, (True, False), (RACES, NAMED))),
        *(Case(*each) for each in product(small, ("sqlite", "memory"), DURABILITIES, (True, False), (RACES,))),
        *(
            Case(*each)
            for each in product(("one", "called", "inside"), ("postgres",), DURABILITIES, (True, False), (PLAIN,))
        ),
        *(
            Case(*each)
            for each in product(("ready",), ("model", "sqlite"), ("sync", "async"), (True, False), (RACES, NAMED))
        ),
        Case("ready_twice", "postgres", "sync", True, PLAIN),
        Case("ready_twice", "sqlite", "sync", False, RACES),
        Case("ready_calls", "model", "async", True, PLAIN),
        *(Case(*each) for each in product(large, ("model", "sqlite"), DURABILITIES, (True, False), (PLAIN,))),
        *(
            Case(*each)
            for each in product(("turned", "turned_three", "turned_ready"), ("model", "sqlite"), DURABILITIES, (True,), (RACES,))
        ),
        Case("turned_pair", "model", "sync", True, PLAIN),
        *(Case(*each) for each in product(("nested", "chained"), ("model", "sqlite"), DURABILITIES, (True,), (PLAIN,))),
        *(Case(*each) for each in product(small, ("model", "sqlite"), ("sync", "async"), (True,), deep)),
        *(Case(*each) for each in product(("pair", "three_each"), ("model",), ("sync",), (True,), (RACES, deep[0]))),
    ]
    return list(dict.fromkeys(found))


CASES = _cases()


@trial("R26", quick=1, full=len(CASES))
def exhaustive(round):
    """Everything that can happen to a program of two tasks that ask up to three times, `@task`s and nested graphs among
    them: each order of ends; each storing call succeeds, fails, is stored and fails, or the process dies before or after
    it; each run is cancelled anywhere; each next call of a client, two clients at once, calls delivered again. From each
    state reached the next call goes on, and no answer is lost, doubled or swapped."""
    case = CASES[round.number]
    explorer = Explorer(PROGRAMS[case.program], case.storage, case.durability, case.bounds, is_async=case.is_async)
    try:
        found = explorer.search(most=inf if round.bench.bug is None else 1)
    finally:
        explorer.close()
    round.count("states", found.states)
    round.count("runs", found.runs)
    if found.failures:
        told = "\n".join(f"{RULES[each.rule]}: {each}" for each in found.failures.values())
        raise CheckFailed(f"{case}:\n{told}")
    if not found.complete:
        raise CheckFailed(f"{case}: after {found.states} states there is no end of them")
