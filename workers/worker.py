"""`Worker`: claims jobs of one graph from the queue and runs several at once, until it is stopped.

One thread owns the session with Postgres and makes all decisions; each job runs on its own thread
and reports how it ended. `tables` explains what a claim means, `runner` what a run does.

Theory of operation: the deciding thread repeats one round. It stores how runs ended and claims
other jobs in their place, in one transaction where possible; it watches a neighbour, whose jobs
become free once its session ends; then it waits for a notice, or until the next poll. The worker
keeps no state about a claim beyond what the database says: an end counts only with the worker and
the attempt of its claim. So if the session is lost, a new one takes over the claims that it finds
and drops the runs whose jobs other workers have taken. A job whose workers died is a suspect: it
runs alone, so that only this job is blamed for the next death.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.errors import StorageError
from ..checkpoint.integrity import Integrity
from ..checkpoint.sql.postgres_server import SECONDS
from ..graph.builder import StateGraph
from ..pregel.app import Pregel
from ..pregel.drivers.pool import POOL
from ..pregel.observer import AnyObserver
from ..pregel.run.checks import read_observers
from .jobs import Job, JobCodec, JobEnd, queue_name
from .queue import Queue
from .runner import JobRunner
from .saver import WorkerSaver
from .scheduler import Scheduler
from .session import SessionLostError, Terms, WorkerSession

__all__ = ["Worker"]

POLL = 1.0
"""Seconds between two polls for work without a notice, and between two checks of a neighbour."""

TRIES = 3
"""How many workers may die at the same step of a job before it is parked."""

LOG = logging.getLogger("stategraph.workers")

Ended = tuple[Job | None, JobEnd]
"""How a run ended. The job is None if nobody ran the claim."""


class Worker:
    """A worker that runs jobs of a graph. Start any number, on any machines.

    Args:
        graph: the graph to run. Without a checkpointer it gets a `PostgresSaver` on the same
            database; if it has one, all workers must share it.
        conninfo: a connection string or URL of the database that holds the queue.
        name: the name of the queue; the graph's own by default.
        label: the name shown in lists of workers.
        concurrency: how many jobs to run at once.
        poll: seconds between two polls for work without a notice, and for dead workers.
        tries: how many workers may die at the same step of a job before it is parked.
        integrity: guards the rows of the queue and of the checkpointer that the graph is given;
            `Queue` needs the same.
        timeout: seconds to wait for a connection, for another session's lock, or for the answer to
            one statement.
        observer: an `Observer` of its runs, the name of one ("module:name"), or several.
        serves: further versions of the graph whose threads it continues. A graph with a version
            (`compile(version=...)`) leaves those of other versions alone.

    Raises:
        TypeError: `graph` is not a compiled graph.
        ValueError: the graph is unnamed and no name is given, its checkpointer is in memory, or a
            number is not above 0.
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
        observer: AnyObserver | Sequence[AnyObserver] | None = None,
        serves: Sequence[str] = (),
    ) -> None:
        check_runnable(graph)
        version = graph.program.version
        if serves and version is None:
            raise ValueError(
                "serves= needs a graph with a version of its own: compile(version=...)"
            )
        if observer is not None:
            observers = (*read_observers(observer), *graph.observers)
            graph = graph.copy({"observers": observers})
        if concurrency < 1 or tries < 1 or not poll > 0:
            raise ValueError(
                "concurrency, tries and poll must be above 0, "
                f"got {concurrency}, {tries} and {poll}"
            )
        self._conninfo = conninfo
        label = label or socket.gethostname()
        versions = ("",) if version is None else (version, *serves)
        self._terms = Terms(queue_name(name or graph), label, tries, timeout, versions)
        self._codec = JobCodec(graph.serde, integrity or Integrity())
        self._graph, self._concurrency, self._poll = graph, concurrency, poll
        self._running: set[Job] = set()
        # A claimed job whose workers have died. It runs when nothing else does, so that no other
        # job is blamed.
        self._suspect: Job | None = None
        # The ids of jobs that this worker cannot run: it does not claim them again.
        self._left: set[int] = set()
        # Ends that are still to be stored, appended by the threads of jobs.
        self._ended: deque[Ended] = deque()
        self._stopping = self._has_left = False
        self._wake_sender: socket.socket | None = None

    # -- public API --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._terms.graph

    def limit(self, most: int | None) -> None:
        """Limit how many runs of the graph may execute at once, over all workers; None for no
        limit."""
        with Queue.from_conn_string(self._conninfo, self.name, pool_size=1) as queue:
            queue.limit(most)

    def run(self) -> None:
        """Work until `stop` is called and every run has ended or reached the end of its superstep.

        Raises:
            StorageError: the database cannot be reached at the start, or refuses.
        """
        terms = self._terms
        with ExitStack() as stack:
            queue = stack.enter_context(Queue.from_conn_string(
                self._conninfo,
                terms.graph,
                serde=self._codec.serde,
                integrity=self._codec.integrity,
                pool_size=self._concurrency + 1,
                timeout=terms.timeout,
            ))  # fmt: skip
            queue.setup()
            self._running, self._suspect, self._has_left = set(), None, False
            self._left = set()
            self._wake_sender, self._wake_receiver = socket.socketpair()
            for end in (self._wake_sender, self._wake_receiver):
                stack.callback(end.close)
                end.setblocking(False)
            graph = self._with_saver(queue)
            self._runner = JobRunner(graph, self._codec, queue.bind, queue.chunk_table())
            stack.callback(self._runner.close)
            # Registered before the session claims anything: however this ends, it is closed and
            # returns its claims.
            self._session = self._new_session()
            stack.callback(lambda: self._session.close())
            stack.callback(self._abandon)
            self._session.open()
            while True:
                opened = time.monotonic()
                try:
                    return self._work(self._session)
                except SessionLostError as lost:
                    LOG.warning("worker %s reconnects: %s", terms.name, lost)
                    if time.monotonic() - opened < self._poll:  # e.g. the server's disk is full
                        time.sleep(min(self._poll, 1.0))
                    self._reconnect()

    def _new_session(self, before: int | None = None) -> WorkerSession:
        scheduler = Scheduler(self._terms.graph, self._codec)
        return WorkerSession(self._conninfo, self._terms, before, scheduler, self._left)

    def _abandon(self) -> None:
        """Stop the remaining runs, because the worker failed: other workers continue them."""
        for job in self._running:
            job.lost = True
            job.control.request_drain("the worker failed")

    def _with_saver(self, queue: Queue) -> Pregel:
        """Return the graph with a checkpointer, which shares the connections of the queue."""
        saver = WorkerSaver(
            queue.pool,
            serde=self._graph.serde,
            integrity=self._codec.integrity,
            timeout=self._terms.timeout,
        )
        # Even if the graph has another saver: the statement `bury` reads a thread's progress from
        # these tables.
        saver.setup()
        if self._graph.checkpointer:
            return self._graph
        return self._graph.copy({"checkpointer": saver})

    def stop(self) -> None:
        """Pause each run at the end of its superstep, return its job to the queue, and end. May be
        called from any thread or a signal handler."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        try:
            if self._wake_sender is not None:
                self._wake_sender.send(b"!")
        except OSError:
            pass  # the buffer is full, so the receiver wakes up anyway; or the worker has ended

    def _clear_wake(self) -> None:
        try:
            while self._wake_receiver.recv(4096):
                pass
        except BlockingIOError:
            pass

    # -- the thread that decides -------------------------------------------------------------------

    def _work(self, session: WorkerSession) -> None:
        looked = 0.0
        while True:
            if self._stopping:
                self._store_ends(session)
                if not self._running and self._suspect is None:
                    return
                self._drain(session)
            else:
                if not self._exchange(session):
                    self._store_ends(session)
                    self._claim(session)
                self._begin_suspect(session)
            now = time.monotonic()
            if now - looked >= self._poll:
                looked = now
                freed = session.watch()
                if session.outdated and not self._stopping:
                    LOG.error(
                        "worker %s takes no more jobs: a newer stategraph has changed the tables "
                        "of the queue. Update stategraph and start it again",
                        self._terms.name,
                    )
                    self.stop()
                self._forget_left(session)
                if self._running:
                    self._cancel(session.find_cancelled())
                if freed:
                    continue
            if not self._ended:
                session.wait(self._wake_receiver, self._poll)
                self._clear_wake()

    def _forget_left(self, session: WorkerSession) -> None:
        """Forget jobs that were left to others and do not wait any more."""
        if left := self._left - {job.id for job in self._running}:  # those are to be given back
            self._left -= left - session.still_waiting(left)

    def _store_ends(self, session: WorkerSession) -> None:
        """Store how runs ended. Ends leave the list only after that: if the session is lost
        meanwhile, the next one tries again, and the claim's attempt ensures that each is stored
        once."""
        ended = [*self._ended]
        counting = _counting(ended)
        if counting:
            self._end(session, counting)
        self._drop_ended(ended)

    def _drop_ended(self, ended: Sequence[Ended]) -> None:
        for job, _ in ended:
            self._ended.popleft()
            if job is not None:
                self._running.discard(job)
            if job is self._suspect:
                self._suspect = None

    def _exchange(self, session: WorkerSession) -> bool:
        """Store how runs ended and claim other jobs in their place, in one transaction. Return
        whether that was done; if not, each must be done alone."""
        ended = [*self._ended]
        if not ended or self._suspect is not None:
            return False
        room = self._concurrency - len(self._running) + sum(job is not None for job, _ in ended)
        try:
            claimed = session.end_and_claim([end for _, end in _counting(ended)], room)
        except SessionLostError:
            raise
        except StorageError:
            return False
        self._drop_ended(ended)
        self._take(session, claimed)
        return True

    def _end(self, session: WorkerSession, ended: Sequence[Ended]) -> None:
        """Store these ends. If the database refuses them together, store each alone, so that one
        bad outcome does not hold up the others."""
        try:
            session.end([end for _, end in ended])
        except SessionLostError:
            raise
        except StorageError as refused:
            if len(ended) > 1:
                for each in ended:
                    self._end(session, [each])
                return
            ((job, end),) = ended
            if job is None or end.outcome is None:
                raise
            LOG.error("the outcome of %s cannot be stored: %s", job.name, refused)
            outcome = self._runner.encode_error(job, refused)
            session.end([end._replace(status="failed", outcome=outcome)])

    def _claim(self, session: WorkerSession) -> None:
        """Claim as many jobs as there is room for, and begin them."""
        room = self._concurrency - len(self._running)
        if not room or self._suspect is not None:
            return
        self._take(session, session.claim(room))

    def _take(self, session: WorkerSession, claimed: Sequence[Job]) -> None:
        """Begin the claimed jobs. Of those that must run alone, keep one and return the others."""
        suspects = [job for job in claimed if not job.begun]
        session.end([JobEnd(job.id, job.attempt, "waiting") for job in suspects[1:]])
        self._suspect = suspects[0] if suspects else None
        for job in claimed:
            if job.begun:
                self._begin(job)

    def _begin_suspect(self, session: WorkerSession) -> None:
        """Begin the job that must run alone, once nothing else runs."""
        if self._suspect is None or self._running:
            return
        if session.begin(self._suspect):
            self._suspect.begun = True
            self._begin(self._suspect)
        else:  # another worker has taken it
            self._suspect = None

    def _begin(self, job: Job) -> None:
        self._running.add(job)
        POOL.submit(partial(self._run_job, job))

    def _run_job(self, job: Job) -> None:
        end = self._runner.run(job)
        if job.left:  # noted before the job is given back
            self._left.add(job.id)
        self._ended.append((job, end))
        self._wake()

    def _drain(self, session: WorkerSession) -> None:
        if not self._has_left:
            session.leave()
            self._has_left = True
        suspect = self._suspect
        if suspect is not None and not suspect.begun:
            session.end([JobEnd(suspect.id, suspect.attempt, "waiting")])
            self._suspect = None
        for job in self._running:
            job.control.request_drain("the worker was stopped")

    def _cancel(self, ids: set[int]) -> None:
        for job in self._running:
            if job.id in ids:
                job.control.request_drain("the job was cancelled")
                self._runner.cut_off(job)

    def _reconnect(self) -> None:
        """Open a new session, and continue with the claims that it has taken over."""
        lost = self._session
        lost.close()
        while True:
            session = self._session = self._new_session(lost.worker)
            try:
                session.open()
                break
            except SessionLostError:
                if self._stopping:
                    raise
                time.sleep(min(self._poll, 1.0))
        self._has_left = False
        self._keep_claims(session)

    def _keep_claims(self, session: WorkerSession) -> None:
        """Stop the runs whose jobs other workers have taken: their threads have another writer."""
        kept = session.kept
        mine = {*self._running}
        if self._suspect is not None:
            mine.add(self._suspect)
        for job in mine:
            if (job.id, job.attempt) in kept and not job.lost:
                kept.remove((job.id, job.attempt))
                job.worker = session.worker
            else:
                job.lost = True
                job.control.request_drain("another worker has the job")
        if self._suspect is not None and self._suspect.lost and not self._suspect.begun:
            self._suspect = None
        # The rest are claims whose answer was lost with the session: nobody runs them.
        self._ended.extend((None, JobEnd(id, attempt, "waiting")) for id, attempt in kept)


def _counting(ended: Sequence[Ended]) -> list[Ended]:
    """Return the ends without those of runs that were lost. The claim alone cannot tell them apart:
    a server that crashed forgets a claim, and this worker's next one may have the same attempt
    number."""
    return [(job, end) for job, end in ended if job is None or not job.lost]


def check_runnable(graph: Any) -> None:
    """Refuse a graph that other workers could not continue.

    Raises:
        TypeError: it is not compiled.
        ValueError: its threads end with this process.
    """
    if not isinstance(graph, Pregel):
        hint = ": compile() it first" if isinstance(graph, StateGraph) else ""
        raise TypeError(f"graph must be a compiled graph, got {graph!r}{hint}")
    saver = graph.checkpointer
    if isinstance(saver, BaseCheckpointSaver) and saver.in_memory:
        raise ValueError(
            f"{graph.name!r} stores its threads in memory, where no other worker finds them: "
            "compile it without a checkpointer, and each worker adds one on the queue's database"
        )
