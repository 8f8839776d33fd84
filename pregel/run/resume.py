"""A call that brings a `Command`, or goes on with what another has brought: answers are claimed, updates applied.

Part of the loop, before its first superstep and after its last: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...channels.base import MISSING
from ...checkpoint.base import CLAIM, NULL_TASK_ID, TaskWrites
from ..errors import InvalidUpdateError, UnknownInterruptError
from ..names import BY_COMMAND, DELIVERED, START
from ..program.writes import Pair, StateWriter
from ..superstep.interrupts import looks_like_answers
from ..superstep.machine import Machine
from ..superstep.task import Task
from ..types import Command, Interrupt
from .answers import FIRST, TASK, Answers, claim_record, locked, moved_id, task_digits
from .effects import Claim, Effects, Save
from .nested import is_time_travel
from .run import Run
from .snapshots import Stored, given_answers, undelivered_answers, upcoming, waiting_questions, with_handlers

MOST_DELIVERED = 64
"""So many runs are remembered that brought an answer and made no checkpoint of their own."""


def take_answers(run: Run, machine: Machine, answer: Any) -> None:
    """Bind an answer, or a map of answers, to the questions that wait for one.

    Raises:
        UnknownInterruptError: it fits none of them; or another call has brought answers, and has not ended.
    """
    if run.saver is None:
        raise RuntimeError("Command(resume=...) needs a checkpointer: without one no run can be resumed")
    tasks = pending_tasks(run, machine)
    if not tasks:
        raise UnknownInterruptError("not_pending", (), ())
    # Its tasks run anew, so what was answered is open again.
    superseded = run.saved_id != run.head or is_time_travel(run)
    pending = _all_asked(tasks, run.stored) if superseded else waiting_questions(tasks, run.stored)
    inside = run.way if superseded else None
    if inside is not None:  # there, others were asked than those that the whole graph has seen last
        pending = {question: task for question, task in pending.items() if question[TASK] == task_digits(task.ns)}
        pending.update((question, task) for task in tasks if task.path_text == inside.task for question in inside.asked)
    left = {} if superseded else undelivered_answers(run.stored)
    if left and locked(claim_of(run)):
        raise UnknownInterruptError("answered", [q for q in left if q != FIRST], pending)
    left.pop(FIRST, None)
    found = run.answers
    if isinstance(answer, dict) and answer and pending.keys() >= answer.keys():
        nested = [q for q in answer if q[TASK] != task_digits(pending[q].ns)]
        if superseded and inside is None and len(answer) > 1 and nested:
            raise UnknownInterruptError("nested", nested, pending)
        found.by_id = {**left, **answer}
    elif looks_like_answers(answer):
        raise UnknownInterruptError("not_pending", [key for key in answer if key not in pending], pending)
    else:
        _bind_single(found, answer, pending, left)
    if not superseded and run.saved_id is not None:
        found.beside = run.saved_id
        found.claimed = {**found.by_id, **({FIRST: found.first} if found.first is not MISSING else {})}
    found.brought_any = True


def _bind_single(found: Answers, answer: Any, pending: dict[str, Task], left: dict[str, Any]) -> None:
    """An answer without an id is for the only question that is open, or for the first that is asked."""
    open_ = [question for question in pending if question not in left] or [*pending]
    if len(open_) > 1:
        raise UnknownInterruptError("ambiguous", (), pending)
    found.by_id = dict(left)
    if open_:
        found.by_id[open_[0]] = answer
        found.only_in = pending[open_[0]].id, open_[0]
    else:
        found.first = answer


def take_over(run: Run, machine: Machine) -> None:
    """Go on with the answers of a call that did not come to its end."""
    claim = claim_of(run)
    if claim is None or run.saved_id != run.head:
        return
    left = undelivered_answers(run.stored)
    found = run.answers
    found.claimed, found.beside = dict(left), run.saved_id
    if FIRST in left:
        found.first, found.renewed = left.pop(FIRST), True
    found.by_id = left
    found.brought_any = bool(claim_of(run)) and (bool(left) or found.renewed)


def _all_asked(tasks: Sequence[Task], stored: Mapping[str, Stored]) -> dict[str, Task]:
    return {question.id: task for task in tasks for question in stored.get(task.id, Stored()).interrupts}


def pending_tasks(run: Run, machine: Machine) -> list[Task]:
    """The tasks of the superstep that is open, with those of error handlers that had taken over."""
    return with_handlers(upcoming(run, machine), run.stored)


def open_questions(run: Run, machine: Machine) -> tuple[Interrupt, ...]:
    """The questions that wait for an answer, as they were asked."""
    waiting = waiting_questions(pending_tasks(run, machine), run.stored)
    asked = {question.id: question for known in run.stored.values() for question in known.waiting}
    return tuple(asked[question] for question in waiting)


def claim_of(run: Run) -> Any:
    """The claim that is stored beside the checkpoint, or None."""
    null = run.stored.get(NULL_TASK_ID)
    return null.claim if null is not None else None


# -- what is recorded of it -------------------------------------------------------------------------------------


def was_taken(run: Run) -> bool:
    """Whether the command of this run was taken before: it is delivered once more."""
    if run.run_id is None or run.found is None:
        return False
    claim = claim_of(run)
    if claim is not None and run.run_id in claim["taken"]:
        return True
    return run.found.metadata.get("run_id") == run.run_id and BY_COMMAND in run.found.metadata


def command_writes(run: Run, command: Command[Any]) -> list[Pair]:
    """A command's update and goto as writes.

    Raises:
        InvalidUpdateError: the graph has no such key or node.
    """
    target = _CommandTask()
    try:
        StateWriter(run.program.scope).write(Command(update=command.update, goto=command.goto), target)
    except InvalidUpdateError as error:
        error.add_note("in the Command given as input")
        raise
    return target.writes


class _CommandTask:
    """Stands in for a task where a command's update and goto are turned into writes."""

    name = START

    def __init__(self) -> None:
        self.writes: list[Pair] = []


