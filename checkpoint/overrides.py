"""What a subclass of a saver overrides is called, also where its base class stores or finds in a shorter way.

`commit` of a shipped saver stores a superstep in one transaction and does not need `put`. A subclass that overrides
`put` would be bypassed; so `commit` then gives way to its parts: `put_writes` for what each task wrote, then `put`. The
same goes for every method in `PARTS`. One writer per thread holds there, too: `put` and `commit_writes` of a shipped
saver check, in their own transaction, that the head is still the one that the commit around them names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from .errors import CheckpointConflictError
from .records import (
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    RunnableConfig,
    TaskWrites,
    address,
    coordinates,
)

# A method → those that it gives way to if a subclass of the class that defines it overrides one of them.
PARTS: Mapping[str, tuple[str, ...]] = {
    "commit": ("put", "put_writes"),
    "commit_writes": ("put_writes",),
    "claim": ("put_writes",),
    "head": ("get_tuple",),
    "run_of": ("list", "get_tuple"),
    "acommit": ("aput", "aput_writes"),
    "acommit_writes": ("aput_writes",),
    "aclaim": ("aput_writes",),
    "ahead": ("aget_tuple",),
    "arun_of": ("alist", "aget_tuple"),
}
_SYNC = ("get_tuple", "get", "list", "threads", "put", "put_writes", "delete_thread", "delete_for_runs", "prune",
         "copy_thread", *(name for name in PARTS if not name.startswith("a")))  # fmt: skip


def honour_overrides(cls: type) -> None:
    """Let the methods that a class defines give way to their parts where a subclass overrides these.

    Raises:
        TypeError: a sync method is defined with `async def`, or `alist` is no generator: it could not be called.
    """
    for name in _SYNC:
        own = cls.__dict__.get(name)
        if inspect.iscoroutinefunction(own) or inspect.isasyncgenfunction(own):
            raise TypeError(
                f"{cls.__name__}.{name}() must be a plain method, got `async def`: sync runs call it. "
                f"Define a{name}() for async runs; without one they call {name}() on a worker thread"
            )
    if inspect.iscoroutinefunction(cls.__dict__.get("alist")):
        raise TypeError(f"{cls.__name__}.alist() must be an async generator, got a coroutine: use `yield` in it")
    for name, parts in PARTS.items():
        own = cls.__dict__.get(name)
        if inspect.isfunction(own):
            setattr(cls, name, _giving_way(cls, own, parts, _BY_PARTS[name]))


def stores_by_put(saver: Any) -> bool:
    """Whether a commit may reach `put` or `aput`, and so asks for the whole checkpoint, not only for what changed."""
    cls = type(saver)
    for name in ("commit", "acommit"):
        owners = _owners(cls, name)
        native = owners[:-1] if name == "commit" else owners  # the last `commit` is made of its parts
        if not native or any(_overridden(cls, owner, PARTS[name]) for owner in native):
            return True
    return False


def records_at_once(saver: Any) -> bool:
    """Whether `commit_writes` records all it is given in one go; else how often something was recorded is not known."""
    cls = type(saver)
    return not any(_overridden(cls, _owners(cls, name)[0], PARTS[name]) for name in ("commit_writes", "acommit_writes"))


def _owners(cls: type, name: str) -> list[type]:
    """The classes that define a method, the nearest first."""
    return [owner for owner in cls.__mro__ if name in owner.__dict__]


def _overridden(cls: type, owner: type, parts: Sequence[str]) -> bool:
    """Whether a class has other methods than the one whose method asks."""
    return any(getattr(cls, part) is not getattr(owner, part) for part in parts)


def _giving_way(owner: type, own: Any, parts: Sequence[str], by_parts: Any) -> Any:
    chosen: dict[type, Any] = {}  # by class: looked up at every commit

    def choose(cls: type) -> Any:
        call = chosen[cls] = by_parts if _overridden(cls, owner, parts) else own
        return call

    if inspect.iscoroutinefunction(own):

        @wraps(own)
        async def amethod(self: Any, *args: Any, **named: Any) -> Any:
            cls = self.__class__
            return await (chosen[cls] if cls in chosen else choose(cls))(self, *args, **named)

        return amethod

    @wraps(own)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        cls = self.__class__
        return (chosen[cls] if cls in chosen else choose(cls))(self, *args, **named)

    return method


# -- one writer per thread, in parts ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Expected:
    """What the call that is under way found, and what its parts must still find: `until` is the part that fulfils it.
    `revision` None: how much is recorded beside the head does not matter."""

    saver: Any
    thread_id: str
    checkpoint_ns: str
    head: str | None
    revision: int | None
    until: str
    fulfilled: bool = False


_EXPECTED: ContextVar[_Expected | None] = ContextVar("stategraph_expected_head", default=None)


def expects(saver: Any) -> bool:
    """Whether a call of this saver's that must find a certain head is done in parts right now."""
    expected = _EXPECTED.get()
    return expected is not None and expected.saver is saver and not expected.fulfilled


