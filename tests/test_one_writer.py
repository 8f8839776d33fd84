"""Each record of a run has one owner: its fields are assigned, and changed in place, in the file of its class only."""

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
    "commits": "CommitBuilder", "output": "Output", "replay": "Replay",
}  # fmt: skip
HOME = {
    "settings": "settings.py", "thread": "settings.py", "position": "position.py", "answers": "answers.py",
    "commits": "commits.py", "output": "output.py", "replay": "replay.py", "run": "run.py",
}  # fmt: skip
# What another file changes all the same, and why. Nothing may be added.
ALLOWED = {
    ("pregel/drivers/threads.py", "run.journal"): "the driver makes the journal: threads and asyncio have their own",
    ("pregel/drivers/threads.py", "run.open_calls"): "so for the @task calls",
    ("pregel/drivers/aio.py", "run.journal"): "see threads",
    ("pregel/drivers/aio.py", "run.open_calls"): "see threads",
    ("pregel/drivers/threads.py", "output.chunks"): "the driver takes the chunks out, and drops them when storing fails",
    ("pregel/drivers/aio.py", "output.chunks"): "see threads",
    ("pregel/drivers/futures.py", "commits.exit_records"): "@task calls add to what is stored at the end of the call",
    ("pregel/run/loop.py", "commits.exit_records"): "so does the loop",
    ("pregel/run/loop.py", "commits.inner"): "emptied once the tasks around those graphs have ended",
    ("pregel/run/load.py", "commits.inner"): "taken by the same graph when its task tries again",
    ("pregel/run/resume.py", "position.records"): "the record of a Command, beside those that were loaded",
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


CHANGING = {"add", "append", "clear", "discard", "extend", "pop", "popleft", "remove", "setdefault", "update"}


def changed(tree: ast.AST) -> Iterator[ast.expr]:
    """All that is assigned, deleted, or changed in place by a method of its kind, one by one."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            yield node.func.value


def part_of(target: ast.expr) -> tuple[str, str] | None:
    """The part of a run and its field that a change reaches: `run.position.head = ...`, but also
    `commits.metadata[key] = ...`; None if it reaches none."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(target, ast.Attribute):
        return None
    owner = ast.unparse(target.value).rsplit(".", 1)[-1].lstrip("_")
    return (owner, target.attr) if target.attr in FIELDS.get(owner, ()) else None


def foreign_changes() -> dict[tuple[str, str], str]:
    """(file, part.field) -> line, of what is changed outside of its class's file."""
    found = {}
    for room in ("pregel", "executors"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for target in changed(ast.parse(path.read_text())):
                reached = part_of(target)
                file = str(path.relative_to(ROOT))
                if reached is not None and file != RUN + HOME[reached[0]]:
                    found[file, ".".join(reached)] = f"{file}:{target.lineno}"
    return found


def test_no_field_of_a_part_of_a_run_is_changed_from_another_file() -> None:
    found = foreign_changes()
    new = [f"{where} changes {field}" for (file, field), where in found.items() if (file, field) not in ALLOWED]
    assert not new, "\n".join(["give the owner a method that does it:", *new])
    gone = ALLOWED.keys() - found.keys()
    assert not gone, f"not changed there any more, so take them from ALLOWED: {gone}"


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("run.position.head = head", ("position", "head")),
        ("self._position.saved_id = None", ("position", "saved_id")),
        ("commits.metadata[key] = value", ("commits", "metadata")),
        ("commits.exit_records += marks", ("commits", "exit_records")),
        ("del run.commits.metadata[key]", ("commits", "metadata")),
        ("run.commits.inner.clear()", ("commits", "inner")),
        ("run.journal = journal", ("run", "journal")),
        ("a, run.output.questions = 1, ()", ("output", "questions")),
        ("task.run = run", None),
        ("machine.step += 1", None),
    ],
)
def test_the_rule_sees_it(line: str, reached: tuple[str, str] | None) -> None:
    assert [part_of(target) for target in changed(ast.parse(line))] == [reached]
