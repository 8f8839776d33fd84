"""What a queue holds, as records, and how they become bytes. No database, no thread.

A job is one call of a graph on a thread: its input, and later its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args

from ..checkpoint.errors import DamagedError
from ..checkpoint.integrity import Integrity
from ..checkpoint.records import check_names
from ..checkpoint.serde import FORMAT, Serializer
from ..checkpoint.serde.msgpack import packb
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError
from ..pregel.runtime import RunControl
from ..pregel.types import Interrupt

Status = Literal["waiting", "running", "done", "paused", "failed", "parked", "cancelled"]
"""How a job stands. `paused`: its run asks questions; a job with `Command(resume=...)` answers. `failed`: a node
raised, and a job with the input None goes on. `parked`: its workers died, again and again at the same step; its thread
waits until the job is tried again or cancelled."""

STATUSES: tuple[Status, ...] = get_args(Status)
OPEN = frozenset({"waiting", "running"})
NAMELESS = ("StateGraph", "Pregel")
"""How graphs are called that nobody named."""

LONGEST = 1000
"""Bytes of a graph's name, which stands in an index."""


class WorkersDiedError(StateGraphError):
    """The workers that ran a job died, each time before the thread had come any further. The job is parked: mend the
    graph, then `retry` or `cancel` it."""


class JobOpenError(StateGraphError):
    """A job has not come to its end yet, so it has no value."""


class Name(NamedTuple):
    """Which job. What is stored of it is bound to all three."""

    graph: str
    thread_id: str
    run_id: str

    def __str__(self) -> str:
        return f"the job {self.run_id!r} of thread {self.thread_id!r}"


@dataclass(frozen=True, slots=True)
class Result:
    """How a job stands, and what came of it.

    Attributes:
        graph, thread_id, run_id: which job.
        status: see `Status`.
        value: what `invoke` returned; None unless it is done or paused.
        interrupts: the questions a paused run asks.
        error: what a failed run raised, or why a job is parked.
        priority: as it was submitted.
        attempts: how many workers have begun it.
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

    @property
    def open(self) -> bool:
        """Whether it still waits or runs."""
        return self.status in OPEN

    def unwrap(self) -> Any:
        """The value of a job that is done or paused.

        Raises:
            JobOpenError: it waits or runs still, or was cancelled.
            Exception: what its run raised.

        >>> Result("g", "t", "r", "done", value={"n": 1}).unwrap()
        {'n': 1}
        """
        if self.error is not None:
            raise self.error
        if self.status not in ("done", "paused"):
            raise JobOpenError(f"the job {self.run_id!r} of thread {self.thread_id!r} is {self.status}")
        return self.value


@dataclass(slots=True, eq=False)
class Job:
    """A job that a worker has claimed.

    Attributes:
        attempt: how often it was claimed, this time included.
        worker: whose claim it is. Without both of these nobody ends it.
        begun: false if it is to run alone, because workers died that ran it.
        task: as it is stored.
        control: to ask its run to stop.
        lost: another worker has it; what comes of the run counts no more.
    """

    id: int
    attempt: int
    worker: int
    begun: bool
    name: Name
    task: bytes
    control: RunControl = field(default_factory=RunControl)
    lost: bool = False


class Ended(NamedTuple):
    """How a run of a job ended: to be stored under its token. `waiting` gives it back to the queue."""

    id: int
    attempt: int
    status: Status
    outcome: bytes | None = None


def lane(name: str) -> int:
    """A number made of a name, for indexes and locks: 63 bits and a sign.

    >>> lane("thread-1") == lane("thread-1") != lane("thread-2")
    True
    """
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)


def text(data: bytes) -> str:
    r"""A name as it is stored. One that was damaged stays readable, so that one bad row stops nobody; what is bound to
    the name does not open then.

    >>> text(b"order-7"), text(b"order-\xb7")
    ('order-7', 'order-\\xb7')
    """
    return data.decode(errors="backslashreplace")


def queue_of(graph: Any) -> str:
    """The name of the queue of a compiled graph, or of a graph that is named.

    Raises:
        TypeError: it is neither.
        ValueError: the name is that of every graph, is empty, too long, or holds what no database can.
    """
    name = graph.name if isinstance(graph, Pregel) else graph
    if not isinstance(name, str):
        raise TypeError(f"a queue is that of a compiled graph or of a graph's name, not of {graph!r}")
    if name in NAMELESS:
        raise ValueError(
            "the graph has no name of its own, by which its queue is found: compile(name=...), or name the queue (--as)"
        )
    check_names(name)
    if not 0 < len(name.encode()) <= LONGEST:
        raise ValueError(f"a graph's name has 1 to {LONGEST} bytes, not {len(name.encode())}")
    return name


class Form(NamedTuple):
    """How tasks and outcomes become bytes: a serializer, and what guards the rows.

    >>> form, name = Form(Serializer(), Integrity()), Name("orders", "order-7", "run-1")
    >>> form.read("task", name, form.write("task", name, {"n": (1, 2)}))
    {'n': (1, 2)}
    """

    serde: Serializer
    integrity: Integrity

    def write(self, what: str, name: Name, value: Any) -> bytes:
        """The bytes of a value, bound to its place.

        Raises:
            UnserializableError: naming the place in the value that cannot be stored.
        """
        return self.integrity.protect(self.serde.dumps(value)[1], packb([what, *name]))

    def read(self, what: str, name: Name, data: bytes) -> Any:
        """The value that was written.

        Raises:
            DamagedError: these are not the bytes that were written there.
            UnknownTypeError: it holds a type that is not registered here.
        """
        try:
            return self.serde.loads((FORMAT, self.integrity.unprotect(data, packb([what, *name]))))
        except DamagedError as error:
            raise DamagedError(f"the {what} of {name}: {error}") from error


def result_of(row: Sequence[Any], form: Form) -> Result:
    """A row of the table, as its readers see it."""
    graph, thread_id, run_id, priority, state, attempts, deaths, outcome = row
    name = Name(text(graph), text(thread_id), text(run_id))
    value, questions, error = None, (), None
    if state == "parked":
        error = WorkersDiedError(
            f"{name} is parked: {deaths} workers died while they ran it, each "
            "time before its thread had come any further. Mend the graph, then retry or cancel it"
        )
    elif outcome is not None:
        value, questions, error = form.read("outcome", name, outcome)
    return Result(*name, state, value, questions, error, priority, attempts)
