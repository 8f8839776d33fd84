"""The one lane by which a run reaches its checkpointer. Nothing else stores: not the drivers, not
`@task` calls, not tasks.

What is to be stored stands in one queue, first in, first out. So a record comes after the
checkpoint beside which it stands, and once a checkpoint could not be stored nothing that builds on
it is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from sys import modules
from typing import Any

from ...checkpoint.base import (
    Checkpoint,
    CheckpointTuple,
    Commit,
    Expected,
    Place,
    RunnableConfig,
    TaskWrites,
    address,
)
from ...checkpoint.overrides import stores_at_once
from ...checkpoint.records import TransactionPlace
from ...checkpoint.serde import Serializer
from ...checkpoint.threads import call_on_thread
from ..errors import CheckpointConflictError
from ..run.effects import Claim, Entry, InTransaction, Save
from ..run.run import Run
from ..steps import Steps, run_steps
from .pool import HELD, POOL

LARGEST_GROUP = 1 << 20
"""So many bytes of what `@task` calls have left are recorded together: it becomes one row."""


class Journal:
    """What one run stores, in order.

    On threads `store`, `record` and `flush` have waited when they return. In an `AsyncJournal` they
    give what is to be awaited, or None.

    Attributes:
        face: how the names of the checkpointer's methods begin that it calls.
        broken: why a checkpoint could not be stored. Whatever comes later is refused with it: it
            belongs to one that may not be there, and would meet the same one when that is made
            anew.
    """

    face = ""
    own_writer: str = ""
    """The node that has written to the thread of its own run, by another run."""

    def note_own_writer(self, node: str) -> None:
        """Note that a node has done so: a conflict then comes from there."""
        self.own_writer = node

    def __init__(self, run: Run) -> None:
        saver = run.thread.saver
        assert saver is not None
        # Not the run, which holds this journal: in a circle, all that a call has read and made
        # would be kept until the collector comes.
        self._thread, self._settings, self._output = run.thread, run.settings, run.output
        self._parent = run.parent
        self._where: Place = (run.thread.thread_id or "", run.ns)
        # The saver's methods by which this journal stores.
        self._commit: Any = getattr(saver, f"{self.face}commit")
        self._record: Any = getattr(saver, f"{self.face}record")
        self._kept: KeptCheckpoints | None = None
        at_exit = run.settings.durability == "exit"
        if run.parent is None:
            if at_exit:
                self._kept = KeptCheckpoints(saver.serde)
        elif at_exit or run.settings.graph.checkpointer is True:
            self._join(run.outermost)
        self._observe(run.observing)
        self._queue: deque[Entry] = deque()
        self._lane = threading.Lock()
        # Why an entry was not stored of which the loop does not know.
        self.unreported: BaseException | None = None
        self._position = LanePosition(run)
        self.broken: BaseException | None = None

    def _observe(self, observing: Any) -> None:
        """Have the calls of the checkpointer watched, if anybody is told of them."""
        # What is kept for the outermost run is told of when that stores it.
        kept = self._kept is not None and self._parent is not None
        # Whoever has not loaded logging sees no warning of a slow commit.
        if "logging" in modules and not kept and not self._thread.saver.in_memory:  # type: ignore[union-attr]
            from ..log import time_commits

            self._commit = time_commits(self._commit, self._thread, self._settings.program.name)
        if observing is not None:
            if not kept:
                self._commit = observing.time_commits(self._commit)
            self._record = observing.watch_records(self._record)

    # -- what nested graphs have made --------------------------------------------------------------

    def _join(self, root: Run) -> None:
        """Leave the checkpoints to the outermost run, if it stores all at its end; else store those
        of a memory in turn with its own, whose head they require. If that run keeps its thread with
        another checkpointer, or stores nothing, the head of the memory decides alone."""
        journal: Any = root.journal
        if root.thread.saver is not self._thread.saver:
            return
        self._kept = kept = journal._kept
        if kept is not None:
            self._commit = kept.commit
        elif self._settings.graph.checkpointer is True:
            self._commit = partial(journal.commit_inside, awaits=self.face == "a")

    def commit_inside(self, commits: Sequence[Commit], *, awaits: bool) -> Any:
        """Store checkpoints of a memory inside once all before is stored. Nothing of this run is
        stored meanwhile, so they require the head at which it stands.

        Args:
            awaits: give what is to be awaited, instead of waiting here.

        Raises:
            Exception: whatever the checkpointer raised, for these or for a checkpoint before them.
        """
        steps = self._commit_inside_lane(commits)
        if not awaits:
            return self._take_turn(steps)
        return call_on_thread(self._take_turn, steps)

    def _take_turn(self, steps: Steps[None]) -> None:
        with self._lane:
            run_steps(steps)

    def _commit_inside_lane(self, commits: Sequence[Commit]) -> Steps[None]:
        yield from self._store_queued()
        if self.broken is not None:
            raise self.broken
        yield self._commit_below(self.face, commits)

    def _commit_below(self, face: str, commits: Sequence[Commit]) -> Any:
        self._require(commits, self._position.head)
        return getattr(self._thread.saver, f"{face}commit")(commits)

    def _require(self, commits: Sequence[Commit], head: str | None) -> None:
        """Let commits in memories be stored only while this is the head of the outermost run."""
        for commit in commits:
            commit.requires = ((self._thread.ns, head),)

    def take_kept(self) -> Sequence[Commit]:
        """With durability "exit", return the checkpoints of nested graphs that the outermost run is
        to store."""
        if self._kept is None or self._parent is not None:
            return ()
        return self._kept.take()

    def find_kept(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint of a nested graph that this call has made and not stored yet."""
        return None if self._kept is None else self._kept.find(config)

    def find_kept_head(self, config: RunnableConfig) -> str | None:
        """Return the id of the newest checkpoint of a nested graph, if it is not stored yet."""
        return None if self._kept is None else self._kept.head(config)

    # -- what is stored ----------------------------------------------------------------------------

    def store(self, entry: Entry) -> Any:
        """Store an entry after all before it, and wait for it.

        Raises:
            Exception: whatever the checkpointer raised, for this entry or one before it.
        """
        entry.queued = True
        self._queue.append(entry)
        if entry.held:
            self._hold(entry)
            return
        with self._lane:  # whoever holds the lane stores for those that wait behind it
            # On threads nothing is left to wait for, nor does it ask for results. Such a loop ends
            # without the exception that `run_steps` has to catch (P4, P5).
            for _ in self._store_queued(entry):
                pass
        if entry.error is not None:
            raise entry.error

    def _hold(self, entry: Any) -> None:
        if entry.expires:
            HELD.submit(entry, self._store_if_idle)

    def _store_if_idle(self) -> bool:
        """Store what is held. Return True to be called again if something is being stored: that may
        be it, and of many nested runs each would make a thread wait (benchmark P23)."""
        if self._lane.locked():
            return True
        self._start_draining()
        return False

    def post(self, entry: Entry) -> None:
        """Store an entry after all before it, and do not wait. `check` and `flush` tell how it
        ended."""
        entry.posted = True
        entry.queued = True
        self._queue.append(entry)
        self._start_draining()

    def record(self, entry: Save, *, wait: bool) -> Any:
        """Store what a task has left in the middle of its superstep: a `@task` call, or
        `runtime.once`. Any thread may call it.

        Args:
            wait: until it is stored.
        """
        entry.of_call = True
        return self.store(entry) if wait else self.post(entry)

    def transact(self, asked: InTransaction) -> Any:
        """Call a function in a transaction of the checkpointer's, once all before it is stored.
        Nothing else of this run is stored meanwhile.

        Raises:
            Exception: whatever the function raised, or the checkpointer for a checkpoint before it.
        """
        self._take_turn(self._transact_in_lane(asked))

    def _transact_in_lane(self, asked: InTransaction) -> Steps[None]:
        yield from self._store_queued()
        if self.broken is not None:
            raise self.broken
        # Another attempt of the same task may have come first.
        asked.record = asked.records.get(asked.record_id)
        if asked.record is not None or asked.function is None:
            return
        position, id = self._position, asked.checkpoint_id
        counted = position.counts(id)
        expected = Expected(position.head, position.revision) if counted else Expected(id)
        place = TransactionPlace(self._where, id, expected, asked.record_id, asked.isolation)
        transact = getattr(self._thread.saver, f"{self.face}transact")
        done = yield transact(place, asked.function)
        if counted:
            position.revision = done.revision
        asked.keep(done.record)

    @property
    def holds(self) -> bool:
        """Whether what came last is held until more comes."""
        return bool(self._queue) and self._queue[-1].held

    def flush(self) -> Any:
        """Wait until all is stored.

        Raises:
            Exception: whatever the checkpointer raised for an entry unknown to the loop.
        """
        with self._lane:
            run_steps(self._store_queued())
        self.check()

    def check(self) -> None:
        """Raise what the checkpointer has raised for an entry of which the loop does not know; do
        not wait."""
        error, self.unreported = self.unreported, None
        if error is not None:
            raise error

    def _start_draining(self) -> Any:
        POOL.submit(self._drain)

    def _drain(self) -> Any:
        # Whatever is raised is noted: it is raised where the run waits, and not on this thread too.
        with suppress(BaseException), self._lane:
            run_steps(self._store_queued())

    def _store_queued(self, mine: Entry | None = None) -> Steps[None]:
        """Store what stands in the queue, or no more than `mine` and all before it. With the lane
        held.

        Raises:
            BaseException: Ctrl-C amid another's entry: it reaches whoever holds the lane, too.
        """
        position = self._position
        while self._queue and not (mine is not None and mine.done):
            first = self._queue[0]
            entries = self._next_entries() if len(self._queue) > 1 else (first,)
            try:
                if self.broken is not None:
                    raise self.broken
                if first.commit is None:
                    yield from self._store_records(entries)
                    continue
                position.prepare(first.commit)
                commits: Any = [*first.inside, first.commit]
                if first.inside:
                    self._require(first.inside, first.commit.head)
                elif first.held:
                    commits = [entry.commit for entry in entries]
                waited = self._commit(commits)
                if waited is not None:  # threads have waited, and need not stop here (P4, P5)
                    yield waited
                for commit in commits:
                    position.move(commit)
            except BaseException as error:
                for entry in entries:
                    self._fail(entry, error)
                if not isinstance(error, Exception) and mine not in entries:
                    raise
            finally:
                for entry in entries:
                    entry.done = True
                    self._queue.popleft()

    def _next_entries(self) -> Sequence[Entry]:
        """What is stored together: commits that were held, with the one for which they waited if it
        is there; or what `@task` calls beside one checkpoint have left."""
        queue = self._queue
        first = queue[0]
        if not (first.held or first.of_call):
            return (first,)
        entries, size = [first], first.size
        # By index: other threads append meanwhile.
        for index in range(1, len(queue)):
            entry = queue[index]
            if first.of_call:
                if not entry.of_call or entry.checkpoint_id != first.checkpoint_id:
                    break
                size += entry.size
                if size > LARGEST_GROUP:
                    break
            elif not entries[-1].held or entry.commit is None:
                break
            entries.append(entry)
        return entries

    def _store_records(self, entries: Sequence[Entry]) -> Steps[None]:
        position, entry = self._position, entries[0]
        if entry.inside:
            self._require(entry.inside, position.head)
            yield self._commit(entry.inside)
            return
        records = entry.records()
        if len(entries) > 1:
            records = {entry.checkpoint_id: [record for each in entries for record in each.writes]}
        lasting = [record for each in entries if each.outlasts for record in each.writes]
        head = position.moved_to(entry.checkpoint_id) if lasting else None
        if head is not None:
            if position.is_past(entry):
                entry.checkpoint_id, records = head, {}
            records = {**records, head: lasting}
        if self._kept is not None and self._kept.record(records):
            return
        if position.is_past(entry):
            return
        expected = position.expect(entry)
        revision = self._record(self._where, expected, records)
        if self.face:
            revision = yield revision
        if expected is not None:
            position.revision = revision

    def _fail(self, entry: Entry, error: BaseException) -> None:
        entry.error = error
        if isinstance(error, CheckpointConflictError) and error is not self.broken:
            from ..log import log_conflict

            log_conflict(self._thread, self._settings.program.name, error)
        if isinstance(entry, Save) and entry.commit is not None and self.broken is None:
            self.broken = error
        if entry.posted or entry.of_call:
            self.unreported = self.unreported or error
        # What waits for the reader tells of a superstep that was not stored.
        elif isinstance(entry, Save):
            self._output.drop_chunks()


