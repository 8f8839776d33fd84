"""A callable's signature, read once when a graph is built: how to call it, in which worlds, and
what to inject.

Nothing here knows a graph or a channel. What cannot work is refused here, not when the node first
runs.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType, FunctionType, MethodType, UnionType
from typing import Any, Final

from typing_extensions import Format, get_annotations

from ..errors import warn
from ..runtime import ManagedValue, Runtime
from ..types import RunnableConfig, StreamWriter
from .results import is_graph

Getter = Callable[[Any], Any]
Injected = tuple[tuple[str, Getter], ...]

GETTERS: dict[str, Getter] = {
    "config": attrgetter("config"),
    "runtime": attrgetter("runtime"),
    "writer": attrgetter("writer"),
    "store": attrgetter("store"),
    "previous": attrgetter("previous"),
    "error": attrgetter("node_error"),
}
"""What a parameter of this name gets, given the running task."""


# Its fields are Final, which type checkers hold. `frozen` would set each by a call, for every node
# of a graph (benchmark P11).
@dataclass(slots=True, eq=False)
class NodeBody:
    """A callable, ready to be called.

    Attributes:
        name: of the function or object, for people.
        sync: call it in a sync run; None if it is async only.
        coro: call it in an async run and await the result; None if it is sync only.
        inject: further parameters and how to get them from the running task.
        schema: the annotation of its first parameter, or None.
        returns: its return annotation, or None.
        source: what the user gave.
    """

    name: Final[str]
    sync: Final[Callable[..., Any] | None]
    coro: Final[Callable[..., Awaitable[Any]] | None]
    inject: Final[Injected]
    schema: Final[Any]
    returns: Final[Any]
    source: Final[Any]


def read_callable(
    obj: Any, name: str | None = None, *, first: bool = True, what: str | None = None
) -> NodeBody:
    """Read a function, method, partial, callable object, or an object with `invoke`/`ainvoke`.

    Args:
        name: how the graph calls it; defaults to its own name.
        first: whether its first parameter takes the input; without it all parameters are injected
            or passed.
        what: how errors call it; defaults to "node" and its name.

    Raises:
        TypeError: it is none of these, or has a required parameter that nothing can fill.
    """
    name = name or infer_name(obj)
    what = what or f"node {name!r}"
    if _is_runnable(obj):
        return _read_runnable(obj, name)
    if not callable(obj):
        advice = "; compile() it first" if hasattr(type(obj), "compile") else ""
        raise TypeError(
            f"{what} must be a function, or an object whose class has invoke() or ainvoke(), "
            f"got {type(obj).__name__}: {obj!r}{advice}"
        )
    target = _function_of(obj)
    hints = Hints(target)
    inject: Injected = ()
    by_name: str | None = None
    if first and _takes_one(obj):
        schema = hints.get(obj.__code__.co_varnames[0])
    else:
        inject, schema, by_name = _read_parameters(signature_of(obj), hints, what, first)
    call, is_async = _way_to_call(obj, target)
    if by_name is not None:
        call = functools.partial(_by_name, call, by_name)
    sync, coro = (None, call) if is_async else (call, None)
    return NodeBody(name, sync, coro, inject, schema, hints.get("return"), obj)


def _way_to_call(obj: Any, target: Any) -> tuple[Callable[..., Any], bool]:
    """What to call so that one value comes back, and whether that is awaited."""
    # Nor need `inspect` be asked of a plain function that returns: as most nodes do (P11).
    if _is_plain(obj) and not obj.__code__.co_flags & _SUSPENDS:
        return obj, False
    if inspect.iscoroutinefunction(target) or _is_marked_async(obj):
        return obj, True
    if inspect.isasyncgenfunction(target):
        return functools.partial(_acollect, obj), True
    if inspect.isgeneratorfunction(target):
        return functools.partial(_collect, obj), False
    return obj, False


def _is_marked_async(obj: Any) -> bool:
    """Whether an object says itself that it is async, as an `AsyncMock` does whose `__call__` is
    not."""
    marker = getattr(
        sys.modules.get("asyncio.coroutines"), "_is_coroutine", None
    )  # of Python before 3.12
    if marker is not None and getattr(obj, "_is_coroutine", None) is marker:
        return True
    try:
        return inspect.iscoroutinefunction(obj)
    except TypeError:  # `Mock(spec=function)` has a code that is a mock as well
        return False


def infer_name(obj: Any) -> str:
    """The name of a callable: its function's, its graph's, else its class's."""
    if _is_runnable(obj):
        get_name = getattr(obj, "get_name", None)
        if callable(get_name):
            return str(get_name())
        return str(getattr(obj, "name", None) or type(obj).__name__)
    while isinstance(obj, functools.partial) and not hasattr(
        obj, "__name__"
    ):  # `update_wrapper` may have named it
        obj = obj.func
    named = getattr(obj, "__name__", None)
    return named if isinstance(named, str) else type(obj).__name__


