"""Type variables and marker types of LangGraph."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from typing_extensions import TypedDict, TypeVar

StateT = TypeVar("StateT")
StateT_co = TypeVar("StateT_co", covariant=True)
StateT_contra = TypeVar("StateT_contra", contravariant=True)
InputT = TypeVar("InputT", default=StateT)
OutputT = TypeVar("OutputT", default=StateT)
ContextT = TypeVar("ContextT", default=None)

ContextT_contra = TypeVar("ContextT_contra", contravariant=True, default=None)
NodeInputT = TypeVar("NodeInputT")
NodeInputT_contra = TypeVar("NodeInputT_contra", contravariant=True)
KeyFuncT = TypeVar("KeyFuncT")
N = TypeVar("N")
ResponseT = TypeVar("ResponseT", default=Any)
Update = TypeVar("Update")
V = TypeVar("V", int, float, str)
Value = TypeVar("Value")
ValueT = TypeVar("ValueT")

StateLike: TypeAlias = Any
"""A TypedDict, a dataclass or a pydantic model."""

MISSING: Final = object()


class DeprecatedKwargs(TypedDict):
    """Keyword arguments that are still taken, with a warning."""
