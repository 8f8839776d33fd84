"""Worker processes of our own: each serves one call at a time over a socket, can be killed, and is
replaced when it dies.

The thread that waits for a call also talks to its worker, so no other thread is needed. It waits
for the socket and for the process, because a socket may outlive its process: a node may have
forked, and its child keeps everything open. Each message names its call (`frames.py`); a worker
that sends anything else is replaced.
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
from dataclasses import dataclass
from itertools import count
from typing import Self
from weakref import WeakKeyDictionary, WeakSet

from .base import Executor, Lost, OnEvent, RemoteCall
from .frames import (
    ANSWER,
    CALL,
    EVENT,
    PART,
    REPLY,
    REQUEST,
    DamagedFrame,
    Frame,
    Frames,
    new_call_id,
)
from .pickling import PROTOCOL
from .process_worker import DAMAGED

BOOT = (
    "import sys; end, driver, *sys.path[:] = sys.argv[1:]; "
    "from stategraph.executors.process_worker import main; main(int(end), int(driver))"
)
"""A fresh interpreter. It does not import the script that started it, so that the script needs no
`__main__` guard."""
SECONDS_TO_DIE = 1.0
"""How long a process may take from closing its socket to its end."""


class ProcessExecutor(Executor):
    """Runs calls in processes on this machine, started on demand and kept until `close`.

    A call that times out is killed with its process and the processes that it started, unless they
    run in a session of their own. A worker that dies costs only its own call a try.

    Args:
        max_workers: the maximum number of processes; the number of CPUs by default.

    Raises:
        ValueError: `max_workers` is less than 1.

    >>> with ProcessExecutor(max_workers=2) as processes:
    ...     processes
    <ProcessExecutor 2 processes>
    """

    shares_main = False
    closed: bool = True

    def __init__(self, max_workers: int | None = None) -> None:
        if max_workers is not None and (not isinstance(max_workers, int) or max_workers < 1):
            raise ValueError(f"max_workers must be an integer >= 1, got {max_workers!r}")
        self.max_workers: int = max_workers or os.cpu_count() or 1
        self.name: str = f"{self.max_workers} processes"
        self._reset()
        self.closed = False
        _all.add(self)

    def submit(self, call: RemoteCall, on_event: OnEvent) -> _ProcessHandle:
        """Return a handle, whose `result` waits for a free worker and starts the call there."""
        return _ProcessHandle(self, call, on_event)

    def share(self, blob: bytes) -> SharedPart:
        """Send the part to each worker with the first call there that needs it."""
        return SharedPart(blob)

    def close(self) -> None:
        """End the processes; calls that still run are lost."""
        with self._free:
            self.closed = True
            busy, idle = self._workers.difference(self._idle), list(self._idle)
            self._idle.clear()
            self._free.notify_all()
        for worker in idle:
            worker.kill()
        for worker in busy:
            worker.end()  # the thread that waits for it uses its socket, sees the end and drops it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()

    def take(self, handle: _ProcessHandle, timeout: float | None) -> _Worker:
        """A worker for one call. It is marked with the handle before it leaves the idle ones, so
        that Ctrl-C at any line leaves no worker that `release` does not find.

        Raises:
            TimeoutError: none is free.
            RuntimeError: the executor is closed.
        """
        while True:
            worker = self._claim(handle, timeout)
            # Outside the lock: it takes a while to start a process, and others may go on meanwhile.
            if is_new := not worker.started:
                worker.start()
            if self.closed:  # perhaps meanwhile
                self.release(handle)
                raise RuntimeError(f"{self!r} is closed")
            if is_new or worker.is_ready():
                return worker
            self.drop(worker)

    def _claim(self, handle: _ProcessHandle, timeout: float | None) -> _Worker:
        """An idle worker, or one that is to be started."""
        with self._free:
            if not self._free.wait_for(self._has_room, timeout):
                raise TimeoutError
            if self._idle:
                # The last one back is the one whose caches are warm.
                worker = self._idle[-1]
                worker.handle = handle
                self._idle.pop()
                return worker
            if self.closed:
                raise RuntimeError(f"{self!r} is closed")
            worker = _Worker(handle)
            self._workers.add(worker)
            return worker

    def give_back(self, worker: _Worker) -> None:
        """Return a worker that has ended its call to the idle ones."""
        with self._free:
            self._idle.append(worker)
            worker.handle = None
            self._free.notify()
        if self.closed:
            self.drop(worker)

    def release(self, handle: _ProcessHandle) -> None:
        """End the worker of a call, if it has one."""
        with self._free:
            taken = [worker for worker in self._workers if worker.handle is handle]
        for worker in taken:
            self.drop(worker)

    def drop(self, worker: _Worker) -> None:
        """End a worker, if it is still running, and remove it."""
        with self._free:
            self._workers.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)
            self._free.notify()
        worker.kill()

    def reset_after_fork(self) -> None:
        """In the child of a fork: start without processes. Those of the parent are its own, and so
        are their sockets: a worker ends when its last one is closed."""
        for worker in self._workers:
            _inherited.append(worker)
            worker.disconnect()
        self._reset()

    def _reset(self) -> None:
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
"""The workers of a forked child's parent: held, for `Popen` looks after a process when it is
garbage-collected."""
_default_lock = threading.Lock()


def default_processes() -> ProcessExecutor:
    """What `executor="processes"` means: as many processes as CPUs, for the life of this one."""
    with _default_lock:
        if not _default:
            _default.append(ProcessExecutor())
        return _default[0]


def _reset_all_after_fork() -> None:
    global _default_lock
    _default_lock = threading.Lock()  # another thread of the parent may have held the old one
    for executor in list(_all):
        executor.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)


class SharedPart:
    """A large part of calls. When it is garbage-collected here, each worker drops its copy with its
    next call."""

    __slots__ = ("__weakref__", "blob")

    def __init__(self, blob: bytes) -> None:
        self.blob: bytes = blob


class _Worker:
    """One process, our end of its socket, and the handle of the call that it serves.

    Parts are numbered for each worker: `_sent` has the numbers of those that still exist here,
    `_there` those that the worker holds.
    """

    def __init__(self, handle: _ProcessHandle) -> None:
        self.handle: _ProcessHandle | None = handle
        self.frames: Frames
        self.process: subprocess.Popen[bytes]
        self.started: bool = False
        self._poll = select.poll()
        self._end = -1
        self._sentinel = -1
        self._numbers = count()
        self._sent: WeakKeyDictionary[SharedPart, int] = WeakKeyDictionary()
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
                # Ctrl-C then reaches the driver alone, which decides what ends; and the worker
                # leads a process group, by which it is ended together with what it has started.
                start_new_session=True,
            )
        self._sentinel = open_sentinel(self.process)
        self._poll.register(self._end, select.POLLIN)
        self._poll.register(self._sentinel, select.POLLIN)
        self.started = True

    def put(self, call: RemoteCall) -> bytes:
        """Queue the frames of a call, with those of its parts that the worker has not. Returns the
        id that its answer must have."""
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

    def is_ready(self) -> bool:
        """Whether it lives and waits for a call. One that sent something between two calls is not
        trusted any more."""
        self._poll.modify(self._end, select.POLLIN)
        return self.frames.is_quiet and not self._poll.poll(0)

    def _wait(self, events: int, due: float | None) -> None:
        """Wait for the socket, or the end of the process. What it sent before its end is read
        first."""
        self._poll.modify(self._end, events)
        left = None if due is None else max(due - time.monotonic(), 0.0) * 1000
        ready = dict(self._poll.poll(left))
        if not ready:
            raise TimeoutError
        # A dead process sends no more, so once its socket has nothing to be read the call is lost.
        # Writing would go on for ever where a child of it holds the other end.
        if self._sentinel in ready and (self._end not in ready or events == select.POLLOUT):
            raise EOFError("the process has ended")

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self.end()
        self.disconnect()

    def disconnect(self) -> None:
        """Close our end of the socket, here only."""
        if hasattr(self, "frames"):
            self.frames.close()
        if self._sentinel >= 0:
            sentinel, self._sentinel = self._sentinel, -1
            os.close(sentinel)

    def end(self) -> None:
        """End the process and those that it has started, but for those with a session of their
        own."""
        if not hasattr(self, "process"):
            return
        # As long as it was not waited for, its id cannot be another process's.
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def explain_end(self) -> str:
        """How a process ended that has closed its socket. One that has not ended by itself is ended
        now."""
        poll = select.poll()
        poll.register(self._sentinel, select.POLLIN)
        by_itself = poll.poll(SECONDS_TO_DIE * 1000)
        self.end()
        code = self.process.returncode
        if not by_itself:
            return "its process closed the pipe"
        if code == DAMAGED:
            return "its process was sent something that is not a call"
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended ({code})"


def open_sentinel(process: subprocess.Popen[bytes]) -> int:
    """A file descriptor that can be read once a process has ended, whatever its children do."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):  # an old kernel, or a sandbox, has none
            return os.pidfd_open(process.pid)
    sentinel, signal_end = os.pipe()

    def watch() -> None:
        process.wait()
        # Now that it was waited for, `end` must not signal its id any more. The group keeps the id
        # in use as long as anybody is left in it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):  # nobody waits any longer
            os.write(signal_end, b".")
        os.close(signal_end)

    threading.Thread(target=watch, name="stategraph-sentinel", daemon=True).start()
    return sentinel


