"""What checks work with: a checkpointer opened in one mode, short words for its methods, commits as
the engine makes them.

No rule lives here. Everything may be used outside the suite as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Protocol

from ..checkpoint.base import (
    CHECKPOINT_FORMAT,
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointTuple,
    Commit,
    Expected,
    TaskWrites,
    address,
    coordinates,
)
from .asserts import ASYNC, CheckFailed, assert_same
from .graphs import thread

TS = "2024-01-01T00:00:00+00:00"


class Mode:
    """Calls the faces of a checkpointer or an app, sync or async: `mode.call(app, "invoke", 1)` is
    `app.invoke(1)`, or `await app.ainvoke(1)` on a loop of the mode's own. A context manager,
    which closes that loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._runner = asyncio.Runner() if name == ASYNC else None

    def call(self, owner: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """`owner.method(...)`, or `await owner.amethod(...)`."""
        if self._runner is None:
            return getattr(owner, method)(*args, **kwargs)

        async def wait() -> Any:
            return await getattr(owner, "a" + method)(*args, **kwargs)

        return self._runner.run(wait())

    def items(
        self, owner: Any, method: str, *args: Any, take: int | None = None, **kwargs: Any
    ) -> list[Any]:
        """What the iterator `owner.method(...)` or `owner.amethod(...)` gives, or its first `take`
        items."""
        if self._runner is None:
            return list(islice(getattr(owner, method)(*args, **kwargs), take))

        async def read() -> list[Any]:
            found: list[Any] = []
            source = getattr(owner, "a" + method)(*args, **kwargs)
            while take is None or len(found) < take:
                try:
                    found.append(await anext(source))
                except StopAsyncIteration:
                    return found
            await source.aclose()
            return found

        return self._runner.run(read())

    def enter(self, stack: ExitStack, opened: Any) -> BaseCheckpointSaver:
        """What `open()` gave, as a checkpointer; the stack will close it."""
        runner = self._runner
        if runner is not None and hasattr(opened, "__aenter__"):
            saver = runner.run(_awaited(opened.__aenter__()))
            stack.callback(lambda: runner.run(_awaited(opened.__aexit__(None, None, None))))
        elif hasattr(opened, "__enter__"):
            saver = stack.enter_context(opened)
        else:
            saver = opened
            stack.callback(getattr(opened, "close", lambda: None))
        return saver  # type: ignore[no-any-return]  # a context manager may give anything

    def __enter__(self) -> Mode:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            self._runner.close()


async def _awaited(waiting: Any) -> Any:
    return await waiting


class SaverSource(Protocol):
    """Where a harness gets its checkpointers: a `SaverChecks`, as far as rules use it. See
    there."""

    @property
    def scale(self) -> int: ...

    @property
    def durable(self) -> bool: ...

    def open(self, folder: Path) -> Any: ...

    def damage(self, folder: Path, random: Random) -> str: ...

    def full(self, saver: Any, room: int) -> AbstractContextManager[None]: ...

    def size(self, folder: Path) -> int: ...


class Harness:
    """A checkpointer under test in one mode. A context manager: it opens the checkpointer, and
    closes all that was opened.

    Attributes:
        suite: how to open the checkpointer, and its hooks.
        folder: where its storage is.
        mode: which faces are called.
        saver: the checkpointer, opened.
        random: the only source of chance.
        scale: how much to do; 1 is quick.
    """

    def __init__(self, suite: SaverSource, folder: Path, mode: str, seed: int = 0) -> None:
        self.suite = suite
        self.folder = folder
        self.random: Random = Random(seed)
        self.scale: int = suite.scale
        self._stack = ExitStack()
        self.mode: Mode = self._stack.enter_context(Mode(mode))
        self._opened = ExitStack()

    def __enter__(self) -> Harness:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.saver: BaseCheckpointSaver = self.another()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self._opened.close()

    def another(self) -> BaseCheckpointSaver:
        """The same storage opened once more."""
        return self.mode.enter(self._opened, self.suite.open(self.folder))

    def close(self) -> None:
        """Close all that was opened on this storage."""
        self._opened.close()

    def reopen(self) -> None:
        """Close the storage and open it again, if it is durable; else go on with it as it is."""
        if self.suite.durable:
            self.close()
            self.saver = self.another()

    def fresh(self, name: str) -> Harness:
        """A harness on a storage of its own, to be entered; it shares the source of chance."""
        harness = Harness(self.suite, self.folder / name, self.mode.name)
        harness.random = self.random
        return harness

    # -- short words -------------------------------------------------------------------------------

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the checkpointer, in this mode."""
        return self.mode.call(self.saver, method, *args, **kwargs)

    def invoke(self, app: Any, given: Any, config: Any = None, **options: Any) -> Any:
        """Call a graph in this mode, by default on thread "t"."""
        return self.mode.call(app, "invoke", given, config or thread(), **options)

    def state(self, app: Any, config: Any = None, **options: Any) -> Any:
        """The state of a graph's thread, by default of "t"."""
        return self.mode.call(app, "get_state", config or thread(), **options)

    def record(self, expected: Expected | None, writes: Mapping[str, Any]) -> Any:
        """Record what tasks have left beside checkpoints of thread "t"."""
        return self.call("record", ("t", ""), expected, writes)

    def put(self, id: str, values: dict[str, Any] | None = None, **more: Any) -> Any:
        """Put a checkpoint.

        Args:
            more: `thread`, `ns`, `parent`, `versions` (1 for each value by default), `new` (all of
                these by default); the rest is metadata.
        """
        values = values or {}
        thread, ns, parent = more.pop("thread", "t"), more.pop("ns", ""), more.pop("parent", None)
        versions = more.pop("versions", None)
        versions = dict.fromkeys(values, 1) if versions is None else versions
        new = more.pop("new", None)
        metadata = {"source": "loop", "step": 0, "parents": {}, **more}
        found = checkpoint(id, values, versions)
        return self.call(
            "put", address(thread, ns, parent), found, metadata, versions if new is None else new
        )

    def write(
        self,
        id: str,
        writes: list[tuple[str, Any]],
        task: str = "task",
        path: str = "",
        **where: str,
    ) -> None:
        """Put what a task wrote beside a checkpoint."""
        self.call("put_writes", self.at(id, **where), writes, task, path)

    def at(self, id: str | None = None, *, thread: str = "t", ns: str = "") -> Any:
        """The config that names a thread, a namespace, a checkpoint."""
        return address(thread, ns, id)

    def get(self, id: str | None = None, **where: str) -> CheckpointTuple | None:
        """A checkpoint, by default the thread's newest; None if there is none."""
        found = self.call("get_tuple", self.at(id, **where))
        return (
            None
            if found is None
            else found._replace(pending_writes=[tuple(w) for w in found.pending_writes or ()])
        )

    def need(self, id: str | None = None, **where: str) -> CheckpointTuple:
        """A checkpoint that must be there."""
        found = self.get(id, **where)
        if found is None:
            raise CheckFailed(f"get_tuple({self.at(id, **where)}): expected a checkpoint, got None")
        return found

    def parent(self, id: str | None = None, **where: str) -> str | None:
        """The id of a checkpoint's parent."""
        config = self.need(id, **where).parent_config
        return None if config is None else coordinates(config)[2]

    def values(self, id: str | None = None, **where: str) -> dict[str, Any]:
        """What the channels hold at a checkpoint."""
        return self.need(id, **where).checkpoint["channel_values"]

    def pending(self, id: str | None = None, **where: str) -> list[Any]:
        """The writes beside a checkpoint."""
        return self.need(id, **where).pending_writes or []

    def listed(self, config: Any = "t", **options: Any) -> list[CheckpointTuple]:
        """Checkpoints of a config, or of the thread of this name."""
        config = {"configurable": {"thread_id": config}} if isinstance(config, str) else config
        return self.mode.items(self.saver, "list", config, **options)

    def ids(self, config: Any = "t", **options: Any) -> list[str]:
        """Their ids."""
        return [found.checkpoint["id"] for found in self.listed(config, **options)]

    def head(self, **where: str) -> str | None:
        """The id of the newest checkpoint."""
        return self.call("head", self.at(**where))  # type: ignore[no-any-return]  # called by name

    def shows(
        self, id: str | None = None, *, thread: str = "t", ns: str = "", **expected: Any
    ) -> None:
        """Check what can be read of a checkpoint, by default the newest.

        Args:
            expected: by the name of a method above what it must return; `everything`: the ids of
                all that is stored.
        """
        place = " ".join(f"{each!r:.80}" for each in (thread, ns, id) if each)
        for name, value in expected.items():
            if name in ("ids", "everything"):
                got: Any = self.ids(thread if name == "ids" else None)
            else:
                args = () if name == "head" else (id,)
                got = getattr(self, name)(*args, thread=thread, ns=ns)
            assert_same(got, value, f"{name} of {place}")

    def run(self, thread: str = "t", ns: str = "") -> Commits:
        """Commits on one thread of this checkpointer."""
        return Commits(self.call, self.saver, thread, ns)

    def reads_back(
        self, run: Commits, ids: Iterable[str] | None = None, thread: str | None = None
    ) -> None:
        """The checkpoints that a run committed are as it made them."""
        for id in run.expected if ids is None else ids:
            found = self.need(id, thread=thread or run.thread)
            assert_same(found.checkpoint, run.expected[id], f"checkpoint {id!r}")
            assert_same(found.metadata["step"], run.steps[id], f"metadata of checkpoint {id!r}")


def checkpoint(id: str, values: dict[str, Any], versions: dict[str, int]) -> Checkpoint:
    """A checkpoint like those that the engine makes."""
    return {
        "v": CHECKPOINT_FORMAT,
        "id": id,
        "ts": TS,
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"node": dict(versions)},
        "updated_channels": sorted(versions),
    }


