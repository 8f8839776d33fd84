"""The contract of an executor and the records it carries. No code here runs anything.

The driver keeps everything but the user's function: retry, cache, limits, answers, the machine, the
checkpointers. So an executor knows nothing of graphs: it carries bytes to `serve` somewhere else,
and bytes back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

OnEvent = Callable[[bytes], bytes | None]
"""Takes one event that a function sends while it runs, as `serve` gave it to its `send_event`; or
one request, as `serve` gave it to its `send_request`, and returns the reply. On any thread. A
request may take as long as to store something."""


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """One call of a node's function, pickled.

    Attributes:
        node: the node's name, for display.
        payload: the argument for `serve`.
        parts: what `Executor.share` returned for the large parts; `serve` takes their bytes, in
            this order.
        sends_events: whether the function may send events and something listens to them.
        sends_requests: whether the function takes the runtime, through which it may send requests
            (`runtime.once`).
    """

    node: str
    payload: bytes
    parts: tuple[Any, ...] = ()
    sends_events: bool = False
    sends_requests: bool = False


class Handle(Protocol):
    """A call that was submitted."""

    def result(self, timeout: float | None = None) -> bytes:
        """Wait for the result of `serve` and return it. By then `on_event` has received every
        event.

        Args:
            timeout: seconds, or None to wait as long as it takes. After a TimeoutError the method
                may be called again.

        Raises:
            TimeoutError: the call has not ended yet.
            Lost: its worker died.
        """

    def cancel(self) -> None:
        """End the call if this executor can; nobody waits for it any longer. Must not wait or
        raise."""


class Executor:
    """Runs functions of nodes somewhere else. Subclass it for your own backend.

    Attributes:
        name: the executor's name, for display.
        shares_main: whether workers import the driver's script, so that its definitions can be sent
            by name.
        quarantine: entered while a call whose worker died runs again, if one death hits several
            calls. Calls that merely shared the worker then succeed, and only the call that kills
            workers fails.
    """

    name = "executor"
    shares_main = True
    quarantine: AbstractContextManager[Any] = nullcontext()

    def submit(self, call: RemoteCall, on_event: OnEvent) -> Handle:
        """Start a call: run `stategraph.executors.serve(call.payload, parts, send_event)` somewhere
        and make its return value the handle's result. May be called from several threads at once.

        An executor that can send replies to a running call passes `serve` a fourth argument,
        `send_request`. Without it `runtime.once` is refused there.

        Args:
            on_event: must be called with each event that `serve` sent, in order, if
                `call.sends_events`. The time of a call with a limit begins with its first event.
                Also with each request, if `call.sends_requests`; its return value is the reply.
        """
        raise NotImplementedError

    def share(self, blob: bytes) -> Any:
        """Store a large part where all workers can reach it, so that it is sent once per worker
        instead of with each call.

        Returns:
            A reference for `RemoteCall.parts`; None if the part should travel in the payload.
        """
        return None

    def attach(self, blob: bytes) -> Any:
        """Accept a large part that only one call is known to need: the argument of a `Send`. If
        another call needs it too, it is shared then.

        Returns:
            As `share`, which the default implementation calls.
        """
        return self.share(blob)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Lost(Exception):
    """The worker of a call died or can no longer be reached.

    Args:
        reason: what is known about the cause.
        tries: how many workers the call has lost so far.
        final: whether another try is pointless.
    """

    def __init__(self, reason: str, *, tries: int = 1, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tries = tries
        self.final = final
