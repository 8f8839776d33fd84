"""Values ↔ bytes: the serializer, the codecs of each type, the strict slow path, deltas. Knows no
threads."""

from ..errors import DamagedError, StoredError, UnknownTypeError, UnserializableError
from .delta import Blob
from .registry import Registry, register
from .serializer import FORMAT, Serializer

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
