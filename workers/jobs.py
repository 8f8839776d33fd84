"""The records of a queue, and how they become bytes. Uses no database and no threads.

A job is one call of a graph on a thread: its input, and later its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args

from ..channels.base import check_kind
from ..checkpoint.errors import DamagedError
from ..checkpoint.integrity import Integrity
from ..checkpoint.records import check_names
from ..checkpoint.serde import FORMAT, Serializer
from ..checkpoint.serde.msgpack import packb
from ..checkpoint.serde.registry import register
from ..pregel.app import Pregel
from ..pregel.control import RunControl
from ..pregel.errors import StateGraphError, nearest
from ..pregel.run import checks
from ..pregel.run.config import normalize
from ..pregel.types import AnyConfig, Durability, Interrupt, RunnableConfig, StreamMode

Status = Literal[
    "waiting", "delayed", "running", "sleeping", "done", "paused", "failed", "parked", "cancelled"
]
"""The status of a job. `delayed`: it waits for its time, and other jobs of its thread go first.
`sleeping`: its run has begun and continues at `run_at`; its thread waits. `paused`: its run asks
questions; a job with `Command(resume=...)` answers them. `failed`: a node raised; a job with the
input None continues. `parked`: a dead letter, because its workers died repeatedly at the same step;
its thread waits until the job is retried or cancelled."""

STATUSES: tuple[Status, ...] = get_args(Status)
OPEN = frozenset({"waiting", "delayed", "running", "sleeping"})
TIMED = frozenset({"delayed", "sleeping"})
LISTED: tuple[Status, ...] = ("waiting", "delayed", "running", "sleeping", "parked")
"""The statuses that listings show: those of jobs that have not ended, and dead letters."""
DEFAULT_NAMES = ("StateGraph", "Pregel")
"""The names of graphs that were given none."""

MOST_NAME_BYTES = 1000
"""The longest name of a graph or a schedule, since the name is an index key."""


class WorkersDiedError(StateGraphError):
    """The workers that ran a job died, each time before the thread made any progress. The job is
    parked as a dead letter: fix the graph, then `retry` or `cancel` it."""


class JobOpenError(StateGraphError):
    """A job has not ended yet, so it has no value."""


class JobDeadlineError(StateGraphError, TimeoutError):
    """The deadline in a job's config passed before its run ended. Completed work is kept: submit a
    job with the input None and a later deadline to continue."""


register(JobDeadlineError)  # so that it is restored as this type


class JobName(NamedTuple):
    """Identifies a job. The data stored for it is bound to all three parts."""

    graph: str
    thread_id: str
    run_id: str

    def __str__(self) -> str:
        return f"the job {self.run_id!r} of thread {self.thread_id!r}"


@dataclass(frozen=True, slots=True)
class JobResult:
    """The status and the outcome of a job.

    Attributes:
        graph: the name of the graph that runs it.
        thread_id: the thread it runs on.
        run_id: the job's id within that thread.
        status: see `Status`.
        value: what `invoke` returned; None unless the job is done or paused.
        interrupts: the questions that a paused run asks.
        error: what a failed run raised, or why a job is parked.
        priority: the priority with which it was submitted.
        attempts: how many workers have started it.
        run_at: when a delayed or sleeping job continues, by the database's clock, in UTC; for other
            jobs, when they last did. None if the job never waited for a time.
    """

    graph: str
    thread_id: str
    run_id: str
    status: Status
    value: Any = None
    interrupts: tuple[Interrupt, ...] = ()
    error: BaseException | None = None
    priority: int = 0
    attempts: int = 0
    run_at: datetime | None = None

    @property
    def open(self) -> bool:
        """Whether the job has not ended: it waits, is delayed, runs or sleeps."""
        return self.status in OPEN

    def unwrap(self) -> Any:
        """Return the value of a job that is done or paused.

        Raises:
            JobOpenError: the job has not ended, or was cancelled.
            Exception: what its run raised.

        >>> JobResult("g", "t", "r", "done", value={"n": 1}).unwrap()
        {'n': 1}
        """
        if self.error is not None:
            raise self.error
        if self.status not in ("done", "paused"):
            job = JobName(self.graph, self.thread_id, self.run_id)
            raise JobOpenError(f"{job} is {self.status}")
        return self.value


@dataclass(slots=True, eq=False)
class Job:
    """A job that a worker has claimed.

    Attributes:
        attempt: how often it was claimed, including this time.
        worker: the worker that holds the claim. Ending the job takes this id and `attempt`.
        begun: False while it is held back to run alone, because workers that ran it died.
        task: the input and options, as they are stored.
        head: the newest checkpoint of its thread at the claim; None if there was none.
        was_delivered: whether a run with its `run_id` had stored a checkpoint by then, on any
            thread.
        control: asks its run to stop.
        lost: whether another worker has taken it, so that the outcome of this run no longer counts.
        left: whether this worker cannot run it and leaves it to others.
    """

    id: int
    attempt: int
    worker: int
    begun: bool
    name: JobName
    task: bytes
    head: str | None = None
    was_delivered: bool = True
    control: RunControl = field(default_factory=RunControl)
    lost: bool = False
    left: bool = False


class JobEnd(NamedTuple):
    """How a run of a job ended. It is stored only if the job's worker and attempt are still those
    of the run. `waiting` returns the job to the queue, and `left` as if this worker had not claimed
    it; `sleeping` does so until `run_at`, in seconds since 1970 (UTC)."""

    id: int
    attempt: int
    status: Status | Literal["left"]
    outcome: bytes | None = None
    run_at: float | None = None


def hash_name(name: str) -> int:
    """Return a signed 64-bit hash of a name, for the index of threads and for notices.

    >>> hash_name("thread-1") == hash_name("thread-1") != hash_name("thread-2")
    True
    """
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)


def decode_name(data: bytes) -> str:
    r"""Decode a stored name. A damaged name stays readable, so that one bad row does not stop a
    worker; data stored under that name then fails its integrity check.

    >>> decode_name(b"order-7"), decode_name(b"order-\xb7")
    ('order-7', 'order-\\xb7')
    """
    return data.decode(errors="backslashreplace")


def queue_name(graph: Any) -> str:
    """Return the name of the queue of a graph, which is given compiled or by its name.

    Raises:
        TypeError: it is neither.
        ValueError: the name is that of every graph, is empty, too long, or holds what no database
            can.
    """
    name = graph.name if isinstance(graph, Pregel) else graph
    check_kind("graph", name, str, "a compiled graph or the name of one")
    if name in DEFAULT_NAMES:
        raise ValueError(
            "the graph must have a name, which is also the name of its queue, got none: "
            "compile(name=...), or name the queue (--as)"
        )
    check_key("graph", name)
    return name


def check_key(what: str, name: str) -> None:
    """Check that the name of something can be an index key.

    Raises:
        ValueError: it is empty, too long, or holds what no database can.
    """
    check_names(name)
    size = len(name.encode())
    if not 0 < size <= MOST_NAME_BYTES:
        raise ValueError(f"a {what}'s name must have 1 to {MOST_NAME_BYTES} bytes, got {size}")


class WorkerInfo(NamedTuple):
    """A worker as registered in the database.

    Attributes:
        leaving: whether it is shutting down and claims no more jobs.
        running: how many claimed jobs it holds.
    """

    id: int
    graph: str
    name: str
    leaving: bool
    running: int


class VersionInfo(NamedTuple):
    """A version of a graph in a queue.

    Attributes:
        jobs: how many jobs that have not ended belong to it.
        paused: how many of its threads wait for an answer.
        seconds: how long the oldest of these has waited; 0 if there is none.
        workers: how many workers serve it.
        share: how many of 100 new threads it takes, if it is the newest; None if no worker of it
            has ever been seen.
    """

    graph: str
    version: str
    jobs: int
    paused: int
    seconds: float
    workers: int
    share: int | None

    @property
    def drained(self) -> bool:
        """Whether nothing waits for it."""
        return not (self.jobs or self.paused)

    @property
    def abandoned(self) -> bool:
        """Whether something waits for it, and no worker serves it."""
        return not (self.drained or self.workers)


class OpenJobs(NamedTuple):
    """The number of jobs of a graph in one status, among those that have not ended.

    Attributes:
        seconds: how long the oldest "waiting" job has waited since it was submitted or due; 0 for
            other statuses.
    """

    graph: str
    status: Status
    jobs: int
    seconds: float


class JobCodec(NamedTuple):
    """Converts tasks and outcomes to bytes, with a serializer and a guard for the rows.

    >>> codec, name = JobCodec(Serializer(), Integrity()), JobName("orders", "order-7", "run-1")
    >>> codec.read("task", name, codec.write("task", name, {"n": (1, 2)}))
    {'n': (1, 2)}
    """

    serde: Serializer
    integrity: Integrity

    def write(self, what: str, name: JobName, value: Any) -> bytes:
        """Return a value as bytes, bound to its job.

        Raises:
            UnserializableError: a part of the value cannot be stored; names the place.
        """
        return self.integrity.protect(self.serde.dumps(value)[1], packb([what, *name]))

    def read(self, what: str, name: JobName, data: bytes) -> Any:
        """Return the value that was written.

        Raises:
            DamagedError: these are not the bytes that were written for this job.
            UnknownTypeError: it contains a type that is not registered here.
        """
        try:
            return self.serde.loads((FORMAT, self.integrity.unprotect(data, packb([what, *name]))))
        except DamagedError as error:
            raise type(error)(f"the {what} of {name}: {error}") from error


def read_result(row: Sequence[Any], codec: JobCodec) -> JobResult:
    """Convert a row of the table to a `JobResult`."""
    graph, thread_id, run_id, priority, state, attempts, deaths, due, outcome = row
    name = JobName(*map(decode_name, (graph, thread_id, run_id)))
    value, questions, error = None, (), None
    if state == "parked":
        error = WorkersDiedError(
            f"{name} is parked: {deaths} workers died while they ran it, each time before its "
            "thread made any progress. Fix the graph, then retry or cancel the job"
        )
    elif outcome is not None:
        value, questions, error = codec.read("outcome", name, outcome)
    run_at = None if due is None else datetime.fromtimestamp(due, UTC)
    return JobResult(*name, state, value, questions, error, priority, attempts, run_at)


# -- checks of a job's arguments ------------------------------------------------------------------

PRIORITY_LIMIT = 2**31
"""The absolute value of a priority must be less than this."""


def check_config(config: AnyConfig | None) -> RunnableConfig:
    """Return a job's config in its normal form.

    Raises:
        ValueError: it has a key that the queue itself sets.
    """
    settings = normalize(config)
    taken = {"thread_id", "checkpoint_ns"} & {*settings.get("configurable", {})}
    if taken or "run_id" in settings:
        named = ", ".join(sorted(taken)) or "run_id"
        raise ValueError(f"the config of a job must not have a {named}: pass it to submit() itself")
    return settings


def check_call(
    interrupt_before: Literal["*"] | Sequence[str] | None,
    interrupt_after: Literal["*"] | Sequence[str] | None,
    stream_mode: StreamMode | Sequence[StreamMode] | None,
    subgraphs: bool,
) -> dict[str, Any]:
    """Return the call options that are given, as they are stored beside the input.

    Raises:
        ValueError: a stream mode does not exist.
    """
    call: dict[str, Any] = {}
    places = {"interrupt_before": interrupt_before, "interrupt_after": interrupt_after}
    for name, nodes in places.items():
        if nodes is not None:
            call[name] = nodes if nodes == "*" else [*nodes]
    if stream_mode is not None:
        modes = [stream_mode] if isinstance(stream_mode, str) else [*stream_mode]
        for mode in modes:
            if mode not in get_args(StreamMode):
                close = nearest(str(mode), get_args(StreamMode))
                raise ValueError(f"stream_mode must be one of StreamMode, got {mode!r}; {close}")
        call["stream"] = {"modes": modes, "subgraphs": subgraphs}
    return call


def check_thread(thread_id: Any) -> None:
    """Check that a value can be a thread id.

    Raises:
        ValueError: it is not a string, is empty, or cannot be stored.
    """
    if not isinstance(thread_id, str) or not thread_id:
        raise ValueError(f"thread_id must be a non-empty string, got {thread_id!r}")
    check_names(thread_id)


def check_durability(durability: Durability | None) -> Durability | None:
    """Return the durability, or None.

    Raises:
        ValueError: it does not exist.
    """
    if durability is not None:
        checks.check_choice("durability", durability, Durability)
    return durability


def check_priority(priority: Any) -> None:
    """Check that a value can be a priority.

    Raises:
        ValueError: it is not an integer, or too far from 0.
    """
    if not isinstance(priority, int) or abs(priority) >= PRIORITY_LIMIT:
        raise ValueError(f"priority must be an integer between -2**31 and 2**31, got {priority!r}")
