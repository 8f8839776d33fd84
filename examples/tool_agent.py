"""An agent with tools: a model answers or calls tools, which run concurrently, until it calls no
more.

    python -m stategraph.examples.tool_agent [QUESTION]

By default the model is a script that knows one question. Set OPENAI_BASE_URL (such as
http://localhost:8000/v1), OPENAI_API_KEY and optionally OPENAI_MODEL to use a server that speaks
the /chat/completions protocol; that needs the extra `openai`. Both answer in parts, which are
printed as they arrive.
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from stategraph import CompiledStateGraph
from stategraph.prebuilt import OpenAIModel, ToolCallError, create_agent

Json = dict[str, Any]
QUESTION = "How many times higher is Mount Everest than the Eiffel Tower?"

# -- the tools -------------------------------------------------------------------------------------

HEIGHTS = {"mount everest": 8849, "eiffel tower": 330, "mont blanc": 4806}
OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def height(name: str) -> str:
    """Height of a mountain or building in metres."""
    return str(HEIGHTS[name.lower()])


def calculate(expression: str) -> str:
    """Value of two numbers with one of + - * / between them, such as 2 * 3.5."""
    found = re.fullmatch(r"\s*(-?[\d.]+)\s*([-+*/])\s*(-?[\d.]+)\s*", expression)
    if found is None:
        raise ValueError(f"cannot calculate {expression!r}")
    left, sign, right = found.groups()
    return f"{OPERATORS[sign](float(left), float(right)):.6g}"


# -- the models ------------------------------------------------------------------------------------


class Script:
    """A stand-in for a language model: the next message follows from the tool results so far."""

    def invoke(self, messages: list[Json], **_: Any) -> Json:
        """Return the next message."""
        results = [message["content"] for message in messages if message["role"] == "tool"]
        calls: list[tuple[str, Json]] = []
        text = ""
        if messages[0]["content"] != QUESTION:
            text = f"I am a script and only know: {QUESTION}"
        elif not results:
            text = "Let me look."
            calls = [("height", {"name": name}) for name in ("Mount Everest", "Eiffel Tower")]
        elif len(results) == 2:
            calls = [("calculate", {"expression": f"{results[0]} / {results[1]}"})]
        else:
            text = f"Mount Everest is {float(results[2]):.1f} times higher."
        asked = []
        for number, (name, arguments) in enumerate(calls, len(results)):
            function = {"name": name, "arguments": json.dumps(arguments)}
            asked.append({"id": f"call-{number}", "type": "function", "function": function})
        return {"role": "assistant", "content": text, "tool_calls": asked}

    def stream(self, messages: list[Json], **_: Any) -> Iterator[Json]:
        """Yield the next message in parts: word by word, then the calls."""
        message = self.invoke(messages)
        for word in message["content"].replace(" ", " \0").split("\0"):
            yield {"role": "assistant", "content": word}
        yield {**message, "content": ""}


def find_model() -> Any:
    """Return a server's model if the environment names one, otherwise the script."""
    if os.environ.get("OPENAI_BASE_URL") and os.environ.get("OPENAI_API_KEY"):
        return OpenAIModel(os.environ.get("OPENAI_MODEL", "gpt-4o-mini"))
    return Script()


# -- the agent -------------------------------------------------------------------------------------

TOLD = (ToolCallError, LookupError, ValueError, ArithmeticError)
"""Errors that are reported to the model, so that it can correct itself; they do not end the run."""


def build(model: Any) -> CompiledStateGraph:
    """Build the graph: model -> tools -> model ..., until the model calls no tool."""
    return create_agent(model, [height, calculate], handle_tool_errors=TOLD, name="tool_agent")


def main(question: str) -> None:
    """Print the text as it arrives, and the calls with their results."""
    app = build(find_model())
    state = {"messages": [{"role": "user", "content": question}]}
    print(f"user: {question}")
    called: dict[str, Json] = {}
    for mode, chunk in app.stream(
        state, {"recursion_limit": 20}, stream_mode=["messages", "updates"]
    ):
        if mode == "messages":  # (part of a message, its metadata)
            if chunk[0]["role"] == "assistant":
                print(chunk[0]["content"], end="", flush=True)
        elif "model" in chunk:
            print()
            calls = chunk["model"]["messages"].get("tool_calls", [])
            called = {call["id"]: call["function"] for call in calls}
        elif "tools" not in chunk:  # one call; all of them follow under the name of the node
            [update] = chunk.values()
            result = update["messages"]
            call = called[result["tool_call_id"]]
            print(f"  {call['name']}({call['arguments']}) = {result['content']}")


def run(question: str) -> None:
    """Ask, and explain in one sentence if no answer arrives."""
    if not isinstance(find_model(), OpenAIModel):
        main(question)
        return
    from openai import APIConnectionError, APIStatusError

    try:
        main(question)
    except APIStatusError as error:
        said = f"{error.status_code}: {error.response.reason_phrase}: {error.response.text}"
        sys.exit(f"the model's server says HTTP Error {said}")
    except APIConnectionError as error:
        sys.exit(f"the model cannot be asked: {error}")


if __name__ == "__main__":
    run(" ".join(sys.argv[1:]) or QUESTION)
