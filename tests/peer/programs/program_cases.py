"""What the programs share: cases that note what they see, handlers that note what they are told, scripted models."""

from __future__ import annotations

import asyncio
import json
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.chat_models import BaseChatModel, generate_from_stream
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool

CASES: dict[str, Callable[[Callable[..., None]], None]] = {}
UNCAUGHT = "uncaught"
"""How the line of a case begins that has failed."""
# They hold ids, of the checkpoints or of the task.
UNSTABLE = ("langgraph_checkpoint_ns", "checkpoint_ns")


def case(function: Callable[[Callable[..., None]], None]) -> Callable[[Callable[..., None]], None]:
    """Register a case: a function that is given `note`."""
    CASES[function.__name__] = function
    return function


def run_cases() -> None:
    """Run all cases, and print what each has noted as one line of JSON."""
    warnings.simplefilter("ignore")
    noted: dict[str, list[str]] = {}
    for name, function in CASES.items():
        lines = noted[name] = []

        def note(*words: Any, lines: list[str] = lines) -> None:
            lines.append(" ".join(str(word) for word in words))

        try:
            function(note)
        except Exception as error:
            traceback.print_exc()
            note(UNCAUGHT, type(error).__name__)
    print()
    print(json.dumps(noted))


class Handler(BaseCallbackHandler):
    """Notes what it is told, runs by their names."""

    def __init__(self, note: Callable[..., None]) -> None:
        self.note = note
        self.names: dict[Any, Any] = {None: None}

    def _started(self, kind, serialized, given, run_id, parent_run_id, tags, metadata, name) -> None:
        self.names[run_id] = name or (serialized or {}).get("name")
        shown = sorted((k, v) for k, v in (metadata or {}).items() if k not in UNSTABLE)
        self.note(kind, self.names[run_id], "in", self.names[parent_run_id], tags, shown, given)

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, tags=None, metadata=None, name=None, **_):
        self._started("chain", serialized, inputs, run_id, parent_run_id, tags, metadata, name)

    def on_chain_end(self, outputs, *, run_id, **_):
        self.note("chain ends", self.names[run_id], outputs)

    def on_chain_error(self, error, *, run_id, **_):
        self.note("chain fails", self.names[run_id], type(error).__name__)

    def on_chat_model_start(self, serialized, messages, *, run_id, parent_run_id=None, tags=None, metadata=None, name=None, **_):
        self._started("model", serialized, "", run_id, parent_run_id, tags, metadata, name)

    def on_llm_new_token(self, token, **_):
        self.note("token", repr(token))

    def on_llm_end(self, response, *, run_id, **_):
        self.note("model ends", self.names[run_id])

    def on_tool_start(self, serialized, input_str, *, run_id, parent_run_id=None, tags=None, metadata=None, name=None, **_):
        self._started("tool", serialized, input_str, run_id, parent_run_id, tags, metadata, name)

    def on_tool_end(self, output, *, run_id, **_):
        self.note("tool ends", self.names[run_id], type(output).__name__)

    def on_custom_event(self, name, data, *, run_id, **_):
        self.note("custom", name, data, "in", self.names[run_id])


class Scripted(GenericFakeChatModel):
    """A model that says what it was told to say, whatever tools it gets."""

    def bind_tools(self, tools, **_):
        return self


class Names(Handler):
    """Notes names, parents and tags alone."""

    def _started(self, kind, serialized, given, run_id, parent_run_id, tags, metadata, name):
        self.names[run_id] = name or (serialized or {}).get("name")
        self.note(kind, self.names[run_id], "in", self.names[parent_run_id], tags)

    def on_chain_end(self, outputs, *, run_id, **_):
        self.note("chain ends", self.names[run_id])


class Talking(BaseChatModel):
    """A model that streams what it was told to say: texts by words, tool calls by parts of their arguments.

    Args:
        answers: texts, or dicts with `text` and `calls`: pairs (name, arguments).
    """

    answers: list[Any]
    turn: int = 0

    @property
    def _llm_type(self) -> str:
        return "talking"

    def bind_tools(self, tools, **options):
        return self.bind(tools=[convert_to_openai_tool(each) for each in tools], **options)

    def _stream(self, messages, stop=None, run_manager=None, **_):
        answer = self.answers[self.turn % len(self.answers)]
        self.turn += 1
        answer = answer if isinstance(answer, dict) else {"text": answer}
        id = f"t{self.turn}"
        for word in re.findall(r"\S+\s*", answer.get("text", "")):
            yield self._chunk(run_manager, AIMessageChunk(word, id=id))
        for index, (name, args) in enumerate(answer.get("calls", ())):
            head = {"name": name, "args": "", "id": f"c{self.turn}.{index}", "index": index}
            yield self._chunk(run_manager, AIMessageChunk("", id=id, tool_call_chunks=[head]))
            text = json.dumps(args)
            for part in (text[:5], text[5:]):
                piece = {"name": None, "args": part, "id": None, "index": index}
                yield self._chunk(run_manager, AIMessageChunk("", id=id, tool_call_chunks=[piece]))

    def _chunk(self, run_manager, message):
        chunk = ChatGenerationChunk(message=message)
        if run_manager is not None:
            run_manager.on_llm_new_token(message.content, chunk=chunk)
        return chunk

    def _generate(self, messages, stop=None, run_manager=None, **options):
        return generate_from_stream(self._stream(messages, stop, run_manager, **options))


def saying(*texts: str) -> Scripted:
    """A model that answers with these texts."""
    return Scripted(messages=iter([AIMessage(text, id=f"m{i}") for i, text in enumerate(texts)]))


def calling(name: str, args: dict[str, Any], *texts: str) -> Scripted:
    """A model that first calls a tool."""
    call = AIMessage("", tool_calls=[{"name": name, "args": args, "id": "c1"}], id="call")
    return Scripted(messages=iter([call, *(AIMessage(text, id=f"m{i}") for i, text in enumerate(texts))]))


@tool
def add(a: int, b: int) -> int:
    """Add numbers."""
    return a + b


def conversation(state: Any) -> list[str]:
    """The messages of a state, a line each."""
    messages = state["messages"] if isinstance(state, dict) else state
    return [f"{each.type}: {each.content!r} {getattr(each, 'tool_calls', None) or ''}".strip() for each in messages]


async def collect(chunks: Any) -> list[Any]:
    """All that an async iterator yields."""
    return [chunk async for chunk in chunks]


def in_both_worlds(note: Callable[..., None], make: Callable[[], Any], *inputs: Any, config: Any = None, **options: Any) -> None:
    """Invoke a graph with each input in turn, and another one like it on an event loop."""

    async def on_a_loop() -> list[Any]:
        app = make()
        return [await app.ainvoke(given, config, **options) for given in inputs]

    app = make()
    for result in [app.invoke(given, config, **options) for given in inputs]:
        note("invoke", result)
    for result in asyncio.run(on_a_loop()):
        note("ainvoke", result)


def thread(name: str = "1", **more: Any) -> dict[str, Any]:
    """The config of a thread."""
    return {"configurable": {"thread_id": name, **more}}
