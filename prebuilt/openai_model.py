"""A chat model behind an endpoint that speaks OpenAI's chat-completions protocol.

By the official `openai` client, which is loaded when a model is first asked: it knows the
protocol's retries, timeouts, rate limits, proxies and streams, and all of it in async code too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from ..extras import install_command
from ..graph.messages.models import note_response
from ..graph.messages.normalize import strip_messages

Message = dict[str, Any]


class OpenAIModel:
    """A model at an OpenAI-like endpoint, for `create_agent` and `call_model`.

    The client reads `OPENAI_API_KEY` and `OPENAI_BASE_URL` (such as `http://localhost:8000/v1`)
    from the environment. Needs the extra `openai`.

    Args:
        model: the name of the model; `OPENAI_MODEL` of the environment by default.
        client: an `openai.OpenAI` of your own; also one for Azure.
        async_client: an `openai.AsyncOpenAI` of your own, for async runs.
        options: passed with each request: `temperature`, `max_completion_tokens`, ...

    Raises:
        ValueError: no model is named.
    """

    provider: str = "openai"
    """For observers: who offers it; may be set."""

    def __init__(
        self,
        model: str | None = None,
        *,
        client: Any = None,
        async_client: Any = None,
        **options: Any,
    ) -> None:
        self.model: str = model or os.environ.get("OPENAI_MODEL") or ""
        if not self.model:
            raise ValueError("a model must be named: OpenAIModel(name), or OPENAI_MODEL")
        self.options = options
        self._client = client
        self._async_client = async_client
        self._made: tuple[Any, Any] = (None, None)

    def invoke(self, messages: Sequence[Any], **options: Any) -> Message:
        """The answer, in one piece."""
        create = self._open().create
        return _message(create(**self._request(messages, options)))

    async def ainvoke(self, messages: Sequence[Any], **options: Any) -> Message:
        """`invoke` for async code."""
        create = self._aopen().create
        return _message(await create(**self._request(messages, options)))

    def stream(self, messages: Sequence[Any], **options: Any) -> Iterator[Message]:
        """The parts of the answer as they come."""
        create = self._open().with_raw_response.create
        answer = create(**self._request(messages, options), stream=True)
        if _is_whole(answer):
            answer.http_response.read()
            yield _whole(answer.http_response)
            return
        with answer.parse() as chunks:
            for chunk in chunks:
                yield _part(chunk)

    async def astream(self, messages: Sequence[Any], **options: Any) -> AsyncIterator[Message]:
        """`stream` for async code."""
        create = self._aopen().with_raw_response.create
        answer = await create(**self._request(messages, options), stream=True)
        if _is_whole(answer):
            await answer.http_response.aread()
            yield _whole(answer.http_response)
            return
        async with answer.parse() as chunks:
            async for chunk in chunks:
                yield _part(chunk)

    def _open(self) -> Any:
        if self._client is None:
            self._client = _load().OpenAI()
        return self._client.chat.completions

    def _aopen(self) -> Any:
        """An async client's connections belong to one event loop."""
        if self._async_client is not None:
            return self._async_client.chat.completions
        loop = asyncio.get_running_loop()
        if self._made[0] is not loop:
            self._made = loop, _load().AsyncOpenAI()
        return self._made[1].chat.completions

    def _request(self, messages: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": strip_messages(messages),
            **self.options,
            **options,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Clients hold connections and stay where they are."""
        return {**vars(self), "_client": None, "_async_client": None, "_made": (None, None)}


def _load() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ImportError(
            f"OpenAIModel needs the package openai: {install_command('openai')}"
        ) from error
    return openai


def _message(completion: Any) -> Message:
    choice, usage = completion.choices[0], completion.usage
    _note(completion, choice.finish_reason, usage and usage.to_dict())
    return _clean(choice.message.to_dict())


def _note(answer: Any, finish_reason: Any, usage: Any) -> None:
    note_response(id=answer.id, model=answer.model, finish_reason=finish_reason, usage=usage)


def _is_whole(answer: Any) -> bool:
    """Whether a server that was asked for a stream has sent the answer in one piece, as some do."""
    kind: str = answer.headers.get("content-type", "")
    return "json" in kind


def _whole(response: Any) -> Message:
    body = response.json()
    choice, given = body["choices"][0], body.get
    note_response(
        id=given("id"), model=given("model"), usage=given("usage"),
        finish_reason=choice.get("finish_reason"),
    )  # fmt: skip
    return _clean(choice["message"])


def _part(chunk: Any) -> Message:
    """A part of a message. The last one may have no choice and tell the usage."""
    delta = chunk.choices[0].delta.to_dict() if chunk.choices else {}
    reason = chunk.choices[0].finish_reason if chunk.choices else None
    _note(chunk, reason, chunk.usage and chunk.usage.to_dict())
    usage = {"usage": chunk.usage.to_dict()} if chunk.usage else {}
    return {**_clean(delta), **usage}


def _clean(message: Message) -> Message:
    """The message without what is null, with a role and a content. Its id is given by the state:
    servers do not all give one of its own to each answer."""
    known = {key: value for key, value in message.items() if value is not None and key != "id"}
    return {"role": "assistant", "content": "", **known}
