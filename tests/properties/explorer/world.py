"""One call of the real engine, one step at a time: what runs it asks a script what happens next.

Whatever matters (a task's end, a saver's call) waits at a gate. Only when nothing else can run does the world open one
of them, and how: the call succeeds, fails, or the process dies there. The script decides; all scripts in turn are all
that can happen.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .turns import Turns

GO, RAISE = "goes on", "raises"
OK, LOST, UNANSWERED, DIES, DIES_AFTER, CANCEL = (
    "is stored",
    "fails, nothing is stored",
    "is stored, then fails",
    "is not stored, the process dies",
    "is stored, then the process dies",
    "the run is cancelled",
)
PASSES = "time passes"
FAULTS = {RAISE, LOST, UNANSWERED, DIES, DIES_AFTER, CANCEL}
STORING = (OK, LOST, UNANSWERED, DIES, DIES_AFTER)


class Dead(Exception):
    """The process in which this would go on has died: nothing it does has an effect any more."""


class Script:
    """Which of the possible things happens, choice by choice; beyond its end, always the first."""

    def __init__(self, prefix=()):
        self.prefix = list(prefix)
        self.taken = []

    def choose(self, count):
        """One of so many."""
        place = len(self.taken)
        choice = self.prefix[place] if place < len(self.prefix) else 0
        if choice >= count:
            raise RuntimeError(
                f"choice {place} of a script is {choice}, but only {count} things can happen: not repeatable"
            )
        self.taken.append((choice, count))
        return choice

    def following(self):
        """The next one in depth-first order, None after the last."""
        taken = list(self.taken)
        while taken:
            choice, count = taken.pop()
            if choice + 1 < count:
                return Script([*(each for each, _ in taken), choice + 1])
        return None


@dataclass(eq=False)
class Process:
    """Where a client's calls run; it may die."""

    name: str
    world: World
    dead: bool = False
    cancelled: bool = False
    client: Any = None

    async def agate(self, label, outcomes):
        """Wait until the world lets this go on; how it does."""
        return await self.world.agate(self, label, outcomes)

    def gate(self, label, outcomes):
        """The same on a thread."""
        return self.world.gate(self, label, outcomes)

    def now(self, label, outcomes):
        """The same for what cannot be interleaved with anything."""
        return self.world.now(self, label, outcomes)


@dataclass(eq=False)
class Waiting:
    """Something at a gate."""

    process: Process
    label: str
    outcomes: Sequence[str]
    future: Any


