"""LangGraph's serializers, as far as programs configure them."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any, Final, Protocol, Self, runtime_checkable

from ...checkpoint import Serializer
from .ignored import take_ignored


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
