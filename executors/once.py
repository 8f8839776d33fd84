"""`runtime.once` in a worker: before the effect the driver is asked what is recorded of it; after
it the driver records the result, before `once` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ..pregel.errors import GraphAbandoned, ShippingError
from ..pregel.running import ONCE, EffectRecord
from .pickling import PackedError, dumps, find_culprit, loads, pack_error, unpack_error
from .protocol import DriverTask


class OnceRequest(NamedTuple):
    """What a worker asks of the driver.

    Attributes:
        kind: "begin": may the effect be had, and what is recorded of it? "save": record it.
        result: what it returned.
    """

    kind: Literal["begin", "save"]
    key: str
    result: Any = None


class OnceReply(NamedTuple):
    """What the driver answers.

    Attributes:
        known: what the effect returned earlier, as a one-item tuple; empty if it is still to be
            had.
        error: why it must not be had, or could not be recorded.
    """

    known: tuple[Any, ...] = ()
    error: PackedError | None = None


class RequestedOnce:
    """An `EffectRecord` that the driver keeps.

    Args:
        request: sends a pickled `OnceRequest` and waits for the pickled `OnceReply`.
        awaits: `save` returns what is to be awaited.

    Raises:
        Exception: the driver refuses the effect.
    """

    def __init__(
        self, node: str, key: str, request: Callable[[bytes], bytes], *, awaits: bool
    ) -> None:
        self._node, self._key = node, key
        self._request, self._awaits = request, awaits
        self.known: tuple[Any, ...] = self._send(dumps(OnceRequest("begin", key)))

    def save(self, result: Any) -> Any:
        """Have it recorded.

        Raises:
            ShippingError: the result cannot be pickled. The effect was had.
            Exception: the driver could not record it. The effect was had.
        """
        try:
            data = dumps(OnceRequest("save", self._key, result))
        except Exception:
            error = ShippingError(self._node, *find_culprit(result, "result"))
            error.add_note(
                f"the result of runtime.once({self._key!r}), which has been called: let it return "
                "what can be pickled and stored, such as an id"
            )
            raise error from None
        if self._awaits:  # the function's other coroutines go on meanwhile
            return asyncio.to_thread(self._send, data)
        self._send(data)
        return None

    def _send(self, data: bytes) -> tuple[Any, ...]:
        reply: OnceReply = loads(self._request(data))
        if reply.error is not None:
            raise unpack_error(reply.error)
        return reply.known


class OnceKeeper:
    """The driver's side: keeps the effects of one attempt of a task.

    A call that is started again within the attempt (its worker has died) comes to its keys again.

    Args:
        is_over: whether the attempt is: it must have no further effects.
    """

    def __init__(self, task: DriverTask, is_over: Callable[[], bool]) -> None:
        self._task, self._is_over = task, is_over
        self._records: dict[str, EffectRecord] = {}

    def reply(self, data: bytes) -> bytes:
        """Answer a request. Does not raise an `Exception`: the worker is told of it."""
        try:
            return dumps(OnceReply(self._carry_out(loads(data))))
        except (Exception, GraphAbandoned) as error:
            return dumps(OnceReply(error=pack_error(error)))

    def _carry_out(self, request: OnceRequest) -> tuple[Any, ...]:
        if request.kind == "save":  # even of an attempt that is over: the effect was had
            self._records[request.key].save(request.result)
            return ()
        if self._is_over():
            raise GraphAbandoned
        record = self._task.begin_effect(ONCE, request.key, awaits=False)
        self._records[request.key] = record
        return record.known
