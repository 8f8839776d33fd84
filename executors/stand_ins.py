"""What a function finds on the other side: stand-ins for its task, its run and its streams.

What it asks is answered from what came along, noted for the driver, or told to it at once. What stays with the driver
says so when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

from ..pregel.errors import ShippingError, StateGraphError
from ..pregel.runtime import RunControl, Runtime
from ..pregel.types import RunnableConfig, StreamMode, StreamWriter
from .parcel import Kept, Lent
from .pickling import culprit, dumps, loads
from .stores import OPEN

Tell = Callable[[bytes], None]


class RemoteTask:
    """Stands for the task, for `interrupt`, `get_config` and the others."""

    def __init__(self, name: str, lent: Lent, shared: bytes, tell: Tell) -> None:
        self.name = name
        self.ns = lent.ns
        self.attempt = lent.attempt
        self.known = lent.known
        self.asked = 0
        self.keys: tuple[str, ...] = ()
        self.edited = lent.edited
        self.questions: list[Any] = []
        self.writes: list[tuple[str, Any]] = []
        self.control = RemoteControl(lent.drain_reason)
        self.run = RemoteRun(self, lent, tell)
        self._lent = lent
        self._tell = tell
        self._shared = shared
        self._of_run: tuple[bytes, bytes | Kept | None] | None = None
        self._runtime: Runtime[Any] | None = None

    def known_answers(self) -> dict[str, Any]:
        """The answers this task was given, by interrupt id."""
        return self.known

    def known_channels(self) -> AnyKey:
        """The driver will know when the writes are there."""
        return AnyKey()

    @property
    def config(self) -> RunnableConfig:
        """The task's config."""
        if isinstance(self._lent.config, Kept):
            raise ShippingError(self.name, *self._lent.config.why.split(": ", 1))
        return self._lent.config

    @property
    def writer(self) -> StreamWriter:
        """Sends a custom event to whoever reads the run."""
        lent = self._lent
        if "custom" not in lent.listens and not lent.limited:
            return _nobody_listens
        return self.run.teller("custom")

    @property
    def store(self) -> Any:
        """The graph's store, opened in this process; None if there is none, or what says that it is not here."""
        recipe = self._unpacked()[1]
        if recipe is None:
            return None
        if isinstance(recipe, Kept):
            return Absent(_here(self.name, recipe.why))
        try:
            return OPEN.take(recipe, self)
        except StateGraphError as error:
            error.add_note(f"while node {self.name!r} opened the graph's store in process {os.getpid()}")
            raise
        except Exception as error:
            why = f"cannot be opened in process {os.getpid()}: {type(error).__name__}: {error}"
            raise ShippingError(self.name, "the store", why) from error

    def end(self) -> None:
        """The function has ended: what it had is free."""
        OPEN.give_back(self)

    def _unpacked(self) -> tuple[bytes, bytes | Kept | None]:
        if self._of_run is None:
            self._of_run = loads(self._shared)
        return self._of_run

    @property
    def previous(self) -> Any:
        """What the last run of an entrypoint saved on this thread."""
        return self.runtime.previous

    @property
    def node_error(self) -> None:
        """Error handlers stay with the driver."""
        return

    def begin(self) -> None:
        """A limit counts from now on, not from when the call was sent."""
        if self._lent.limited:
            self._tell(dumps(("began", None)))

    def heartbeat(self) -> None:
        """Tell an idle timeout that the node is alive."""
        if self._lent.limited:
            self._tell(dumps(("alive", None)))

    @property
    def runtime(self) -> Runtime[Any]:
        """All of it in one object."""
        if self._runtime is None:
            context, previous = (
                Absent(_stays(self.name, v.why)) if isinstance(v, Kept) else v for v in loads(self._unpacked()[0])
            )
            info = self._lent.info
            self._runtime = LazyRuntime(
                context=context, stream_writer=self.writer, previous=previous, control=self.control,
                heartbeat=self.heartbeat, idempotency_key=info.task_id if info else "", execution_info=info,
            )  # fmt: skip
            object.__delattr__(self._runtime, "store")
            object.__setattr__(self._runtime, "_task", self)
        return self._runtime

    @property
    def nearest_deadline(self) -> NoReturn:
        """Only a graph asks for this, when it starts inside a node."""
        raise RuntimeError(_stays(self.name, "a graph inside a node"))


