"""A worker's one session with Postgres: it registers the worker, claims jobs, ends them, watches a neighbour, and hears
of new work. Used by one thread. When it is lost the worker opens another and carries its claims over.

The worker's advisory lock belongs to this session, so it cannot go through a PgBouncer that shares sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from secrets import randbits
from selectors import EVENT_READ, DefaultSelector
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from psycopg import Error, OperationalError, errors
from psycopg.conninfo import conninfo_to_dict

from ..checkpoint.errors import StorageError
from ..checkpoint.sql.postgres_address import without_secrets
from ..checkpoint.sql.postgres_wire import ALIVE, Patient, Wire, shares_sessions, transaction
from .jobs import Ended, Job, Name, lane, text
from .tables import STATEMENTS

Result = TypeVar("Result")

LISTENERS = 8
"""How many workers of a graph, the oldest, hear of new work at once; the others find it when they look. Postgres wakes
every session that listens for every notice, which costs more than the job once there are many."""

CLASHES = 5
"""How often a claim is made anew that met another one, and a lock is chosen anew that another session has."""

ENDING = 0.02
"""Seconds between two looks whether a session that was told to end has ended."""

LOG = logging.getLogger("stategraph.workers")


class SessionLostError(StorageError):
    """The worker's connection broke: its lock is gone, and others may take over what it runs."""


class Terms(NamedTuple):
    """How a worker claims: whose jobs, under which name, and after how many deaths a job is parked."""

    graph: str
    name: str
    tries: int
    timeout: float


