"""`Queue`: bringing work to the workers of a graph, and learning what came of it. What runs jobs is not here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any, NamedTuple
from uuid import uuid4

from ..checkpoint.errors import StorageError
from ..checkpoint.integrity import Integrity
from ..checkpoint.records import check_names
from ..checkpoint.serde import Serializer
from ..checkpoint.sql.postgres_server import POOL_SIZE, SECONDS, ConnectionLostError, Server, Target
from ..pregel.app import Pregel
from ..pregel.errors import nearest
from ..pregel.run.config import normalize
from ..pregel.types import RunnableConfig
from .jobs import STATUSES, Form, Job, Name, Result, lane, queue_of, result_of, text
from .listener import Listener
from .tables import MIGRATIONS, STATEMENTS

__all__ = ["Queue", "WorkerInfo"]

POLL = 1.0
"""Seconds after which who waits for a job looks again, though nobody told of its end."""

LARGEST = 2**31
"""Priorities stay below this."""


class WorkerInfo(NamedTuple):
    """A worker as the database knows it: `running` jobs, and whether it is about to leave."""

    id: int
    graph: str
    name: str
    leaving: bool
    running: int


class Queue:
    """The jobs of one graph, in a Postgres database that its workers share.

    Submit inputs to threads here; workers (`python -m stategraph work`) run them on any machines. Jobs of one thread
    run one after the other: those of higher priority first, then in the order in which the database got them. Any
    thread may use a queue. The tables are made on first use. Postgres is all there is: no broker.

    Args:
        conn: a connection string or URL, or a `ConnectionPool`. `result` waits on a connection of its own, which needs
            the string; with a pool it looks once a second.
        graph: the compiled graph, which has a name of its own, or the name under which its workers run. A graph brings
            along the types that its state may hold; a name needs `serde` if they are not registered.
        serde: turns inputs and outcomes into bytes; the graph's by default. Strict: never pickle.
        integrity: guards the stored rows, a checksum by default; the workers need the same.
        pool_size: connections that may be open at once.
        timeout: seconds to wait for a connection, for another session's lock, or for the answer to one statement.

    Raises:
        StorageError: the text is no connection string.
        TypeError, ValueError: `conn` or `graph` is none of these.
    """

    def __init__(
        self,
        conn: Target,
        graph: Pregel | str,
        *,
        serde: Serializer | None = None,
        integrity: Integrity | None = None,
        pool_size: int = POOL_SIZE,
        timeout: float = SECONDS,
    ) -> None:
        known = graph if isinstance(graph, Pregel) else None
        self.graph = queue_of(graph)
        self._form = Form(serde or (known.serde if known is not None else Serializer()), integrity or Integrity())
        self._server = Server(conn, "workers", MIGRATIONS, pool_size=pool_size, timeout=timeout)
        self._listener = Listener(conn if isinstance(conn, str) else None)

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str, graph: Pregel | str, **options: Any) -> Iterator[Queue]:
        """Open a queue for the length of a `with` block, then close it; options as for the class."""
        queue = cls(conn_string, graph, **options)
        try:
            yield queue
        finally:
            queue.close()

    def setup(self) -> None:
        """Make the tables, or bring them up to date. The first use does so too; calling it again does nothing.

        Raises:
            StorageError: the server cannot be reached, refuses, or its tables were made by a later version.
        """
        self._server.setup()

    def close(self) -> None:
        """Close the connections, unless they were handed in."""
        self._listener.close()
        self._server.close()

    # -- bring work ---------------------------------------------------------------------------------------

    def submit(
        self,
        thread_id: str,
        input: Any,
        *,
        priority: int = 0,
        run_id: str | None = None,
        config: RunnableConfig | None = None,
        context: Any = None,
    ) -> str:
        """Let some worker run the graph on a thread, as `invoke` does.

        Args:
            input: new input; None to go on where a run failed; a `Command` to answer, update or redirect.
            priority: higher ones go first, in the thread and among threads.
            run_id: a name for the job, known within its thread. Submitted twice under the same, it is done once. By
                default a new UUID.
            config: tags, metadata, limits, other `configurable` keys.
            context: handed to nodes as `runtime.context`.

        Returns:
            The run id.

        Raises:
            UnserializableError: the input cannot be stored; names the place.
            ValueError: a job of another graph has this `run_id` on this thread.
            ConnectionLostError: the answer was lost, so whether it is submitted is not known. Submit it again under
                the same `run_id`, which the error's note tells.
            StorageError: the database refused or is out of reach; nothing is submitted.
        """
        given = {"priority": priority, "config": config, "context": context}
        return self.submit_many([(thread_id, input)], run_ids=None if run_id is None else [run_id], **given)[0]

    def submit_many(
        self,
        inputs: Iterable[tuple[str, Any]],
        *,
        priority: int = 0,
        run_ids: Sequence[str] | None = None,
        config: RunnableConfig | None = None,
        context: Any = None,
    ) -> list[str]:
        """`submit` for many, each a thread id and an input, in one statement: all are submitted or none.

        Raises:
            ValueError: there are not as many run ids as inputs.
        """
        pairs = [*inputs]
        named = [str(uuid4()) for _ in pairs] if run_ids is None else [*run_ids]
        if len(named) != len(pairs):
            raise ValueError(f"submit_many got {len(pairs)} inputs but {len(named)} run ids")
        settings = _settings(config)
        check_priority(priority)
        rows = []
        for (thread_id, input), run_id in zip(pairs, named, strict=True):
            check_thread(thread_id)
            check_names(run_id)
            name = Name(self.graph, thread_id, run_id)
            task = self._form.write("task", name, {"input": input, "config": settings, "context": context})
            rows.append((lane(thread_id), thread_id, run_id, priority, task))
        try:
            if rows:
                self._again(partial(self._insert, rows))
        except ConnectionLostError as lost:
            if len(named) == 1:
                lost.add_note(f"Submitted again under the same run_id, {named[0]!r}, it is done once")
            raise
        return named

    async def asubmit(self, thread_id: str, input: Any, **options: Any) -> str:
        """`submit` for coroutines."""
        return await asyncio.to_thread(partial(self.submit, thread_id, input, **options))

    def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        """The notice goes in a transaction of its own, for who has one in its transaction holds up all others that
        have, until it is on the disk."""
        with self._server.statements() as wire:
            for graph, thread_id, run_id in wire.rows(STATEMENTS["submit"], self.graph, rows):
                name = Name(*map(text, (graph, thread_id, run_id)))
                raise ValueError(
                    f"{name} is one of the graph {name.graph!r}, so none of {self.graph!r} can have this run_id. "
                    "Nothing was submitted: take another run_id, and a thread for each graph"
                )
            wire.run(STATEMENTS["tell_workers"], lane(self.graph))

    def cancel(self, run_id: str, *, thread_id: str | None = None) -> bool:
        """Take a job of this graph back. One that runs is stopped before its next superstep; what it has stored stays.

        Args:
            thread_id: its thread, where jobs of several threads have this run id.

        Returns:
            Whether it had not come to its end yet.

        Raises:
            ValueError: jobs of several threads have this run id, and no thread is named.
        """
        id = self._id_of(run_id, thread_id)
        with self._server.statements() as wire:
            found = wire.rows(STATEMENTS["cancel"], id)
            wire.run(STATEMENTS["tell_waiters"], [id for id, state, awaited in found if awaited and state != "running"])
        return bool(found)

    def retry(self, run_id: str, *, thread_id: str | None = None) -> bool:
        """Let a parked job of this graph be tried again, as if no worker had died of it; whether there is such a job.

        Raises:
            ValueError: jobs of several threads have this run id, and no thread is named.
        """
        id = self._id_of(run_id, thread_id)
        with self._server.statements() as wire:
            found = wire.rows(STATEMENTS["retry"], id)
            for (graph,) in found:
                wire.run(STATEMENTS["tell_workers"], lane(text(graph)))
        return bool(found)

    def _id_of(self, run_id: str, thread_id: str | None) -> int:
        """The number of a job of this graph; 0, which no job has, if there is none."""
        mine = [
            (row[0], text(row[2]))
            for row in self._again(partial(self._rows, "named", run_id))
            if text(row[1]) == self.graph and thread_id in (None, text(row[2]))
        ]
        if len(mine) > 1:
            threads = ", ".join(repr(thread) for _, thread in mine)
            raise ValueError(f"jobs of the threads {threads} have the run_id {run_id!r}: name one by thread_id")
        return mine[0][0] if mine else 0

    # -- learn what came of it ----------------------------------------------------------------------------

    def result(self, thread_id: str, *, run_id: str | None = None, wait: float | None = None) -> Result:
        """How a job stands, and what came of it.

        Args:
            thread_id: its thread; the one that was submitted last is meant, unless `run_id` says which.
            wait: seconds to wait for its end; None for as long as it takes, 0 to look only.

        Raises:
            LookupError: there is none, or it was forgotten.
            StorageError: the database was out of reach for `timeout` seconds, however long `wait` is. Ask again.
        """
        deadline = None if wait is None else time.monotonic() + wait
        id, found = self._look(thread_id, run_id)
        if not found.open or wait == 0:
            return found
        ended = Event()
        with self._listener.told(id, ended.set):
            while found.open and (left := _left(deadline)) > 0:
                self._await(id)
                id, found = self._look(thread_id, found.run_id)
                if found.open:
                    ended.wait(min(left, POLL))
                    ended.clear()
                    id, found = self._look(thread_id, found.run_id)
        return found

    async def aresult(self, thread_id: str, *, run_id: str | None = None, wait: float | None = None) -> Result:
        """`result` for coroutines: no thread is held while it waits."""
        deadline = None if wait is None else time.monotonic() + wait
        id, found = await asyncio.to_thread(self._look, thread_id, run_id)
        if not found.open or wait == 0:
            return found
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._listener.told(id, lambda: loop.call_soon_threadsafe(ended.set)):
            while found.open and (left := _left(deadline)) > 0:
                await asyncio.to_thread(self._await, id)
                id, found = await asyncio.to_thread(self._look, thread_id, found.run_id)
                if found.open:
                    try:
                        await asyncio.wait_for(ended.wait(), min(left, POLL))
                    except TimeoutError:
                        pass
                    ended.clear()
                    id, found = await asyncio.to_thread(self._look, thread_id, found.run_id)
        return found

    def _look(self, thread_id: str, run_id: str | None) -> tuple[int, Result]:
        check_thread(thread_id)
        rows = self._again(partial(self._rows, *_by(self.graph, thread_id, run_id)))
        if not rows:
            named = "" if run_id is None else f" named {run_id!r}"
            raise LookupError(f"thread {thread_id!r} has no job{named} here: none was submitted, or it was forgotten")
        return rows[0][0], result_of(rows[0][1:], self._form)

    def _await(self, id: int) -> None:
        """Ask whoever ends a job to tell."""
        self._again(partial(self._run, "await", id))

    # -- what a worker needs ------------------------------------------------------------------------------

    def of_graph(self, name: str) -> Queue:
        """The queue of another graph in the same database, on the same connections: open as long as this one is."""
        self.setup()
        return Queue(self.pool, name, serde=self._form.serde, integrity=self._form.integrity)

    @property
    def pool(self) -> Target:
        """Where its connections come from, for a saver on the same database. Open once `setup` was called."""
        return self._server.pool

    def bind(self, job: Job, task: bytes) -> None:
        """Keep another task in place of a job's, while it is still under the same claim."""
        self._run("bind", job.id, job.attempt, job.worker, task)

    # -- look after the queue -----------------------------------------------------------------------------

    def jobs(self, statuses: Collection[str] = ("waiting", "running", "parked"), *, limit: int = 100) -> list[Result]:
        """Jobs that stand so, in the order submitted; those of all graphs, without their outcomes.

        Raises:
            ValueError: a status does not exist, or the limit is below 0.
        """
        if limit < 0:
            raise ValueError(f"a limit is 0 or more, not {limit}")
        for each in statuses:
            if each not in STATUSES:
                raise ValueError(f"there is no status {each!r}; {nearest(each, STATUSES)}")
        rows = self._again(partial(self._rows, "listed", [*statuses], limit))
        return [result_of((*row[1:-1], None), self._form) for row in rows]

    def named(self, run_id: str) -> list[Result]:
        """The jobs of all graphs that have this run id, one a thread at most, without their outcomes."""
        rows = self._again(partial(self._rows, "named", run_id))
        return [result_of((*row[1:-1], None), self._form) for row in rows]

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """How many jobs stand how: graph → status → number."""
        found: dict[str, dict[str, int]] = {}
        for graph, state, number in self._again(partial(self._rows, "counts")):
            found.setdefault(text(graph), {})[state] = number
        return found

    def workers(self) -> list[WorkerInfo]:
        """The workers of all graphs. One that died stands here until another has noticed."""
        rows = self._again(partial(self._rows, "workers"))
        return [WorkerInfo(id, text(graph), text(name), *more) for id, graph, name, *more in rows]

    def evict(self, worker: int) -> int:
        """Take its jobs from a worker, though it lives, and cut its connection: others go on with them. For one that
        hangs, or in which a node does. What it still runs can neither commit nor end a job.

        Returns:
            How many jobs went back to the queue.
        """
        with self._server.statements() as wire:
            freed = wire.rows(STATEMENTS["free"], worker)
            wire.run(STATEMENTS["evict"], worker)
            for graph in {graph for (graph,) in freed}:
                wire.run(STATEMENTS["tell_workers"], lane(text(graph)))
        return len(freed)

    def limit(self, most: int | None) -> None:
        """How many runs of the graph there may be at once, over all workers; None for any number.

        Raises:
            ValueError: it is below 1.
        """
        if most is not None and most < 1:
            raise ValueError(f"a limit is 1 or more, not {most}; to run nothing, start no worker")
        self._run(*(("drop_limit", self.graph) if most is None else ("set_limit", self.graph, most)))

    def forget(self, older_than: timedelta = timedelta()) -> int:
        """Forget jobs of this graph that came to their end longer ago than this; their threads stay. Parked ones stay
        too.

        Returns:
            How many.

        Raises:
            ValueError: that is in the future, so it would be all of them.
        """
        if older_than < timedelta():
            raise ValueError(f"forget is told how long ago jobs ended: 0 or more, not {older_than}")
        return self._run("forget", self.graph, older_than.total_seconds())

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        with self._server.statements() as wire:
            return wire.rows(STATEMENTS[statement], *values)

    def _run(self, statement: str, *values: Any) -> int:
        with self._server.statements() as wire:
            return wire.run(STATEMENTS[statement], *values)

    def _again(self, work: Any) -> Any:
        """Do what may be done twice; once more if the connection broke on the way."""
        try:
            return work()
        except ConnectionLostError as lost:
            if lost.late:
                raise
            try:
                return work()
            except StorageError as error:
                raise lost from error  # what the first try did is not known


