"""`Limit`: how many tasks of a process may be at work at once, or start in a stretch of time; and
the queue in which tasks wait for it.

Theory of operation: a task that needs places gets all of them at once or waits, so two tasks never
wait for each other. It waits in the queue of its superstep, where it takes neither a thread nor one
of the places that `max_concurrency` gives. A place that is given back goes to the queue that has
waited longest; that then calls a worker. One lock guards all limits of the process: what is done
under it is short.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import count

from ..clock import CLOCK, read_seconds
from ..task.task import Task, outwards
from .pool import POOL

_LOCK = threading.Lock()


class Limit:
    """Lets only so many tasks be at work at once, or start in a stretch of time.

    Every node, graph and run of this process that holds the same object shares it. A task that
    waits takes no thread, and its `timeout` does not run. A paused task holds no place. A task
    inside one that holds a place needs none of its own.

    Args:
        count: how many tasks, 1 or more.
        per: seconds or timedelta. With it, `count` tasks may start in any stretch of this length;
            a retry is a start, too. Without it, `count` may be at work at once.

    Raises:
        TypeError: `per` is no time.
        ValueError: `count` or `per` is too small.

    >>> model_calls = Limit(10)
    >>> per_minute = Limit(60, per=timedelta(minutes=1))
    """

    __slots__ = ("_is_timed", "_seconds", "_starts", "_taken", "_waiting", "count")

    def __init__(self, count: int, *, per: float | timedelta | None = None) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"Limit: count must be an integer >= 1, got {count!r}")
        self.count: int = count
        self._seconds = None if per is None else read_seconds("Limit: per", per)
        self._taken = 0
        self._starts: deque[float] = deque()
        self._waiting: dict[AdmissionQueue, None] = {}  # in the order in which they came
        self._is_timed = False

    # -- with the lock held ------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether one more task may start now."""
        if self._seconds is None:
            return self._taken < self.count
        since = CLOCK.monotonic() - self._seconds
        while self._starts and self._starts[0] <= since:
            self._starts.popleft()
        return len(self._starts) < self.count

    def take(self) -> None:
        """Take a place for a task that starts."""
        if self._seconds is None:
            self._taken += 1
        else:
            self._starts.append(CLOCK.monotonic())

    def give_back(self) -> None:
        """Give back the place of a task that has ended."""
        if self._seconds is None:
            self._taken -= 1

    def wait(self, queue: AdmissionQueue) -> None:
        """Let this queue know when there is room."""
        self._waiting[queue] = None
        if self._seconds is not None and not self._is_timed:
            self._is_timed = True
            POOL.submit(self._watch_clock)

    def hand_out(self) -> list[Callable[[], None]]:
        """Give what room there is to those that wait: what is to be called, without the lock."""
        calls = []
        while self._waiting and self.has_room():
            queue = next(iter(self._waiting))
            del self._waiting[queue]
            if queue.admit(self):
                calls.append(queue.call_worker)
        return calls

    # -- without it --------------------------------------------------------------------------------

    def start_again(self) -> float:
        """A task that is at work is tried again. For how many seconds it has to wait; 0 if it has
        been counted."""
        with _LOCK:
            if self._seconds is None or self.has_room():
                if self._seconds is not None:
                    self.take()
                return 0
            return self._next_room()

    def _next_room(self) -> float:
        assert self._seconds is not None
        return max(self._starts[0] + self._seconds - CLOCK.monotonic(), 0.001)

    def _watch_clock(self) -> None:
        """Hand out room as time makes it, for as long as anybody waits."""
        while True:
            with _LOCK:
                calls = self.hand_out()
                if not self._waiting:
                    self._is_timed = False
                pause = self._next_room() if self._waiting else None
            for call in calls:
                call()
            if pause is None:
                return
            CLOCK.sleep(pause)

    def __repr__(self) -> str:
        return f"Limit({self.count})" if self._seconds is None else (
            f"Limit({self.count}, per={self._seconds:g})"
        )


Places = tuple[Limit, ...]


