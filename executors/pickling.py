"""Values and functions <-> bytes for the way to a worker and back; and the part of a value that
cannot be pickled.

Nothing here knows a graph. Functions go by reference where that is possible. Where it is not
(lambdas, closures, what a script or a notebook defines) they go by value, with cloudpickle if it is
installed.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

from ..checkpoint.serde.error_codec import parts_of, rebuild
from ..pregel.errors import RemoteError

PROTOCOL = 5
TOO_DEEP = "recursion"
"""What pickle and cloudpickle say of a value that is nested too deeply: there every part would be
to blame."""

NAMELESS = frozenset((bytes, bytearray, str))
"""Types whose pickles name no class: to look for one in a large text takes as long as to pickle
it (benchmark P38)."""

loads: Callable[[bytes], Any] = pickle.loads


def dumps(value: Any, *, shares_main: bool = True) -> bytes:
    """A value as bytes.

    Args:
        shares_main: see `Executor`.

    Raises:
        Exception: it cannot be pickled; see `find_culprit`.
    """
    try:
        data = pickle.dumps(value, PROTOCOL)
    except Exception:
        if not has_cloudpickle():
            raise
        return _dump_by_value(value)
    if type(value) in NAMELESS:
        return data
    if b"__main__" in data and has_cloudpickle():  # a worker has another main module
        try:
            return _dump_by_value(value)
        except Exception:
            # Part of it cannot be pickled by value. A worker that has the script finds it by name.
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
    home = _unimportable_module(function)
    if home is None:
        try:
            data = _dump_by_name(function)
        except Exception:
            return dumps(function, shares_main=shares_main)
        return dumps(function, shares_main=shares_main) if b"__main__" in data else data
    if home == "__main__":
        return dumps(function, shares_main=shares_main)
    if not has_cloudpickle():
        raise ValueError(f"its module {home!r} cannot be imported by a worker")
    import cloudpickle

    module = sys.modules[home]
    cloudpickle.register_pickle_by_value(module)
    try:
        return _dump_by_value(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _dump_by_name(function: Callable[..., Any]) -> bytes:
    file = io.BytesIO()
    _FunctionPickler(file, PROTOCOL).dump(function)
    return file.getvalue()


class _FunctionPickler(pickle.Pickler):
    """Pickles by name functions whose name a decorator has taken over, such as `@task`."""

    def reducer_override(self, obj: Any) -> Any:
        """How to find the function inside, if the name leads to what decorates it."""
        if isinstance(obj, FunctionType):
            module, qualname = obj.__module__, obj.__qualname__
            found: Any = sys.modules.get(module)
            for name in qualname.split("."):
                found = getattr(found, name, None)
            if found is not obj and getattr(found, "__wrapped__", None) is obj:
                return find_wrapped, (module, qualname)
        return NotImplemented


def find_wrapped(module: str, qualname: str) -> Any:
    """The function inside its decorator, by the name of both."""
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found.__wrapped__


def _unimportable_module(function: Any) -> str | None:
    """The name of a function's module if a worker cannot import it: the script, or a module made by
    hand or typed in. None if it can."""
    while isinstance(function, partial):
        # Of `partial(call_with, function)` the latter counts.
        wraps_argument = function.args and callable(function.args[0])
        function = function.args[0] if wraps_argument else function.func
    name = getattr(function, "__module__", None)
    module = sys.modules.get(name or "")
    if name == "__main__" or (module is not None and getattr(module, "__spec__", None) is None):
        return name
    return None


def has_cloudpickle() -> bool:
    """Whether lambdas and closures can be sent."""
    try:
        _value_pickler()
    except ImportError:
        return False
    return True


def needs_script(data: bytes, shares_main: bool) -> bool:
    """Whether a pickle names what the script itself defines, and workers cannot import that."""
    return b"__main__" in data and not shares_main and not has_cloudpickle()


def _dump_by_value(value: Any) -> bytes:
    file = io.BytesIO()
    _value_pickler()(file, PROTOCOL).dump(value)
    return file.getvalue()


@cache
def _value_pickler() -> type[Any]:
    import cloudpickle

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Pickles by value, too, what `functools.cache` has made of a function: in the worker it
        begins empty."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, CACHED) and _unimportable_module(obj) is not None:
                return _add_cache, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    return ValuePickler


CACHED = type(lru_cache(abs))


def _add_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


# -- what cannot go --------------------------------------------------------------------------------


def find_culprit(value: Any, path: str, *, shares_main: bool = True) -> tuple[str, str]:
    """The deepest part of a value that cannot be pickled: its path, and why. Of a function: what it
    uses.

    >>> import threading
    >>> find_culprit({"clients": [threading.Lock()]}, "state")
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


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """The parts of a value that are pickled with it, each with its step of the path."""
    for cls, split in _SPLITTERS:
        if isinstance(value, cls):
            return split(value)
    if isinstance(value, type):
        return ()
    held = getattr(value, "__dict__", {})
    if is_dataclass(value):
        held = {each.name: getattr(value, each.name, None) for each in fields(value)}
    return ((f".{name}", part) for name, part in held.items())


