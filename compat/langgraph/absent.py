"""What stands for a name of LangGraph that has no counterpart here: it can be imported, named in an
annotation and inherited from, and says so when it is used."""

from __future__ import annotations

from typing import Any


class AbsentError(NotImplementedError):
    """A program uses something of LangGraph that has no counterpart here."""


class _Absent(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AbsentError(cls.sentence)  # type: ignore[attr-defined]

    def __repr__(cls) -> str:
        return f"<absent {cls.__qualname__}>"


def absent(module: str, name: str, why: str) -> type:
    """A class that stands for `module.name`.

    Args:
        why: a sentence: why it is not there and what to use.
    """
    sentence = f"{module}.{name} has no counterpart in stategraph: {why}"
    body = {
        "__module__": module,
        "__doc__": sentence,
        "sentence": sentence,
        "__class_getitem__": classmethod(lambda cls, item: cls),
    }
    return _Absent(name, (), body)
