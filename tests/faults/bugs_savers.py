"""Bugs on purpose in what a saver promises beside storing, and in stores."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import stategraph.checkpoint.postgres as postgres
import stategraph.checkpoint.sql.group_commit as group_commit
import stategraph.checkpoint.sql.postgres_session as pipeline
import stategraph.checkpoint.sql.sqlite_database as database
import stategraph.pregel.drivers.journal as journal
import stategraph.store.postgres as postgres_store

from .planted import bug, swap


@bug("grouped_commits", 2)
def answered_before_commit(stack: ExitStack):
    """Who has made its write in a group is told so before the group is committed."""
    make, answer = group_commit.QueuedWrite.make, group_commit.answer
    answered = []

    def make_and_answer(self):
        make(self)
        answered.append(self)
        answer([self])

    swap(stack, group_commit.QueuedWrite, "make", make_and_answer)
    swap(stack, group_commit, "answer", lambda made: answer([each for each in made if each not in answered]))


@bug("grouped_commits")
def failures_not_undone(stack: ExitStack):
    """What a write that fails has written stays in its group's transaction."""
    swap(stack, database, "_ROLLBACK_TO", "SELECT 1")


@bug("grouped_commits", 4)
def groups_sink_together(stack: ExitStack):
    """If a group cannot be committed, all its writes have failed."""
    make_next = group_commit.GroupCommit._make_next

    def make_or_fail(self):
        undone = []
        group = self._group

        def noting():
            return note(group(), undone)

        self._group = noting
        try:
            made = make_next(self)
        finally:
            self._group = group
        for write in made if undone else ():
            write.fail(undone[0])
        return made

    swap(stack, group_commit.GroupCommit, "_make_next", make_or_fail)


@contextmanager
def note(group, undone):
    """The same context; what it raises is noted."""
    try:
        with group:
            yield
    except BaseException as error:
        undone.append(error)
        raise


@bug("pipelined_commits", 2)
def sent_is_stored(stack: ExitStack):
    """Each commit of a pipeline counts as stored, whether the head was as it was known or not."""
    store = postgres.PostgresSaver._commit_together
    swap(stack, postgres.PostgresSaver, "_commit_together", lambda self, groups: [bool(store(self, groups))] * len(groups))


@bug("pipelined_commits", 2)
def answered_before_sync(stack: ExitStack):
    """Who waits for a pipeline is told when it is taken up."""
    take = pipeline.CommitPipeline._take

    def take_and_answer(self, most):
        writes = [*take(self, most)]
        pipeline.answer(writes)
        return iter(writes)

    swap(stack, pipeline.CommitPipeline, "_take", take_and_answer)


@bug("pipelined_commits", 4)
def pipelines_sink_together(stack: ExitStack):
    """If one of a pipeline must wait for a lock, or fails, all have failed."""

    def fail(self, write):
        write.fail(RuntimeError("the pipeline"))
        return False

    swap(stack, pipeline.CommitPipeline, "_make_alone", fail)


@bug("racing_batches")
def places_not_locked(stack: ExitStack):
    """Batches on Postgres rely on the locks of rows, which what is not there yet has not."""
    swap(stack, postgres_store, "_LOCK", "SELECT unnest($1::bigint[])")


@bug("opened_at_once")
def impatient_opening(stack: ExitStack):
    """A file that others are opening is given up at once."""
    swap(stack, database, "_is_busy", lambda error: False)


@bug("racing_memories", 30)
def heads_not_required(stack: ExitStack):
    """A checkpoint in the memory of a nested graph is stored whatever has become of the thread."""
    swap(stack, journal.Journal, "_require", lambda self, commits, head: None)


@bug("exit_inside_and_outside", 2)
def memories_stored_first(stack: ExitStack):
    """With durability "exit" the memory of a nested graph is stored when that ends, and the step around it later."""
    swap(stack, journal, "KeptCheckpoints", lambda serde: None)