class LanePosition:
    """Where the lane stands: the checkpoint that it has stored last, or goes on from, and how often
    something was recorded beside it. If another run records there as well, this one is told: it
    works from what is no longer so.
    """

    __slots__ = (
        "_by_origin", "_counts_records", "_ns", "_run_position", "_saver_state", "checkpoint_id",
        "revision",
    )  # fmt: skip

    def __init__(self, run: Run) -> None:
        self._ns, self._run_position = run.ns, run.position
        self._by_origin: bool = run.program.starts_ready
        self._counts_records = stores_at_once(run.thread.saver)
        self.checkpoint_id: str | None = None
        self.revision: int | None = None
        self._saver_state: Any = None

    def moved_to(self, checkpoint_id: str) -> str | None:
        """The checkpoint that was stored last; None if it is this one, or none was."""
        self._take_up()
        return None if self.checkpoint_id == checkpoint_id else self.checkpoint_id

    def is_past(self, entry: Entry) -> bool:
        """Whether an entry comes from a call whose superstep is over, so that nobody will look for
        it. With schedule="ready" it is found beside the origin of its task."""
        self._take_up()
        return (
            entry.of_call
            and not self._by_origin
            and self.checkpoint_id is not None
            and entry.checkpoint_id != self.checkpoint_id
        )

    def counts(self, checkpoint_id: str | None) -> bool:
        """Whether what is recorded beside this checkpoint counts where the lane stands, and it is
        known how often that has been done. With schedule="ready" all of it does."""
        self._take_up()
        here = self._by_origin or checkpoint_id == self.checkpoint_id
        return here and self.checkpoint_id is not None and self.revision is not None

    def expect(self, entry: Entry) -> Expected | None:
        """Return what the checkpointer must find for an entry to be stored, so that of several runs
        that work from the same head one goes on; None if it is stored whatever is there."""
        self._take_up()
        if entry.__class__ is Claim:
            return Expected(self._run_position.head, entry.revision)
        if self.counts(entry.checkpoint_id):
            return Expected(self.head, self.revision)
        # Beside an earlier checkpoint with schedule="ready", by a saver that does not count.
        elsewhere = entry.others or entry.checkpoint_id != self.checkpoint_id
        return Expected(self.head) if self._by_origin and elsewhere else None

    @property
    def head(self) -> str | None:
        """The id of the head as this run knows it."""
        self._take_up()
        return self.checkpoint_id or self._run_position.head

    def prepare(self, commit: Commit) -> None:
        """Give a commit what the checkpointer has left with this run."""
        if self.checkpoint_id is None:
            commit.saver_state = _saver_state_of(self._run_position.found)
        # A commit that builds on another checkpoint (a branch, a nested graph) has another state;
        # that of the saver would be wrong.
        elif commit.parent_id == self.checkpoint_id:
            commit.saver_state, commit.revision = self._saver_state, self.revision

    def move(self, commit: Commit) -> None:
        """A checkpoint has been stored."""
        # Else it is of a graph inside, which the run has kept back.
        if commit.checkpoint_ns == self._ns:
            self.checkpoint_id = commit.id
            self.revision = (1 if commit.carried else 0) if self._counts_records else None
            self._saver_state = commit.saver_state

    def _take_up(self) -> None:
        """Begin at what was loaded, if nothing was stored before."""
        found = self._run_position.loaded_head
        if self.checkpoint_id is None and found is not None:
            self.checkpoint_id = found.checkpoint["id"]
            self.revision = found.revision if self._counts_records else None
            self._saver_state = _saver_state_of(found)


