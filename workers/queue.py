"""`Queue`: submits jobs to the workers of a graph and manages them. Workers run them (`worker`);
`waiting` waits for results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from ..checkpoint.errors import StorageError
from ..checkpoint.integrity import Integrity
from ..checkpoint.records import check_names
from ..checkpoint.serde import Serializer
from ..checkpoint.sql.postgres_server import POOL_SIZE, SECONDS, ConnectionLostError, Target
from ..pregel.app import Pregel
from ..pregel.task.spans import EVERYWHERE
from ..pregel.types import AnyConfig, Durability, Multitask, StreamMode
from .care import QueueCare
from .chunks import ChunkTable, StreamChunk
from .database import JobDatabase
from .delays import Due, When, check_when, read_debounce, read_due
from .jobs import (
    Job,
    JobCodec,
    JobResult,
    check_call,
    check_config,
    check_durability,
    check_priority,
    check_thread,
    decode_name,
    hash_name,
    queue_name,
)
from .listener import Listener
from .schedules import Missed, ScheduleKeeper
from .submission import Submitter, read_fairness_key
from .tables import STATEMENTS
from .turns import check_multitask, list_awaited, submit_in_turn
from .waiting import ResultWaiter


class Queue(QueueCare):
    """The jobs of one graph, in a Postgres database that its workers share.

    Submit inputs to threads here; workers (`python -m stategraph work`) run them on any machines.
    Jobs of one thread run one after the other: higher priority first, then in the order in which
    the database received them. A queue is thread-safe. It creates its tables on first use. There is
    no broker but Postgres.

    Args:
        conn: a connection string or URL, or a `ConnectionPool`. `result` waits on a separate
            connection, for which it needs the string; with a pool it polls once a second.
        graph: the compiled graph, which must be named, or the name under which its workers run. A
            graph supplies the types that its state may hold; a name needs `serde` if they are not
            registered.
        serde: serializes inputs and outcomes; the graph's by default. Strict: never pickle.
        integrity: guards the stored rows, a checksum by default; the workers need the same.
        durability: how often the runs of jobs submitted here store, unless `submit` says otherwise.
            None for the workers' default, "sync".
        pool_size: how many connections may be open at once.
        timeout: seconds to wait for a connection, another session's lock, or a statement's answer.

    Raises:
        StorageError: the string is not a connection string.
        TypeError, ValueError: `conn`, `graph` or `durability` is invalid.
    """

    def __init__(
        self,
        conn: Target,
        graph: Pregel | str,
        *,
        serde: Serializer | None = None,
        integrity: Integrity | None = None,
        durability: Durability | None = None,
        pool_size: int = POOL_SIZE,
        timeout: float = SECONDS,
    ) -> None:
        known = graph if isinstance(graph, Pregel) else None
        self.graph: str = queue_name(graph)
        if serde is None:
            serde = known.serde if known is not None else Serializer()
        self._codec = JobCodec(serde, integrity or Integrity())
        self._database = JobDatabase(conn, pool_size=pool_size, timeout=timeout)
        self._listener = Listener(conn if isinstance(conn, str) else None)
        self._waiter = ResultWaiter(self._database, self.graph, self._codec, self._listener)
        self._durability = check_durability(durability)
        self._submitter = Submitter(self._database, self.graph, self._codec)
        self._schedules = ScheduleKeeper(self._database, self.graph, self._codec)

    @classmethod
    @contextmanager
    def from_conn_string(
        cls, conn_string: str, graph: Pregel | str, **options: Any
    ) -> Iterator[Queue]:
        """Open a queue for the duration of a `with` block, then close it; options as for the
        class."""
        queue = cls(conn_string, graph, **options)
        try:
            yield queue
        finally:
            queue.close()

    def setup(self) -> None:
        """Create the tables or migrate them. The first use of the queue does so too; further calls
        do nothing.

        Raises:
            StorageError: the server cannot be reached, refuses, or its tables were made by a later
                version.
        """
        self._database.setup()

    def close(self) -> None:
        """Close the connections, unless the caller has provided them."""
        self._listener.close()
        self._database.close()
        self._end_threads()

    # -- submit jobs -------------------------------------------------------------------------------

    def submit(
        self,
        thread_id: str,
        input: Any,
        *,
        priority: int = 0,
        fairness_key: str = "",
        run_id: str | None = None,
        config: AnyConfig | None = None,
        context: Any = None,
        durability: Durability | None = None,
        when: When | None = None,
        multitask: Multitask = "enqueue",
        interrupt_before: Literal["*"] | Sequence[str] | None = None,
        interrupt_after: Literal["*"] | Sequence[str] | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] | None = None,
        subgraphs: bool = False,
    ) -> str:
        """Submit a run of the graph on a thread; some worker runs it as `invoke` would.

        Args:
            input: new input; None to continue where a run failed; a `Command` to answer, update or
                redirect.
            priority: higher ones go first, in the thread and among threads.
            fairness_key: whose job it is, such as a user or a tenant. Among threads, the jobs of
                one priority take turns by this key, so that one user's many jobs do not delay
                another's first. Jobs without a key take no turns: they go first.
            run_id: the job's id, unique within its thread. A job submitted twice under one id runs
                once. By default a new UUID.
            config: tags, metadata, limits, other `configurable` keys.
            context: handed to nodes as `runtime.context`.
            durability: how often the run stores; the queue's by default. "sync": after each
                superstep; if the worker dies, the job continues from there. "async": the same,
                while the next superstep runs; one superstep may be repeated. "exit": only at the
                end; if the worker dies, the job starts again from its input, with other idempotency
                keys.
            when: a later time, or how long to wait for a newer input; at once by default.
            multitask: what happens to the thread's open jobs (waiting, running, sleeping or
                parked), of whatever graph. "enqueue": they go first. "reject": if there is one,
                `ThreadBusyError`. "interrupt": they are cancelled; a running one ends with its
                superstep, and this input drops what is pending. "rollback": the same, and this job
                starts from the checkpoint before their first input; their steps stay in the
                history, and their side effects are not undone.
            interrupt_before, interrupt_after: as for `invoke`.
            stream_mode: the stream modes to store during the run, for `stream`; none by default.
            subgraphs: also store what subgraphs send.

        Returns:
            The run id.

        Raises:
            UnserializableError: the input cannot be stored; names the place.
            ValueError: a job of another graph has this `run_id` on this thread, `durability` is
                invalid, or `when` is combined with `multitask`, or `When(debounce=)` with `run_id`.
            ThreadBusyError: see `multitask`; nothing is submitted.
            ConnectionLostError: the answer was lost, so the job may or may not be submitted.
                Submit it again under the same `run_id`, which is in the error's note.
            StorageError: the database refused or is out of reach; nothing is submitted.
        """
        check_multitask(multitask)
        when = check_when(when, run_id, multitask)
        wait = read_debounce(when)
        call = check_call(interrupt_before, interrupt_after, stream_mode, subgraphs)
        how = {**self._check_how(priority, config, context, durability), **call}
        how |= read_fairness_key(fairness_key)
        named = str(uuid4()) if run_id is None else run_id
        if multitask != "enqueue":
            check_thread(thread_id)
            check_names(named)
            job = (thread_id, named, priority, {"input": input, **how})
            self._database.retry_once(
                submit_in_turn, self._database, self._submitter, job, multitask
            )
        elif wait is not None:
            check_thread(thread_id)
            return self._submitter.debounce(thread_id, priority, {"input": input, **how}, wait)
        else:
            self._submit([(thread_id, input)], [named], priority, how, read_due(when))
        return named

    def submit_many(
        self,
        inputs: Iterable[tuple[str, Any]],
        *,
        priority: int = 0,
        fairness_key: str = "",
        run_ids: Sequence[str] | None = None,
        config: AnyConfig | None = None,
        context: Any = None,
        durability: Durability | None = None,
        when: When | None = None,
    ) -> list[str]:
        """Submit many pairs of a thread id and an input in one statement: all or none.

        Raises:
            ValueError: the numbers of run ids and inputs differ, or `when` debounces.
        """
        pairs = [*inputs]
        named = [str(uuid4()) for _ in pairs] if run_ids is None else [*run_ids]
        if len(named) != len(pairs):
            raise ValueError(f"submit_many needs {len(pairs)} run ids, got {len(named)}")
        if (when := check_when(when)).debounce is not None:
            raise ValueError("submit_many cannot debounce: submit the inputs one by one")
        how = self._check_how(priority, config, context, durability)
        how |= read_fairness_key(fairness_key)
        self._submit(pairs, named, priority, how, read_due(when))
        return named

    def _submit(
        self,
        pairs: Sequence[tuple[str, Any]],
        named: Sequence[str],
        priority: int,
        how: dict[str, Any],
        due: Due,
    ) -> None:
        rows = []
        for (thread_id, input), run_id in zip(pairs, named, strict=True):
            check_thread(thread_id)
            check_names(run_id)
            rows.append(self._submitter.row(thread_id, run_id, priority, {"input": input, **how}))
        try:
            self._submitter.insert(rows, due)
        except ConnectionLostError as lost:
            if len(named) == 1:
                lost.add_note(f"Submit it again with run_id={named[0]!r}: the job runs once")
            raise

    def _check_how(
        self, priority: int, config: AnyConfig | None, context: Any, durability: Durability | None
    ) -> dict[str, Any]:
        """Check the options with which jobs run; return them as they are stored beside the
        inputs."""
        check_priority(priority)
        how = check_durability(durability) or self._durability
        if EVERYWHERE:  # trace context travels with the job
            from ..pregel.task.observers import extend_job

            config = extend_job(config)
        return {"config": check_config(config), "context": context, "durability": how}

    async def asubmit(self, thread_id: str, input: Any, **options: Any) -> str:
        """`submit` for coroutines."""
        return await self._acall(partial(self.submit, thread_id, input, **options))

    def replaced_by(self, run_id: str, *, thread_id: str) -> list[str]:
        """Return the run ids of the jobs that a job of this graph has taken back:
        `submit(multitask="rollback")`. They may be of any graph."""
        rows = self._database.look_up("task", self.graph, run_id, thread_id)
        return self._submitter.read_instead_of(rows, thread_id, run_id)

    def cancel(self, run_id: str, *, thread_id: str | None = None) -> bool:
        """Cancel a job of this graph. A job that is running stops before its next superstep, or at
        once if the graph is async; what it has stored stays.

        Args:
            thread_id: the job's thread; needed if jobs of several threads have this run id.

        Returns:
            Whether the job was still open.

        Raises:
            ValueError: jobs of several threads have this run id, and no thread is named.
        """
        id = self._id_of(run_id, thread_id)
        with self._database.statements() as wire:
            found = wire.rows(STATEMENTS["cancel"], id)
            wire.run(STATEMENTS["notify_waiters"], list_awaited(found))
        return bool(found)

    def retry(self, run_id: str, *, thread_id: str | None = None) -> bool:
        """Retry a parked job of this graph, as if no worker had died running it. Return whether
        there is such a job.

        Raises:
            ValueError: jobs of several threads have this run id, and no thread is named.
        """
        id = self._id_of(run_id, thread_id)
        with self._database.statements() as wire:
            found = wire.rows(STATEMENTS["retry"], id)
            for (graph,) in found:
                wire.run(STATEMENTS["notify_workers"], hash_name(decode_name(graph)))
        return bool(found)

    def _id_of(self, run_id: str, thread_id: str | None) -> int:
        """Return the number of a job of this graph; 0, which no job has, if there is none."""
        mine = [
            (row[0], decode_name(row[2]))
            for row in self._database.look_up("named", run_id)
            if decode_name(row[1]) == self.graph and thread_id in (None, decode_name(row[2]))
        ]
        if len(mine) > 1:
            threads = ", ".join(repr(thread) for _, thread in mine)
            why = f"jobs of the threads {threads} have the run_id {run_id!r}"
            raise ValueError(f"{why}: pass thread_id as well")
        return mine[0][0] if mine else 0

    # -- for workers -------------------------------------------------------------------------------

    def of_graph(self, name: str) -> Queue:
        """Return the queue of another graph in the same database. It shares the connections of this
        queue and is open as long as this one."""
        self.setup()
        return Queue(self.pool, name, serde=self._codec.serde, integrity=self._codec.integrity)

    @property
    def pool(self) -> Target:
        """The connection pool, for a checkpointer on the same database. Open once `setup` was
        called."""
        return self._database.pool

    def chunk_table(self) -> ChunkTable:
        """Return the table that stores the streams of the queue's jobs."""
        return ChunkTable(self._database, self._codec)

    def bind(self, job: Job, task: bytes) -> None:
        """Replace the stored task of a job.

        Raises:
            StorageError: the job is not under this claim: another worker has it, or the worker is
                about to carry its claims over to a new session.
        """
        if not self._database.run("bind", job.id, job.attempt, job.worker, task):
            raise StorageError(f"{job.name} is not under the claim with which it was begun")

    # -- schedules ---------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        cron: str,
        graph_input: Any,
        *,
        tz: str = "UTC",
        missed: Missed = "one",
        thread_id: str | None = None,
        priority: int = 0,
        config: AnyConfig | None = None,
        context: Any = None,
        durability: Durability | None = None,
    ) -> datetime:
        """Create or change the schedule of this name, by which workers submit a job at each planned
        time. The job's run id is the name, "@" and the planned time in UTC.

        Args:
            cron: minute, hour, day of the month, month, day of the week, as in a crontab.
            graph_input: as for `submit`, as are the arguments that are not named here.
            tz: the time zone of `cron`, such as "Europe/Paris".
            missed: what happens to planned times when no worker was running. "one": only the newest
                is run late; "all": each, in order; "none": none, unless it is a minute ago at most.
            thread_id: the thread of all its jobs, each of which begins when the one before has
                ended. By default each job gets a new thread.

        Returns:
            The next planned time, in UTC. If `cron` and `tz` are unchanged, the schedule keeps its
            position.

        Raises:
            ImportError: the extra `cron` is not installed.
            TypeError, ValueError: an argument is invalid.
            UnserializableError: the input cannot be stored; names the place.
        """
        how = self._check_how(priority, config, context, durability)
        planned = (cron, tz, missed, thread_id)
        return self._schedules.add(name, planned, priority, {"input": graph_input, **how})

    async def aschedule(self, name: str, cron: str, graph_input: Any, **options: Any) -> datetime:
        """`schedule` for coroutines."""
        return await self._acall(partial(self.schedule, name, cron, graph_input, **options))

    def unschedule(self, name: str) -> bool:
        """Delete a schedule of this graph. Jobs that it has submitted stay. Return whether the
        schedule existed."""
        return self._schedules.remove(name)

    # -- wait for results --------------------------------------------------------------------------

    def result(
        self, thread_id: str, *, run_id: str | None = None, wait: float | None = None
    ) -> JobResult:
        """Return the status and the outcome of a job.

        Args:
            thread_id: the job's thread. Without `run_id`, the job submitted last is meant.
            wait: seconds to wait for its end; None for as long as it takes, 0 not to wait.

        Raises:
            LookupError: there is no such job, or it was deleted.
            StorageError: the database was out of reach for `timeout` seconds, however long `wait`
                is. Ask again.
        """
        return self._waiter.wait(thread_id, run_id, wait)

    async def aresult(
        self, thread_id: str, *, run_id: str | None = None, wait: float | None = None
    ) -> JobResult:
        """`result` for coroutines: no thread is held while it waits."""
        return await self._waiter.await_end(self._acall, thread_id, run_id, wait)

    # -- read streams ------------------------------------------------------------------------------

    def stream(
        self, thread_id: str, *, run_id: str | None = None, after: int = 0
    ) -> Iterator[StreamChunk]:
        """Stream what a job sends, from its beginning until it has ended; the job must have been
        submitted with a `stream_mode`. Any process may read it, at any time, until the job is
        deleted.

        Args:
            thread_id: the job's thread. Without `run_id`, the job submitted last is meant.
            after: the number of the last chunk already seen.

        Raises:
            ChunksGoneError: chunks that follow were dropped; 16 MB per job are kept.
            LookupError: there is no such job, or it was deleted.
            StorageError: the database was out of reach. Ask again, with `after`.
        """
        return self._waiter.stream(thread_id, run_id, after)

    def astream(
        self, thread_id: str, *, run_id: str | None = None, after: int = 0
    ) -> AsyncIterator[StreamChunk]:
        """`stream` for coroutines: no thread is held while it waits."""
        return self._waiter.astream(self._acall, thread_id, run_id, after)

    async def alast_chunk(self, thread_id: str, *, run_id: str | None = None) -> int:
        """Return the number of the newest chunk of a job's stream; 0 if there is none.

        Raises:
            LookupError: there is no such job, or it was deleted.
        """
        return await self._acall(self._waiter.last_chunk, thread_id, run_id)