class AdmissionQueue:
    """The tasks of a batch that have not been started, of which some need places. It stands
    where the deque of a `Batch` stands.

    Args:
        call_worker: lets the batch take a task; any thread may call it.
    """

    def __init__(self, tasks: Iterable[Task], call_worker: Callable[[], None]) -> None:
        self.call_worker = call_worker
        self._held: dict[Task, Places] = {}
        self._admitted: deque[Task] = deque()
        # By what they need: of those that need the same only the first has to be looked at.
        self._groups: dict[Places, deque[tuple[int, Task]]] = {}
        self._numbers = count()
        self.extend(tasks)

    def __bool__(self) -> bool:
        """Whether a task may start now. If none may, a worker is called as soon as one may."""
        with _LOCK:
            ready = bool(self._admitted) or self._next() is not None
            self._wait_for_all()
            return ready

    def popleft(self) -> Task:
        """The next task that may start. It holds its places until `release`.

        Raises:
            IndexError: none may start now.
        """
        with _LOCK:
            if not self._admitted:
                self._admit(self._next())
            self._wait_for_all()
            return self._admitted.popleft()

    def extend(self, tasks: Iterable[Task]) -> None:
        """Add tasks to be started, behind those that need the same limits."""
        with _LOCK:
            for task in tasks:
                group = self._groups.setdefault(_needed(task), deque())
                group.append((next(self._numbers), task))

    def __len__(self) -> int:
        """How many tasks have not been taken."""
        with _LOCK:
            return len(self._admitted) + sum(map(len, self._groups.values()))

    def pop(self) -> Task:
        """Drop the last task.

        Raises:
            IndexError: there is none.
        """
        with _LOCK:
            if self._groups:
                places = max(self._groups, key=lambda each: self._groups[each][-1][0])
                return self._take(places, last=True)
            task = self._admitted.pop()
            calls = self._give_back(task)
        # On other threads: the batch drops with its own lock held, and theirs may be held, too.
        for call in calls:
            POOL.submit(call)
        return task

    def remove(self, task: Task) -> None:
        """Drop a task.

        Raises:
            ValueError: it was taken, or was never here.
        """
        with _LOCK:
            for places, group in self._groups.items():
                entry = next((each for each in group if each[1] is task), None)
                if entry is not None:
                    group.remove(entry)
                    if not group:
                        del self._groups[places]
                    return
            self._admitted.remove(task)
            calls = self._give_back(task)
        for call in calls:
            POOL.submit(call)

    def release(self, task: Task) -> None:
        """Give the places of a task that has ended to others."""
        with _LOCK:
            calls = self._give_back(task)
        for call in calls:
            call()

    def _give_back(self, task: Task) -> list[Callable[[], None]]:
        calls = []
        for limit in self._held.pop(task, ()):
            limit.give_back()
            calls += limit.hand_out()
        return calls

    def admit(self, limit: Limit) -> bool:
        """With the lock held: let one task start that waits for this limit; whether there was one
        that need not wait for another. One at a time: a place is not to wait for a worker while
        others wait for the place."""
        if self._admitted:
            return False
        waiting = [places for places in self._groups if limit in places]
        for places in waiting:
            if all(each.has_room() for each in places):
                return self._admit(places)
        for places in waiting:
            self._wait(places)
        return False

    def _next(self) -> Places | None:
        ready = [each for each in self._groups if all(limit.has_room() for limit in each)]
        return min(ready, key=lambda each: self._groups[each][0][0], default=None)

    def _admit(self, places: Places | None) -> bool:
        if places is None:
            return False
        task = self._take(places, last=False)
        for limit in places:
            limit.take()
        if places:
            self._held[task] = places
        self._admitted.append(task)
        return True

    def _wait_for_all(self) -> None:
        for places in self._groups:
            self._wait(places)

    def _wait(self, places: Places) -> None:
        for limit in places:
            if not limit.has_room():
                limit.wait(self)

    def _take(self, places: Places, *, last: bool) -> Task:
        group = self._groups[places]
        _, task = group.pop() if last else group.popleft()
        if not group:
            del self._groups[places]
        return task


def _needed(task: Task) -> Places:
    """The limits of a task, without those in which a task around it holds a place."""
    needed = task.node.policies.limits
    for around in outwards(task.run.parent) if needed else ():
        held = around.node.policies.limits
        needed = tuple(limit for limit in needed if limit not in held)
    return needed
