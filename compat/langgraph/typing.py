"""Type variables and marker types of LangGraph."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from typing_extensions import TypedDict, TypeVar

StateT = TypeVar("StateT", bound=Any)
StateT_co = TypeVar("StateT_co", bound=Any, covariant=True)
StateT_contra = TypeVar("StateT_contra", bound=Any, contravariant=True)
InputT = TypeVar("InputT", bound=Any, default=StateT)
OutputT = TypeVar("OutputT", bound=Any, default=StateT)
ContextT = TypeVar("ContextT", bound=Any, default=None)

ContextT_contra = TypeVar("ContextT_contra", bound=Any, contravariant=True, default=None)
NodeInputT = TypeVar("NodeInputT", bound=Any)
NodeInputT_contra = TypeVar("NodeInputT_contra", bound=Any, contravariant=True)
KeyFuncT = TypeVar("KeyFuncT", bound=Any)
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
