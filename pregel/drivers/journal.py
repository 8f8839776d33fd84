"""The one lane by which a run reaches its saver. Nothing else stores: not the drivers, not `@task`
calls, not tasks.

What is to be stored stands in one queue, first in, first out. So a record comes after the
checkpoint beside which it stands, and once a checkpoint could not be stored nothing that builds on
it is.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...checkpoint.base import Commit
from ...checkpoint.overrides import expecting, records_at_once
from ..run.effects import Claim, Entry, Save
from ..run.run import Run
from .pool import POOL


class Journal:
    """What one run stores, in order.

    Attributes:
        broken: why a checkpoint could not be stored. Whatever comes later is refused with it: it
            belongs to one that may not be there, and would meet the same one when that is made
            anew.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._queue: deque[Entry] = deque()
        self._lane = threading.Lock()
        # Why an entry was not stored of which the loop does not know.
        self.unreported: BaseException | None = None
        self._position = LanePosition(run)
        self.broken: BaseException | None = None

    def store(self, entry: Entry) -> None:
        """Store an entry after all before it, and wait for it.

        Raises:
            Exception: whatever the saver raised, for this entry or for a checkpoint before it.
        """
        self._queue.append(entry)
        with self._lane:
            while not entry.done:  # whoever holds the lane stores for those that wait behind it
                self._store_next(entry)
        if entry.error is not None:
            raise entry.error

    def post(self, entry: Entry) -> None:
        """Store an entry after all before it, and do not wait. `check` and `flush` tell how it
        ended."""
        entry.posted = True
        self._queue.append(entry)
        POOL.submit(self._drain)

    def record(self, entry: Save) -> None:
        """Store what a `@task` call left, from the thread that made the call: as the run's
        durability says."""
        entry.of_call = True
        if self._run.saves_in_background:
            self.post(entry)
        else:
            self.store(entry)

    def flush(self) -> None:
        """Wait until all is stored.

        Raises:
            Exception: whatever the saver raised for an entry of which the loop does not know.
        """
        with self._lane:
            while self._queue:
                self._store_next(None)
        self.check()

    def check(self) -> None:
        """Raise what the saver has raised for an entry of which the loop does not know; do not
        wait."""
        error, self.unreported = self.unreported, None
        if error is not None:
            raise error

    def _drain(self) -> None:
        with self._lane:
            while self._queue:
                self._store_next(None)

    # Not one procedure for both worlds: each stored superstep would pay for its generator (P4, P5).
    def _store_next(self, mine: Entry | None) -> None:
        """Store the first of the queue, with the lane held. Ctrl-C amid another's entry reaches
        this thread, too."""
        entry = self._queue[0]
        try:
            if self.broken is not None:
                raise self.broken
            if entry.commit is not None:
                self._run.thread.saver.commit(entry.commit)  # type: ignore[union-attr]
                self._position.move(entry.commit)
            else:
                self._record(entry)
        except BaseException as error:
            self._fail(entry, error)
            if entry is not mine and not isinstance(error, Exception):
                raise
        finally:
            entry.done = True
            self._queue.popleft()

    def _record(self, entry: Any) -> None:
        run, position = self._run, self._position
        saver = run.thread.saver
        assert saver is not None
        if entry.__class__ is Claim:
            saver.claim(run.thread.config_of(run.position.head), entry.revision, entry.writes)
        elif position.is_past(entry):
            return
        else:
            with position.guard(entry):
                saver.commit_writes(
                    run.thread.thread_id or "", run.ns, entry.checkpoint_id, entry.writes
                )
        position.count()

    def _fail(self, entry: Entry, error: BaseException) -> None:
        entry.error = error
        if isinstance(entry, Save) and entry.commit is not None and self.broken is None:
            self.broken = error
        if (entry.posted or entry.of_call) and self.unreported is None:
            self.unreported = error


class LanePosition:
    """Where the lane stands: the checkpoint that it has stored last, or goes on from, and how often
    something was recorded beside it. If another run records there as well, this one is told: it
    works from what is no longer so."""

    __slots__ = ("_run", "checkpoint_id", "revision")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.checkpoint_id: str | None = None
        self.revision: int | None = None

    def is_past(self, entry: Save) -> bool:
        """Whether an entry comes from a call whose superstep is over, so that nobody will look for
        it."""
        self._take_up()
        return (
            entry.of_call
            and self.checkpoint_id is not None
            and entry.checkpoint_id != self.checkpoint_id
        )

    def guard(self, entry: Save) -> AbstractContextManager[None]:
        """In this context writes are recorded only if nobody else has recorded anything."""
        self._take_up()
        if (
            self.revision is None
            or entry.checkpoint_id != self.checkpoint_id
            or not records_at_once(self._run.thread.saver)
        ):
            return _UNGUARDED
        return expecting(
            self._run.thread.saver, self._run.thread.config_of(entry.checkpoint_id), self.revision
        )

    def move(self, commit: Commit) -> None:
        """A checkpoint has been stored."""
        # Else it is of a graph inside, which the run has kept back.
        if commit.checkpoint_ns == self._run.ns:
            self.checkpoint_id, self.revision = commit.id, 1 if commit.carried else 0

    def count(self) -> None:
        """Something was recorded beside the checkpoint."""
        self._take_up()
        if self.revision is not None:
            self.revision += 1

    def _take_up(self) -> None:
        """Begin at what was loaded, if nothing was stored before."""
        run = self._run
        found = run.position.found
        if (
            self.checkpoint_id is None
            and found is not None
            and run.position.saved_id == run.position.head == found.checkpoint["id"]
        ):
            self.checkpoint_id, self.revision = run.position.saved_id, found.revision


_UNGUARDED: AbstractContextManager[None] = nullcontext()
