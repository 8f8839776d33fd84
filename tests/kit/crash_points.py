"""A process that dies at one of its storing calls, simulated in this process: whatever comes after is not stored."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import partial

from faults.campaign import patched

STORING = ("commit", "record")


class Died(Exception):
    """Nothing of this process is stored any more."""


class Death:
    """When a process dies: at its storing call number `at`, before or after that has stored."""

    def __init__(self, at, *, stores_first=False, meanwhile=bool):
        self.left = at
        self.dead = False
        self._stores_first = stores_first
        self._meanwhile = meanwhile  # the call takes so long
        self._lock = threading.Lock()

    def passes(self):
        """Whether a storing call stores as ever; False for the one at which the process dies."""
        with self._lock:
            if self.dead:
                raise Died
            self.left -= 1
            self.dead = self.left <= 0
            return not self.dead

    def around(self, store):
        def call(*given):
            if self.passes():
                return store(*given)
            if self._stores_first:
                store(*given)
            self._meanwhile()
            raise Died

        return call

    def around_async(self, store):
        async def call(*given):
            if self.passes():
                return await store(*given)
            if self._stores_first:
                await store(*given)
            self._meanwhile()
            raise Died

        return call


@contextmanager
def dying(saver, death: Death):
    """Inside, what stores by this saver is a process that dies."""
    with ExitStack() as stack:
        for name in STORING:
            stack.enter_context(patched(saver, name, death.around(getattr(saver, name))))
            stack.enter_context(patched(saver, f"a{name}", death.around_async(getattr(saver, f"a{name}"))))
        yield


class Killed(BaseException):
    """Ends a process, simulated: it stores nothing more."""


@contextmanager
def killing(saver, at, *, stores_first):
    """Inside, a process dies at its storing call number `at`, in a way that no node catches; yields the calls it has made."""
    made = []

    def storing(store, *given):
        made.append(store.__name__)
        if len(made) > at or (len(made) == at and not stores_first):
            raise Killed
        found = store(*given)
        if len(made) == at:
            raise Killed
        return found

    with ExitStack() as stack:
        for name in STORING:
            stack.enter_context(patched(saver, name, partial(storing, getattr(saver, name))))
        yield made
