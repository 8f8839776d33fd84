"""Checks a user's graph for what the engine guarantees: killed and resumed, delivered again and
raced at every write to storage, it must end as if nothing had happened.

A kill is simulated in this process: the checkpointer raises at one of its calls and stores nothing
more, as if the process had died there. `os.kill` for real is what `crash` and tests/faults do."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args
from uuid import uuid4

from ..channels.base import check_kind
from ..checkpoint.base import CLAIM, CheckpointConflictError, Expected, Place, TaskWrites
from ..checkpoint.memory import InMemorySaver
from ..checkpoint.records import Commit
from ..checkpoint.threads import Result
from ..pregel.app import Pregel, check_compiled
from ..pregel.errors import UnknownInterruptError
from ..pregel.names import without_ids
from ..pregel.program.program import is_async
from ..pregel.types import Command, Interrupt
from .answers import AnswerBook, Answers, RecordedAnswers
from .asserts import CheckFailed
from .comparing import find_difference
from .origins import has_ready, thread_for
from .recording import Recording
from .thread_reader import ThreadError, read_thread

Harm = Literal["killed before", "killed after", "delivered again after", "raced at"]
HARMS: Final[tuple[Harm, ...]] = get_args(Harm)
MOST_CALLS: Final = 1000
"""So many calls may one trial take."""


@dataclass(frozen=True, slots=True)
class Survival:
    """The trials that `survives` ran.

    Attributes:
        stored: what the graph stores, in order: "the commit of step 2", ...
        trials: how many runs were harmed.
        repeated: effects that some trial produced more often than the undisturbed run, with the
            most that one trial has repeated them. Wrap them in `runtime.once`, or pass the
            `idempotency_key` on.
    """

    stored: tuple[str, ...]
    trials: int
    repeated: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """The same in a few lines."""
        lines = [f"{self.trials} trials at {len(self.stored)} places: all end as without harm"]
        lines += [f"had again up to {n} times: {what}" for what, n in self.repeated.items()]
        return "\n".join(lines)


def survives(
    app: Pregel[Any, Any, Any, Any],
    input: Any,
    *,
    answers: Answers = (),
    effects: Callable[[], Sequence[Any]] | None = None,
    once: bool = False,
    ignore: Collection[str] = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Survival:
    """Prove that a graph ends the same whatever happens to it: it is killed before and after each
    thing that it stores and resumed, its input is delivered again there, and a second process goes
    on with its thread at the same moment. Each trial must take the same steps with the same writes
    as the undisturbed run, and have the same effects.

    First the graph runs twice undisturbed: a node that does something else each time is reported as
    not deterministic, and no trial is run.

    It runs on threads in memory: the graph's own checkpointer is not used. Not from within an event
    loop.

    Args:
        app: a compiled graph.
        input: what `invoke` is given.
        answers: the answers to its questions, as in `record`.
        effects: returns and clears the side effects since its last call, such as the mails in a
            fake outbox. A trial must have each effect of the undisturbed run, and no other.
        once: no effect may occur more often than in the undisturbed run. Otherwise repeats are only
            counted: a node that was killed runs again, and so do its effects.
        ignore: keys and fields whose values are not compared, such as `["created_at"]`.
        config, context: as for `invoke`.

    Returns:
        What was tried.

    Raises:
        CheckFailed: a trial ended differently; the text names the disturbance, the step, the node
            and the difference. Or a node is not deterministic.
        Exception: what a node raised in the undisturbed run.

    >>> from stategraph import START, StateGraph
    >>> def double(state: dict) -> dict:
    ...     return {"n": 2 * state["n"]}
    >>> app = StateGraph(dict).add_node(double).add_edge(START, "double").compile()
    >>> print(survives(app, {"n": 4}))
    12 trials at 3 places: all end as without harm
    """
    trials = _Trials(app, input, config, context)
    check_kind("effects", effects, Callable | None, "a function")
    check_kind("ignore", ignore, Collection, "a list of keys")
    trials.forget = effects or tuple
    trials.run_undisturbed(AnswerBook(answers), ignore)
    repeated: Counter[str] = Counter()
    for place in range(len(trials.stored)):
        for harm in HARMS:
            where = f"{harm} {trials.stored[place]}"
            try:
                storage = trials.harm(harm, place)
            except Exception as error:
                error.add_note(f"While the graph was tried: {where}")
                raise
            trials.compare(storage, where, ignore)
            for what, times in trials.compare_effects(where, once=once).items():
                repeated[what] = max(repeated[what], times)
    return Survival(tuple(trials.stored), len(trials.stored) * len(HARMS), dict(repeated))


class Killed(BaseException):
    """The process died here. No `Exception`, so that nothing in it can go on."""


class Storage(InMemorySaver):
    """A checkpointer in memory of which each process has a handle of its own.

    Attributes:
        at: called with what is to be stored, before and after it is, where that is wanted.
        dead: nothing is stored through this handle any more.
    """

    __slots__ = ("at", "dead")

    at: Callable[[str, bool], None] | None
    dead: bool

    def open_again(self) -> Storage:
        """Another process's handle of the same storage."""
        twin = copy(self)
        twin.__dict__ = self.__dict__
        twin.at, twin.dead = None, False
        return twin

    def _store(self, what: str, store: Callable[..., Result], *args: Any) -> Result:
        if self.dead:
            raise Killed
        if self.at is not None:
            self.at(what, False)
        result = store(*args)
        if self.at is not None:
            self.at(what, True)
        return result

    def commit(self, commits: Sequence[Commit]) -> None:
        """Store supersteps, and do what is wanted there."""
        commit = commits[-1]
        step = commit.metadata.get("step")
        what = "the input" if step == -1 else f"the commit of step {step}"
        if commit.checkpoint_ns:
            what += f" of graph {without_ids(commit.checkpoint_ns)!r}"
        self._store(what, super().commit, commits)

    def record(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int | None:
        """Record tasks or an answer, and do what is wanted there."""
        first = next((task for tasks in writes.values() for task in tasks), None)
        claims = first is not None and CLAIM in dict(first.writes)
        what = "the record of an answer" if claims else "a record of tasks"
        return self._store(what, super().record, where, expected, writes)


class _Trials:
    """One graph, and what it does without harm.

    Attributes:
        stored: what it stores.
        recording: what it does.
        had: its effects, as texts.
        forget: what was done outside since it was last called.
    """

    def __init__(
        self, app: Pregel, input: Any, config: Mapping[str, Any] | None, context: Any
    ) -> None:
        check_compiled(app)
        self.app = app
        self.input = input
        self.context = context
        self.thread: Any = thread_for(app.program, config, "survives")
        self.forget: Callable[[], Sequence[Any]] = tuple
        self.is_async = is_async(app.program)
        self.stored: list[str] = []
        self.answers: list[Mapping[str, Any]] = []
        self.recording = Recording(app.name, ())
        self.had: Counter[str] = Counter()
        self.run_id = ""

    # -- without harm ------------------------------------------------------------------------------

    def run_undisturbed(self, book: AnswerBook, ignore: Collection[str]) -> None:
        """Run it twice: to know what it does, and whether it does the same again."""
        self.forget()
        storage = self._begin()
        storage.at = lambda what, done: None if done else self.stored.append(what)
        self._carry(storage, book.answer)
        self.recording = self._read(storage)
        self.had = Counter(map(_text, self.forget()))
        for run in self.recording.runs:
            self.answers.extend(run.answered())
        again = self._begin()
        self._carry(again, self._answer(again))
        found = find_difference(self.recording, self._read(again), ignore=ignore)
        if found is not None:
            if has_ready(self.app.program) and self.thread.get("max_concurrency") != 1:
                raise CheckFailed(
                    'two undisturbed runs differ: with schedule="ready" the steps depend on which '
                    "task ends first, unless max_concurrency is 1; leave it out of config\n"
                    f"{found}"
                )
            raise CheckFailed(
                "two undisturbed runs differ, so a node is not deterministic: hand it its clock or "
                "its random numbers, or put keys that may differ into ignore=[...]\n" + str(found)
            )
        effects = Counter(map(_text, self.forget()))
        if effects != self.had:
            raise CheckFailed(
                "two undisturbed runs differ, so a node is not deterministic: "
                f"{_compare_counts(self.had, effects)}"
            )

    def _begin(self) -> Storage:
        storage = Storage(serde=self.app.serde)
        storage.at, storage.dead = None, False
        self.run_id = str(uuid4())
        return storage

    # -- with harm ---------------------------------------------------------------------------------

    def harm(self, harm: Harm, place: int) -> Storage:
        """One trial. Returns its storage, once the thread has come to its end."""
        storage = self._begin()
        seen = iter(range(MOST_CALLS * 100))

        def strike(what: str, done: bool) -> None:
            if done is (harm in ("killed before", "raced at")) or next(seen) != place:
                return
            if harm == "raced at":
                other = storage.open_again()
                self._settle(other)
                self._carry(other, self._answer(other))
            else:
                storage.dead = True
                raise Killed

        storage.at = strike
        with suppress(Killed, CheckpointConflictError, UnknownInterruptError):
            self._carry(storage, self._answer(storage))
        after = storage.open_again()
        if harm == "delivered again after":
            self._deliver(after)
        self._settle(after)
        self._carry(after, self._answer(after))
        if harm == "delivered again after":
            self._deliver(after)  # late, too
        return after

    def _settle(self, storage: Storage) -> None:
        """Let all that is under way come to its question before the first is answered: with
        schedule="ready" each is recorded by itself."""
        app = self.app.copy({"checkpointer": storage})
        if app.program.starts_ready and app.get_state(self.thread).next:
            self._call(storage, None)

    def _deliver(self, storage: Storage) -> None:
        with suppress(CheckpointConflictError):
            self._call(storage, self.input)

    def compare(self, storage: Storage, where: str, ignore: Collection[str]) -> None:
        """The thread is as it is without harm."""
        try:
            now = self._read(storage)
        except ThreadError as error:
            raise CheckFailed(f"{where}: {error}") from error
        found = find_difference(self.recording, now, ignore=ignore)
        if found is not None:
            raise CheckFailed(f"{where}, the run ends otherwise\n{found}")

    def compare_effects(self, where: str, *, once: bool) -> Counter[str]:
        """The effects are those without harm. Returns those that were repeated."""
        now = Counter(map(_text, self.forget()))
        more = now - self.had
        if now.keys() != self.had.keys() or (once and more):
            advice = (
                "; use runtime.once, or hand runtime.idempotency_key on to whoever can drop repeats"
                if now.keys() == self.had.keys()
                else ""
            )
            raise CheckFailed(f"{where}: {_compare_counts(self.had, now)}{advice}")
        return more

    # -- one process -------------------------------------------------------------------------------

    def _carry(
        self, storage: Storage, answer: Callable[[Sequence[Interrupt]], Command | None]
    ) -> None:
        """What a program does that finds the thread in any state: begin, answer, go on, until
        nothing is left to do."""
        app = self.app.copy({"checkpointer": storage})
        if app.get_state(self.thread).created_at is None:
            self._call(storage, self.input)
        for _ in range(MOST_CALLS):
            state = app.get_state(self.thread)
            if not state.next:
                return
            given = answer(state.interrupts) if state.interrupts else None
            if state.interrupts and given is None:
                return  # it waits, as it does without harm
            try:
                self._call(storage, given)
            except UnknownInterruptError:  # a run that was killed has taken the answer
                self._call(storage, None)
        raise CheckFailed(f"the thread has not come to an end after {MOST_CALLS} calls")

    def _answer(self, storage: Storage) -> Callable[[Sequence[Interrupt]], Command | None]:
        """The answers of the undisturbed run."""

        def answer(questions: Sequence[Interrupt]) -> Command | None:
            left = RecordedAnswers(self.answers, self.app.serde)
            for run in self._read(storage).runs:
                for given in run.answered():
                    left.take(given)
            return AnswerBook(left.find).answer(questions)

        return answer

    def _call(self, storage: Storage, given: Any) -> None:
        app = self.app.copy({"checkpointer": storage})
        config = self.thread if given is not self.input else {**self.thread, "run_id": self.run_id}
        options: dict[str, Any] = {"durability": "sync", "context": self.context}
        if not self.is_async:
            app.invoke(given, config, **options)
            return
        with ThreadPoolExecutor(1) as thread:  # a second process may be in the loop of the first
            thread.submit(lambda: asyncio.run(app.ainvoke(given, config, **options))).result()

    def _read(self, storage: Storage) -> Recording:
        return read_thread(self.app.copy({"checkpointer": storage}), self.thread)


def _text(value: Any) -> str:
    """An effect, or a question, as something that can be counted."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return repr(value)


def _compare_counts(before: Counter[str], now: Counter[str]) -> str:
    """The first effect that was had more or less often."""
    for what in [*before, *now]:
        if before[what] != now[what]:
            return f"the effect {what:.300} was had {now[what]} times, without harm {before[what]}"
    return "the effects are the same"
