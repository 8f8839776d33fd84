"""A worker's only session with Postgres: it registers the worker, claims and ends jobs, watches a
neighbour, and receives notices of new work. Only one thread uses it. If the session is lost, the
worker opens another one, which takes over the claims.

The worker's advisory lock belongs to this session, so it cannot go through a PgBouncer that shares
sessions.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Collection, Sequence
from math import inf
from secrets import randbits
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from psycopg import Error, OperationalError, errors
from psycopg.conninfo import conninfo_to_dict

from ..checkpoint.errors import StorageError
from ..checkpoint.sql.postgres_address import without_secrets
from ..checkpoint.sql.postgres_tables import MIGRATIONS as THREAD_MIGRATIONS
from ..checkpoint.sql.postgres_wire import ALIVE, Patient, Wire, shares_sessions, transaction
from .jobs import Job, JobEnd, JobName, decode_name, hash_name
from .scheduler import Scheduler
from .tables import MIGRATIONS, STATEMENTS

Found = TypeVar("Found")

LISTENERS = 8
"""How many workers of a graph, the oldest, are notified of new work; the others find it when they
poll. Postgres wakes every listening session for every notice, which costs more than the job once
there are many."""

CLASHES = 5
"""How often a claim is tried that conflicts with another one, and how often a lock key is chosen
that another session holds."""

MOST_WOKEN = 1_000
"""How many jobs that have become due are made ready in one transaction."""

SECONDS_TO_END = 0.02
"""The pause between two checks whether a terminated session has ended."""

LOG = logging.getLogger("stategraph.workers")


class SessionLostError(StorageError):
    """The worker's connection broke: its lock is gone, and other workers may take over its jobs."""


class Terms(NamedTuple):
    """The settings with which a worker claims jobs.

    Attributes:
        graph: the graph whose jobs it claims.
        name: the worker's name in listings.
        tries: how many workers may die before a job is parked.
        timeout: seconds to wait for the server.
        versions: the version of its graph, empty if that has none, then others whose threads it
            continues.
    """

    graph: str
    name: str
    tries: int
    timeout: float
    versions: tuple[str, ...] = ("",)


