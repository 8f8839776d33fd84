"""A recorded run as plain records, and its file. This module runs and compares nothing.

All values are in the form of `checkpoint.serde.json_form`, so a recording can be read and compared
without the recorded program's classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

FORMAT: Final = "stategraph recording"
VERSION: Final = 1
"""Of the files that are written. Each earlier version can be read: a test holds a file of each."""

WIDTH: Final = 100
"""Of the lines of a file, where that is possible."""

Result = TypeVar("Result")
End = Literal["done", "paused", "failed", "stopped"]
"""`paused`: it waits for answers. `stopped`: at a breakpoint, or at a limit of the call."""


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """One task of a superstep.

    Attributes:
        node: its name.
        input: what the node was called with.
        writes: [key, value] of what it wrote to the state, in order.
        goto: where its edges, routers and commands led: names and `Send`s.
        questions: what it asked, each as {"asks": ...}, with "answer" if it was answered. Of those
            answered before the last ones, only the answer is stored.
        error: what it raised, as text; "" if nothing.
        steps: the steps of the nested graph that it ran.
        from_start: where START of that graph led. Known only of a stored thread, and in no file.
        held: of these steps, as of a `RecordedRun`.
        left: the tasks of that graph with which it ended, as one sent a `Command` to the graph
            around it. Their writes and questions are this task's.
        ids: of each question, what tells it from others of the task.
        id: the task's own.
    """

    node: str
    input: Any = None
    writes: tuple[Any, ...] = ()
    goto: tuple[Any, ...] = ()
    questions: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    steps: tuple[RecordedStep, ...] = ()
    from_start: tuple[str, ...] = field(default=(), compare=False)
    held: tuple[int, ...] = field(default=(), compare=False)
    left: RecordedStep = field(default=(), compare=False)
    ids: tuple[str, ...] = field(default=(), compare=False)
    id: str = field(default="", compare=False)

    def asked(self) -> Iterator[Mapping[str, Any]]:
        """Its questions with their ids, if these are known; those of the nested graph that it ran
        in their order."""
        if not self.steps:
            for question, id in zip_longest(self.questions, self.ids):
                yield {**question, "id": id}
        for step in self.steps:
            for task in step:
                yield from task.asked()

    def waits_for(self, question: Mapping[str, Any]) -> bool:
        """Whether it went on with the answer of a question whose words are known, or has none yet.
        It may have gone on without: another answer has raised the budget."""
        return "asks" in question and ("answer" in question or not (self.writes or self.goto))

    def asked_last(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """What it asked before its last pause, and what it asked together then; of questions that
        it waits for."""
        last = [each["asks"] for each in self.questions if "asks" in each]
        before: list[Mapping[str, Any]] = []
        together: list[Mapping[str, Any]] = []
        for question in reversed([*filter(self.waits_for, self.asked())]):
            if question["asks"] in last:
                last.remove(question["asks"])
                together.insert(0, question)
            else:
                before.insert(0, question)
        if not together and before:  # it went on without all that it asked at its last pause
            together.append(before.pop())
        return before, together

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file: without what is empty."""
        names = "steps", "held", "left", "questions", "ids", "writes", "goto", "error", "id"
        return {"node": self.node, "input": self.input, **_written(self, *names)}


RecordedStep = tuple[RecordedTask, ...]
"""The tasks of a superstep, in the engine's order."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What one input led to, up to its end; answers and resumes included.

    Attributes:
        input: what `invoke` was given.
        state: at the end.
        from_start: as of a `RecordedTask`.
        held: the numbers of the steps behind which nothing started, though something could have,
            with schedule="ready": a task had failed, or the call was to end.
        posts: [step, key, value] of what was posted to the thread and taken behind the checkpoint
            with that step's number.
    """

    input: Any
    steps: tuple[RecordedStep, ...]
    end: End
    state: Any
    from_start: tuple[str, ...] = field(default=(), compare=False)
    held: tuple[int, ...] = field(default=(), compare=False)
    posts: tuple[Any, ...] = field(default=(), compare=False)

    def tasks(self, *, left: bool = False) -> Iterator[tuple[str, RecordedTask]]:
        """All tasks with the paths of their nodes, those of nested graphs before the task that ran
        the graph.

        Args:
            left: also those that have `left` a nested graph.
        """
        yield from _tasks_of(self.steps, "", left=left)

    def answered(self) -> Iterator[Mapping[str, Any]]:
        """The questions that were answered. What a nested graph asks, the task around it asks as
        well; it is here once."""
        asked = (each for step in self.steps for task in step for each in task.asked())
        return (each for each in asked if "answer" in each)


