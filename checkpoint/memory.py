"""A checkpointer that keeps threads in this process, for tests and for work that need not outlive
it.

Checkpoints are kept as bytes, so that changes to the live state cannot reach the history.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from functools import partial
from itertools import islice, starmap
from operator import attrgetter, itemgetter
from typing import Any, cast

from .builtin import BuiltinSaver
from .diff import complete_commit, diff_checkpoint
from .errors import CheckpointConflictError
from .labels import (
    UNLABELLED,
    LabelIndex,
    has_metadata,
    has_new_labels,
    label_choices,
    labels_of,
    names_thread,
)
from .memory_chain import (
    KEYFRAME,
    Chain,
    ChainRecord,
    DeltaBlob,
    Found,
    Namespace,
    by_age,
    choose_kept,
    count_bytes,
    make_keyframe,
    make_record,
    merge_newest,
    newest_first,
    read_blob,
    read_state,
    rebuild,
)
from .overrides import check_head
from .records import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    Expected,
    Place,
    Post,
    RunnableConfig,
    TaskWrites,
    address,
    check_checkpoint,
    check_names,
    check_search,
    collect_writes,
    coordinates,
    iso,
    spans_of,
)
from .retention import EVERY, Retention, RetentionLimits, check_several
from .serde import Blob, Serializer
from .serde.list_decoder import ListDecoder
from .threads import Result


class InMemorySaver(BuiltinSaver):
    """Keeps threads in this process. Safe to share between threads and event loops.

    Args:
        serde: turns values into bytes and back.
        retention: which checkpoints to delete as runs go on; None keeps all.

    >>> from stategraph.checkpoint import InMemorySaver
    >>> saver = InMemorySaver()
    >>> print(saver.get({"configurable": {"thread_id": "1"}}))
    None
    """

    in_memory = True

    def __init__(
        self, *, serde: Serializer | None = None, retention: Retention | None = None
    ) -> None:
        super().__init__(serde=serde, retention=retention)
        self._lock = threading.Lock()  # held for dict work only, never while a value is decoded
        self._threads: dict[str, dict[str, Chain]] = {}
        self._posts: dict[str, dict[int, Post]] = {}  # of each thread, in the order of ids
        self._last_post = 0
        self._sequence = 0
        self._labels = LabelIndex()
        # The sequence of each namespace's newest checkpoint; the highest is the last.
        self._newest: OrderedDict[Place, int] = OrderedDict()
        self._is_sorted = True

    async def _acall(self, function: Callable[..., Result], *args: Any) -> Result:
        # It never waits, so it is called where it is, unless a subclass says that it may.
        return function(*args) if self.in_memory else await super()._acall(function, *args)

    # -- read ---------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names by `checkpoint_id`, else the thread's head; None if
        there is none."""
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        with self._lock:
            record = self._find(thread_id, checkpoint_ns, checkpoint_id)
            if not record:
                return None
            # As of one moment: a commit records its tasks' writes beside the head that it follows.
            beside = self._find_beside(thread_id, checkpoint_ns, record)
        return self._decode(self._lists, (thread_id, checkpoint_ns, record), beside)

    def head(self, config: RunnableConfig) -> str | None:
        """The id of the newest checkpoint of the thread and namespace in `config`, or None."""
        thread_id, checkpoint_ns, _ = coordinates(config)
        with self._lock:
            chain = self._chain(thread_id, checkpoint_ns)
            return chain.head if chain else None

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
            ValueError: `config` names no thread, `before` no stored checkpoint, or `limit` is
                negative.
            TypeError: one of these is something else.
        """
        check_search(filter, before, limit)
        with self._lock:
            edge = None if before is None else self._edge(before, self._select(config))
            wanted = coordinates(config)[2] if config is not None else None
            chains = self._search(filter) if config is None and names_thread(before) else None
            fitting = (
                (
                    chain.newest(),
                    (
                        each
                        for each in newest_first(thread_id, name, chain, wanted)
                        if (edge is None or each[2].sequence < edge)
                        and has_metadata(each[2].metadata, filter)
                    ),
                )
                for thread_id, name, chain in (self._select(config) if chains is None else chains)
            )
            if filter:  # few fit: looking at each once is quicker than keeping all chains in order
                found = iter(sorted((each for _, part in fitting for each in part), key=by_age))
            else:
                found = merge_newest(fitting)
            # As of one moment: who prunes meanwhile takes the writes beside a checkpoint, too.
            chosen = [(each, self._find_beside(*each)) for each in islice(found, limit)]
        return starmap(partial(self._decode, self._choose_lists(limit)), chosen)

    def threads(self, *, filter: Mapping[str, Any] | None = None) -> Iterator[str]:
        """The ids of all threads, the most recently used first; see
        `BaseCheckpointSaver.threads`."""
        if filter:
            return super().threads(filter=filter)
        with self._lock:
            return iter(dict.fromkeys(thread_id for thread_id, _, _ in self._select(None)))

    def namespaces(self, thread_id: str) -> Collection[str]:
        """The namespaces in which a thread has checkpoints."""
        with self._lock:
            return [ns for ns, chain in self._threads.get(thread_id, {}).items() if chain.head]

    def _read_list(
        self, config: RunnableConfig | None, **options: Any
    ) -> Iterator[CheckpointTuple]:
        return self.list(config, **options)  # decodes one at a time, so that no event loop is held

    def _chain(self, thread_id: str, checkpoint_ns: str) -> Chain | None:
        chains = self._threads.get(thread_id)
        if not chains:
            return None
        return chains.get(checkpoint_ns)

    def _find(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> ChainRecord | None:
        chain = self._chain(thread_id, checkpoint_ns)
        wanted = checkpoint_id or (chain.head if chain is not None else None)
        if chain is None or not wanted:
            return None
        return chain.records.get(wanted)

    def _select(self, config: RunnableConfig | None) -> Iterator[Namespace]:
        """The namespaces that `config` may mean, the one with the newest checkpoint first."""
        if config is None:
            if not self._is_sorted:
                self._newest = OrderedDict(sorted(self._newest.items(), key=itemgetter(1)))
                self._is_sorted = True
            return ((*place, self._threads[place[0]][place[1]]) for place in reversed(self._newest))
        thread_id = coordinates(config)[0]
        only = config["configurable"].get("checkpoint_ns")
        chains = self._threads.get(thread_id, {}).items()
        found = [(thread_id, name, each) for name, each in chains if only is None or name == only]
        return iter(sorted(found, key=lambda each: each[2].newest(), reverse=True))

    def _search(self, wanted: Mapping[str, Any] | None) -> Sequence[Namespace] | None:
        """The namespaces that may have checkpoints with this metadata; None if the labels do not
        tell."""
        choices = label_choices(wanted)
        if not choices:
            return None
        return [(*place, self._threads[place[0]][place[1]]) for place in self._labels.find(choices)]

    def _edge(self, before: RunnableConfig, chains: Iterable[Namespace]) -> int:
        """The sequence of the checkpoint that `before` names, by its thread or among what is
        listed."""
        configurable = before.get("configurable") or {}
        wanted = configurable.get("checkpoint_id")
        if "thread_id" in configurable:
            record = self._find(*coordinates(before))
        else:
            found = (chain.records[wanted] for _, _, chain in chains if wanted in chain.records)
            record = next(found, None)
        if record is None:
            raise ValueError(f"before must name a checkpoint of the thread, got {wanted!r}")
        return record.sequence

    def _find_beside(
        self, thread_id: str, checkpoint_ns: str, record: ChainRecord
    ) -> Sequence[Sequence[TaskWrites]]:
        """What was recorded beside a checkpoint, each time."""
        chain = self._chain(thread_id, checkpoint_ns)
        return [*chain.writes.get(record.id, ())] if chain is not None else ()

    def _decode(
        self, lists: ListDecoder, found: Found, beside: Sequence[Sequence[TaskWrites]]
    ) -> CheckpointTuple:
        thread_id, checkpoint_ns, record = found
        loads, parent_id = self._loads, record.parent_id
        tasks = [task for each in beside for task in each]
        state, value_loads = read_state(record), self._value_loads(lists)
        checkpoint: Checkpoint = {
            "v": record.v,
            "id": record.id,
            "ts": iso(record.ts),
            "channel_values": {
                name: value_loads(
                    (thread_id, checkpoint_ns, name),
                    read_blob(stored) if isinstance(stored, DeltaBlob) else stored,
                )
                for name, stored in state.values.items()
                if stored is not None
            },
            "channel_versions": state.versions,
            "versions_seen": {node: dict(each) for node, each in state.seen.items()},
            "updated_channels": None if record.updated is None else [*record.updated],
        }
        return CheckpointTuple(
            address(thread_id, checkpoint_ns, record.id),
            checkpoint,
            _copy_metadata(record.metadata),
            None if parent_id is None else address(thread_id, checkpoint_ns, parent_id),
            [(task_id, name, loads(blob)) for task_id, name, blob in collect_writes(tasks)],
            spans=spans_of(tasks),
            paths={task.task_id: task.task_path for task in tasks},
            revision=len(beside),
        )

    # -- write --------------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> None:
        """Store supersteps of one thread, all or none; see `BaseCheckpointSaver.commit`.

        Raises:
            CheckpointConflictError: a head is not the one that a commit names or requires.
        """
        with self._lock:
            if len(commits) == 1:
                self._commit(commits[0])
            else:
                self._commit_all(commits)
        for commit in commits if self._retention is not None else ():
            self._retain(commit.thread_id, commit.checkpoint_ns)

    def _commit_all(self, commits: Sequence[Commit]) -> None:
        thread_id = commits[0].thread_id
        posts = {**self._posts.get(thread_id, {})}
        try:
            for commit in commits:
                self._commit(commit)
        except BaseException:  # Ctrl-C, too
            for commit in commits:
                self._take_back(commit)
            if posts:
                self._posts[thread_id] = posts
            raise

    def _take_back(self, commit: Commit) -> None:
        """Undo what was stored of a commit."""
        chain = self._chain(commit.thread_id, commit.checkpoint_ns)
        if chain is None:
            return
        for id, own in (commit.parent_id, commit.writes), (commit.id, commit.carried):
            beside = chain.writes.pop(id or "", ())
            for each in beside:
                if each is not own:
                    chain.record(id or "", each)
        # Another run may have come to the same, under the same id.
        own_ids = {id for id, each in chain.records.items() if each.metadata is commit.metadata}
        others = chain.records.keys() - own_ids
        self._keep_only(commit.thread_id, commit.checkpoint_ns, others)

    def _commit(self, commit: Commit) -> None:
        """Store one superstep, with the lock held."""
        thread_id, checkpoint_ns = commit.thread_id, commit.checkpoint_ns
        parent_id = commit.parent_id
        for namespace, required in commit.requires:
            other = self._chain(thread_id, namespace)
            found = other.head if other else None
            if found != required:
                raise CheckpointConflictError(thread_id, namespace, required, found)
        chain = self._chain(thread_id, checkpoint_ns) or Chain()
        lost = commit.taken and not self._posts.get(thread_id, {}).keys() >= {*commit.taken}
        if lost or chain.head != commit.head:
            raise CheckpointConflictError(thread_id, checkpoint_ns, commit.head, chain.head)
        parent = chain.records.get(parent_id) if parent_id is not None else None
        if parent is None and parent_id is not None:
            # Pruned meanwhile: what changed since is not enough, this one must hold everything.
            commit = complete_commit(commit, self._dumps)
        # The head moves between the two: Ctrl-C may come at each call, and until then all is as
        # it was. Tasks recorded as finished without it would leave nothing that is to run.
        if commit.carried:
            chain.record(commit.id, commit.carried)
        self._add(thread_id, checkpoint_ns, chain, make_record(commit, parent))
        if parent_id is not None and commit.writes:
            chain.record(parent_id, commit.writes)
        for id in commit.taken:
            del self._posts[thread_id][id]

    def _retain(self, thread_id: str, checkpoint_ns: str) -> None:
        chain = self._chain(thread_id, checkpoint_ns)
        if chain is not None and len(chain.records) % EVERY == 0:
            self._prune_by_retention(thread_id)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """Store a checkpoint as the new head, whoever moved the head last.

        A value is stored if it is in `new_versions` or the parent has none; otherwise the parent's
        is kept.

        Raises:
            UnserializableError: names the channel and the place in its value.
        """
        where = thread_id, checkpoint_ns, parent_id = coordinates(config)
        check_checkpoint(checkpoint, metadata)
        with self._lock:
            parent = self._find(*where) if parent_id is not None else None
        state = read_state(parent) if parent else None
        own = _copy_metadata(metadata)
        commit, builds_on = diff_checkpoint(
            where, state, checkpoint, own, new_versions, self._dumps
        )
        record = make_record(commit, parent if builds_on else None)
        with self._lock:
            chain = self._chain(thread_id, checkpoint_ns) or Chain()
            check_head(config, chain.head)
            self._add(thread_id, checkpoint_ns, chain, record)
        self._retain(thread_id, checkpoint_ns)
        return address(thread_id, checkpoint_ns, record.id)

    def _add(self, thread_id: str, checkpoint_ns: str, chain: Chain, record: ChainRecord) -> None:
        """Make a record the head of its namespace. The last thing a commit does; it cannot fail."""
        chain.shrink(record)
        if record.distance >= KEYFRAME:
            record = make_keyframe(record)
        if not record.metadata.keys() <= UNLABELLED:
            self._label((thread_id, checkpoint_ns), chain, record)
        self._sequence += 1
        record.sequence = self._sequence
        chain.add(record)
        self._threads.setdefault(thread_id, {})[checkpoint_ns] = chain
        self._newest[thread_id, checkpoint_ns] = self._sequence
        self._newest.move_to_end((thread_id, checkpoint_ns))

    def _label(self, place: tuple[str, str], chain: Chain, record: ChainRecord) -> None:
        """Let a namespace be found by the metadata of its next record."""
        head = chain.records.get(chain.head or "")
        if has_new_labels(record.metadata, head.metadata if head else None):
            labels = labels_of(record.metadata)
            chain.labels |= labels
            self._labels.add(place, labels)

    def _record(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int:
        thread_id, checkpoint_ns = where
        with self._lock:
            chain = self._chain(*where) or Chain()
            head = chain.head or ""
            if expected is not None:
                known = chain.revision(head)
                if expected.head != chain.head or expected.revision not in (None, known):
                    raise CheckpointConflictError(*where, expected.head, chain.head)
                writes = {head: (), **writes}  # it counts there, too
            for id, tasks in writes.items():
                chain.record(id, [*tasks])
            self._threads.setdefault(thread_id, {})[checkpoint_ns] = chain
            return chain.revision(head)

    def store_post(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        """Keep what was posted to a thread; see `BaseCheckpointSaver.store_post`."""
        check_names(thread_id)
        with self._lock:
            self._add_post(thread_id, writes)

    def _add_post(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        self._last_post += 1
        post = Post(self._last_post, tuple(writes))
        self._posts.setdefault(thread_id, {})[post.id] = post

    def read_posts(self, thread_id: str) -> Sequence[Post]:
        """What was posted to a thread and no commit has taken, in the order of ids."""
        with self._lock:
            return [*self._posts.get(thread_id, {}).values()]

    # -- forget and copy ----------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces; an unknown thread is not an error."""
        check_names(thread_id)
        self._lists.clear()  # they may hold its bytes
        with self._lock:
            self._posts.pop(str(thread_id), None)
            chains = self._threads.pop(str(thread_id), {})
            for checkpoint_ns, chain in chains.items():
                self._newest.pop((str(thread_id), checkpoint_ns), None)
                self._labels.drop((str(thread_id), checkpoint_ns), chain.labels)

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Delete the checkpoints, with their writes, whose metadata names one of these runs.

        If the head is deleted, the newest remaining checkpoint becomes the head.
        """
        runs = check_several(run_ids, "run_ids")
        with self._lock:
            for thread_id in tuple(self._threads):
                for checkpoint_ns, chain in tuple(self._threads[thread_id].items()):
                    records = chain.records.values()
                    kept = {each.id for each in records if each.metadata.get("run_id") not in runs}
                    self._keep_only(thread_id, checkpoint_ns, kept)

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """Delete old checkpoints, with their writes; see `BaseCheckpointSaver.prune`."""
        limits = RetentionLimits(keep_last, older_than)
        with self._lock:
            wanted = [*self._threads] if thread_ids is None else thread_ids
            for thread_id in check_several(wanted, "thread_ids"):
                self._prune_thread(thread_id, limits)

    def _prune_thread(self, thread_id: str, limits: RetentionLimits) -> None:
        kept: dict[str, Mapping[str, int]] = {}
        chains = self._threads.get(thread_id, {})
        # Outer graphs first: what stays of a nested one depends on what stays around it.
        for name, chain in sorted(chains.items(), key=lambda each: len(each[0])):
            self._keep_only(thread_id, name, choose_kept(chain.records, name, limits, kept))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread: all namespaces, checkpoints with their ids and order, and writes.

        Raises:
            ValueError: the source does not exist, or the target already does.
        """
        check_names(source_thread_id, target_thread_id)
        with self._lock:
            chains = self._threads.get(source_thread_id)
            if not chains:
                raise ValueError(f"there is no thread {source_thread_id!r} to copy")
            if self._threads.get(target_thread_id):
                raise ValueError(
                    f"thread {target_thread_id!r} already exists: delete it first, or copy to "
                    "another name"
                )
            # Rebuilt, not shared: records are replaced when one of the threads is pruned.
            copies = {name: rebuild(chain, chain.records) for name, chain in chains.items()}
            records = (record for chain in copies.values() for record in chain.records.values())
            for record in sorted(records, key=attrgetter("sequence")):
                self._sequence += 1
                record.sequence = self._sequence
            self._threads[target_thread_id] = copies
            for name, chain in copies.items():
                self._note_newest((target_thread_id, name), chain)
                self._labels.add((target_thread_id, name), chain.labels)
            for post in self._posts.get(source_thread_id, {}).values():
                self._add_post(target_thread_id, post.writes)

    def stored_bytes(self, thread_ids: Collection[str]) -> int:
        """Return how many bytes the values of some threads take; see
        `BaseCheckpointSaver.stored_bytes`."""
        with self._lock:
            chains = (each for id in thread_ids for each in self._threads.get(id, {}).values())
            return sum(map(count_bytes, chains))

    def _keep_only(self, thread_id: str, checkpoint_ns: str, kept: Collection[str]) -> None:
        chains = self._threads[thread_id]
        chain = chains[checkpoint_ns]
        if len(kept) < len(chain.records):
            chains[checkpoint_ns] = rebuild(chain, kept)
            gone = chain.labels - chains[checkpoint_ns].labels
            self._labels.drop((thread_id, checkpoint_ns), gone)
            self._note_newest((thread_id, checkpoint_ns), chains[checkpoint_ns])
        # Writes may wait for a checkpoint that comes later.
        if not chains[checkpoint_ns].records and not chains[checkpoint_ns].writes:
            del chains[checkpoint_ns]
        if not chains:
            del self._threads[thread_id]

    def _note_newest(self, place: Place, chain: Chain) -> None:
        """Note which checkpoint of a namespace is the newest now."""
        newest = chain.newest()
        if newest == self._newest.get(place, 0):
            return
        self._is_sorted = False
        if newest:
            self._newest[place] = newest
        else:
            del self._newest[place]


MemorySaver = InMemorySaver
"""The same checkpointer under its other name."""


def _copy_metadata(metadata: Mapping[str, Any]) -> CheckpointMetadata:
    """Metadata that belongs to the caller, down to what is nested in it."""
    own = {k: deepcopy(v) if isinstance(v, (dict, list)) else v for k, v in metadata.items()}
    return cast(CheckpointMetadata, own)
