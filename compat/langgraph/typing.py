"""Type variables and marker types of the peer."""

from __future__ import annotations

from typing import Any, Final

from typing_extensions import TypedDict, TypeVar

StateT = TypeVar("StateT", bound=Any)
StateT_co = TypeVar("StateT_co", bound=Any, covariant=True)
StateT_contra = TypeVar("StateT_contra", bound=Any, contravariant=True)
InputT = TypeVar("InputT", bound=Any, default=StateT)
OutputT = TypeVar("OutputT", bound=Any, default=StateT)
ContextT = TypeVar("ContextT", bound=Any, default=None)

MISSING: Final = object()


class DeprecatedKwargs(TypedDict):
    """Keyword arguments that are still taken, with a warning."""
