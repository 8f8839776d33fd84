"""Calling a chat model so that its tokens are sent to readers as they come."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from ...pregel.run.tokens import emitter, message_id, sending, with_id
from ...pregel.running import RUNNING, find_observed
from .normalize import AnyMessage, unchunk
from .parts import add_parts


def call_model(model: Any, messages: Any, **options: Any) -> AnyMessage:
    """Call a chat model; if somebody reads the `messages` stream, its tokens are sent there as they
    come.

    The answer is the same either way: a sum of chunks is turned into the message they are chunks
    of.

    Args:
        model: an object with `invoke(messages, **options)`. Its tokens can be sent if it also has
            `stream(messages, **options)`, which yields chunks that can be added up with `+`, or
            dicts in the form of OpenAI's `delta`.

    Returns:
        The model's answer.

    Raises:
        ValueError: the model's stream was empty.
    """
    observed = find_observed()
    if observed is not None:
        from .operations import chat_inside

        return chat_inside(observed, model, options, partial(_ask, model, messages, options))
    return _ask(model, messages, options)


def _ask(model: Any, messages: Any, options: dict[str, Any]) -> Any:
    emit = _token_emitter(model, "stream")
    if emit is None:
        return model.invoke(messages, **options)
    summing = _Summing(emit)
    with sending():
        for chunk in model.stream(messages, **options):
            summing.add(chunk)
    return summing.message()


async def acall_model(model: Any, messages: Any, **options: Any) -> AnyMessage:
    """`call_model` by the model's `ainvoke` and `astream`."""
    observed = find_observed()
    if observed is not None:
        from .operations import achat_inside

        ask = partial(_aask, model, messages, options)
        return await achat_inside(observed, model, options, ask)
    return await _aask(model, messages, options)


async def _aask(model: Any, messages: Any, options: dict[str, Any]) -> Any:
    emit = _token_emitter(model, "astream")
    if emit is None:
        return await model.ainvoke(messages, **options)
    summing = _Summing(emit)
    with sending():
        async for chunk in model.astream(messages, **options):
            summing.add(chunk)
    return summing.message()


def _token_emitter(model: Any, method: str) -> Callable[[Any], None] | None:
    """Where the model's tokens go; None if it sends none, nobody reads them, or no graph is
    running."""
    task = RUNNING.get()
    if task is not None and hasattr(model, method):
        return emitter(task)
    return None


class _Summing:
    """Chunks that are sent, each with the id of the whole message, and added up at the end."""

    __slots__ = ("_chunks", "_emit", "_id")

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit
        self._id: Any = None
        self._chunks: list[Any] = []

    def add(self, chunk: Any) -> None:
        chunk = with_id(chunk, self._id)  # the first decides
        self._id = message_id(chunk) if self._id is None else self._id
        self._emit(chunk)
        self._chunks.append(chunk)

    def message(self) -> Any:
        if not self._chunks:
            raise ValueError("the model's stream ended without a chunk")
        return with_id(unchunk(add_up(self._chunks)), self._id)


def add_up(chunks: Sequence[Any]) -> Any:
    """The sum of some chunks, at least one. LangChain's are added in one go: one by one, each costs
    as much as a new message (benchmark P37)."""
    first, *rest = chunks
    if isinstance(first, dict):
        return add_parts(chunks)
    known = getattr(sys.modules.get("langchain_core.messages"), "AIMessageChunk", None)
    if rest and known is not None:
        add = known.__add__
        if all(isinstance(each, known) and type(each).__add__ is add for each in chunks):
            return first + rest
    return reduce(operator.add, rest, first)