def expected_revision(saver: Any) -> int | None:
    """How often something must have been recorded beside the head when the call that is under way does so."""
    expected = _EXPECTED.get()
    return expected.revision if expected is not None and expected.saver is saver else None


def fulfil(saver: Any, part: str) -> None:
    """Say that a part has found what was expected, where the database itself has compared it."""
    expected = _EXPECTED.get()
    if expected is not None and expected.saver is saver:
        expected.fulfilled = expected.fulfilled or part == expected.until


def expecting(saver: Any, config: RunnableConfig, revision: int) -> AbstractContextManager[None]:
    """While `commit_writes` of a shipped saver is called in this context it raises CheckpointConflictError, unless the
    checkpoint of `config` is the head and just so much is recorded beside it."""
    thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
    return _expecting(_Expected(saver, thread_id, checkpoint_ns, checkpoint_id, revision, "commit_writes"))


def check_expected(
    saver: Any, part: str, where: tuple[str, str], head: str | None, revision: int | None = None
) -> None:
    """Refuse a part of a call whose thread has moved on. Called by shipped savers inside the part's transaction.

    Args:
        part: the method that asks.
        where: (thread id, namespace).
        head, revision: as they are now.

    Raises:
        CheckpointConflictError: they are not those that the call found.
    """
    expected = _EXPECTED.get()
    if expected is None or expected.saver is not saver or expected.fulfilled:
        return
    if where != (expected.thread_id, expected.checkpoint_ns):
        return  # what an override does on another thread is its own affair
    if head != expected.head or (expected.revision is not None and revision != expected.revision):
        raise CheckpointConflictError(*where, expected.head, head)
    expected.fulfilled = part == expected.until


@contextmanager
def _expecting(expected: _Expected) -> Iterator[None]:
    token = _EXPECTED.set(expected)
    try:
        yield
    finally:
        _EXPECTED.reset(token)


# -- the methods, made of their parts -----------------------------------------------------------------------------


def _expected_by(saver: Any, commit: Commit, head: str | None) -> _Expected:
    if head != commit.head:
        raise CheckpointConflictError(commit.thread_id, commit.checkpoint_ns, commit.head, head)
    return _Expected(saver, commit.thread_id, commit.checkpoint_ns, head, None, "put")


def _commit(saver: Any, commit: Commit) -> None:
    head = saver.head(address(commit.thread_id, commit.checkpoint_ns))
    with _expecting(_expected_by(saver, commit, head)):
        put_commit(saver, commit)
    saver._retain(commit.thread_id, commit.checkpoint_ns)


async def _acommit(saver: Any, commit: Commit) -> None:
    import asyncio  # deferred: whoever awaits this has it already

    if len(_owners(type(saver), "commit")) == 1:  # a saver of `put`s alone does not look in sync runs either
        await _aput_commit(saver, commit)
        return
    head = await saver.ahead(address(commit.thread_id, commit.checkpoint_ns))
    with _expecting(_expected_by(saver, commit, head)):
        await _aput_commit(saver, commit)
    await asyncio.to_thread(saver._retain, commit.thread_id, commit.checkpoint_ns)


def put_commit(saver: Any, commit: Commit) -> None:
    """Store a commit by `commit_writes` and `put`, without a look at the head."""
    if commit.parent_id is not None and commit.writes:
        saver.commit_writes(commit.thread_id, commit.checkpoint_ns, commit.parent_id, commit.writes)
    saver.put(*_put_arguments(commit))
    if commit.carried:
        saver.commit_writes(commit.thread_id, commit.checkpoint_ns, commit.id, commit.carried)


