"""Values as JSON that people can read, and back: for files of recorded runs. What a thread stores
is bytes; see `serializer`.

A value of JSON stands for itself. Any other is an object with one key that begins with `$`: of a
built-in type its name (`{"$tuple": [1, 2]}`), of a registered one `$type`.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Final

from .builtin_codecs import BY_TYPE
from .codec import OBJECT, Codec
from .serializer import FORMAT, Serializer

PLAIN: Final = frozenset((type(None), bool, int, str))
MARK: Final = "$"


def to_json(value: Any, serde: Serializer) -> Any:
    """The value as dicts, lists, texts and numbers of JSON.

    Raises:
        UnserializableError: it holds something that a thread could not store either.
    """
    cls = type(value)
    if cls in PLAIN or (cls is float and math.isfinite(value)):
        return value
    if cls is list:
        return [to_json(item, serde) for item in value]
    if cls is dict:
        return _dict_form(value, serde)
    if cls is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if cls is float:
        return {"$float": str(value)}
    codec = serde.find(cls)
    if codec is None or codec.error or isinstance(value, BaseException):
        return {"$stored": base64.b64encode(serde.dumps(value)[1]).decode()}
    state = to_json(codec.encode(value), serde)
    if codec.code == OBJECT:
        return {"$type": codec.key, "value": state}
    if isinstance(value, (set, frozenset)):
        state = sorted(state, key=lambda item: json.dumps(item, sort_keys=True))
    return {MARK + codec.cls.__name__: state}


def _dict_form(value: dict[Any, Any], serde: Serializer) -> Any:
    if all(type(key) is str and not key.startswith(MARK) for key in value):
        return {key: to_json(item, serde) for key, item in value.items()}
    return {"$dict": [[to_json(key, serde), to_json(item, serde)] for key, item in value.items()]}


def from_json(form: Any, serde: Serializer) -> Any:
    """The value of a form that `to_json` has made.

    Raises:
        UnknownTypeError: it holds a type that the serializer does not know.
        ValueError: it is no such form.
    """
    if isinstance(form, list):
        return [from_json(item, serde) for item in form]
    if not isinstance(form, dict):
        return form
    mark = next(iter(form), "")
    if not mark.startswith(MARK):
        return {key: from_json(item, serde) for key, item in form.items()}
    inside = form[mark]
    if mark == "$dict":
        return {from_json(key, serde): from_json(item, serde) for key, item in inside}
    if mark == "$bytes":
        return base64.b64decode(inside)
    if mark == "$float":
        return float(inside)
    if mark == "$stored":
        return serde.loads((FORMAT, base64.b64decode(inside)))
    if mark == "$type":
        return serde.decode_object(inside, from_json(form["value"], serde))
    return _built_in(mark.removeprefix(MARK)).decode(from_json(inside, serde))


def _built_in(name: str) -> Codec:
    for cls, codec in BY_TYPE.items():
        if cls.__name__ == name:
            return codec
    raise ValueError(f"the file holds a {name!r}, which this version cannot read")
