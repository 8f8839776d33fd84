"""Defines a check and how it reports failure. Contains no checks and does not use pytest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .asserts import MODES
from .harness import Harness

NEEDS = {
    "commit": (
        "it inherits commit(), which promises neither one transaction per superstep nor one "
        "writer per thread"
    ),
    "record": (
        "it inherits record(), which lets several runs bring an answer at once and records beside "
        "one checkpoint after another"
    ),
    "delete_for_runs": "it has no delete_for_runs()",
    "copy_thread": "it has no copy_thread()",
    "prune": "it has no prune()",
    "stored_bytes": "it has no stored_bytes(): a server on it tells no sizes of threads",
    "store_post": "it has no store_post(): graphs on it cannot be compiled with inbox=True",
    "transact": "it has no transact(): runtime.transaction needs a database of its own with on=",
    "durable": "durable = False: nothing is left when it is opened again",
    "damage": "no damage() hook: the suite cannot reach its bytes",
    "full": "no full() hook: the suite cannot limit its space",
    "size": "no size() hook: the suite cannot measure what it stores",
}
"""What a check may need of a checkpointer or its suite, and what is said where it is missing."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule that checkpointers must keep.

    Attributes:
        name: a short, unique name of the rule.
        group: the capability it belongs to, such as "list" or "crash".
        about: what it means and why it matters.
        run: raises `CheckFailed`, or whatever the checkpointer raised, if the rule is broken.
        needs: keys of `NEEDS`; where one is missing the check is skipped.
        modes: in which it is run.
    """

    name: str
    group: str
    about: str
    run: Callable[[Harness], None]
    needs: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES


GROUPS = {
    "put": "checkpoints are stored and found",
    "writes": "writes of tasks are stored with them",
    "commit": "a superstep is stored whole, by one writer",
    "list": "histories are listed and searched",
    "delete": "threads and runs are deleted",
    "prune": "old checkpoints are deleted",
    "copy": "threads are copied",
    "posts": "what is posted to a thread waits, and is taken once",
    "transactions": "what a function returns is recorded in its transaction",
    "engine": "real graphs: run, pause, resume, fork, nested graphs, durability",
    "clock": "the order does not depend on a clock",
    "growth": "bytes grow only with what changed",
    "hostile": "text of users is never more than text",
    "concurrency": "threads, loops and processes at once",
    "crash": "the process is killed",
    "damage": "stored bytes are damaged",
    "full": "the disk is full",
}
"""The capabilities, in the order in which they are checked, and what each is about."""

CHECKS: dict[str, Check] = {}
"""All checks by name."""

Function = TypeVar("Function", bound=Callable[["Harness"], None])


def register_check(
    group: str, *needs: str, modes: tuple[str, ...] = MODES
) -> Callable[[Function], Function]:
    """Make a function a check: its name is the rule, its docstring says why."""

    def add(function: Function) -> Function:
        name = function.__name__
        assert (
            name not in CHECKS and group in GROUPS and function.__doc__ and set(needs) <= set(NEEDS)
        ), name
        CHECKS[name] = Check(
            name, group, " ".join(function.__doc__.split()), function, needs, modes
        )
        return function

    return add
