"""Extracts the text of a question that is shown to a person. Pure."""

from __future__ import annotations

from typing import Any, Final

_KEYS: Final = ("message", "question", "prompt")


def prompt_of(value: Any) -> str | None:
    """Return the text of a question: its value, or the `message`, `question` or `prompt` in its
    value; None if it has none.

    >>> prompt_of("Go on?"), prompt_of({"question": "Name?"}), prompt_of({"order": 7})
    ('Go on?', 'Name?', None)
    """
    if isinstance(value, dict):
        texts = (value.get(key) for key in _KEYS)
        value = next((each for each in texts if isinstance(each, str)), None)
    return value if isinstance(value, str) else None
