"""Threads of one's own, on which checkpointers, stores and caches make the blocking calls of their
async methods: a program that fills asyncio's default pool does not hold them up. Also `with` and
`async with` for them, and for what `from_conn_string` returns."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

MAX_THREADS = 32
"""How many threads an object has at most that does not say itself how many calls it can make at
once."""

IDLE_SECONDS = 10.0
"""How long a thread waits for the next call before it ends."""

STORING: list[None] = []
"""One item for each thread that waits for its write to a database (P43)."""
MANY_STORING = 16
"""While so many wait, more threads would only wait there as well."""
HELD_BACK: set[Callable[[], None]] = set()
"""Calls the workers that were not called meanwhile; who has stored does it once fewer wait."""
os.register_at_fork(after_in_child=STORING.clear)
os.register_at_fork(after_in_child=HELD_BACK.clear)

Result = TypeVar("Result")


class AsyncCaller:
    """Makes blocking calls for coroutines, on threads of its own. They are started when they are
    needed, and end when they have nothing to do."""

    def _max_threads(self) -> int:
        """How many calls may be made at once; asked when the first is made."""
        return MAX_THREADS

    async def _acall(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a blocking function from a coroutine, on a thread of this object's, in a copy of the
        caller's context. A call that has begun goes on when nobody waits for it any more."""
        return await self._call_threads().call(function, *args)

    def _call_threads(self) -> CallThreads:
        # Made late, and not in `__init__`: subclasses of users' do not all call that.
        threads: CallThreads | None = self.__dict__.get("_own_threads")
        if threads is None:
            threads = self.__dict__.setdefault("_own_threads", CallThreads(self._max_threads()))
        return threads

    def _end_threads(self) -> None:
        """Let the threads end when they have made the calls that wait for them."""
        threads: CallThreads | None = self.__dict__.get("_own_threads")
        if threads is not None:
            threads.close()


class CallThreads:
    """Up to `limit` daemon threads. Coroutines of any number of event loops may use them at once.

    What has begun when the program ends is waited for. The child of a fork starts without threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start_over()
        _all.add(self)

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._idle: list[_Seat] = []
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return CallThreads, (self._limit,)  # of a copy in another process: threads of its own

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function on one of the threads. If all are busy, it waits for its turn."""
        import asyncio  # deferred: whoever awaits this has it already

        loop = asyncio.get_running_loop()
        future: Future[Result] = loop.create_future()
        self.submit(_Call(loop, future, copy_context(), function, args))
        return await future

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job, which must not raise, on one of the threads; do not wait for it."""
        with self._lock:
            if self._idle:
                seat = self._idle.pop()
                seat.job = job
                seat.taken.release()
            elif len(self._threads) < self._limit:
                # In a list, from which it is taken: a thread keeps its arguments while it lives.
                thread = threading.Thread(
                    target=self._serve, args=([job],), name="stategraph-calls", daemon=True
                )
                thread.start()
                self._threads.add(thread)
            else:
                self._waiting.append(job)

    def close(self) -> None:
        """Let each thread end as soon as nothing waits for it. A call that is made later has one
        again, for as long as it takes."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for seat in idle:
            seat.taken.release()

    def join(self) -> None:
        """`close`, and wait until what has begun, and what waits, is done."""
        self.close()
        for thread in list(self._threads):
            thread.join()

    def _serve(self, first: list[Callable[[], None]]) -> None:
        seat = _Seat()
        job: Callable[[], None] | None = first.pop()
        while job is not None:
            job()
            job = None  # hold nothing alive while idle
            job = self._next(seat)

    def _next(self, seat: _Seat) -> Callable[[], None] | None:
        """The next job; None if the thread is to end."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._closed:
                self._threads.discard(threading.current_thread())
                return None
            self._idle.append(seat)
        if not seat.taken.acquire(timeout=IDLE_SECONDS):
            with self._lock:
                if seat in self._idle:
                    self._idle.remove(seat)
                    self._threads.discard(threading.current_thread())
                    return None
            seat.taken.acquire()  # a job was given to it as the wait ended
        job, seat.job = seat.job, None
        if job is None:
            return self._next(seat)  # closed: what waits comes first
        return job


class _Seat:
    """Where an idle thread waits for a job."""

    __slots__ = ("job", "taken")

    def __init__(self) -> None:
        self.job: Callable[[], None] | None = None
        self.taken = threading.Lock()
        self.taken.acquire()


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a coroutine's: made on a thread, answered on the coroutine's loop."""

    _loop: AbstractEventLoop
    _future: Future[Any]
    _context: Context
    _function: Callable[..., Any]
    _args: tuple[Any, ...]

    def __call__(self) -> None:
        future = self._future
        if future.cancelled():  # nobody waits for it, and it has not begun
            return
        try:
            result, error = self._context.run(self._function, *self._args), None
        except BaseException as raised:
            result, error = None, raised
        answer_on(self._loop, [(future, result, error)])


Answer = tuple["Future[Any]", Any, BaseException | None]
"""(future, result, error): what a coroutine waits for, and how it ended."""


def answer_on(loop: AbstractEventLoop, answers: list[Answer]) -> None:
    """Give coroutines of one event loop what they wait for, from another thread."""
    try:
        loop.call_soon_threadsafe(_answer, answers)
    except RuntimeError:  # the loop is closed: nobody waits any longer
        pass


def _answer(answers: list[Answer]) -> None:
    for future, result, error in answers:
        if future.done():  # cancelled
            continue
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # which no future takes
            stopped = RuntimeError(f"the call raised StopIteration({error})")
            stopped.__cause__ = error
            future.set_exception(stopped)
        else:
            future.set_exception(error)


async def call_on_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Make one blocking call on a thread that ends with it."""
    threads = CallThreads(1)
    threads.close()
    return await threads.call(function, *args)


_all: WeakSet[CallThreads] = WeakSet()


def _forget_threads() -> None:
    for threads in list(_all):
        threads._start_over()


def _end_all() -> None:
    for threads in list(_all):
        threads.join()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_threads)


class Closable(AsyncCaller):
    """Closes itself at the end of a `with` or `async with` block."""

    def close(self) -> None:
        """Let go of connections and files; here there are none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._acall(self.close)
        self._end_threads()


Opened = TypeVar("Opened", bound=Closable)


class Opening(Generic[Opened]):
    """What `from_conn_string` gives: opens as a `with` or `async with` block begins, and closes as
    it ends. An async one opens and closes on a worker thread."""

    def __init__(self, open: Callable[..., Opened], *args: Any, **options: Any) -> None:
        self._open, self._args, self._options = open, args, options
        self._opened: list[Opened] = []

    def __enter__(self) -> Opened:
        self._opened.append(self._open(*self._args, **self._options))
        return self._opened[-1]

    def __exit__(self, *_: object) -> None:
        self._opened.pop().close()

    async def __aenter__(self) -> Opened:
        return await call_on_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await call_on_thread(self.__exit__)
