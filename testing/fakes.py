"""Graphs in which nodes are replaced for a test: a copy, or the graph itself for a while.

Only the function of a node is replaced: what it reads, its edges and routers, its retries and its
time limit stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace as with_fields
from typing import Any, TypeVar

from ..channels.base import check_kind
from ..pregel.app import Pregel, check_compiled
from ..pregel.errors import nearest
from ..pregel.names import NS_END
from ..pregel.program.node import PregelNode
from ..pregel.program.program import CompiledNode, Program
from ..pregel.types import LOCAL

AppT = TypeVar("AppT", bound=Pregel)
Nodes = Mapping[str, CompiledNode]


def replace(app: AppT, nodes: Mapping[str, Any] | None = None, /, **more: Any) -> AppT:
    """Return a copy of a graph in which nodes call something else. The graph itself is unchanged.

    A replaced node keeps its input, edges, routers, retries, limits and timeout, but not its cache
    policy and its executor: a fake runs in this process, each time.

    Args:
        app: a compiled graph.
        nodes: the replacements by node name, or for a node of a nested graph by its path as in
            drawings, such as `"research:search"`. A function is called as the node was, with the
            same injected parameters; so is a `unittest.mock.Mock`. An exception is raised. Any
            other value is returned each time.
        more: the same for names that are Python identifiers.

    Raises:
        ValueError: there is no such node.

    >>> from stategraph import START, StateGraph
    >>> def ask(state: dict) -> dict:
    ...     raise RuntimeError("no network in tests")
    >>> app = StateGraph(dict).add_node(ask).add_edge(START, "ask").compile()
    >>> replace(app, ask={"answer": 42}).invoke({})
    {'answer': 42}
    """
    check_compiled(app)
    return app.copy({"program": _program_with(app, _by_level(nodes, more))})


@contextmanager
def replaced(app: AppT, nodes: Mapping[str, Any] | None = None, /, **more: Any) -> Iterator[AppT]:
    """Replace nodes of the graph itself until the `with` block ends, for code that holds the graph
    in a global variable. Runs that have begun are not affected.

    Args:
        app, nodes, more: as for `replace`.

    Raises:
        ValueError: there is no such node.
    """
    check_compiled(app)
    before = app.program
    app.program = _program_with(app, _by_level(nodes, more))
    try:
        yield app
    finally:
        app.program = before


def find_node(app: Pregel, path: str) -> tuple[Pregel, str]:
    """The graph that has a node, and the node's name in it.

    Args:
        path: the name, after those of the nodes around it: `"research:search"`.

    Raises:
        TypeError: `app` is no compiled graph.
        ValueError: there is no such node.
    """
    check_compiled(app)
    check_kind("node", path, str, "a name")
    *around, name = path.split(NS_END)
    for level in around:
        nested = app.program.nested.get(level)
        if nested is None:
            raise ValueError(
                f"{path!r}: node {level!r} of graph {app.name!r} holds no graph; "
                f"{nearest(level, app.program.nested)}"
            )
        app = nested
    visible = [each for each, node in app.program.nodes.items() if not node.hidden]
    if name not in visible:
        raise ValueError(f"graph {app.name!r} has no node {name!r}; {nearest(name, visible)}")
    return app, name


def replace_calls(app: AppT, bodies: Mapping[str, Any]) -> AppT:
    """A copy of a graph in which these nodes call something else.

    Args:
        bodies: by name in this graph what a node calls.
    """
    made = {name: _replace_call(app, name, body) for name, body in bodies.items()}
    return app.copy({"program": change_nodes(app.program, made)})


def change_nodes(program: Program, nodes: Nodes) -> Program:
    """The same program with other nodes under these names."""
    table = {**program.nodes, **nodes}
    for name, node in table.items():
        if node.handler is not None and node.handler is not table[node.handler.name]:
            table[name] = twin = copy(node)
            twin.handler = table[node.handler.name]
    nested = {name: each for name, each in program.nested.items() if name not in nodes}
    for name, node in nodes.items():
        if isinstance(node.source, Pregel):
            nested[name] = node.source
    return with_fields(program, nodes=table, nested=nested, variants={})


Level = dict[str, Any]


def _by_level(nodes: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Level]:
    """By the first name of their paths what is to be replaced there: a node under "", what is
    inside it by the rest."""
    check_kind("nodes", nodes, Mapping | None, "a dict of nodes")
    found: dict[str, Level] = {}
    for path, fake in {**(nodes or {}), **more}.items():
        check_kind("node", path, str, "a name")
        first, _, rest = path.partition(NS_END)
        found.setdefault(first, {})[rest] = fake
    return found


def _program_with(app: Pregel, levels: Mapping[str, Level]) -> Program:
    made: dict[str, CompiledNode] = {}
    for name, level in levels.items():
        if "" in level:
            find_node(app, name)
            made[name] = _replace_call(app, name, as_body(level[""], name))
        else:
            inner = next(iter(level))
            find_node(app, f"{name}{NS_END}{inner}")
            made[name] = _replace_call(app, name, replace(app.program.nested[name], level))
    return change_nodes(app.program, made)


def as_body(fake: Any, name: str) -> Any:
    """What a node calls that is to do this."""
    if isinstance(fake, BaseException):

        def fail(state: Any) -> Any:
            raise fake

        return _named(fail, name)
    methods = (getattr(type(fake), name, None) for name in ("invoke", "ainvoke"))
    if callable(fake) or any(map(callable, methods)):
        return fake

    def give(state: Any) -> Any:
        return fake

    return _named(give, name)


def _named(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    function.__name__ = name
    return function


def _replace_call(app: Pregel, name: str, body: Any) -> CompiledNode:
    """The compiled node with another body."""
    was = app.program.nodes[name]
    nested = isinstance(body, Pregel)
    policies = app.nodes[name].policies
    declared: PregelNode = with_fields(
        app.nodes[name],
        bound=body,
        policies=policies if nested else policies._replace(cache=None),
        executor=LOCAL,
    )
    made = CompiledNode(name, declared, was.reads, was.consumes)
    made.writers = was.writers
    made.plain = False
    made.handler = was.handler
    made.debug, made.guarded = was.debug, made.guarded or was.debug
    return made
