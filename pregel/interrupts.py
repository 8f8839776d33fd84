"""Pause and resume as data: who asks, which answer is whose, and whether a breakpoint holds a superstep back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

from ..channels.base import MISSING
from .errors import GraphInterrupt
from .runtime import running
from .task import Task
from .types import Interrupt


def interrupt(value: Any, *, response_schema: Any = None) -> Any:
    """Ask the caller of the run a question and wait for the answer.

    The first time, the task pauses here: `invoke` returns with the question under `"__interrupt__"`. When the
    thread is resumed with `Command(resume=answer)` the node runs again from its start and this call returns the
    answer. Several questions in one node are matched to their answers by the order of the calls, so that order must be
    the same each time the node runs.

    Args:
        value: the question; anything a checkpoint can store.
        response_schema: what the answer must fit. A type (pydantic model, TypedDict, dataclass, `int`, ...) is shown as
            JSON schema and the answer is converted to it; a dict is taken for a JSON schema and only shown.

    Raises:
        RuntimeError: outside of a node, or in a graph without a checkpointer, where no answer could ever come.
    """
    task: Task = running("interrupt()")
    holder = _holder(task)
    with _numbering:  # a node may ask from several threads
        place = task.asked
        question_id = interrupt_id(task.ns, place)
        task.asked += 1
    answers = holder.known_answers()
    if question_id not in answers:
        taken = holder.run.take_answer(question_id, *_way_to(holder, task))
        if not taken:
            raise asking(task, (Interrupt(value, question_id, _json_schema(response_schema)),), (0, place))
        answers[question_id] = taken[0]
    answer = answers[question_id]
    if response_schema is None or isinstance(response_schema, dict):
        return answer
    try:
        return _adapter(response_schema).validate_python(answer)
    except ValueError as error:
        del answers[question_id]  # the question stays open
        question = Interrupt(value, question_id, _json_schema(response_schema))
        raise AnswerRejected((question,), error) from None


_numbering = Lock()


def asking(task: Task, questions: Sequence[Interrupt], place: tuple[int, int]) -> GraphInterrupt:
    """The signal by which a task pauses with these questions. They are noted on the task as well: of several that are
    asked side by side (`asyncio.gather`, threads) only one signal leaves the node, but all are shown.

    Args:
        place: where they are shown: a task's own by the order of its calls, then those of graphs it runs by theirs.
    """
    task.questions = [*getattr(task, "questions", ()), *((place, question) for question in questions)]
    return GraphInterrupt(questions)


def raised(task: Any, signal: GraphInterrupt) -> tuple[Interrupt, ...]:
    """The questions of a signal that has left a node: a bare value, raised by hand, becomes one."""
    if signal.value is MISSING:
        return signal.interrupts
    return (*signal.interrupts, Interrupt(signal.value, interrupt_id(task.ns, task.asked)))


def _holder(task: Task) -> Task:
    """The task that keeps the answers: this one, or the one around a graph that saves nothing itself."""
    holder: Task | None = task
    while holder is not None and holder.run.saver is None:
        holder = holder.run.parent
    root = holder
    while root is not None and root.run.parent is not None:
        root = root.run.parent
    if holder is None or root is None or root.run.saver is None:
        raise RuntimeError(
            f"node {task.name!r} called interrupt(), but the graph has no checkpointer, so the run could never be "
            "resumed: compile(checkpointer=InMemorySaver()) and pass a thread_id"
        )
    return holder


def _way_to(holder: Task, task: Task) -> tuple[Task, tuple[Any, ...]]:
    """The holder, and the runs inside it that lead to the task."""
    inside: list[Any] = []
    while task is not holder:
        inside.append(task.run)
        assert task.run.parent is not None
        task = task.run.parent
    return holder, tuple(inside)


def lent_answers(task: Task) -> tuple[bool, dict[str, Any], dict[str, Any]]:
    """What a task may be told of answers if it runs far from its run.

    Returns:
        Whether answers can come at all; those it was given before; those that this call has brought for its questions.
    """
    try:
        holder = _holder(task)
    except RuntimeError:
        return False, {}, {}
    stored = holder.run.stored.get(holder.id)
    at_hand: dict[str, Any] = {}
    for question in stored.interrupts if stored is not None else ():
        run: Any = holder.run
        while run is not None:
            if question.id in run.answers:
                at_hand[question.id] = run.answers[question.id]
            run = run.parent.run if run.parent is not None else None
    return True, dict(holder.known_answers()), at_hand


def take_answers(task: Task, used: Sequence[str], open_: Sequence[str], known: Mapping[str, Any]) -> bool:
    """Keep what a task that ran far from its run has done with its answers.

    Args:
        used: the ids of the questions whose answers it was told of and has used.
        open_: the ids of those it has come to without an answer, or whose answer it has rejected.
        known: the answers as it left them.

    Returns:
        Whether there is an answer that it was not told of, so that it should run again.
    """
    if not (used or open_ or known):
        return False
    holder = _holder(task)
    answers = holder.known_answers()
    answers.update(known)
    news = False
    for question_id in used:
        holder.run.take_answer(question_id, *_way_to(holder, task))
    for question_id in open_:
        answers.pop(question_id, None)
        taken = () if question_id in used else holder.run.take_answer(question_id, *_way_to(holder, task))
        if taken:
            answers[question_id], news = taken[0], True
    return news


def _adapter(schema: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


def _json_schema(schema: Any) -> Any:
    return schema if schema is None or isinstance(schema, dict) else _adapter(schema).json_schema()


class AnswerRejected(GraphInterrupt):
    """An answer did not fit its question's schema: the question stays open, the error goes to who answered."""

    def __init__(self, interrupts: Sequence[Interrupt], error: ValueError) -> None:
        super().__init__(interrupts)
        self.error = error


def interrupt_id(ns: str, position: int) -> str:
    """32 hex digits for the question at this position of the task with this namespace."""
    return blake2b(f"{ns}\0{position}".encode(), digest_size=16).hexdigest()


def renamed(old_ns: str, new_ns: str, count: int) -> dict[str, str]:
    """The ids of the first questions of a task, and what they become when its namespace does."""
    return {interrupt_id(old_ns, place): interrupt_id(new_ns, place) for place in range(count)}


def listed(tasks: Iterable[Task], names: Sequence[str] | str) -> bool:
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
