"""Deletes checkpoints of a thread, in one transaction or, if there are many, in several, so that
others can work in between. Those that stay are complete after each, deltas included."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from time import monotonic
from typing import Any

from ..errors import DamagedError
from ..labels import labels_of
from ..records import SLOT, has_task_ids
from ..retention import (
    RetentionLimits,
    check_several,
    find_origins,
    nearest_kept,
)
from ..serde import Blob
from .queries import (
    NEWEST,
    Row,
    SqlSession,
    lock_namespaces,
    namespaces_after,
    read_chain,
    tail_reader,
)
from .read_rows import materialize, read_writes
from .reader import SqlReader
from .rows import (
    ChannelValue,
    CheckpointBody,
    CheckpointRow,
    NamespaceRow,
    ThreadKey,
    pack_body,
    pack_writes,
    unpack_body,
)

CHUNK = 500
"""How many rows one statement deletes."""

AT_ONCE = 50
"""How many checkpoints of a long namespace are deleted in one transaction."""

PAGE = 256
"""How many rows are read at once to choose what to delete."""

Choose = Callable[[Sequence[Row]], Collection[str]]
"""Takes checkpoints, oldest first; returns the ids of those to keep."""


def _find_origins(rows: Sequence[Row], id: str) -> set[str]:
    """Return the checkpoints at which the tasks were started that are still running at this one."""
    tables = []
    link: int | None = None
    for row, body in reversed(rows):
        if row.checkpoint_id == id or row.seq == link:
            tables.append(body.seen)
            link = row.link
    return find_origins(tables)


def _long(values: Mapping[str, ChannelValue | None]) -> list[tuple[int, str]]:
    """Return the (owner, channel) of the long ones among the values of a checkpoint."""
    owners = ((None if each is None else each.owner, name) for name, each in values.items())
    return [(owner, name) for owner, name in owners if owner is not None]


def read_light(session: SqlSession, key: ThreadKey, namespace_id: int, edge: int) -> list[Row]:
    """Return a page of the checkpoints of a namespace below a sequence, newest first, without their
    values and tables, except what these say about running tasks, and the long values that a
    complete row names.

    Raises:
        DamagedError: they are not what was written.
    """
    found = []
    for row in map(CheckpointRow._make, session.rows("page", [namespace_id], edge, PAGE)):
        if row.namespace_id != namespace_id or row.seq >= edge:
            raise key.damage_error("the index leads to checkpoints of another thread")
        body = unpack_body(key, row)
        slots = {name: seen for name, seen in body.seen.items() if name.startswith(SLOT)}
        long = {name: body.values[name] for _, name in _long(body.values) if row.link is None}
        light = body._replace(values=long, versions={}, seen=slots, parent_writes=())
        found.append((row._replace(body=b""), light))
    return found


class Pruning:
    """Deletes checkpoints of one namespace with their writes, and the values that none of the
    others needs, all at once or some in each transaction.

    The first transaction makes the remaining checkpoints independent of those to be deleted: a
    checkpoint whose parent is deleted gets its nearest remaining ancestor as parent. Then the
    newest of those to be deleted go first: the others build only on older ones, so the thread can
    be read and continued whenever this stops. What others have stored meanwhile stays.

    Args:
        rows: all checkpoints when the choice was made, oldest first; see `read_light`.
        kept: the ids of those that stay. If not all are dropped at once, these include the newest.
        loads: decodes metadata, to delete labels that no checkpoint has any more; None if the
            checkpointer keeps no labels.
        replaced: the id of a deleted checkpoint that is stored again at once: it stays the parent
            of its children, and keeps the writes beside it.
    """

    def __init__(
        self,
        key: ThreadKey,
        namespace_id: int,
        rows: Sequence[Row],
        kept: Collection[str],
        loads: Callable[[Blob], Any] | None,
        replaced: str | None = None,
    ) -> None:
        self._key, self._namespace_id, self._loads = key, namespace_id, loads
        self._replaced = replaced
        self._parents = {row.checkpoint_id: row.parent_id for row, _ in rows}
        self._kept = {*kept}
        self._going = [row for row, _ in rows if row.checkpoint_id not in kept]
        staying = [(row, body) for row, body in rows if row.checkpoint_id in kept]
        self._staying = {row.seq: row.checkpoint_id for row, _ in staying}
        self._metadata = [body.metadata for _, body in staying]
        # Checkpoints that stay and may build on some that go.
        self._roots = [row for row, _ in staying if self._is_root(row)]
        # The (owner, channel) of values that stay although their checkpoints go, or are gone, since
        # others build on them; and of those by which they are found. What stays and builds on a
        # complete row needs no others than that.
        self._needed: set[tuple[int, str]] = set()
        complete = (body for row, body in staying if row.link is None)
        self._named = {each for body in complete for each in _long(body.values)}
        self._newest = rows[-1][0]
        self._last = self._newest.seq
        self._has_begun = False

    @property
    def is_done(self) -> bool:
        """Whether everything to be deleted is deleted."""
        return not self._going

    def step(self, session: SqlSession, namespace: NamespaceRow) -> None:
        """Delete some more. The namespace, as it is now, is locked.

        Raises:
            DamagedError: some checkpoints are missing.
        """
        # Another session has deleted what was to stay, and may have created the thread again,
        # reusing sequences.
        if _find(session, self._newest) is None:
            self._going.clear()
            return
        if not self._has_begun:
            ((size, there),) = session.rows("count", namespace.id)
            if there < size:
                raise self._key.damage_error(f"{size - there} of its checkpoints are missing")
            self._has_begun = True
        self._add_new(session)
        # Another has deleted some. Were they to stay, values may be needed that were not before.
        if namespace.size < len(self._staying) + len(self._going):
            ((left,),) = session.rows("count_of", namespace.id, [*self._staying])
            if left < len(self._staying):
                self._going.clear()
                return
        self.drop(session, namespace, AT_ONCE)

    def drop(self, session: SqlSession, namespace: NamespaceRow, most: int) -> None:
        """Delete the newest ones."""
        block = self._going[-most:]
        del self._going[-most:]
        gone = {row.checkpoint_id for row in block}
        roots, self._roots = self._roots, []
        for root in roots:
            self._free(session, root, gone)
        if self._named:  # statements do not take an empty list of pairs
            chains = session.rows("value_chains", namespace.id, sorted(self._named))
            self._needed.update(chains)
            self._named.clear()
        for row in block:
            self._keep_parent_writes(session, row, gone)
        id, owners = namespace.id, [row.seq for row in block]
        drop(session, "drop_rows", id, owners)
        # Last also those that an earlier choice has left without a checkpoint, for others that
        # built on them then.
        done = self.is_done
        left = session.rows("orphans", id) if done else session.rows("values_of", id, owners)
        unneeded = [each for each in left if (each[0], each[1]) not in self._needed]
        drop(session, "drop_values", id, unneeded)
        drop(session, "drop_writes", id, [*gone - {self._replaced}])
        if self._loads is not None and done and session.rows("has_labels", id):
            labels = {label for each in self._metadata for label in labels_of(self._loads(each))}
            session.run("keep_labels", id, sorted(labels))
        head, head_id = namespace.head, namespace.head_id
        if head in owners:
            head = max(self._staying, default=None)
            head_id = None if head is None else self._staying[head]
        set_head(session, id, head, head_id)
        # A namespace may have writes before its first checkpoint.
        if head is None and self._replaced is None and not session.rows("all_writes", id):
            session.run("forget_labels", id)
            session.run("drop_namespace", id)

    def _is_root(self, row: CheckpointRow) -> bool:
        if row.parent_id not in self._kept:
            return True
        return row.link is not None and row.link not in self._staying

    def _add_new(self, session: SqlSession) -> None:
        """Read what others have stored since: it stays, and may build on what goes."""
        new: list[CheckpointRow] = []
        edge = NEWEST
        while edge > self._last:
            page = session.rows("page", [self._namespace_id], edge, PAGE)
            found = [row for row in map(CheckpointRow._make, page) if row.seq > self._last]
            new += found
            edge = found[-1].seq if len(found) == PAGE else 0
        for row in reversed(new):
            self._parents[row.checkpoint_id] = row.parent_id
            self._kept.add(row.checkpoint_id)
            self._staying[row.seq] = row.checkpoint_id
            self._last = row.seq
            self._metadata.append(unpack_body(self._key, row).metadata)
            if self._is_root(row):
                self._roots.append(row)

    def _free(self, session: SqlSession, root: CheckpointRow, gone: Collection[str]) -> None:
        """Rewrite a row that stays, so that it builds on none that goes.

        Args:
            gone: the ids of those that go in this transaction.
        """
        row = _find(session, root)
        if row is None:
            return  # another session has deleted it
        state, body = materialize(self._key, read_chain(session, row))
        self._named.update(_long(state.values))
        parent, is_left = row.parent_id, row.parent_id in self._kept
        # Its parent still exists, and is deleted later or stored again.
        is_replaced = parent is not None and parent == self._replaced
        stays = parent in self._parents and (parent not in gone or is_replaced)
        if body.parent_writes and parent is not None and stays and not is_left:
            record_beside(session, self._key, self._namespace_id, parent, body)
        loses_link = row.link is not None and row.link not in self._staying
        new_parent = parent  # one that was never here is left as it is named
        if parent in self._parents:
            left = {*self._kept, self._replaced}
            new_parent = nearest_kept(self._parents, row.checkpoint_id, left)
        if not (loses_link or is_replaced or new_parent != parent):
            return
        revision = body.parent_revision
        if new_parent != parent and revision is not None:
            revision = None if new_parent is None else 0  # how many it has is unknown
        body = body._replace(
            # Otherwise deleted with the parent, or recorded beside it.
            parent_writes=body.parent_writes if is_left else (),
            parent_revision=revision,
            values={**state.values},
            versions=state.versions,
            seen=state.seen,
        )
        data = pack_body(self._key, row.checkpoint_id, new_parent, body, complete=True)
        session.run("rewrite", new_parent, data, row.seq)

    def _keep_parent_writes(
        self, session: SqlSession, going: CheckpointRow, gone: Collection[str]
    ) -> None:
        """Move the writes of the parent's tasks that a row holds to a record beside the parent, if
        that is left."""
        parent_id = going.parent_id
        if parent_id is None or parent_id in gone or parent_id not in self._parents:
            return
        row = _find(session, going)
        if row is None or not session.rows("by_id", self._namespace_id, parent_id):
            return
        body = unpack_body(self._key, row)
        if body.parent_writes:
            record_beside(session, self._key, self._namespace_id, parent_id, body)


def _find(session: SqlSession, wanted: CheckpointRow) -> CheckpointRow | None:
    """Return a row as it is now; None if it is gone."""
    found = session.rows("by_id", wanted.namespace_id, wanted.checkpoint_id)
    rows = map(CheckpointRow._make, found)
    return next((row for row in rows if row.seq == wanted.seq), None)


def record_beside(
    session: SqlSession,
    key: ThreadKey,
    namespace_id: int,
    checkpoint_id: str,
    after: CheckpointBody,
) -> None:
    """Record beside a checkpoint the writes of its tasks that the next row holds."""
    batches = [data for _, data in session.rows("writes", namespace_id, [checkpoint_id])]
    read_tail = tail_reader(session, key, namespace_id, after)
    tasks = read_writes(key, checkpoint_id, batches, after, read_tail)
    session.run("drop_writes", namespace_id, [checkpoint_id])
    for position in range(max(len(batches), 1)):  # as many rows as before, since they are counted
        data = pack_writes(key, checkpoint_id, position, tasks if position == 0 else ())
        session.run("add_writes", namespace_id, checkpoint_id, data)


def read_rows(session: SqlSession, key: ThreadKey, namespace_id: int) -> list[CheckpointRow]:
    """Return the rows of a namespace, oldest first.

    Raises:
        DamagedError: rows are missing, or belong to another namespace.
    """
    rows = [CheckpointRow(*row) for row in session.rows("all_rows", namespace_id)]
    ((size, _),) = session.rows("count", namespace_id) or ((0, 0),)
    if len(rows) < size or any(row.namespace_id != namespace_id for row in rows):
        raise key.damage_error(
            "some of its checkpoints are missing, or the index leads to those of another thread"
        )
    return rows


def set_head(
    session: SqlSession, namespace_id: int, seq: int | None, checkpoint_id: str | None
) -> None:
    """Make a checkpoint the head of its namespace, and count the records beside it."""
    revision = 0
    if checkpoint_id is not None:
        ((revision,),) = session.rows("count_writes", namespace_id, checkpoint_id)
    session.run("set_head", seq, checkpoint_id, revision, namespace_id)


def drop(session: SqlSession, statement: str, namespace_id: int, gone: Sequence[Any]) -> None:
    """Delete rows by a statement that takes a list of them, a limited number at a time."""
    for start in range(0, len(gone), CHUNK):
        session.run(statement, namespace_id, [*gone[start : start + CHUNK]])


# -- pruner ----------------------------------------------------------------------------------------
# How checkpointers on SQL databases delete old checkpoints: in short transactions, so that others
# can work in between.

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
        kept: dict[str, Mapping[str, int]] = {}
        # Outer graphs first: which checkpoints of a nested graph stay depends on them.
        for namespace in sorted(namespaces, key=lambda each: len(each.checkpoint_ns)):
            choose = partial(self._choose, limits, kept, namespace.checkpoint_ns)
            self._keep_only(session, namespace, choose)

    def _choose(
        self,
        limits: RetentionLimits,
        kept: dict[str, Mapping[str, int]],
        checkpoint_ns: str,
        rows: Sequence[Row],
    ) -> Collection[str]:
        """Return the ids of the checkpoints of a namespace that stay; see
        `RetentionLimits.choose_kept`."""
        loads, bodies = self.serde.loads, {row.checkpoint_id: body for row, body in rows}

        @cache
        def metadata_of(id: str) -> Mapping[str, Any]:
            return loads(bodies[id].metadata)  # type: ignore[no-any-return]

        made = [(row.checkpoint_id, body.ts, row.seq) for row, body in rows]
        return limits.choose_kept(
            checkpoint_ns, made, kept, metadata_of, partial(_find_origins, rows)
        )

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
        kept: dict[str, Mapping[str, int]] = {}
        for namespace in found:
            left = self._choose(limits, kept, namespace.checkpoint_ns, rows[namespace.id])
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
                        self._keep_only(session, locked, partial(ids_without, gone=going))
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

    def _keep_only(
        self,
        session: SqlSession,
        namespace: NamespaceRow,
        choose: Choose,
        replaced: str | None = None,
    ) -> None:
        """Delete all checkpoints of a namespace except those chosen, in one transaction.

        Args:
            replaced: see `Pruning`.
        """
        key = namespace.key(self._integrity)
        rows = [(row, unpack_body(key, row)) for row in read_rows(session, key, namespace.id)]
        kept = choose(rows)
        if len(kept) < len(rows):
            pruning = Pruning(key, namespace.id, rows, kept, self._loads_for_labels, replaced)
            pruning.drop(session, namespace, len(rows))


def ids_without(rows: Sequence[Row], gone: Collection[str]) -> Collection[str]:
    """Return the ids of all checkpoints but some."""
    return [row.checkpoint_id for row, _ in rows if row.checkpoint_id not in gone]
