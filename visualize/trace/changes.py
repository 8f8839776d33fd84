"""What each step of a stored thread changed in the state, and which nodes wrote it: the trace
combined with the diff."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...pregel.app import Pregel
from ...pregel.types import AnyConfig
from ..assets import read_asset
from ..group import group
from ..labels import TIMES
from ..markup import Markup, fill
from ..theme import style_sheet
from .diff import DIFF_LIMITS, Change, DiffLimits, diff, draw_html, draw_text
from .reader import read_trace
from .records import Trace, TraceStep, find_still_failed
from .values import count_noun, display_name, format_value, sanitize

MOST_TROUBLES = 20
"""How many errors and questions of a step are listed."""

MOST_NAMES = 8
"""How many nodes are named in a headline."""

SOURCES = {
    "input": "input",
    "update": "update_state",
    "fork": "fork",
    "dropped": "dropped by a new input",
}

_RULES = "\n" + read_asset("trace/changes.css")
_SAME = Markup("<p><i>no change</i></p>")


class StepChanges(NamedTuple):
    """What one step changed.

    Attributes:
        number: the step's number.
        nodes: the names of the nodes that ran in it, each once.
        checkpoint: the id of the checkpoint that it made; None if it has made none yet.
        changes: the differences between the states before and after it.
        writers: for each key of the state that was written, the nodes that wrote it.
    """

    number: int
    nodes: tuple[str, ...]
    checkpoint: str | None
    changes: tuple[Change, ...]
    writers: dict[str, tuple[str, ...]]


class Block(NamedTuple):
    """A headline with changes below it, and other lines, which may be urgent."""

    headline: str
    changes: Sequence[Change]
    lines: Sequence[str] = ()
    urgent: bool = False


class ChangeList(ABC):
    """Blocks of changes, as text or HTML; notebooks display them."""

    remarks: tuple[str, ...] = ()

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """Return the blocks."""

    def draw_text(self) -> str:
        """Return the changes as lines of text."""
        found = [*map(sanitize, self.remarks)]
        for title, changed, lines, _ in self.blocks():
            told = "\n".join(filter(None, (draw_text(changed), *lines))) or "no change"
            found.append("\n  ".join((title, *told.split("\n"))))
        return "\n".join(found)

    def draw_html(self) -> str:
        """Return the changes as an HTML fragment: no scripts, everything from the state escaped."""
        urgent_form, form = "<p><b>{}</b></p>", "<p>{}</p>"
        found = [fill(urgent_form, sanitize(remark)) for remark in self.remarks]
        for title, changed, lines, urgent in self.blocks():
            more = [fill(urgent_form if urgent else form, line) for line in lines]
            told = [draw_html(changed), *more]
            found.append(fill("<h4>{}</h4>{}", title, told if any(told) else _SAME))
        name, css = style_sheet("auto", _RULES)
        return fill('<div class="{}"><style>{}</style>{}</div>', name, Markup(css), found)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.draw_html(), "text/plain": self.draw_text()}

    def __str__(self) -> str:
        return self.draw_text()


@dataclass(frozen=True)
class Changes(ChangeList):
    """The steps of a thread, the oldest first, each with what it changed."""

    trace: Trace
    steps: tuple[StepChanges, ...]

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]
        """What a reader must know first, such as that another graph has made the thread."""
        return self.trace.remarks

    def blocks(self) -> Iterator[Block]:
        """Yield a block for each step."""
        for step, changed in zip(self.trace.steps, self.steps, strict=True):
            told = troubles(step, besides=find_still_failed(step, self.trace.steps))
            yield Block(headline(step) + _standing(step), changed.changes, told, True)

    def __repr__(self) -> str:
        return (
            f"<Changes of {self.trace.name!r}, thread {self.trace.thread!r}: "
            f"{count_noun(len(self.steps), 'step')}>"
        )


def changes(app: Pregel, config: AnyConfig, limits: DiffLimits = DIFF_LIMITS) -> Changes:
    """Return what each step of a thread changed, and which nodes wrote it.

    Args:
        config: the thread. A `checkpoint_id` selects the line that leads to that checkpoint; by
            default, it leads to the newest.
        limits: how much to show of each step.

    Raises:
        TypeError, ValueError: as `read_trace` does.
    """
    found: dict[int, tuple[Change, ...]] = {}

    def see(step: TraceStep, before: Any, after: Any) -> None:
        found[id(step)] = diff(before, after, limits)

    trace = read_trace(app, config, see)
    return Changes(
        trace,
        tuple(
            StepChanges(
                step.number, tuple(names(step)), step.checkpoint, found[id(step)], writers(step)
            )
            for step in trace.steps
        ),
    )


def writers(step: TraceStep) -> dict[str, tuple[str, ...]]:
    """Return the names of the nodes that wrote each key in a step."""
    found = group((key, display_name(task.name)) for task in step.tasks for key in task.wrote)
    return {key: tuple(dict.fromkeys(nodes)) for key, nodes in found.items()}


def names(step: TraceStep) -> Counter[str]:
    """Return the nodes of a step's tasks, and how many tasks each had."""
    return Counter(display_name(task.name) for task in step.tasks)


def headline(step: TraceStep) -> str:
    """Return a step in a line: `step 3: plan, fetch x9`, with a multiplication sign."""
    who: Iterable[str] = (
        f"{name} {TIMES}{count:,}" if count > 1 else name for name, count in names(step).items()
    )
    source = SOURCES.get(step.source, "")
    text = ", ".join(shorten([sanitize(name, 60) for name in who], MOST_NAMES))
    if source and text != source:
        text = f"{source}: {text}" if text else source
    return f"step {step.number}: {text}"


def shorten(words: list[str], most: int) -> list[str]:
    """Return this many of the words, and how many more there are."""
    more = len(words) - most
    return [*words[:most], f"{more:,} more"] if more > 1 else words


def _standing(step: TraceStep) -> str:
    """Return the status of an open step."""
    if step.source != "open":
        return ""
    states = {task.state for task in step.tasks}
    if "failed" in states:
        return " (failed)"
    return " (waits for an answer)" if "paused" in states else " (not finished)"


def troubles(step: TraceStep, besides: Container[str] = ()) -> list[str]:
    """Return what a step's tasks raised, without those of some ids, and, if it is open, what they
    ask, one line each."""
    found = [
        f"{display_name(task.name)} raised {one_line(task.error)}"
        for task in step.tasks
        if task.error is not None and task.id not in besides
    ]
    if step.source == "open":
        found += [
            f"{display_name(task.name)} asks: {one_line(question.value)}"
            for task in step.tasks
            if task.state == "paused"
            for question in task.questions
        ]
    more = len(found) - MOST_TROUBLES
    return [*found[:MOST_TROUBLES], f"… {more:,} more"] if more > 0 else found


def one_line(value: Any) -> str:
    """Return a value, or an error, in one line."""
    return " ".join(sanitize(format_value(value, 200), 240).split())
