"""The index of labels in a database: which namespaces have checkpoints with which metadata, so that
a search reads only a few of them.

A commit adds, in its own transaction, the labels that the checkpoint before it lacks. Namespaces
written by an older version, and copies of threads, are marked; the next search adds their labels.
Labels that no checkpoint has any more are dropped when the namespace is pruned. So a namespace may
have too many labels, but never too few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..errors import DamagedError
from ..integrity import Integrity
from ..labels import labels_of
from ..serde import Blob
from .pages import MOST_ROWS
from .queries import NEWEST, SqlSession
from .rows import CheckpointRow, NamespaceRow, unpack_body

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
