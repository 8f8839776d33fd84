"""LangGraph's checkpointers, stores and caches: ours, with its arguments."""

from __future__ import annotations

import asyncio
import inspect
import re
from abc import ABCMeta
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import cached_property
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias, runtime_checkable

from langchain_core.embeddings import Embeddings

from ...checkpoint import BaseCheckpointSaver as _BaseCheckpointSaver
from ...checkpoint import CheckpointTuple, RunnableConfig, Serializer
from ...checkpoint import InMemorySaver as _InMemorySaver
from ...pregel.run.config import COORDINATES
from ...pregel.run.settings import find_run_id
from ...store import BaseCache as _BaseCache
from ...store import BaseStore, Result
from ...store import InMemoryCache as _InMemoryCache
from ...store import InMemoryStore as _InMemoryStore
from ...store import SqliteCache as _SqliteCache
from ...store.namespaces import check_namespace
from ...store.paths import parse, walk
from ...store.vectors import text_of
from .ignored import take_ignored

# -- stores ----------------------------------------------------------------------------------------
# LangGraph's types of stores.

NamespacePath: TypeAlias = tuple[str | Literal["*"], ...]
NamespaceMatchType: TypeAlias = Literal["prefix", "suffix"]
EmbeddingsFunc: TypeAlias = Callable[[Sequence[str]], list[list[float]]]
AEmbeddingsFunc: TypeAlias = Callable[[Sequence[str]], Awaitable[list[list[float]]]]


class NotProvided:
    """The type of an argument that was not given."""

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_PROVIDED: Final = NotProvided()


class EmbeddingsLambda(Embeddings):
    """A function of texts as LangChain's embeddings; a coroutine function is only awaited."""

    def __init__(self, func: EmbeddingsFunc | AEmbeddingsFunc) -> None:
        self._is_async = inspect.iscoroutinefunction(func)
        self._func: Any = func

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of texts.

        Raises:
            TypeError: the function has to be awaited.
        """
        if self._is_async:
            raise TypeError("the function that embeds is async: await aembed_documents()")
        vectors: list[list[float]] = self._func(texts)
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """`embed_documents` for coroutines."""
        if not self._is_async:
            return self.embed_documents(texts)
        vectors: list[list[float]] = await self._func(texts)
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        """`embed_query` for coroutines."""
        return (await self.aembed_documents([text]))[0]


def ensure_embeddings(embed: Any) -> Embeddings:
    """LangChain's embeddings of a function, or of a text such as `openai:text-embedding-3-small`.

    Raises:
        ValueError: nothing is given.
    """
    if embed is None:
        raise ValueError("embed must be a function, an Embeddings or the name of a model, got None")
    if isinstance(embed, str):
        from langchain.embeddings import init_embeddings  # type: ignore[import-not-found]

        return init_embeddings(embed)
    return embed if isinstance(embed, Embeddings) else EmbeddingsLambda(embed)


def tokenize_path(path: str) -> list[str]:
    """The steps of a path into a value; each index is one."""
    return re.findall(r"\{[^}]*\}|\[[^]]*\]|[^.\[\]{}]+", path)


def get_text_at_path(obj: Any, path: str | list[str]) -> list[str]:
    """The texts at a path of a value, as they are embedded."""
    joined = path if isinstance(path, str) else ".".join(path).replace(".[", "[")
    return [text for text in map(text_of, walk(obj, parse(joined))) if text]


def validate_op_namespace(op: Any) -> None:
    """Check the namespace of an operation.

    Raises:
        InvalidNamespaceError: it has a segment that cannot be stored.
    """
    check_namespace(getattr(op, "namespace", ()), empty_ok=True)


class AsyncBatchedBaseStore(BaseStore):
    """A store of someone's own that defines `abatch`; sync methods wait for the loop on which it
    was made, so they are called on other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def batch(self, ops: Iterable[Any]) -> list[Result]:
        """`abatch`, waited for."""
        return asyncio.run_coroutine_threadsafe(self.abatch(ops), self._loop).result()



# -- serde -----------------------------------------------------------------------------------------
# LangGraph's serializers, as far as programs configure them.

class UntypedSerializerProtocol(Protocol):
    """Makes bytes of values."""

    def dumps(self, obj: Any) -> bytes: ...
    def loads(self, data: bytes) -> Any: ...


@runtime_checkable
class SerializerProtocol(Protocol):
    """Makes bytes of values, and says of which kind they are."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...
    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


class SerializerCompat:
    """Types the bytes of a serializer that does not."""

    def __init__(self, serde: UntypedSerializerProtocol) -> None:
        self.serde = serde

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The bytes of a value, and the name of its class."""
        return type(obj).__name__, self.serde.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value of such bytes."""
        return self.serde.loads(data[1])


def maybe_add_typed_methods(serde: Any) -> SerializerProtocol:
    """The serializer itself if it has typed methods, else one that adds them."""
    typed: SerializerProtocol = serde if hasattr(serde, "loads_typed") else SerializerCompat(serde)
    return typed


class CipherProtocol(Protocol):
    """Encrypts bytes."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]: ...
    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes: ...


