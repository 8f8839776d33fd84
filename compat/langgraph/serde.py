"""The peer's serializers, as far as programs configure them."""

from __future__ import annotations

from typing import Any, Protocol

from ...checkpoint import Serializer


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
    """Our serializer under the peer's name. Its options are taken and set nothing: no value is
    pickled, and no class is loaded by a name that was stored."""

    def __init__(self, **_options: Any) -> None:
        super().__init__()
