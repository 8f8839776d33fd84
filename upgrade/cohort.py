"""A cohort for CI: of each shape of the stored threads one, as an anonymised recording that
`stategraph.lab.whatif` runs again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoint.base import address
from ..checkpoint.errors import UnknownTypeError
from ..lab.whatif import whatif
from ..pregel.app import Pregel
from ..testing.recording import RecordedStep, RecordedTask, Recording
from ..testing.thread_reader import read_thread
from .proof import Proof

CONTAINERS = ("$tuple", "$set", "$frozenset", "$dict")
KEPT = ("$datetime", "$date", "$time", "$timedelta", "$Decimal", "$float")


class Saved(NamedTuple):
    """How many threads were written, one of each shape, and why the other shapes were left out."""

    threads: int
    left_out: Mapping[str, str]


def save(app: Pregel[Any, Any, Any, Any], proof: Proof, folder: str | Path) -> Saved:
    """Write the first thread of each shape to a folder, a file for each. Threads have one shape if
    they have one verdict and the same nodes have run, and run next. Texts are replaced, equal ones
    by equal ones; numbers, times and the names of keys, nodes and types stay. A shape is left out
    if its thread cannot be recorded, or would do something else without its texts.

    Args:
        app: the graph that runs now, with its checkpointer.

    Raises:
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shapes, left_out = set[Any](), dict[str, str]()
    for verdict in proof.verdicts:
        try:
            recording = read_thread(app, address(verdict.thread_id, ""))
            shape = verdict.reasons, verdict.next, frozenset(_paths(recording))
            if shape in shapes:
                continue
            anonymous = anonymise(recording)
            whatif(app, anonymous).check(different=0)
        except (AssertionError, ValueError, TypeError, UnknownTypeError) as error:
            left_out[verdict.thread_id] = str(error)
            continue
        shapes.add(shape)
        anonymous.save(folder / f"{len(shapes):04}.json")
    return Saved(len(shapes), left_out)


def _paths(recording: Recording) -> set[str]:
    return {path for run in recording.runs for path, _ in run.tasks()}


def anonymise(recording: Recording) -> Recording:
    """Return a recording without the texts that its users wrote.

    Raises:
        ValueError: it holds a value that only its own type can read.
    """
    names = {part for path in _paths(recording) for part in path.split(":")}
    hide = _Hidden(names).hide
    runs = tuple(
        replace(run, input=hide(run.input), state=hide(run.state), steps=_steps(run.steps, hide))
        for run in recording.runs
    )
    calls = {id: hide(call) for id, call in recording.calls.items()}
    return replace(recording, runs=runs, calls=calls)


def _steps(steps: tuple[RecordedStep, ...], hide: Any) -> tuple[RecordedStep, ...]:
    return tuple(tuple(_task(task, hide) for task in step) for step in steps)


def _task(task: RecordedTask, hide: Any) -> RecordedTask:
    return replace(
        task,
        input=hide(task.input),
        writes=tuple([name, hide(value)] for name, value in task.writes),
        goto=tuple(hide(goal) if isinstance(goal, dict) else goal for goal in task.goto),
        questions=tuple(hide(question) for question in task.questions),
        error=task.error.partition(":")[0],
        steps=_steps(task.steps, hide),
    )


class _Hidden:
    """Replaces texts in the form of `checkpoint.serde.json_form`.

    >>> hide = _Hidden({"pay"}).hide
    >>> hide({"who": "Ada", "goto": "pay", "tags": {"$tuple": ["x", "Ada", 7]}})
    {'who': 'text 1', 'goto': 'pay', 'tags': {'$tuple': ['text 2', 'text 1', 7]}}
    """

    def __init__(self, names: Collection[str]) -> None:
        self._known = {name: name for name in names} | {"": ""}
        self._count = 0

    def hide(self, form: Any) -> Any:
        """Return the form with other texts."""
        if isinstance(form, str):
            if form not in self._known:
                self._count += 1
                self._known[form] = f"text {self._count}"
            return self._known[form]
        if isinstance(form, list):
            return [self.hide(each) for each in form]
        if not isinstance(form, dict):
            return form
        mark = next(iter(form), "")
        if mark == "$type":
            return {**form, "value": self.hide(form["value"])}
        if mark in KEPT:
            return form
        if mark.startswith("$") and mark not in CONTAINERS and isinstance(form[mark], str):
            raise ValueError(f"a value of type {mark[1:]} cannot be anonymised")
        return {
            key if key.isidentifier() or key.startswith("$") else self.hide(key): self.hide(value)
            for key, value in form.items()
        }
