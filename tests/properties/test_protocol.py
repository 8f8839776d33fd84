"""The storing protocol (commit, record, claim, answer, crash, resume), explored: every interleaving of small programs
with one thing that goes wrong, on the real engine. Much more of it, larger programs too: `make chaos ARGS="--only exhaustive"`."""

from contextlib import closing
from dataclasses import replace

import pytest

from properties.explorer.programs import PROGRAMS
from properties.explorer.search import RULES, Bounds, Explorer

PLAIN, RACES, NAMED = Bounds(races=False), Bounds(), Bounds(named=True, races=False)

CASES = {
    "pair": ("pair", "model", "sync", PLAIN, True),
    "pair-threads": ("busy", "model", "sync", PLAIN, False),
    "alone-memory": ("alone", "memory", "sync", PLAIN, True),
    "sqlite-late": ("busy", "sqlite", "async", PLAIN, True),
    "sqlite-threads": ("busy", "sqlite", "sync", PLAIN, False),
    "late-threads": ("called", "model", "async", PLAIN, False),
    "at-exit": ("busy", "model", "exit", PLAIN, True),
    "races": ("busy", "model", "sync", RACES, True),
    "named": ("busy", "model", "sync", NAMED, True),
    "named-twice": ("one", "model", "sync", replace(NAMED, faults=2), True),
    "postgres": ("one", "postgres", "async", PLAIN, True),
    "calls": ("called", "model", "sync", PLAIN, True),
    "calls-threads": ("called", "model", "sync", PLAIN, False),
    "tasks": ("called", "sqlite", "async", PLAIN, True),
    "inside": ("inside", "model", "sync", PLAIN, True),
    "ready": ("ready", "model", "sync", PLAIN, True),
    "ready-races": ("ready", "model", "sync", RACES, True),
    "ready-late": ("ready", "sqlite", "async", PLAIN, True),
    "two-calls": ("tasks", "model", "exit", PLAIN, True),
    "turned": ("turned", "model", "sync", PLAIN, True),
    "turned-ready": ("turned_ready", "sqlite", "async", PLAIN, True),
}
"""Program, storage, durability, how far, async driver (or threads)."""

MANY = {
    "pair", "named-twice", "late-threads", "calls-threads", "sqlite-threads", "postgres", "inside", "two-calls",
    "tasks", "turned", "turned-ready", "ready-races", "ready-late",
}  # fmt: skip
"""Those of many states, or slow ones."""


@pytest.mark.parametrize("case", [pytest.param(each, marks=[pytest.mark.trial] * (each in MANY)) for each in CASES])
def test_everything_that_can_happen_keeps_the_rules(case):
    program, storage, durability, bounds, is_async = CASES[case]
    with closing(Explorer(PROGRAMS[program], storage, durability, bounds, is_async=is_async)) as explorer:
        found = explorer.search()
    assert found.complete
    broken = [f"{RULES[each.rule]}\n\n{each}" for each in found.failures.values()]
    assert not broken, "\n\n".join(broken)
