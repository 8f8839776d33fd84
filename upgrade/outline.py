"""The structure of a graph as plain data, and what of it differs ahead of a thread: edges, joins,
breakpoints. Read from the model of the graph's drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..pregel.app import Pregel
from ..pregel.names import END, START
from ..pregel.program.flow import parse_join, walk
from ..visualize.extract import ANYWHERE, extract
from .migration import Migration

Edge = tuple[str, str, str]
"""target, kind and label, as in a drawing"""


@dataclass(frozen=True, slots=True)
class Outline:
    """The structure of a graph.

    Attributes:
        edges: node, or channel of a join → its edges.
        marks: node → what else decides how it runs: "is deferred", "pauses before it runs", ...
        keys: key → a number that changes with its kind.
        ready: whether tasks start without a barrier (`schedule="ready"`).
        nested: node → the graph that it holds.
    """

    edges: Mapping[str, tuple[Edge, ...]]
    marks: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, int]
    ready: bool
    nested: Mapping[str, Outline]

    def inside(self, path: Iterable[str]) -> Outline | None:
        """Return the nested graph to which these nodes lead; None if it is not known."""
        found: Outline | None = self
        for name in path:
            if found is None:
                return None
            found = found.nested.get(name)
        return found


def migration_of(app: Any) -> Migration:
    """The declared changes of a graph; none if it declares none, or is not known."""
    migrate = getattr(app, "migrate", None)
    return migrate if isinstance(migrate, Migration) else Migration()


def converted(old: Outline, new: Pregel[Any, Any, Any, Any]) -> Outline:
    """Return the old structure as the migrations of the new graph, and of those in its nodes, make
    it."""
    migration = migration_of(new)

    def rename(name: str) -> str:
        if name.endswith(ANYWHERE):  # where a router leads that does not say so
            return migration.rename_edge_end(name.removesuffix(ANYWHERE)) + ANYWHERE
        return migration.rename_edge_end(name)

    nested = {rename(name): each for name, each in old.nested.items()}
    kinds = ((migration.rename_kind(name), kind) for name, kind in old.keys.items())
    return Outline(
        edges={
            rename(name): tuple(sorted((rename(end), kind, label) for end, kind, label in each))
            for name, each in old.edges.items()
        },
        marks={rename(name): each for name, each in old.marks.items()},
        keys={name: kind for name, kind in kinds if name is not None},
        ready=old.ready,
        nested={
            name: converted(each, new.program.nested[name]) if name in new.program.nested else each
            for name, each in nested.items()
        },
    )


def outline(app: Pregel[Any, Any, Any, Any], above: tuple[Any, ...] = ()) -> Outline:
    """Return the structure of a graph, with that of the graphs in its nodes."""
    model, program = extract(app), app.program
    edges: dict[str, list[Edge]] = {}
    for edge in model.edge_records:
        if edge.target == END and edge.kind == "plain":
            continue  # where a node ends, nothing runs
        edges.setdefault(edge.source, []).append((edge.target, edge.kind, edge.label))
    marks = {}
    for node in model.node_records:
        said = (
            (node.deferred, "is deferred"),
            (node.before, "pauses before it runs"),
            (node.after, "pauses after it has run"),
        )
        marks[node.id] = tuple(text for holds, text in said if holds)
    programs = (*above, program)
    return Outline(
        edges={name: tuple(sorted(each)) for name, each in edges.items()},
        marks=marks,
        keys={k: v for k, v in program.fingerprint.items() if k.startswith("key ")},
        ready=program.starts_ready,
        nested={
            name: outline(child, programs)
            for name, child in program.nested.items()
            if child.program not in programs
        },
    )


def differences(old: Outline, new: Outline, starts: Iterable[str]) -> Iterator[str]:
    """Yield what differs ahead of these nodes and joins, each as a sentence.

    Args:
        starts: the nodes that are pending, and the channels of the joins that are half open.
    """
    if old.ready != new.ready:
        yield f"schedule is {'ready' if new.ready else 'supersteps'!r} now"
    ahead = walk(starts, {name: [end for end, *_ in each] for name, each in old.edges.items()})
    for name in sorted(ahead - {START, END}):
        if name in old.marks and name not in new.marks and parse_join(name) is None:
            yield f"node {name!r} is gone"
            continue
        yield from _compare_node(old, new, name)
        inner, outer = old.nested.get(name), new.nested.get(name)
        if inner is not None and outer is not None and name not in starts:
            yield from (f"in {name!r}: {each}" for each in differences(inner, outer, (START,)))
    if START in ahead:
        yield from _compare_node(old, new, START)
    for key in sorted(old.keys.keys() & new.keys.keys()):
        if old.keys[key] != new.keys[key]:
            yield f"{key} has changed its kind"


def _compare_node(old: Outline, new: Outline, name: str) -> Iterator[str]:
    before, after = set(old.edges.get(name, ())), set(new.edges.get(name, ()))
    for word, edges in (("is gone", before - after), ("is new", after - before)):
        for end, kind, label in sorted(edges):
            join = parse_join(end)
            if join is not None:
                names = ", ".join(map(repr, join.sources))
                yield f"the join of {names} before {join.target!r} {word}"
            elif parse_join(name) is None:
                about = f" ({label})" if label else "" if kind == "plain" else f" ({kind})"
                yield f"the edge {name!r} → {end!r}{about} {word}"
    marks, mine = old.marks.get(name, ()), new.marks.get(name, ())
    yield from (f"node {name!r} {text} now" for text in mine if text not in marks)
    yield from (f"node {name!r} {text} no more" for text in marks if text not in mine)
