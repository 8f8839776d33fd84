"""Calls a chat model so that its tokens are sent to readers as they come; adds up the parts of a
dict message; describes requests to models and calls of tools for observers and budgets."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial, reduce
from typing import Any, Final

from ...pregel.observer import Operation
from ...pregel.run.tokens import emitter, message_id, sending, with_id
from ...pregel.running import RUNNING, PendingSpend, begin_spend, find_observed
from ...pregel.steps import Steps, arun_steps, run_steps
from .normalize import AnyMessage, unchunk


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
    return _call(model, messages, options, _ask, awaits=False)


def _call(
    model: Any, messages: Any, options: dict[str, Any], ask_model: Any, *, awaits: bool
) -> Any:
    """Ask a model, in the budget and inside the observers of the task."""
    if not hasattr(model, method := "ainvoke" if awaits else "invoke"):
        raise TypeError(f"model must be an object with {method}(messages), got {model!r:.200}")
    spend, observed = begin_spend(awaits=awaits), find_observed()
    if spend is None and observed is None:
        return ask_model(model, messages, options)
    if spend is not None:
        model = spend.choose(model)
    drive: Any = arun_steps if awaits else run_steps
    chat = describe_chat(model, options, messages)
    ask: Callable[[], Any] = partial(ask_model, model, messages, options)
    if spend is not None:
        ask = partial(_drive, drive, _spend, spend, chat, ask)
    if observed is None:
        return ask()
    return observed.call(partial(_drive, drive, _ask_as, chat, ask), chat, awaits=awaits)


def _drive(drive: Any, procedure: Callable[..., Steps[Any]], *args: Any) -> Any:
    return drive(procedure(*args))


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
    return await _call(model, messages, options, _aask, awaits=True)


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


# -- the parts of a dict message, as a model streams them, added up to the whole -------------------

_WHOLE: Final = frozenset(("role", "id", "name", "type", "status", "tool_call_id"))
"""Texts that come whole, and not in parts."""


def add_parts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that these are the parts of, in the form of OpenAI's `delta`.

    Texts are put together, tool calls are told apart by their `index` and `id`. Of anything else
    the last one counts.

    >>> add_parts([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])
    {'role': 'assistant', 'content': 'ab'}
    """
    whole: dict[str, Any] = {}
    calls = _Calls()
    for part in parts:
        for key, value in part.items():
            if key == "tool_calls":
                calls.add(value or ())
            elif key not in _WHOLE and type(value) is type(whole.get(key)) in (str, list):
                whole[key] += value
            elif value is not None or key not in whole:
                whole[key] = value
    if calls.found:
        whole["tool_calls"] = calls.found
    return whole


class _Calls:
    """Tool calls, put together from their pieces.

    Attributes:
        found: the calls, in the order in which they began.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._by_index: dict[int, dict[str, Any]] = {}

    def add(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        for place, piece in enumerate(pieces):
            call = self._find(piece, piece.get("index", place))
            call["id"] = call["id"] or piece.get("id")
            function = piece.get("function") or {}
            for field in ("name", "arguments"):
                call["function"][field] += function.get(field) or ""

    def _find(self, piece: Mapping[str, Any], index: int) -> dict[str, Any]:
        call = self._by_index.get(index)
        # Some servers give each call the index 0 and an id of its own.
        if call is None or (piece.get("id") and call["id"] and piece["id"] != call["id"]):
            call = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            self._by_index[index] = call
            self.found.append(call)
        return call


# -- what a call spends ----------------------------------------------------------------------------
# A call that fails keeps its reservation: the model may have answered.


def _spend(spend: PendingSpend, chat: Operation, ask: Callable[[], Any]) -> Steps[Any]:
    """Ask a model, and count what that spends of a budget."""
    yield spend.reserve()
    chat, began = CHAT.get() or chat, time.perf_counter()
    message = yield from _ask_as(chat, ask)
    yield spend.settle(*_usage(chat), time.perf_counter() - began)
    return message


def _usage(chat: Operation) -> tuple[str, tuple[float, float]]:
    """The name of a model that has answered, and the tokens of input and output."""
    found = chat.response
    tokens = (found.get("input_tokens") or 0, found.get("output_tokens") or 0)
    return chat.name or found.get("model") or "", tokens


# -- what observers are told -----------------------------------------------------------------------

CHAT: ContextVar[Operation | None] = ContextVar("stategraph_chat", default=None)
"""The request to a model that is observed in this context."""


def _ask_as(chat: Operation, ask: Callable[[], Any]) -> Steps[Any]:
    """Ask a model by this request, and note its answer there."""
    token = CHAT.set(chat)
    try:
        message = yield ask()
    finally:
        CHAT.reset(token)
    note_message(chat, message)
    return message


def note_response(
    *, id: Any = None, model: Any = None, finish_reason: Any = None, usage: Any = None
) -> None:
    """Note what a server says of an answer that is not in the message, if somebody observes it.

    Args:
        usage: a dict as OpenAI's protocol has it.
    """
    chat = CHAT.get()
    if chat is None:
        return
    found = {"id": id, "model": model, "finish_reasons": finish_reason and [finish_reason]}
    usage = usage or {}
    found["input_tokens"] = usage.get("prompt_tokens")
    found["output_tokens"] = usage.get("completion_tokens")
    chat.response.update({key: value for key, value in found.items() if value})


def describe_chat(model: Any, options: Mapping[str, Any], messages: Any = None) -> Operation:
    """A request to a model: its name and provider, as its attributes say."""
    name = getattr(model, "model", None) or getattr(model, "model_name", None)
    provider, own = getattr(model, "provider", None), getattr(model, "options", None)
    return Operation(
        kind="chat",
        name=name if isinstance(name, str) else "",
        provider=provider if isinstance(provider, str) else guess_provider(model),
        options={**(own if isinstance(own, Mapping) else {}), **options},
        request=messages,
    )


def describe_tool(call: Mapping[str, Any]) -> Operation:
    """A call of a tool, as a model asks for it."""
    asked = call["function"]
    return Operation(
        kind="execute_tool", name=asked["name"], call_id=call["id"], request=asked["arguments"]
    )


def guess_provider(model: Any) -> str:
    """Who offers a model that does not say: the package of its class, as LangChain names its
    own.

    >>> Chat = type("ChatAnthropic", (), {"__module__": "langchain_anthropic.chat_models"})
    >>> guess_provider(Chat())
    'anthropic'
    """
    return type(model).__module__.partition(".")[0].removeprefix("langchain_")


def note_message(chat: Operation, message: Any) -> None:
    """Note what a message tells of the model's answer: dicts with `usage`, as OpenAI's protocol has
    it, and LangChain's messages."""
    found: dict[str, Any] = {}
    if isinstance(message, Mapping):
        usage = _table(message.get("usage") or message.get("usage_metadata"))
        found["model"] = _table(message.get("response_metadata")).get("model_name")
        found["input_tokens"] = usage.get("prompt_tokens", usage.get("input_tokens"))
        found["output_tokens"] = usage.get("completion_tokens", usage.get("output_tokens"))
    else:
        usage = _table(getattr(message, "usage_metadata", None))
        about = _table(getattr(message, "response_metadata", None))
        reason = about.get("finish_reason") or about.get("stop_reason")
        found = {"model": about.get("model_name"), "finish_reasons": reason and [reason]}
        found["input_tokens"] = usage.get("input_tokens")
        found["output_tokens"] = usage.get("output_tokens")
    for key, value in found.items():
        if value is not None:
            chat.response.setdefault(key, value)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
