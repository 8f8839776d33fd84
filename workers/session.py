"""A worker's one session with Postgres: it registers the worker, claims jobs, ends them, watches a neighbour, and hears
of new work. Used by one thread. When it is lost the worker opens another and carries its claims over.

The worker's advisory lock belongs to this session, so it cannot go through a PgBouncer that shares connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NamedTuple, TypeVar

from psycopg import Error, OperationalError, errors
from psycopg.conninfo import conninfo_to_dict

from ..checkpoint.errors import StorageError
from ..checkpoint.sql.wire import ALIVE, Patient, Wire, transaction
from .jobs import Ended, Job, lane
from .tables import STATEMENTS

Result = TypeVar("Result")

LISTENERS = 8
"""How many workers of a graph, the oldest, hear of new work at once; the others find it when they look. Postgres wakes
every session that listens for every notice, which costs more than the job once there are many."""


CLASHES = 5
"""How often a claim is made anew that met another one."""


class SessionLostError(StorageError):
    """The worker's connection broke: its lock is gone, and others may take over what it runs."""


class Terms(NamedTuple):
    """How a worker claims: whose jobs, under which name, and after how many deaths a job is parked."""

    graph: str
    name: str
    tries: int
    timeout: float


class Session:
    """Opens a connection and registers a worker.

    Args:
        before: the worker's id in a session that was lost: its claims are carried over, those that nobody took.

    Attributes:
        worker: the worker's id.
        kept: (id, attempt) of the claims carried over.

    Raises:
        SessionLostError: the server cannot be reached.
    """

    def __init__(self, conninfo: str, terms: Terms, before: int | None = None) -> None:
        self._terms = terms
        self._limited = self._hears = False
        self.kept: set[tuple[int, int]] = set()
        try:
            options: dict[str, Any] = {**ALIVE, **conninfo_to_dict(conninfo), "autocommit": True}
            self._connection = Patient.connect(**{"connect_timeout": max(2, int(terms.timeout)), **options})
        except Error as error:
            raise SessionLostError(f"the Postgres server cannot be reached: {str(error).strip()}") from error
        self._connection.patience = terms.timeout
        self._heard, self._mine = False, str(lane(terms.graph))
        self._connection.add_notify_handler(lambda notice: self._hear(notice.payload))  # amid other statements
        self._wire = Wire(self._connection)
        try:
            self._do(lambda: self._register(before))
        except BaseException:
            self._connection.close()
            raise

    def _register(self, before: int | None) -> None:
        terms = self._terms
        self._rows("settle", int(900 * terms.timeout))
        self.worker: int = self._rows("register", terms.graph, terms.name)[0][0]
        if before is not None:
            self._carry_over(before)
        self._listen()

    def _carry_over(self, before: int) -> None:
        """Not before the old session has ended on the server, too: a claim that it still makes would be nobody's."""
        with transaction(self._wire, write=True):
            self._rows("end_session", before)
            self._rows("outlive", before)
            self.kept = {*self._rows("carry_over", self._terms.graph, before, self.worker)}
            self._run("gone", before)

    def _listen(self) -> None:
        if not self._hears and self._rows("rank", self.worker, self._terms.graph, LISTENERS)[0][0] < LISTENERS:
            self._run("listen_for_work")
            self._hears = True

    def close(self) -> None:
        """Deregister, if the server is there, and disconnect: the lock goes with the connection."""
        try:
            if not self._connection.closed:
                self._run("gone", self.worker)
        except Error:
            pass  # the neighbour will do it
        finally:
            self._connection.close()

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
        found.sort(key=lambda row: (-row[6], row[0]))
        return [
            Job(id, attempt, self.worker, begun, thread_id.decode(), run_id.decode(), task)
            for id, attempt, begun, thread_id, run_id, task, *_ in found
        ]

    def _claimed(self, values: tuple[Any, ...], limited: bool = False) -> list[Any]:
        for _ in range(CLASHES):
            try:
                if not (limited or self._limited):
                    return self._rows("claim", *values)
                with transaction(self._wire, write=True):
                    self._rows("claim_alone", lane(self._terms.graph))
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
        freed = 0
        while True:
            next = self._rows("watch", self.worker)
            if not next or not next[0][1]:
                return freed
            with transaction(self._wire, write=True):  # from a look on that comes after its lock was free
                held = self._rows("hold", next[0][0])[0][0]
                buried = self._rows("bury", next[0][0], self._terms.tries) if held else []
            self._tell([id for id, state, awaited in buried if awaited and state != "waiting"])
            freed += len(buried)

    def wait(self, wake: Any, seconds: float) -> None:
        """Until there is news for this graph, `wake` can be read, or the time is over."""
        self._do(lambda: self._wait(wake, seconds))

    def _wait(self, wake: Any, seconds: float) -> None:
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
                    self._hear(notice.extra.decode())
        self._heard = False

    def _hear(self, payload: str) -> None:
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
            text = str(error).strip()
            if isinstance(error, OperationalError):
                self._connection.close()
                raise SessionLostError(f"the worker's connection to the Postgres server broke: {text}") from error
            raise StorageError(f"the Postgres database refused: {text}") from error