def _split_dict(value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, part in value.items():
        yield f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", part


def _split_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # it uses a name that has no value yet
        return
    for name, part in {**used.nonlocals, **used.globals}.items():
        yield f", which uses {name!r}", part


_SPLITTERS: tuple[tuple[Any, Callable[[Any], Iterable[tuple[str, Any]]]], ...] = (
    (dict, _split_dict),
    ((list, tuple), lambda value: ((f"[{index}]", part) for index, part in enumerate(value))),
    (FunctionType, _split_function),
    (MethodType, lambda method: [(".__self__", method.__self__)]),
    (partial, lambda found: [(f".{n}", getattr(found, n)) for n in ("func", "args", "keywords")]),
)


# -- errors ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedError:
    """What a function raised.

    Attributes:
        blob: the exception, pickled; None if it cannot be.
        whole: `blob` holds the exception itself, and not its class, arguments and attributes.
        text: its class and message.
        trace: the worker's traceback.
    """

    blob: bytes | None
    whole: bool
    text: str
    trace: str


def pack_error(error: BaseException) -> PackedError:
    """An exception, ready to be sent."""
    text = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(error))
    # An exception's own pickling calls its `__init__` with `args`, which fails where that takes
    # other arguments. So it comes second, unless the class says itself how it is pickled. What
    # cannot be loaded again here is not sent.
    for whole in (True, False) if _defines_pickling(type(error)) else (False, True):
        try:
            blob = dumps(error if whole else (type(error), _split_error(error)))
            _load_error(blob, whole)
        except Exception:
            continue
        return PackedError(blob, whole, text, trace)
    return PackedError(None, False, text, trace)


def unpack_error(packed: PackedError) -> BaseException:
    """The exception, with the worker's traceback as its cause. One that was not sent, or cannot be
    loaded here, becomes a `RemoteError`."""
    error: BaseException = RemoteError(packed.text)
    if packed.blob is not None:
        with suppress(Exception):
            error = _load_error(packed.blob, packed.whole)
    error.__cause__ = RemoteTraceback(packed.trace)
    return error


def _split_error(error: BaseException) -> list[Any]:
    """Its arguments, its attributes, and what its class keeps elsewhere."""
    args, _, hidden = parts_of(error)
    return [args, vars(error), hidden]


def _defines_pickling(cls: type[BaseException]) -> bool:
    """Whether a class of errors says itself how it is pickled."""
    own = [base for base in cls.__mro__ if base.__module__ != "builtins"]
    hooks = {"__reduce__", "__reduce_ex__", "__getstate__"}
    return any(not hooks.isdisjoint(vars(base)) for base in own)


def _load_error(blob: bytes, whole: bool) -> BaseException:
    found = loads(blob)
    if whole:
        assert isinstance(found, BaseException)
        return found
    return rebuild(*found)


class RemoteTraceback(Exception):
    """Where on its worker an exception was raised; stands as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
