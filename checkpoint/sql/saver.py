"""What savers on SQL databases have in common: which statements answer which call. The texts, and how a connection is
had, are each database's own. All that is user data is bound; no text of a user's ever becomes SQL.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from ...channels.base import MISSING
from ..base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointConflictError,
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    RunnableConfig,
    TaskWrites,
    address,
    coordinates,
)
from ..errors import DamagedError, UnserializableError
from ..integrity import Integrity
from ..overrides import check_expected
from ..records import check_checkpoint, check_names
from ..retention import EVERY, Limits, Retention, check_retention, several
from ..serde import Blob, Serializer
from .complete import Given, commit_of, completed, tuple_of
from .listing import Listing
from .pruning import Choose, Session, chosen_by, copy_spaces, keep_only, set_head
from .reading import NEWEST, PAGE, Found, Space, edge_of, find, own_spaces, page, row_of, space_of, spaces_of
from .rows import Image, NewRows, Place, amended, packed_writes, rows_of

KNOWN = 128
"""How many spaces' newest images are kept, so that a run's next commit need not read the one before."""


class Known(NamedTuple):
    """The newest image of a space, which has this id and these names."""

    space: int
    image: Image
    place: Place


class SqlSaver(BaseCheckpointSaver):
    """A saver on rows. Subclasses give the connection.

    Args:
        serde: turns values into bytes and back.
        integrity: guards the stored rows; a checksum by default. `Encryption` hides them as well.
        retention: which checkpoints to forget as runs go on; None keeps all.
    """

    def __init__(
        self, *, serde: Serializer | None = None, integrity: Integrity | None = None, retention: Retention | None = None
    ) -> None:
        super().__init__(serde=serde)
        self._retention = check_retention(retention)
        self._integrity = integrity or Integrity()
        # Each operation on it is atomic, so it needs no lock. Who commits takes the image out.
        self._known: OrderedDict[tuple[str, str], Known] = OrderedDict()

    def _session(self, *, write: bool) -> AbstractContextManager[Session]:
        """A transaction that sees one state of the database; a writing one is kept whole or not at all."""
        raise NotImplementedError

    # -- read ---------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names by `checkpoint_id`, else the thread's head; None if there is none.

        Raises:
            DamagedError: what is stored is not what was written.
            StorageError: the database cannot be read.
        """
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        found = self._find(thread_id, checkpoint_ns, checkpoint_id)
        if found is None:
            return None
        answer = self._tuple(found)
        if checkpoint_id is None:
            self._remember(found.place, found.row.space, found.image)  # from now on the next commit may change it
        return answer

    def _find(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Found | None:
        """A checkpoint of a thread, the head by default."""
        with self._session(write=False) as session:
            space = space_of(session, thread_id, checkpoint_ns)
            return find(session, space, checkpoint_id, self._integrity) if space else None

    def head(self, config: RunnableConfig) -> str | None:
        """The id of the newest checkpoint of the thread and namespace in `config`, or None.

        Raises:
            DamagedError: there should be one of this id, and is not.
        """
        thread_id, checkpoint_ns, _ = coordinates(config)
        with self._session(write=False) as session:
            space = space_of(session, thread_id, checkpoint_ns)
            if space is None or space.head_id is None:
                return None
            row = row_of(session, space, space.head_id, space.place(self._integrity))
        if row is None or row.seq != space.head:
            raise space.place(self._integrity).damaged(f"its newest checkpoint, {space.head_id!r}, is missing")
        return space.head_id

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest first. All namespaces of the thread, unless `config` names one.

        Raises:
            ValueError: `config` names no thread, `before` no stored checkpoint, or `limit` is negative.
            DamagedError: what is stored is not what was written.
            StorageError: the database cannot be read.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be 0 or more, not {limit}")
        wanted = coordinates(config)[2] if config is not None else None
        spaces, edge = self._listed(config, before)
        fits = lambda found: wanted in (None, found.row.checkpoint_id) and self._fits(found, filter)  # noqa: E731
        return map(self._tuple, self._newest_first(spaces, edge, fits, limit))

    def _listed(self, config: RunnableConfig | None, before: RunnableConfig | None) -> tuple[dict[int, Space], int]:
        """The spaces to list, and the sequence below which to begin."""
        with self._session(write=False) as session:
            spaces = {space.id: space for space in spaces_of(session, config)}
            return spaces, NEWEST if before is None else edge_of(session, before, spaces.values(), self._integrity)

    def threads(self) -> Iterator[str]:
        """The ids of all threads, the one that moved last first."""
        with self._session(write=False) as session:
            spaces = spaces_of(session, None)
        newest = sorted(spaces, key=lambda space: space.head or 0, reverse=True)
        return iter(dict.fromkeys(space.thread_id for space in newest))

    def _newest_first(
        self, spaces: Mapping[int, Space], edge: int, fits: Callable[[Found], bool], limit: int | None
    ) -> Iterator[Found]:
        """The checkpoints that fit, at most so many. Before the last one the list is checked: it must be whole."""
        listing, left = Listing(spaces, edge), limit
        found: Sequence[Found] = ()
        while left != 0:
            found = self._page(spaces, edge)
            for each in found:
                listing.take([each])
                if not fits(each):
                    continue
                left = None if left is None else left - 1
                if left == 0:
                    with self._session(write=False) as session:
                        listing.stop(session, self._integrity)
                yield each
                if left == 0:
                    return
            if len(found) < PAGE:
                break
            edge = found[-1].row.seq
        if left != 0:
            with self._session(write=False) as session:
                listing.end(session, self._integrity)

    def _page(self, spaces: Mapping[int, Space], edge: int) -> Sequence[Found]:
        """The next checkpoints of some spaces that are older than a sequence."""
        with self._session(write=False) as session:
            return page(session, spaces, edge, self._integrity)

    def _fits(self, found: Found, wanted: Mapping[str, Any] | None) -> bool:
        if not wanted:
            return True
        metadata = self.serde.loads(found.body.metadata)
        return all(metadata.get(key, MISSING) == value for key, value in wanted.items())

    def _tuple(self, found: Found) -> CheckpointTuple:
        return tuple_of(found, self.serde.loads)

    # -- write --------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Store one superstep in one transaction: the parent's writes, the checkpoint and the new head.

        Raises:
            CheckpointConflictError: the head is not the one the commit names.
            StorageError: the database refused; nothing of the step is stored.
        """
        known = self._known.pop((commit.thread_id, commit.checkpoint_ns), None)
        place = Place(commit.thread_id, commit.checkpoint_ns, self._integrity) if known is None else known.place
        metadata = self._dumps("metadata", commit.metadata)
        if known is not None and known.image.id == commit.parent_id == commit.head and not commit.carried:
            new = rows_of(place, known.image, commit, metadata)
            seq = self._append(known, new)
            if seq is not None:
                self._stored(place, known.space, amended(new, commit, seq))
                return
        with self._session(write=True) as session:
            space = self._own_space(session, place)
            if space.head_id != commit.head:
                raise CheckpointConflictError(place.thread_id, place.checkpoint_ns, commit.head, space.head_id)
            found = find(session, space, commit.parent_id, self._integrity) if commit.parent_id is not None else None
            if found is None and commit.parent_id is not None:
                commit = completed(commit, self._dumps)  # pruned meanwhile: what changed since is not enough
            new = rows_of(place, found.image if found else None, commit, metadata)
            seq = self._insert(session, space.id, new)
            if commit.carried:
                self._record(session, replace(space, head_id=commit.id, revision=0), commit.id, commit.carried)
        self._stored(place, space.id, amended(new, commit, seq))

    def _stored(self, place: Place, space: int, image: Image) -> None:
        self._remember(place, space, image)
        if self._retention is not None and image.distance == EVERY - 1:  # as far from a complete row as they get
            self._prune_by_retention(place.thread_id, self._retention)

    def _retain(self, thread_id: str, checkpoint_ns: str) -> None:
        if self._retention is not None:
            with self._session(write=False) as session:
                space = space_of(session, thread_id, checkpoint_ns)
            if space is not None and space.size % EVERY == 0:
                self._prune_by_retention(thread_id, self._retention)

    def _prune_by_retention(self, thread_id: str, limits: Retention) -> None:
        self.prune([thread_id], keep_last=limits.keep_last, older_than=limits.older_than)

    def _append(self, known: Known, new: NewRows) -> int | None:
        """Store a commit's rows in a transaction of their own, if the space is as it is known; their sequence, or None.
        What every superstep does: a database does it in as few steps as it can."""
        raise NotImplementedError

    def _insert(self, session: Session, space: int, new: NewRows) -> int:
        """Store a commit's rows as the new head of a space; its sequence."""
        if new.writes is not None:
            session.run("add_writes", space, new.parent_id, new.writes)
        seq = session.add("add_row", space, new.checkpoint_id, new.parent_id, new.link, new.run_id, new.body)
        for channel, base, data in new.blobs:
            session.run("add_value", space, seq, channel, base, data)
        session.run("set_head", seq, new.checkpoint_id, 0, space)
        return seq

    def commit_writes(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        """Record tasks that ended while their superstep goes on, or that failed or paused.

        Raises:
            StorageError: the database refused; nothing is recorded.
        """
        self._record_beside(Place(thread_id, checkpoint_ns, self._integrity), checkpoint_id, writes)

    def _record_beside(self, place: Place, checkpoint_id: str, writes: Sequence[TaskWrites]) -> None:
        with self._session(write=True) as session:
            space = self._own_space(session, place)
            check_expected(self, "commit_writes", (place.thread_id, place.checkpoint_ns), space.head_id, space.revision)
            revision = self._record(session, space, checkpoint_id, writes)
        self._note(place, checkpoint_id, revision)

    def _record(self, session: Session, space: Space, checkpoint_id: str, writes: Sequence[TaskWrites]) -> int:
        """Add to what is recorded beside a checkpoint; how often that has been done now."""
        position: int = space.revision
        if space.head_id != checkpoint_id:
            ((position,),) = session.rows("count_writes", space.id, checkpoint_id)
        data = packed_writes(space.place(self._integrity), checkpoint_id, position, writes)
        session.run("add_writes", space.id, checkpoint_id, data)
        if space.head_id == checkpoint_id:
            session.run("set_revision", position + 1, space.id)
        return position + 1

    def _known_revision(self, place: Place, checkpoint_id: str) -> int | None:
        """How often something was recorded beside a checkpoint, if its image is known here."""
        known = self._known.get((place.thread_id, place.checkpoint_ns))
        return known.image.revision if known is not None and known.image.id == checkpoint_id else None

    def _note(self, place: Place, checkpoint_id: str, revision: int) -> None:
        """Let the image that is known here, if it is this checkpoint's, know how often something was recorded."""
        known = self._known.get((place.thread_id, place.checkpoint_ns))
        if known is not None and known.image.id == checkpoint_id:
            known.image.revision = revision

    def claim(self, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]) -> None:
        """Record that a run is about to answer the head's questions; see `BaseCheckpointSaver.claim`."""
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        place = Place(thread_id, checkpoint_ns, self._integrity)
        with self._session(write=True) as session:
            space = self._own_space(session, place)
            if checkpoint_id is None or space.head_id != checkpoint_id or space.revision != revision:
                raise CheckpointConflictError(thread_id, checkpoint_ns, checkpoint_id, space.head_id)
            recorded = self._record(session, space, checkpoint_id, writes)
        self._note(place, checkpoint_id, recorded)

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """The newest checkpoint of the thread and namespace in `config` that a run of this id made, or None."""
        thread_id, checkpoint_ns, _ = coordinates(config)
        with self._session(write=False) as session:
            space = space_of(session, thread_id, checkpoint_ns)
            rows = session.rows("by_run", space.id, run_id) if space is not None else ()
        return self.get_tuple(address(thread_id, checkpoint_ns, rows[0][0])) if rows else None

    def _own_space(self, session: Session, place: Place) -> Space:
        """The space of these names, made if it is not there; nobody else changes it before this transaction ends."""
        session.run("new_space", place.thread_id, place.checkpoint_ns)
        return Space(*session.rows("own_space", place.thread_id, place.checkpoint_ns)[0])

    def _take(self, place: Place) -> Known | None:
        """The newest image of a space, if it is known here; the caller's own until it is given back."""
        return self._known.pop((place.thread_id, place.checkpoint_ns), None)

    def _remember(self, place: Place, space: int, image: Image) -> None:
        self._known[place.thread_id, place.checkpoint_ns] = Known(space, image, place)
        if len(self._known) > KNOWN:
            try:
                self._known.popitem(last=False)
            except KeyError:  # other threads have taken all
                pass

    def _dumps(self, where: str, value: Any) -> Blob:
        try:
            return self.serde.dumps(value)
        except UnserializableError as exc:
            raise exc.inside(where) from exc.__cause__

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """Store a checkpoint as the new head, whoever moved it last.

        A value is stored if it is in `new_versions` or the parent has none; else the parent's is kept.

        Raises:
            UnserializableError: names the channel and the place in its value.
            StorageError: the database refused; nothing is stored.
        """
        thread_id, checkpoint_ns, parent_id = coordinates(config)
        check_checkpoint(checkpoint, metadata)
        place = Place(thread_id, checkpoint_ns, self._integrity)
        encoded = self._dumps("metadata", dict(metadata))
        with self._session(write=True) as session:
            space = self._own_space(session, place)
            check_expected(self, "put", (thread_id, checkpoint_ns), space.head_id)
            known = parent_id not in (None, checkpoint["id"])  # what replaces itself builds on nothing
            found = find(session, space, parent_id, self._integrity) if known else None
            image = found.image if found else None
            commit, image = commit_of(place, parent_id, image, Given(checkpoint, metadata, new_versions), self._dumps)
            new = rows_of(place, image, commit, encoded)
            if session.rows("by_id", space.id, commit.id):
                others = lambda rows: [r.checkpoint_id for r, _ in rows if r.checkpoint_id != commit.id]  # noqa: E731
                keep_only(session, place, space.id, others, replaced=commit.id)
            seq = self._insert(session, space.id, new)
            set_head(session, space.id, seq, commit.id)  # writes may have come before it
        self._take(place)
        return address(thread_id, checkpoint_ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep what a task wrote beside the checkpoint that `config` names, which may arrive later.

        Raises:
            ValueError: `config` names no checkpoint.
            UnserializableError: names the channel and the place in its value.
            StorageError: the database refused; nothing is stored.
        """
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        if checkpoint_id is None:
            raise ValueError("put_writes() needs a checkpoint_id in the config")
        check_names(task_id, task_path, *(channel for channel, _ in writes))
        encoded = [(channel, self._dumps(f"[{channel!r}]", value)) for channel, value in writes]
        place = Place(thread_id, checkpoint_ns, self._integrity)
        self._record_beside(place, checkpoint_id, [TaskWrites(task_id, task_path, encoded)])

    # -- forget and copy ----------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread with all its namespaces; an unknown one is no error."""
        check_names(thread_id)
        with self._session(write=True) as session:
            for space in own_spaces(session, str(thread_id)):
                for statement in ("forget_values", "forget_writes", "forget_rows", "drop_space"):
                    session.run(statement, space.id)
                self._take(space.place(self._integrity))

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Forget the checkpoints of these runs, with their writes; see `BaseCheckpointSaver.delete_for_runs`."""
        runs = several(run_ids, "run_ids")
        with self._session(write=True) as session:
            for (thread_id,) in session.rows("threads_of_runs", sorted(runs)):
                for space in own_spaces(session, thread_id):
                    self._keep(session, space, lambda rows: [r.checkpoint_id for r, _ in rows if r.run_id not in runs])

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """Forget old checkpoints, with their writes; see `BaseCheckpointSaver.prune`."""
        limits, damaged = Limits(keep_last, older_than), []
        for thread_id in sorted(several([*self.threads()] if thread_ids is None else thread_ids, "thread_ids")):
            kept: dict[str, Collection[str]] = {}
            try:
                with self._session(write=True) as session:  # one for each thread: a damaged one stops no other
                    for space in sorted(own_spaces(session, thread_id), key=lambda space: len(space.checkpoint_ns)):
                        self._keep(session, space, chosen_by(limits, kept, space.checkpoint_ns, self.serde.loads))
            except DamagedError as error:
                damaged.append(error)
        if damaged:
            for other in damaged[1:]:
                damaged[0].add_note(f"also damaged: {other}")
            raise damaged[0]

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread whole: all namespaces, checkpoints with their ids and order, and writes.

        Raises:
            ValueError: there is no such thread, or the target is one already.
        """
        check_names(source, target)
        with self._session(write=True) as session:
            spaces = own_spaces(session, source)
            if not spaces:
                raise ValueError(f"there is no thread {source!r} to copy")
            if session.rows("spaces", target):
                raise ValueError(f"thread {target!r} exists already")
            pairs = []
            for space in spaces:
                to = Place(target, space.checkpoint_ns, self._integrity)
                pairs.append((space.place(self._integrity), space.id, to, self._own_space(session, to).id))
            copy_spaces(session, pairs)

    def _keep(self, session: Session, space: Space, choose: Choose) -> None:
        keep_only(session, space.place(self._integrity), space.id, choose)
        self._take(space.place(self._integrity))