CODEC: Final = Serializer()
"""Knows the types of all graphs of the process whose checkpointers or caches are not ours."""


class JsonPlusSerializer:
    """Makes bytes of values as ours does. No value is pickled, and no class is loaded by a name
    that was stored; so its options set nothing.

    Raises:
        TypeError: there is no such option.
    """

    pickle_fallback = False

    def __init__(self, **options: Any) -> None:
        unknown = sorted(take_ignored("JsonPlusSerializer", options))
        if unknown:
            raise TypeError(f"JsonPlusSerializer has no options {unknown}")

    @cached_property
    def _reviver(self) -> Any:  # the serializer of langgraph-checkpoint-redis calls it
        return import_module("langchain_core.load.load").Reviver()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The bytes of a value, and of which kind they are."""
        return CODEC.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value of such bytes."""
        return CODEC.loads_typed(tuple(data))  # type: ignore[arg-type]

    def with_msgpack_allowlist(self, extra_allowlist: Any) -> Self:
        """The serializer itself: which classes are stored is said by `stategraph.register`."""
        take_ignored("with_msgpack_allowlist()", {"extra_allowlist": extra_allowlist})
        return self



Namespace: TypeAlias = tuple[str, ...]
FullKey: TypeAlias = tuple[Namespace, str]


def check_serde(where: str, serde: Any) -> Serializer | None:
    """The serializer itself.

    Raises:
        TypeError: it is none of ours.
    """
    if serde is None or isinstance(serde, Serializer):
        return serde
    if isinstance(serde, JsonPlusSerializer):
        return CODEC
    raise TypeError(
        f"{where}: serde must be a JsonPlusSerializer, got {type(serde).__name__}: values are "
        "stored by the serializer of stategraph. stategraph.register(YourClass, ...) says how a "
        "class is stored; integrity=stategraph.Encryption(key) of a checkpointer on a database "
        "encrypts"
    )


class PeerMethods(_BaseCheckpointSaver if TYPE_CHECKING else object):  # type: ignore[misc]
    """What checkpointers of LangGraph have beside the methods of ours."""

    __slots__ = ()

    @property
    def config_specs(self) -> list[Any]:
        """The fields of `configurable` that it reads, for LangChain; none."""
        return []

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version that follows another one; the engine counts for itself."""
        return 1 if current is None else current + 1

    def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        """What `DeltaChannel`s hold: as here a checkpoint has whole values, no writes go on top."""
        return _as_seeds(self.get_tuple(config), channels)

    async def aget_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        """`get_delta_channel_history` for coroutines."""
        return _as_seeds(await self.aget_tuple(config), channels)

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        strategy: str = "keep_latest",
        **options: Any,
    ) -> None:
        """Forget old checkpoints; see `BaseCheckpointSaver.prune`.

        Args:
            strategy: "keep_latest", or "delete" to delete the threads.

        Raises:
            ValueError: there is no such strategy.
        """
        for thread_id in _to_delete(thread_ids, strategy):
            self.delete_thread(thread_id)
        if strategy != "delete":
            super().prune(thread_ids, **options)

    async def aprune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        strategy: str = "keep_latest",
        **options: Any,
    ) -> None:
        """`prune` for coroutines."""
        for thread_id in _to_delete(thread_ids, strategy):
            await self.adelete_thread(thread_id)
        if strategy != "delete":
            await super().aprune(thread_ids, **options)

    def with_allowlist(self, extra_allowlist: Collection[Any]) -> Self:
        """The checkpointer itself: which classes are stored is said by `stategraph.register`."""
        take_ignored("with_allowlist()", {"extra_allowlist": extra_allowlist})
        return self


def _as_seeds(found: CheckpointTuple | None, channels: Any) -> Any:
    values = {} if found is None else found.checkpoint["channel_values"]
    return {
        name: {"writes": [], **({"seed": values[name]} if name in values else {})}
        for name in channels
    }


def _to_delete(thread_ids: Collection[str] | None, strategy: str) -> Collection[str]:
    if strategy not in ("keep_latest", "delete"):
        raise ValueError(f'strategy must be "keep_latest" or "delete", got {strategy!r}')
    return (thread_ids or ()) if strategy == "delete" else ()


class _Contract(ABCMeta):
    """Counts every checkpointer of ours as one of LangGraph's."""

    def __instancecheck__(cls, instance: Any) -> bool:
        ours = cls is BaseCheckpointSaver and isinstance(instance, _BaseCheckpointSaver)
        return ours or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        ours = cls is BaseCheckpointSaver and issubclass(subclass, _BaseCheckpointSaver)
        return ours or super().__subclasscheck__(subclass)


