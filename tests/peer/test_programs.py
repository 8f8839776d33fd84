"""Programs written for the peer print the same here, line by line; what may differ is listed with its reason in
docs/reference/differences.md."""

import ast

import pytest
from side_by_side import PROGRAMS, run_by

NEEDS = "needs"
"""How the only line of a case begins whose package is not installed; see programs/published.py."""
UNCAUGHT = "uncaught"
"""How the line of a case begins that has failed by a mistake in the program itself; see programs/program_cases.py."""


def cases():
    """Every case of every program."""
    found = []
    for path in sorted(PROGRAMS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            marked = isinstance(node, ast.FunctionDef) and any(ast.unparse(d) in ("case", "with_packages") for d in node.decorator_list)
            if marked:
                found.append((path.name, node.name))
    return found


@pytest.mark.parametrize(("program", "name"), cases())
def test_the_same_here_as_there(program, name):
    theirs = run_by("peer", program)[name]
    if theirs and theirs[0].startswith(NEEDS):
        pytest.skip(f"{theirs[0]}: make newest")
    assert not [line for line in theirs if line.startswith(UNCAUGHT)]
    assert run_by("stategraph", program)[name] == theirs
