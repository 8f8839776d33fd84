"""Extracts the text shown to a person from the value of a question. Pure."""

from __future__ import annotations

from typing import Any, Final

_KEYS: Final = ("message", "question", "prompt")


def prompt_of(value: Any) -> str | None:
    """The text of a question: its value, or what its value has as `message`, `question` or
    `prompt`; None if it has none.

    >>> prompt_of("Go on?"), prompt_of({"question": "Name?"}), prompt_of({"order": 7})
    ('Go on?', 'Name?', None)
    """
    if isinstance(value, dict):
        texts = (value.get(key) for key in _KEYS)
        value = next((each for each in texts if isinstance(each, str)), None)
    return value if isinstance(value, str) else None
