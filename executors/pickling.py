"""Values and functions <-> bytes for the way to a worker and back; and where in a value the part is that cannot go.

Nothing here knows a graph. By reference where that is possible, by value (with cloudpickle, if it is installed) where
it is not: lambdas, closures, and what was defined in a script or a notebook.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

from ..pregel.errors import RemoteError

PROTOCOL = 5
TOO_DEEP = "recursion"
"""What pickle and cloudpickle say of what is nested too deep: there every part would be to blame."""

loads = pickle.loads


def dumps(value: Any, *, shares_main: bool = True) -> bytes:
    """A value as bytes.

    Args:
        shares_main: see `Executor`.

    Raises:
        Exception: it cannot be pickled; see `culprit`.
    """
    by_value = _cloudpickle()
    try:
        data = pickle.dumps(value, PROTOCOL)
    except Exception:
        if by_value is None:
            raise
        return bytes(by_value(value, PROTOCOL))
    if b"__main__" in data and by_value is not None:  # a worker has another main module
        try:
            return bytes(by_value(value, PROTOCOL))
        except Exception:  # it holds something unpicklable by value: then its worker must find it by name
            if not shares_main:
                raise
    return data


def dump_function(function: Callable[..., Any], *, shares_main: bool = True) -> bytes:
    """A function as bytes: by name if a worker can import it, else by value.

    Args:
        shares_main: see `Executor`.

    Raises:
        Exception: it cannot be pickled.
        ValueError: its module cannot be imported, and it can be sent by name only.
    """
    homeless = _homeless(function)
    if homeless is None:
        try:
            found = _by_name(function)
        except Exception:
            return dumps(function, shares_main=shares_main)
        return dumps(function, shares_main=shares_main) if b"__main__" in found else found
    if homeless == "__main__" or not has_cloudpickle():
        if homeless != "__main__":
            raise ValueError(f"its module {homeless!r} cannot be imported by a worker")
        return dumps(function, shares_main=shares_main)
    import cloudpickle

    module = sys.modules[homeless]
    cloudpickle.register_pickle_by_value(module)
    try:
        return _by_value(function, PROTOCOL)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _by_name(function: Callable[..., Any]) -> bytes:
    file = io.BytesIO()
    _FunctionPickler(file, PROTOCOL).dump(function)
    return file.getvalue()


class _FunctionPickler(pickle.Pickler):
    """Finds functions whose name a decorator has taken over, `@task` for one."""

    def reducer_override(self, obj: Any) -> Any:
        """How to find the function inside, if the name leads to what decorates it."""
        if isinstance(obj, FunctionType):
            module, qualname = obj.__module__, obj.__qualname__
            found: Any = sys.modules.get(module)
            for name in qualname.split("."):
                found = getattr(found, name, None)
            if found is not obj and getattr(found, "__wrapped__", None) is obj:
                return decorated, (module, qualname)
        return NotImplemented


def decorated(module: str, qualname: str) -> Any:
    """The function inside what decorates it."""
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found.__wrapped__


def _homeless(function: Any) -> str | None:
    """The name of a function's module if a worker has no such module: the script, or what was made by hand or typed."""
    while isinstance(function, partial):
        inner = function.args[0] if function.args and callable(function.args[0]) else function.func
        function = inner
    name = getattr(function, "__module__", None)
    module = sys.modules.get(name or "")
    if name == "__main__" or (module is not None and getattr(module, "__spec__", None) is None):
        return name
    return None


def _cloudpickle() -> Callable[..., Any] | None:
    try:
        _value_pickler()
    except ImportError:
        return None
    return _by_value