def _is_runnable(obj: Any) -> bool:
    """An object whose class has `.invoke` or `.ainvoke`. What only the object has does not count: a
    `Mock` has any attribute, and is called."""
    if isinstance(obj, (FunctionType, MethodType, type, functools.partial)):
        return False
    cls = (
        obj.__class__
    )  # not `type`: a proxy, or a mock with a `spec`, says here what it stands for
    return callable(getattr(cls, "invoke", None)) or callable(getattr(cls, "ainvoke", None))


def _read_runnable(obj: Any, name: str) -> NodeBody:
    sync, coro = getattr(obj, "invoke", None), getattr(obj, "ainvoke", None)
    inject: Injected = ()
    # A graph of ours finds its enclosing run by itself; passing it a config would detach it.
    if not is_graph(obj):
        signature = signature_of(sync or coro)
        if signature is not None and "config" in signature.parameters:
            inject = (("config", GETTERS["config"]),)
    return NodeBody(name, sync, coro, inject, None, None, obj)


def _function_of(obj: Any) -> Any:
    """The function whose signature counts: under partials, behind `__call__`."""
    while isinstance(obj, functools.partial):
        obj = obj.func
    if issubclass(type(obj), (FunctionType, MethodType, type)) or inspect.isbuiltin(
        obj
    ):  # a mock may claim to be one
        return obj
    call = getattr(type(obj), "__call__", None)  # noqa: B004  # not a test: its signature is wanted
    return MethodType(call, obj) if isinstance(call, FunctionType) else obj


