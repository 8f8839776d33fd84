"""Pause and resume as data: who asks, which answer is whose, and whether a breakpoint holds a
superstep back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import chain
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, overload

from ...channels.base import MISSING
from ...checkpoint.digest import blake2b
from ...checkpoint.keys import canonical_key
from ..errors import DrainSignal, GraphAbandoned, GraphBubbleUp, GraphDrained, GraphInterrupt, warn
from ..running import AnswerLookup, refuse_in_effect, running
from ..runtime import Running
from ..types import Interrupt, ValueT
from .attempt_state import earliest
from .task import Task

INVALID_RESUME: Final = "_invalid_resume"
"""The attribute of an error by which an answer was rejected."""


@overload
def interrupt(value: Any, *, key: str | None = None, response_schema: type[ValueT]) -> ValueT: ...
@overload
def interrupt(value: Any, *, key: str | None = None, response_schema: Any = None) -> Any: ...
def interrupt(value: Any, *, key: str | None = None, response_schema: Any = None) -> Any:
    """Ask the caller of the run a question and wait for the answer.

    The first time, the task pauses here: `invoke` returns with the question under
    `"__interrupt__"`. When the thread is resumed with `Command(resume=answer)` the node runs again
    from its start and this call returns the answer.

    When the node runs again a question is known by its `key`. Without one it is known by `value`
    (of equal ones, by their order), so questions may come in any order. An answer stays with the
    task until the task ends, even if the node asks something else first. If `value` has changed,
    the question does not get the answer: it is asked, and a warning says what changed. So give a
    key to questions whose words change from run to run (a time, a text by a model). If the thread
    was edited by `update_state` since the question was shown, whatever the node asks at its place
    now gets the answer.

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
    return ask(value, key, response_schema)


def ask(value: Any, key: str | None, response_schema: Any, *, by_place: bool = False) -> Any:
    """Do what `interrupt` does.

    Args:
        by_place: a question is known by its place alone, whatever it asks.
    """
    task: Task = running("interrupt()")
    refuse_in_effect("interrupt()")
    source = _source(task)
    found = _identify(task, source, value, key, by_place=by_place)
    answers = source.given
    if found.known not in answers:
        taken = source.take(found.known)
        if not taken:
            question = Interrupt(value, found.id, _json_schema(response_schema))
            raise asking(task, (question,), found.order)
        answers[found.known] = taken[0]
    answer = answers[found.known]
    if found.known != found.id:  # it is this question's when the next one is shown and compared
        answers[found.id] = answer
        if by_place and not task.edited:
            warn(
                f"node {task.name!r}: question {place_of(found.id) + 1} of the task has changed "
                f"since it was answered: it is {value!r:.200} now, and has got the answer by its "
                "place. Ask with stategraph.interrupt(value, key=...), which never does that"
            )
    if response_schema is None or isinstance(response_schema, dict):
        return answer
    try:
        return _adapter(response_schema).validate_python(answer)
    except ValueError as error:
        setattr(error, INVALID_RESUME, True)
        error.add_note(
            f"The answer {answer!r:.200} does not fit the response_schema of the question "
            f"{value!r:.200}, which is still open: answer it again"
        )
        del answers[found.known]  # the question stays open
        answers.pop(found.id, None)
        source.reject(found.known)
        question = Interrupt(value, found.id, _json_schema(response_schema))
        raise AnswerRejected((question,), error) from None


def _source(task: Running) -> AnswerLookup:
    source = task.find_answers()
    if source is None:
        raise RuntimeError(
            f"node {task.name!r} called interrupt(), but the graph has no checkpointer, so the run "
            "could never be resumed: compile(checkpointer=InMemorySaver()) and pass a thread_id"
        )
    return source


class FoundQuestion(NamedTuple):
    """A question to which the node has come.

    Attributes:
        id: under which it is shown.
        known: under which its answer is looked for.
        order: where it is shown among others.
    """

    id: str
    known: str
    order: Order


def _identify(
    task: Task, source: AnswerLookup, value: Any, key: str | None, *, by_place: bool
) -> FoundQuestion:
    """Find a question among those that are recorded; each of these is found once."""
    if key is not None and (not isinstance(key, str) or not key):
        raise TypeError(f"interrupt(key=...) must be a non-empty string, got {key!r}")
    content = "" if key is not None else content_of(value)
    with _numbering:
        current = task.current
        if key is None:
            order = (0, current.asked, 0)
            equal = current.count(f"\0question\0{content}")
            asked = identify(task.ns, current.asked, content, equal)
            current.asked += 1
        else:
            # Two questions of one key would share an answer that was given to one of them.
            if key in current.keys:
                raise ValueError(
                    f"node {task.name!r} asked two questions under the key {key!r}: give each a "
                    "key of its own, for example one that contains the item it is about"
                )
            current.keys = (*current.keys, key)
            order = (0, current.asked - 1, len(current.keys))
            asked = Question(keyed_id(task.ns, key))
        shown = [each for each in source.asked if each not in current.reached]
        answered = [each for each in source.given if each not in current.reached]
        known = None if by_place else find_same(asked, [*shown, *answered])
        id = known or asked.id
        if known is None and (by_place or task.edited):
            # What was shown last at this place, else what was answered there last.
            there = at_place(shown, id) or at_place(answered, id)
            known = there[-1] if there else None
        current.reached = current.reached | {id, known or id}
    return FoundQuestion(id, known or id, order)


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
    failures = None if rest is None else rest.split(is_cancellation)[1]
    if failures is not None:
        return failures
    signals = list(_leaves(found))
    # The run ends anyway, so what the others ask is asked again when it goes on.
    for signal in signals:
        if isinstance(signal, (GraphAbandoned, DrainSignal, GraphDrained)):
            return signal
    pauses = [signal for signal in signals if isinstance(signal, GraphInterrupt)]
    if not pauses:
        return signals[0]
    for each in pauses:
        # A bare value raised by hand becomes a question here: a merged signal has room for one
        # only.
        each.interrupts, each.value = questions_of(task, each), MISSING
    merged = pausing((), None)
    merge_questions(merged, pauses)
    return merged


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