def _saver_state_of(found: CheckpointTuple | None) -> Any:
    return getattr(found, "saver_state", None)  # a saver of a user's may leave none


# -- durability "exit" -----------------------------------------------------------------------------

class KeptCheckpoints:
    """The checkpoints that nested graphs have made during one call, and that the outermost run
    stores with its own, in one transaction: those of memories (`checkpointer=True`), and those of
    graphs whose tasks will run again. Until then a task of the same call finds them here.

    Args:
        serde: the checkpointer's.
    """

    def __init__(self, serde: Serializer) -> None:
        from ...checkpoint.memory import InMemorySaver  # deferred: many calls keep none (P26)

        self._commits: dict[str, Commit] = {}
        # What is kept, as a run loads it; its own heads count there.
        self._histories = InMemorySaver(serde=serde)

    def commit(self, commits: Sequence[Commit]) -> None:
        """Keep checkpoints."""
        for commit in commits:
            known = self._histories.head(address(commit.thread_id, commit.checkpoint_ns))
            self._histories.commit([replace(commit, head=known, values={**commit.values})])
            # The live state may change before it is stored.
            commit.whole = partial(self._read_whole, commit)
            self._commits[commit.id] = commit

    def _read_whole(self, commit: Commit) -> Checkpoint:
        at = address(commit.thread_id, commit.checkpoint_ns, commit.id)
        found = self._histories.get_tuple(at)
        assert found is not None
        return found.checkpoint

    def record(self, records: Mapping[str, Sequence[TaskWrites]]) -> bool:
        """Keep what is recorded beside these checkpoints; False if not all of them are kept here,
        so that it is to be stored."""
        if not records or not records.keys() <= self._commits.keys():
            return False
        for id, writes in records.items():
            commit = self._commits[id]
            commit.carried = [*commit.carried, *writes]
            where = (commit.thread_id, commit.checkpoint_ns)
            self._histories.record(where, None, {id: writes})
        return True

    def find(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest, if it is kept here."""
        return self._histories.get_tuple(config) if self._commits else None

    def head(self, config: RunnableConfig) -> str | None:
        """Return the id of the newest checkpoint of a nested graph, if one is kept here."""
        return self._histories.head(config) if self._commits else None

    def take(self) -> list[Commit]:
        """Return all checkpoints, in their order, and keep them no longer."""
        commits = [*self._commits.values()]
        self._commits.clear()
        return commits
