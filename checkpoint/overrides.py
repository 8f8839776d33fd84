"""What a subclass of a checkpointer overrides is called, also where its base class has a shorter
way.

`commit` of a shipped checkpointer stores a superstep in one transaction and does not need `put`. A
subclass that overrides `put` would be bypassed; so `commit` then gives way to its parts:
`put_writes` for what each task wrote, then `put`. The same goes for every method in `PARTS`. One
writer per thread still wins: `put` of a shipped checkpointer checks the head. What `record` expects
is only checked before its parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any

from .errors import CheckpointConflictError
from .records import (
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    Expected,
    Place,
    RunnableConfig,
    TaskWrites,
    address,
    coordinates,
)

# A method → those that it gives way to if a subclass of the class that defines it overrides one.
# The async methods give way to the async ones of the same names.
PARTS: Mapping[str, tuple[str, ...]] = {
    "commit": ("put", "put_writes"),
    "record": ("put_writes",),
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


def stores_at_once(saver: Any) -> bool:
    """Return whether `commit` and `record` store all that they are given in one transaction. Else
    they are made of `put` and `put_writes`, and a commit is asked for the whole checkpoint."""
    cls: Any = type(saver)
    return _stores_at_once(cls)


@lru_cache(64)  # asked at every call
def _stores_at_once(cls: Any) -> bool:
    for name in ("commit", "acommit", "record", "arecord"):
        owners = [owner for owner in cls.__mro__ if name in owner.__dict__]
        if name in PARTS:
            owners.pop()  # the last sync method of all is made of its parts
        if not owners or any(_overrides(cls, owner, name) for owner in owners):
            return False
    return True


def has_own_head(saver: Any) -> bool:
    """Return whether a checkpointer has the `head` and `get_tuple` of a shipped one: then it need
    not be asked for a head that it has told with a checkpoint, which it may have kept since."""
    methods = saver.head, saver.ahead, saver.get_tuple, saver.aget_tuple
    package = __name__.partition(".")[0]
    return all(method.__module__.partition(".")[0] == package for method in methods)


def _overrides(cls: type, owner: type, method: str) -> bool:
    """Whether a class has other parts of a method than the class that defines it."""
    face = "" if method in PARTS else "a"
    parts = [face + part for part in PARTS[method.removeprefix(face)]]
    return any(getattr(cls, part) is not getattr(owner, part) for part in parts)


def _by_parts(method: str) -> Callable[..., Any]:
    """A method of a checkpointer, made of its parts."""
    run, calls = (drive, _CALLS[method]) if method in PARTS else (adrive, _CALLS[method[1:]])
    return lambda saver, *args, **named: run(saver, calls(saver, *args, **named))


def _give_way(owner: type, name: str, own: Any) -> Any:
    """A method that does its own work, or goes by its parts where the checkpointer's class
    overrides one."""
    chosen: dict[type, Any] = {}  # by class: looked up at every commit

    def choose(cls: type) -> Any:
        chosen[cls] = _by_parts(name) if _overrides(cls, owner, name) else own
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


# -- the methods, made of their parts: written once, driven by sync and async methods --------------

EXPECTED_HEAD = "__expected_head__"
"""In the config with which `put` is called for a commit: the head that it names. `put` of a shipped
checkpointer checks it in its own transaction, where one writer wins."""


def check_head(config: RunnableConfig, head: str | None) -> None:
    """Check that the head is the one that the commit names for which `put` was called, if it was.

    Raises:
        CheckpointConflictError: it is another.
    """
    expected = config["configurable"].get(EXPECTED_HEAD, head)
    if expected != head:
        raise CheckpointConflictError(*coordinates(config)[:2], expected, head)


Calls = Generator[tuple[Any, ...], Any, Any]
"""Yields (method, arguments ...), and is sent what the method gave; of `list`, whose last argument
has the named ones, all items."""


def drive(saver: Any, calls: Calls) -> Any:
    """Make calls with the sync methods of a checkpointer."""
    result = None
    try:
        while True:
            name, *args = calls.send(result)
            if name == "list":
                result = [*saver.list(args[0], **args[1])]
            else:
                result = getattr(saver, name)(*args)
    except StopIteration as end:
        return end.value


async def adrive(saver: Any, calls: Calls) -> Any:
    """Make calls with the async methods of a checkpointer."""
    result = None
    try:
        while True:
            name, *args = calls.send(result)
            if name == "list":
                result = [each async for each in saver.alist(args[0], **args[1])]
            else:
                result = await getattr(saver, f"a{name}")(*args)
    except StopIteration as end:
        return end.value


def commit_by_parts(saver: Any, commits: Sequence[Commit]) -> Calls:
    """Store commits one after another by `record` and `put`, each if the heads are those that it
    names."""
    for commit in commits:
        thread_id, checkpoint_ns = where = (commit.thread_id, commit.checkpoint_ns)
        for namespace, expected in ((checkpoint_ns, commit.head), *commit.requires):
            found = yield "head", address(thread_id, namespace)
            if found != expected:
                raise CheckpointConflictError(thread_id, namespace, expected, found)
        # Writes before the checkpoint: should the process die in between, the tasks count as
        # finished and the superstep is applied again.
        if commit.parent_id is not None and commit.writes:
            yield "record", where, None, {commit.parent_id: commit.writes}
        metadata = CheckpointMetadata(**commit.metadata)  # type: ignore[typeddict-item]
        parent = address(*where, commit.parent_id)
        parent["configurable"][EXPECTED_HEAD] = commit.head
        yield "put", parent, commit.whole(), metadata, commit.versions
        if commit.carried:
            yield "record", where, None, {commit.id: commit.carried}


def record_by_parts(
    saver: Any, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
) -> Calls:
    """Record what tasks wrote by `put_writes`, if the head is as the caller has read it."""
    if expected is not None:
        head, revision = None, expected.revision
        if revision is None:
            head = yield "head", address(*where)
        elif found := (yield "get_tuple", address(*where)):
            head, revision = found.checkpoint["id"], found.revision
        if (head, revision) != expected:
            raise CheckpointConflictError(*where, expected.head, head)
    for id, tasks in writes.items():
        for task_id, task_path, pairs, _ in tasks:
            decoded = [(name, saver.serde.loads(blob)) for name, blob in pairs]
            yield "put_writes", address(*where, id), decoded, task_id, task_path


def head_by_parts(saver: Any, config: RunnableConfig) -> Calls:
    """The head's id by `get_tuple`."""
    found: CheckpointTuple | None = yield "get_tuple", address(*coordinates(config)[:2])
    return found.checkpoint["id"] if found else None


def run_by_parts(saver: Any, config: RunnableConfig, run_id: str) -> Calls:
    """The newest checkpoint of a run by `list`, as `get_tuple` gives it."""
    where = coordinates(config)[:2]
    newest = {"filter": {"run_id": run_id}, "limit": 1}
    found: Sequence[CheckpointTuple] = yield "list", address(*where), newest
    if not found:
        return None
    return (yield "get_tuple", address(*where, found[0].checkpoint["id"]))


def namespaces_by_parts(saver: Any, thread_id: str) -> Calls:
    """The namespaces of a thread by `list`."""
    found: Sequence[CheckpointTuple] = yield "list", {"configurable": {"thread_id": thread_id}}, {}
    return [*dict.fromkeys(coordinates(each.config)[1] for each in found)]


_CALLS: Mapping[str, Callable[..., Calls]] = {
    "commit": commit_by_parts,
    "record": record_by_parts,
    "head": head_by_parts,
    "run_of": run_by_parts,
    "namespaces": namespaces_by_parts,
}
