"""The parts of a dict message, as a model streams them, added up to the whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_WHOLE: Final = frozenset(("role", "id", "name", "type", "status", "tool_call_id"))
"""Texts that come whole, and not in parts."""


def add_parts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that these are the parts of, in the form of OpenAI's `delta`.

    Texts are put together, tool calls are told apart by their `index` and `id`. Of anything else
    the last one counts.

    >>> add_parts([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])
    {'role': 'assistant', 'content': 'ab'}
    """
    whole: dict[str, Any] = {}
    calls = _Calls()
    for part in parts:
        for key, value in part.items():
            if key == "tool_calls":
                calls.add(value or ())
            elif key not in _WHOLE and type(value) is type(whole.get(key)) in (str, list):
                whole[key] += value
            elif value is not None or key not in whole:
                whole[key] = value
    if calls.found:
        whole["tool_calls"] = calls.found
    return whole


class _Calls:
    """Tool calls, put together from their pieces.

    Attributes:
        found: the calls, in the order in which they began.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._by_index: dict[int, dict[str, Any]] = {}

    def add(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        for place, piece in enumerate(pieces):
            call = self._find(piece, piece.get("index", place))
            call["id"] = call["id"] or piece.get("id")
            function = piece.get("function") or {}
            for field in ("name", "arguments"):
                call["function"][field] += function.get(field) or ""

    def _find(self, piece: Mapping[str, Any], index: int) -> dict[str, Any]:
        call = self._by_index.get(index)
        # Some servers give each call the index 0 and an id of its own.
        if call is None or (piece.get("id") and call["id"] and piece["id"] != call["id"]):
            call = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            self._by_index[index] = call
            self.found.append(call)
        return call
