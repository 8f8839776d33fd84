"""Pause and resume as data: who asks, which answer is whose, and whether a breakpoint holds a
superstep back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Any, overload

from ...channels.base import MISSING
from ..errors import GraphAbandoned, GraphBubbleUp, GraphDrained, GraphInterrupt
from ..running import AnswerLookup, refuse_in_effect, running
from ..runtime import Running
from ..types import Interrupt, ValueT
from .attempt_state import earliest
from .question_ids import at_place, keyed_id, question_id, unworded_id
from .task import Task


@overload
def interrupt(value: Any, *, key: str | None = None, response_schema: type[ValueT]) -> ValueT: ...
@overload
def interrupt(value: Any, *, key: str | None = None, response_schema: Any = None) -> Any: ...
def interrupt(value: Any, *, key: str | None = None, response_schema: Any = None) -> Any:
    """Ask the caller of the run a question and wait for the answer.

    The first time, the task pauses here: `invoke` returns with the question under
    `"__interrupt__"`. When the thread is resumed with `Command(resume=answer)` the node runs again
    from its start and this call returns the answer.

    When the node runs again a question is known by its `key`. Without one it is known by its place
    among the node's questions *and* by `value`: if another question stands at that place, it does
    not get the answer. It is asked instead, and a warning says what changed. So give a key to
    questions whose words change from run to run (a time, a text by a model), and to those that are
    asked side by side (`asyncio.gather`, threads), whose order may change. If the thread was edited
    by `update_state` since the question was shown, whatever the node asks at that place now gets
    the answer.

    Args:
        value: the question; anything a checkpoint can store.
        key: tells the question from the others of the node, whatever its words and the order.
        response_schema: what the answer must fit. A type (pydantic model, TypedDict, dataclass,
            `int`, ...) is shown as JSON schema and the answer is converted to it; a dict is taken
            for a JSON schema and only shown.

    Raises:
        RuntimeError: outside of a node, or in a graph without a checkpointer, where no answer could
            ever come.
        ValueError: the node has asked under this key already.
    """
    task: Task = running("interrupt()")
    refuse_in_effect("interrupt()")
    source = _source(task)
    question_id, order = _identify(task, value, key)
    answers = source.given
    known = _known(task, source, question_id, order)
    if known not in answers:
        taken = source.take(known)
        if not taken:
            _warn_of_change(task, source, question_id, value)
            raise asking(
                task, (Interrupt(value, question_id, _json_schema(response_schema)),), order
            )
        answers[known] = taken[0]
    answer = answers[known]
    if task.edited:  # it stays the answer to this question when the next one is shown and compared
        answers[question_id] = answer
    if response_schema is None or isinstance(response_schema, dict):
        return answer
    try:
        return _adapter(response_schema).validate_python(answer)
    except ValueError as error:
        error.add_note(
            f"The answer {answer!r:.200} does not fit the response_schema of the question "
            f"{value!r:.200}, which is still open: answer it again"
        )
        del answers[known]  # the question stays open
        answers.pop(question_id, None)
        source.reject(known)
        question = Interrupt(value, question_id, _json_schema(response_schema))
        raise AnswerRejected((question,), error) from None


def _source(task: Running) -> AnswerLookup:
    source = task.find_answers()
    if source is None:
        raise RuntimeError(
            f"node {task.name!r} called interrupt(), but the graph has no checkpointer, so the run "
            "could never be resumed: compile(checkpointer=InMemorySaver()) and pass a thread_id"
        )
    return source


def _identify(task: Task, value: Any, key: str | None) -> tuple[str, Order]:
    """The id of a question, and where it is shown among others."""
    if key is None:
        with _numbering:
            place = task.current.asked
            task.current.asked += 1
        return question_id(task.ns, place, value), (0, place, 0)
    if not isinstance(key, str) or not key:
        raise TypeError(f"interrupt(key=...) must be a non-empty string, got {key!r}")
    with _numbering:
        current = task.current
        # Two questions of one key would share an answer that was given to one of them.
        if key in current.keys:
            raise ValueError(
                f"node {task.name!r} asked two questions under the key {key!r}: give each a key of "
                "its own, for example one that contains the item it is about"
            )
        current.keys = (*current.keys, key)
    return keyed_id(task.ns, key), (0, current.asked - 1, len(current.keys))


def _known(task: Task, source: AnswerLookup, question: str, order: Order) -> str:
    """Under which id the answer to a question is looked for: its own; in an edited thread, that of
    whatever was asked at its place; in a thread of an earlier version, the one it had then."""
    answers = source.given
    if question in answers:
        return question
    there = [*answers, *source.brought()]
    earlier = unworded_id(task.ns, order[1])
    if earlier in there:
        return earlier
    return (at_place(there, question) if task.edited else None) or question


def _warn_of_change(task: Task, source: AnswerLookup, question: str, value: Any) -> None:
    """Warn of an answer that is not delivered, because another question is asked at its place."""
    before = at_place([*source.given, *source.brought()], question)
    if before is None or before == question:
        return
    shown = source.shown(before)
    change = f": it is {value!r:.200} now"
    if shown is not None:
        change = f", from {shown.value!r:.200} to {value!r:.200}"
    warnings.warn(
        f"node {task.name!r}: question {int(question[16:20], 16) + 1} of the task has changed "
        f"since it was answered{change}. The answer was not delivered; the question is asked "
        "again. If its text may change from run to run, or several questions are asked side by "
        "side, give it a name: interrupt(value, key=...)",
        UserWarning,
        stacklevel=4,
    )


Order = tuple[int, ...]
"""Where a question is shown: a task's own by the order of its calls, then those of graphs it runs
by theirs."""


_numbering = Lock()


def asking(
    task: Any,
    questions: Sequence[Interrupt],
    order: Order,
    wake_at: datetime | None = None,
) -> GraphInterrupt:
    """The signal by which a task pauses with these questions, or until a time. Both are noted on
    the task as well: of several that are asked side by side (`asyncio.gather`, threads) only one
    signal leaves the node, but all count."""
    with _numbering:
        current = task.current
        current.questions = [*current.questions, *((order, question) for question in questions)]
        current.wake_at = earliest((current.wake_at, wake_at))
    return pausing(questions, wake_at)


def pausing(questions: Sequence[Interrupt], wake_at: datetime | None) -> GraphInterrupt:
    """The signal of who waits for answers to these questions, or until a time."""
    signal = GraphInterrupt(questions)
    signal.by_hand, signal.wake_at = False, wake_at
    return signal


def questions_of(task: Any, signal: GraphInterrupt) -> tuple[Interrupt, ...]:
    """The questions of a signal that has left a node: a bare value, raised by hand, becomes one."""
    if signal.value is MISSING:
        return signal.interrupts
    return (
        *signal.interrupts,
        Interrupt(signal.value, question_id(task.ns, task.current.asked, signal.value)),
    )


def merge_questions(signal: GraphInterrupt, endings: Sequence[BaseException | None]) -> None:
    """Give a signal the questions of all these endings, each once, in their order, and the first of
    their times."""
    found = {
        question.id: question
        for error in endings
        if isinstance(error, GraphInterrupt)
        for question in error.interrupts
    }
    for question in signal.interrupts:
        found.setdefault(question.id, question)
    signal.interrupts = tuple(found.values())
    signal.by_hand = signal.by_hand or any(getattr(error, "by_hand", False) for error in endings)
    times = (error.wake_at for error in endings if isinstance(error, GraphInterrupt))
    signal.wake_at = earliest((signal.wake_at, *times))
    rejections = (error.error for error in endings if isinstance(error, GraphInterrupt))
    signal.error = signal.error or next(filter(None, rejections), None)


def unwrap_signals(task: Any, error: BaseException) -> BaseException:
    """What the body of a task has raised, taken out of the groups that `asyncio.TaskGroup` and its
    like put around it.

    A group of nothing but signals becomes one: that which ends the run if there is one, else all
    questions together, else the first. A group with a failure loses its signals, as if the body had
    failed a moment earlier: what is left may then be an `Exception`, for retries and error
    handlers.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    found, rest = error.split(GraphBubbleUp)
    if found is None:
        return error
    # Cancellations are no failures of their own here: a group cancels its members once one has
    # asked.
    failures = None if rest is None else rest.split(_is_cancellation)[1]
    if failures is not None:
        return failures
    signals = list(_leaves(found))
    # The run ends anyway, so what the others ask is asked again when it goes on.
    for signal in signals:
        if isinstance(signal, (GraphAbandoned, GraphDrained)):
            return signal
    pauses = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    if not pauses:
        return signals[0]
    for each in pauses:
        # A bare value raised by hand becomes a question here: a merged signal has room for one
        # only.
        each.interrupts, each.value = questions_of(task, each), MISSING
    merged = GraphInterrupt()
    merged.by_hand = False
    merge_questions(merged, pauses)
    return merged


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


