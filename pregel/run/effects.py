"""What the loop asks of a driver. Plain records: the driver fills in the answers and resumes the
loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointTuple,
    Commit,
    Post,
    RunnableConfig,
    TaskWrites,
)
from ..task.spans import Span
from ..task.task import Task

if TYPE_CHECKING:
    from ..schedule.races import Races


class Load:
    """Find the checkpoint that the run's config names, or another one.

    Args:
        before: the newest that is older than this one.
        at: this one.
        made_by: the newest that the run of this name has made.
        saver: is asked instead of the run's own. With `before` it is the one that keeps that
            checkpoint; then the checkpoints of the whole graph tell what is older.
        may_be_gone: nothing is found if the named one does not exist, which is an error otherwise.
        continues: this one is not stored; the oldest in which its tasks go on.
        branch: with `before`: a checkpoint of the whole graph, and its checkpointer. What was made
            on other branches than its own is passed over.

    Attributes:
        found: what was found, or None.
        head: the id of the newest of that thread and namespace.
    """

    found: CheckpointTuple | None = None
    head: str | None = None
    # Another live run of this process has delivered this very call before.
    delivered_live: bool = False
    # The call came before, and others have followed: `found` is its end.
    followed: bool = False
    # `head` is not `found`, and the thread is being undone there.
    undoing: bool = False

    def __init__(
        self,
        before: RunnableConfig | None = None,
        at: RunnableConfig | None = None,
        made_by: str | None = None,
        saver: BaseCheckpointSaver | None = None,
        may_be_gone: bool = False,
        continues: str | None = None,
        branch: tuple[RunnableConfig, BaseCheckpointSaver] | None = None,
    ) -> None:
        self.before: RunnableConfig | None = before
        self.at: RunnableConfig | None = at
        self.made_by: str | None = made_by
        self.saver: BaseCheckpointSaver | None = saver
        self.may_be_gone: bool = may_be_gone
        self.continues: str | None = continues
        self.branch: tuple[RunnableConfig, BaseCheckpointSaver] | None = branch


class ReadPosts:
    """Read what was posted to the thread and is not taken; fills `posts`."""

    posts: Sequence[Post] = ()


class Work:
    """Start tasks beside those that are at work, and wait until at least one of all has ended,
    unless chunks are waiting for the reader; or until all have, if nobody waits for single ones.
    Asked again, the driver waits for more.

    It takes `tasks`, and fills `finished` with those that have ended since, and `open` with how
    many have not: none if what is left was dropped after a failure. Outcomes are kept on the tasks.
    `races` are those that they are in, or None.
    """

    races: Races | None = None
    tasks: Sequence[Task] = ()
    finished: Sequence[Task] = ()
    open: int = 0


class Stop:
    """Stop tasks of `work` that have lost their race. Fills its `open` with how many are left."""

    def __init__(self, work: Work, tasks: Sequence[Task]) -> None:
        self.work: Work = work
        self.tasks: Sequence[Task] = tasks


NO_OTHERS: Mapping[str, Sequence[TaskWrites]] = MappingProxyType({})


class Entry:
    """Something to store: what the journal keeps of how that ended.

    Attributes:
        commit: the checkpoint; None if it is only writes beside one, `checkpoint_id`.
        inside: checkpoints of nested graphs, stored before that of `commit` in one transaction.
        done: the checkpointer has answered; `error` is what it raised, or None.
        queued: the journal has it, and stores it unless a commit before it fails.
        posted: nobody waits for it.
        held: it is stored together with what comes next, or soon.
        others: writes that are recorded with it beside other checkpoints, by their ids.
        of_call: a `@task` call left it; should that fail, the whole run does.
        outlasts: its writes count though the task has ended that left them: they are recorded
            beside the newest checkpoint too.
    """

    done: bool = False
    queued: bool = False
    posted: bool = False
    held: bool = False
    of_call: bool = False
    outlasts: bool = False
    error: BaseException | None = None

    def __init__(
        self,
        commit: Commit | None,
        writes: Sequence[TaskWrites] = (),
        checkpoint_id: str = "",
        revision: int | None = None,
        others: Mapping[str, Sequence[TaskWrites]] = NO_OTHERS,
        inside: Sequence[Commit] = (),
    ) -> None:
        self.commit: Commit | None = commit
        self.inside: Sequence[Commit] = inside
        self.writes: Sequence[TaskWrites] = writes
        self.checkpoint_id: str = checkpoint_id
        self.revision: int | None = revision
        self.others: Mapping[str, Sequence[TaskWrites]] = others

    @property
    def size(self) -> int:
        """How many bytes it records beside its checkpoint."""
        return sum(len(data) for each in self.writes for _, (_, data) in each.writes)

    def records(self) -> Mapping[str, Sequence[TaskWrites]]:
        """All that is to be recorded, by the checkpoints beside which it stands. Where a
        checkpointer cannot record it at once, this is the order."""
        if not self.writes:  # the checkpoint may not be stored: the run was cut off before
            return self.others
        return {**self.others, self.checkpoint_id: self.writes}


class Save(Entry):
    """Store a commit, or record writes beside a checkpoint, or several."""

    expires: bool = False

    def hold(self, *, for_task: bool) -> Save:
        """Let it be stored together with what comes next.

        Args:
            for_task: which waits for a task: soon it is stored by itself.
        """
        self.held = self.posted = True
        self.expires = for_task
        return self


class FirstSave(Save):
    """A commit that is stored before anything runs, whatever the durability: another delivery of
    the same call meets it, and ends with a conflict."""


class Claim(Entry):
    """Record that this run continues from the head, perhaps with answers, if no other run has
    recorded anything there since it was loaded, with `revision`."""


class InTransaction:
    """Call a function in a transaction on the checkpointer's database, after all that is to be
    stored before.

    Attributes:
        checkpoint_id: beside which it is recorded.
        function: gives the record; None if nothing is to be called.
        records: those of this run's transactions, by their ids. One that is there is taken.
        record: what is recorded.
    """

    record: TaskWrites | None = None

    def __init__(
        self,
        checkpoint_id: str,
        record_id: str,
        records: dict[str, Any],
        function: Callable[[Any], TaskWrites] | None,
        isolation: str | None,
    ) -> None:
        self.checkpoint_id: str = checkpoint_id
        self.record_id: str = record_id
        self.records: dict[str, Any] = records
        self.function: Callable[[Any], TaskWrites] | None = function
        self.isolation: str | None = isolation

    def keep(self, record: TaskWrites) -> None:
        """Keep the record that was stored."""
        self.record = self.records[self.record_id] = record


WIDE = 256
"""After so many tasks at a stretch a driver may give way: each may take the loop some
microseconds."""


class GiveWay:
    """Asks for nothing. Amid much work of the loop's own it lets others use the event loop."""


class Notify:
    """Enter or leave the span around the run.

    Args:
        begins: enter it.
        error: what has ended the run, if anything has.
    """

    def __init__(
        self, span: Span, *, begins: bool = False, error: BaseException | None = None
    ) -> None:
        self.span: Span = span
        self.begins: bool = begins
        self.error: BaseException | None = error


Effect = Load | ReadPosts | Work | Stop | Save | Claim | GiveWay | Notify
Effects = Generator[Effect, None, None]
