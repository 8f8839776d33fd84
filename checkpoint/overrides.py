"""What a subclass of a saver overrides is called, also where its base class has a shorter way.

`commit` of a shipped saver stores a superstep in one transaction and does not need `put`. A
subclass that overrides `put` would be bypassed; so `commit` then gives way to its parts:
`put_writes` for what each task wrote, then `put`. The same goes for every method in `PARTS`. One
writer per thread holds there, too: `put` and `commit_writes` of a shipped saver check, in their own
transaction, that the head is still the one that the commit around them names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar

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

# A method → those that it gives way to if a subclass of the class that defines it overrides one.
# The async methods give way to the async ones of the same names.
PARTS: Mapping[str, tuple[str, ...]] = {
    "commit": ("put", "put_writes"),
    "commit_all": ("commit", "put", "put_writes"),
    "commit_writes": ("put_writes",),
    "commit_records": ("commit_writes", "put_writes"),
    "claim": ("put_writes",),
    "head": ("get_tuple",),
    "run_of": ("list", "get_tuple"),
    "namespaces": ("list",),
}
_SYNC = (
    *("get_tuple", "get", "list", "threads", "put", "put_writes"),
    *("delete_thread", "delete_for_runs", "prune", "copy_thread", "store_post", "read_posts"),
    *PARTS,
)


def honour_overrides(cls: type) -> None:
    """Let the methods that a class defines give way to their parts where a subclass overrides
    these.

    Raises:
        TypeError: a sync method is defined with `async def`, or `alist` is no generator: it could
            not be called.
    """
    for name in _SYNC:
        own = cls.__dict__.get(name)
        if inspect.iscoroutinefunction(own) or inspect.isasyncgenfunction(own):
            raise TypeError(
                f"{cls.__name__}.{name}() must be a plain method, got `async def`: sync runs call "
                "it. "
                f"Define a{name}() for async runs; without one they call {name}() on a worker "
                "thread"
            )
    if inspect.iscoroutinefunction(cls.__dict__.get("alist")):
        raise TypeError(
            f"{cls.__name__}.alist() must be an async generator, got a coroutine: use `yield` in it"
        )
    for name in PARTS:
        for method in (name, f"a{name}"):
            if inspect.isfunction(cls.__dict__.get(method)):
                setattr(cls, method, _give_way(cls, method, cls.__dict__[method]))


def stores_by_put(saver: Any) -> bool:
    """Whether a commit may reach `put` or `aput`, and so asks for the whole checkpoint."""
    cls = type(saver)
    for name in ("commit", "acommit"):
        owners = _owners(cls, name)
        # The last `commit` of all is made of its parts; the last `acommit` calls `commit`.
        native = owners[:-1] if name == "commit" else owners
        if not native or any(_overrides(cls, owner, _parts_of(name)) for owner in native):
            return True
    return False


def records_at_once(saver: Any) -> bool:
    """Whether `commit_writes` records all that it is given in one go. Else it is not known how
    often something was recorded."""
    cls = type(saver)
    return not any(
        _overrides(cls, _owners(cls, name)[0], _parts_of(name))
        for name in ("commit_writes", "acommit_writes")
    )


def commits_at_once(saver: Any) -> bool:
    """Whether `commit_all` stores all that it is given in one go."""
    cls: Any = type(saver)
    return _commits_at_once(cls)


@lru_cache(64)  # asked at every call
def _commits_at_once(cls: Any) -> bool:
    for name in ("commit_all", "acommit_all"):
        owners = _owners(cls, name)
        # The last `commit_all` of all stores one after another.
        if (name == "commit_all" and len(owners) == 1) or _overrides(
            cls, owners[0], _parts_of(name)
        ):
            return False
    return True


def _parts_of(method: str) -> tuple[str, ...]:
    if method in PARTS:
        return PARTS[method]
    return tuple(f"a{part}" for part in PARTS[method[1:]])


def _owners(cls: type, name: str) -> list[type]:
    """The classes that define a method, the nearest first."""
    return [owner for owner in cls.__mro__ if name in owner.__dict__]


def _overrides(cls: type, owner: type, parts: Sequence[str]) -> bool:
    """Whether a class has other methods than the one whose method asks."""
    return any(getattr(cls, part) is not getattr(owner, part) for part in parts)


def _give_way(owner: type, name: str, own: Any) -> Any:
    """A method that does its own work, or goes by its parts where the saver's class overrides
    one."""
    chosen: dict[type, Any] = {}  # by class: looked up at every commit
    parts = _parts_of(name)

    def choose(cls: type) -> Any:
        by_parts = _overrides(cls, owner, parts)
        chosen[cls] = _BY_PARTS[name] if by_parts else own
        return chosen[cls]

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


# -- one writer per thread, in parts --------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Expectation:
    """What the call that is under way has found, and its parts must still find in their
    transactions.

    Attributes:
        revision: how often something is recorded beside the head; None if it does not matter.
        until: the part with which it is fulfilled. What comes after that is not checked.
    """

    saver: Any
    thread_id: str
    checkpoint_ns: str
    head: str | None
    revision: int | None
    until: str
    fulfilled: bool = False

    def fulfil(self, part: str) -> None:
        """Note that a part of the call has found what is expected."""
        self.fulfilled = part == self.until

    def renew(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a part that may have been called before, in a transaction that was undone."""
        self.fulfilled = False
        return function(*args)