@dataclass(eq=False)
class _ProcessHandle:
    _executor: ProcessExecutor
    _call: RemoteCall
    _on_event: OnEvent
    _worker: _Worker | None = None
    _id: bytes = b""

    def result(self, timeout: float | None = None) -> bytes:
        due = None if timeout is None else time.monotonic() + timeout
        if self._worker is None:
            self._worker = self._executor.take(self, timeout)
            self._id = self._worker.put(self._call)
        worker = self._worker
        while (frame := self._next(worker, due)).kind != ANSWER:
            reply = self._on_event(frame.body)
            if frame.kind == REQUEST:
                worker.frames.put(Frame(self._id, REPLY, reply or b""))
        self._worker = None
        self._executor.give_back(worker)
        return frame.body

    def _next(self, worker: _Worker, due: float | None) -> Frame:
        """The next frame of this call, once all of the call was sent.

        Raises:
            Lost: the worker has ended, or has sent what does not belong to this call.
        """
        try:
            worker.frames.flush(due)
            frame = worker.frames.receive(self._id, due)
            if frame.kind not in (EVENT, REQUEST, ANSWER):
                raise DamagedFrame(
                    f"its pipe delivered a frame of kind {frame.kind!r} in place of an answer"
                )
            return frame
        except TimeoutError:
            raise
        except DamagedFrame as error:
            raise self._lose(worker, f"{error}; the worker was ended") from error
        except (EOFError, OSError) as gone:
            raise self._lose(worker, worker.explain_end()) from gone

    def _lose(self, worker: _Worker, reason: str) -> Lost:
        self._worker = None
        self._executor.drop(worker)
        if self._executor.closed:
            return Lost("the executor was closed", final=True)
        return Lost(reason)

    def cancel(self) -> None:
        self._worker = None
        self._executor.release(self)
