"""Group commit: writes that wait together become one transaction. On the one connection of SQLite,
each gets its own savepoint; `postgres_session.CommitPipeline` does it for Postgres.

The main cost of a transaction on disk is the flush, so a server with many live threads pays for it
once per group. No caller gets its result before its group is on disk. No SQL here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import StorageError
from ..threads import HELD_BACK, MANY_STORING, STORING, Answer, CallThreads, answer_on

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

MOST = 256
"""The maximum number of writes in a group: between groups, readers and other processes get the
database."""

Result = TypeVar("Result")


class WriteQueue:
    """Makes writes on a thread of its own. Those that arrive while another is being made are made
    together.

    Attributes:
        waiting: the writes that wait.
    """

    def __init__(self) -> None:
        self._threads = CallThreads(1)
        self.waiting: deque[QueuedWrite] = deque()
        self._starting = threading.Lock()
        self._started = False

    def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Make a write, together with others that wait, and wait for it. The function may be called
        again if its group was rolled back."""
        ended = threading.Lock()
        ended.acquire()
        write = QueuedWrite(function, args, ended)
        self.waiting.append(write)
        STORING.append(None)
        try:
            self._start()
            ended.acquire()
        except BaseException:  # Ctrl-C: no part of this call may continue after it
            try:
                self.waiting.remove(write)
            except ValueError:
                ended.acquire()
            raise
        finally:
            STORING.pop()
            while HELD_BACK and len(STORING) < MANY_STORING:
                with suppress(KeyError):  # another thread was faster
                    HELD_BACK.pop()()
        if write.error is not None:
            raise write.error
        result: Result = write.result
        return result

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Do the same as `run`, for coroutines. A write whose caller was cancelled is still made if
        it has begun."""
        import asyncio  # deferred: a caller that awaits has imported it

        loop = asyncio.get_running_loop()
        future: Future[Result] = loop.create_future()
        self.waiting.append(QueuedWrite(function, args, future, loop))
        with self._starting:  # the thread may be about to end
            started = self._started
        if not started:
            # After the tasks that are ready now, since they may write too: each time the thread
            # wakes up, the interpreter lock moves to another core and back.
            loop.call_soon(self._start)
        return await future

    def close(self) -> None:
        """End the thread once nothing waits any more."""
        self._threads.close()

    def _start(self) -> None:
        with self._starting:
            if self._started or not self.waiting:
                return
            try:
                self._threads.submit(self._drain)
            except RuntimeError as error:  # no thread can be started
                self._refuse(
                    f"no thread could be started to write to the database: {error}. "
                    "Nothing of this call was stored"
                )
            else:
                self._started = True

    def _refuse(self, reason: str) -> None:
        """Fail all waiting writes."""
        refused = [*self._take(len(self.waiting))]
        for write in refused:
            write.fail(StorageError(reason))
        answer(refused)

    def _drain(self) -> None:
        while True:
            made = self._make_next()
            answer(made)
            del made
            with self._starting:
                if not self.waiting:
                    self._started = False
                    return

    def _make_next(self) -> list[QueuedWrite]:
        """Make the waiting writes; return those that have ended, successfully or not."""
        raise NotImplementedError

    def _take(self, most: int) -> Iterator[QueuedWrite]:
        """Yield the next waiting writes, including those that arrive meanwhile."""
        for _ in range(most):
            try:
                yield self.waiting.popleft()
            except IndexError:
                return


class GroupCommit(WriteQueue):
    """Makes writes on one connection: those that wait together are savepoints of one transaction.

    Args:
        lock: held by whoever uses the connection.
        group: opens the transaction of a group; a transaction begun inside it becomes a savepoint.
            Raises at its end if it could not be committed, or if the database has rolled it back;
            then nothing in it is stored.
        is_undone: whether the database has rolled back the open group by itself, as it does when
            the disk is full.

    Attributes:
        is_making: whether a write is being made. Code that holds the lock meanwhile runs inside
            that write.
    """

    def __init__(
        self,
        lock: Any,
        group: Callable[[], AbstractContextManager[None]],
        is_undone: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._lock, self._group, self._is_undone = lock, group, is_undone
        self.is_making: bool = False

    def _make_next(self) -> list[QueuedWrite]:
        with self._lock:
            self.is_making = True
            try:
                return self._make_group()
            finally:
                self.is_making = False

    def _make_group(self) -> list[QueuedWrite]:
        made: list[QueuedWrite] = []
        waited = len(self.waiting)
        if waited <= 1:
            for write in self._take(1):
                made.append(write)
                write.make()
            return made
        try:
            with self._group():
                for write in self._take(MOST):
                    made.append(write)
                    write.make()
                    if self._is_undone():
                        break
        except BaseException as error:
            if made:  # None is stored. Each alone: one bad write fails no other.
                for write in made:
                    write.make()
            else:  # the transaction could not be begun
                for write in self._take(waited):
                    made.append(write)
                    write.fail(error)
        return made


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """One write, and its outcome.

    Args:
        waiter: of a thread, the lock that it waits for; of a coroutine, its future.
        loop: the event loop of a coroutine.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    waiter: Any
    loop: AbstractEventLoop | None = None
    result: Any = None
    error: BaseException | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for it."""
        return self.loop is None or not self.waiter.cancelled()

    def make(self) -> None:
        """Make the write. This may be a repetition: what was made before has been rolled back."""
        self.result = self.error = None
        try:
            if self.is_awaited:
                self.result = self.function(*self.args)
        except BaseException as error:
            self.error = error

    def fail(self, error: BaseException) -> None:
        """Fail the write, for a reason that it shares with others."""
        self.error = StorageError(str(error))
        self.error.__cause__ = error


def answer(made: list[QueuedWrite]) -> None:
    """Pass the outcomes to all that wait; each event loop is woken once."""
    answers: dict[AbstractEventLoop, list[Answer]] = {}
    for write in made:
        if write.loop is None:
            write.waiter.release()
        else:
            answers.setdefault(write.loop, []).append((write.waiter, write.result, write.error))
    for loop, those in answers.items():
        answer_on(loop, those)