async def _aput_commit(saver: Any, commit: Commit) -> None:
    if commit.parent_id is not None and commit.writes:
        await saver.acommit_writes(commit.thread_id, commit.checkpoint_ns, commit.parent_id, commit.writes)
    await saver.aput(*_put_arguments(commit))
    if commit.carried:
        await saver.acommit_writes(commit.thread_id, commit.checkpoint_ns, commit.id, commit.carried)


def _put_arguments(commit: Commit) -> tuple[Any, ...]:
    parent = address(commit.thread_id, commit.checkpoint_ns, commit.parent_id)
    return parent, commit.whole(), CheckpointMetadata(**commit.metadata), commit.versions  # type: ignore[typeddict-item]


def put_task_writes(
    saver: Any, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
) -> None:
    """Record what tasks wrote by `put_writes`."""
    for arguments in _put_writes_arguments(saver, address(thread_id, checkpoint_ns, checkpoint_id), writes):
        saver.put_writes(*arguments)


async def _acommit_writes(
    saver: Any, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
) -> None:
    for arguments in _put_writes_arguments(saver, address(thread_id, checkpoint_ns, checkpoint_id), writes):
        await saver.aput_writes(*arguments)


def _put_writes_arguments(saver: Any, config: RunnableConfig, writes: Sequence[TaskWrites]) -> Iterator[Any]:
    for task_id, task_path, pairs, _ in writes:
        yield config, [(name, saver.serde.loads(blob)) for name, blob in pairs], task_id, task_path


def _claimed(saver: Any, config: RunnableConfig, revision: int | None, found: CheckpointTuple | None) -> _Expected:
    thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
    head = found.checkpoint["id"] if found else None
    if head is None or head != checkpoint_id or (found and found.revision != revision):
        raise CheckpointConflictError(thread_id, checkpoint_ns, checkpoint_id, head)
    return _Expected(saver, thread_id, checkpoint_ns, head, revision, "commit_writes")


def _claim(saver: Any, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]) -> None:
    thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
    found = saver.get_tuple(address(thread_id, checkpoint_ns))
    with _expecting(_claimed(saver, config, revision, found)):
        saver.commit_writes(thread_id, checkpoint_ns, checkpoint_id or "", writes)


async def _aclaim(saver: Any, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]) -> None:
    thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
    found = await saver.aget_tuple(address(thread_id, checkpoint_ns))
    with _expecting(_claimed(saver, config, revision, found)):
        await saver.acommit_writes(thread_id, checkpoint_ns, checkpoint_id or "", writes)


def find_head(saver: Any, config: RunnableConfig) -> str | None:
    """The head's id by `get_tuple`."""
    thread_id, checkpoint_ns, _ = coordinates(config)
    found = saver.get_tuple(address(thread_id, checkpoint_ns))
    return found.checkpoint["id"] if found else None


async def _ahead(saver: Any, config: RunnableConfig) -> str | None:
    thread_id, checkpoint_ns, _ = coordinates(config)
    found = await saver.aget_tuple(address(thread_id, checkpoint_ns))
    return found.checkpoint["id"] if found else None


def find_run(saver: Any, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
    """The newest checkpoint of a run by `list`, as `get_tuple` gives it."""
    thread_id, checkpoint_ns, _ = coordinates(config)
    for found in saver.list(address(thread_id, checkpoint_ns), filter={"run_id": run_id}, limit=1):
        whole: CheckpointTuple | None = saver.get_tuple(address(thread_id, checkpoint_ns, found.checkpoint["id"]))
        return whole
    return None


async def _arun_of(saver: Any, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
    thread_id, checkpoint_ns, _ = coordinates(config)
    async for found in saver.alist(address(thread_id, checkpoint_ns), filter={"run_id": run_id}, limit=1):
        whole: CheckpointTuple | None = await saver.aget_tuple(
            address(thread_id, checkpoint_ns, found.checkpoint["id"])
        )
        return whole
    return None


_BY_PARTS: Mapping[str, Callable[..., Any]] = {
    "commit": _commit,
    "commit_writes": put_task_writes,
    "claim": _claim,
    "head": find_head,
    "run_of": find_run,
    "acommit": _acommit,
    "acommit_writes": _acommit_writes,
    "aclaim": _aclaim,
    "ahead": _ahead,
    "arun_of": _arun_of,
}
