"""What observers are told of a request to a model, or of the call of a tool. Loaded with the first
one that is observed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from ...pregel.observer import Operation

CHAT: ContextVar[Operation | None] = ContextVar("stategraph_chat", default=None)
"""The request to a model that is observed in this context."""


def chat_inside(
    observed: Any, model: Any, options: Mapping[str, Any], ask: Callable[[], Any]
) -> Any:
    """Ask a model inside the observers of an attempt."""
    chat = describe_chat(model, options)

    def call() -> Any:
        token = CHAT.set(chat)
        try:
            message = ask()
        finally:
            CHAT.reset(token)
        note_message(chat, message)
        return message

    return observed.operate(chat, call)


async def achat_inside(
    observed: Any, model: Any, options: Mapping[str, Any], ask: Callable[[], Awaitable[Any]]
) -> Any:
    """`chat_inside` for coroutines."""
    chat = describe_chat(model, options)

    async def call() -> Any:
        token = CHAT.set(chat)
        try:
            message = await ask()
        finally:
            CHAT.reset(token)
        note_message(chat, message)
        return message

    return await observed.aoperate(chat, call)


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


def describe_chat(model: Any, options: Mapping[str, Any]) -> Operation:
    """A request to a model: its name and provider, as its attributes say."""
    name = getattr(model, "model", None) or getattr(model, "model_name", None)
    provider, own = getattr(model, "provider", None), getattr(model, "options", None)
    return Operation(
        kind="chat",
        name=name if isinstance(name, str) else "",
        provider=provider if isinstance(provider, str) else guess_provider(model),
        options={**(own if isinstance(own, Mapping) else {}), **options},
    )


def describe_tool(call: Mapping[str, Any]) -> Operation:
    """A call of a tool, as a model asks for it."""
    return Operation(kind="execute_tool", name=call["function"]["name"], call_id=call["id"])


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
        usage = message.get("usage") or {}
        found["input_tokens"] = usage.get("prompt_tokens")
        found["output_tokens"] = usage.get("completion_tokens")
    else:
        usage = getattr(message, "usage_metadata", None) or {}
        about = getattr(message, "response_metadata", None) or {}
        reason = about.get("finish_reason") or about.get("stop_reason")
        found = {"model": about.get("model_name"), "finish_reasons": reason and [reason]}
        found["input_tokens"] = usage.get("input_tokens")
        found["output_tokens"] = usage.get("output_tokens")
    for key, value in found.items():
        if value is not None:
            chat.response.setdefault(key, value)
