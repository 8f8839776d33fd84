"""A chat model with scripted answers, for tests of agents without a network."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, TypeAlias

from ..channels.base import check_kind
from .asserts import CheckFailed

Message: TypeAlias = dict[str, Any]
Line: TypeAlias = str | Message | Exception | Callable[[list[Any]], "str | Message"] | Any
"""Any: a message of LangChain."""


class ScriptedModel:
    """A model with scripted answers for `create_agent` and `call_model`. For agents made with
    LangChain, see `as_langchain`.

    Args:
        script: the answers in order: a text, a message, an error to raise, or a function of the
            messages that returns one of the first two.

    Attributes:
        requests: the requests it received, each as (messages, options).

    >>> model = ScriptedModel([{"tool_calls": [tool_call("height", name="Etna")]}, "3369 m"])
    >>> model.invoke([])["tool_calls"][0]["function"]
    {'name': 'height', 'arguments': '{"name": "Etna"}'}
    >>> [part["content"] for part in model.stream([])]
    ['3369', ' m']
    """

    provider: str = "stategraph.testing"

    def __init__(self, script: Iterable[Line]) -> None:
        check_kind("script", script, Iterable, "a list of answers")
        self._script: Iterator[Line] = iter(script)
        self.requests: list[tuple[list[Message], dict[str, Any]]] = []

    def invoke(self, messages: Sequence[Message], **options: Any) -> Message:
        """The next answer.

        Raises:
            CheckFailed: the script has ended; the error shows what the model was asked.
        """
        answer: Message = self._answer(messages, options)
        return answer

    def _answer(self, messages: Sequence[Any], options: dict[str, Any]) -> Any:
        self.requests.append((deepcopy(list(messages)), options))
        line = next(self._script, None)
        if line is None:
            raise CheckFailed(
                f"the model was asked {len(self.requests)} times, but its script is over; "
                f"the last time with {show_request(messages)}"
            )
        if isinstance(line, Exception):
            raise line
        answer = line(list(messages)) if callable(line) else line
        message = {"content": answer} if isinstance(answer, str) else answer
        if not isinstance(message, Mapping):  # a message of LangChain
            return deepcopy(message)
        return {"role": "assistant", "content": "", **deepcopy(message)}

    def check_used_up(self) -> None:
        """Check that the whole script was used.

        Raises:
            CheckFailed: there is a next answer; the error shows it.
        """
        line = next(self._script, None)
        if line is not None:
            self._script = chain((line,), self._script)
            raise CheckFailed(
                f"the model was asked only {len(self.requests)} times; its next answer would be "
                f"{line!r:.200}"
            )

    def as_langchain(self) -> Any:
        """Return the model as a `BaseChatModel` of LangChain: for `langchain.agents.create_agent`,
        `prompt | model`, `bind_tools` and `with_structured_output`. Its answers may be LangChain's
        messages, too; `requests` shows its questions, with the tools in OpenAI's form.

        Raises:
            ImportError: `langchain-core` is not installed.
        """
        from ..compat.langchain.scripted import ScriptedChatModel

        return ScriptedChatModel(scripted=self)

    async def ainvoke(self, messages: Sequence[Message], **options: Any) -> Message:
        """The next answer."""
        return self.invoke(messages, **options)

    def stream(self, messages: Sequence[Message], **options: Any) -> Iterator[Message]:
        """The next answer word by word, then its tool calls, each in two pieces."""
        message = self._answer(messages, options)
        if not isinstance(message, dict):
            yield message
            return
        calls = message.pop("tool_calls", [])
        for word in re.findall(r"\s*\S+|\s+$", message["content"]) or [""]:
            yield {**message, "content": word}
        for index, call in enumerate(calls):
            name, text = call["function"]["name"], call["function"]["arguments"]
            begun = {**call, "function": {"name": name, "arguments": text[:3]}}
            for piece in (begun, {"function": {"arguments": text[3:]}}):
                yield {**message, "content": "", "tool_calls": [{"index": index, **piece}]}

    async def astream(self, messages: Sequence[Message], **options: Any) -> AsyncIterator[Message]:
        """The parts of the next answer."""
        for part in self.stream(messages, **options):
            yield part


def show_request(messages: Sequence[Any]) -> str:
    """What a model was asked: how long the conversation is, and its last message."""
    if not messages:
        return "no message"
    last = messages[-1]
    if isinstance(last, Mapping):
        role, content = last.get("role", "message"), last.get("content")
    else:
        role, content = getattr(last, "type", "message"), getattr(last, "content", last)
    return f"message {len(messages)}, {role}: {content!r:.500}"


def tool_call(tool: str, /, id: str | None = None, **arguments: Any) -> Message:
    """Return a tool call in the form that models use.

    Args:
        tool: the tool's name.
        id: the call's id; derived from the tool and the arguments by default.
        arguments: the arguments of the call.
    """
    text = json.dumps(arguments)
    function = {"name": tool, "arguments": text}
    return {"id": id or f"{tool}-{text}", "type": "function", "function": function}
