"""The pytest plugin, in pytest runs of its own: coverage of graphs, and recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.programs import printed

pytest_plugins = ["pytester"]

SHOP = """
from typing import TypedDict
from stategraph import END, START, StateGraph, interrupt

class State(TypedDict, total=False):
    kind: str
    answer: str

def sort(state):
    return {}

def ask(state):
    return {"answer": interrupt("Buy " + state["kind"] + "?")}

graph = StateGraph(State).add_node(sort).add_node(ask).add_edge(START, "sort")
graph = graph.add_conditional_edges("sort", lambda state: "ask" if state["kind"] == "tea" else END, ["ask", END])
graph = graph.compile(name="shop")
"""

RUNS = """
import pytest
from shop import graph

@pytest.mark.parametrize("kind", {kinds})
def test_kinds(kind):
    graph.invoke({{"kind": kind}}, interrupt_before=["ask"])
"""


@pytest.fixture
def folder(pytester, monkeypatch):
    pytester.makepyfile(shop=SHOP)
    # An editable install is loaded past pytest's rewriting of asserts.
    loaded = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    pytester.makeini(f"[pytest]\nfilterwarnings =\n    error\n    {loaded}\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # no others: they take their time
    return pytester


WITH_PLUGIN = ["-p", "stategraph.pytest_plugin", "-p", "no:cacheprovider"]


def run(folder: pytest.Pytester, *words):
    """In this process: pytest takes longer to start than these tests take."""
    return folder.runpytest_inprocess(*WITH_PLUGIN, *words)


def test_coverage_is_reported(folder):
    folder.makepyfile(RUNS.format(kinds=["milk"]))
    done = run(folder, "--graph-coverage")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            "*graph coverage*",
            "shop: 50 %, 1 of 2 nodes, 2 of 4 edges, 1 of 2 outcomes of routers",
            "    missed: node 'ask'",
            "    missed: edge 'sort' -> 'ask'",
            "    missed: edge 'ask' -> END",
            "    missed: *() behind 'sort': 'ask'",
        ]
    )


def test_too_little_fails_the_run(folder):
    folder.makepyfile(RUNS.format(kinds=["milk"]))
    done = run(folder, "--graph-coverage-fail-under", "60")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["50 % of the graphs has run, less than 60 %"])
    assert run(folder, "--graph-coverage-fail-under", "50").ret == 0


def test_a_graph_that_is_named_is_reported_though_it_does_not_run(folder):
    folder.makepyfile("def test_nothing(): pass")
    run(folder, "--graph-coverage", "shop:graph").stdout.fnmatch_lines(["shop: 0 %, *"])
    run(folder, "--graph-coverage").stdout.fnmatch_lines(["no graph has run"])
    wrong = run(folder, "--graph-coverage", "shop:grahp")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*--graph-coverage: *grahp*"])


@pytest.mark.trial
def test_processes_of_xdist_are_added_up(folder):
    folder.makepyfile(RUNS.format(kinds=["milk", "tea"]))
    words = ["-p", "xdist", "-n", "2", "--dist", "each", "--graph-coverage"]
    done = folder.runpytest_subprocess(*WITH_PLUGIN, *words, timeout=120)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["shop: 75 %, 1 of 2 nodes, 3 of 4 edges, 2 of 2 outcomes of routers"])


def test_a_fixture_measures_one_test(folder):
    folder.makepyfile(
        """
        from shop import graph

        def test_it(graph_coverage):
            graph.invoke({"kind": "milk"})
            assert graph_coverage.of(graph).missed_nodes == ["ask"]
        """
    )
    assert run(folder).ret == 0


REPLAY = """
from shop import graph
from stategraph.testing import replace

def test_tea(replay_graph):
    replay_graph(graph, {{"kind": "tea"}}, answers=["{answer}"])
    replay_graph(graph, {{"kind": "milk"}}, recorded=["sort"])
"""


@pytest.mark.trial
def test_a_run_is_recorded_and_replayed(folder):
    folder.makepyfile(test_shop=REPLAY.format(answer="yes"))
    missing = run(folder)
    missing.stdout.fnmatch_lines(["*test_shop-test_tea.json is not there: run pytest --record-graphs once*"])
    assert run(folder, "--record-graphs").ret == 0
    assert sorted(path.name for path in (folder.path / "recordings").iterdir()) == [
        "test_shop-test_tea-2.json",
        "test_shop-test_tea.json",
    ]
    assert run(folder).ret == 0
    (folder.path / "shop.py").write_text(SHOP.replace('"Buy "', '"Take "'))
    run(folder).stdout.fnmatch_lines(
        ["E * step 2, node 'ask': the question differs at *0*", "E * recorded: 'Buy tea?'", "E * now: *'Take tea?'"]
    )


def test_the_plugin_loads_only_what_is_used():
    program = (
        "import sys; before = set(sys.modules); import stategraph.pytest_plugin\n"
        "print(*sorted(name for name in sys.modules if name.startswith('stategraph.') and name not in before))"
    )
    assert printed(program).split() == ["stategraph.pytest_plugin"]


def test_the_package_names_it_as_a_plugin():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"stategraph": "stategraph.pytest_plugin"}
