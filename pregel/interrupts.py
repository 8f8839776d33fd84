"""Pause and resume as data: who asks, which answer is whose, and whether a breakpoint holds a superstep back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from .errors import GraphInterrupt
from .runtime import running
from .task import Task
from .types import Interrupt


def interrupt(value: Any) -> Any:
    """Ask the caller of the run a question and wait for the answer.

    The first time, the task pauses here: `invoke` returns with the question under `"__interrupt__"`. When the
    thread is resumed with `Command(resume=answer)` the node runs again from its start and this call returns the
    answer. Several questions in one node are matched to their answers by the order of the calls.

    Args:
        value: the question; anything a checkpoint can store.

    Raises:
        RuntimeError: outside of a node, or in a graph without a checkpointer, where no answer could ever come.
    """
    task: Task = running("interrupt()")
    if task.run.saver is None:
        raise RuntimeError(
            f"node {task.name!r} called interrupt(), but the graph has no checkpointer, so the run could never be "
            "resumed: compile(checkpointer=InMemorySaver()) and pass a thread_id"
        )
    position = task.asked
    task.asked += 1
    answers = task.run.answers_of(task)
    if position < len(answers):
        return answers[position]
    question = Interrupt(value, interrupt_id(task.ns, position))
    taken = task.run.take_answer(question.id)
    if not taken:
        raise GraphInterrupt((question,))
    answers.append(taken[0])
    return taken[0]


def interrupt_id(ns: str, position: int) -> str:
    """32 hex digits for the question at this position of the task with this namespace."""
    return blake2b(f"{ns}\0{position}".encode(), digest_size=16).hexdigest()


def listed(tasks: Iterable[Task], names: Sequence[str] | str) -> bool:
    """Whether a breakpoint names one of these tasks; "*" names all that are not hidden."""
    if names == "*":
        return any(not task.node.hidden for task in tasks)
    return any(task.name in names for task in tasks)


def questions(tasks: Iterable[Task]) -> tuple[Interrupt, ...]:
    """All questions of these tasks, in the tasks' order, each id once."""
    return tuple({q.id: q for task in tasks for q in task.interrupts}.values())