def _by(graph: str, thread_id: str, run_id: str | None) -> tuple[Any, ...]:
    """The statement that finds a job, with its values."""
    return ("newest", graph, lane(thread_id), thread_id) if run_id is None else ("of_run", graph, run_id, thread_id)


def _left(deadline: float | None) -> float:
    return POLL if deadline is None else deadline - time.monotonic()


def _settings(config: RunnableConfig | None) -> RunnableConfig:
    """A job's config.

    Raises:
        ValueError: it names what is the queue's to name.
    """
    settings = normalize(config)
    taken = {"thread_id", "checkpoint_ns"} & {*settings.get("configurable", {})}
    if taken or "run_id" in settings:
        raise ValueError(f"the config of a job does not name its {', '.join(sorted(taken)) or 'run_id'}: submit() does")
    return settings


def check_thread(thread_id: Any) -> None:
    """Raises:
        ValueError: it names no thread, or cannot be stored.
    """
    if not isinstance(thread_id, str) or not thread_id:
        raise ValueError(f"a thread is named by a text that is not empty, not by {thread_id!r}")
    check_names(thread_id)


def check_priority(priority: Any) -> None:
    """Raises:
        ValueError: it is no number, or too far from 0.
    """
    if not isinstance(priority, int) or abs(priority) >= LARGEST:
        raise ValueError(f"a priority is a whole number between -2**31 and 2**31, not {priority!r}")

