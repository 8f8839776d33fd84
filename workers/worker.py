"""`Worker`: takes jobs of one graph from the queue and runs them, several at once, until it is told to stop.

One thread owns the session with Postgres and decides; each job runs on a thread of its own and says how it ended. What
a claim means is in `tables`, what a run does in `runs`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.errors import StorageError
from ..checkpoint.integrity import Integrity
from ..checkpoint.postgres import PostgresSaver
from ..checkpoint.sql.postgres_server import SECONDS
from ..graph.builder import StateGraph
from ..pregel.app import Pregel
from .jobs import Ended, Form, Job, queue_of
from .queue import Queue
from .runs import Runs
from .session import Session, SessionLostError, Terms

__all__ = ["Worker"]

POLL = 1.0
"""Seconds between two looks for work that nobody told of, and after a neighbour."""

TRIES = 3
"""Deaths of its workers, at the same step, after which a job is parked."""

LOG = logging.getLogger("stategraph.workers")


class Worker:
    """Runs jobs of a graph. Start any number, on any machines.

    Args:
        graph: what to run. Without a saver it gets a `PostgresSaver` on the same database; if it has one, all workers
            must share it.
        conninfo: a connection string or URL of the database that holds the queue.
        name: of the queue; the graph's own by default.
        label: what people see in lists of workers.
        concurrency: how many jobs to run at once.
        poll: seconds between two looks for work that nobody told of, and after dead workers.
        tries: deaths of workers, at the same step, after which a job is parked.
        integrity: guards the rows of the queue and of the saver that the graph is given; `Queue` needs the same.
        timeout: seconds to wait for a connection, for another session's lock, or for the answer to one statement.

    Raises:
        TypeError: it is no compiled graph.
        ValueError: it has no name of its own and none is given, its saver lives in memory, or a number is not above 0.
    """

    def __init__(
        self,
        graph: Pregel,
        conninfo: str,
        *,
        name: str | None = None,
        label: str | None = None,
        concurrency: int = 4,
        poll: float = POLL,
        tries: int = TRIES,
        integrity: Integrity | None = None,
        timeout: float = SECONDS,
    ) -> None:
        check_runnable(graph)
        if concurrency < 1 or tries < 1 or not poll > 0:
            raise ValueError(f"concurrency, tries and poll are above 0, not {concurrency}, {tries} and {poll}")
        self._conninfo = conninfo
        self._terms = Terms(queue_of(name or graph), label or socket.gethostname(), tries, timeout)
        self._form = Form(graph.serde, integrity or Integrity())
        self._graph, self._concurrency, self._poll = graph, concurrency, poll
        self._running: set[Job] = set()
        self._alone: Job | None = None
        self._ended: deque[tuple[Job | None, Ended]] = deque()
        self._stopping = self._left = False
        self._ring: socket.socket | None = None

    # -- faces --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Of the queue."""
        return self._terms.graph

    def limit(self, most: int | None) -> None:
        """How many runs of the graph there may be at once, over all workers; None for any number."""
        with Queue.from_conn_string(self._conninfo, self.name, pool_size=1) as queue:
            queue.limit(most)

    def run(self) -> None:
        """Work until `stop` is called, and what runs by then has ended or reached the end of its superstep.

        Raises:
            StorageError: the database cannot be reached at the start, or refuses.
        """
        terms = self._terms
        with ExitStack() as stack:
            queue = stack.enter_context(Queue.from_conn_string(
                self._conninfo, terms.graph, pool_size=self._concurrency + 1, timeout=terms.timeout
            ))  # fmt: skip
            queue.setup()
            self._running, self._alone, self._left = set(), None, False
            self._ring, self._bell = socket.socketpair()
            for end in (self._ring, self._bell):
                stack.callback(end.close)
                end.setblocking(False)
            self._runs = Runs(self._kept(queue), self._form, queue.bind)
            stack.callback(self._runs.close)
            # However this ends: the session is in its place before it claims anything, and gives back what it has.
            self._session = Session(self._conninfo, terms)
            stack.callback(lambda: self._session.close())
            stack.callback(self._abandon)
            self._session.open()
            while True:
                opened = time.monotonic()
                try:
                    return self._work(self._session)
                except SessionLostError as lost:
                    LOG.warning("worker %s connects again: %s", terms.name, lost)
                    if time.monotonic() - opened < self._poll:  # e.g. the server's disk is full
                        time.sleep(min(self._poll, 1.0))
                    self._reconnect()

    def _abandon(self) -> None:
        """Whatever still runs, because this failed, goes on elsewhere."""
        for job in self._running:
            job.lost = True
            job.control.request_drain("the worker failed")

    def _kept(self, queue: Queue) -> Pregel:
        """The graph with a saver, which shares the connections of the queue."""
        integrity, timeout = self._form.integrity, self._terms.timeout
        saver = PostgresSaver(queue.pool, serde=self._graph.serde, integrity=integrity, timeout=timeout)
        saver.setup()  # in any case: how far a thread has come is read off its tables
        if self._graph.checkpointer:
            return self._graph
        return self._graph.copy({"checkpointer": saver})

    def stop(self) -> None:
        """Let runs end at their next superstep, give their jobs back, and end. From any thread, or a signal handler."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        try:
            if self._ring is not None:
                self._ring.send(b"!")
        except OSError:
            pass  # it rings already, or nobody hears it

    def _silence(self) -> None:
        try:
            while self._bell.recv(4096):
                pass
        except BlockingIOError:
            pass

    # -- the thread that decides --------------------------------------------------------------------------

    def _work(self, session: Session) -> None:
        looked = 0.0
        while True:
            self._settle(session)
            if self._stopping:
                if not self._running and self._alone is None:
                    return
                self._drain(session)
            else:
                self._take(session)
            now = time.monotonic()
            if now - looked >= self._poll:
                looked = now
                freed = session.watch()
                self._cancel(session.unwanted() if self._running else set())
                if freed:
                    continue
            if not self._ended:
                session.wait(self._bell, self._poll)
                self._silence()

    def _settle(self, session: Session) -> None:
        """Store how runs ended. What could not be stored is tried again: it is stored once."""
        ended = [*self._ended]
        if ended:
            self._end(session, ended)
        for job, _ in ended:
            self._ended.popleft()
            if job is not None:
                self._running.discard(job)
            if job is self._alone:
                self._alone = None

    def _end(self, session: Session, ended: Sequence[tuple[Job | None, Ended]]) -> None:
        """Each by itself if the database refuses them together: one outcome that it does not take stops no other."""
        try:
            session.end([how for _, how in ended])
        except SessionLostError:
            raise
        except StorageError as refused:
            if len(ended) > 1:
                for each in ended:
                    self._end(session, [each])
                return
            ((job, how),) = ended
            if job is None or how.outcome is None:
                raise
            LOG.error("the outcome of %s cannot be stored: %s", job.name, refused)
            session.end([how._replace(status="failed", outcome=self._runs.told(job, refused))])

    def _take(self, session: Session) -> None:
        """Claim as many jobs as there is room for, and begin them. One that workers died of runs when nothing else
        does, so that its death is nobody else's."""
        room = self._concurrency - len(self._running)
        if room and self._alone is None:
            claimed = session.claim(room)
            alone = [job for job in claimed if not job.begun]
            session.end([Ended(job.id, job.attempt, "waiting") for job in alone[1:]])
            self._alone = alone[0] if alone else None
            for job in claimed:
                if job.begun:
                    self._begin(job)
        if self._alone is not None and not self._running:
            if session.begin(self._alone):
                self._alone.begun = True
                self._begin(self._alone)
            else:
                self._alone = None

    def _begin(self, job: Job) -> None:
        self._running.add(job)
        threading.Thread(target=self._carry, args=(job,), name="stategraph-job", daemon=True).start()

    def _carry(self, job: Job) -> None:
        self._ended.append((job, self._runs.run(job)))
        self._wake()

    def _drain(self, session: Session) -> None:
        if not self._left:
            session.leave()
            self._left = True
        if self._alone is not None and not self._alone.begun:
            session.end([Ended(self._alone.id, self._alone.attempt, "waiting")])
            self._alone = None
        for job in self._running:
            job.control.request_drain("the worker was stopped")

    def _cancel(self, ids: set[int]) -> None:
        for job in self._running:
            if job.id in ids:
                job.control.request_drain("the job was cancelled")

    def _reconnect(self) -> None:
        """Open a new session. Runs whose jobs others took meanwhile are stopped: their thread has another writer."""
        lost = self._session
        lost.close()
        while True:
            session = self._session = Session(self._conninfo, self._terms, lost.worker)
            try:
                session.open()
                break
            except SessionLostError:
                if self._stopping:
                    raise
                time.sleep(min(self._poll, 1.0))
        self._left = False
        kept = session.kept
        for job in {*self._running, *([self._alone] if self._alone else [])}:
            if (job.id, job.attempt) in kept and not job.lost:
                kept.remove((job.id, job.attempt))
                job.worker = session.worker
            else:
                job.lost = True
                job.control.request_drain("another worker has the job")
        if self._alone is not None and self._alone.lost and not self._alone.begun:
            self._alone = None
        # Claims whose answer was lost on the way.
        self._ended.extend((None, Ended(*unknown, "waiting")) for unknown in kept)


def check_runnable(graph: Any) -> None:
    """A graph that any worker may go on with.

    Raises:
        TypeError: it is not compiled.
        ValueError: its threads end with this process.
    """
    if not isinstance(graph, Pregel):
        hint = ": compile() it first" if isinstance(graph, StateGraph) else ""
        raise TypeError(f"a worker runs a compiled graph, not {graph!r}{hint}")
    saver = graph.checkpointer
    if isinstance(saver, BaseCheckpointSaver) and saver.in_memory:
        raise ValueError(
            f"{graph.name!r} keeps its threads in memory, where no other worker finds them: compile it without a "
            "checkpointer, and each worker gives it one on the queue's database"
        )
