"""The index of labels in a database: which namespaces have checkpoints with which metadata, so that
a search reads only a few of them.

A label is a number. It stands for a key and the value that it has. Values that are equal have the
same label, as `1`, `1.0` and `True` do; the label of a value that is no plain one says only that
the key is there. So labels never miss a checkpoint; what they find is looked at.

A commit adds, in its own transaction, the labels that the checkpoint before it lacks. Namespaces
written by an older version, and copies of threads, are marked; the next search adds their labels.
Labels that no checkpoint has any more are dropped when the namespace is pruned. So a namespace may
have too many labels, but never too few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...channels.base import MISSING
from ..digest import blake2b
from ..errors import DamagedError
from ..integrity import Integrity
from ..records import OF_TASK, RunnableConfig
from ..serde import Blob
from .pages import MOST_ROWS
from .queries import NEWEST, SqlSession
from .rows import CheckpointRow, NamespaceRow, unpack_body

UNLABELLED = frozenset({"source", "step", "parents", "run_id", OF_TASK})
"""What each checkpoint says of itself: it tells no thread from others, or changes at each step."""


def labels_of(metadata: Mapping[str, Any]) -> set[int]:
    """The labels of a checkpoint.

    >>> labels_of({"step": 1, "user": "ann", "n": 1}) == labels_of({"n": 1.0, "user": "ann"})
    True
    """
    return {_label(key, value) for key, value in metadata.items() if _has_label(key)}


def has_new_labels(metadata: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint may have labels that the one before it has not.

    Args:
        before: that one's metadata; None if they are not known.
    """
    for key, value in metadata.items():
        if key in UNLABELLED:
            continue
        old = MISSING if before is None else before.get(key, MISSING)
        # Mostly the very same object: that of the run.
        if old is value:
            continue
        if type(old) is not type(value) or type(value) not in _PLAIN or old != value:
            return True
    return False


def label_choices(wanted: Mapping[str, Any] | None) -> list[Collection[int]]:
    """What is known of the labels of each checkpoint that has the wanted metadata: one of each of
    these. None if the labels say nothing about it."""
    choices: list[Collection[int]] = []
    for key, value in (wanted or {}).items():
        if not _has_label(key):
            continue
        if type(value) in _PLAIN:
            choices.append({_label(key, value), _label(key, _OTHER)})
        elif type(value) in _CONTAINERS:
            choices.append({_label(key, _OTHER)})
        # An object of another type may be equal to anything.
    return choices


def names_thread(before: RunnableConfig | None) -> bool:
    """Whether the checkpoint that `before` names is found by its thread, if there is one. Else it
    is looked for in all that would be listed without a filter."""
    return before is None or "thread_id" in (before.get("configurable") or {})


_OTHER = object()
_PLAIN = (type(None), bool, int, float, str)
_CONTAINERS = (dict, list, tuple, set, frozenset, bytes)


def _has_label(key: Any) -> bool:
    return isinstance(key, str) and key not in UNLABELLED


def _label(key: str, value: Any) -> int:
    text = str.encode(key, "utf-8", "surrogatepass")
    data = b"%d:%s%s" % (len(text), text, _encode(value))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)


def _encode(value: Any) -> bytes:
    """The same bytes for values that are equal."""
    kind = type(value)
    if kind is str:
        return b"s" + str.encode(value, "utf-8", "surrogatepass")
    if kind is float and not value.is_integer():
        return b"f" + float.hex(value).encode()
    if kind is bool or kind is int or kind is float:
        return b"i" + hex(int(value)).encode()
    return b"n" if value is None else b"o"


# -- in a database ---------------------------------------------------------------------------------

MOST_FOUND = 10_000
"""A label with this many namespaces narrows the search too little: reading all checkpoints in order
is as fast."""

AT_ONCE = 100
"""How many namespaces get their missing labels in one transaction."""

OpenSession = Callable[..., AbstractContextManager[SqlSession]]
"""Begins a transaction; takes `write`."""


def find_labelled(
    session: SqlSession, choices: Sequence[Collection[int]]
) -> list[NamespaceRow] | None:
    """Return the namespaces that may have one label of each choice; None if these are too many."""
    wanted: set[int] | None = None
    for choice in choices:
        # At most two labels, see `label_choices`.
        rows = session.rows("labelled", min(choice), max(choice), MOST_FOUND)
        if len(rows) < MOST_FOUND:
            found = {id for (id,) in rows}
            wanted = found if wanted is None else wanted & found
    if wanted is None:
        return None
    unlabelled = session.rows("unlabelled", 0, MOST_FOUND)
    if len(unlabelled) == MOST_FOUND:
        return None
    namespaces = {row[0]: NamespaceRow(*row) for row in unlabelled}
    for row in session.rows("namespaces_of", sorted(wanted - namespaces.keys())):
        namespaces[row[0]] = NamespaceRow(*row)
    return [namespaces[id] for id in sorted(namespaces)]


def add_missing_labels(
    open_session: OpenSession, integrity: Integrity, loads: Callable[[Blob], Any]
) -> None:
    """Add the labels of marked namespaces, several namespaces in each transaction. Namespaces that
    are damaged, or whose head moves meanwhile, stay marked.

    Raises:
        StorageError: the database cannot be read, or refuses to be written to.
    """
    after = 0
    while True:
        with open_session(write=False) as session:
            page = [NamespaceRow(*row) for row in session.rows("unlabelled", after, AT_ONCE)]
        found: list[tuple[NamespaceRow, set[int]]] = []
        for namespace in page:
            labels = _read_labels(open_session, namespace, integrity, loads)
            if labels is not None:
                found.append((namespace, labels))
        if found:
            with open_session(write=True) as session:
                for namespace, those in found:
                    if session.run("set_labelled", namespace.id, namespace.head):
                        session.run("add_labels", namespace.id, sorted(those))
        if len(page) < AT_ONCE:
            return
        after = page[-1].id


def _read_labels(
    open_session: OpenSession,
    namespace: NamespaceRow,
    integrity: Integrity,
    loads: Callable[[Blob], Any],
) -> set[int] | None:
    """Return the labels of all checkpoints of a namespace; None if it is damaged, which listing it
    reports."""
    key, edge = namespace.key(integrity), NEWEST
    labels: set[int] = set()
    while True:
        with open_session(write=False) as session:
            found = session.rows("page", [namespace.id], edge, MOST_ROWS)
        for row in map(CheckpointRow._make, found):
            if row.namespace_id != namespace.id or row.seq >= edge:
                return None
            edge = row.seq
            try:
                metadata: Mapping[str, Any] = loads(unpack_body(key, row).metadata)
            except DamagedError:
                return None
            labels |= labels_of(metadata)
        if len(found) < MOST_ROWS:
            return labels