@dataclass(frozen=True, slots=True)
class Recording:
    """The runs of one thread.

    Attributes:
        graph: the graph's name.
        runs: the oldest first.
        calls: by id, what `@task` calls and effects of the tasks returned ("result"), raised
            ("error"), and asked last ("asks").
    """

    graph: str
    runs: tuple[RecordedRun, ...]
    calls: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def save(self, path: str | Path) -> Path:
        """Write a file of JSON, for people to read and to keep beside tests.

        Returns:
            The path.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        path.write_text(format_json(self.to_json()) + "\n", "utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a file that `save` has written, in this or an earlier version.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not a recording, or one of a later version.
        """
        return read_file(path, cls.from_json)

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        names = "steps", "held", "posts", "end", "state"
        runs = [{"input": run.input, "steps": [], **_written(run, *names)} for run in self.runs]
        head = {"format": FORMAT, "version": VERSION, "graph": self.graph, "runs": runs}
        return {**head, "calls": self.calls} if self.calls else head

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """The recording of what a file holds.

        Raises:
            ValueError: it is no recording, or one of a later version.
        """
        if data.get("format") != FORMAT:
            raise ValueError(f"no recording: its format must be {FORMAT!r}")
        version = data["version"]
        if not isinstance(version, int) or not 1 <= version <= VERSION:
            raise ValueError(
                f"the recording has version {version!r}, and this version of stategraph reads 1 to "
                f"{VERSION}; upgrade stategraph, or record it again"
            )
        runs = tuple(_read(RecordedRun, run) for run in data["runs"])
        return cls(data["graph"], runs, data.get("calls", {}))

    def __str__(self) -> str:
        """The runs in a few lines: who ran in which step."""
        lines = [f"{self.graph}: {len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"]
        for number, run in enumerate(self.runs, 1):
            lines.append(f"run {number}, {run.end}")
            for place, step in enumerate(run.steps, 1):
                lines.append(f"  {place}. {', '.join(task.node for task in step)}")
        return "\n".join(lines)


def read_file(path: str | Path, read: Callable[[Any], Result]) -> Result:
    """What is made of the JSON in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds something else.
    """
    try:
        return read(json.loads(Path(path).read_text("utf-8")))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeError) as error:
        raise ValueError(f"{path} is no recording: {error!r}") from error


def format_json(value: Any, indent: str = "") -> str:
    """JSON in which what fits on a line stands on one."""
    whole = json.dumps(value, ensure_ascii=False)
    if len(whole) + len(indent) <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return whole
    inner = indent + "  "
    if isinstance(value, list):
        parts = [f"{inner}{format_json(item, inner)}" for item in value]
        return "[\n" + ",\n".join(parts) + f"\n{indent}]"
    parts = [
        f"{inner}{json.dumps(key, ensure_ascii=False)}: {format_json(item, inner)}"
        for key, item in value.items()
    ]
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def _written(record: RecordedTask | RecordedRun, *names: str) -> dict[str, Any]:
    """These fields as they stand in the file, but for those that are empty."""
    found = {}
    for name in names:
        value = getattr(record, name)
        if name == "steps":
            value = [[task.to_json() for task in step] for step in value]
        if name == "left":
            value = [task.to_json() for task in value]
        if name == "state" or value:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _read(kind: Any, data: Mapping[str, Any]) -> Any:
    """Return a record of what stands in a file; keys of later releases are passed over."""
    found = {each.name: data[each.name] for each in fields(kind) if each.name in data}
    for name in ("held", "posts", "questions", "ids", "writes", "goto"):
        if name in data:
            found[name] = tuple(data[name])
    steps = data.get("steps", ())
    found["steps"] = tuple(tuple(_read(RecordedTask, task) for task in step) for step in steps)
    if "left" in data:
        found["left"] = tuple(_read(RecordedTask, task) for task in data["left"])
    return kind(**found)


def _tasks_of(
    steps: tuple[RecordedStep, ...], inside: str, *, left: bool
) -> Iterator[tuple[str, RecordedTask]]:
    for step in steps:
        for task in step:
            path = f"{inside}{task.node}"
            below = (*task.steps, task.left) if left else task.steps
            yield from _tasks_of(below, f"{path}:", left=left)
            yield path, task
