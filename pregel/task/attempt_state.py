"""What a task notes only if it comes to that: what its attempt has done, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import datetime
from typing import Any, NamedTuple

from ..clock import CLOCK
from ..runtime import Runtime
from ..types import Interrupt
from .spans import Span


class AttemptState:
    """What one attempt of a task has done so far: a retry begins with a new one, so that it finds
    its finished calls and answered questions again.

    Attributes:
        number: which try this is, from 1.
        first_began: when the first one began, in seconds since the epoch; None until that is asked.
        asked, keys: how many questions without a key, and under which keys, it has come to.
        reached: the ids of the questions that it has come to, as they are recorded and as they are
            shown.
        once_keys: of the effects that it has, or has had.
        sleep_keys: of the sleeps that it has come to.
        wake_at: when the first of the sleeps ends for which it pauses, in UTC.
        questions: (order, question) of what it has asked without an answer.
        coroutines: (name, coroutine) of the methods of its `Runtime` that must be awaited.
        calls: what it has called with `@task`.
        counts: how many equal `@task` calls, questions and sleeps without a key it has come to.
        graphs: how many graphs it has run.
        started: how many graphs, `@task` calls and effects it has come to.
        uses_memory: one of them keeps a memory of its own.
        inside: a future for each of these that it runs as a coroutine.
        rejected_inside: why a graph inside did not take the answer to its question.
        runtime: made when it is first asked for.
        observed: tells observers of it, and surrounds its function; None if there are none.
        span: what the run's listener has put around it.
        signal: that of a graph inside which became the node's result.
        result: what a node with a cache has returned, and how many writes that made; None if they
            are all that it writes.
    """

    # Few attempts do more than one of these: the defaults stand here (benchmark P8).
    __slots__ = ("__dict__",)

    number: int = 1
    first_began: float | None = None
    asked: int = 0
    keys: tuple[str, ...] = ()
    reached: Set[str] = frozenset()
    once_keys: tuple[str, ...] = ()
    sleep_keys: tuple[str, ...] = ()
    wake_at: datetime | None = None
    questions: Sequence[Any] = ()
    coroutines: tuple[tuple[str, Any], ...] = ()
    calls: list[Any] | None = None
    counts: dict[str, int] | None = None
    graphs: int = 0
    started: int = 0
    uses_memory: bool = False
    inside: tuple[Any, ...] = ()
    rejected_inside: Exception | None = None
    runtime: Runtime[Any] | None = None
    observed: Any = None
    span: Span | None = None
    signal: BaseException | None = None
    result: tuple[Any, int] | None = None

    def begin_anew(self, number: int) -> AttemptState:
        """The state of an attempt which has done nothing yet."""
        state = AttemptState()
        state.observed, state.span = self.observed, self.span
        state.number, state.first_began = number, self.first_attempt_time()
        return state

    def first_attempt_time(self) -> float:
        """Seconds since the epoch, noted when first asked for."""
        if self.first_began is None:
            self.first_began = CLOCK.time()
        return self.first_began

    def count(self, what: str) -> int:
        """How many equal ones there were before in the attempt. Counts this one."""
        # Made in one go: calls and questions are counted under locks of their own.
        counts: dict[str, int] = self.__dict__.setdefault("counts", {})
        number = counts[what] = counts.get(what, -1) + 1
        return number

    def count_graph(self) -> int:
        """How many graphs the attempt has run before. Counts this one."""
        self.graphs += 1
        self.count_start()
        return self.graphs - 1

    def count_start(self) -> int:
        """Count a graph, a `@task` call or an effect; return how many there are."""
        self.started += 1
        return self.started


class Pause(NamedTuple):
    """What a task waits for that has paused: answers, a time, or whichever comes first.

    Attributes:
        questions: what it asks; empty if it only sleeps, or a nested graph stopped at a breakpoint.
        raised: not (only) `interrupt` asked: a signal raised by hand, a breakpoint in a graph
            inside. Only running the task again shows whether it still waits.
        rejected: why the answer to its question was not taken.
        wake_at: when it runs again without an answer, in UTC; None for never.
    """

    questions: tuple[Interrupt, ...]
    raised: bool = False
    rejected: Exception | None = None
    wake_at: datetime | None = None


def earliest(times: Iterable[datetime | None]) -> datetime | None:
    """The first of these times; None if there is none."""
    return min((each for each in times if each is not None), default=None)
