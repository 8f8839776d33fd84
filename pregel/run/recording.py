"""What a call stores, and when: each step as it ends, or all at its end (durability="exit").

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ...checkpoint.base import (
    CLAIM,
    CONTINUES,
    ERROR,
    NULL_TASK_ID,
    UNDER_WAY,
    TaskWrites,
)
from ..task.task import Task
from .commits import CommitBuilder
from .effects import Effects, Save
from .ledger import describe_kept
from .nested import save_kept
from .resume import claim_end, end_claim, upcoming
from .run import Run, run_of
from .snapshots import live_snapshot
from .stream import OF_CHECKPOINTS


class Recording:
    """Stores what a run does; nothing if it has no checkpointer.

    A task is recorded beside its origin, the checkpoint at which it has started. In supersteps that
    is always the head.

    Attributes:
        half_done: true from before a step is applied until the journal has its commit. After Ctrl-C
            in between nothing may be stored on top of it.
        exits: with durability "exit".
        stores_steps: each step is stored as it ends.
    """

    half_done: bool = False

    def __init__(self, run: Run) -> None:
        self._run = run
        self._machine = run.machine
        stores = run.thread.saver is not None
        self.exits: bool = stores and run.settings.durability == "exit"
        self.stores_steps: bool = stores and not self.exits

    def begin(self) -> Effects:
        """Prepare a thread with open tasks, before the first task starts."""
        run, machine = self._run, self._machine
        if self.exits:
            # Where the tasks have started, or will, that were there before this call; and the ids
            # of those that have ended in it.
            self._ended: set[str] = set()
            self._before = {task.run.machine.checkpoint_id for task in machine.open or ()}
            self._before.add(machine.checkpoint_id)
        elif run.ledger:
            from .origins import keep_strays

            yield from keep_strays(run)

    # -- a step ends -------------------------------------------------------------------------------

    def end_step(self, tasks: Sequence[Task], writes: list[TaskWrites]) -> Save | None:
        """Return what stores the step that these tasks have ended, if it is stored at once."""
        run, machine = self._run, self._machine
        commits, open_ = run.commits, machine.open
        if not self.stores_steps:
            if open_ is not None and self.exits:
                self._ended.update(each.id for task in tasks for each in (task, task.cause or task))
                self._ended.update(task.id for task in open_.lost)
                self._move_claim(tasks, open_.lost)
            return None
        if open_ is not None:
            commits.describe(UNDER_WAY, bool(open_) or None)
        commit = commits.build(machine, "loop", writes)
        if open_ is not None:
            commit.carried = self._move_claim(tasks, open_.lost)
        saved = Save(commit)
        if commits.holds_start and tasks[0].node.hidden:
            saved.hold(for_task=True)
        return saved

    def note_unsaved(self, saved: Save) -> None:
        """Note that storing a step has failed, or was cut short."""
        self.half_done = not saved.queued
        if not saved.queued:  # the claim stands where it stood, and nothing ends it here
            self._run.ledger.end_claim()

    def _move_claim(self, tasks: Sequence[Task], lost: Sequence[Task]) -> list[TaskWrites]:
        """Let the answers that have not reached their task go along to the next checkpoint; not
        those to tasks that have lost their races."""
        ledger, claim = self._run.ledger, self._run.ledger.claim
        if ledger.beside is None or claim is None:
            return []
        delivered = {q for task in tasks for q in (*(task.answers or ()), *task.passed_on)}
        for task in lost:
            delivered.update(question.id for question in ledger.of(task.id).interrupts)
        left = ledger.move_claim(delivered, self._machine.checkpoint_id)
        if not left:
            return []
        return [self._run.commits.encode_command([(CLAIM, {**claim, "answers": left})])]

    # -- amid a step -------------------------------------------------------------------------------

    def record_early(self, tasks: Sequence[Task]) -> Effects:
        """Record what tasks of a superstep wrote that have finished while others still run."""
        run, saved_id = self._run, self._run.position.saved_id
        if tasks and run.records_early and saved_id is not None:
            yield Save(None, [run.commits.encode_writes(task) for task in tasks], saved_id)
            for task in tasks:
                task.mark_recorded()

    def record_failures(self, failed: Sequence[Task]) -> Effects:
        """Record that error handlers take over from these tasks, before they run: after a crash the
        handler goes on and the node is not repeated."""
        if self._run.thread.saver is None:
            return
        records: dict[str, list[TaskWrites]] = {}
        place_of = self._find_places()
        for task in failed:
            commits = run_of(task).commits
            if self.exits:
                commits.put_off([commits.encode_failure(task)])
            else:
                records.setdefault(place_of(task), []).append(commits.encode_failure(task))
        yield from self._save_records(records, [])

    def record_refused(self, tasks: Sequence[Task], error: Exception) -> Effects:
        """Record that no task of a superstep counts as finished, since their writes could not be
        applied together: a resume runs them again instead of failing on the same writes for
        ever."""
        run = self._run
        if not self.stores_steps:
            return
        error.add_note(f"Thread {run.thread.thread_id!r} is as it was before this superstep.")
        marks = {ERROR: error}
        recorded = [run.commits.encode_marks(task, marks) for task in tasks if task.recorded]
        yield from self._save_records({}, recorded)

    # -- the call ends -----------------------------------------------------------------------------

    def record(self, tasks: Sequence[Task]) -> Effects:
        """Record how far tasks have come that the call leaves open; of those at work, nothing.

        Args:
            tasks: those that have started.
        """
        run, machine = self._run, self._machine
        if run.thread.saver is None or run.abandoned:
            return
        # Looked at once: a thread may be at work, whose task finishes meanwhile.
        ends = self._encode_ends(tasks)
        open_ = machine.open
        if open_ is not None and self.exits:
            left = [*open_, *open_.starting]
            if not left:
                return  # the state alone is stored, when the call has ended
            origins = {run_of(task).commits: task.run.machine.checkpoint_id for task in left}
        else:
            if self.exits:  # the checkpoint beside which the records stand is not stored yet
                yield from self._save_at_exit()
            origins = {run.commits: run.position.saved_id or ""}
        # Their tasks run again, and the graphs inside must find where they had come to.
        for commits in origins:
            for inner in commits.left_by_unfinished():
                yield Save(inner)
        if open_ is not None and self.exits:
            if machine.checkpoint_id != run.position.saved_id:
                # A step has ended: one checkpoint, in which what is open is pending.
                yield from self._save_open(tasks, ends, origins)
                return
            yield from save_kept(run)
        records: dict[str, list[TaskWrites]] = {}
        for commits, origin in origins.items():
            if commits.exit_records:
                records[origin] = list(commits.exit_records)
        place_of = self._find_places()
        for task, found in ends:
            records.setdefault(place_of(task), []).append(found)
        yield from self._save_records(records, claim_end(run, tasks))

    def finish(self, *, finished: bool) -> Effects:
        """Store what was put off, and that the run is over."""
        # The commit first: it moves the head, and then nobody reads the claim any more.
        if self.exits and not self._run.abandoned:
            yield from self._save_at_exit(finished=finished)
        yield from end_claim(self._run)

    def _encode_ends(self, tasks: Iterable[Task]) -> list[tuple[Task, TaskWrites]]:
        """How far tasks have come: what they wrote, or their errors, questions and answers."""
        commits = self._run.commits
        found = []
        for task in tasks:
            if task.finished:
                if not task.recorded:
                    found.append((task, commits.encode_writes(task)))
            elif not task.restored:  # what was only restored stands in the store as it is
                marks = self._run.ledger.marks_of(task)
                if marks:
                    found.append((task, commits.encode_marks(task, marks)))
        return found

    def _find_places(self) -> Callable[[Task], str]:
        """Return what says beside which checkpoint a task is recorded: its origin. Where supersteps
        have recorded it since, beside the head."""
        head = self._run.position.saved_id or ""
        if self._machine.open is None:
            return lambda task: head
        from .origins import find_beside_head

        at_head = find_beside_head(self._run)
        return lambda task: head if task.id in at_head else task.run.machine.checkpoint_id

    def _save_records(
        self, records: dict[str, list[TaskWrites]], here: Sequence[TaskWrites]
    ) -> Effects:
        """Store records, by checkpoint, and others beside the head: in one transaction, as between
        the questions and the end of the claim another call could answer."""
        head = self._run.position.saved_id
        if records or here:
            own = records.pop(head or "", ())
            if head is not None or records:
                yield Save(None, [*own, *here], head or "", others=records)

    # -- durability "exit" -------------------------------------------------------------------------

    def _save_at_exit(self, *, finished: bool = False) -> Effects:
        """Store the one checkpoint of this call, and those of the memories inside. A nested graph
        which has finished leaves it to the run around it, where that is enough."""
        run = self._run
        commit = run.commits.build_at_exit(self._machine)
        if commit is None:
            yield from save_kept(run)
            return
        if finished and run.parent is not None:
            around = run_of(run.parent).commits
            if run.commits.leave_to(around, run.parent, commit):
                return
        yield Save(commit, inside=run.take_kept())
        show_checkpoint(run)

    def _save_open(
        self,
        tasks: Sequence[Task],
        ends: Sequence[tuple[Task, TaskWrites]],
        origins: Mapping[CommitBuilder, str],
    ) -> Effects:
        """Store the one checkpoint of the call, in which open tasks start again: as after an edit
        they keep their ids, and what is recorded of them.

        Args:
            tasks: those that have ended and stay open.
            ends: what is recorded of them.
            origins: where the open tasks have started, by the builders of their runs.
        """
        run, machine = self._run, self._machine
        machine.requeue_all()
        # If all of them have started in this call, it leaves behind what was recorded before. Else
        # each call would hand on what all before it had recorded.
        goes_on = not self._before.isdisjoint(origins.values())
        earlier = run.position.continued if goes_on else ()
        # Graphs inside these tasks find what they have stored.
        run.commits.describe(CONTINUES, [*dict.fromkeys([*earlier, *origins.values()])])
        commit = run.commits.build_at_exit(machine)
        if commit is None:
            return  # a step is applied by half
        new = [record for commits in origins for record in commits.exit_records]
        new += (found for _, found in ends)
        commit.carried = [*self._carry(new, goes_on), *claim_end(run, tasks)]
        yield Save(commit, inside=run.take_kept())
        show_checkpoint(run)

    def _carry(self, new: Sequence[TaskWrites], goes_on: bool) -> list[TaskWrites]:
        """What is recorded of the tasks that go on, for the one checkpoint: by earlier calls, and
        on top of it by this one."""
        run, ended = self._run, {NULL_TASK_ID, *self._ended}
        serde = run.settings.serde
        carried = self._machine.carried.items()
        kept = {each.id: describe_kept(path, each.joined, begun=True) for path, each in carried}
        known = [id for id in run.ledger if goes_on and id not in ended]
        records: dict[str, TaskWrites] = {}
        for id in dict.fromkeys([*known, *kept]):
            before = run.ledger.of(id)
            # The rest are `@task` calls, or nobody asks for them any more.
            here = kept.get(id) or describe_kept(None)
            records[id] = replace(before, kept=here).encode(serde, id)
        for record in new:
            if record.task_id not in ended:
                records[record.task_id] = _overlay(records.get(record.task_id), record)
        return [*records.values()]


def _overlay(before: TaskWrites | None, now: TaskWrites) -> TaskWrites:
    """What was recorded of a task, with what has been recorded since in its place."""
    if before is None:
        return now
    names = {name for name, _ in now.writes}
    kept = [pair for pair in before.writes if pair[0] not in names]
    return now._replace(task_path=before.task_path or now.task_path, writes=[*kept, *now.writes])


def show_checkpoint(run: Run, tasks: Sequence[Task] | None = None) -> None:
    """Show readers the last checkpoint, now that the tasks that follow it are known.

    Args:
        tasks: None if nobody has made them yet.
    """
    state = None
    for stream in run.output.streams if run.commits.last is not None else ():
        if not stream.modes.isdisjoint(OF_CHECKPOINTS):
            state = state or live_snapshot(run, upcoming(run) if tasks is None else tasks)
            stream.checkpoint(state)
    if state is not None:
        run.commits.take_last()
