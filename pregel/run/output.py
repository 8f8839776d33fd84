"""What a call gives back: chunks for its readers while it runs, and its result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from ...channels.base import MISSING
from ..program.program import Program, settles
from ..runtime import no_op
from ..schedule.machine import Machine
from ..task.task import Task
from ..types import Interrupt, Selection, StreamMode, names_of
from .checks import check_keys
from .config import Call
from .stream import Envelope, Form, Stream, read_modes

MOST_WAITING: Final = 256
"""Chunks that wait for their reader before those who send more wait for it, too."""


Breakpoint: TypeAlias = Literal["", "interrupt_before", "interrupt_after"]
"""Why a run stops at a node: it is about to run, or has run."""


class Output:
    """Readers of a run, and the view of its state that `invoke` returns.

    Attributes:
        keys: the channels that make up the result.
        streams: where chunks go; empty if nobody reads.
        chunks: what the driver has not handed over yet.
        waiting: what lets each go on who waits until the reader has taken chunks.
        closed: the reader takes no more, or is given the rest at once: nobody waits for it.
        live_outputs: those to whose readers tasks of this run send while they run; `around`: those
            of the run around it, if its readers see this one, too.
        wake: tells a driver that waits for tasks that a chunk is there.
        live: no task runs on the reader's thread: chunks may come meanwhile, or tasks may have to
            be given up (`step_timeout`) or to wait for a place (`Limit`).
        questions: what the run has paused for, `()` if it sleeps or is at a breakpoint; None if it
            has not paused.
        wake_at: when the first of its tasks that sleep runs again.
        following: the tasks that follow that breakpoint.
        breakpoint: the kind of the breakpoint at which it has paused; "" if it is none.
        only_asked: nothing but `interrupt()` asked them.
    """

    __slots__ = (
        "_hold", "_key_set", "_program", "_view", "breakpoint", "chunks", "closed", "following",
        "keeps_view", "keys", "live", "live_outputs", "only_asked", "questions", "streams",
        "waiting", "wake", "wake_at",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        call: Call,
        streams: tuple[Stream, ...],
        *,
        live: bool,
        around: Output | None = None,
    ) -> None:
        self._program = program
        self.keys: Selection = program.outputs
        self._key_set = program.output_set
        self.keeps_view: bool = not program.outputs_settle
        if call.output_keys is not None:
            self.select(check_keys(program, call.output_keys))
        self.streams: tuple[Stream, ...] = streams
        self.chunks: deque[Any] = deque()
        self.waiting: list[Callable[[], None]] = []
        self.closed: bool = False
        self.live_outputs: tuple[Output, ...] = ()
        if around is not None and streams:
            self.live_outputs = around.live_outputs
        self.wake: Callable[[], None] = no_op
        self._hold: Callable[[Output], None] = no_op
        self.live: bool = live
        self.questions: tuple[Interrupt, ...] | None = None
        self.only_asked: bool = False
        self.wake_at: datetime | None = None
        self.breakpoint: Breakpoint = ""
        self.following: Sequence[Task] = ()
        self._view: Any = MISSING

    def select(self, keys: Selection) -> None:
        """Choose the channels that make up the result."""
        self.keys = keys
        self._key_set = frozenset(names_of(keys))
        self.keeps_view = not settles(self._program.channels, keys)

    def attach_reader(
        self, call: Call, modes: StreamMode | Sequence[StreamMode], form: Form = None
    ) -> None:
        """Stream what the call has asked for.

        Args:
            form: what `values` show.
        """
        envelope = Envelope(not isinstance(modes, str), call.subgraphs, call.version == "v2")
        own = Stream(read_modes(modes), envelope, self._hand_over, self.keys, form=form)
        self.streams = (*self.streams, own)
        self.live = self.live or own.live or self._program.eager
        if self.live:
            self.live_outputs = (*self.live_outputs, self)

    def open(self, wake: Callable[[], None], hold: Callable[[Output], None]) -> deque[Any]:
        """The queue from which the driver takes chunks.

        Args:
            wake: called when a chunk is there.
            hold: called when too many are there, by whoever has sent one.
        """
        self.wake, self._hold = wake, hold
        return self.chunks

    def drop_chunks(self) -> None:
        """Show nobody what waits to be handed over: a superstep that could not be stored, or the
        rest of a run that ends at once."""
        self.chunks.clear()
        self.release()

    def _hand_over(self, chunk: Any) -> None:
        self.chunks.append(chunk)
        self.wake()
        if len(self.chunks) > MOST_WAITING:
            self._hold(self)

    def must_wait(self, go_on: Callable[[], None]) -> bool:
        """Whether who sends chunks must wait for the reader, until `go_on` is called. It may be
        called otherwise, too, on any thread."""
        # First noted, then looked: a reader that takes chunks in between calls it.
        self.waiting.append(go_on)
        return len(self.chunks) > MOST_WAITING and not self.closed

    def release(self) -> None:
        """Let those go on who wait for the reader, once it has taken half of the chunks."""
        if self.closed or len(self.chunks) <= MOST_WAITING // 2:
            with suppress(IndexError):
                while True:
                    self.waiting.pop()()

    def close(self) -> None:
        """Let nobody wait for the reader any longer, and nobody wake the driver."""
        self.closed = True
        self.wake = no_op
        self.release()

    def show_values(self, machine: Machine) -> None:
        """Show the state to readers; keep it if the result may be gone by the end of the call."""
        for stream in self.streams:
            stream.values(machine)
        if self.keeps_view and not self._key_set.isdisjoint(machine.changed or ()):
            self._view = machine.output(self.keys)

    def pause(
        self,
        questions: tuple[Interrupt, ...] = (),
        *,
        only_asked: bool = False,
        wake_at: datetime | None = None,
    ) -> None:
        """End the run with questions, or until a time."""
        self.questions, self.only_asked, self.wake_at = questions, only_asked, wake_at

    def stop(self, breakpoint: Breakpoint, following: Sequence[Task]) -> None:
        """End the run at a breakpoint, with these tasks to follow."""
        for stream in self.streams:
            stream.breakpoint()
        self.questions, self.breakpoint, self.following = (), breakpoint, following

    def keep_preview(self, machine: Machine, writes: Sequence[tuple[str, Any]]) -> None:
        """Let the result be the state with the writes of those tasks that finished in a superstep
        which did not end."""
        for stream in self.streams:
            stream.preview(machine, writes)
        self._view = machine.output_with(self.keys, writes)

    def result(self, machine: Machine) -> Any:
        """The last view of the state that came up in this call, or else the channels as they
        stand."""
        value = machine.output(self.keys) if self._view is MISSING else self._view
        if value == {} and not isinstance(self.keys, str):
            return None  # none of several channels holds a value
        return value
