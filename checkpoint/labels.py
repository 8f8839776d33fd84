"""Labels: a checkpoint's metadata as numbers, by which a thread is found among many.

A label stands for a key and the value that it has. Values that are equal have the same label, as
`1`, `1.0` and `True` do; the label of a value that is no plain one says only that the key is there.
So labels never miss a checkpoint; what they find is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..channels.base import MISSING
from .digest import blake2b
from .records import OF_TASK, RunnableConfig

UNLABELLED = frozenset({"source", "step", "parents", "run_id", OF_TASK})
"""What each checkpoint says of itself: it tells no thread from others, or changes at each step."""

Place = tuple[str, str]
"""(thread id, namespace)"""


def labels_of(metadata: Mapping[str, Any]) -> set[int]:
    """The labels of a checkpoint.

    >>> labels_of({"step": 1, "user": "ann", "n": 1}) == labels_of({"n": 1.0, "user": "ann"})
    True
    """
    return {_label(key, value) for key, value in metadata.items() if _has_label(key)}


def has_new_labels(metadata: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint may have labels that the one before it has not.

    Args:
        before: that one's metadata; None if they are not known.
    """
    for key, value in metadata.items():
        if key in UNLABELLED:
            continue
        old = MISSING if before is None else before.get(key, MISSING)
        # Mostly the very same object: that of the run.
        if old is value:
            continue
        if type(old) is not type(value) or type(value) not in _PLAIN or old != value:
            return True
    return False


def label_choices(wanted: Mapping[str, Any] | None) -> list[Collection[int]]:
    """What is known of the labels of each checkpoint that has the wanted metadata: one of each of
    these. None if the labels say nothing about it."""
    choices: list[Collection[int]] = []
    for key, value in (wanted or {}).items():
        if not _has_label(key):
            continue
        if type(value) in _PLAIN:
            choices.append({_label(key, value), _label(key, _OTHER)})
        elif type(value) in _CONTAINERS:
            choices.append({_label(key, _OTHER)})
        # An object of another type may be equal to anything.
    return choices


def has_metadata(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint's metadata has these keys and values."""
    return not wanted or all(metadata.get(key, MISSING) == each for key, each in wanted.items())


def names_thread(before: RunnableConfig | None) -> bool:
    """Whether the checkpoint that `before` names is found by its thread, if there is one. Else it
    is looked for in all that would be listed without a filter."""
    return before is None or "thread_id" in (before.get("configurable") or {})


_OTHER = object()
_PLAIN = (type(None), bool, int, float, str)
_CONTAINERS = (dict, list, tuple, set, frozenset, bytes)


def _has_label(key: Any) -> bool:
    return isinstance(key, str) and key not in UNLABELLED


def _label(key: str, value: Any) -> int:
    text = str.encode(key, "utf-8", "surrogatepass")
    data = b"%d:%s%s" % (len(text), text, _encode(value))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)


def _encode(value: Any) -> bytes:
    """The same bytes for values that are equal."""
    kind = type(value)
    if kind is str:
        return b"s" + str.encode(value, "utf-8", "surrogatepass")
    if kind is float and not value.is_integer():
        return b"f" + float.hex(value).encode()
    if kind is bool or kind is int or kind is float:
        return b"i" + hex(int(value)).encode()
    return b"n" if value is None else b"o"


class LabelIndex:
    """Which namespaces have a checkpoint with a label, in memory. Not locked."""

    def __init__(self) -> None:
        self._places: dict[int, set[Place]] = {}

    def add(self, place: Place, labels: Iterable[int]) -> None:
        """Let a namespace be found by these labels."""
        for label in labels:
            self._places.setdefault(label, set()).add(place)

    def drop(self, place: Place, labels: Iterable[int]) -> None:
        """Let it be found by them no longer."""
        for label in labels:
            places = self._places.get(label, set())
            places.discard(place)
            if not places:
                self._places.pop(label, None)

    def find(self, choices: Iterable[Collection[int]]) -> set[Place]:
        """The namespaces that have one label of each choice."""
        found = [
            set().union(*(self._places.get(label, ()) for label in choice)) for choice in choices
        ]
        return set.intersection(*found)