def _is_cancellation(error: BaseException) -> bool:
    """By name: asyncio may not be loaded."""
    return type(error).__name__ == "CancelledError"


def export_answers(task: Running) -> tuple[bool, dict[str, Any], dict[str, Any]]:
    """What a task that runs in another process must know of its answers.

    Returns:
        Whether answers can come at all; those it was given before; those that this call brings for
        its questions.
    """
    source = task.find_answers()
    if source is None:
        return False, {}, {}
    return True, dict(source.given), source.brought()


def import_answers(
    task: Running, used: Sequence[str], open_: Sequence[str], given: Mapping[str, Any]
) -> bool:
    """Keep what a task that ran in another process did with its answers.

    Args:
        used: the ids of the questions whose answers it was told of and has used.
        open_: the ids of those it has come to without an answer, or whose answer it has rejected.
        given: the answers as it left them.

    Returns:
        Whether there is an answer that it was not told of, so that it should run again.
    """
    if not (used or open_ or given):
        return False
    source = _source(task)
    answers = source.given
    news = False
    # The worker had a copy; here they leave the answers of the run, so that nobody else takes them.
    for question in used:
        source.take(question)
    answers.update(given)
    for question in open_:
        answers.pop(question, None)
        if question in used:  # its answer was taken and did not fit
            source.reject(question)
        # An answer without an id is known to the run only: the worker could not be told of it.
        elif taken := source.take(question):
            answers[question], news = taken[0], True
    return news


