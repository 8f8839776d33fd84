"""Arguments of the builder's methods: checked, and brought into one form. Nothing here knows a
graph."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from ..channels.base import check_kind
from ..pregel.errors import InvalidGraphError, nearest
from ..pregel.names import END, NS_END, NS_SEP, START, is_handler, is_reserved
from ..pregel.policies import NodePolicies
from ..pregel.program.callables import NodeBody, infer_name, read_callable
from ..pregel.types import All, CachePolicy, Command, RetryPolicy, TimeoutPolicy, Validated
from .branch import literals

if TYPE_CHECKING:
    from ..pregel.drivers.limit import Limit

F = TypeVar("F", bound=Callable[..., Any])

VALIDATED: tuple[str, ...] = get_args(Validated)


def known_keywords(*others: Callable[..., Any]) -> Callable[[F], F]:
    """Make a function that names the nearest keyword when it is given an unknown one.

    Args:
        others: the functions to which it passes on the keywords that it does not have itself.
    """

    def decorate(function: F) -> F:
        names = set[str]().union(*map(_keywords_of, (function, *others)))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in names:
                    where = function.__qualname__.removesuffix(".__init__")
                    raise TypeError(f"{where}() has no argument {name!r}; {nearest(name, names)}")
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]  # `wraps` keeps its signature

    return decorate


def _keywords_of(function: Any) -> Iterable[str]:
    code = inspect.unwrap(function).__code__
    given = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return (name for name in given if name != "self")


def plain_name(where: str, name: Any) -> str:
    """The name of a node as a plain string; a member of a string enum would format differently.

    Raises:
        InvalidGraphError: it is not a string: a forgotten name, a function, a list of names.
    """
    if not isinstance(name, str):
        own = getattr(name, "__name__", None)
        meant = f"; did you mean {own!r}?" if own else ""
        raise InvalidGraphError(f"{where} {name!r}, but the name of a node must be a string{meant}")
    return str.__str__(name)


def check_new_name(name: str, nodes: Mapping[str, Any]) -> None:
    """Refuse a name that a new node cannot have.

    Raises:
        InvalidGraphError: it is taken, reserved, or has a separator of namespaces in it.
    """
    if name in nodes:
        raise InvalidGraphError(f"node {name!r} already exists")
    if name in (START, END) or is_reserved(name) or is_handler(name):
        raise InvalidGraphError(f"node {name!r}: the name is reserved")
    for mark in (NS_END, NS_SEP):
        if mark in name:
            raise InvalidGraphError(
                f"node {name!r}: {mark!r} separates namespaces and cannot be in a name"
            )


def check_join(starts: Sequence[str], end: str, nodes: Mapping[str, Any]) -> None:
    """Refuse a join between names that are not nodes.

    Raises:
        InvalidGraphError: nothing is waited for, or one of the names is not a node yet.
    """
    if not starts:
        raise InvalidGraphError("a join needs at least one node to wait for")
    for start in starts:
        if start in (START, END):
            raise InvalidGraphError(f"a join cannot wait for {start}; use a plain edge")
        if start not in nodes:
            raise InvalidGraphError(f"a join waits for the unknown node {start!r}: add it first")
    if end != END and end not in nodes:
        raise InvalidGraphError(f"a join leads to the unknown node {end!r}: add it first")


def read_wait(
    wait: Any, starts: Sequence[str], end: str, nodes: Mapping[str, Any]
) -> tuple[str, int]:
    """What a join waits for, as its kind and its number.

    Raises:
        InvalidGraphError: it is none of the kinds, the number cannot be reached, or the node that
            waits cannot wait so.
    """
    where = f"the join of {', '.join(starts)} into {end!r}"
    if wait == "all":
        return "all", 1
    count = 1 if wait == "any" else wait
    if count == "reachable":
        kind, count = "reachable", 1
    elif isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= len(starts):
        kind = "count"
    else:
        raise InvalidGraphError(
            f'{where}: wait must be "all", "any", "reachable" or a number from 1 to '
            f"{len(starts)}, got {wait!r}"
        )
    if end in starts:
        raise InvalidGraphError(
            f"{where}: with wait={wait!r} a node cannot wait for itself, since a turn of the join "
            f"begins when {end!r} starts; use a plain edge from {end!r} to itself"
        )
    if end != END and nodes[end].defer:
        raise InvalidGraphError(
            f"{where}: with wait={wait!r} {end!r} cannot be deferred, since it would start later "
            'than the join says; drop defer=True, or use wait="all"'
        )
    return kind, count


def read_action(node: Any, action: Any) -> tuple[str, Any]:
    """What `add_node` was given, as (name, action).

    Raises:
        TypeError: there is no action, or the name is not a string.
    """
    if not isinstance(node, str):
        if action is not None:
            raise TypeError(
                f"add_node: the name must be a string, got {node!r}; pass a name and an action, or "
                "only an action"
            )
        if node is None:
            raise TypeError(
                "add_node needs an action: a function, or anything with invoke() or ainvoke()"
            )
        node, action = infer_name(node), node
    name = str.__str__(node)
    if action is None:
        raise TypeError(f"node {name!r} has no action: add_node(name, action)")
    return name, action


def name_action(item: Any) -> tuple[Any, Any]:
    """An item of a sequence as (name, action)."""
    if not isinstance(item, tuple):
        return infer_name(item), item
    if len(item) != 2:
        raise TypeError(
            f"add_sequence: an item must be an action or a (name, action) pair, got {item!r}"
        )
    return item


def read_policies(
    where: str,
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
    cache_policy: CachePolicy | None = None,
    timeout: float | timedelta | TimeoutPolicy | None = None,
    limit: Limit | Sequence[Limit] | None = None,
) -> NodePolicies:
    """The policies of a node as one record. `where` names the node in errors.

    Raises:
        TypeError: one of them is of no kind that a policy may have.
        InvalidGraphError: a RetryPolicy has a number that makes no sense.
    """
    retry: Any = () if retry_policy is None else retry_policy
    # A RetryPolicy is a tuple itself.
    if isinstance(retry, RetryPolicy) or not isinstance(retry, (list, tuple)):
        retry = (retry,)
    for policy in retry:
        words = "a RetryPolicy or a list of them"
        check_kind(f"{where}: retry_policy", policy, RetryPolicy, words)
        _check_policy(where, policy)
    limits = () if limit is None else _read_limits(where, limit)
    check_kind(f"{where}: cache_policy", cache_policy, CachePolicy | None, "a CachePolicy")
    return NodePolicies(tuple(retry), cache_policy, TimeoutPolicy.coerce(timeout), limits)


def _read_limits(where: str, given: Limit | Sequence[Limit]) -> tuple[Limit, ...]:
    from ..pregel.drivers.limit import Limit

    limits = (given,) if isinstance(given, Limit) else given
    if not isinstance(limits, (list, tuple)) or not all(isinstance(e, Limit) for e in limits):
        raise TypeError(f"{where}: limit must be a Limit or a list of them, got {given!r}")
    return tuple(dict.fromkeys(limits))


def _check_policy(where: str, policy: RetryPolicy) -> None:
    times = (policy.initial_interval, policy.max_interval, policy.backoff_factor)
    are_numbers = all(isinstance(each, (int, float)) and each >= 0 for each in times)
    if not isinstance(policy.max_attempts, int) or policy.max_attempts < 1 or not are_numbers:
        raise InvalidGraphError(
            f"{where}: a RetryPolicy must have max_attempts >= 1, and seconds and a backoff_factor "
            f">= 0, got {policy!r}"
        )
    on = policy.retry_on
    classes = on if isinstance(on, (list, tuple)) else [on]
    if not callable(on) and not all(isinstance(each, type) for each in classes):
        raise TypeError(
            f"{where}: retry_on must be an exception class, several of them, or a function of the "
            f"error, got {on!r}"
        )


def read_handler(handler: Any, what: str) -> NodeBody | None:
    """An error handler as it will be called; `what` names it in errors."""
    if handler is None:
        return None
    return read_callable(handler, what=what)


def read_destinations(
    node: str, given: Mapping[str, str] | Sequence[str] | None, body: NodeBody
) -> dict[str, str]:
    """Node name → label: as given, else from a `Command[Literal[...]]` return annotation."""
    if given is None:
        return dict.fromkeys(_command_targets(body.returns), "")
    words = "a dict or a collection of node names"
    check_kind(f"node {node!r}: destinations", given, Iterable, words)
    names = (given,) if isinstance(given, str) else given
    pairs = names.items() if isinstance(names, Mapping) else [(name, "") for name in names]
    where = f"node {node!r} declares the destination"
    return {plain_name(where, name): label for name, label in pairs}


def read_breakpoints(option: str, given: All | Sequence[str] | None) -> All | Sequence[str]:
    """Names of nodes to stop at, or "*"."""
    if given is None or given == "*":
        return given or ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    return tuple(plain_name(f"{option} names", name) for name in given)


def _command_targets(hint: Any) -> list[str]:
    if hint is None or hint is Any:
        return []
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Command:
        return literals(args[0])
    if origin is None:
        return []
    return [name for arg in args for name in _command_targets(arg)]


def infer_router_name(path: Any) -> str:
    """What a router is called in errors and drawings; "condition" if it has no name of its own."""
    name = getattr(path, "__name__", None) or getattr(path, "name", None)
    if not isinstance(name, str) or name == "<lambda>":
        return "condition"
    return name


def number_name(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or the name with the first free number."""
    count = 1
    found = name
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found


def read_places(validate: Validated | Sequence[Validated]) -> frozenset[str]:
    """Where values are validated.

    Raises:
        InvalidGraphError: it names no such place.
    """
    several = isinstance(validate, (list, tuple, set, frozenset))
    places: tuple[Any, ...] = tuple(validate) if several else (validate,)
    for place in places:
        if place not in VALIDATED:
            named = ", ".join(map(repr, VALIDATED))
            raise InvalidGraphError(f"validate must be one or several of {named}, got {place!r}")
    return frozenset(places)
