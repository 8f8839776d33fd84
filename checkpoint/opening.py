"""`with` and `async with` for what is opened and closed: checkpointers, stores, and what their
`from_conn_string` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from .threads import AsyncCaller, call_on_thread


class Closable(AsyncCaller):
    """Closes itself at the end of a `with` or `async with` block."""

    def close(self) -> None:
        """Let go of connections and files; here there are none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._acall(self.close)
        self._end_threads()


class _HasClose(Protocol):
    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_HasClose)


class Opening(Generic[Opened]):
    """What `from_conn_string` gives: opens as a `with` or `async with` block begins, and closes as
    it ends. An async one opens and closes on a worker thread."""

    def __init__(self, open: Callable[..., Opened], *args: Any, **options: Any) -> None:
        self._open, self._args, self._options = open, args, options
        self._opened: list[Opened] = []

    def __enter__(self) -> Opened:
        self._opened.append(self._open(*self._args, **self._options))
        return self._opened[-1]

    def __exit__(self, *_: object) -> None:
        self._opened.pop().close()

    async def __aenter__(self) -> Opened:
        return await call_on_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await call_on_thread(self.__exit__)