class BaseCheckpointSaver(PeerMethods, _BaseCheckpointSaver, metaclass=_Contract):
    """The contract of a checkpointer of someone's own, written for LangGraph.

    Args:
        serde: any serializer, with which the checkpointer makes bytes of checkpoints.
    """

    def __init__(self, *, serde: Any = None) -> None:
        self.serde: Any = serde or JsonPlusSerializer()

    def for_call(self, config: RunnableConfig) -> _BaseCheckpointSaver:
        """The checkpointer with the whole config of a call, of which it may read more than the
        thread."""
        return CallSaver(self, config)


def _own(method: FunctionType) -> FunctionType:
    """The same method as another object: who compares it with that of a checkpointer of ours, as
    the conformance suite does, finds that ours has its own."""
    copied = FunctionType(
        method.__code__,
        method.__globals__,
        method.__name__,
        method.__defaults__,
        method.__closure__,
    )
    copied.__kwdefaults__ = method.__kwdefaults__
    return copied


for _name in (
    *("aget_tuple", "alist", "aput", "aput_writes"),
    *("adelete_thread", "adelete_for_runs", "aprune", "acopy_thread"),
):
    setattr(BaseCheckpointSaver, _name, _own(getattr(BaseCheckpointSaver, _name)))


class CallSaver(_BaseCheckpointSaver):
    """A checkpointer of someone's own during a call, whose config it is given: tenants, users and
    tokens stand in `configurable`."""

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        configurable = config.get("configurable", {})
        self._saver, self.serde = saver, CODEC
        self._config: Any = {**config, "metadata": dict(config.get("metadata") or {})}
        self._own = {key: configurable[key] for key in configurable if key not in COORDINATES}
        run_id = find_run_id(config)
        if run_id is not None:
            self._config["metadata"]["run_id"] = run_id
        self._acall = saver._acall  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_saver"], name)

    def _whole(self, where: RunnableConfig | None) -> Any:
        if where is None:
            return None
        return {**self._config, "configurable": {**self._own, **where["configurable"]}}


def _with_whole_config(name: str) -> Any:
    return lambda self, config, *args, **options: getattr(self._saver, name)(
        self._whole(config), *args, **options
    )


for _name in ("get_tuple", "list", "put", "put_writes"):
    setattr(CallSaver, _name, _with_whole_config(_name))
    setattr(CallSaver, f"a{_name}", _with_whole_config(f"a{_name}"))


class PeerSaver(PeerMethods):
    """Laid over a checkpointer of ours."""

    def __init__(self, *args: Any, serde: Any = None, **options: Any) -> None:
        name = type(self).__name__
        super().__init__(
            *args, serde=check_serde(name, serde), **take_ignored(name, options)
        )


class InMemorySaver(PeerSaver, _InMemorySaver):
    """`InMemorySaver` with LangGraph's arguments."""


MemorySaver = InMemorySaver


class PeerStore:
    """Laid over a store of ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        name = type(self).__name__
        if options.get("index"):
            options["index"] = take_ignored(f"index of {name}", options["index"])
        super().__init__(*args, **take_ignored(name, options))

    @property
    def embeddings(self) -> Any:
        """What embeds texts for a search by meaning, or None."""
        index = self.index_config  # type: ignore[attr-defined]
        return None if index is None else ensure_embeddings(index["embed"])


class InMemoryStore(PeerStore, _InMemoryStore):
    """`InMemoryStore` with LangGraph's attributes."""


class AsyncStore(PeerStore):
    """Laid over a store of ours whose asynchronous methods are LangGraph's."""

    async def setup(self) -> None:
        """Make the tables."""
        await to_thread(super().setup)  # type: ignore[misc]

    async def sweep_ttl(self) -> int:
        """Remove what has expired; how many items."""
        return await to_thread(super().sweep_ttl)  # type: ignore[misc]

    async def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Any:
        """Remove what has expired from time to time; a future that ends with it."""
        return super().start_ttl_sweeper(sweep_interval_minutes)  # type: ignore[misc]

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop it; whether it has stopped."""
        return await to_thread(super().stop_ttl_sweeper, timeout)  # type: ignore[misc]


class BaseCache(_BaseCache):
    """`BaseCache` with LangGraph's arguments."""

    def __init__(self, *args: Any, serde: Any = None, **options: Any) -> None:
        check_serde(type(self).__name__, serde)
        self.serde: Any = serde or JsonPlusSerializer()
        super().__init__(*args, **options)


class InMemoryCache(BaseCache, _InMemoryCache):
    """`InMemoryCache` with LangGraph's arguments."""


class SqliteCache(BaseCache, _SqliteCache):
    """`SqliteCache` with LangGraph's arguments."""