def _adapter(schema: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


def _json_schema(schema: Any) -> Any:
    if schema is None or isinstance(schema, dict):
        return schema
    from ..program.json_schema import type_schema

    found = type_schema(schema)
    return {} if found is None else found  # JSON has no word for it: it may be anything


class AnswerRejected(GraphInterrupt):
    """An answer did not fit its question's schema: the question stays open, the error goes to who
    answered."""

    def __init__(self, interrupts: Sequence[Interrupt], error: ValueError) -> None:
        super().__init__(interrupts)
        self.error: ValueError = error
        self.by_hand = False


def is_listed(tasks: Iterable[Task], names: Sequence[str] | str) -> bool:
    """Whether a breakpoint names one of these tasks; "*" names all that are not hidden."""
    if names == "*":
        return any(not task.node.hidden for task in tasks)
    return any(task.name in names for task in tasks)


def questions(tasks: Iterable[Task]) -> tuple[Interrupt, ...]:
    """All questions of these tasks, in the tasks' order, each id once."""
    return tuple({q.id: q for task in tasks for q in task.interrupts}.values())


def looks_like_answers(answer: Any) -> bool:
    """Whether an answer is a map whose keys are all interrupt ids, pending or not."""
    return isinstance(answer, dict) and bool(answer) and all(_is_id(key) for key in answer)


def _is_id(key: Any) -> bool:
    return isinstance(key, str) and len(key) == 32 and set(key) <= set("0123456789abcdef")
