"""Finding the checkpoint that the loop asks for, written once for threads and asyncio."""

from __future__ import annotations

from typing import Any

from ...checkpoint.base import CONTINUES, address, coordinates
from ..names import BEFORE_FIRST
from ..run.effects import Load, ReadPosts
from ..run.run import Run
from .steps import Steps, Waits


def load(run: Run, effect: Load, waits: Waits) -> Steps[None]:
    """Find what an effect names, and fill it in."""
    thread = run.thread
    saver, config = thread.saver, effect.at or thread.config_of(thread.checkpoint_id)
    assert saver is not None
    if effect.made_by is not None:
        effect.found = yield waits.run_of(saver, config, effect.made_by)
    elif effect.continues is not None:
        config = address(coordinates(config)[0], "")
        effect.found = yield from _find_continuing(saver, config, effect.continues, waits)
        effect.head = yield waits.head(saver, config)
    elif effect.saver is None or effect.saver is saver:
        effect.found, effect.head = yield from _find(saver, effect, config, waits)
    elif effect.before is None:
        effect.found, effect.head = yield from _find(effect.saver, effect, config, waits)
    else:
        # Ids of two savers have no common order: what is older is told by the whole graph's
        # history, which the other saver keeps.
        whole = address(coordinates(config)[0], "")
        older = yield waits.ids_before(effect.saver, whole, effect.before)
        effect.found = yield waits.first_of(saver, config, lambda each: _made_under(each) in older)
        effect.head = yield waits.head(saver, config)


def read_posts(run: Run, effect: ReadPosts, waits: Waits) -> Steps[None]:
    """Read what was posted to the thread of a run, and fill it in."""
    effect.posts = yield waits.read_posts(run.thread.saver, run.thread.thread_id)


def _made_under(found: Any) -> str | None:
    """The checkpoint of the whole graph under which a nested one was made."""
    parents: dict[str, str] = found.metadata.get("parents", {})
    return parents.get("")


def _find_continuing(saver: Any, config: Any, gone: str, waits: Waits) -> Steps[Any]:
    """The oldest checkpoint in which tasks go on of one that is not stored; None if there is
    none."""
    found: Any = None
    while True:
        before = None if found is None else found.config
        older = yield waits.first_of(
            saver, config, lambda each: gone in each.metadata.get(CONTINUES, ()), before
        )
        if older is None:
            return found
        found = older


def _find(
    saver: Any, effect: Load, config: Any, waits: Waits
) -> Steps[tuple[Any, str | None]]:
    """The checkpoint to start from, and the id of the thread's newest.

    Raises:
        ValueError: the config names a checkpoint that the thread does not have.
    """
    if effect.before is not None:
        found = yield waits.first_of(saver, config, None, effect.before)
        return found, (yield waits.head(saver, config))
    thread_id, _, checkpoint_id = coordinates(config)
    if checkpoint_id == BEFORE_FIRST:
        return None, (yield waits.head(saver, config))
    found = yield waits.get_tuple(saver, config)
    if checkpoint_id is None:
        return found, found.checkpoint["id"] if found is not None else None
    if found is None and not effect.may_be_gone:
        raise ValueError(f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}")
    return found, (yield waits.head(saver, config))
