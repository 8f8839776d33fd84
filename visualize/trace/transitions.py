"""The line of checkpoints that leads to one of them, as pairs of neighbours: what each step made of
the state before it. Needs no graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...pregel.types import RunnableConfig, StateSnapshot
from .records import Source


class Transition(NamedTuple):
    """Two consecutive checkpoints of a line, and whether another branch has also run on from the
    older one."""

    before: StateSnapshot | None
    after: StateSnapshot
    ran_elsewhere: bool


def list_transitions(
    history: Iterator[StateSnapshot],
    wanted: str | None,
    beside: list[StateSnapshot],
    left: Iterable[str] = (),
) -> Iterator[Transition]:
    """Yield the line that ends with the checkpoint `wanted`, by default the newest; newest first.
    Other checkpoints are added to `beside`. `left` are checkpoints from which another branch is
    known to have continued."""
    after: StateSnapshot | None = None
    ran: set[str | None] = {*left}  # checkpoints from which another branch continued
    for snapshot in history:
        here = id_of(snapshot.config)
        wanted = here if wanted is None else wanted
        if here != wanted:
            beside.append(snapshot._replace(values=None, tasks=()))
            if source_of(snapshot) == "loop":
                ran.add(parent_of(snapshot))
            continue
        if after is not None:
            yield Transition(snapshot, after, here in ran)
        after, wanted = snapshot, parent_of(snapshot) or ""
    if after is not None:
        yield Transition(None, after, False)


def parent_of(snapshot: StateSnapshot) -> str | None:
    """Return the id of the checkpoint before; None at the first."""
    return id_of(snapshot.parent_config) or None


def source_of(snapshot: StateSnapshot | None) -> Source:
    """Return what has made a checkpoint."""
    found = (snapshot.metadata or {}).get("source", "loop") if snapshot else "loop"
    return found if found in ("input", "loop", "update", "fork") else "loop"


def id_of(config: RunnableConfig | None) -> str:
    """Return the id of the checkpoint that a config names; empty if it names none."""
    return str((config or {}).get("configurable", {}).get("checkpoint_id") or "")
