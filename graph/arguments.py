"""What the builder's methods are given, checked and brought into one form. Nothing here knows a graph."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..pregel.errors import InvalidGraphError
from ..pregel.program.callables import Body, infer_name
from ..pregel.types import All, Command, RetryPolicy
from .branch import literals


def plain_name(where: str, name: Any) -> str:
    """The name of a node; a member of a string enum becomes a plain one, for it would format differently.

    Raises:
        InvalidGraphError: it is not a string: a forgotten name, a function, a list where one name is meant.
    """
    if not isinstance(name, str):
        raise InvalidGraphError(f"{where} {name!r}; a node is named by a string")
    return str.__str__(name)


def named(item: Any) -> tuple[Any, Any]:
    """An item of a sequence as (name, action)."""
    if not isinstance(item, tuple):
        return infer_name(item), item
    if len(item) != 2:
        raise TypeError(f"add_sequence: an item is an action or a (name, action) pair, not {item!r}")
    return item


def policies_of(where: str, given: RetryPolicy | Sequence[RetryPolicy] | None) -> tuple[RetryPolicy, ...]:
    if given is None:
        return ()
    # A policy is a tuple itself.
    policies = tuple(given) if isinstance(given, (list, tuple)) and not isinstance(given, RetryPolicy) else (given,)
    for policy in policies:
        if not isinstance(policy, RetryPolicy):
            raise TypeError(f"{where}: retry_policy is a RetryPolicy or a list of them, not {policy!r}")
        if policy.max_attempts < 1 or min(policy.initial_interval, policy.max_interval, policy.backoff_factor) < 0:
            raise InvalidGraphError(f"{where}: a RetryPolicy needs max_attempts >= 1 and no negative times: {policy!r}")
        on = policy.retry_on
        if not callable(on) and not (isinstance(on, (list, tuple)) and all(isinstance(each, type) for each in on)):
            raise TypeError(f"{where}: retry_on is an exception class, several, or a function of the error, not {on!r}")
    return policies


def destinations_of(node: str, given: Mapping[str, str] | Sequence[str] | None, body: Body) -> dict[str, str]:
    """Node name → label: as given, else from a `Command[Literal[...]]` return annotation."""
    if given is None:
        return dict.fromkeys(_command_targets(body.returns), "")
    if not isinstance(given, (str, Iterable)):
        raise TypeError(f"node {node!r}: destinations is a dict or a collection of node names, not {given!r}")
    names = (given,) if isinstance(given, str) else given
    pairs = names.items() if isinstance(names, Mapping) else [(name, "") for name in names]
    return {plain_name(f"node {node!r} declares the destination", name): label for name, label in pairs}


def breakpoints_of(option: str, given: All | Sequence[str] | None) -> All | Sequence[str]:
    """Names of nodes to stop at, or "*"."""
    if given is None or given == "*":
        return given or ()
    listed = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else given
    return tuple(plain_name(f"{option} names", name) for name in listed)


def _command_targets(hint: Any) -> list[str]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Command:
        return literals(args[0])
    return [name for arg in args for name in _command_targets(arg)] if origin is not None else []


def router_name(path: Any) -> str:
    name = getattr(path, "__name__", None) or getattr(path, "name", None)
    return name if isinstance(name, str) and name != "<lambda>" else "condition"


def numbered(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or the name with the first free number."""
    count = 1
    found = name
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found