def _by_value(value: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    _value_pickler()(file, protocol).dump(value)
    return file.getvalue()


@cache
def _value_pickler() -> type[Any]:
    import cloudpickle

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Sends by value, too, what `functools.cache` has made of a function: in the worker it begins empty."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, CACHED) and _homeless(obj) is not None:
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    return ValuePickler


CACHED = type(lru_cache(abs))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def has_cloudpickle() -> bool:
    """Whether lambdas and closures can be sent."""
    return _cloudpickle() is not None


# -- what cannot go ---------------------------------------------------------------------------------------------


def culprit(value: Any, path: str, *, shares_main: bool = True) -> tuple[str, str]:
    """The deepest part of a value that cannot be pickled: its path, and why. Of a function: what it uses.

    >>> import threading
    >>> culprit({"clients": [threading.Lock()]}, "state")
    ('state["clients"][0]', "cannot pickle '_thread.lock' object")
    """
    seen: set[int] = set()
    why = _complaint(value, shares_main) or "cannot be pickled"
    while id(value) not in seen and TOO_DEEP not in why:
        seen.add(id(value))
        for step, part in _parts(value):
            complaint = _complaint(part, shares_main)
            if complaint is not None:
                path, value, why = path + step, part, complaint
                break
    return path, why


def _complaint(value: Any, shares_main: bool) -> str | None:
    try:
        dumps(value, shares_main=shares_main)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
    elif isinstance(value, FunctionType):
        for name, part in _used_by(value).items():
            yield f", which uses {name!r}", part
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif not isinstance(value, type):
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part


def _used_by(function: FunctionType) -> dict[str, Any]:
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # a name that has no value yet
        return {}
    return {**used.nonlocals, **used.globals}


# -- errors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedError:
    """What a function raised.

    Attributes:
        blob: the exception pickled (`whole`), or its class, arguments and attributes; None if neither can be.
        text: its class and message; `trace` the worker's traceback.
    """

    blob: bytes | None
    whole: bool
    text: str
    trace: str


def pack_error(error: BaseException) -> PackedError:
    """An exception, ready to travel."""
    text = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(error))
    for whole in (True, False) if _pickles_itself(type(error)) else (False, True):
        try:
            blob = dumps(error if whole else (type(error), *_parts_of_error(error)))
            _restored(blob, whole)
        except Exception:
            continue
        return PackedError(blob, whole, text, trace)
    return PackedError(None, False, text, trace)


def unpack_error(packed: PackedError) -> BaseException:
    """The exception, with the worker's traceback as its cause. One that cannot travel becomes a `RemoteError`."""
    try:
        error = RemoteError(packed.text) if packed.blob is None else _restored(packed.blob, packed.whole)
    except Exception:
        error = RemoteError(packed.text)
    error.__cause__ = RemoteTraceback(packed.trace)
    return error


def _parts_of_error(error: BaseException) -> tuple[Any, dict[str, Any]]:
    """What its builtin class wants, and what it holds besides. Asked of the class: tblib, which Dask brings, has pickle
    make errors in a way that loses what their `__init__` sets."""
    reduced = error.__reduce__()
    if isinstance(reduced, str) or len(reduced) < 2 or reduced[0] is not type(error):
        return error.args, dict(error.__dict__)
    state = reduced[2] if len(reduced) > 2 else None
    return reduced[1], state if isinstance(state, dict) else dict(error.__dict__)


def _pickles_itself(cls: type[BaseException]) -> bool:
    """Whether it says how. Otherwise the arguments of its `__init__` need not be those that `args` holds."""
    own = [base for base in cls.__mro__ if base.__module__ != "builtins"]
    return any(name in vars(base) for base in own for name in ("__reduce__", "__reduce_ex__", "__getstate__"))


def _restored(blob: bytes, whole: bool) -> BaseException:
    found = loads(blob)
    if whole:
        assert isinstance(found, BaseException)
        return found
    cls, args, state = found
    error: BaseException = cls.__new__(cls, *args)
    builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    builtin.__init__(error, *args)  # not the class's own: it may take other arguments
    for name, value in state.items():
        setattr(error, name, value)
    return error


class RemoteTraceback(Exception):
    """Where on its worker an exception was raised; stands as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