Result = TypeVar("Result")
_EXPECTED: ContextVar[Expectation | None] = ContextVar("stategraph_expected_head", default=None)


def expectation_of(saver: Any) -> Expectation | None:
    """What a call of this saver's that is being done in parts must still find; None if nothing."""
    expected = _EXPECTED.get()
    if expected is None or expected.saver is not saver or expected.fulfilled:
        return None
    return expected


def make_repeatable(saver: Any, function: Callable[..., Result]) -> Callable[..., Result]:
    """The same write; if the transaction in which it was made is undone, it can be made again."""
    expected = expectation_of(saver)
    return function if expected is None else partial(expected.renew, function)


def check_expected(
    saver: Any, part: str, where: tuple[str, str], head: str | None, revision: int | None = None
) -> None:
    """Refuse a part of a call whose thread has moved on. Called inside the part's transaction.

    Args:
        part: the method that asks.
        where: (thread id, namespace).
        head, revision: as they are now.

    Raises:
        CheckpointConflictError: they are not those that the call found.
    """
    expected = expectation_of(saver)
    if expected is None or where != (expected.thread_id, expected.checkpoint_ns):
        return  # what an override does on another thread is its own affair
    if head != expected.head or (expected.revision is not None and revision != expected.revision):
        raise CheckpointConflictError(*where, expected.head, head)
    expected.fulfil(part)


def expecting(saver: Any, config: RunnableConfig, revision: int) -> AbstractContextManager[None]:
    """In this context `commit_writes` of a shipped saver raises CheckpointConflictError, unless the
    checkpoint of `config` is the head and just so much is recorded beside it."""
    expected = Expectation(saver, *coordinates(config), revision, "commit_writes")
    return _expecting(expected)


@contextmanager
def _expecting(expected: Expectation) -> Iterator[None]:
    token = _EXPECTED.set(expected)
    try:
        yield
    finally:
        _EXPECTED.reset(token)


# -- the methods, made of their parts: written once, driven by sync and async methods --------------

Calls = Generator[tuple[str, tuple[Any, ...], dict[str, Any]], Any, Any]
"""Yields (method, arguments, named arguments), and is sent what the method gave."""


def drive(saver: Any, calls: Calls) -> Any:
    """Make calls with the sync methods of a saver. Of a list only the first item is taken."""
    result = None
    try:
        while True:
            name, args, named = calls.send(result)
            result = getattr(saver, name)(*args, **named)
            if name == "list":
                result = next(iter(result), None)
    except StopIteration as end:
        return end.value
    finally:
        calls.close()  # a call has failed: nothing is expected any more


async def adrive(saver: Any, calls: Calls) -> Any:
    """Make calls with the async methods of a saver."""
    result = None
    try:
        while True:
            name, args, named = calls.send(result)
            called = getattr(saver, f"a{name}")(*args, **named)
            result = await (anext(called, None) if name == "list" else called)
    except StopIteration as end:
        return end.value
    finally:
        calls.close()


def commit_by_parts(saver: Any, commit: Commit) -> Calls:
    """Store a commit by `commit_writes` and `put`, if the head is the one that it names."""
    where = (commit.thread_id, commit.checkpoint_ns)
    # A look before anything is stored; `put` looks again in its own transaction, where it decides.
    head = yield "head", (address(*where),), {}
    if head != commit.head:
        raise CheckpointConflictError(*where, commit.head, head)
    for namespace, required in commit.requires:  # only looked at before: `put` knows nothing of it
        found = yield "head", (address(commit.thread_id, namespace),), {}
        if found != required:
            raise CheckpointConflictError(commit.thread_id, namespace, required, found)
    with _expecting(Expectation(saver, *where, head, None, "put")):
        # Writes before the checkpoint: should the process die in between, the tasks count as
        # finished and the superstep is applied again.
        if commit.parent_id is not None and commit.writes:
            yield "commit_writes", (*where, commit.parent_id, commit.writes), {}
        metadata = CheckpointMetadata(**commit.metadata)  # type: ignore[typeddict-item]
        parent = address(*where, commit.parent_id)
        yield "put", (parent, commit.whole(), metadata, commit.versions), {}
        # Beside the new head, so after it; the expectation was fulfilled by `put`.
        if commit.carried:
            yield "commit_writes", (*where, commit.id, commit.carried), {}


def commit_each(saver: Any, commits: Sequence[Commit]) -> Calls:
    """Store commits by `commit`, one after another."""
    for commit in commits:
        yield "commit", (commit,), {}


