"""Finding the checkpoint that the loop asks for, written once for threads and asyncio."""

from __future__ import annotations

from typing import Any

from ...checkpoint.base import CONTINUES, address, coordinates
from ...checkpoint.overrides import has_own_head
from ..names import BEFORE_FIRST
from ..run.effects import Load, ReadPosts
from ..run.run import Run
from ..steps import Steps, Waits


def load(run: Run, effect: Load, waits: Waits) -> Steps[None]:
    """Find what an effect names, and fill it in."""
    thread = run.thread
    saver, config = thread.saver, effect.at or thread.config_of(thread.checkpoint_id)
    assert saver is not None
    if effect.made_by is not None:
        effect.found = yield waits.ask(saver, "run_of", config, effect.made_by)
    elif effect.continues is not None:
        config = address(coordinates(config)[0], "")
        effect.found = yield from _find_continuing(saver, config, effect.continues, waits)
        effect.head = yield waits.ask(saver, "head", config)
    elif effect.before is not None:
        effect.found = yield from _find_before(saver, effect, config, waits)
        effect.head = run.journal.find_kept_head(config) or (yield waits.ask(saver, "head", config))
    else:
        effect.found = run.journal.find_kept(config)
        if effect.found is None:
            asked = effect.saver or saver
            effect.found, effect.head = yield from _find(asked, effect, config, waits)
        effect.head = run.journal.find_kept_head(config) or effect.head


def read_posts(run: Run, effect: ReadPosts, waits: Waits) -> Steps[None]:
    """Read what was posted to the thread of a run, and fill it in."""
    effect.posts = yield waits.ask(run.thread.saver, "read_posts", run.thread.thread_id)


def _find_before(saver: Any, effect: Load, config: Any, waits: Waits) -> Steps[Any]:
    """The newest checkpoint that is older than a given one; None if there is none. If that one has
    been pruned nobody knows what is older."""
    before, older = effect.before, None
    keeper = effect.saver or saver
    if (yield waits.ask(keeper, "get_tuple", before)) is None:
        before = None
    elif keeper is not saver:
        # Ids of two savers have no common order: what is older is told by the whole graph's
        # history, which the other saver keeps.
        whole = address(coordinates(config)[0], "")
        older = set[str]()
        seen = older.add  # accepts none, so it is shown them all
        yield waits.first_of(keeper, whole, lambda each: seen(each.checkpoint["id"]), before)
        before = None
    ancestry = None if effect.branch is None else Ancestry(*effect.branch, waits)
    while True:
        # A list of one: some savers hold a connection as long as they list.
        found = next(iter((yield waits.list(saver, config, before=before, limit=1))), None)
        if found is None:
            return None
        made = found.metadata.get("parents", {}).get("")  # under this one of the whole graph
        if (older is None or made in older) and (
            ancestry is None or made is None or (yield from ancestry.may_hold(made))
        ):
            return found
        before = found.config


class Ancestry:
    """A checkpoint of a whole graph and those on which it was built, read as far as is needed.

    Args:
        config: names the checkpoint.
        saver: keeps them.
    """

    def __init__(self, config: Any, saver: Any, waits: Waits) -> None:
        self._saver, self._waits = saver, waits
        self._known: set[str] = set()
        self._thread_id = coordinates(config)[0]
        self._next = config

    def may_hold(self, checkpoint_id: str) -> Steps[bool]:
        """Whether a checkpoint may be among them: it is, or it is not stored, so that nobody knows.
        Most checkpoints of a call with durability "exit" are not."""
        while checkpoint_id not in self._known and self._next is not None:
            each = yield self._waits.ask(self._saver, "get_tuple", self._next)
            self._next = None
            if each is not None:
                self._known.update((each.checkpoint["id"], *each.metadata.get(CONTINUES, ())))
                self._next = each.parent_config
        if checkpoint_id in self._known:
            return True
        where = address(self._thread_id, "", checkpoint_id)
        return (yield self._waits.ask(self._saver, "get_tuple", where)) is None


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
    thread_id, _, checkpoint_id = coordinates(config)
    if checkpoint_id == BEFORE_FIRST:
        return None, (yield waits.ask(saver, "head", config))
    found = yield waits.ask(saver, "get_tuple", config)
    if checkpoint_id is None:
        return found, found.checkpoint["id"] if found is not None else None
    if found is None and not effect.may_be_gone:
        raise ValueError(f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}")
    head = found.head if found is not None and has_own_head(saver) else None
    return found, head or (yield waits.ask(saver, "head", config))