class Session:
    """A worker's session with Postgres. `open` connects and registers the worker; before, it holds nothing.

    Args:
        before: the worker's id in a session that was lost: its claims are carried over, those that nobody took.

    Attributes:
        worker: the worker's id.
        kept: (id, attempt) of the claims carried over.
    """

    def __init__(self, conninfo: str, terms: Terms, before: int | None = None) -> None:
        self._conninfo, self._terms, self._before = conninfo, terms, before
        self._limited = self._hears = self._heard = False
        self._mine = str(lane(terms.graph)).encode()
        self._connection: Patient | None = None
        self.worker = 0
        self.kept: set[tuple[int, int]] = set()

    def open(self) -> Session:
        """Connect and register the worker.

        Raises:
            SessionLostError: the server cannot be reached.
            StorageError: it refuses.
        """
        with without_secrets("the Postgres server cannot be reached", self._conninfo, SessionLostError):
            self._connection = self._connected()
        assert self._connection is not None
        # Amid other statements, too. Not by psycopg's own handler: it decodes what any role may have sent.
        self._connection.pgconn.notify_handler = lambda notice: self._hear(notice.extra)
        self._wire = Wire(self._connection)
        try:
            self._do(self._register)
        except BaseException:
            self._connection.close()
            raise
        return self

    def _connected(self) -> Patient:
        timeout = self._terms.timeout
        options: dict[str, Any] = {**ALIVE, **conninfo_to_dict(self._conninfo), "autocommit": True}
        connection = Patient.connect(**{"connect_timeout": max(2, int(timeout)), **options})
        connection.patience = timeout
        return connection

    def _register(self) -> None:
        terms = self._terms
        assert self._connection is not None
        if shares_sessions(self._connection, self._connected):
            raise StorageError(
                "a worker needs a session of its own with the Postgres server, for its lock and for LISTEN, but this "
                "address leads to a pooler that lends sessions by the transaction (PgBouncer's pool_mode): give "
                "workers the server's own address, or one with pool_mode=session. Queues, savers and stores may go "
                "through the pooler"
            )
        self._rows("settle", int(900 * terms.timeout))
        for _ in range(CLASHES):
            if made := self._rows("register", terms.graph, terms.name, randbits(63)):
                break
            LOG.warning("another session holds the lock that this worker was about to take: it takes another one")
        else:
            raise StorageError(f"{CLASHES} advisory locks with random keys were all taken")
        self.worker = made[0][0]
        if self._before is not None:
            self._carry_over(self._before)
        self._listen()

    def _carry_over(self, before: int) -> None:
        """Not before the old session has ended on the server, too: a claim that it still makes would be nobody's."""
        deadline = monotonic() + self._terms.timeout
        while self._rows("end_session", before):
            if monotonic() > deadline:
                raise SessionLostError(f"the worker's old session does not end on the server (worker {before})")
            sleep(ENDING)
        with transaction(self._wire, write=True):
            self._run("drop_worker", before)  # first, as whoever buries it does, lest the two wait for each other
            self.kept = {*self._rows("carry_over", self._terms.graph, before, self.worker)}

    def _listen(self) -> None:
        if not self._hears and self._rows("rank", self.worker, self._terms.graph, LISTENERS)[0][0] < LISTENERS:
            self._run("listen_for_work")
            self._hears = True

    def close(self) -> None:
        """Deregister and give back what is still claimed, if the server is there, and disconnect: the lock goes with
        the connection, and where this could not be done others find it."""
        if self._connection is None:
            return
        try:
            if not self._connection.closed:
                self._give_back()
        except Error:
            pass
        finally:
            self._connection.close()

    def _give_back(self) -> None:
        freed = self._rows("give_back", self._terms.graph, self.worker)
        self._tell([id for id, state, awaited in freed if awaited and state != "waiting"])
        if freed:
            self._rows("tell_workers", lane(self._terms.graph))

    # -- jobs ---------------------------------------------------------------------------------------------

    def claim(self, room: int) -> list[Job]:
        """Take up to so many jobs, those that go first. One of them may have to run alone."""
        return self._do(lambda: self._claim(room))

    def _claim(self, room: int) -> list[Job]:
        terms = self._terms
        values = (terms.graph, self.worker, room, terms.tries - 1)
        found = self._claimed(values)
        if not found:
            limited = bool(self._rows("limit_of", terms.graph))
            if limited > self._limited:
                found = self._claimed(values, limited=True)
            self._limited = limited
        found.sort(key=lambda row: (-row[7], row[0]))
        return [
            Job(id, attempt, self.worker, begun, Name(*map(text, name)), task)
            for id, attempt, begun, *name, task, _, _ in found
        ]

    def _claimed(self, values: tuple[Any, ...], limited: bool = False) -> list[Any]:
        for _ in range(CLASHES):
            try:
                if not (limited or self._limited):
                    return self._rows("claim", *values)
                with transaction(self._wire, write=True):
                    self._rows("claim_alone", self._terms.graph)
                    return self._rows("claim_within", *values)
            except (errors.UniqueViolation, errors.DeadlockDetected):
                continue  # another took a job of the same thread at this very moment
        return []

    def end(self, ended: Sequence[Ended]) -> None:
        """Store how runs ended, each only if the job is still this worker's, and tell those who wait for it."""
        if ended:
            self._do(lambda: self._end([tuple(each) for each in ended]))

    def _end(self, rows: list[tuple[Any, ...]]) -> None:
        found = self._rows("end", rows, self.worker)
        self._tell([id for id, awaited in found if awaited])
        if any(status == "waiting" for _, _, status, _ in rows):
            self._rows("tell_workers", lane(self._terms.graph))

    def _tell(self, ids: list[int]) -> None:
        if ids:
            self._rows("tell_waiters", ids)

    def begin(self, job: Job) -> bool:
        """A job that was kept back is about to run; whether it is still this worker's."""
        return self._do(lambda: bool(self._run("begin", job.id, job.attempt, self.worker)))

    def unwanted(self) -> set[int]:
        """The ids of this worker's jobs that were cancelled."""
        return self._do(lambda: {id for (id,) in self._rows("unwanted", self._terms.graph, self.worker)})

    def leave(self) -> None:
        """Say that this worker is about to end, so that its end is nobody's fault."""
        self._do(lambda: self._run("leave", self.worker))

    # -- others -------------------------------------------------------------------------------------------

    def watch(self) -> int:
        """Look after the next workers in the ring: of those that died the jobs go back to the queue.

        Returns:
            How many jobs did.
        """
        return self._do(self._watch)

    def _watch(self) -> int:
        self._listen()  # some who did may be gone
        freed = self._rows("sweep", self._terms.graph, self.worker)
        while (next := self._rows("watch", self.worker)) and not next[0][1]:
            # In a statement of its own, which sees all that the dead session has claimed.
            freed += self._rows("bury", next[0][0], self._terms.tries)
        self._tell([id for id, state, awaited in freed if awaited and state != "waiting"])
        return len(freed)

    def wait(self, wake: Any, seconds: float) -> None:
        """Until there is news for this graph, `wake` can be read, or the time is over."""
        self._do(lambda: self._wait(wake, seconds))

    def _wait(self, wake: Any, seconds: float) -> None:
        assert self._connection is not None
        pgconn = self._connection.pgconn
        with DefaultSelector() as selector:
            selector.register(wake, EVENT_READ)
            selector.register(pgconn.socket, EVENT_READ)
            while not self._heard:
                ready = [key.fileobj for key, _ in selector.select(seconds)]
                if not ready or wake in ready:
                    break
                pgconn.consume_input()
                while (notice := pgconn.notifies()) is not None:
                    self._hear(notice.extra)
        self._heard = False

    def _hear(self, payload: bytes) -> None:
        """Any role may send any payload; another one than ours means nothing here."""
        self._heard = self._heard or payload == self._mine

    # -- the connection -----------------------------------------------------------------------------------

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._wire.rows(STATEMENTS[statement], *values)

    def _run(self, statement: str, *values: Any) -> int:
        return self._wire.run(STATEMENTS[statement], *values)

    def _do(self, work: Callable[[], Result]) -> Result:
        """With the driver's errors put in our words."""
        try:
            return work()
        except Error as error:
            told = str(error).strip()
            if isinstance(error, OperationalError) and not isinstance(error, errors.ProgramLimitExceeded):
                assert self._connection is not None
                self._connection.close()
                raise SessionLostError(f"the worker's connection to the Postgres server broke: {told}") from error
            reason = error.diag.message_primary or told  # without the row, which it may go on to show
            raise StorageError(f"the Postgres database refused: {reason}") from error
