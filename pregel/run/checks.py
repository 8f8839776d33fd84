"""Checks of what a call or a compiled graph is given: known durability, keys, nodes, executors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import UnionType
from typing import Any, get_args, get_origin

from ...channels.base import check_kind
from ...checkpoint.base import BaseCheckpointSaver
from ...extras import load_part
from ..errors import InvalidGraphError, nearest
from ..program.program import Program
from ..types import LOCAL, All, Selection, names_of


def check_choice(name: str, given: Any, choices: Any) -> None:
    """Check that a choice is one of a `Literal`.

    Raises:
        ValueError: it is none.
    """
    if given not in get_args(choices):
        *others, last = map(repr, get_args(choices))
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {given!r}")


def resolve_executor(given: Any) -> Any:
    """The executor that this means; None for nothing given, `LOCAL` for the driver's own threads.

    Raises:
        TypeError, ValueError: it means none.
    """
    if given is None or (isinstance(given, str) and given == LOCAL):
        return given
    return load_part("placement").resolve_executor(given)


def read_observers(given: Any, node: str | None = None) -> tuple[Any, ...]:
    """The observers that this means, the outermost first.

    Args:
        node: of the tasks of this node only.

    Raises:
        TypeError, ValueError: it means none.
    """
    if given is None or given == ():
        return ()
    from ..task import observers

    return observers.read_observers(given, node)


def check_keys(program: Program, keys: Selection) -> str | tuple[str, ...]:
    """Output keys that exist.

    Raises:
        ValueError: naming one that does not.
    """
    check_kind("output_keys", keys, Iterable, "a key or a list of keys")
    names = names_of(keys)
    for key in names:
        if not isinstance(key, str) or key not in program.channels:
            near = nearest(key, names_of(program.stream))
            raise ValueError(f"output key {key!r} does not exist; {near}")
    return keys if isinstance(keys, str) else names


def check_checkpointer(checkpointer: Any) -> BaseCheckpointSaver | bool | None:
    """A checkpointer, True, False or None.

    Raises:
        TypeError: anything else, a checkpointer's class included.
    """
    if checkpointer in (None, True, False) or isinstance(checkpointer, BaseCheckpointSaver):
        return checkpointer  # type: ignore[no-any-return]
    instead = _instead(checkpointer)
    if isinstance(checkpointer, str):
        instead = f"; open it: `with SqliteSaver.from_conn_string({checkpointer!r}) as saver:`"
    raise TypeError(
        "checkpointer must be a BaseCheckpointSaver, True, False or None, got "
        f"{checkpointer!r}{instead}"
    )


def check_context_schema(schema: Any) -> Any:
    """A class, perhaps with type arguments, or None.

    Raises:
        TypeError: anything else.
    """
    cls = get_origin(schema) or schema
    if cls is None or (isinstance(cls, type) and cls is not UnionType):
        return schema
    raise TypeError(
        f"context_schema must be a class (dataclass, pydantic model, TypedDict), got {schema!r}"
    )


def check_lent(name: str, thing: Any, method: str) -> Any:
    """A store or a cache, known by a method that it has, or None.

    Raises:
        TypeError: anything else, a class included.
    """
    if thing is None or (not isinstance(thing, type) and callable(getattr(thing, method, None))):
        return thing
    raise TypeError(f"{name} must be a {name} or None, got {thing!r}{_instead(thing)}")


def _instead(thing: Any) -> str:
    """What was probably meant."""
    if isinstance(thing, type):
        return "; pass an instance, not the class"
    if isinstance(thing, (AbstractContextManager, AbstractAsyncContextManager)):
        return "; open it: `with ...from_conn_string(...) as it:`"
    return ""


def check_breakpoints(names: All | Sequence[str], program: Program) -> All | Sequence[str]:
    """Breakpoints that name nodes.

    Raises:
        InvalidGraphError: naming those that do not.
    """
    if names == "*":
        return "*"
    words = '"*", the name of a node or a list of names'
    check_kind("breakpoints", names, Iterable, words)
    listed = names_of(names)
    nodes = program.nodes
    unknown = [n for n in listed if n not in nodes or nodes[n].hidden]
    if unknown:
        shown = [name for name, node in nodes.items() if not node.hidden]
        raise InvalidGraphError(
            [f"a breakpoint names the unknown node {n!r}; {nearest(n, shown)}" for n in unknown]
        )
    return listed
