"""Values ↔ bytes: the serializer, the codecs of each type, the strict slow path, deltas. Knows no
threads."""

from ..errors import DamagedError, StoredError, UnknownTypeError, UnserializableError
from .registry import Registry, register
from .serializer import FORMAT, Blob, Serializer

__all__ = [
    "FORMAT",
    "Blob",
    "DamagedError",
    "Registry",
    "Serializer",
    "StoredError",
    "UnknownTypeError",
    "UnserializableError",
    "register",
]