def _read_parameters(
    signature: inspect.Signature | None, hints: Hints, what: str, first: bool
) -> tuple[Injected, Any, str | None]:
    """What to inject, the annotation of the state parameter, and its name if it must be passed by
    name."""
    if signature is None:
        return (), None, None
    parameters = [
        p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    state = _state_parameter(parameters) if first else None
    if first and state is None and not takes_any:
        raise TypeError(f"{what}: the function must take the state as its first parameter")
    flip = state.name if state is not None and state is not parameters[0] else None
    schema = hints.get(state.name) if state is not None else None
    others = [parameter for parameter in parameters if parameter is not state]
    return _read_injected(others, hints, what, first), schema, flip


def _read_injected(
    parameters: list[inspect.Parameter], hints: Hints, what: str, first: bool
) -> Injected:
    """The parameters that the engine fills, and how."""
    found: list[tuple[str, Getter]] = []
    for parameter in parameters:
        getter = _getter(parameter, hints.get(parameter.name), what)
        if getter is not None:
            found.append((parameter.name, getter))
        elif first and parameter.default is parameter.empty:
            raise TypeError(
                f"{what}: nothing can fill the parameter {parameter.name!r}; besides the state a "
                f"function may take {', '.join(GETTERS)}; give any other parameter a default"
            )
    return tuple(found)


def _state_parameter(parameters: list[inspect.Parameter]) -> inspect.Parameter | None:
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    for parameter in positional[1:]:
        if parameter.name == "state" and parameter.kind is not parameter.POSITIONAL_ONLY:
            return parameter
    if not positional:
        return None
    return positional[0]


def _getter(parameter: inspect.Parameter, hint: Any, what: str) -> Getter | None:
    """By annotation first, then by name; a reserved name with a foreign annotation is a mistake."""
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return None
    kind = injectable_kind(hint)
    if kind is not None:
        return GETTERS[kind]
    getter = GETTERS.get(parameter.name)
    if getter is None or _fits(hint, parameter.name):
        return getter
    if parameter.default is not parameter.empty:
        return None
    raise TypeError(
        f"{what}: the parameter {parameter.name!r} is annotated {hint!r}, but a node is given "
        "something else under that name; rename the parameter or drop the annotation"
    )


def members_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other hint alone. `Annotated` is looked through."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return members_of(typing.get_args(hint)[0])
    if origin is typing.Union or origin is UnionType:
        return tuple(each for arg in typing.get_args(hint) for each in members_of(arg))
    return (hint,)


def injectable_kind(hint: Any) -> str | None:
    """What an annotation of ours asks for, as a key of `GETTERS`; None for any other annotation."""
    for member in members_of(hint):
        if member is RunnableConfig:
            return "config"
        if member is StreamWriter:
            return "writer"
        cls = typing.get_origin(member) or member
        if isinstance(cls, type):
            if issubclass(cls, Runtime):
                return "runtime"
            if getattr(cls, "is_stategraph_store", False):
                return "store"
    return None


def _fits(hint: Any, name: str) -> bool:
    """Whether an annotation that names none of our types still suits a parameter with a reserved
    name."""
    says_nothing = any(hint is each for each in (None, Any, object))
    says_nothing = says_nothing or isinstance(hint, (str, typing.TypeVar))
    if says_nothing or name in ("previous", "error", "store", "runtime"):
        return True
    classes = [typing.get_origin(m) or m for m in members_of(hint)]
    if name == "config":
        types = [cls for cls in classes if isinstance(cls, type)]
        return any(issubclass(c, Mapping) or c.__name__ == "RunnableConfig" for c in types)
    return any(c is Callable or getattr(c, "__name__", "") == "StreamWriter" for c in classes)


def _is_plain(obj: Any) -> bool:
    """Whether this is a function, and nothing says of it that it is more than its code."""
    return type(obj) is FunctionType and not obj.__dict__


_SUSPENDS: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR


def _takes_one(obj: Any) -> bool:
    """Whether this is a plain function of one parameter, as most nodes are: `inspect` need not be
    asked."""
    if not _is_plain(obj):
        return False
    code = obj.__code__
    bare = not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return bare and code.co_argcount == 1 and code.co_kwonlyargcount == 0


# From Python 3.14 on annotations are evaluated when somebody asks, and may name what only type
# checkers see.
_AS_FAR_AS_KNOWN: dict[str, Any] = (
    {"annotation_format": Format.FORWARDREF} if sys.version_info >= (3, 14) else {}
)


def signature_of(obj: Any) -> inspect.Signature | None:
    """A callable's signature; None for a builtin that tells nothing."""
    try:
        return inspect.signature(obj, **_AS_FAR_AS_KNOWN)
    except (ValueError, TypeError):
        return None


def _annotations(function: Any) -> Mapping[str, Any]:
    try:
        return getattr(function, "__annotations__", None) or {}
    except NameError:
        return get_annotations(function, format=Format.FORWARDREF)


class Hints:
    """The annotations of a function, each resolved on its own: one that cannot be does not spoil
    the others."""

    def __init__(self, target: Any) -> None:
        function = target.__func__ if isinstance(target, MethodType) else target
        if not _is_plain(function):
            function = inspect.unwrap(function)
        if isinstance(function, type):
            function = function.__init__  # type: ignore[misc]
        self._raw: Mapping[str, Any] = _annotations(function)
        self._globals: dict[str, Any] = getattr(function, "__globals__", None) or dict(
            vars(sys.modules.get(getattr(function, "__module__", ""), typing))
        )
        self._function = function

    def get(self, name: str) -> Any:
        hint = self._raw.get(name)
        if isinstance(hint, typing.ForwardRef):
            hint = hint.__forward_arg__
        if not isinstance(hint, str):
            return hint
        try:
            code = _compile_hint(hint)
        except (SyntaxError, ValueError):
            return None  # an annotation may be any text; what cannot be resolved is no hint
        for names in self._scopes():
            try:
                return eval(code, self._globals, names)
            except NameError:
                continue
            except Exception:
                return None
        return None

    def _scopes(self) -> Iterator[Mapping[str, Any]]:
        """Where a name may be found: the closure, then the functions being called that stand in the
        same module, for a function that builds a graph often defines its schemas too."""
        yield _closure(self._function)
        frame = sys._getframe().f_back
        while frame is not None:
            if frame.f_globals is self._globals:
                yield frame.f_locals
            frame = frame.f_back


@functools.lru_cache(maxsize=256)
def _compile_hint(hint: str) -> CodeType:
    return compile(hint, "<annotation>", "eval")


def _closure(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    cells = getattr(function, "__closure__", None)
    if not cells:
        return found
    for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    return found


class Updates(list[Any]):
    """What a generator node yielded: each item is an update of its own."""


# Partials of functions at the top of a module: a node that runs elsewhere is pickled.


def _collect(function: Callable[..., Iterator[Any]], /, *args: Any, **kwargs: Any) -> Updates:
    found, updates = Updates(), iter(function(*args, **kwargs))
    while True:
        try:
            found.append(next(updates))
        except StopIteration as end:
            if end.value is not None:
                warn(
                    f"generator {getattr(function, '__name__', function)!r} yields its updates, so "
                    f"what it returns is dropped: {end.value!r:.200}; yield it"
                )
            return found


async def _acollect(
    function: Callable[..., AsyncIterator[Any]], /, *args: Any, **kwargs: Any
) -> Updates:
    return Updates([item async for item in function(*args, **kwargs)])


def _by_name(function: Callable[..., Any], parameter: str, value: Any, /, **kwargs: Any) -> Any:
    return function(**{parameter: value}, **kwargs)


def is_managed(hint: Any) -> type[ManagedValue] | None:
    """The managed value class that an annotation ends in, or None."""
    if typing.get_origin(hint) is typing.Annotated:
        last = typing.get_args(hint)[-1]
        last = typing.get_origin(last) or last
        if isinstance(last, type) and issubclass(last, ManagedValue):
            return last
    for arg in typing.get_args(hint)[:1]:
        return is_managed(arg)
    return None