Writes = Sequence[tuple[str, Sequence[tuple[str, Any]]]]
"""(task id, (channel, value) ...) ..."""


class Commits:
    """Commits supersteps to one thread as the engine does, and notes the expected contents of each
    checkpoint.

    Args:
        call: calls a method of the checkpointer by its name.
        saver: the checkpointer whose serializer encodes the values.

    Attributes:
        head: the newest checkpoint that this run has seen.
        expected: id → checkpoint.
        steps: id → the step in its metadata.
        saver_state: what the checkpointer has left with this run.
    """

    def __init__(
        self, call: Callable[..., Any], saver: BaseCheckpointSaver, thread: str = "t", ns: str = ""
    ) -> None:
        self.call = call
        self.dumps: Callable[[Any], tuple[str, bytes]] = saver.serde.dumps
        self.thread = thread
        self.ns = ns
        self.head: str | None = None
        self.expected: dict[str, Checkpoint] = {}
        self.steps: dict[str, int] = {}
        self.saver_state: Any = None

    def prepare(self, id: str, parent: str | None = "head", **changed: Any) -> Commit:
        """Return the commit of one superstep that is stored together with others; the next one
        builds on it."""
        commit, whole = self.made(id, parent, (), changed)
        self.expect(commit, whole)
        self.saver_state = None
        return commit

    def step(
        self,
        id: str,
        parent: str | None = "head",
        *,
        writes: Writes = (),
        requires: Sequence[tuple[str, str | None]] = (),
        **changed: Any,
    ) -> None:
        """Commit one superstep.

        Args:
            parent: the checkpoint to continue; by default the head.
            writes: what its tasks wrote.
            requires: the heads of other namespaces that it requires.
            changed: the channels it changed; `...` empties one.
        """
        commit, whole = self.made(id, parent, writes, changed)
        commit.requires = requires
        given = {**commit.values}
        self.call("commit", [commit])
        assert_same(commit.values, given, "the values of a commit, once it is stored")
        self.expect(commit, whole)
        self.saver_state = commit.saver_state

    def expect(self, commit: Commit, whole: Checkpoint) -> None:
        """Note what a commit must store, and go on from there."""
        id = commit.id
        self.expected[id], self.steps[id], self.head = whole, commit.metadata["step"], id

    def made(
        self, id: str, parent: str | None, writes: Writes, changed: dict[str, Any], ts: float = 1.5
    ) -> tuple[Commit, Checkpoint]:
        """A commit, and the checkpoint that it stands for."""
        parent = self.head if parent == "head" else parent
        base = self.expected[parent] if parent else checkpoint("", {}, {})
        tick = max(base["channel_versions"].values(), default=0) + 1
        values = {**base["channel_values"], **changed}
        seen = {"node": {"a": tick}, f"node{tick % 5}": {"b": tick}}
        versions = dict.fromkeys(changed, tick)
        whole: Checkpoint = {
            **checkpoint(id, {k: v for k, v in values.items() if v is not ...}, {}),
            "ts": "1970-01-01T00:00:01.500000+00:00",
            "channel_versions": {**base["channel_versions"], **versions},
            "versions_seen": {**base["versions_seen"], **seen},
            "updated_channels": sorted(changed),
        }
        commit = Commit(
            thread_id=self.thread,
            checkpoint_ns=self.ns,
            id=id,
            head=self.head,
            parent_id=parent,
            ts=ts,
            metadata={"source": "loop", "step": tick, "parents": {}},
            values={name: None if v is ... else self.dumps(v) for name, v in changed.items()},
            versions=versions,
            seen=seen,
            updated=sorted(changed),
            writes=[self.task(*each) for each in writes],
            whole=lambda: whole,
            saver_state=self.saver_state,
        )
        return commit, whole

    def task(self, task_id: str, pairs: Sequence[tuple[str, Any]], path: str = "") -> TaskWrites:
        """What a task wrote, encoded."""
        return TaskWrites(task_id, path, [(name, self.dumps(value)) for name, value in pairs])


def long_run(run: Commits, steps: int = 200, keys: int = 10) -> None:
    """Many supersteps, each of which sets or empties one of several channels."""
    for step in range(steps):
        changed: dict[str, Any] = {f"k{step % keys}": ... if step % 7 == 6 else (step, [step])}
        run.step(f"{step}", **changed)
