"""Pages of a list: some checkpoints of some namespaces, newest first, from rows to states. All
bodies are unpacked; values are read only for the checkpoints that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..integrity import Integrity
from .queries import (
    NO_VALUES,
    Row,
    SqlSession,
    add_tasks,
    fill_values,
    read_chain,
    read_next,
    unpack_next,
)
from .read_rows import RecentValues, materialize, next_state
from .rows import (
    CheckpointBody,
    CheckpointRow,
    MaterializedState,
    NamespaceRow,
    StoredCheckpoint,
    ThreadKey,
    unpack_body,
)

MOST_VALUES = 16
"""How many checkpoints of the first page have their values read at most. All are in memory at once,
so later pages have more only if that takes few bytes."""

MOST_BYTES = 1_000_000
"""The bytes of value rows up to which the next page may have twice as many checkpoints."""

MOST_STATES = 64
"""The most checkpoints of a page whose values are read."""

MOST_ROWS = 256
"""The most rows of a page."""

Fits = Callable[[CheckpointBody], bool]
"""Returns whether a checkpoint is wanted."""


@dataclass(slots=True)
class Page:
    """Some consecutive rows of a list, newest first; the wanted ones with their states; and the
    sequence below which the next page begins.

    Attributes:
        bytes: how many the rows of values had that were read.
    """

    rows: Sequence[Row]
    wanted: Mapping[int, StoredCheckpoint]
    edge: int
    is_last: bool
    bytes: int


class Listed(dict[int, ThreadKey]):
    """The keys of the listed namespaces, created when they are first needed.

    Args:
        everything: whether all namespaces are listed. They are added as their checkpoints are read.
    """

    def __init__(
        self, namespaces: dict[int, NamespaceRow], everything: bool, integrity: Integrity
    ) -> None:
        super().__init__()
        self.namespaces: dict[int, NamespaceRow] = namespaces
        self.everything: bool = everything
        self._integrity = integrity

    def __missing__(self, id: int) -> ThreadKey:
        key = self[id] = self.namespaces[id].key(self._integrity)
        return key


def read_page(
    session: SqlSession,
    listed: Listed,
    edge: int,
    size: int,
    fits: Fits | None,
    most: int,
    recent: RecentValues | None,
) -> Page:
    """Return the next `size` checkpoints that are older than a sequence, or fewer: the page ends
    when `most` of them fit.

    Args:
        recent: values that need not be read.

    Raises:
        DamagedError: what is stored is not what was written.
    """
    if listed.everything:
        found = session.rows("page_of_all", edge, size)
        unknown = {row[0] for row in found} - listed.namespaces.keys()
        for each in session.rows("namespaces_of", sorted(unknown)) if unknown else ():
            listed.namespaces[each[0]] = NamespaceRow(*each)
    else:
        found = session.rows("page", [*listed.namespaces], edge, size)
    rows: list[Row] = []
    wanted: set[int] = set()
    last = edge
    for row in map(CheckpointRow._make, found):
        last = row.seq
        if row.namespace_id not in listed.namespaces:
            if listed.everything:
                continue
            key = listed[next(iter(listed.namespaces))]
            raise key.damage_error("the index leads to rows of another thread")
        body = unpack_body(listed[row.namespace_id], row)
        rows.append((row, body))
        if fits is None or fits(body):
            wanted.add(row.seq)
            if len(wanted) == most:
                break
    # Fewer than requested, and the page was not cut short by `most`.
    is_last = len(found) < size and (not found or last == found[-1][1])
    states, read = _read_wanted(session, listed, rows, wanted, recent)
    return Page(rows, states, last, is_last, read)


def _read_wanted(
    session: SqlSession,
    listed: Listed,
    rows: Sequence[Row],
    wanted: Collection[int],
    recent: RecentValues | None,
) -> tuple[dict[int, StoredCheckpoint], int]:
    """Return the wanted checkpoints among the rows of a page, by sequence, and how many bytes of
    values were read for them."""
    read = _read_states(session, listed, rows, wanted)
    size = 0
    for id in {each.row.namespace_id: None for each in read.values()}:
        own = [each for each in reversed(rows) if each[0].namespace_id == id]
        chosen = [read[row.seq] for row, _ in own if row.seq in read]
        size += _fill(session, listed.namespaces[id], own, chosen, recent)
    return read, size


def _read_states(
    session: SqlSession, keys: Mapping[int, ThreadKey], rows: Sequence[Row], wanted: Collection[int]
) -> dict[int, StoredCheckpoint]:
    """Return the wanted checkpoints of a page, by sequence; their values are not read. The state of
    each is made from that of the one it links to, if that is on the page too."""
    on_page = {each[0].seq: each for each in rows}
    states: dict[int, MaterializedState] = {}
    read: dict[int, StoredCheckpoint] = {}
    for row, body in reversed(rows):
        if row.seq not in wanted:
            continue
        key, at = keys[row.namespace_id], row
        path: list[Row] = []  # from here back to a known state, or to the end of the page
        while (state := states.get(at.seq)) is None:
            before = None if at.link is None else on_page.get(at.link)
            parent = (at.namespace_id, at.parent_id)
            # The row that it builds on is on another page, or the index is damaged, which
            # `materialize` reports.
            if at.link is not None and (
                before is None or (before[0].namespace_id, before[0].checkpoint_id) != parent
            ):
                state, _ = materialize(key, read_chain(session, at))
                states[at.seq] = state
                break
            path.append(on_page[at.seq])
            if before is None:
                break
            at = before[0]
        for each in reversed(path):
            state = states[each[0].seq] = next_state(state, key, *each)
        assert state is not None
        read[row.seq] = StoredCheckpoint(row, body, state, [])
    return read


def _fill(
    session: SqlSession,
    namespace: NamespaceRow,
    rows: Sequence[Row],
    wanted: Sequence[StoredCheckpoint],
    recent: RecentValues | None,
) -> int:
    """Read the long values of some checkpoints of one namespace, oldest first, and the writes
    beside them. Return how many bytes of values were read.

    Args:
        rows: all rows of the namespace on the page, oldest first.
    """
    unread = [
        each for found in wanted for each in found.state.values.items() if each[1].blob is None
    ]
    if unread and recent is not None:
        unread = recent.fill(namespace.id, unread)
    size = fill_values(session, wanted[0].state.key, namespace.id, unread, recent)
    written: dict[str, list[bytes]] = {}
    ids = [each.row.checkpoint_id for each in wanted]
    for checkpoint_id, data in session.rows("writes", namespace.id, ids):
        written.setdefault(checkpoint_id, []).append(data)
    following, known, newest = [*rows[1:]], NO_VALUES, wanted[-1]
    if rows[-1][0].seq == newest.row.seq != namespace.head:
        row, known = read_next(session, namespace.id, newest.row.seq)
        following += unpack_next(session, namespace, newest, row)
    add_tasks(session, wanted, written, following, known)
    return size
