"""The runtime of a node, and the form of its user behind a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

from ...pregel.runtime import Runtime

DEFAULT_RUNTIME: Final[Runtime[Any]] = Runtime()


@runtime_checkable
class BaseUser(Protocol):
    """Who makes a request."""

    @property
    def is_authenticated(self) -> bool: ...
    @property
    def display_name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def permissions(self) -> Sequence[str]: ...
    def __getitem__(self, key: str) -> Any: ...
    def __contains__(self, key: str) -> bool: ...
