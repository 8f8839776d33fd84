"""What the peer's server tells a node about itself. Nothing here fills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Which assistant of which graph a server runs, and for whom."""

    assistant_id: str
    graph_id: str
    user: BaseUser | None = None
