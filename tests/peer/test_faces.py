"""A graph made with the native names is, by `as_runnable`, the same Runnable as the peer's."""

import ast

import pytest
from side_by_side import PROGRAMS, run_by, run_natively

TREE = ast.parse((PROGRAMS / "faces.py").read_text())
NAMES = [node.name for node in TREE.body if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "case" for d in node.decorator_list)]


@pytest.mark.parametrize("name", NAMES)
def test_a_native_graph_is_the_same_runnable(name):
    theirs = run_by("peer", "faces.py")[name]
    assert run_natively("faces.py")[name] == theirs
    assert run_by("stategraph", "faces.py")[name] == theirs
