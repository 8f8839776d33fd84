"""What every test may use: one `drive` for sync and async, a watch for leaks, hypothesis profiles.

Only what tests of several rooms share lives here; a graph that one file needs stays in that file.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50)  # .ci/run asks for it
settings.register_profile("full", deadline=None, max_examples=1000)
settings.load_profile("quick")  # `pytest --hypothesis-profile=full` searches longer, with new random graphs

LONGEST = """
    conformance executors flow transaction workers postgres_saver races sleep counts stream_nested examples demo
    protocol store inbox pytest_plugin layout properties memory_keys processes nested_time_travel long_pruning
    call_threads extract job_durability public live docs delays once live_threads history_model
"""
"""The test files that take longest, in order. `make test` gives each worker a whole file: were a long one the last, all
others would wait for it."""

POOL_THREADS = "stategraph"
"""The names of the engine's own threads begin so. They are daemons, and outlive a run on purpose."""


class Drive:
    """The faces of an app or a saver, called in one world: `drive.invoke(app, 1)` is `app.invoke(1)`, or
    `asyncio.run(app.ainvoke(1))`. A test that takes `drive` runs in both worlds and must see the same.
    """

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def call(self, owner: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """`owner.method(...)`, or `await owner.amethod(...)`."""
        if not self.is_async:
            return getattr(owner, method)(*args, **kwargs)

        async def wait() -> Any:
            return await getattr(owner, "a" + method)(*args, **kwargs)

        return asyncio.run(wait())

    def items(self, owner: Any, method: str, *args: Any, take: int | None = None, **kwargs: Any) -> list[Any]:
        """What the iterator `owner.method(...)` or `owner.amethod(...)` gives, or its first `take` items."""
        if not self.is_async:
            source = getattr(owner, method)(*args, **kwargs)
            found = list(islice(source, take))
            if take is not None:
                source.close()
            return found

        async def read() -> list[Any]:
            source = getattr(owner, "a" + method)(*args, **kwargs)
            found: list[Any] = []
            while take is None or len(found) < take:
                try:
                    found.append(await anext(source))
                except StopAsyncIteration:
                    return found
            await source.aclose()
            return found

        return asyncio.run(read())

    def invoke(self, app: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.call(app, "invoke", input, config, **kwargs)

    def batch(self, app: Any, inputs: Sequence[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        return self.call(app, "batch", inputs, config, **kwargs)

    def stream(self, app: Any, input: Any, config: Any = None, **kwargs: Any) -> list[Any]:
        """Every chunk, or the first `take=` ones and then an early close."""
        return self.items(app, "stream", input, config, **kwargs)

    def get_state(self, app: Any, config: Any, **kwargs: Any) -> Any:
        return self.call(app, "get_state", config, **kwargs)

    def history(self, app: Any, config: Any, **kwargs: Any) -> list[Any]:
        """Every snapshot of the thread, newest first."""
        return self.items(app, "get_state_history", config, **kwargs)

    def update_state(self, app: Any, config: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        return self.call(app, "update_state", config, values, *args, **kwargs)


def each_case(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but all cases are one test and share its fixtures: for tables of cases that take
    less time than pytest takes for a test. All of them are tried; those that fail are named."""
    arguments = names.split(", ")

    def make(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def try_all(**fixtures: Any) -> None:
            failed: list[Exception] = []
            for case in cases:
                try:
                    test(**fixtures, **dict(zip(arguments, case if len(arguments) > 1 else [case], strict=True)))
                except Exception as error:
                    error.add_note(f"{names} = {case!r}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{test.__name__}: some cases fail", failed)

        signature = inspect.signature(test)
        fixtures = [each for name, each in signature.parameters.items() if name not in arguments]
        try_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return try_all

    return make


@pytest.fixture(params=["sync", "async"], scope="module")  # not per function: hypothesis tests use it too
def drive(request: pytest.FixtureRequest) -> Drive:
    """Runs the test twice: once through the sync faces, once through the async ones."""
    return Drive(is_async=request.param == "async")


@pytest.fixture(params=["memory", "sqlite"])
def local_saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty saver of each kind that needs no server. A module may use it under the name `saver`."""
    from stategraph import InMemorySaver, SqliteSaver

    if request.param == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as opened:
            yield opened


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty saver of each kind. The test's module has a fixture `postgres`, of `cluster`."""
    from stategraph import InMemorySaver, SqliteSaver

    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as opened:
            yield opened
    else:
        url = request.getfixturevalue("postgres")
        from stategraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url) as opened:
            yield opened


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves an asyncio task pending, a thread that is no daemon of the engine's, or a module of its
    folder `tmp_path`: another test would import it in the place of its own."""
    before = set(threading.enumerate())
    pending: list[str] = []
    run = asyncio.run

    def watched_run(main: Any, **kwargs: Any) -> Any:
        async def watched() -> Any:
            try:
                return await main
            finally:
                pending.extend(await _pending_tasks())

        return run(watched(), **kwargs)

    monkeypatch.setattr(asyncio, "run", watched_run)
    yield
    assert not pending, f"asyncio tasks were left pending: {pending}"
    left = [thread for thread in threading.enumerate() if thread not in before and not _is_pool(thread)]
    for thread in left:
        thread.join(timeout=1)  # one that is about to end is no leak
    assert not [thread for thread in left if thread.is_alive()], f"threads were left running: {left}"
    if (folder := request.node.funcargs.get("tmp_path")) is not None:
        strangers = forget_modules(folder)
        assert not strangers, f"modules were left in sys.modules: {strangers}"


def forget_modules(folder: Path) -> list[str]:
    """Import no more what lies in this folder; the names of what was imported from there."""
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    found = [name for name, file in files.items() if file and file.startswith(str(folder))]
    for name in found:
        del sys.modules[name]
    return found


async def _pending_tasks() -> list[str]:
    """The tasks that do not end by themselves within a few turns of the loop."""
    others: set[asyncio.Task[Any]] = set()
    for _ in range(10):
        others = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        if not others:
            break
        await asyncio.sleep(0)
    return [repr(task) for task in others]


def _is_pool(thread: threading.Thread) -> bool:
    return thread.daemon and thread.name.startswith(POOL_THREADS)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: it is a third of the time that collecting the tests takes. What was made stays to
    the end, some 600,000 objects, and is kept out of every later collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first; all tests of a file stay together, in their order."""
    ranks = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


def pytest_sessionfinish() -> None:
    """Remove the server of Postgres: a process of pytest-xdist ends without what is registered with `atexit`."""
    if "cluster" in sys.modules:
        sys.modules["cluster"].remove_shared()