def record_by_parts(
    saver: Any,
    thread_id: str,
    checkpoint_ns: str,
    checkpoint_id: str,
    writes: Sequence[TaskWrites],
) -> Calls:
    """Record what tasks wrote by `put_writes`."""
    config = address(thread_id, checkpoint_ns, checkpoint_id)
    for task_id, task_path, pairs, _ in writes:
        decoded = [(name, saver.serde.loads(blob)) for name, blob in pairs]
        yield "put_writes", (config, decoded, task_id, task_path), {}


def claim_by_parts(
    saver: Any, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]
) -> Calls:
    """Record a claim by `commit_writes`, if the head is as the caller has read it."""
    thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
    found: CheckpointTuple | None = yield "get_tuple", (address(thread_id, checkpoint_ns),), {}
    head = found.checkpoint["id"] if found else None
    if found is None or head != checkpoint_id or found.revision != revision:
        raise CheckpointConflictError(thread_id, checkpoint_ns, checkpoint_id, head)
    expected = Expectation(saver, thread_id, checkpoint_ns, head, revision, "commit_writes")
    with _expecting(expected):
        yield "commit_writes", (thread_id, checkpoint_ns, checkpoint_id, writes), {}


def commit_records_by_parts(
    saver: Any,
    config: RunnableConfig,
    revision: int | None,
    records: Mapping[str, Sequence[TaskWrites]],
) -> Calls:
    """Record beside several checkpoints by `commit_writes`, if the head is as the caller knows
    it."""
    thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
    where = (thread_id, checkpoint_ns)
    head = yield "head", (address(*where),), {}
    if checkpoint_id is None or head != checkpoint_id:
        raise CheckpointConflictError(*where, checkpoint_id, head)
    if not records.get(checkpoint_id):
        # Beside the head something is recorded first, be it nothing: nobody else can after that.
        records = {checkpoint_id: (), **records}
    for id, writes in records.items():
        with _expecting(Expectation(saver, *where, head, revision, "commit_writes")):
            yield "commit_writes", (*where, id, writes), {}
        if id == checkpoint_id and revision is not None:
            revision += 1


def head_by_parts(saver: Any, config: RunnableConfig) -> Calls:
    """The head's id by `get_tuple`."""
    thread_id, checkpoint_ns, _ = coordinates(config)
    found: CheckpointTuple | None = yield "get_tuple", (address(thread_id, checkpoint_ns),), {}
    if not found:
        return None
    return found.checkpoint["id"]


def run_by_parts(saver: Any, config: RunnableConfig, run_id: str) -> Calls:
    """The newest checkpoint of a run by `list`, as `get_tuple` gives it."""
    where = coordinates(config)[:2]
    newest = {"filter": {"run_id": run_id}, "limit": 1}
    found: CheckpointTuple | None = yield "list", (address(*where),), newest
    if found is None:
        return None
    return (yield "get_tuple", (address(*where, found.checkpoint["id"]),), {})


def namespaces_by_list(saver: Any, thread_id: str) -> list[str]:
    """The namespaces of a thread by `list`."""
    found = saver.list({"configurable": {"thread_id": thread_id}})
    return [*dict.fromkeys(coordinates(each.config)[1] for each in found)]


async def _anamespaces(saver: Any, thread_id: str) -> list[str]:
    found = saver.alist({"configurable": {"thread_id": thread_id}})
    return [*dict.fromkeys([coordinates(each.config)[1] async for each in found])]


def _commit(saver: Any, commit: Commit) -> None:
    drive(saver, commit_by_parts(saver, commit))
    saver._retain(commit.thread_id, commit.checkpoint_ns)


async def _acommit(saver: Any, commit: Commit) -> None:
    await adrive(saver, commit_by_parts(saver, commit))
    await saver._acall(saver._retain, commit.thread_id, commit.checkpoint_ns)


def _make_sync(calls: Callable[..., Calls]) -> Callable[..., Any]:
    return lambda saver, *args, **named: drive(saver, calls(saver, *args, **named))


def _make_async(calls: Callable[..., Calls]) -> Callable[..., Any]:
    return lambda saver, *args, **named: adrive(saver, calls(saver, *args, **named))


_CALLS: Mapping[str, Callable[..., Calls]] = {
    "commit_all": commit_each,
    "commit_writes": record_by_parts,
    "commit_records": commit_records_by_parts,
    "claim": claim_by_parts,
    "head": head_by_parts,
    "run_of": run_by_parts,
}
_BY_PARTS: Mapping[str, Callable[..., Any]] = {
    "commit": _commit,
    "acommit": _acommit,
    "namespaces": namespaces_by_list,
    "anamespaces": _anamespaces,
    **{name: _make_sync(calls) for name, calls in _CALLS.items()},
    **{f"a{name}": _make_async(calls) for name, calls in _CALLS.items()},
}
