"""What a node may look like, for type checkers. Nothing here runs.

A node takes the state, or an input of its own, and any of `config`, `store`, `writer` and
`runtime`. A checker cannot say "any of", so every combination has a protocol of its own. Only the
runtime's type is checked: its `context` must be what the graph's calls pass.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from typing_extensions import TypedDict, TypeVar

from ..checkpoint.base import RunnableConfig
from ..pregel.runtime import Runtime
from ..pregel.types import (
    CachePolicy,
    Command,
    IsDataclass,
    IsModel,
    RetryPolicy,
    Send,
    StreamWriter,
    TimeoutPolicy,
)
from ..store.base import BaseStore

if TYPE_CHECKING:
    from ..pregel.drivers.limit import Limit
    from ..pregel.observer import AnyObserver

In = TypeVar("In", contravariant=True)
"""What a node takes as its first argument."""
Ctx = TypeVar("Ctx", contravariant=True)
"""The type of its runtime's `context`."""

Update: TypeAlias = Mapping[str, Any] | Command[Any] | Send | IsDataclass | IsModel | None
"""One of the things that a node may return."""
Updates: TypeAlias = Update | Sequence[Update]
Result: TypeAlias = Updates | Awaitable[Updates] | Iterator[Updates] | AsyncIterator[Updates]
"""What the call of a node gives: updates, or an awaitable or a generator of them."""


class WithInvoke(Protocol):
    """A compiled graph, a LangChain runnable, or anything else with `invoke`."""

    @property
    def invoke(self) -> Callable[..., Any]: ...


class WithAsyncInvoke(Protocol):
    """The same, if it can only be awaited."""

    @property
    def ainvoke(self) -> Callable[..., Any]: ...


class NodeOptions(TypedDict, total=False):
    """The options of `StateGraph.add_node` that say nothing about types; see there."""

    defer: bool
    metadata: Mapping[str, Any] | None
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None
    cache_policy: CachePolicy | None
    timeout: float | timedelta | TimeoutPolicy | None
    error_handler: Callable[..., Any] | None
    destinations: Mapping[str, str] | Sequence[str] | None
    executor: Any
    limit: Limit | Sequence[Limit] | None
    observer: AnyObserver | Sequence[AnyObserver] | None


# fmt: off
class Plain(Protocol[In]):
    def __call__(self, state: In, /) -> Result: ...
class WithConfig(Protocol[In]):
    def __call__(self, state: In, /, *, config: Any) -> Result: ...
class WithStore(Protocol[In]):
    def __call__(self, state: In, /, *, store: Any) -> Result: ...
class WithWriter(Protocol[In]):
    def __call__(self, state: In, /, *, writer: Any) -> Result: ...
class WithConfigStore(Protocol[In]):
    def __call__(self, state: In, /, *, config: Any, store: Any) -> Result: ...
class WithConfigWriter(Protocol[In]):
    def __call__(self, state: In, /, *, config: Any, writer: Any) -> Result: ...
class WithStoreWriter(Protocol[In]):
    def __call__(self, state: In, /, *, store: Any, writer: Any) -> Result: ...
class WithConfigStoreWriter(Protocol[In]):
    def __call__(self, state: In, /, *, config: Any, store: Any, writer: Any) -> Result: ...
class WithRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *, runtime: Runtime[Ctx]) -> Result: ...
class WithConfigRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *, config: Any, runtime: Runtime[Ctx]) -> Result: ...
class WithStoreRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *, store: Any, runtime: Runtime[Ctx]) -> Result: ...
class WithWriterRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *, writer: Any, runtime: Runtime[Ctx]) -> Result: ...
class WithConfigStoreRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *,
                 config: Any, store: Any, runtime: Runtime[Ctx]) -> Result: ...
class WithConfigWriterRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *,
                 config: Any, writer: Any, runtime: Runtime[Ctx]) -> Result: ...
class WithStoreWriterRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *,
                 store: Any, writer: Any, runtime: Runtime[Ctx]) -> Result: ...
class WithConfigStoreWriterRuntime(Protocol[In, Ctx]):
    def __call__(self, state: In, /, *,
                 config: Any, store: Any, writer: Any, runtime: Runtime[Ctx]) -> Result: ...
# fmt: on


Node: TypeAlias = (
    Plain[In]
    | WithConfig[In]
    | WithStore[In]
    | WithWriter[In]
    | WithConfigStore[In]
    | WithConfigWriter[In]
    | WithStoreWriter[In]
    | WithConfigStoreWriter[In]
    | WithRuntime[In, Ctx]
    | WithConfigRuntime[In, Ctx]
    | WithStoreRuntime[In, Ctx]
    | WithWriterRuntime[In, Ctx]
    | WithConfigStoreRuntime[In, Ctx]
    | WithConfigWriterRuntime[In, Ctx]
    | WithStoreWriterRuntime[In, Ctx]
    | WithConfigStoreWriterRuntime[In, Ctx]
    # One more parameter under any name, known by its annotation.
    | Callable[[In, RunnableConfig], Result]
    | Callable[[In, BaseStore], Result]
    | Callable[[In, StreamWriter], Result]
    | Callable[[In, Runtime[Ctx]], Result]
    | WithInvoke
    | WithAsyncInvoke
)
"""A node's action."""