@dataclass
class World:
    """What may happen, and what has.

    Attributes:
        faults: how many may still happen.
        switches: how often the other process may be let go on while this one could.
        trace: what happened, in words.
        cost: how many things happened that need not have.
    """

    loop: Stepped | None
    turns: Turns | None = None
    script: Script = field(default_factory=Script)
    faults: int = 0
    switches: int = 0
    may_cancel: bool = True
    trace: list[str] = field(default_factory=list)
    cost: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    last: Process | None = None

    def begin(self, script: Script, faults, switches=0):
        """Start over."""
        self.script, self.faults, self.switches = script, faults, switches
        self.trace, self.cost, self.waiting, self.last = [], 0, [], None
        for process in self.processes:
            process.dead = process.cancelled = False
            process.client = None

    async def agate(self, process: Process, label, outcomes):
        """Wait until it is let through; how."""
        if process.dead:
            raise Dead
        assert self.loop is not None
        waiting = Waiting(process, label, outcomes, self.loop.create_future())
        self.waiting.append(waiting)
        try:
            return await waiting.future
        finally:
            self.waiting.remove(waiting)

    def gate(self, process: Process, label, outcomes):
        """The same on a thread."""
        if process.dead:
            raise Dead
        assert self.turns is not None
        waiting = Waiting(process, label, outcomes, Future())
        self.waiting.append(waiting)
        try:
            self.turns.wait(waiting.future.done)
            return str(waiting.future.result())
        finally:
            self.waiting.remove(waiting)

    def now(self, process: Process, label, outcomes):
        """Decide at once."""
        if process.dead:
            raise Dead
        outcome = self._pick([(process, label, each) for each in self._possible(outcomes)])[2]
        if outcome in (DIES, DIES_AFTER):
            self._kill(process)
        return outcome

    def idle(self):
        """Nothing can go on by itself: let one of those at the gates through. False if there is none."""
        waiting = [each for each in self.waiting if not each.future.done()]
        timed = self.turns.timed() if self.turns is not None else ()
        if not waiting and not timed:
            return False
        first = [each for each in waiting if each.process is self.last]
        others = [each for each in waiting if each.process is not self.last]
        if first and others and not self.switches:
            others = []
        options = []
        for each in (*first, *others):
            options += [(each, each.label, outcome) for outcome in self._possible(each.outcomes)]
        if self.faults and self.may_cancel:
            for process in {each.process: None for each in (*first, *others)}:
                if not process.cancelled and process.client is not None and not process.client.done():
                    options.append((process, "", CANCEL))
        options.sort(key=lambda each: each[2] in FAULTS)
        if timed:  # time passes before anything else happens, or it does not
            options = [(timed[0], "", PASSES), *(each for each in options if each[2] not in FAULTS)]
        chosen, _, outcome = self._pick(options)
        if outcome == PASSES:
            chosen.expired = True
            return True
        if outcome == CANCEL:
            chosen.cancelled = True
            chosen.client.cancel()
            return True
        if first and chosen in others:
            self.switches -= 1
        self.last = chosen.process
        if outcome in (DIES, DIES_AFTER):
            chosen.future.set_result(outcome)
            self._kill(chosen.process)
        else:
            chosen.future.set_result(outcome)
        return True

    def _possible(self, outcomes):
        return outcomes if self.faults else [each for each in outcomes if each not in FAULTS]

    def _pick(self, options):
        choice = self.script.choose(len(options)) if len(options) > 1 else 0
        chosen, label, outcome = options[choice]
        process = chosen.process if isinstance(chosen, Waiting) else chosen
        if outcome != PASSES:
            self.trace.append(f"{process.name}: {label} {outcome}".replace(":  ", ": "))
        if choice:
            self.cost += 1
        if outcome in FAULTS:
            self.faults -= 1
        return options[choice]

    def _kill(self, process: Process):
        process.dead = True
        for each in self.waiting:
            if each.process is process and not each.future.done():
                each.future.set_exception(Dead())

    def run(self, clients: Iterable[tuple[Process, Callable[[], Any]]]):
        """Let clients do their calls, side by side, to the end of everything they have begun; what each gave."""
        started = []
        for process, client in clients:
            process.client = self.loop.create_task(client()) if self.loop else self.turns.start(client)  # type: ignore[union-attr]
            started.append(process.client)
        if self.loop is None:
            assert self.turns is not None
            self.turns.run(self.idle)
        else:
            self.loop.world = self
            while left := asyncio.all_tasks(self.loop):
                self.loop.run_until_complete(asyncio.wait(left))
        return [each.result() for each in started]


class Future:
    """How something at a gate is let through, on threads."""

    def __init__(self):
        self._result = None

    def done(self):
        return self._result is not None

    def set_result(self, result):
        self._result = result

    def set_exception(self, error: Exception):
        self._result = error

    def result(self):
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class _Idle(selectors.SelectSelector):
    """Instead of waiting for the outside, there is none, lets the world go on."""

    loop: Stepped

    def select(self, timeout=None):
        if timeout is None or timeout > 0:
            self.loop.idle(timeout)
        return []


class Stepped(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which asks its world whenever nothing can go on."""

    def __init__(self):
        selector = _Idle()
        selector.loop = self
        self.clock = 0.0
        self.world = None
        super().__init__(selector)

    def time(self):
        return self.clock

    def idle(self, timeout):
        """Nothing is ready."""
        if self.world is not None and self.world.idle():
            return
        if timeout is None:
            raise RuntimeError("nothing can go on: somebody waits for ever")
        self.clock += timeout + 1e-9


def scripts():
    """All scripts in turn; each must be followed to its end before the next is asked for."""
    script = Script()
    while script is not None:
        yield script
        script = script.following()
