"""What the commands read from a terminal and print there: JSON, questions, sentences."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoint.printable import printable_lines
from ..pregel.types import Interrupt


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
