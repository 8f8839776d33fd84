"""What crosses between the driver and an executor, and what an executor must offer. Records only: nothing here runs.

The driver keeps everything but the user's function: retry, cache, limits, answers, the machine, the savers. So an
executor needs to know no graph: it carries bytes to `serve` somewhere else, and bytes back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

Hear = Callable[[bytes], None]
"""Takes one event that a function sends while it runs, as `serve` gave it to its `tell`, on any thread."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a node's function, packed.

    Attributes:
        node: the node's name, for people.
        payload: what `serve` takes.
        parts: what `Executor.share` returned for the large parts; `serve` wants their bytes, in this order.
        speaks: the function may send events, and somebody listens.
    """

    node: str
    payload: bytes
    parts: tuple[Any, ...] = ()
    speaks: bool = False


class Flight(Protocol):
    """A call that is under way."""

    def result(self, timeout: float | None = None) -> bytes:
        """What `serve` returned; waits for it. By then every event has been heard.

        Args:
            timeout: seconds, or None to wait as long as it takes. After a TimeoutError it may be asked again.

        Raises:
            TimeoutError: it is not there yet.
            Lost: the worker died.
        """

    def cancel(self) -> None:
        """Nobody waits any longer: end the call if this executor can. It must not wait, nor raise."""


class Executor:
    """A place where functions of nodes run. Subclass it for a place of your own.

    Attributes:
        name: for people.
        shares_main: workers import the driver's script, so that what it defines can be sent by name.
        quarantine: held while a call runs again whose worker has died, where the death of a worker hits several calls:
            alone, the one that did it is found, and the others are cleared.
    """

    name = "executor"
    shares_main = True
    quarantine: AbstractContextManager[Any] = nullcontext()

    def submit(self, call: Call, hear: Hear) -> Flight:
        """Start a call: somewhere, `stategraph.executors.serve(call.payload, parts, tell)` runs, and what it returns is
        the flight's result. It may be called from several threads at once.

        Args:
            hear: to be given each event that `serve` told, in order. Only if `call.speaks`. The time of a limited call
                begins with the first.
        """
        raise NotImplementedError

    def share(self, blob: bytes) -> Any:
        """Put a large part where all workers reach it, so that it travels once per worker and not with each call.

        Returns:
            Its handle, for `Call.parts`; None if it should travel in the payload.
        """
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Lost(Exception):
    """The worker of a call died, or was lost.

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
