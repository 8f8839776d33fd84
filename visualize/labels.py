"""The texts that all drawings share: ids that any syntax accepts, notes of a node, words for kinds.
Makes text only."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import GraphEdge, GraphNode

# Keywords of Mermaid or DOT, in lower case; they are case-insensitive.
RESERVED = {
    "end",
    "graph",
    "subgraph",
    "flowchart",
    "class",
    "classdef",
    "click",
    "style",
    "linkstyle",
    "default",
}
RESERVED |= {"direction", "call", "href", "interpolate", "_self", "_blank", "_parent", "_top"}
RESERVED |= {"digraph", "node", "edge", "strict"}

EDGE_KINDS = {
    "plain": "always taken",
    "join": "waits for all",
    "conditional": "a router decides",
    "goto": "a Command decides",
    "send": "sends any number of tasks",
    "error": "taken on failure",
}
"""What each kind of edge means."""

NODE_KINDS = {
    "start": "start",
    "end": "end",
    "node": "node",
    "subgraph": "a graph as a node",
    "join": "waits for all that lead here",
    "unknown": "any node: the router does not say which",
    "cluster": "a graph, shown inside",
    "folded": "several nodes with the same edges",
    "steps": "checkpoints in a row",
    "deferred": "deferred: runs when nothing else is left",
    "handler": "error handler",
    "breakpoint": "breakpoint: the run stops here",
    "model": "asks a model",
    "tool": "calls tools",
    "person": "asks a person",
    "unreached": "nothing declared leads here",
}
"""What each kind of node, and each of its `traits`, means."""

JOIN_KINDS = {
    "all": NODE_KINDS["join"],
    "any": "waits for the first that comes",
    "reachable": "waits for all that can still come",
}
"""What each kind of join means, by its label."""


def tell_join(label: str) -> str:
    """Return what a join waits for, by its label."""
    return JOIN_KINDS.get(label, f"waits for {label}, whichever come first")


def tell_trait(node: GraphNode, trait: str) -> str:
    """Return what one of the `traits` of a node means."""
    return tell_join(node.label) if trait == "join" else NODE_KINDS[trait]


def tell_edge(edge: GraphEdge, join: str) -> str:
    """Return what an edge means.

    Args:
        join: the label of the join that it leads to or from, if any.
    """
    if edge.kind != "join" or join == "all":
        return EDGE_KINDS[edge.kind]
    return tell_join(join)


ANY_NODE = "any node"
"""The label of the node for the undeclared targets of a router."""
PERHAPS = "perhaps"
"""The label of arrows from there to nodes that nothing else leads to."""

LONGEST_NOTE = 40  # characters of a metadata value

TIMES = "\u00d7"
"""The multiplication sign, not the letter x."""

MANY = f"{TIMES}n"
"""The label of an edge that sends any number of tasks."""


_JOINERS = "\u200c\u200d"  # part of how scripts and emoji are written


def visible(text: str) -> str:
    r"""Return the text with invisible characters escaped: control characters, and marks that change
    the reading direction.

    >>> visible("pay \u202eecila")
    'pay \\u202eecila'
    """
    return (
        text
        if text.isprintable()
        else "".join(c if _is_visible(c) else repr(c)[1:-1] for c in text)
    )


def _is_visible(character: str) -> bool:
    known = character.isprintable() or character in "\n\t" or character in _JOINERS
    return known or unicodedata.category(character) == "Zs"


_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def drop_illegal(text: str) -> str:
    """Return the text with U+FFFD in place of characters that XML or UTF-8 cannot represent."""
    return _ILLEGAL.sub("\ufffd", text)


def label_lines(node: GraphNode) -> list[str]:
    """Return the text in a node, line by line: only a node that represents several things has more
    than one."""
    return node.label.split("\n") if node.kind in ("folded", "steps") else [node.label]


def natural_key(name: str) -> str:
    """Return a sort key for names that orders the numbers in them by value.

    >>> sorted(["n10", "n2", "n1"], key=natural_key)
    ['n1', 'n2', 'n10']
    """
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), name)


def make_ids(names: Iterable[str]) -> dict[str, str]:
    """Return a unique identifier of letters, digits and _ for every name: the name itself where
    possible."""
    names = list(names)
    ids = {
        name: name
        for name in names
        if re.fullmatch(r"[A-Za-z_]\w*", name, re.A) and name.lower() not in RESERVED
    }
    taken = set(ids)
    for position, name in enumerate(names):
        if name in ids:
            continue
        word = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
        if not re.match(r"[A-Za-z]", word) or word.lower() in RESERVED:
            word = f"node_{word or position}"
        while word in taken:
            word += "_"
        taken.add(word)
        ids[name] = word
    return ids


def traits(node: GraphNode) -> list[str]:
    """Return what distinguishes a node from a plain one, as keys of `NODE_KINDS`."""
    found = {
        node.kind: node.kind not in ("node", "cluster"),
        "deferred": node.deferred,
        "handler": node.handler,
        "breakpoint": node.before or node.after,
        "unreached": not node.reached,
    }
    return [*(trait for trait, holds in found.items() if holds), *node.roles]


def notes(node: GraphNode) -> list[str]:
    """Return further facts about a node: its roles, its metadata, as far as it is plain data, and
    its breakpoints."""
    found = [
        f"{key} = {_shorten(value)}"
        for key, value in to_plain_data(dict(node.metadata)).items()
        if not (key == "kind" and value in node.roles)
    ]
    return [*(NODE_KINDS[role] for role in node.roles), *map(visible, found), *list_stops(node)]


def list_stops(node: GraphNode) -> list[str]:
    """Return where a breakpoint stops the run, as at most one note."""
    stops = [word for word, on in (("before", node.before), ("after", node.after)) if on]
    return [f"stops {' and '.join(stops)}"] if stops else []


def _shorten(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_NOTE else text[: LONGEST_NOTE - 1] + "…"


def to_plain_data(value: object) -> Any:
    """Convert a value in a node's metadata to JSON data; other objects are replaced by the names of
    their types."""
    if type(value) in (str, int, float, bool, type(None)):
        return value
    if type(value) in (list, tuple):
        return [to_plain_data(item) for item in value]  # type: ignore[attr-defined]
    if type(value) is dict:
        return {
            key if type(key) is str else f"<{type(key).__name__}>": to_plain_data(item)
            for key, item in value.items()
        }
    # Its repr() would be user code.
    return f"<{type(value).__name__}>"


def edge_text(edge: GraphEdge, many: str = MANY) -> str:
    """Return an edge's label, with a mark for a fan-out and a word for an error."""
    mark = {"send": many, "error": "on error"}.get(edge.kind, "")
    return " ".join(filter(None, (edge.label, mark)))
