"""Types of other libraries that are stored exactly once the program has loaded them: arrays and
scalars of NumPy, messages and documents of LangChain. Neither is ever imported for it.
"""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import Any

from .class_codecs import make_codec
from .codec import Codec, key_of

_LANGCHAIN = "langchain_core"
_ARRAY = "numpy:ndarray"
_SCALAR = "numpy:scalar"

_KINDS = "biufcSUVmM"
"""What arrays may be of: bool, ints, floats, complex, bytes, text, void, timedelta64,
datetime64."""

_MESSAGES = {
    f"langchain_core.messages.{module}:{name}{chunk}": ("langchain_core.messages", f"{name}{chunk}")
    for module, name in (
        ("ai", "AIMessage"),
        ("human", "HumanMessage"),
        ("system", "SystemMessage"),
        ("tool", "ToolMessage"),
        ("function", "FunctionMessage"),
        ("chat", "ChatMessage"),
    )
    for chunk in ("", "Chunk")
}
_OF_LANGCHAIN = {
    **_MESSAGES,
    "langchain_core.messages.modifier:RemoveMessage": ("langchain_core.messages", "RemoveMessage"),
    "langchain_core.documents.base:Document": ("langchain_core.documents", "Document"),
    "langchain_core.documents.base:Blob": ("langchain_core.documents.base", "Blob"),
}
"""Key → the package and the name by which it is public there."""

_known: dict[str, Codec] = {}


def find_codec(cls: type) -> Codec | None:
    """How instances of exactly this class are stored, if it is one of these."""
    library = cls.__module__.partition(".")[0]
    if library == "numpy":
        return _of_numpy(cls)
    if library != "langchain_core":
        return None
    return find_codec_named(key_of(cls), cls)


def find_codec_named(key: str, cls: type | None = None) -> Codec | None:
    """How what is stored under this key is loaded, if it is one of these and its library is
    loaded."""
    if key in (_ARRAY, _SCALAR):
        numpy: Any = sys.modules.get("numpy")
        if numpy is None:
            return None
        return _array(numpy) if key == _ARRAY else _scalar(numpy, numpy.generic)
    package, name = _OF_LANGCHAIN.get(key, ("", ""))
    if not package or _LANGCHAIN not in sys.modules:
        return None
    found = _known.get(key)
    if found is None or found.cls is not (cls or found.cls):
        # The names stand above: this may load a module of LangChain's, but none that stored bytes
        # name.
        cls = cls or getattr(import_module(package), name)
        found = _known[key] = make_codec(cls, key)
    return found


def loading_advice(key: str) -> str:
    """What to do about a stored type of these libraries that is not loaded; empty for any other."""
    if key in (_ARRAY, _SCALAR):
        return "import numpy before loading"
    return f"import {_LANGCHAIN} before loading" if key in _OF_LANGCHAIN else ""


# -- NumPy -----------------------------------------------------------------------------------------


def _of_numpy(cls: type) -> Codec | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if cls is numpy.ndarray:
        return _array(numpy)
    if issubclass(cls, numpy.generic) and numpy.dtype(cls).kind in _KINDS:
        return _scalar(numpy, cls)
    return None


def _array(numpy: Any) -> Codec:
    def encode(value: Any) -> list[Any]:
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        data = value.tobytes(order)
        return [
            *_type_name(numpy, value.dtype),
            list(value.shape),
            order,
            bool(value.flags.writeable),
            data,
        ]

    def decode(state: Any) -> Any:
        text, char, shape, order, writeable, data = state
        dtype = _type_named(numpy, text, char)
        if math.prod(shape) * dtype.itemsize != len(data) or order not in ("C", "F"):
            raise ValueError("the bytes do not fill the array")
        # A copy: bytes are never written to.
        array = numpy.ndarray(tuple(shape), dtype, bytearray(data), order=order)
        array = array.copy(order=order)
        array.flags.writeable = writeable
        return array

    return Codec(numpy.ndarray, encode, decode, key=_ARRAY)


def _scalar(numpy: Any, cls: type) -> Codec:
    """Text and bytes are stored unchanged: NumPy's own ways to get at them lose the NULs at their
    end."""

    def encode(value: Any) -> list[Any]:
        if isinstance(value, str):
            return ["U", "", str.__str__(value)]
        if isinstance(value, bytes):
            return ["S", "", bytes.__getitem__(value, slice(None))]
        return [*_type_name(numpy, value.dtype), value.tobytes()]

    def decode(state: Any) -> Any:
        text, char, data = state
        if text in ("U", "S"):
            return numpy.str_(data) if type(data) is str else numpy.bytes_(data)
        dtype = _type_named(numpy, text, char)
        if len(data) != dtype.itemsize:
            raise ValueError("the bytes do not make this scalar")
        return numpy.frombuffer(data, dtype)[0]

    return Codec(cls, encode, decode, key=_SCALAR)


def _type_name(numpy: Any, dtype: Any) -> tuple[str, str]:
    """What names a dtype on any machine; and its letter, where this machine has two types that are
    alike."""
    is_plain = (
        dtype.kind in _KINDS and dtype.names is None and not dtype.metadata and dtype.itemsize
    )
    if not is_plain:
        raise TypeError(f"its dtype is {dtype!r}: store it as a list or a dict of plain arrays")
    alike = numpy.dtype(dtype.str)
    return dtype.str, "" if alike.char == dtype.char else dtype.char


def _type_named(numpy: Any, text: Any, char: Any) -> Any:
    if type(text) is not str or text[1:2] not in _KINDS or len(text) > 30 or "," in text:
        raise ValueError(f"no dtype: {text!r}")
    dtype = numpy.dtype(text)
    if type(char) is str and len(char) == 1 and char in "bBhHiIlLqQpPgGdD":
        alike = numpy.dtype(char)
        if alike.newbyteorder(text[0]) == dtype:
            return alike if alike == dtype else alike.newbyteorder(text[0])
    return dtype