class WorkerSession:
    """A worker's session with Postgres. `open` connects and registers the worker; before that, the
    session holds nothing.

    Args:
        before: the worker's id in a session that was lost. Its claims are taken over, except those
            that other workers have taken.
        scheduler: fires the schedules of the graph; with None, this worker fires none.
        left: the ids of jobs that it does not claim.

    Attributes:
        worker: the worker's id.
        kept: (id, attempt) of the claims that were taken over.
        outdated: a newer release has changed the tables, so this one takes no more jobs.
    """

    def __init__(
        self,
        conninfo: str,
        terms: Terms,
        before: int | None = None,
        scheduler: Scheduler | None = None,
        left: Collection[int] = (),
    ) -> None:
        self._conninfo, self._terms, self._before = conninfo, terms, before
        self._scheduler, self._left = scheduler, left
        self._limited = self._listens = self._notified = False
        self._channel = str(hash_name(terms.graph)).encode()
        self._connection: Patient | None = None
        self._next_wake = 0.0  # when `_wake` next has something to do, on the monotonic clock
        self._has_woken = False  # since the last `_watch`
        self.worker: int = 0
        self.outdated: bool = False
        self.kept: set[tuple[int, int]] = set()

    def open(self) -> WorkerSession:
        """Connect and register the worker.

        Raises:
            SessionLostError: the server cannot be reached.
            StorageError: the server refuses.
        """
        why = "the Postgres server cannot be reached"
        with without_secrets(why, self._conninfo, SessionLostError):
            self._connection = self._connect()
        assert self._connection is not None
        # Notices may arrive with the answer to any statement. psycopg's own handler would decode
        # them, but any role may send any bytes.
        self._connection.pgconn.notify_handler = lambda notice: self._on_notice(notice.extra)
        self._wire = Wire(self._connection)
        try:
            self._translate(self._register)
        except BaseException:
            self._connection.close()
            raise
        return self

    def _connect(self) -> Patient:
        timeout = self._terms.timeout
        options: dict[str, Any] = {**ALIVE, **conninfo_to_dict(self._conninfo), "autocommit": True}
        connection = Patient.connect(**{"connect_timeout": max(2, int(timeout)), **options})
        connection.patience = timeout
        return connection

    def _register(self) -> None:
        terms = self._terms
        assert self._connection is not None
        if shares_sessions(self._connection, self._connect):
            raise StorageError(
                "a worker must have a session of its own with the Postgres server, for its lock "
                "and for LISTEN, but this is the address of a pooler with transaction pooling "
                "(PgBouncer's pool_mode): give workers the server's own address, or a pool with "
                "pool_mode=session. Queues, checkpointers and stores may use the pooler"
            )
        self._rows("settle", int(900 * terms.timeout))
        for _ in range(CLASHES):
            if made := self._rows(
                "register", terms.graph, terms.name, randbits(63), [*terms.versions]
            ):
                break
            LOG.warning("another session holds the lock that this worker chose: it chooses another")
        else:
            raise StorageError(
                f"{CLASHES} advisory locks with random keys were all taken: start the worker again"
            )
        self.worker = made[0][0]
        if self._before is not None:
            self._carry_over(self._before)
        self._listen()

    def _carry_over(self, before: int) -> None:
        """Take over the claims of the old session, once it has ended on the server too: a claim
        that it made later would belong to nobody."""
        deadline = monotonic() + self._terms.timeout
        while self._rows("end_session", before):
            if monotonic() > deadline:
                raise SessionLostError(
                    f"the old session of worker {before} does not end on the server"
                )
            sleep(SECONDS_TO_END)
        with transaction(self._wire, write=True):
            # In the same order as `bury`, so that the two cannot deadlock.
            self._run("drop_worker", before)
            self.kept = {*self._rows("carry_over", self._terms.graph, before, self.worker)}

    def _listen(self) -> None:
        if self._listens:
            return
        ((rank,),) = self._rows("rank", self.worker, self._terms.graph, LISTENERS)
        if rank < LISTENERS:
            self._run("listen_for_work")
            self._listens = True

    def close(self) -> None:
        """Deregister, return the remaining claims, and disconnect. If the server is out of reach,
        only disconnect: the lock goes with the connection, and other workers find the claims."""
        if self._connection is None:
            return
        try:
            # A lost session cannot do it: the worker that finds its lock gone returns the claims.
            if not self._connection.closed:
                self._give_back()
        except Error:
            pass
        finally:
            self._connection.close()

    def _give_back(self) -> None:
        freed = self._rows("give_back", self._terms.graph, self.worker)
        self._notify_ends(freed)
        if freed:
            self._rows("notify_workers", hash_name(self._terms.graph))

    # -- jobs --------------------------------------------------------------------------------------

    def claim(self, room: int) -> list[Job]:
        """Claim up to `room` jobs, the first in the queue. A job that is not `begun` must run
        alone."""
        return self._translate(lambda: self._claim(room))

    def _claim(self, room: int) -> list[Job]:
        values = self._claim_values(room)
        due = monotonic() >= self._next_wake
        if due:
            self._wake(room)
        found = [] if self.outdated else self._try_claim(values)
        if not found and not due:
            # The claim without a limit takes nothing if the graph has one. Whether it has is looked
            # up only now, so that it costs nothing while there is work.
            was_limited = self._limited
            if self._wake(room) or (self._limited and not was_limited):
                found = self._try_claim(values)
        return self._jobs(found)

    def _wake(self, room: int = 0) -> int:
        """Make due jobs ready, fire due schedules, and note when the next one is due and whether
        there is a limit. Notify other workers if more jobs are ready than this one has room for.
        Return how many are ready."""
        known = len(MIGRATIONS), len(THREAD_MIGRATIONS)
        found = self._rows("wake", self._terms.graph, MOST_WOKEN, *known)
        ((woken, seconds, limit, fires, self.outdated),) = found
        self._has_woken = True
        self._limited = limit is not None
        self._next_wake = inf if seconds is None else monotonic() + seconds
        more = woken == MOST_WOKEN
        if fires and self._scheduler is not None:
            has_moved, made = self._scheduler.fire(self._wire)
            more, woken = more or has_moved, woken + made
        if more:
            self._next_wake = 0.0
        if woken > room:
            self._rows("notify_workers", hash_name(self._terms.graph))
        return int(woken)

    def _claim_values(self, room: int) -> tuple[Any, ...]:
        terms = self._terms
        return terms.graph, self.worker, room, terms.tries - 1, [*self._left], [*terms.versions]

    def _jobs(self, found: list[Any]) -> list[Job]:
        """Return the rows of a claim as jobs, in the order in which they run."""
        found.sort(key=lambda row: (-row[7], row[0]))
        jobs = []
        for id, attempt, begun, *name, task, _, head, was_delivered in (row[:10] for row in found):
            names = JobName(*map(decode_name, name))
            head = None if head is None else decode_name(head)
            job = Job(id, attempt, self.worker, begun, names, task, head, bool(was_delivered))
            jobs.append(job)
        return jobs

    def _try_claim(self, values: tuple[Any, ...]) -> list[Any]:
        for _ in range(CLASHES):
            try:
                if not self._limited:
                    return self._rows("claim", *values)
                with transaction(self._wire, write=True):
                    # Only one claim at a time counts the running jobs; two at once could together
                    # exceed the limit.
                    self._rows("lock_limit", self._terms.graph)
                    return self._rows("claim_within", *values)
            except (errors.UniqueViolation, errors.DeadlockDetected):
                continue  # another worker claimed a job of the same thread
        return []

    def end(self, ended: Sequence[JobEnd]) -> None:
        """Store how runs ended, each only if this worker still holds the job, and notify those that
        wait for it."""
        rows = [tuple(each) for each in ended]
        if rows:
            self._translate(lambda: self._notify_ended(self._rows("end", rows, self.worker), rows))

    def end_and_claim(self, ended: Sequence[JobEnd], room: int) -> list[Job]:
        """Do `end` and `claim` in one transaction and one round trip: either both succeed, or
        neither.

        Raises:
            StorageError: the database refused, or another worker interfered. Each alone may
                succeed.
        """
        rows = [tuple(each) for each in ended]
        if monotonic() >= self._next_wake:
            self._translate(self._wake)
        # A claim under a limit must take the limit's lock first, so one round trip is not enough.
        if not rows or self._limited:
            self.end(ended)
            return self.claim(room)
        return self._translate(lambda: self._end_and_claim(rows, room))

    def _end_and_claim(self, rows: list[tuple[Any, ...]], room: int) -> list[Job]:
        end = (STATEMENTS["end"], rows, self.worker)
        claim = (STATEMENTS["claim_with_ends"], *self._claim_values(room))
        stored, found = self._wire.rows_together(end, claim)
        try:
            self._notify_ended(stored, rows)
        except Error as error:
            assert self._connection is not None
            if self._connection.closed:
                raise
            # The claims are committed; a failed notice, on which nothing relies, must not lose
            # them.
            LOG.warning("those who wait for a job were not notified: %s", error)
        # If it took nothing, there may be a limit, which `_claim` looks up.
        return self._jobs(found) if found else self._claim(room)

    def _notify_ended(self, stored: list[Any], rows: list[tuple[Any, ...]]) -> None:
        """Notify those that wait for a job of its end, and workers of jobs that wait again."""
        self._notify_waiters([id for id, has_waiter in stored if has_waiter])
        if any(status in ("waiting", "left") for _, _, status, *_ in rows):
            self._rows("notify_workers", hash_name(self._terms.graph))
        if times := [run_at for *_, run_at in rows if run_at is not None]:
            self._rows("notify_delay", hash_name(self._terms.graph), None, min(times))
            self._next_wake = 0.0  # this worker may miss the notice: it looks up the time itself

    def _notify_ends(self, freed: Sequence[tuple[int, str, bool]]) -> None:
        """Notify those that wait for a job that has lost its worker, unless the job has returned to
        the queue."""
        self._notify_waiters([
            id for id, state, has_waiter in freed if has_waiter and state != "waiting"
        ])  # fmt: skip

    def _notify_waiters(self, ids: list[int]) -> None:
        if ids:
            self._rows("notify_waiters", ids)

    def begin(self, job: Job) -> bool:
        """Record that a job which was held back is about to run. Return whether this worker still
        holds it."""
        return self._translate(lambda: bool(self._run("begin", job.id, job.attempt, self.worker)))

    def find_cancelled(self) -> set[int]:
        """Return the ids of this worker's jobs that were cancelled."""
        found = self._translate(lambda: self._rows("unwanted", self._terms.graph, self.worker))
        return {id for (id,) in found}

    def still_waiting(self, ids: Collection[int]) -> set[int]:
        """Return the ids of those of these jobs that wait."""
        return {id for (id,) in self._translate(lambda: self._rows("still_waiting", [*ids]))}

    def leave(self) -> None:
        """Record that this worker is about to end, so that no job is blamed for it."""
        self._translate(lambda: self._run("leave", self.worker))

    # -- neighbours --------------------------------------------------------------------------------

    def watch(self) -> int:
        """Check the next workers in the ring: the jobs of dead workers return to the queue.

        Returns:
            How many jobs returned.
        """
        return self._translate(self._watch)

    def _watch(self) -> int:
        self._listen()  # older listeners may be gone, so that it is this worker's turn
        if not self._has_woken:  # no claim has called it, since each found work
            self._wake()
        self._has_woken = False
        freed = self._rows("sweep", self._terms.graph, self.worker)
        while (next := self._rows("watch", self.worker)) and not next[0][1]:
            # A separate statement, after `watch` saw the worker dead: its snapshot has all claims
            # of the dead session.
            freed += self._rows("bury", next[0][0], self._terms.tries)
        self._notify_ends(freed)
        return len(freed)

    def wait(self, wake: Any, seconds: float) -> None:
        """Wait until there is new work for this graph, `wake` can be read, or the time is over."""
        self._translate(lambda: self._wait(wake, seconds))

    def _wait(self, wake: Any, seconds: float) -> None:
        assert self._connection is not None
        pgconn = self._connection.pgconn
        # Not a selector, which takes five system calls where this takes one: a worker waits once
        # per job (P28, P36).
        poller, end = select.poll(), wake.fileno()
        for number in (end, pgconn.socket):
            poller.register(number, select.POLLIN)
        while True:
            # Those that came with the last answer are in libpq's buffer: no socket reports them.
            while (notice := pgconn.notifies()) is not None:
                self._on_notice(notice.extra)
            if self._notified:
                break
            # Plus a millisecond, because poll() truncates fractions and would return too early.
            left = min(seconds, self._next_wake - monotonic() + 0.001)
            ready = [number for number, _ in poller.poll(max(0, left) * 1000)]
            if not ready and monotonic() >= self._next_wake:
                self._wake()
                break
            if not ready or end in ready:
                break
            pgconn.consume_input()
        self._notified = False

    def _on_notice(self, payload: bytes) -> None:
        """Note that there is new work, or when there will be. Any role may send any payload, so one
        that does not name this graph is ignored."""
        graph, delayed, seconds = payload.partition(b"+")
        if graph != self._channel:
            return
        if not delayed:
            self._notified = True
            return
        try:
            left = float(seconds)
        except ValueError:
            return
        if left >= 0:  # False for NaN
            self._next_wake = min(self._next_wake, monotonic() + left)

    # -- the connection ----------------------------------------------------------------------------

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._wire.rows(STATEMENTS[statement], *values)

    def _run(self, statement: str, *values: Any) -> int:
        return self._wire.run(STATEMENTS[statement], *values)

    def _translate(self, work: Callable[[], Found]) -> Found:
        """Do some work, and raise psycopg's errors as ours.

        Raises:
            SessionLostError: the connection broke.
            StorageError: the database refused.
        """
        try:
            return work()
        except Error as error:
            text = str(error).strip()
            # psycopg derives it from OperationalError, but the connection still works.
            is_refusal = isinstance(error, errors.ProgramLimitExceeded)
            if isinstance(error, OperationalError) and not is_refusal:
                assert self._connection is not None
                self._connection.close()
                why = f"the worker's connection to the Postgres server broke: {text}"
                raise SessionLostError(why) from error
            # Only the first line: the rest may show the row, and with it users' data.
            reason = error.diag.message_primary or text
            raise StorageError(f"the Postgres database refused: {reason}") from error
