"""Threads of which one runs at a time, until it waits: the sync driver's own, made repeatable.

What the engine's sync driver waits with (queues, locks, futures, its pool) is replaced while a search runs. A thread
that waits gives its turn back; when all wait, the world is asked what happens next.
"""

from __future__ import annotations

import concurrent.futures._base as futures
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from queue import Empty
from types import SimpleNamespace
from unittest.mock import patch

import stategraph.pregel.drivers.aio  # noqa: F401  # loaded late otherwise, and then not made repeatable
from stategraph.pregel.clock import CLOCK
from stategraph.pregel.drivers import journal


class Turn:
    """A thread that runs when it is told to, and tells when it waits."""

    def __init__(self, turns: Turns, job):
        self.turns = turns
        self.ready = lambda: True
        self.timed = self.expired = self.interrupted = False
        self.ended = False
        self.value = None
        self.error = None
        self._go = threading.Lock()
        self._go.acquire()
        self._thread = threading.Thread(target=self._run, args=(job,), name="stategraph-turn", daemon=True)
        self._thread.start()

    def _run(self, job):
        self._go.acquire()
        self.turns.local.turn = self
        try:
            self.value = job()
        except BaseException as error:
            self.error = error
        self.ended = True
        self.turns.back.release()

    def go_on(self):
        """Let it run until it waits or ends. Called by the searching thread."""
        self._go.release()
        self.turns.back.acquire()
        if self.ended:
            self._thread.join()

    def wait(self, ready, timed):
        """Give the turn back until something is so; False if time was over first. Called by the thread itself."""
        self.ready, self.timed, self.expired = ready, timed, False
        self.turns.back.release()
        self._go.acquire()
        self.timed = False
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        return not self.expired

    def can_go_on(self):
        """Whether it does not wait any more."""
        return self.interrupted or self.expired or self.ready()

    # Like an asyncio task:

    def done(self):
        return self.ended

    def cancel(self):
        """Ctrl-C reaches it where it waits."""
        self.interrupted = True

    def result(self):
        if self.error is not None:
            raise self.error
        return self.value


class Turns:
    """All threads of a search."""

    def __init__(self):
        self.back = threading.Lock()
        self.back.acquire()
        self.local = threading.local()
        self.all = []

    def start(self, job):
        """A new thread, which waits for its turn."""
        turn = Turn(self, job)
        self.all.append(turn)
        return turn

    def wait(self, ready, *, timed=False):
        """Wait, on one of these threads. Elsewhere it must be so already."""
        if ready():
            return True
        turn = getattr(self.local, "turn", None)
        if turn is None:
            raise RuntimeError("only a thread of the search may wait")
        return bool(turn.wait(ready, timed))

    def run(self, idle):
        """Let all threads come to their end."""
        while self.all:
            for turn in self.all:
                if turn.can_go_on():
                    turn.go_on()
                    if turn.ended:
                        self.all.remove(turn)
                    break
            else:
                if not idle():
                    raise RuntimeError("nothing can go on: somebody waits for ever")

    def timed(self):
        """Those that wait for some time only."""
        return [turn for turn in self.all if turn.timed]

    @contextmanager
    def installed(self):
        """Inside, the engine's sync driver waits by these turns."""
        turns = self

        class Lock:
            def __init__(self):
                self.held = False

            def acquire(self, blocking=True, timeout=-1):
                if self.held and not blocking:
                    return False
                if not turns.wait(lambda: not self.held, timed=timeout >= 0):
                    return False
                self.held = True
                return True

            def release(self):
                self.held = False

            def locked(self):
                return self.held

            def __enter__(self):
                return self.acquire()

            def __exit__(self, *_):
                self.release()

        class Condition:
            def __init__(self, lock=None):
                self.lock = lock or Lock()
                self.told = 0
                self.acquire, self.release = self.lock.acquire, self.lock.release

            def __enter__(self):
                return self.lock.__enter__()

            def __exit__(self, *args):
                self.lock.__exit__(*args)

            def wait(self, timeout=None):
                told = self.told
                self.lock.release()
                try:
                    return turns.wait(lambda: self.told > told, timed=timeout is not None)
                finally:
                    self.lock.acquire()

            def wait_for(self, predicate, timeout=None):
                while not predicate():
                    if not self.wait(timeout):
                        break
                return predicate()

            def notify(self, n=1):
                self.told += 1

            notify_all = notify

        class Event:
            def __init__(self):
                self.held = False

            def is_set(self):
                return self.held

            def set(self):
                self.held = True

            def clear(self):
                self.held = False

            def wait(self, timeout=None):
                return turns.wait(lambda: self.held, timed=timeout is not None)

        class SimpleQueue:
            def __init__(self):
                self.items = deque()

            def __class_getitem__(cls, _):
                return cls

            def put(self, item):
                self.items.append(item)

            def empty(self):
                return not self.items

            def qsize(self):
                return len(self.items)

            def get(self, block=True, timeout=None):
                if not self.items and not block:
                    raise Empty
                if not turns.wait(lambda: bool(self.items), timed=timeout is not None):
                    raise Empty
                return self.items.popleft()

            def get_nowait(self):
                return self.get(block=False)

        shim = SimpleNamespace(
            **{**vars(threading), "Lock": Lock, "RLock": Lock, "Condition": Condition, "Event": Event}
        )
        pool = SimpleNamespace(submit=lambda job: turns.start(job) and None, forget=lambda: None)
        with ExitStack() as stack:
            stack.enter_context(patch.object(futures, "threading", shim))
            # What is held is stored with what comes next: here no moment passes by itself.
            stack.enter_context(patch.object(journal.HELD, "submit", lambda entry, store: None))
            for name, module in list(sys.modules.items()):
                if not name.startswith("stategraph.pregel"):
                    continue
                for attribute, value in (("threading", shim), ("SimpleQueue", SimpleQueue), ("POOL", pool)):
                    if attribute in vars(module):
                        stack.enter_context(patch.object(module, attribute, value))
            yield


@contextmanager
def stopped_clock():
    """Inside, no time passes for the engine's drivers: what they do must not depend on how quick this machine is."""
    real = {name: value for name, value in vars(time).items() if not name.startswith("_")}
    stopped = SimpleNamespace(**{**real, "monotonic": lambda: 0.0})
    with ExitStack() as stack:
        stack.enter_context(patch.object(CLOCK, "monotonic", stopped.monotonic))
        for name, module in list(sys.modules.items()):
            if name.startswith("stategraph.pregel"):
                if vars(module).get("monotonic") is time.monotonic:
                    stack.enter_context(patch.object(module, "monotonic", stopped.monotonic))
                if vars(module).get("time") is time:
                    stack.enter_context(patch.object(module, "time", stopped))
        yield
