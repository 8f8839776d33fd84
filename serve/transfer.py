"""A thread as one JSON file, and back: its record, all its checkpoints with the writes beside them,
and what was posted to it. Values of Python are written so that they come back equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ..checkpoint.base import BaseCheckpointSaver, address, coordinates
from ..checkpoint.errors import StorageError
from ..checkpoint.serde.json_form import from_json, to_json
from .bodies import Body, Many, ThreadMetadata, Ttl, check_segment, check_time
from .records import Record

FORMAT: Final = "stategraph-thread-1"
_Time = Annotated[str, AfterValidator(check_time)]


class ThreadRecord(Body):
    """The record of an exported thread. Lists of threads rely on the types of its fields."""

    thread_id: Annotated[str, AfterValidator(check_segment)]
    owner: str
    metadata: ThreadMetadata
    status: Literal["idle", "interrupted", "error"]
    error: dict[str, str] | None
    created_at: _Time
    updated_at: _Time
    config: Many = Field({})
    version: str | None = None
    ttl: Ttl | None = None
    expires_at: _Time | None = None

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.ttl is None) != (self.expires_at is None):
            raise ValueError("ttl and expires_at must come together")
        return self


class Step(Body):
    """An exported checkpoint with the writes beside it; `to_json` has made the last three."""

    namespace: str
    parent: str | None
    checkpoint: Many
    metadata: Many
    writes: list[Any]


class ThreadFile(Body):
    """An exported thread.

    Attributes:
        checkpoints: the oldest first, of all namespaces.
        posts: the messages that no run has taken yet.
    """

    format: Literal["stategraph-thread-1"]
    thread: ThreadRecord
    checkpoints: list[Step]
    posts: list[Any]


async def export_thread(saver: BaseCheckpointSaver, thread: Record) -> Record:
    """Return a thread as what `import_thread` takes."""
    id, serde = thread["thread_id"], saver.serde
    steps = [each async for each in _steps(saver, id)]
    posts = await saver.aread_posts(id) if saver.keeps_posts else ()
    told = [[[key, serde.loads(blob)] for key, blob in post.writes] for post in posts]
    posted = to_json(told, serde)
    return {"format": FORMAT, "thread": thread, "checkpoints": steps[::-1], "posts": posted}


async def _steps(saver: BaseCheckpointSaver, id: str) -> AsyncIterator[Record]:
    """Yield the checkpoints of a thread, the newest first."""
    async for each in saver.alist({"configurable": {"thread_id": id}}):
        _, ns, _ = coordinates(each.config)
        told = {
            "checkpoint": dict(each.checkpoint),
            "metadata": dict(each.metadata),
            "writes": [[*write] for write in each.pending_writes or ()],
        }
        parent = each.parent_config and coordinates(each.parent_config)[2]
        form = await asyncio.to_thread(to_json, told, saver.serde)  # it may be large
        yield {"namespace": ns, "parent": parent, **form}


async def import_thread(saver: BaseCheckpointSaver, id: str, file: ThreadFile) -> None:
    """Store the checkpoints of an exported thread, and what was posted to it, as a new thread.

    Raises:
        ValueError: the file is damaged, or has a type that the graphs do not name.
    """
    try:
        await _import(saver, id, file)
    except BaseException as error:
        await saver.adelete_thread(id)
        if isinstance(error, StorageError) or not isinstance(error, Exception):
            raise
        raise ValueError(f"the file is damaged: {error!r}") from error


async def _import(saver: BaseCheckpointSaver, id: str, file: ThreadFile) -> None:
    before: dict[tuple[str, Any], Any] = {}
    for step in file.checkpoints:
        ns, parent = step.namespace, step.parent
        checkpoint = from_json(step.checkpoint, saver.serde)
        _check_texts(checkpoint["id"])
        versions = checkpoint["channel_versions"]
        known = before.get((ns, parent), {})
        changed = {name: each for name, each in versions.items() if known.get(name) != each}
        metadata = from_json(step.metadata, saver.serde)
        place = await saver.aput(address(id, ns, parent), checkpoint, metadata, changed)
        before[ns, checkpoint["id"]] = versions
        writes: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in from_json(step.writes, saver.serde):
            _check_texts(task, channel)
            writes.setdefault(task, []).append((channel, value))
        for number, (task, made) in enumerate(writes.items()):  # paths keep them in this order
            await saver.aput_writes(place, made, task, f"{number:06}")
    for post in from_json(file.posts, saver.serde):
        _check_texts(*[key for key, _ in post])
        await saver.astore_post(id, [(key, saver.serde.dumps(value)) for key, value in post])


def _check_texts(*values: Any) -> None:
    for each in values:
        if not isinstance(each, str):
            raise TypeError(f"an id or a name must be a string, got {each!r}")
