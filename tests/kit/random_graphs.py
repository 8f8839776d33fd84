"""Which described graphs there are: hypothesis strategies over the data that `graph_specs` explains.

With `peer=True` what our design mends, or where the released peer has a wart, does not come up; each such line says
which. A graph comes to rest by itself unless its static joins form a circle: every circle of edges has a router, a goto
or a Send in it, whose node counts n up, and which rests once n has reached the bound.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from kit.graph_specs import Described

END = "__end__"
START = "__start__"
# The order of names is not the order of edges; capitals sort before small letters.
NAMES = ["b", "a", "D", "c", "f", "e", "B", "g"]
ALL_KEYS = {"log": "list", "n": "int", "total": "int", "more": "list", "x": "last"}


def rarely(one_in):
    """True once in so many draws; shrinks to False."""
    return st.integers(0, one_in - 1).map(lambda number: number == one_in - 1)


@st.composite
def graphs(draw: DrawFn, *, peer=False, nested=True, failures=False):
    """A description of a graph with its inputs.

    Args:
        peer: leave out what the peer does differently.
        nested: nodes may be graphs.
        failures: nodes may raise once.
    """
    names = NAMES[: draw(st.integers(2, 8 if nested else 4))]
    keys = {key: kind for key, kind in ALL_KEYS.items() if key in ("log", "n") or not draw(rarely(3))}
    # D19: beside pending Sends the peer starts a deferred node; WART-37: it does not defer one that is sent to.
    style = draw(st.sampled_from(["sends", "defers", "neither"] if peer else ["sends", "defers", "both"]))
    sends, defers = style in ("sends", "both"), style in ("defers", "both")

    def targets(most):
        kinds = [st.sampled_from([*names, END])]
        if sends:
            # D4: no Send to END, no unknown names; no Send to START (WART-26).
            kinds.append(st.fixed_dictionaries({"send": st.sampled_from(names), "arg": st.integers(0, 3)}))
        return st.lists(st.one_of(kinds), max_size=most)

    routed = draw(st.lists(st.sampled_from([START, *names]), max_size=3))
    routers = [
        {
            "source": source,
            "choices": draw(st.lists(targets(3), min_size=1, max_size=3)),
            "bare": draw(st.booleans()),
            "mapped": draw(rarely(3)),
            "naps": draw(st.integers(0, 1)),
        }
        for source in routed
    ]
    nodes = []
    for name in names:
        sub = None
        if nested and draw(rarely(8)):
            sub = draw(graphs(peer=peer, nested=False))
            # WART-51: unchanged scalars are written back; they would collide in most graphs.
            sub["keys"].pop("x", None)
            sub = without_key(sub, "x")
            # A nested graph that ends without a change of its output returns None in the peer (D3): it always changes.
            sub["output_keys"] = None
        node = {
            "name": name,
            "defer": defers and draw(rarely(3)),
            "reads": draw(narrower(keys)) if draw(rarely(4)) else None,
            "naps": draw(st.integers(0, 2)),
            "fail_at": draw(st.integers(1, 4)) if failures and sub is None and draw(rarely(6)) else None,
            "retry": False,
            "sub": sub,
            "acts": draw(st.lists(acts(keys, targets(2), name in routed, peer), min_size=1, max_size=2)),
        }
        node["retry"] = node["fail_at"] is not None and draw(rarely(3))
        nodes.append(node)
    return {
        "keys": keys,
        "bound": draw(st.integers(2, 8)),
        # WART-11: the peer returns None if no output key was ever written, so log is always taken and shown.
        "input_keys": draw(narrower(keys)) if draw(rarely(6)) else None,
        "output_keys": draw(narrower(keys)) if draw(rarely(6)) else None,
        "nodes": nodes,
        "edges": draw(edges(names)),
        "joins": draw(joins(names)),
        "routers": routers,
        "inputs": draw(st.lists(inputs(keys), min_size=1, max_size=2)),
        "limit": 14,
    }


def acts(
    keys, targets: SearchStrategy[list[Any]], counts, peer
):
    """What a node may return.

    Args:
        counts: it must count n up, for a router comes after it.
    """
    # The peer refuses a list without a Command, and loses a Send beside one (WART-32): ours only.
    forms = ["dict", "command", "pairs", "commands", "send"] + ([] if counts else ["none"]) + ([] if peer else ["sends"])

    @st.composite
    def act(draw: DrawFn):
        form = draw(st.sampled_from(forms))
        goto = draw(targets) if form in ("command", "pairs", "commands", "send", "sends") and draw(rarely(2)) else []
        if form == "send":
            # WART-31: a bare Send also writes its fields into keys of the same names; no key is named so.
            goto = [t for t in goto if isinstance(t, dict)][:1]
        if form == "sends":
            goto = [t for t in goto if isinstance(t, dict)]
        written = [key for key in keys if key in ("log", "n") or draw(rarely(4))]
        if not goto and not counts and draw(rarely(4)):
            written.remove("n")
        # WART-09: Overwrite of a key without a reducer stores the wrapper in the peer. Never of n, which bounds loops.
        replaceable = [key for key, kind in keys.items() if key != "n" and (kind != "last" or not peer)]
        overwrite = draw(st.sampled_from(replaceable)) if draw(rarely(8)) else None
        return {"form": form, "keys": written, "overwrite": overwrite, "goto": goto}

    return act()


def narrower(keys):
    """Some of the keys; n and log always: nodes and routers look at n."""
    # WART-27: the router of a node that does not read n would be shown what the node returned for it.
    return st.sets(st.sampled_from(list(keys))).map(lambda some: [k for k in keys if k in some or k in ("log", "n")])


@st.composite
def edges(draw: DrawFn, names):
    """From START to the first node at least, else from earlier to later nodes; to END now and then."""
    found = [[START, names[0]]]
    for position, name in enumerate(names[1:], 1):
        before = draw(st.sets(st.integers(-1, position - 1), max_size=2))
        found += [[START if b < 0 else names[b], name] for b in sorted(before)]
    if draw(rarely(3)):
        found.append([names[-1], END])
    return found


@st.composite
def joins(draw: DrawFn, names):
    """Of one to three nodes into one that comes later; now and then into any, so that they go in circles."""
    found = []
    for _ in range(draw(st.integers(0, 2))):
        # WART-22: a join given as a set gets a name by hash order in the peer, so it is a list.
        starts = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        later = names[max(names.index(s) for s in starts) + 1 :]
        if not later or draw(rarely(6)):
            later = names
        join = [starts, draw(st.sampled_from(later))]
        if join not in found:
            found.append(join)
    return found


@st.composite
def inputs(draw: DrawFn, keys):
    """An input; log and n are always there."""
    found = {"log": {"overwrite": ["new"]} if draw(rarely(8)) else ["in"]}
    # Not 0: a nested graph that does nothing still gives its n back, and so counts as well.
    found["n"] = draw(st.integers(1, 3))
    if "x" in keys and draw(rarely(2)):
        found["x"] = "given"
    if "total" in keys and draw(rarely(4)):
        found["total"] = 5
    return found


def without_key(graph: Described, key):
    """The description with this key left out of what is read, written and shown."""
    for node in graph["nodes"]:
        node["reads"] = node["reads"] and [k for k in node["reads"] if k != key]
        for act in node["acts"]:
            act["keys"] = [k for k in act["keys"] if k != key]
            act["overwrite"] = None if act["overwrite"] == key else act["overwrite"]
    graph["keys"] = {k: kind for k, kind in graph["keys"].items() if k != key}
    graph["input_keys"] = graph["input_keys"] and [k for k in graph["input_keys"] if k != key]
    return graph
