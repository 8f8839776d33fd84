"""Calling a chat model so that its tokens are sent to readers as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...pregel.run.tokens import emitter, message_id, with_id
from ...pregel.runtime import RUNNING
from .normalize import AnyMessage, unchunk


def call_model(model: Any, messages: Any, **options: Any) -> AnyMessage:
    """Call a chat model; if somebody reads the `messages` stream, its tokens are sent there as they
    come.

    The answer is the same either way: a sum of chunks is turned into the message they are chunks
    of.

    Args:
        model: an object with `invoke(messages, **options)`. Its tokens can be sent if it also has
            `stream(messages, **options)`, which yields chunks that can be added up with `+`.

    Returns:
        The model's answer.

    Raises:
        ValueError: the model's stream was empty.
    """
    emit = _token_emitter(model, "stream")
    if emit is None:
        return model.invoke(messages, **options)
    summing = _Summing(emit)
    for chunk in model.stream(messages, **options):
        summing.add(chunk)
    return summing.message()


async def acall_model(model: Any, messages: Any, **options: Any) -> AnyMessage:
    """`call_model` by the model's `ainvoke` and `astream`."""
    emit = _token_emitter(model, "astream")
    if emit is None:
        return await model.ainvoke(messages, **options)
    summing = _Summing(emit)
    async for chunk in model.astream(messages, **options):
        summing.add(chunk)
    return summing.message()


def _token_emitter(model: Any, method: str) -> Callable[[Any], None] | None:
    """Where the model's tokens go; None if it sends none, nobody reads them, or no graph is
    running."""
    task = RUNNING.get()
    return emitter(task) if task is not None and hasattr(model, method) else None


class _Summing:
    """Chunks that are sent, each with the id of the whole message, and added up."""

    __slots__ = ("_emit", "_id", "_sum")

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit
        self._id: Any = None
        self._sum: Any = None

    def add(self, chunk: Any) -> None:
        chunk = with_id(chunk, self._id)  # the first decides
        self._id = message_id(chunk) if self._id is None else self._id
        self._emit(chunk)
        self._sum = chunk if self._sum is None else self._sum + chunk

    def message(self) -> Any:
        if self._sum is None:
            raise ValueError("the model's stream ended without a chunk")
        return with_id(unchunk(self._sum), self._id)
