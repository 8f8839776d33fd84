"""How checkpointers on SQL databases delete old checkpoints: in short transactions, so that others
can work in between."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from datetime import timedelta
from time import monotonic

from ..errors import DamagedError
from ..records import has_task_ids
from ..retention import RetentionLimits, check_several
from .pruning import PAGE, Choose, Pruning, choose_by_limits, keep_only, read_light
from .queries import NEWEST, Row, SqlSession, lock_namespaces, namespaces_after
from .reader import SqlReader
from .rows import NamespaceRow

LONG = 200
"""A namespace with more checkpoints than this is pruned in several transactions."""

STEP_SECONDS = 0.005
"""How long a transaction of `prune` keeps taking further threads."""

NAMESPACES_AT_ONCE = 1000
"""How many namespaces are read at once to find those that can be pruned."""


class SqlPruner(SqlReader):
    """The methods that delete checkpoints by rules."""

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Delete the checkpoints of these runs, with their writes; see
        `BaseCheckpointSaver.delete_for_runs`."""
        runs = check_several(run_ids, "run_ids")
        with self._session(write=True) as session:
            for (thread_id,) in session.rows("threads_of_runs", sorted(runs)):
                for namespace in lock_namespaces(session, thread_id):
                    self._keep_only(
                        session,
                        namespace,
                        lambda rows: [
                            row.checkpoint_id for row, _ in rows if row.run_id not in runs
                        ],
                    )

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """Delete old checkpoints, with their writes; see `BaseCheckpointSaver.prune`.

        A few threads are pruned in each transaction, and a long one in several, so that others can
        work in between. If it is killed, each thread is consistent; a long one may have more
        checkpoints left than it should.
        """
        for seconds in self._prune_in_steps(thread_ids, RetentionLimits(keep_last, older_than)):
            time.sleep(seconds)

    async def aprune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """Do the same as `prune`, for coroutines."""
        if type(self).prune is not SqlPruner.prune:  # call a subclass's override
            await super().aprune(thread_ids, keep_last=keep_last, older_than=older_than)
            return
        import asyncio  # deferred: a caller that awaits has imported it

        steps = self._prune_in_steps(thread_ids, RetentionLimits(keep_last, older_than))
        while (seconds := await self._acall(next, steps, None)) is not None:
            await asyncio.sleep(seconds)

    def _prune_in_steps(
        self, thread_ids: Collection[str] | None, limits: RetentionLimits
    ) -> Iterator[float]:
        """Prune while being iterated. Each step is a short transaction; it yields for how many
        seconds to let others work."""
        waiting: deque[str]
        if thread_ids is not None:
            waiting = deque(sorted(check_several(thread_ids, "thread_ids")))
        else:
            waiting = deque(sorted((yield from self._find_prunable(limits))))
        damaged: list[DamagedError] = []
        while waiting:
            began, long = monotonic(), deque[str]()
            damaged += self._prune_some(waiting, limits, long)
            if waiting or long:
                yield self._seconds_for_others(monotonic() - began)
            for thread_id in long:
                try:
                    yield from self._prune_long(thread_id, limits)
                except DamagedError as error:
                    damaged.append(error)
        if damaged:
            for other in damaged[1:]:
                damaged[0].add_note(f"also damaged: {other}")
            raise damaged[0]

    def _find_prunable(self, limits: RetentionLimits) -> Generator[float, None, set[str]]:
        """Return the threads that may have something to delete."""
        found: set[str] = set()
        after = 0
        while True:
            began = monotonic()
            with self._session(write=False) as session:
                page = namespaces_after(session, after, NAMESPACES_AT_ONCE)
            found.update(
                each.thread_id
                for each in page
                # A nested graph's history may go with the enclosing checkpoint.
                if each.size > limits.least_kept or has_task_ids(each.checkpoint_ns)
            )
            if len(page) < NAMESPACES_AT_ONCE:
                return found
            after = page[-1].id
            yield self._seconds_for_others(monotonic() - began)

    def _prune_some(
        self, waiting: deque[str], limits: RetentionLimits, long: deque[str]
    ) -> list[DamagedError]:
        """Prune the next threads in one transaction, until its time is over. If one is damaged, use
        one transaction for each, so that it does not stop the others.

        Args:
            long: collects the threads that are too long for this.
        """
        some: list[str] = []
        deadline = monotonic() + STEP_SECONDS
        try:
            with self._session(write=True) as session:
                # At least one, or a slow database would make no progress.
                while waiting and not long and (not some or monotonic() < deadline):
                    some.append(waiting.popleft())
                    namespaces = lock_namespaces(session, some[-1])
                    if any(each.size > LONG for each in namespaces):
                        long.append(some.pop())
                    else:
                        self._prune_thread(session, namespaces, limits)
            return []
        except DamagedError:
            damaged = []
        for thread_id in some:
            try:
                with self._session(write=True) as session:
                    self._prune_thread(session, lock_namespaces(session, thread_id), limits)
            except DamagedError as error:
                damaged.append(error)
        return damaged

    def _seconds_for_others(self, seconds: float) -> float:
        """Return how long to let others work after they had to wait this long."""
        return 0.0

    def _prune_thread(
        self, session: SqlSession, namespaces: Sequence[NamespaceRow], limits: RetentionLimits
    ) -> None:
        """Prune a thread, whose namespaces are locked."""
        kept: dict[str, Collection[str]] = {}
        # Outer graphs first: which checkpoints of a nested graph stay depends on them.
        for namespace in sorted(namespaces, key=lambda each: len(each.checkpoint_ns)):
            name = namespace.checkpoint_ns
            choose = choose_by_limits(limits, kept, name, self.serde.loads)
            self._keep_only(session, namespace, choose)

    def _prune_long(self, thread_id: str, limits: RetentionLimits) -> Iterator[float]:
        """Prune a thread in several transactions. It is consistent after each of them."""
        with self._session(write=False) as session:
            found = [NamespaceRow(*row) for row in session.rows("namespaces", thread_id)]
        found.sort(key=lambda each: len(each.checkpoint_ns))
        rows: dict[int, Sequence[Row]] = {}
        # Inner graphs first: if the thread advances meanwhile, the outer rows are not older than
        # the inner ones.
        for namespace in reversed(found):
            rows[namespace.id] = yield from self._read_light(namespace)
        kept: dict[str, Collection[str]] = {}
        for namespace in found:
            choose = choose_by_limits(limits, kept, namespace.checkpoint_ns, self.serde.loads)
            left = choose(rows[namespace.id])
            if len(left) < len(rows[namespace.id]):
                yield from self._drop_in_steps(namespace, rows[namespace.id], left)

    def _read_light(self, namespace: NamespaceRow) -> Generator[float, None, Sequence[Row]]:
        """Return all checkpoints of a namespace, oldest first, without their values and tables."""
        key, edge = namespace.key(self._integrity), NEWEST
        rows: list[Row] = []
        while True:
            began = monotonic()
            with self._session(write=False) as session:
                page = read_light(session, key, namespace.id, edge)
            rows += page
            if len(page) < PAGE:
                return rows[::-1]
            edge = page[-1][0].seq
            yield self._seconds_for_others(monotonic() - began)

    def _drop_in_steps(
        self, namespace: NamespaceRow, rows: Sequence[Row], kept: Collection[str]
    ) -> Iterator[float]:
        """Delete the checkpoints of a namespace that are not to be kept."""
        going = {row.checkpoint_id for row, _ in rows} - {*kept}
        if not kept:  # at once: an older one must not become the head meanwhile
            with self._session(write=True) as session:
                for locked in lock_namespaces(session, namespace.thread_id):
                    if locked.id == namespace.id:
                        self._keep_only(session, locked, lambda all: _others(all, going))
            return
        key = namespace.key(self._integrity)
        pruning = Pruning(key, namespace.id, rows, kept, self._loads_for_labels)
        while not pruning.is_done:
            began = monotonic()
            with self._session(write=True) as session:
                there = {each.id: each for each in lock_namespaces(session, namespace.thread_id)}
                if namespace.id not in there:
                    return  # the thread was deleted
                pruning.step(session, there[namespace.id])
            yield self._seconds_for_others(monotonic() - began)

    def _keep_only(self, session: SqlSession, namespace: NamespaceRow, choose: Choose) -> None:
        key, loads = namespace.key(self._integrity), self._loads_for_labels
        keep_only(session, namespace, key, choose, loads)


def _others(rows: Sequence[Row], going: Collection[str]) -> Collection[str]:
    """Return the ids of checkpoints that are not to be deleted."""
    return [row.checkpoint_id for row, _ in rows if row.checkpoint_id not in going]
