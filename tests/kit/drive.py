"""How tests call the engine: in both worlds, and many cases as one test."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import islice
from typing import Any

import pytest

from kit.graphs import CONFIG
from stategraph import Command


class Drive:
    """The faces of an app or a saver, called in one world: `drive.invoke(app, 1)` is `app.invoke(1)`, or
    `asyncio.run(app.ainvoke(1))`. A test that takes `drive` runs in both worlds and must see the same.
    """

    def __init__(self, is_async):
        self.is_async = is_async

    def call(self, owner, method, *args, **kwargs):
        """`owner.method(...)`, or `await owner.amethod(...)`."""
        if not self.is_async:
            return getattr(owner, method)(*args, **kwargs)

        async def wait():
            return await getattr(owner, "a" + method)(*args, **kwargs)

        return asyncio.run(wait())

    def items(self, owner, method, *args, take=None, each=lambda item: None, **kwargs):
        """What the iterator `owner.method(...)` or `owner.amethod(...)` gives, or its first `take` items. `each` is
        called with each item as it comes: it sees them also where the iterator then raises."""
        found = []

        def keep(item):
            found.append(item)
            each(item)

        if not self.is_async:
            source = getattr(owner, method)(*args, **kwargs)
            for item in islice(source, take):
                keep(item)
            if take is not None:
                source.close()
            return found

        async def read():
            source = getattr(owner, "a" + method)(*args, **kwargs)
            while take is None or len(found) < take:
                try:
                    keep(await anext(source))
                except StopAsyncIteration:
                    return found
            await source.aclose()
            return found

        return asyncio.run(read())

    def invoke(self, app, input, config=None, **kwargs):
        return self.call(app, "invoke", input, config, **kwargs)

    def batch(self, app, inputs: Sequence[Any], config=None, **kwargs):
        return self.call(app, "batch", inputs, config, **kwargs)

    def stream(self, app, input, config=None, **kwargs):
        """Every chunk, or the first `take=` ones and then an early close; `each=` is called with each as it comes."""
        return self.items(app, "stream", input, config, **kwargs)

    def node_of(self, app, given=None, *args, **kwargs):
        """A node that calls the app in this world, with its own input or with `given`."""

        def node(state):
            return app.invoke(state if given is None else given, *args, **kwargs)

        async def anode(state):
            return await app.ainvoke(state if given is None else given, *args, **kwargs)

        return anode if self.is_async else node

    def get_state(self, app, config, **kwargs):
        return self.call(app, "get_state", config, **kwargs)

    def history(self, app, config, **kwargs):
        """Every snapshot of the thread, newest first."""
        return self.items(app, "get_state_history", config, **kwargs)

    def update_state(self, app, config, values, *args, **kwargs):
        return self.call(app, "update_state", config, values, *args, **kwargs)

    def on(self, app, config=CONFIG):
        return Thread(self, app, config)


class Thread:
    """One thread of an app, called in one world: `thread.invoke(1)` is `drive.invoke(app, 1, config)`. Another config,
    as of an older checkpoint, may be given to each call."""

    def __init__(self, drive, app, config):
        self.drive, self.app, self.config = drive, app, config

    def invoke(self, input, config=None, **kwargs):
        return self.drive.invoke(self.app, input, config or self.config, **kwargs)

    def resume(self, answer, **kwargs):
        return self.invoke(Command(resume=answer), **kwargs)

    def stream(self, input, config=None, **kwargs):
        return self.drive.stream(self.app, input, config or self.config, **kwargs)

    @property
    def state(self):
        return self.get_state()

    @property
    def log(self):
        return self.state.values["log"]

    def get_state(self, config=None, **kwargs):
        return self.drive.get_state(self.app, config or self.config, **kwargs)

    def history(self, config=None, **kwargs):
        return self.drive.history(self.app, config or self.config, **kwargs)

    def call(self, method, *args, **kwargs):
        """Call any other method that takes the config first."""
        return self.drive.call(self.app, method, self.config, *args, **kwargs)

    def update(self, values, *args, **kwargs):
        return self.drive.update_state(self.app, self.config, values, *args, **kwargs)


each_durability = pytest.mark.parametrize("durability", ["sync", "async", "exit"])
each_schedule = pytest.mark.parametrize("schedule", ["supersteps", "ready"])


def each_case(names, cases):
    """As `pytest.mark.parametrize`, but all cases are one test and share its fixtures: for tables of cases that take
    less time than pytest takes for a test. All of them are tried; those that fail are named."""
    arguments = names.split(", ")

    def make(test: Callable[..., None]):
        @wraps(test)
        def try_all(**fixtures):
            failed = []
            for case in cases:
                try:
                    test(**fixtures, **dict(zip(arguments, case if len(arguments) > 1 else [case], strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"{names} = {case!r}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{test.__name__}: some cases fail", failed)

        signature = inspect.signature(test)
        fixtures = [each for name, each in signature.parameters.items() if name not in arguments]
        try_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return try_all

    return make


def run_threads(threads):
    """Start threads, and wait until all have ended."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


async def cancel(call):
    """Cancel a call on this loop; it must end so."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def draw(cases, config, *name):
    """Some of the cases, at least one: the share `STATEGRAPH_SHARE`, by the seed of Hypothesis; else all of them.

    Args:
        config: pytest's.
        name: what else tells this draw from others.
    """
    share, seed = float(os.environ.get("STATEGRAPH_SHARE", 1)), config.getoption("hypothesis_seed", None)
    return random.Random(f"{seed} {name}").sample(list(cases), math.ceil(share * len(cases)))


def forget_modules(folder, known=frozenset()):
    """Import no more what lies in this folder; the names of what was imported from there, none of which is among `known`."""
    files = {name: getattr(sys.modules[name], "__file__", None) for name in sys.modules.keys() - known}
    found = [name for name, file in files.items() if file and file.startswith(str(folder))]
    for name in found:
        del sys.modules[name]
    return found
