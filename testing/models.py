"""A chat model that says what a script says: for tests of agents, without a network."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from .asserts import CheckFailed

Message: TypeAlias = dict[str, Any]
Line: TypeAlias = str | Message | Exception | Callable[[list[Message]], "str | Message"]


class ScriptedModel:
    """A model for `create_agent` and `call_model` whose answers are written down.

    Args:
        script: its answers in turn: a text, a message, an error to raise, or a function of the
            messages that returns one of the first two.

    Attributes:
        requests: what it was asked, each as (messages, options).

    >>> model = ScriptedModel([{"tool_calls": [tool_call("height", name="Etna")]}, "3369 m"])
    >>> model.invoke([])["tool_calls"][0]["function"]
    {'name': 'height', 'arguments': '{"name": "Etna"}'}
    >>> [part["content"] for part in model.stream([])]
    ['3369', ' m']
    """

    def __init__(self, script: Iterable[Line]) -> None:
        self._script = iter(script)
        self.requests: list[tuple[list[Message], dict[str, Any]]] = []

    def invoke(self, messages: Sequence[Message], **options: Any) -> Message:
        """The next answer.

        Raises:
            CheckFailed: the script has ended.
        """
        self.requests.append((deepcopy(list(messages)), options))
        line = next(self._script, None)
        if line is None:
            raise CheckFailed(f"the model was asked {len(self.requests)} times, its script is over")
        if isinstance(line, Exception):
            raise line
        answer = line(list(messages)) if callable(line) else line
        message = {"content": answer} if isinstance(answer, str) else answer
        return {"role": "assistant", "content": "", **deepcopy(message)}

    async def ainvoke(self, messages: Sequence[Message], **options: Any) -> Message:
        """The next answer."""
        return self.invoke(messages, **options)

    def stream(self, messages: Sequence[Message], **options: Any) -> Iterator[Message]:
        """The next answer word by word, then its tool calls, each in two pieces."""
        message = self.invoke(messages, **options)
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


def tool_call(tool: str, /, id: str | None = None, **arguments: Any) -> Message:
    """A call of a tool, as models ask for it.

    Args:
        tool: its name.
        id: of the call; made of the tool and the arguments by default.
        arguments: what it is called with.
    """
    text = json.dumps(arguments)
    function = {"name": tool, "arguments": text}
    return {"id": id or f"{tool}-{text}", "type": "function", "function": function}
