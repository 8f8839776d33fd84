"""The peer's serializers, as far as programs configure them."""

from __future__ import annotations

from typing import Any, Protocol, Self

from ...checkpoint import Serializer
from .ignored import take_ignored


class UntypedSerializerProtocol(Protocol):
    """Makes bytes of values."""

    def dumps(self, obj: Any) -> bytes: ...
    def loads(self, data: bytes) -> Any: ...


class SerializerProtocol(Protocol):
    """Makes bytes of values, and says of which kind they are."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...
    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


class CipherProtocol(Protocol):
    """Encrypts bytes."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]: ...
    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes: ...


class JsonPlusSerializer(Serializer):
    """Our serializer under the peer's name. No value is pickled, and no class is loaded by a name
    that was stored; so its options set nothing.

    Raises:
        TypeError: there is no such option.
    """

    def __init__(self, **options: Any) -> None:
        unknown = sorted(take_ignored("JsonPlusSerializer", options))
        if unknown:
            raise TypeError(f"JsonPlusSerializer has no options {unknown}")
        super().__init__()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The bytes of a value, and of which kind they are."""
        return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value of such bytes."""
        return super().loads_typed(data)

    def with_msgpack_allowlist(self, extra_allowlist: Any) -> Self:
        """The serializer itself: which classes are stored is said by `stategraph.register`."""
        take_ignored("with_msgpack_allowlist()", {"extra_allowlist": extra_allowlist})
        return self
