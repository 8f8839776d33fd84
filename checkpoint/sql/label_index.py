"""The index of labels in a database: which namespaces have checkpoints with which metadata, so that
a search reads only a few of them.

A commit adds, in its own transaction, the labels that the checkpoint before it lacks. Labels that
no checkpoint has any more are dropped when the namespace is pruned. So a namespace may have too
many labels, but never too few. Those that version 0.1.0 has written have none and are marked; each
search reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .queries import SqlSession
from .rows import NamespaceRow

MOST_FOUND = 10_000
"""A label with this many namespaces narrows the search too little: reading all checkpoints in order
is as fast."""


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
    unlabelled = session.rows("unlabelled", MOST_FOUND)
    if len(unlabelled) == MOST_FOUND:
        return None
    namespaces = {row[0]: NamespaceRow(*row) for row in unlabelled}
    for row in session.rows("namespaces_of", sorted(wanted - namespaces.keys())):
        namespaces[row[0]] = NamespaceRow(*row)
    return [namespaces[id] for id in sorted(namespaces)]