def is_cancellation(error: BaseException) -> bool:
    """Whether this is a `CancelledError`. By name: asyncio may not be loaded."""
    return type(error).__name__ == "CancelledError"


def export_answers(
    task: Running,
) -> tuple[bool, dict[str, Any], dict[str, Any], Sequence[str]]:
    """What a task that runs in another process must know of its answers.

    Returns:
        Whether answers can come at all; those it was given before; those that this call brings for
        its questions; the ids of the questions that it has asked last.
    """
    source = task.find_answers()
    if source is None:
        return False, {}, {}, ()
    return True, dict(source.given), source.brought(), source.asked


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


@cache
def decision_model(name: str, *decisions: str) -> Any:
    """The `response_schema` of a question that is answered by one of these decisions, and perhaps
    by a result. pydantic is loaded when the first one is asked."""
    from pydantic import ConfigDict, create_model

    fields: Any = {"decision": (Literal[decisions], ...), "result": (Any, None)}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


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


# -- the ids of questions, and when two questions are the same -------------------------------------
# A question with a key is known by the key. Without one it is known by its value, with a counter
# among equal values of its task. Its id also tells at which place it was first shown, but the place
# is no part of what it is known by: questions may come in another order when their node runs again.

TASK, PLACE, CONTENT = slice(0, 16), slice(0, 20), slice(20, 32)
"""The digits of a question's id that name its task, its task and place, and its value."""
_KEYED = "ffff"
_LAST_PLACE = 0xFFFE  # stands for all places from there on
_NO_PLACE = (_KEYED, f"{_LAST_PLACE:04x}")


class Question(NamedTuple):
    """What a question is known by.

    Attributes:
        id: under which it is shown if it is not recorded.
        earlier: the ids that earlier versions would have given it.
    """

    id: str
    earlier: tuple[str, ...] = ()


def question_id(ns: str, place: int, value: Any) -> str:
    """Return 32 hex digits for a question without a key: 16 for its task, 4 for its place among the
    questions of that task, 12 for its value, which is the first of its kind there."""
    return _worded_id(ns, place, content_of(value), equal=0)


def identify(ns: str, place: int, content: str, equal: int) -> Question:
    """Return what a question without a key is known by.

    Args:
        content: `content_of` its value.
        equal: how many questions of an equal value the task has asked before.
    """
    # 0.2.0 had the place in the last digits, too; before that an id knew nothing of the value.
    earlier = _worded_id(ns, place, content, place), _digits(f"{ns}\0{place}", 32)
    return Question(_worded_id(ns, place, content, equal), earlier)


def keyed_id(ns: str, key: str) -> str:
    """Return 32 hex digits for the question of this key, whatever its place and its words."""
    return f"{task_digits(ns)}{_KEYED}{_digits(key, 12)}"


def content_of(value: Any) -> str:
    """Return a text that is equal for equal values."""
    try:
        return canonical_key(value)
    except TypeError:  # nothing in it tells it from others of its kind
        return f"{type(value).__module__}.{type(value).__qualname__}"


def task_digits(ns: str) -> str:
    """Return the digits by which the ids of all questions of one task begin."""
    return _digits(ns, 16)


def moved_id(question: str, ns: str) -> str:
    """Return the id of the same question in a task with another namespace."""
    return task_digits(ns) + identity_of(question)


def identity_of(question: str) -> str:
    """Return the digits by which a question's id tells it from others of the same task."""
    return question[TASK.stop :]


def find_same(question: Question, recorded: Collection[str]) -> str | None:
    """Return the id under which a question is recorded, or None."""
    if question.id in recorded:
        return question.id
    same = (each for each in recorded if _is_same(each, question.id))
    # Last: an id of 0.2.0 may look like that of a later question of an equal value.
    earlier = (each for each in question.earlier if each in recorded)
    return next(chain(same, earlier), None)


def at_place(ids: Iterable[str], question: str) -> list[str]:
    """Return those of these ids that are of the same task and place as a question's. A question
    with a key has no place."""
    if not has_place(question):
        return []
    return [each for each in ids if each[PLACE] == question[PLACE]]


def has_place(question: str) -> bool:
    """Whether the id of a question tells its place."""
    return question[TASK.stop : PLACE.stop] not in _NO_PLACE


def place_of(question: str) -> int:
    """Return the place at which a question was first shown, from 0."""
    return int(question[TASK.stop : PLACE.stop], 16)


def _is_same(one: str, other: str) -> bool:
    """Whether two ids differ by the place at most."""
    same = one[TASK] == other[TASK] and one[CONTENT] == other[CONTENT]
    return same and _KEYED not in (one[TASK.stop : PLACE.stop], other[TASK.stop : PLACE.stop])


def _worded_id(ns: str, place: int, content: str, equal: int) -> str:
    digits = _digits(f"{equal}\0{content}", 12)
    return f"{task_digits(ns)}{min(place, _LAST_PLACE):04x}{digits}"


def _digits(text: str, count: int) -> str:
    return blake2b(text.encode(), digest_size=count // 2).hexdigest()
