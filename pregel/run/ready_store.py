"""What a call with schedule="ready" stores, and when: each step as it ends, or all at the end of
the call, or nothing.

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ...checkpoint.base import (
    CLAIM,
    CONTINUES,
    NULL_TASK_ID,
    UNDER_WAY,
    TaskWrites,
)
from ..superstep.machine import Machine
from ..superstep.rules import open_of
from ..superstep.task import Task
from .commits import CommitBuilder
from .effects import Effects, Save
from .nested import save_kept
from .open_tasks import encode_record
from .origins import find_beside_head, keep_strays
from .resume import claim_end, claim_of, upcoming
from .run import Run, run_of
from .showing import show_checkpoint
from .task_records import describe_kept, marks_of_unfinished


class RunStore:
    """What a run with schedule="ready" stores. This class stores nothing: it serves runs without a
    saver.

    Attributes:
        has_open_step: true from before a step is applied until the journal has its commit. After
            Ctrl-C in between nothing may be stored on top of it.
    """

    def __init__(self, run: Run, machine: Machine) -> None:
        self._run = run
        self._machine = machine
        self.has_open_step: bool = False

    def begin(self) -> Effects:
        """Prepare the thread, before the first task starts."""
        yield from ()

    def apply(self, tasks: Sequence[Task]) -> list[TaskWrites]:
        """Apply what these tasks wrote, as the end of a step; what is to be stored of it.

        Raises:
            Exception: it cannot be stored or applied. Nothing has changed.
        """
        # Encoded before they are applied: a reducer that works in place must not reach the history.
        writes = self._encode(tasks)
        self.has_open_step = True
        try:
            self._apply(tasks)
        except Exception:
            self.has_open_step = False
            raise
        return writes

    def _encode(self, tasks: Sequence[Task]) -> list[TaskWrites]:
        return []

    def _apply(self, tasks: Sequence[Task]) -> None:
        self._machine.apply(tasks)

    def end_step(self, tasks: Sequence[Task], writes: list[TaskWrites]) -> Effects:
        """Store the step that these tasks have ended."""
        self._machine.identify()  # tasks of one path may be under way at once
        self.has_open_step = False
        yield from ()

    def hand_over(self, failed: Sequence[Task]) -> Effects:
        """Record that error handlers take over from these tasks."""
        yield from ()

    def record(self, tasks: Sequence[Task]) -> Effects:
        """Record how far tasks have come, at the end of the call.

        Args:
            tasks: those that have ended and stay under way.
        """
        yield from ()


class StepStore(RunStore):
    """Each step is a checkpoint. What tasks leave that stay under way is recorded beside their
    origins."""

    def begin(self) -> Effects:
        if self._run.position.records:
            yield from keep_strays(self._run, self._machine)

    def _encode(self, tasks: Sequence[Task]) -> list[TaskWrites]:
        return [self._run.commits.encode_writes(task) for task in tasks]

    def end_step(self, tasks: Sequence[Task], writes: list[TaskWrites]) -> Effects:
        commits, machine = self._run.commits, self._machine
        commits.describe(UNDER_WAY, bool(machine.open) or None)
        commit = commits.build(machine, "loop", writes)
        commit.carried = self._move_claim(tasks)
        saved = Save(commit)
        try:
            yield saved
        except BaseException:
            if not saved.queued:  # the claim stands where it stood, and nothing ends it here
                self._run.answers.end_claim()
            raise
        finally:
            self.has_open_step = not saved.queued

    def _move_claim(self, tasks: Sequence[Task]) -> list[TaskWrites]:
        """The answers that have not reached their task go along to the next checkpoint; not those
        to tasks that have lost their races."""
        run, lost = self._run, open_of(self._machine).lost
        claim = claim_of(run)
        if run.answers.claimed is None or claim is None:
            return []
        delivered = {q for task in tasks for q in (*(task.answers or ()), *task.passed_on)}
        for task in lost:
            delivered.update(question.id for question in run.position.record_of(task.id).interrupts)
        left = run.answers.move_claim(delivered, self._machine.checkpoint_id)
        if not left:
            run.answers.end_claim()
            return []
        return [run.commits.encode_command([(CLAIM, {**claim, "answers": left})])]

    def hand_over(self, failed: Sequence[Task]) -> Effects:
        place_of = self._find_places()
        for task in failed:
            yield Save(None, [self._run.commits.encode_failure(task)], place_of(task))

    def record(self, tasks: Sequence[Task]) -> Effects:
        if self._run.abandoned:
            return
        yield from self._record_beside({}, tasks)

    def _encode_ends(self, tasks: Iterable[Task]) -> list[tuple[Task, TaskWrites]]:
        """How far tasks have come that stay under way."""
        commits, record_of = self._run.commits, self._run.position.record_of
        # What was only restored stands in the store as it is.
        ended = ((t, marks_of_unfinished(t, record_of(t.id))) for t in tasks if not t.restored)
        return [(task, commits.encode_marks(task, marks)) for task, marks in ended if marks]

    def _find_places(self) -> Callable[[Task], str]:
        """Says beside which checkpoint a task is recorded: its origin. Where supersteps have
        recorded it since, beside the head."""
        head = self._run.position.saved_id or ""
        at_head = find_beside_head(self._run, self._machine)
        return lambda task: head if task.id in at_head else task.run.machine.checkpoint_id

    def _record_beside(
        self, records: dict[str, list[TaskWrites]], tasks: Sequence[Task]
    ) -> Effects:
        """Record how far tasks have come, each beside its place, and that the call which has
        answered them has ended.

        Args:
            records: what else is recorded, by checkpoint.
        """
        place_of = self._find_places()
        for task, found in self._encode_ends(tasks):
            records.setdefault(place_of(task), []).append(found)
        ended = claim_end(self._run, tasks)
        if records or ended:
            # One transaction: between the questions and the end of the claim another call could
            # answer.
            here = self._run.position.saved_id or ""
            yield Save(None, [*records.pop(here, ()), *ended], here, others=records)


class ExitStore(StepStore):
    """Durability "exit": nothing is stored during the call, and one checkpoint at its end. What is
    under way starts anew in it, as after an edit: it keeps its ids, and what it has recorded."""

    def __init__(self, run: Run, machine: Machine) -> None:
        super().__init__(run, machine)
        # Where the tasks have started, or will, that were there before this call.
        self._before: set[str] = set()
        self._ended: set[str] = set()  # the ids of the tasks that have ended in this call

    def begin(self) -> Effects:
        self._before = {task.run.machine.checkpoint_id for task in open_of(self._machine)}
        self._before.add(self._machine.checkpoint_id)
        yield from ()  # what is recorded goes along with the checkpoint

    def _encode(self, tasks: Sequence[Task]) -> list[TaskWrites]:
        return []

    def _apply(self, tasks: Sequence[Task]) -> None:
        self._run.commits.apply_unstored(self._machine, tasks)
        self.has_open_step = False  # no commit is made of it here
        self._ended.update(each.id for task in tasks for each in (task, task.cause or task))
        self._ended.update(task.id for task in open_of(self._machine).lost)

    def end_step(self, tasks: Sequence[Task], writes: list[TaskWrites]) -> Effects:
        self._move_claim(tasks)
        yield from ()

    def hand_over(self, failed: Sequence[Task]) -> Effects:
        for task in failed:
            commits = run_of(task).commits
            commits.put_off([commits.encode_failure(task)])
        yield from ()

    def record(self, tasks: Sequence[Task]) -> Effects:
        run, machine = self._run, self._machine
        left = [*open_of(machine), *open_of(machine).starting]
        # Nothing is under way: the state alone is stored, with the end of the run.
        if run.abandoned or not left:
            return
        origins = {run_of(task).commits: task.run.machine.checkpoint_id for task in left}
        for commits in origins:
            for inner in commits.left_by_unfinished():
                yield Save(inner)
        # No step has ended: the state is stored, and records go beside the origins.
        if machine.checkpoint_id == run.position.saved_id:
            yield from save_kept(run)
            records: dict[str, list[TaskWrites]] = {}
            for commits, origin in origins.items():
                if commits.exit_records:
                    records.setdefault(origin, []).extend(commits.exit_records)
            yield from self._record_beside(records, tasks)
            return
        # Else: one checkpoint, in which what is under way is pending.
        yield from self._commit(tasks, origins)

    def _commit(self, tasks: Sequence[Task], origins: Mapping[CommitBuilder, str]) -> Effects:
        """Store the one checkpoint of the call, with what is recorded of tasks that go on.

        Args:
            tasks: those that have ended and stay under way.
            origins: where what is under way has started, by the builders of its runs.
        """
        run, machine = self._run, self._machine
        machine.requeue_all()
        # If all of them have started in this call, it leaves behind what was recorded before. Else
        # each call would hand on what all before it had recorded.
        goes_on = not self._before.isdisjoint(origins.values())
        run.commits.describe(CONTINUES, self._list_continued(origins.values(), goes_on))
        commit = run.commits.build_at_exit(machine)
        if commit is None:
            return  # a step is applied by half
        put_off = [commits.exit_records for commits in origins]
        carried = self._carry(tasks, put_off, goes_on)
        commit.carried = [*carried, *claim_end(run, tasks)]
        yield Save(commit, inside=run.take_kept())
        if run.output.streams:
            show_checkpoint(run, upcoming(run, machine))

    def _list_continued(self, origins: Iterable[str], goes_on: bool) -> list[str]:
        """The checkpoints whose tasks go on, so that graphs inside these find what they have
        stored.

        Args:
            goes_on: a task is under way that was there before this call.
        """
        earlier = self._run.position.continued if goes_on else ()
        return [*dict.fromkeys([*earlier, *origins])]

    def _carry(
        self, tasks: Sequence[Task], put_off: Iterable[Sequence[TaskWrites]], goes_on: bool
    ) -> list[TaskWrites]:
        """What is recorded of the tasks that go on, for the one checkpoint: by earlier calls, and
        on top of it by this one."""
        run, ended = self._run, {NULL_TASK_ID, *self._ended}
        carried = self._machine.carried.items()
        kept = {each.id: describe_kept(path, each.joined, begun=True) for path, each in carried}
        known = [id for id in run.position.records if goes_on and id not in ended]
        records: dict[str, TaskWrites] = {}
        for id in dict.fromkeys([*known, *kept]):
            before = run.position.record_of(id)
            # The rest are `@task` calls, or nobody asks for them any more.
            here = kept.get(id) or describe_kept(None)
            records[id] = encode_record(run, id, replace(before, kept=here))
        new = [record for found in put_off for record in found if record.task_id not in ended]
        for record in (*new, *(found for _, found in self._encode_ends(tasks))):
            records[record.task_id] = _overlay(records.get(record.task_id), record)
        return [*records.values()]


def _overlay(before: TaskWrites | None, now: TaskWrites) -> TaskWrites:
    """What was recorded of a task, with what has been recorded since in its place."""
    if before is None:
        return now
    names = {name for name, _ in now.writes}
    kept = [pair for pair in before.writes if pair[0] not in names]
    return now._replace(task_path=before.task_path or now.task_path, writes=[*kept, *now.writes])


def make_store(run: Run, machine: Machine) -> RunStore:
    """What stores the steps of a run."""
    if run.thread.saver is None:
        return RunStore(run, machine)
    kind = ExitStore if run.settings.durability == "exit" else StepStore
    return kind(run, machine)
