"""What an executor must offer, and what it carries. Records and contracts only: nothing here runs.

The driver keeps everything but the user's function: retry, cache, limits, answers, the machine, the
savers. So an executor needs to know no graph: it carries bytes to `serve` somewhere else, and bytes
back.
"""

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
        node: the node's name, for people.
        payload: what `serve` takes.
        parts: what `Executor.share` returned for the large parts; `serve` takes their bytes, in
            this order.
        sends_events: the function may send events, and somebody listens.
        sends_requests: the function takes the runtime, by which it may send requests
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
        """Wait for what `serve` returned. By then `on_event` has been given every event.

        Args:
            timeout: seconds, or None to wait as long as it takes. After a TimeoutError it may be
                asked again.

        Raises:
            TimeoutError: the call has not ended yet.
            Lost: its worker died.
        """

    def cancel(self) -> None:
        """End the call, if this executor can: nobody waits for it any longer. Must not wait, nor
        raise."""


class Executor:
    """A place where functions of nodes run. Subclass it for a place of your own.

    Attributes:
        name: for people.
        shares_main: workers import the driver's script, so that what it defines can be sent by
            name.
        quarantine: held while a call whose worker died runs again, where one death hits several
            calls. The calls that merely shared a worker then succeed, and only the one that kills
            workers fails.
    """

    name = "executor"
    shares_main = True
    quarantine: AbstractContextManager[Any] = nullcontext()

    def submit(self, call: RemoteCall, on_event: OnEvent) -> Handle:
        """Start a call: somewhere, `stategraph.executors.serve(call.payload, parts, send_event)`
        runs, and what it returns is the handle's result. May be called from several threads at
        once.

        An executor that can bring something back to a call that runs gives `serve` a fourth
        argument, `send_request`. Without it `runtime.once` is refused there.

        Args:
            on_event: must be given each event that `serve` sent, in order. Only if
                `call.sends_events`. The time of a call with a limit begins with its first event.
                Also each request: what it returns is the reply. Only if `call.sends_requests`.
        """
        raise NotImplementedError

    def share(self, blob: bytes) -> Any:
        """Put a large part where all workers reach it, so that it travels once per worker and not
        with each call.

        Returns:
            A reference for `RemoteCall.parts`; None if the part should travel in the payload.
        """
        return None

    def attach(self, blob: bytes) -> Any:
        """Take a large part that one call needs, as far as is known: what a `Send` brings. If
        another call needs it, too, it is shared then.

        Returns:
            As `share`, which does this by default.
        """
        return self.share(blob)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Lost(Exception):
    """The worker of a call died, or cannot be reached any more.

    Args:
        reason: what is known of it.
        tries: how many workers the call has cost by then.
        final: another try makes no sense.
    """

    def __init__(self, reason: str, *, tries: int = 1, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tries = tries
        self.final = final
