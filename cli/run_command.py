"""`stategraph run` and `stategraph resume`: runs a graph from a terminal, and asks there what the
graph asks."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, get_args

from ..checkpoint.base import BaseCheckpointSaver, RunnableConfig, address
from ..checkpoint.command import open_saver
from ..checkpoint.encryption import KEYS_HELP
from ..checkpoint.errors import StorageError
from ..checkpoint.memory import InMemorySaver
from ..checkpoint.printable import printable_lines
from ..checkpoint.sql.redact import redact_address
from ..graph.loader import TARGET_HELP, find_graph
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError
from ..pregel.program.program import is_async
from ..pregel.types import Command, Interrupt, StateSnapshot, StreamMode

FAILED = 1
PAUSED = 3
"""Exit codes, beside 0 for a run that has ended and 2 for a mistake in the command line."""

PACKAGE = Path(__file__).parents[1]
EXAMPLES = PACKAGE / "examples"

CODES = (
    "Exit codes: 0: the run has ended; 1: it failed; 2: the command line is wrong; 3: the run is "
    "paused and waits for an answer."
)


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """What one of the two commands takes."""
    is_new = name == "run"
    parser.epilog = CODES
    add = parser.add_argument
    add("graph", help=TARGET_HELP)
    if is_new:
        source = "JSON, @FILE, or - for stdin (default: {})"
        add("--input", type=read_json, default={}, metavar="JSON", help=f"the input: {source}")
    place = "where the thread is stored: an SQLite file, or postgresql://..."
    default = "the graph's checkpointer" + (", else memory" if is_new else "")
    add("--db", metavar="FILE-OR-URL", help=f"{place} (default: {default})")
    thread = "the thread's id" + (" (default: a new one)" if is_new else "")
    add("--thread", required=not is_new, metavar="ID", help=thread)
    if not is_new:
        text = (
            "the answer to a question: JSON, plain text, or @FILE; give it once for each open "
            "question, in the order asked (default: ask at the terminal)"
        )
        add("--answer", action="append", type=read_answer, default=[], metavar="ANSWER", help=text)
    context = "the context of the run: JSON, @FILE, or - for stdin"
    add("--context", type=read_json, metavar="JSON", help=context)
    stream = "print each chunk as a line of JSON instead of the result: %(choices)s"
    add("--stream", choices=get_args(StreamMode), metavar="MODE", help=stream)
    add("--keys", metavar="FILE", help=KEYS_HELP)
    parser.set_defaults(run=_run if is_new else _resume)


class Session:
    """One thread of a graph, run from a command line.

    Args:
        asked: the command line.
    """

    def __init__(self, app: Pregel, thread: str, asked: Any) -> None:
        self._app = app
        self._asked = asked
        self._thread = thread
        self._config: RunnableConfig = address(thread, "")
        self._is_async = is_async(app.program)

    def state(self) -> StateSnapshot:
        """How the thread stands."""
        return self._app.get_state(self._config)

    def run(self, input: Any) -> int:
        """Run until the thread has ended, failed, or nobody answers; the exit code."""
        while True:
            try:
                result = self._call(input)
            except Exception as error:
                if not self._refuses_answer(input, error):
                    return self._report_failure(error)
                if not can_ask():
                    raise ValueError(f"the answer is refused: {_describe(error)}") from None
                say(f"the answer is refused: {_describe(error)}")
            else:
                state = self.state()
                if not state.next:
                    if self._asked.stream is None:
                        print(format_json(result), flush=True)
                    return 0
            answers = ask(self.state().interrupts)
            if not answers:
                return self.report_pause()
            input = Command(resume=answers)

    def _call(self, input: Any) -> Any:
        """One call of the graph: its result, or None where the chunks were printed."""
        options: dict[str, Any] = {}
        if self._asked.context is not None:
            options["context"] = self._asked.context
        if self._is_async:
            return asyncio.run(self._acall(input, options))
        if self._asked.stream is None:
            return self._app.invoke(input, self._config, version="v2", **options).value
        for chunk in self._app.stream(
            input, self._config, stream_mode=self._asked.stream, **options
        ):
            _print_chunk(chunk)
        return None

    async def _acall(self, input: Any, options: dict[str, Any]) -> Any:
        if self._asked.stream is None:
            return (await self._app.ainvoke(input, self._config, version="v2", **options)).value
        async for chunk in self._app.astream(
            input, self._config, stream_mode=self._asked.stream, **options
        ):
            _print_chunk(chunk)
        return None

    def _refuses_answer(self, input: Any, error: Exception) -> bool:
        """Whether an answer did not fit its question, which is therefore still open."""
        from pydantic import ValidationError

        if not isinstance(error, ValidationError) or not isinstance(input, Command):
            return False
        answered: Any = input.resume
        return any(question.id in answered for question in self.state().interrupts)

    def report_pause(self) -> int:
        """Say what the thread waits for, and how to go on; the exit code."""
        state = self.state()
        for question in state.interrupts:
            say(f"asks: {format_json(question.value, None)}")
        if state.wake_at is not None:
            say(f"sleeps until {state.wake_at:%Y-%m-%d %H:%M:%S} UTC")
        elif not state.interrupts:
            say(f"stopped before {', '.join(state.next)}")
        self._report_way_on("--answer ANSWER" if state.interrupts else "")
        return PAUSED

    def _report_failure(self, error: Exception) -> int:
        trace = error.__traceback__
        while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        if trace is None and self.state().metadata is None:
            raise error  # the call is wrong: nothing was begun
        say("".join(traceback.format_exception(error.with_traceback(trace))).rstrip())
        self._report_way_on("")
        return FAILED

    def _report_way_on(self, more: str) -> None:
        if isinstance(self._app.checkpointer, InMemorySaver):
            say("the thread was in memory: --db FILE stores it, so that it can be resumed")
            return
        words = ["stategraph", "resume", self._asked.graph, "--thread", self._thread]
        if self._asked.db is not None:
            words += ["--db", redact_address(self._asked.db)]
        say(f"to go on: {shlex.join(words)} {more}".rstrip())


def _place(asked: argparse.Namespace) -> str:
    return "the graph's checkpointer" if asked.db is None else redact_address(asked.db)


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(PACKAGE) and not Path(file).is_relative_to(EXAMPLES)


def _describe(error: Exception) -> str:
    """What pydantic found wrong with an answer."""
    found: Any = error
    wrong = [(".".join(map(str, each["loc"])), each["msg"]) for each in found.errors()]
    return "; ".join(f"{place}: {text}" if place else text for place, text in wrong)


def _print_chunk(chunk: Any) -> None:
    print(format_json(chunk, None), flush=True)


def _run(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _session(parser, asked) as session:
        return session.run(asked.input)


def _resume(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _session(parser, asked) as session:
        state = session.state()
        if state.metadata is None:
            parser.error(f"there is no thread {asked.thread!r} in {_place(asked)}")
        expected, given = len(state.interrupts), len(asked.answer)
        if given > expected:
            parser.error(
                f"thread {asked.thread!r} has {expected} open questions: --answer must be given "
                f"{expected} times at most, got {given}"
            )
        if not state.next:
            say(f"nothing is left to do in thread {asked.thread!r}")
            print(format_json(state.values))
            return 0
        questions = [question.id for question in state.interrupts]
        answers = dict(zip(questions, asked.answer, strict=False)) or ask(state.interrupts)
        if questions and not answers:
            return session.report_pause()
        return session.run(Command(resume=answers) if answers else None)


@contextmanager
def _session(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> Iterator[Session]:
    """The thread that the command line names; ends with a sentence if it cannot be had."""
    try:
        graph = find_graph(asked.graph)
        with _saver(graph, asked) as saver:
            thread = asked.thread or str(uuid.uuid4())
            if asked.thread is None and asked.db is not None:
                say(f"thread {thread} in {redact_address(asked.db)}")
            yield Session(graph.copy({"checkpointer": saver}), thread, asked)
    except BrokenPipeError:
        raise  # no fault of the database's
    except (OSError, ImportError, StateGraphError, StorageError, TypeError, ValueError) as error:
        parser.error(str(error))


def _saver(graph: Pregel, asked: argparse.Namespace) -> AbstractContextManager[BaseCheckpointSaver]:
    """Where the thread is stored: at --db, or where the graph says, or in memory."""
    is_new = asked.command == "run"
    if asked.db is not None:
        return open_saver(asked.db, graph.serde, asked.keys, write=True, create=is_new)
    if asked.keys is not None:
        raise ValueError(
            "--keys needs --db: the graph's own checkpointer has its own keys, or nothing is stored"
        )
    if isinstance(graph.checkpointer, BaseCheckpointSaver):
        return nullcontext(graph.checkpointer)
    if not is_new:
        raise ValueError("--db must name where the thread is stored: the graph has no checkpointer")
    return nullcontext(InMemorySaver())


# -- terminal --------------------------------------------------------------------------------------
# What the commands read from a terminal and print there: JSON, questions, sentences.

def read_json(word: str) -> Any:
    """A value that the command line gives as JSON, as `@FILE`, or as `-` for stdin.

    Raises:
        argparse.ArgumentTypeError: there is no such file, or it is no JSON.
    """
    text = _read(word)
    try:
        return json.loads(text)
    except ValueError as error:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise argparse.ArgumentTypeError(f"must be JSON, got {shown!r}: {error}") from None


def read_answer(word: str) -> Any:
    """An answer: JSON, or plain text where it is none; from a file if it is `@FILE`.

    >>> read_answer("true"), read_answer("yes, please"), read_answer('"true"')
    (True, 'yes, please', 'true')
    """
    text = _read(word)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read(word: str) -> str:
    try:
        if word == "-":
            return sys.stdin.read()
        return Path(word[1:]).read_text(encoding="utf-8") if word.startswith("@") else word
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"{word[1:]} cannot be read: {reason}") from None


def format_json(value: Any, indent: int | None = 2) -> str:
    """A value as JSON that steers no terminal. Dataclasses and models are objects, and what JSON
    has no form for is shown as Python shows it.

    >>> format_json({"when": {1, 1}, "who": "a\\x1b"}, None)
    '{"when": [1], "who": "a\\\\u001b"}'
    """
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value, fallback=repr, bytes_mode="base64", inf_nan_mode="constants")
    encoding = (sys.stdout.encoding or "utf-8").lower()
    text = json.dumps(plain, indent=indent, ensure_ascii=not encoding.startswith("utf"))
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
    )


def say(text: str) -> None:
    """Print what is no result, on stderr."""
    print(printable_lines(text), file=sys.stderr, flush=True)


def can_ask() -> bool:
    """Whether a person sits at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(questions: Sequence[Interrupt]) -> dict[str, Any] | None:
    """The answers of the person at the terminal, by the ids of the questions; None if there is
    nobody, or the input ends."""
    if not can_ask():
        return None
    answers = {}
    for question in questions:
        value = question.value
        say(value if isinstance(value, str) else format_json(value))
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            print(file=sys.stderr)
            return None
        answers[question.id] = read_answer(line.rstrip("\n"))
    return answers
