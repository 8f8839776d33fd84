"""Copies threads from one checkpointer to another: up to where a trial starts that does not start
at its first input, and what came of a trial. The source is only read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointTuple,
    RunnableConfig,
    address,
    coordinates,
)
from ..pregel.app import Pregel
from ..testing.origins import has_ready
from ..testing.recorder import Stage
from ..testing.thread_reader import ThreadError


def copy_until(
    app: Pregel, thread: str, from_: str, edit: Mapping[str, Any], stage: Stage
) -> int:
    """Copy a thread up to a checkpoint into that of a stage. What is recorded beside the last one
    is left out: its tasks run again.

    Args:
        from_: a node, whose first task follows the checkpoint; or the checkpoint's id.
        edit: values of keys of the state there.

    Returns:
        How many inputs the thread had had.

    Raises:
        ThreadError: the thread has no such checkpoint, or is not stored.
        ValueError: the graph has schedule="ready".
    """
    if has_ready(app.program):
        raise ValueError('from_ is not known for graphs with schedule="ready"')
    source: Any = app.checkpointer
    is_stored = isinstance(source, BaseCheckpointSaver)
    found = list(source.list(address(thread, ""))) if is_stored else []
    by_id = {coordinates(each.config)[2]: each for each in found}
    if from_ in app.program.nodes:
        history = list(app.get_state_history(address(thread, "")))[::-1] if found else []
        firsts = (coordinates(each.config)[2] for each in history if from_ in each.next)
        wanted = next(firsts, None)
    else:
        wanted = from_
    if wanted not in by_id:
        raise ThreadError(f"thread {thread!r} has no run of node, and no checkpoint, {from_!r}")
    line = [by_id[wanted]]
    while (parent := line[-1].parent_config) is not None:
        line.append(by_id[coordinates(parent)[2]])
    before = {coordinates(each.config)[2] for each in line[1:]}
    for each in line[::-1]:
        whole = each is not line[0]
        _copy(each, stage.saver, stage.thread, {} if whole else edit, {}, whole=whole)
    for ns in filter(None, source.namespaces(thread)):
        for each in list(source.list(address(thread, ns)))[::-1]:
            if each.metadata.get("parents", {}).get("") in before:
                _copy(each, stage.saver, stage.thread, {}, {}, whole=True)
    return sum(each.metadata.get("source") == "input" for each in line)


def keep(stage: Stage, target: BaseCheckpointSaver, origin: str) -> str:
    """Copy the thread of a stage to another checkpointer, and note in the metadata of its
    checkpoints what it was made of. Returns its id there."""
    thread = coordinates(stage.thread)[0]
    for ns in stage.saver.namespaces(thread):
        for each in list(stage.saver.list(address(thread, ns)))[::-1]:
            _copy(each, target, stage.thread, {}, {"whatif_of": origin}, whole=True)
    return thread


def _copy(
    found: CheckpointTuple,
    target: BaseCheckpointSaver,
    to: RunnableConfig,
    edit: Mapping[str, Any],
    about: Mapping[str, Any],
    *,
    whole: bool,
) -> None:
    thread = coordinates(to)[0]
    _, ns, id = coordinates(found.config)
    parent = coordinates(found.parent_config)[2] if found.parent_config else None
    checkpoint: Any = dict(found.checkpoint)
    checkpoint["channel_values"] = {**checkpoint["channel_values"], **edit}
    versions = checkpoint["channel_versions"]
    metadata: Any = {**found.metadata, **about}
    target.put(address(thread, ns, parent), checkpoint, metadata, versions)
    by_task: dict[str, list[tuple[str, Any]]] = {}
    pending: Collection[Any] = found.pending_writes or () if whole else ()
    for task, channel, value in pending:
        by_task.setdefault(task, []).append((channel, value))
    for task, writes in by_task.items():
        target.put_writes(address(thread, ns, id), writes, task)
