"""Ids of tasks, of `@task` calls and of checkpoints, as texts in the form of a UUID.

Ids of tasks and calls are hashes of what they stand for, so that a resumed run finds them again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from time import time_ns
from typing import Any, NamedTuple, Protocol

from ...checkpoint.digest import blake2b
from ...checkpoint.serde import Blob
from ..names import path_text
from ..program.program import CompiledNode
from .attempt_state import AttemptState


class Carried(NamedTuple):
    """What a task takes along that goes on from an earlier checkpoint: after an edit of the thread,
    in another schedule, or after a call with durability="exit".

    Attributes:
        id: the id that it had.
        joined: `Runtime.joined`: what led to it has been consumed when it started.
        origin: the checkpoint at which it has started, if it is still under way there
            (schedule="ready"); else "".
    """

    id: str
    joined: tuple[str, ...] = ()
    origin: str = ""


NONE_CARRIED: Mapping[tuple[Any, ...], Carried] = {}


class Scheduled(Protocol):
    """The part of a task of which its id, and those of its calls, are made."""

    node: CompiledNode

    @property
    def id(self) -> str: ...

    @property
    def current(self) -> AttemptState: ...

    @property
    def order(self) -> tuple[Any, ...] | int: ...

    @property
    def path(self) -> tuple[Any, ...]: ...


def task_id(checkpoint_id: str, ns: str, step: int, task: Scheduled) -> str:
    """A hash of everything that tells this task from others.

    The parts are joined with NUL so that no two lists of parts give the same text.
    """
    node = task.node
    kind = node.identity
    if task.order != node.path:
        path = task.path
        kind = "\0".join((path[0], path_text(path[1:])))
    text = f"{checkpoint_id}\0{ns}\0{step}\0{node.name}\0{kind}"
    return uuid_text(blake2b(text.encode(), digest_size=16).hexdigest())  # not `_hash` (P4)


def call_id(parent: Scheduled, node: CompiledNode, digest: str) -> str:
    """The id of the next `@task` call that an attempt of `parent` makes with these arguments: a
    hash of the parent's id, the function, the arguments and how many equal calls came before.
    Counts the call.

    Args:
        digest: of the arguments.
    """
    kind = call_kind(node, digest)
    return numbered_call_id(parent.id, kind, parent.current.count(kind))


def call_kind(node: CompiledNode, digest: str) -> str:
    """What equal calls have in common: the function and the arguments."""
    return f"{node.name}\0{node.identity}\0{digest}"


def numbered_call_id(task_id: str, kind: str, number: int) -> str:
    """The id of the call of a task that so many equal ones came before."""
    return _hash(f"{task_id}\0{kind}\0{number}")


def effect_id(task_id: str, kind: str, key: str) -> str:
    """The id of the record of an effect of a task.

    Args:
        kind: `ONCE` or `TRANSACTION`.
    """
    return _hash(f"{task_id}\0{kind.removeprefix('runtime.')}\0{key}")


def _hash(text: str) -> str:
    return uuid_text(blake2b(text.encode(), digest_size=16).hexdigest())


def uuid_text(digest: str) -> str:
    """32 hex digits as 8-4-4-4-12."""
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


class _CheckpointIds:
    """What checkpoint ids made in this process have in common, and the number that tells them
    apart."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: a process that forked must not make the ids of its parent."""
        bits = os.urandom(9).hex()
        self.common = f"-7{bits[:3]}-8{bits[3:6]}-"
        self.numbers = count(int(bits[6:], 16) >> 1)


_ids = _CheckpointIds()
os.register_at_fork(after_in_child=_ids.renew)


def new_checkpoint_id(before: str | None = None) -> str:
    """A UUID of version 7. The engine does not rely on its order, but checkpointers written for
    LangGraph list checkpoints in the order of their ids, so it sorts after the one before it in its
    thread.

    Args:
        before: the id of that one.
    """
    millis = f"{time_ns() // 1_000_000:012x}"
    new = f"{millis[:8]}-{millis[8:]}{_ids.common}{next(_ids.numbers):012x}"
    return new if before is None or new > before else _sorted_after(before, new)


def successor_id(origin: str, values: Mapping[str, Blob | None]) -> str:
    """The id of a checkpoint by what it continues and what has changed. The superstep after it may
    run before it is stored; if it is lost and comes out the same again, the ids of that superstep's
    tasks are the same, too.

    Args:
        origin: begins with the id of the checkpoint before it; the new one sorts after that.
    """
    digest = blake2b(origin.encode(), digest_size=16)
    for name in sorted(values):
        form, payload = values[name] or ("", b"")
        # Lengths are in it, so that no two lists of values make the same bytes.
        digest.update(f"\0{name}\0{form}\0{len(payload)}\0".encode() + payload)
    return _sorted_after(origin, uuid_text(digest.hexdigest()))


def _sorted_after(origin: str, new: str) -> str:
    """An id with the time of another one and a millisecond; with the earliest time if the other has
    none."""
    try:
        millis = f"{int(origin[:8] + origin[9:13], 16) + 1:012x}"
    except ValueError:
        millis = "0" * 12
    return f"{millis[:8]}-{millis[8:]}{new[13:]}"
