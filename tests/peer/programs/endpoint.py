"""An endpoint like OpenAI's on this machine, that answers what it was told to: with streams and calls of tools."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any

from langchain_openai import ChatOpenAI

os.environ["NO_PROXY"] = "127.0.0.1"
SCRIPTS: dict[str, Iterator[Any]] = {}
"""What is left to answer, by the first part of the path."""
_NUMBERS = count()


class Endpoint(BaseHTTPRequestHandler):
    """`POST /SCRIPT/v1/chat/completions`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = next(SCRIPTS[self.path.split("/")[1]])
        answer = answer if isinstance(answer, dict) else {"text": answer}
        head = {"id": answer.get("id", "chatcmpl-1"), "created": 1, "model": asked["model"]}
        if asked.get("stream"):
            deltas = [{"object": "chat.completion.chunk", **head, "choices": [each]} for each in _deltas(answer)]
            self._send("text/event-stream", [*map(json.dumps, deltas), "[DONE]"])
        else:
            choice = {"index": 0, "finish_reason": "stop", "message": _message(answer)}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._send("application/json", [json.dumps({"object": "chat.completion", **head, "choices": [choice], "usage": usage})])

    def _send(self, kind: str, parts: list[str]) -> None:
        body = "".join(f"data: {part}\n\n" for part in parts) if "event" in kind else parts[0]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


def _calls(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"index": index, "id": f"call_{name}_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for index, (name, args) in enumerate(answer.get("calls", ()))
    ]


def _message(answer: dict[str, Any]) -> dict[str, Any]:
    found = {"role": "assistant", "content": answer.get("text")}
    return {**found, "tool_calls": _calls(answer)} if answer.get("calls") else found


def _deltas(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    for word in re.findall(r"\S+\s*", answer.get("text") or ""):
        yield {"index": 0, "delta": {"content": word}, "finish_reason": None}
    for call in _calls(answer):
        function = call["function"]
        first = {**call, "function": {**function, "arguments": ""}}
        yield {"index": 0, "delta": {"tool_calls": [first]}, "finish_reason": None}
        for part in re.findall(r".{1,7}", function["arguments"]):
            piece = {"index": call["index"], "function": {"arguments": part}}
            yield {"index": 0, "delta": {"tool_calls": [piece]}, "finish_reason": None}
    yield {"index": 0, "delta": {}, "finish_reason": "tool_calls" if answer.get("calls") else "stop"}


def serve() -> str:
    """Serve in the background; the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


_ADDRESS = serve()


def chat(*answers: Any, **options: Any) -> ChatOpenAI:
    """A model of an endpoint that gives these answers in turn: texts, or dicts with `text` and `calls`."""
    script = f"s{next(_NUMBERS)}"
    SCRIPTS[script] = iter([{"id": f"chatcmpl-{i}", **(a if isinstance(a, dict) else {"text": a})} for i, a in enumerate(answers)])
    return ChatOpenAI(model="gpt-fake", api_key="none", base_url=f"{_ADDRESS}/{script}/v1", max_retries=0, **options)
