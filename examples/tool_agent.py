"""An agent with tools: a model answers or asks for tools, every call is a task of its own, until
nothing is asked.

    python -m stategraph.examples.tool_agent [QUESTION]

By default the model is a script that knows one question. With OPENAI_BASE_URL (such as
http://localhost:8000/v1) and OPENAI_API_KEY in the environment, and OPENAI_MODEL if it matters, a
server that speaks the /chat/completions protocol answers. Both give an answer in parts, which are
printed as they come.
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from stategraph import END, START, CompiledStateGraph, MessagesState, Send, StateGraph
from stategraph.graph import stream_text

Json = dict[str, Any]
Model = Callable[[list[Json]], Iterator[Json]]  # the messages so far -> the parts of the next one
QUESTION = "How many times higher is Mount Everest than the Eiffel Tower?"

# -- the tools -------------------------------------------------------------------------------------

HEIGHTS = {"mount everest": 8849, "eiffel tower": 330, "mont blanc": 4806}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


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


Tool = tuple[Callable[[str], str], str]  # the function, and the name of its parameter
TOOLS: dict[str, Tool] = {"height": (height, "name"), "calculate": (calculate, "expression")}

# -- the models ------------------------------------------------------------------------------------


def scripted(messages: list[Json]) -> Iterator[Json]:
    """Stands in for a language model: what comes next follows from the results of the tools so
    far."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if messages[0]["content"] != QUESTION:
        calls, text = [], f"I am a script and only know: {QUESTION}"
    elif not results:
        calls, text = (
            [("height", {"name": "Mount Everest"}), ("height", {"name": "Eiffel Tower"})],
            "Let me look.",
        )
    elif len(results) == 2:
        calls, text = [("calculate", {"expression": f"{results[0]} / {results[1]}"})], ""
    else:
        calls, text = [], f"Mount Everest is {float(results[2]):.1f} times higher."
    yield from ({"content": word} for word in text.replace(" ", " \0").split("\0"))
    for index, (name, arguments) in enumerate(calls):
        call = {
            "id": f"call-{len(results) + index}",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        yield {"tool_calls": [{"index": index, **call}]}


def served(messages: list[Json], *, url: str, key: str, model: str) -> Iterator[Json]:
    """Ask a server. It may stream its answer as events, or send it whole, which is then the only
    part."""
    said = [
        {k: v for k, v in message.items() if k != "id"} for message in messages
    ]  # ids are our own
    tools = []
    for name, (tool, parameter) in TOOLS.items():
        parameters = {
            "type": "object",
            "properties": {parameter: {"type": "string"}},
            "required": [parameter],
        }
        function = {"name": name, "description": tool.__doc__, "parameters": parameters}
        tools.append({"type": "function", "function": function})
    body = json.dumps({"model": model, "messages": said, "tools": tools, "stream": True}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(
        Request(url.rstrip("/") + "/chat/completions", body, headers), timeout=60
    ) as answer:
        if answer.headers.get_content_type() != "text/event-stream":
            yield json.load(answer)["choices"][0]["message"]
            return
        for line in answer:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield from (choice["delta"] for choice in json.loads(data)["choices"])


# -- the graph -------------------------------------------------------------------------------------


def think(model: Model, state: MessagesState) -> Json:
    """Ask the model. `stream_text` sends every part to whoever reads the run, and returns the whole
    message."""
    calls: dict[int, Json] = {}

    def text() -> Iterator[str]:
        for part in model(state["messages"]):
            for at, piece in enumerate(
                part.get("tool_calls") or []
            ):  # a call may come in pieces, told by its index
                blank = {
                    "id": piece.get("id"),
                    "type": "function",
                    "function": {"name": "", "arguments": ""},
                }
                call = calls.setdefault(piece.get("index", at), blank)
                for field in ("name", "arguments"):
                    call["function"][field] += piece["function"].get(field) or ""
            yield part.get("content") or ""

    message = stream_text(text())
    return {"messages": {**message, "tool_calls": list(calls.values())} if calls else message}


def call_tool(call: Json) -> Json:
    """One call. A mistake of the model's is told to the model, which may do better; it does not end
    the run."""
    name = call["function"]["name"]
    try:
        tool, parameter = TOOLS[name]
        result = tool(json.loads(call["function"]["arguments"])[parameter])
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        result = f"error in {name}: {error!r}"
    return {"messages": {"role": "tool", "tool_call_id": call["id"], "content": result}}


def send_calls(state: MessagesState) -> list[Send] | str:
    """One task per call, side by side; their results are joined in the order of the calls."""
    return [Send("call_tool", call) for call in state["messages"][-1].get("tool_calls", [])] or END


def build(model: Model) -> CompiledStateGraph:
    """think -> call_tool, as often as asked -> think ..."""
    graph = StateGraph(MessagesState)
    graph.add_node("think", partial(think, model))
    graph.add_node("call_tool", call_tool)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", send_calls, ["call_tool", END])
    graph.add_edge("call_tool", "think")
    return graph.compile(name="tool_agent")


def main(question: str) -> None:
    """Print the text as it comes, and the calls with their results."""
    url, key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")
    name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    app = build(partial(served, url=url, key=key, model=name) if url and key else scripted)
    state = {"messages": [{"role": "user", "content": question}]}
    print(f"user: {question}")
    called: dict[str, Json] = {}
    for mode, chunk in app.stream(
        state, {"recursion_limit": 20}, stream_mode=["messages", "updates"]
    ):
        if (
            mode == "messages" and chunk[0]["role"] == "assistant"
        ):  # (part of a message, where it is from)
            print(chunk[0]["content"], end="", flush=True)
        elif mode == "updates" and "think" in chunk:
            print()
            called = {
                call["id"]: call["function"]
                for call in chunk["think"]["messages"].get("tool_calls", [])
            }
        elif mode == "updates":
            result = chunk["call_tool"]["messages"]
            call = called[result["tool_call_id"]]
            print(f"  {call['name']}({call['arguments']}) = {result['content']}")


if __name__ == "__main__":
    try:
        main(" ".join(sys.argv[1:]) or QUESTION)
    except HTTPError as error:
        with error:
            sys.exit(f"the model's server says {error}: {error.read().decode(errors='replace')}")
    except URLError as error:
        sys.exit(f"the model cannot be asked: {error}")
