"""Requests to models and calls of tools in the words of OpenTelemetry's semantic conventions, as
version 1.41 has them. Of what is said and answered nothing is recorded: it may be secret.
"""

from __future__ import annotations

from typing import Any, Final

from ..pregel.observer import Operation

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
_OPTIONS: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
"""Options of OpenAI's protocol, which others share."""
_RESPONSE: Final = {
    "id": "gen_ai.response.id",
    "model": "gen_ai.response.model",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
GEN_AI_METRIC_KEYS: Final = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
)
"""The attributes of measurements: those with few values."""


def gen_ai_request(chat: Operation) -> dict[str, Any]:
    """The attributes of a request to a model."""
    options = {
        _OPTIONS[key]: value
        for key, value in chat.options.items()
        if key in _OPTIONS and isinstance(value, (int, float))
    }
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": chat.provider,
        "gen_ai.request.model": chat.name or None,
        **options,
    }


def gen_ai_response(operation: Operation) -> dict[str, Any]:
    """The attributes of a model's answer, as far as it is known."""
    known = operation.response
    return {name: known[key] for key, name in _RESPONSE.items() if known.get(key) is not None}


def gen_ai_tool(operation: Operation) -> dict[str, Any]:
    """The attributes of the call of a tool."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": operation.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": operation.call_id,
    }
