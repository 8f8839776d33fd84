"""A call that brings a `Command`, or goes on with what another has brought: answers are claimed,
updates applied.

Part of the loop, before its first superstep and after its last: generators that ask for effects and
perform none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...checkpoint.base import CLAIM, MADE_BY, RESUME, TaskWrites
from ..errors import InvalidUpdateError, UnknownInterruptError
from ..names import BY_COMMAND, DELIVERED, START
from ..program.writes import Draft, Pair
from ..task.attempt_state import earliest
from ..task.interrupts import TASK, looks_like_answers, moved_id, questions, task_digits
from ..task.task import Task
from ..types import Command, Interrupt
from .effects import Claim, Effects, Save
from .ledger import FIRST, ClaimRecord, Ledger, TaskRecord
from .run import Run

MOST_DELIVERED = 64
"""So many runs are remembered that brought an answer and made no checkpoint of their own."""


def take_answers(
    run: Run, tasks: Sequence[Task], answer: Any, *, branches: bool
) -> list[TaskWrites]:
    """Bind an answer, or a map of answers, to the questions that wait for one.

    Args:
        tasks: those that are pending.
        branches: they run anew on a branch of their own, so what was answered is open again.

    Returns:
        The answers of tasks that failed with those which are answered anew: without these. To be
        recorded with the claim, so that after a crash the new ones count.

    Raises:
        UnknownInterruptError: it fits none of them; or another call has brought answers, and has
            not ended.
    """
    if run.thread.saver is None:
        raise RuntimeError(
            "Command(resume=...) needs a checkpointer: without one no run can be resumed; "
            "compile(checkpointer=...)"
        )
    if not tasks:
        raise UnknownInterruptError("not_pending", (), ())
    ledger = run.ledger
    if branches:
        _bind(ledger, answer, _asked_on_branch(run, tasks, answer), {}, {})
        return []
    pending = ledger.find_waiting(tasks)
    open_ = [task for task in tasks if not ledger.of(task.id).finished]
    if open_ and not pending and all(ledger.of(task.id).asleep for task in open_):
        raise UnknownInterruptError("asleep", (), ())
    left = ledger.undelivered()
    # If the run that has claimed them is dead, `invoke(None)` goes on with them; to take answers
    # here as well would let two runs do the same nodes.
    if left and ledger.has_live_claim:
        raise UnknownInterruptError("answered", [q for q in left if q != FIRST], pending)
    # This call has an answer of its own for the first question. Two could not be told apart.
    left.pop(FIRST, None)
    _bind(ledger, answer, pending, ledger.find_failed(open_), left)
    ledger.begin_claim(run.position.saved_id)
    return [
        run.commits.encode_marks(task, {RESUME: ledger.known(task)})
        for task in open_
        if not ledger.of(task.id).failed_answers.isdisjoint(ledger.brought)
    ]


def _bind(
    ledger: Ledger,
    answer: Any,
    pending: Mapping[str, Task],
    failed: Mapping[str, Task],
    left: Mapping[str, Any],
) -> None:
    """Say which question an answer is for; a map says so itself.

    Args:
        pending: the questions that wait.
        failed: those with whose answers a task has failed. They are meant where none waits.
        left: the answers to some of them that another call has brought.
    """
    # An answer may itself be a dict. It is a map only if each key is an open question.
    if isinstance(answer, dict) and answer and {**failed, **pending}.keys() >= answer.keys():
        ledger.bring({**left, **answer})
        return
    pending = pending or failed
    # Meant as a map but stale. Handed over as a plain answer it would reach the wrong question.
    if looks_like_answers(answer):
        unknown = [key for key in answer if key not in pending]
        raise UnknownInterruptError("not_pending", unknown, pending)
    # Without an id it is for the only question that is open, or for the first that is asked.
    open_ = [question for question in pending if question not in left] or [*pending]
    if len(open_) > 1:
        raise UnknownInterruptError("ambiguous", (), pending)
    if open_:
        question = open_[0]
        ledger.bring({**left, question: answer}, only=(pending[question].id, question))
    else:
        # The open tasks have recorded no question (a breakpoint, a crash before they asked).
        ledger.bring({**left, FIRST: answer})


def _asked_on_branch(run: Run, tasks: Sequence[Task], answer: Any) -> dict[str, Task]:
    """The questions of tasks that run anew, answered ones too.

    Raises:
        UnknownInterruptError: several are answered, and one is a nested graph's: that starts over
            on a branch, where only one answer can find its question.
    """
    route = run.replay.route
    asked = {q.id: task for task in tasks for q in run.ledger.of(task.id).interrupts}
    own = {question: task for question, task in asked.items() if _is_own(question, task)}
    if route is None:
        if isinstance(answer, dict) and len(answer) > 1 and asked.keys() >= answer.keys():
            nested = [question for question in answer if question not in own]
            if nested:
                raise UnknownInterruptError("nested", nested, asked)
        return asked
    # Inside a nested checkpoint that the caller has named, others were asked than those that the
    # whole graph has seen last.
    led = next((task for task in tasks if task.path_text == route.task), None)
    return own if led is None else {**own, **dict.fromkeys(route.asked, led)}


def _is_own(question: str, task: Task) -> bool:
    """Whether a task asks this question itself, not a graph that it runs."""
    return question[TASK] == task_digits(task.ns)


def take_over(run: Run) -> None:
    """Go on with the answers of a call that did not come to its end."""
    # An old checkpoint's claim is history: what follows it has used it.
    if run.ledger.claim is not None and run.position.at_head:
        run.ledger.bring_again(run.ledger.undelivered(), run.position.saved_id)


def pending_tasks(run: Run) -> list[Task]:
    """The tasks of the superstep that is open, with those of error handlers that had taken over."""
    return run.ledger.with_handlers(upcoming(run))


def upcoming(run: Run) -> list[Task]:
    """The tasks of the next superstep, to be looked at: their input is not coerced."""
    state = run.machine.as_superstep()
    return state.plan(run.look_at(state), coerce=False)


def open_questions(run: Run) -> tuple[Interrupt, ...]:
    """The questions that wait for an answer, as they were asked."""
    waiting = run.ledger.find_waiting(pending_tasks(run))
    asked = {each.id: each for known in run.ledger.values() for each in known.waiting}
    return tuple(asked[question] for question in waiting)


# -- what is recorded of it ------------------------------------------------------------------------


def was_taken(run: Run) -> bool:
    """Whether the command of this run was taken before: it is delivered once more."""
    run_id, found, claim = run.thread.run_id, run.position.found, run.ledger.claim
    assert found is not None
    if claim is not None and run_id in claim["taken"]:
        return True
    return found.metadata.get("run_id") == run_id and BY_COMMAND in found.metadata


def command_writes(run: Run, command: Command[Any]) -> list[Pair]:
    """A command's update and goto as writes.

    Raises:
        InvalidUpdateError: the graph has no such key or node.
    """
    # The writer of the nodes: a Command means the same, whoever gives it.
    target = Draft(START)
    try:
        writer = run.program.scope.make_writer()
        writer.write(Command(update=command.update, goto=command.goto), target)
    except InvalidUpdateError as error:
        error.add_note("in the Command given as input")
        raise
    return target.writes


def record_command(
    run: Run, writes: Sequence[Pair], reopened: Sequence[TaskWrites] = ()
) -> Effects:
    """Record beside the head what a command brings: if it answers, only one of several calls comes
    through.

    Args:
        writes: of its update and goto.
        reopened: what `take_answers` has returned.
    """
    position, run_id = run.position, run.thread.run_id
    ledger, found = run.ledger, position.found
    answers = ledger.beside is not None
    # A command that says nothing leaves nothing. Without a checkpoint there is no place beside it:
    # `START_BY_COMMAND` stores one.
    if not (answers or writes) or found is None:
        return
    before = ledger.command
    # They are stored by position, where the first write stays: the new ones come after the old, and
    # behind the version that has written them, if it is not that of the checkpoint.
    pairs = [*before.writes]
    by = MADE_BY, dict(run.program.fingerprint)
    if writes and position.is_converted and [*filter(_is_mark, pairs)][-1:] != [by]:
        pairs.append(by)
    pairs += writes
    record = replace(before, writes=pairs)
    # A named run is noted even without answers, so that its delivery is known if it comes again.
    if answers or run_id is not None:
        earlier: Any = before.claim or {"taken": [], "answers": {}}
        record.claim = ClaimRecord(
            answers=ledger.claimed if answers else dict(earlier["answers"]),
            run_id=run_id,
            taken=[*earlier["taken"], *([] if run_id is None else [run_id])],
            before=[*ledger.given],
            live=answers,
        )
        pairs = [*pairs, (CLAIM, record.claim)]
    ledger.note_command(record)
    encoded = run.commits.encode_command(pairs)
    if answers or run.may_come_twice:
        yield Claim(None, [encoded, *reopened], position.head or "", found.revision)
    else:
        yield Save(None, [encoded], position.saved_id or "")


def _is_mark(pair: Pair) -> bool:
    return pair[0] == MADE_BY


def claim_place(run: Run) -> Effects:
    """Record beside the head that a call with a run id, which brings nothing or has come before,
    runs what is pending there: of several that begin so at the same time one goes on, before any
    node runs. Nothing is recorded if nothing would run."""
    position, ledger = run.position, run.ledger
    assert position.found is not None
    records = [ledger.of(task.id) for task in pending_tasks(run)]
    if all(known.finished or ledger.find_pause(known) is not None for known in records):
        return
    claim = ledger.claim or ClaimRecord(
        answers={}, run_id=run.thread.run_id, taken=[], before=[], live=False
    )
    encoded = run.commits.encode_command([(CLAIM, claim)])
    yield Claim(None, [encoded], position.head or "", position.found.revision)


def claim_end(run: Run, tasks: Sequence[Task] = ()) -> list[TaskWrites]:
    """What says that the run which brought answers has ended, if it got no further than the
    questions: what has not reached its question stays for the next call, which may bring more. To
    be recorded once, with the last of the run's tasks if there are any: in between another call
    could take over, and this would undo what that one has recorded.

    Args:
        tasks: how they ended. What they ask in spite of an answer cannot be answered (a signal
            raised by hand), or the answer did not fit: it is dropped.
    """
    ledger = run.ledger
    beside, claim = ledger.end_claim(), ledger.claim
    # If the superstep has ended and the head moved on, nobody reads this claim any more.
    if beside is None or claim is None or beside != run.position.saved_id or run.abandoned:
        return []
    asked = {question.id for task in tasks if not task.restored for question in task.interrupts}
    left = {
        question: answer
        for question, answer in ledger.claimed.items()
        if question != FIRST and question not in asked
    }
    return [run.commits.encode_command([(CLAIM, {**claim, "answers": left, "live": False})])]


def end_claim(run: Run) -> Effects:
    """Record what `claim_end` says, if it was not recorded with any task."""
    ended = claim_end(run)
    if ended:
        yield Save(None, ended, run.position.saved_id or "")


def note_deliveries(run: Run) -> None:
    """Let the next checkpoints tell which runs brought an answer here and made no checkpoint of
    their own, so that these are known if they are delivered again."""
    found, claim = run.position.found, run.ledger.claim
    assert found is not None
    before: Any = found.metadata.get(DELIVERED, ())
    # The claim of this very run says so itself, and its checkpoints carry the run id.
    taken = [
        run_id
        for run_id in (claim["taken"] if claim is not None else ())
        if run_id != run.thread.run_id
    ]
    if before or taken:
        run.commits.describe(DELIVERED, [*dict.fromkeys([*before, *taken])][-MOST_DELIVERED:])


# -- a call that ends with questions ---------------------------------------------------------------


def pause(run: Run, tasks: Sequence[Task]) -> None:
    """End the call with what its tasks ask, or until the first of them goes on by itself.

    Raises:
        Exception: why an answer was not taken, if this is the outermost run.
    """
    pauses = [task.pause for task in tasks if task.pause is not None]
    rejected = next((pause.rejected for pause in pauses if pause.rejected is not None), None)
    if rejected is not None:
        if run.parent is None:
            raise rejected
        # Raised at the end of the outermost run, when all is recorded.
        run.parent.current.rejected_inside = rejected
    run.output.pause(
        questions(tasks),
        only_asked=not any(pause.raised for pause in pauses),
        wake_at=earliest(pause.wake_at for pause in pauses),
    )


def restore(run: Run, tasks: Sequence[Task]) -> None:
    """Give tasks that had finished before, in an earlier attempt at this superstep, what they wrote
    then."""
    ledger = run.ledger
    for task in tasks:
        record = ledger.get(task.id)
        if record is None:
            continue
        run.outermost.replay.note_resumed(task)
        if record.finished:
            task.restore(record.writes)
            task.mark_recorded()
        elif record.error is not None:
            if record.routed and task.node.handler is not None:
                task.restore_end(record.error)  # its handler had taken over
        # No answer came, or it sleeps: run again it would repeat its side effects and ask the same.
        elif (pause := ledger.find_pause(record)) is not None:
            task.restore_end(pause)
        if task.restored and run.observing is not None:
            run.observing.restore(task)


# -- on another branch -----------------------------------------------------------------------------


def move_answers(
    run: Run, brought: Ledger, before: Sequence[tuple[TaskRecord, str]], tasks: Sequence[Task]
) -> None:
    """Bind answers to the same questions of the same tasks in a fork, whose ids differ.

    Args:
        brought: of the run whose call has brought them.
        before: what was recorded of each task, and its namespace then.
        tasks: the same tasks in the fork.
    """
    moved: dict[str, str] = {}
    asked_in: dict[str, str] = {}
    records: dict[str, TaskRecord] = {}
    for (record, old_ns), task in zip(before, tasks, strict=True):
        digits = task_digits(old_ns)
        # Ids begin with the digits of the task; those of other tasks belong to graphs inside.
        own = [q for q in (*record.answers, *brought.brought) if q[TASK] == digits]
        moved.update((q, moved_id(q, task.ns)) for q in own)
        asked_in.update((question.id, task.id) for question in record.interrupts)
        # What was answered before the open questions stays; those are open again.
        closed = {*own} & record.answers.keys() - {question.id for question in record.interrupts}
        if closed:
            kept = {moved[q]: record.answers[q] for q in record.answers if q in closed}
            records[task.id] = TaskRecord(answers=kept)
    run.ledger.replace(records)
    route = run.replay.route
    # Questions of nested graphs.
    inside = [q for q in brought.brought if q not in moved and q != FIRST]
    if route is not None:
        inside = [q for q in inside if not route.stages and q in route.asked]
    if inside:
        run.ledger.bring_inside(brought, inside[0], asked_in.get(inside[0]))
    brought.move(moved)
