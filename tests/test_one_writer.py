"""Each record of a run has one owner: its fields are assigned in the file of its class, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUN = "pregel/run/"
# The parts of a run: where each is defined, and how it is called wherever it is held.
PARTS = {
    "settings": "Settings", "thread": "Thread", "position": "Position", "answers": "Answers",
    "commits": "Commits", "output": "Output", "replay": "Replay",
}  # fmt: skip
HOME = {
    "settings": "settings.py", "thread": "settings.py", "position": "position.py", "answers": "answers.py",
    "commits": "commits.py", "output": "output.py", "replay": "replay.py", "run": "run.py",
}  # fmt: skip
# What another file assigns all the same, and why. Nothing may be added.
ALLOWED = {
    ("pregel/drivers/threads.py", "run.journal"): "the driver makes the journal: threads and asyncio have their own",
    ("pregel/drivers/threads.py", "run.open_calls"): "so for the @task calls",
    ("pregel/drivers/aio.py", "run.journal"): "see threads",
    ("pregel/drivers/aio.py", "run.open_calls"): "see threads",
    ("pregel/run/loop.py", "commits.exit_records"): "the loop adds to what is stored at the end of the call",
    ("pregel/run/nested.py", "commits.metadata"): "the route to a nested checkpoint, noted with one fork",
    ("pregel/run/resume.py", "commits.metadata"): "the runs that brought an answer here",
}


def fields() -> dict[str, set[str]]:
    """Part -> the names of its fields, from its `__slots__`."""
    found = {}
    for part, kind in {**PARTS, "run": "Run"}.items():
        tree = ast.parse((ROOT / RUN / HOME[part]).read_text())
        [made] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
        [slots] = [
            node.value
            for node in made.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"
        ]
        found[part] = set(ast.literal_eval(slots))
    return found


FIELDS = fields()


def assigned(tree: ast.AST) -> Iterator[ast.expr]:
    """All that is assigned, added to or deleted, one by one."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node


def part_of(target: ast.expr) -> tuple[str, str] | None:
    """The part of a run and its field that an assignment reaches: `run.position.head = ...`, but also
    `commits.metadata[key] = ...`; None if it reaches none."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(target, ast.Attribute):
        return None
    owner = ast.unparse(target.value).rsplit(".", 1)[-1].lstrip("_")
    return (owner, target.attr) if target.attr in FIELDS.get(owner, ()) else None


def foreign_assignments() -> dict[tuple[str, str], str]:
    """(file, part.field) -> line, of what is assigned outside of its class's file."""
    found = {}
    for room in ("pregel", "executors"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for target in assigned(ast.parse(path.read_text())):
                reached = part_of(target)
                file = str(path.relative_to(ROOT))
                if reached is not None and file != RUN + HOME[reached[0]]:
                    found[file, ".".join(reached)] = f"{file}:{target.lineno}"
    return found


def test_no_field_of_a_part_of_a_run_is_assigned_from_another_file() -> None:
    found = foreign_assignments()
    new = [f"{where} assigns {field}" for (file, field), where in found.items() if (file, field) not in ALLOWED]
    assert not new, "\n".join(["give the owner a method that does it:", *new])
    gone = ALLOWED.keys() - found.keys()
    assert not gone, f"not assigned any more, so take them from ALLOWED: {gone}"


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("run.position.head = head", ("position", "head")),
        ("self._position.saved_id = None", ("position", "saved_id")),
        ("commits.metadata[key] = value", ("commits", "metadata")),
        ("commits.exit_records += marks", ("commits", "exit_records")),
        ("del run.commits.metadata[key]", ("commits", "metadata")),
        ("run.journal = journal", ("run", "journal")),
        ("a, run.output.questions = 1, ()", ("output", "questions")),
        ("task.run = run", None),
        ("machine.step += 1", None),
    ],
)
def test_the_rule_sees_it(line: str, reached: tuple[str, str] | None) -> None:
    assert [part_of(target) for target in assigned(ast.parse(line))] == [reached]
