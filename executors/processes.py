"""Worker processes of our own: each serves one call at a time over a pipe, can be killed, and is replaced when it dies.

The thread that waits for a call is the one that talks to its worker: no other thread is needed. It waits for the pipe
and for the process, because a pipe does not end with its process: a node may have forked, and its child holds all that
was open. What comes belongs to the call that it names (`frames.py`); a worker that sends anything else is replaced.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import count
from typing import Self
from weakref import WeakKeyDictionary, WeakSet

from .call import Call, Executor, Hear, Lost
from .frames import ANSWER, CALL, EVENT, PART, DamagedFrame, Frame, Frames, new_call_id
from .pickling import PROTOCOL
from .process_worker import DAMAGED

BOOT = (
    "import sys; end, driver, *sys.path[:] = sys.argv[1:]; "
    "from stategraph.executors.process_worker import main; main(int(end), int(driver))"
)
"""A fresh interpreter, which imports nothing of the script that started it: that needs no guard, and no module."""
SECONDS_TO_DIE = 1.0
"""How long a process may take from closing its pipe to its end."""


class ProcessExecutor(Executor):
    """Processes on this machine, started as they are needed and kept until `close`.

    A call whose time is up ends with its process, and with the processes that it has started there, unless they have a
    session of their own. A worker that dies costs its own call a try, and no other.

    Args:
        max_workers: how many processes at most; the number of CPUs by default.

    Raises:
        ValueError: there would be no worker.

    >>> with ProcessExecutor(max_workers=2) as processes:
    ...     processes
    <ProcessExecutor 2 processes>
    """

    shares_main = False
    closed = True

    def __init__(self, max_workers: int | None = None) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, not {max_workers!r}")
        self.max_workers = max_workers or os.cpu_count() or 1
        self.name = f"{self.max_workers} processes"
        self._begin_anew()
        self.closed = False
        _all.add(self)

    def submit(self, call: Call, hear: Hear) -> _Flight:
        """Start a call as soon as a worker is free; its flight waits for that."""
        return _Flight(self, call, hear)

    def share(self, blob: bytes) -> Shared:
        """Send it to each worker with the first call there that wants it."""
        return Shared(blob)

    def close(self) -> None:
        """End the processes; what they still run is lost."""
        with self._free:
            self.closed = True
            busy, idle = self._workers.difference(self._idle), list(self._idle)
            self._idle.clear()
            self._free.notify_all()
        for worker in idle:
            worker.kill()
        for worker in busy:
            worker.end()  # whoever waits for it still looks at it, and drops it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()

    def take(self, flight: _Flight, timeout: float | None) -> _Worker:
        """A worker for one call. It bears the flight's name before it is taken, so that Ctrl-C at any line leaves none
        that `release` does not find.

        Raises:
            TimeoutError: none is free.
            RuntimeError: the executor is closed.
        """
        while True:
            worker = self._claim(flight, timeout)
            if is_new := not worker.started:
                worker.start()
            if self.closed:  # perhaps meanwhile
                self.release(flight)
                raise RuntimeError(f"{self!r} is closed")
            if is_new or worker.is_fit():
                return worker
            self.drop(worker)

    def _claim(self, flight: _Flight, timeout: float | None) -> _Worker:
        """An idle worker, or one that is to be started."""
        with self._free:
            if not self._free.wait_for(self._has_room, timeout):
                raise TimeoutError
            if self._idle:
                worker = self._idle[-1]
                worker.flight = flight
                self._idle.pop()
                return worker
            if self.closed:
                raise RuntimeError(f"{self!r} is closed")
            worker = _Worker(flight)
            self._workers.add(worker)
            return worker

    def give_back(self, worker: _Worker) -> None:
        """A worker has ended its call."""
        with self._free:
            self._idle.append(worker)
            worker.flight = None
            self._free.notify()
        if self.closed:
            self.drop(worker)

    def release(self, flight: _Flight) -> None:
        """End what a flight has, if it has anything."""
        with self._free:
            held = [worker for worker in self._workers if worker.flight is flight]
        for worker in held:
            self.drop(worker)

    def drop(self, worker: _Worker) -> None:
        """A worker has died, or shall."""
        with self._free:
            self._workers.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)
            self._free.notify()
        worker.kill()

    def leave(self) -> None:
        """In the child of a fork: the processes are its parent's, who alone may hold their pipes. Ours are yet to be
        started."""
        for worker in self._workers:
            _inherited.append(worker)
            worker.hang_up()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._idle: deque[_Worker] = deque()
        self._workers: set[_Worker] = set()
        self._free = threading.Condition()

    def _has_room(self) -> bool:
        return self.closed or bool(self._idle) or len(self._workers) < self.max_workers


_all: WeakSet[ProcessExecutor] = WeakSet()


def _close_all() -> None:
    for executor in list(_all):
        executor.close()


atexit.register(_close_all)
_default: list[ProcessExecutor] = []
_inherited: list[_Worker] = []
"""Kept, so that a child of a fork does not end what is its parent's."""
_default_lock = threading.Lock()


def default_processes() -> ProcessExecutor:
    """The one that `executor="processes"` means: as many processes as CPUs, for the life of this one."""
    with _default_lock:
        if not _default:
            _default.append(ProcessExecutor())
        return _default[0]


def _leave_parents() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for executor in list(_all):
        executor.leave()


os.register_at_fork(after_in_child=_leave_parents)


class Shared:
    """A large part. Each worker keeps what it was sent of it until it has gone here and another call comes."""

    __slots__ = ("__weakref__", "blob")

    def __init__(self, blob: bytes) -> None:
        self.blob = blob


