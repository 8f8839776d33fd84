"""The checkpoints of a thread as a checkpointer lists them, with what is recorded elsewhere of the
tasks that follow them (schedule="ready"): for `get_state_history`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from ...checkpoint.base import UNDER_WAY, BaseCheckpointSaver, CheckpointTuple
from ..types import RunnableConfig

Origins = dict[str, CheckpointTuple | None]
"""Checkpoint id → the checkpoint; many have tasks under way of the same few."""


def list_checkpoints(
    saver: BaseCheckpointSaver, where: RunnableConfig, filter: Any, before: Any, limit: int | None
) -> Iterator[CheckpointTuple]:
    """`saver.list`, with what is recorded beside the origins of tasks that are under way."""
    known: Origins = {}
    for found in saver.list(where, filter=filter, before=before, limit=limit):
        for id, origin in _missing(found, known):
            known[id] = saver.get_tuple(origin)
        yield _merge(found, known)


async def alist_checkpoints(
    saver: BaseCheckpointSaver, where: RunnableConfig, filter: Any, before: Any, limit: int | None
) -> AsyncIterator[CheckpointTuple]:
    """`list_checkpoints` for coroutines."""
    known: Origins = {}
    async for found in saver.alist(where, filter=filter, before=before, limit=limit):
        for id, origin in _missing(found, known):
            known[id] = await saver.aget_tuple(origin)
        yield _merge(found, known)


def _missing(found: CheckpointTuple, known: Origins) -> list[tuple[str, RunnableConfig]]:
    """The origins that are not known yet."""
    if UNDER_WAY not in found.metadata:
        return []
    from .origins import origins_of

    ids = [(where["configurable"]["checkpoint_id"], where) for where in origins_of(found)]
    return [(id, where) for id, where in ids if id not in known]


def _merge(found: CheckpointTuple, known: Origins) -> CheckpointTuple:
    if UNDER_WAY not in found.metadata:
        return found
    from .origins import origins_of, with_origins

    origins = [known[where["configurable"]["checkpoint_id"]] for where in origins_of(found)]
    return with_origins(found, [origin for origin in origins if origin is not None])
