"""Laws of joins, on random graphs: once per wave, the same sync and async and after any stop."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.flow_graphs import Script, build, show
from kit.graphs import EMPTY, thread_config

from stategraph import InMemorySaver

NAMES = "abcdefgh"


pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")


@st.composite
def acyclic(draw, *, routers=True, defer=False):
    """A graph whose edges lead on in the alphabet, all nodes of which something leads to."""
    names = NAMES[: draw(st.integers(3, len(NAMES)))]
    parts = []
    script = {}
    for place, name in enumerate(names):
        before = ["S", *names[:place]]
        sources = draw(st.lists(st.sampled_from(before), min_size=1, max_size=2, unique=True))
        parts += [f"{source}>{name}" for source in sources]
    if "S>a" not in parts:
        parts.insert(0, "S>a")
    if routers:
        for name in draw(st.lists(st.sampled_from(names[:-1]), max_size=2, unique=True)):
            later = names[names.index(name) + 1 :]
            ends = draw(st.lists(st.sampled_from(later), min_size=1, max_size=2, unique=True))
            parts.append(f"r:{name}={'|'.join(ends)}")
            script[name] = draw(st.lists(st.sampled_from([[], ends[:1], ends]), min_size=1, max_size=3))
            # What the router may skip is skipped, unless another edge leads there.
            parts = [part for part in parts if not any(part == f"{name}>{end}" for end in ends)]
            if "S>a" not in parts:
                parts.insert(0, "S>a")
    if defer:
        late = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
        parts += [f"defer:{','.join(late)}"] if late else []
    return " ".join(parts), script


def joined_graph(draw, kinds):
    text, script = draw(acyclic())
    names = [name for name in NAMES if f">{name}" in text or f"|{name}" in text or f"={name}" in text]
    sources = draw(st.lists(st.sampled_from(names), min_size=min(2, len(names)), max_size=3, unique=True))
    kind = draw(st.sampled_from([*kinds, str(len(sources))]))
    return f"{text} [{','.join(sources)}]{kind}>z", script, sources, kind


@st.composite
def joins(draw):
    return joined_graph(draw, ["any", "reachable"])


def run(text, script: Script, drive):
    return drive.invoke(build(text, script).compile(), EMPTY)["log"]


@given(joins())
def test_a_join_runs_once_if_enough_sources_arrived_and_names_them(drive, made):
    text, script, sources, kind = made
    log = run(text, script, drive)
    ran = [name for name in sources if any(entry == name for _, entry in log)]
    runs = [entry for _, entry in log if entry.startswith("z")]
    if kind == "reachable":
        assert runs == ([f"z({'+'.join(ran)})"] if ran else []), text
    else:
        enough = len(ran) >= (1 if kind == "any" else int(kind))
        assert len(runs) == enough, text


@st.composite
def loops(draw):
    """A graph with two joins, the first of which leads back into the graph a few times."""
    text, script, sources, _ = joined_graph(draw, ["any", "reachable"])
    back = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=2, unique=True))
    turns = draw(st.integers(1, 3))
    other = draw(st.sampled_from(["any", "reachable"]))
    script = {**script, "z": [back] * turns + [[]]}
    return f"{text} r:z={'|'.join(back)} [{sources[0]},z]{other}>y", script


@given(loops())
def test_sync_and_async_run_the_same_supersteps_and_end(made):
    import asyncio

    text, script = made
    app = build(text, script).compile()
    log = app.invoke(EMPTY)["log"]
    assert asyncio.run(app.ainvoke(EMPTY))["log"] == log
    assert len(log) < 200


@given(loops(), st.integers(0, 2**12))
def test_stopped_anywhere_and_resumed_it_is_as_never_stopped(drive, made, stops):
    text, script = made
    straight = show(run(text, script, drive))
    saver, config = InMemorySaver(), thread_config("t")
    given = EMPTY
    for step in range(60):
        before = "*" if stops >> (step % 12) & 1 or step == 0 else None
        app = build(text, script).compile(saver, interrupt_before=before or [])
        result = drive.invoke(app, given, config)
        given = None
        if not drive.get_state(app, config).next:
            break
    assert show(result["log"]) == straight


# -- the sentence at compile -----------------------------------------------------------------------------------------


def told(text):
    """The nodes that compile says will run more than once."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        build(text).compile()
    return {str(each.message).split("'")[1] for each in found if "more than once" in str(each.message)}


@given(acyclic(routers=False, defer=True))
def test_nodes_reported_to_run_more_than_once_do(drive, made):
    text, script = made
    runs = Counter(entry for _, entry in run(text, script, drive))
    assert all(runs[name] > 1 for name in told(text)), (text, runs)


@given(acyclic(routers=False))
def test_without_a_report_every_node_runs_once(drive, made):
    text, script = made
    if not told(text):
        assert set(Counter(entry for _, entry in run(text, script, drive)).values()) <= {1}, text