def record_command(run: Run, writes: Sequence[Pair]) -> Effects:
    """Record beside the head what a command brings: if it answers, only one of several calls comes through.

    Args:
        writes: of its update and goto.
    """
    claimed, null = run.answers.claimed, run.stored.setdefault(NULL_TASK_ID, Stored())
    if claimed is None and not writes:
        return
    null.writes = [*null.writes, *writes]
    pairs: list[Pair] = list(null.writes)
    if claimed is not None or run.run_id is not None:
        before = claim_of(run) or {"answers": {}, "taken": ()}
        taken = [*before["taken"], *([run.run_id] if run.run_id is not None else ())]
        held = before["answers"] if claimed is None else claimed
        null.claim = {**claim_record(held, run.run_id, taken, given_answers(run.stored)), "live": claimed is not None}
        pairs.append((CLAIM, null.claim))
    record = _encode(run, pairs)
    if claimed is not None:
        yield Claim([record], run.found.revision)
    else:
        yield Save(None, [record], run.saved_id or "")


def _encode(run: Run, pairs: Sequence[Pair]) -> TaskWrites:
    assert run.saver is not None
    encoded = []
    for name, value in pairs:
        try:
            encoded.append((name, run.saver.serde.dumps(value)))
        except Exception as error:
            what = "the answer in Command(resume=...)" if name == CLAIM else f"key {name!r} of the Command"
            error.add_note(f"while storing {what} to thread {run.thread_id!r}")
            raise
    return TaskWrites(NULL_TASK_ID, "", encoded)


def claim_end(run: Run, tasks: Sequence[Task] = ()) -> list[TaskWrites]:
    """What says that the run which brought answers has ended, if it got no further than the questions: what has not
    reached its question stays for the next call, which may bring more. To be recorded once, with the last of the run's
    tasks if there are any: in between another call could take over, and this would undo what that one has recorded.

    Args:
        tasks: how they ended. What they ask in spite of an answer cannot be answered (a signal raised by hand), or the
            answer did not fit: it is dropped.
    """
    answers = run.answers
    claimed, answers.claimed = answers.claimed, None
    if claimed is None or answers.beside != run.saved_id or run.abandoned:
        return []
    asked = {question.id for task in tasks if not task.restored for question in task.interrupts}
    left = {question: answer for question, answer in claimed.items() if question != FIRST and question not in asked}
    return [_encode(run, [(CLAIM, {**claim_of(run), "answers": left, "live": False})])]


def end_claim(run: Run) -> Effects:
    """Record what `claim_end` says, if it was not recorded with any task."""
    ended = claim_end(run)
    if ended:
        yield Save(None, ended, run.saved_id or "")


def note_deliveries(run: Run) -> None:
    """Let the next checkpoints tell which runs brought an answer here and made no checkpoint of their own, so that
    these are known if they are delivered again."""
    assert run.found is not None
    claim = claim_of(run)
    before = run.found.metadata.get(DELIVERED, ())
    taken = [run_id for run_id in (claim["taken"] if claim is not None else ()) if run_id != run.run_id]
    if before or taken:
        run.metadata[DELIVERED] = [*dict.fromkeys([*before, *taken])][-MOST_DELIVERED:]


# -- on another branch ------------------------------------------------------------------------------------------


def move_answers(run: Run, answers: Answers, before: Sequence[tuple[Stored, str]], tasks: Sequence[Task]) -> None:
    """Bind answers to the same questions of the same tasks in a fork, whose ids differ.

    Args:
        answers: those that the call has brought.
        before: what was stored of each task, and its namespace then.
        tasks: the same tasks in the fork.
    """
    given, moved = answers.by_id, {}
    for (known, old_ns), task in zip(before, tasks, strict=True):
        task.run = run
        digits, shown = task_digits(old_ns), {question.id for question in known.interrupts}
        kept = {q: answer for q, answer in known.answers.items() if q[TASK] == digits and q not in shown}
        if kept:
            run.stored[task.id] = Stored(answers={moved_id(q, task.ns): answer for q, answer in kept.items()})
        for question in [q for q in given if q[TASK] == digits]:
            moved[moved_id(question, task.ns)] = given.pop(question)
    way = run.way
    left = [q for q in given if way is None or (not way.stages and q in way.asked)]
    if left:  # a nested graph's questions: that starts over, and takes the answer when it asks
        answers.first = next(given.pop(question) for question in left)
    given.update(moved)