class LazyRuntime(Runtime[Any]):
    """Has no store until somebody asks for it."""

    __slots__ = ("_task",)
    _task: RemoteTask

    def __getattr__(self, name: str) -> Any:
        if name != "store":
            raise AttributeError(f"Runtime has no {name!r}")
        object.__setattr__(self, name, self._task.store)
        return self.store


class RemoteRun:
    """Stands for the run, for `interrupt` and for messages on their way to a stream."""

    parent = None

    def __init__(self, task: RemoteTask, lent: Lent, tell: Tell) -> None:
        self.saver: object | None = self if lent.saves else None
        self.answers = RemoteAnswers(lent.at_hand)
        self._task = task
        self._tell = tell
        self.streams = (RemoteStream(lent.listens, tell),)

    def teller(self, kind: str) -> Callable[[Any], None]:
        """What sends events of this kind."""
        task, tell = self._task, self._tell

        def write(data: Any) -> None:
            try:
                event = dumps((kind, data))
            except Exception:
                path, why = culprit(data, "event")
                raise ShippingError(task.name, path, why) from None
            tell(event)

        return write

    @property
    def executor(self) -> NoReturn:
        """Only a `@task` asks for this, when it is called inside a node."""
        raise RuntimeError(_stays(self._task.name, "a call of a @task"))


class RemoteAnswers:
    """Stands for the answers of the run: those that came along.

    Attributes:
        taken: the ids of those that were used.
    """

    def __init__(self, at_hand: dict[str, Any]) -> None:
        self.taken: list[str] = []
        self._at_hand = at_hand

    def take(self, question: str, by: Any, inside: Any = ()) -> tuple[Any, ...]:
        """The answer to this question as a one-item tuple, empty if there is none."""
        if question not in self._at_hand:
            return ()
        self.taken.append(question)
        return (self._at_hand.pop(question),)

    def brought(self, task: Any) -> dict[str, Any]:
        """The answers that the call brings for the questions of the task."""
        return self._at_hand

    def shown(self, task: Any, question: str) -> None:
        """Only the driver has the record."""
        return

    def reject(self, question: str) -> None:
        """The driver will see that the question is open."""


class RemoteStream:
    """Stands for the streams that somebody reads."""

    def __init__(self, listens: frozenset[StreamMode], tell: Tell) -> None:
        self._listens = listens
        self._tell = tell

    def wants(self, *modes: StreamMode) -> bool:
        """Whether a reader asked for one of these modes."""
        return not self._listens.isdisjoint(modes)

    def emit(self, mode: StreamMode, data: Any) -> None:
        """Send one chunk."""
        if mode in self._listens:
            self._tell(dumps((mode, data)))


class RemoteControl(RunControl):
    """Notes a wish to stop; the driver hears of it when the call ends, before the next superstep."""

    __slots__ = ()

    def __init__(self, drain_reason: str | None) -> None:
        super().__init__()
        self.drain_reason = drain_reason


class AnyKey:
    """The channels of a graph that is not here: any name may be one."""

    def __contains__(self, name: object) -> bool:
        return True


class Absent:
    """Stands where something is that stays with the driver; says so when it is used."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(self._why)

    def __getitem__(self, key: Any) -> NoReturn:
        raise RuntimeError(self._why)


def _here(node: str, why: str) -> str:
    return f"node {node!r} runs on an executor (process {os.getpid()}): {why}"


def _stays(node: str, what: str) -> str:
    way_out = 'give the node executor="threads", or move that part into a node of its own'
    return _here(node, f"{what} stays with the driver: {way_out}")


def _nobody_listens(_: Any) -> None:
    """The writer of a run without a reader of custom events."""


