"""Worker processes of our own: each serves one call at a time over a pipe, can be killed, and is replaced when it dies.

The thread that waits for a call is the one that talks to its worker: no other thread is needed.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from itertools import count
from multiprocessing.connection import Connection, Pipe
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakSet

from .call import Call, Executor, Hear, Lost
from .pickling import PROTOCOL
from .worker import serve

BOOT = "import sys; sys.path[:] = sys.argv[2:]; from stategraph.executors.processes import main; main(int(sys.argv[1]))"
"""A fresh interpreter, which imports nothing of the script that started it: that needs no guard, and no module."""
SECONDS_TO_DIE = 1.0
"""How long a process may take from closing its pipe to its end."""


class ProcessExecutor(Executor):
    """Processes on this machine, started as they are needed and kept until `close`.

    A call whose time is up ends with its process. A worker that dies costs its own call a try, and no other.

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
            worker.end()  # whoever waits for it still looks at its pipe, and drops it

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
        with self._free:
            if not self._free.wait_for(self._has_room, timeout):
                raise TimeoutError
            while self._idle and not self.closed:
                worker = self._idle[-1]
                worker.flight = flight
                self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._workers.discard(worker)
            if not self.closed:
                worker = _Worker(flight)
                self._workers.add(worker)
        if not self.closed:
            worker.start()
        if self.closed:  # perhaps meanwhile
            self.release(flight)
            raise RuntimeError(f"{self!r} is closed")
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
        self.pipe: Connection[Any, Any]
        self.process: subprocess.Popen[bytes]
        self._numbers = count()
        self._sent: WeakKeyDictionary[Shared, int] = WeakKeyDictionary()
        self._there: set[int] = set()

    def send(self, call: Call) -> None:
        """Send a call, and those of its parts that the worker has not."""
        new = [part for part in dict.fromkeys(call.parts) if part not in self._sent]
        self._sent.update(zip(new, self._numbers, strict=False))
        held = set(self._sent.values())
        gone, self._there = self._there - held, held
        numbers = [self._sent[part] for part in call.parts]
        header = (call.payload, numbers, [self._sent[part] for part in new], gone)
        self.pipe.send_bytes(pickle.dumps(header, PROTOCOL))
        for part in new:
            self.pipe.send_bytes(part.blob)

    def start(self) -> None:
        """Start the process."""
        self.pipe, theirs = Pipe()
        with theirs:
            end = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(end), *sys.path],
                pass_fds=[end],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the driver: it decides what ends
            )

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self.end()
        self.hang_up()

    def hang_up(self) -> None:
        """Close our end of the pipe."""
        if hasattr(self, "pipe"):
            self.pipe.close()

    def end(self) -> None:
        """End the process only."""
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()

    def how(self) -> str:
        """How a process ended that has closed its pipe."""
        try:
            code = self.process.wait(SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            return "its process has closed its pipe"
        return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended ({code})"


class _Flight:
    def __init__(self, pool: ProcessExecutor, call: Call, hear: Hear) -> None:
        self._pool = pool
        self._call = call
        self._hear = hear
        self._worker: _Worker | None = None

    def result(self, timeout: float | None = None) -> bytes:
        due = None if timeout is None else time.monotonic() + timeout
        if self._worker is None:
            self._worker = self._pool.take(self, timeout)
            self._begin(self._worker)
        worker = self._worker
        try:
            while True:
                left = None if due is None else max(due - time.monotonic(), 0.0)
                if not worker.pipe.poll(left):
                    raise TimeoutError
                message = worker.pipe.recv_bytes()
                if message[:1] == END:
                    break
                self._hear(message[1:])
        except (EOFError, ConnectionError) as gone:
            raise self._lost(worker) from gone
        self._worker = None
        self._pool.give_back(worker)
        return message[1:]

    def _begin(self, worker: _Worker) -> None:
        try:
            worker.send(self._call)
        except (OSError, ValueError) as gone:
            raise self._lost(worker) from gone

    def _lost(self, worker: _Worker) -> Lost:
        self._worker = None
        how = worker.how()
        self._pool.drop(worker)
        return Lost("the executor was closed", final=True) if self._pool.closed else Lost(how)

    def cancel(self) -> None:
        self._worker = None
        self._pool.release(self)


# -- the other side ---------------------------------------------------------------------------------------------

EVENT, END = b"e", b"."


def _end_with_driver(end: int) -> None:
    """End when the driver has gone, in the middle of a call as well: nobody would take its result, and another driver
    may be running it by then."""
    poll = select.poll()
    poll.register(end, 0)  # only that it was closed
    poll.poll()
    os._exit(1)


def main(end: int) -> None:
    """Serve calls until the driver has gone."""
    pipe: Connection[Any, Any] = Connection(end)
    lock = threading.Lock()
    threading.Thread(target=_end_with_driver, args=(end,), daemon=True).start()
    parts: dict[int, bytes] = {}
    try:
        while True:
            payload, wanted, new, gone = pickle.loads(pipe.recv_bytes())
            for number in gone:
                del parts[number]
            for number in new:
                parts[number] = pipe.recv_bytes()
            _answer(pipe, lock, payload, [parts[number] for number in wanted])
    except (EOFError, OSError):
        return


def _answer(pipe: Connection[Any, Any], lock: threading.Lock, payload: bytes, parts: list[bytes]) -> None:
    """Serve a call. What a thread that it left behind tells afterwards is dropped, lest the next call has said it."""
    over = False

    def tell(event: bytes) -> None:
        with lock:
            if not over:
                pipe.send_bytes(EVENT + event)

    answer = serve(payload, parts, tell)
    with lock:
        over = True
        pipe.send_bytes(END + answer)
