"""Each record of a run has one owner: its fields are assigned, and changed in place, in the file of its class only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from kit.programs import ROOT

RUN = "pregel/run/"
# Each record: where it and its base classes are defined, and what it is called wherever it is held.
OWNED = {
    "Settings": ((RUN + "settings.py",), ("settings",)),
    "Thread": ((RUN + "settings.py",), ("thread",)),
    "Position": ((RUN + "position.py",), ("position",)),
    "Ledger": ((RUN + "ledger.py",), ("ledger",)),
    "CommitBuilder": ((RUN + "commits.py",), ("commits",)),
    "Output": ((RUN + "output.py",), ("output",)),
    "Replay": ((RUN + "replay.py",), ("replay",)),
    "Run": ((RUN + "run.py",), ("run", "around", "whole")),
    "Machine": (("pregel/schedule/machine.py", "pregel/schedule/state.py"), ("machine", "live", "trial")),
    "Task": (("pregel/task/task.py",), ("task", "child", "copy", "detached", "handler", "here", "parent", "sibling")),
}  # fmt: skip
KIND = {name: kind for kind, (_, names) in OWNED.items() for name in names}
GROWN_BY_WRITERS = ("Task", "writes")
"""Writers and functions of nodes append to it: that is what it is for. Only the task puts another list in its place."""


def classes(file) -> list[ast.ClassDef]:
    return [node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.ClassDef)]


def own_fields(made: ast.ClassDef):
    """The fields of a class: its `__slots__`, and what it annotates."""
    found = set()
    for node in made.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found |= set(ast.literal_eval(node.value)) - {"__dict__"}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def fields(kind):
    """Those of a class and of its bases, which stand in the files of its owner."""
    made = {each.name: each for file in OWNED[kind][0] for each in classes(file)}
    found, left = set(), [kind]
    while left:
        here = made[left.pop()]
        found |= own_fields(here)
        left += [base.id for base in here.bases if isinstance(base, ast.Name) and base.id in made]
    return found


FIELDS = {kind: fields(kind) for kind in OWNED}

ADDING = {"add", "append", "extend"}
CHANGING = {*ADDING, "clear", "discard", "pop", "popleft", "remove", "setdefault", "update"}


def changed(tree: ast.AST) -> Iterator[ast.expr]:
    """All that is assigned, deleted, or changed in place by a method of its kind, one by one."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            value = node.func.value
            if not (node.func.attr in ADDING and part_of(value) == GROWN_BY_WRITERS):
                yield value


def part_of(target: ast.expr):
    """The record and its field that a change reaches: `run.position.head = ...`, but also
    `commits.metadata[key] = ...`; None if it reaches none."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(target, ast.Attribute):
        return None
    kind = KIND.get(ast.unparse(target.value).rsplit(".", 1)[-1].lstrip("_"))
    return (kind, target.attr) if kind is not None and target.attr in FIELDS[kind] else None


def foreign_changes():
    """What is changed outside of the file of its class, and of those of its bases."""
    for folder in ("pregel", "executors", "graph", "visualize", "workers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            for target in changed(ast.parse(path.read_text())):
                reached = part_of(target)
                if reached is not None and file not in OWNED[reached[0]][0]:
                    yield f"{file}:{target.lineno} changes {'.'.join(reached)}"


def test_no_field_of_a_record_is_changed_from_another_file():
    found = [*foreign_changes()]
    assert not found, "\n".join(["give the owner a method that does it:", *found])


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("run.position.head = head", ("Position", "head")),
        ("self._position.saved_id = None", ("Position", "saved_id")),
        ("commits.metadata[key] = value", ("CommitBuilder", "metadata")),
        ("commits.exit_records += marks", ("CommitBuilder", "exit_records")),
        ("del run.commits.metadata[key]", ("CommitBuilder", "metadata")),
        ("run.commits.inner.clear()", ("CommitBuilder", "inner")),
        ("run.journal = journal", ("Run", "journal")),
        ("a, run.output.questions = 1, ()", ("Output", "questions")),
        ("task.run = run", ("Task", "run")),
        ("machine.step += 1", ("Machine", "step")),
        ("self.run.machine.versions[name] = 1", ("Machine", "versions")),
        ("child.pause = None", ("Task", "pause")),
        ("task.writes += pairs", ("Task", "writes")),
        ("task.node.hidden = True", None),
    ],
)
def test_the_rule_sees_it(line, reached):
    assert [part_of(target) for target in changed(ast.parse(line))] == [reached]