class _Worker:
    """One process and our end of its pipe, and whose call it serves."""

    def __init__(self, flight: _Flight) -> None:
        self.flight: _Flight | None = flight
        self.frames: Frames
        self.process: subprocess.Popen[bytes]
        self.started = False
        self._poll = select.poll()
        self._end = -1
        self._sentinel = -1
        self._numbers = count()
        self._sent: WeakKeyDictionary[Shared, int] = WeakKeyDictionary()
        self._there: set[int] = set()

    def start(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            self.frames, self._end = Frames(ours, self._wait), ours.fileno()
            end = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(end), str(os.getpid()), *sys.path],
                pass_fds=[end],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the driver: it decides what ends
            )
        self._sentinel = open_sentinel(self.process)
        self._poll.register(self._end, select.POLLIN)
        self._poll.register(self._sentinel, select.POLLIN)
        self.started = True

    def put(self, call: Call) -> bytes:
        """Begin to send a call, and those of its parts that the worker has not; the id that its answer will have."""
        new = [part for part in dict.fromkeys(call.parts) if part not in self._sent]
        self._sent.update(zip(new, self._numbers, strict=False))
        held = set(self._sent.values())
        gone, self._there = self._there - held, held
        numbers = [self._sent[part] for part in call.parts]
        header = (call.payload, numbers, [self._sent[part] for part in new], gone)
        id = new_call_id()
        self.frames.put(Frame(id, CALL, pickle.dumps(header, PROTOCOL)))
        for part in new:
            self.frames.put(Frame(id, PART, part.blob))
        return id

    def is_fit(self) -> bool:
        """Whether it lives and waits for a call. One that has sent something between two calls is not to be trusted."""
        self._poll.modify(self._end, select.POLLIN)
        return self.frames.is_quiet and not self._poll.poll(0)

    def _wait(self, events: int, due: float | None) -> None:
        """Wait for the pipe, or the end of the process. What it sent before its end is read first."""
        self._poll.modify(self._end, events)
        left = None if due is None else max(due - time.monotonic(), 0.0) * 1000
        ready = dict(self._poll.poll(left))
        if not ready:
            raise TimeoutError
        if self._sentinel in ready and (self._end not in ready or events == select.POLLOUT):
            raise EOFError("the process has ended")

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self.end()
        self.hang_up()

    def hang_up(self) -> None:
        """Close our end of the pipe."""
        if hasattr(self, "frames"):
            self.frames.close()
        if self._sentinel >= 0:
            sentinel, self._sentinel = self._sentinel, -1
            os.close(sentinel)

    def end(self) -> None:
        """End the process and those that it has started, but for those with a session of their own."""
        if not hasattr(self, "process"):
            return
        if self.process.returncode is None:  # until it is waited for, its id is its own
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def how(self) -> str:
        """How a process ended that has closed its pipe, or was to be ended because it has."""
        poll = select.poll()
        poll.register(self._sentinel, select.POLLIN)
        by_itself = poll.poll(SECONDS_TO_DIE * 1000)
        self.end()
        code = self.process.returncode
        if not by_itself:
            return "its process has closed its pipe"
        if code == DAMAGED:
            return "its process was sent what is no call"
        return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended ({code})"


def open_sentinel(process: subprocess.Popen[bytes]) -> int:
    """A file descriptor that can be read once a process has ended, whatever its children do."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):  # an old kernel, or a sandbox
            return os.pidfd_open(process.pid)
    sentinel, told = os.pipe()

    def watch() -> None:
        process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whoever is left of its group keeps the id in use
        with suppress(BrokenPipeError):  # nobody waits any longer
            os.write(told, b".")
        os.close(told)

    threading.Thread(target=watch, name="stategraph-sentinel", daemon=True).start()
    return sentinel


class _Flight:
    def __init__(self, pool: ProcessExecutor, call: Call, hear: Hear) -> None:
        self._pool = pool
        self._call = call
        self._hear = hear
        self._worker: _Worker | None = None
        self._id = b""

    def result(self, timeout: float | None = None) -> bytes:
        due = None if timeout is None else time.monotonic() + timeout
        if self._worker is None:
            self._worker = self._pool.take(self, timeout)
            self._id = self._worker.put(self._call)
        worker = self._worker
        while (frame := self._next(worker, due)).kind == EVENT:
            self._hear(frame.body)
        self._worker = None
        self._pool.give_back(worker)
        return frame.body

    def _next(self, worker: _Worker, due: float | None) -> Frame:
        """The next frame of this call; first, what is left of the call is sent.

        Raises:
            Lost: the worker has ended, or has sent what does not belong to this call.
        """
        try:
            worker.frames.flush(due)
            frame = worker.frames.receive(self._id, due)
            if frame.kind not in (EVENT, ANSWER):
                raise DamagedFrame(f"its pipe brings a frame of kind {frame.kind!r} where an answer belongs")
            return frame
        except TimeoutError:
            raise
        except DamagedFrame as error:
            raise self._lost(worker, f"{error}; the worker was ended") from error
        except (EOFError, OSError) as gone:
            raise self._lost(worker, worker.how()) from gone

    def _lost(self, worker: _Worker, reason: str) -> Lost:
        self._worker = None
        self._pool.drop(worker)
        return Lost("the executor was closed", final=True) if self._pool.closed else Lost(reason)

    def cancel(self) -> None:
        self._worker = None
        self._pool.release(self)
