"""What each step of a stored thread changed in the state, and who wrote it: the story and the diff, put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from ...checkpoint.base import RunnableConfig
from ...pregel.app import Pregel
from ..look import FONTS, look
from .diff import LIMITS, Change, Limits, diff, draw_html, draw_text
from .story import Step, Story, read
from .values import TIMES, many, plain, spoken

_SOURCES = {"input": "input", "update": "update_state", "fork": "fork", "dropped": "dropped by a new input"}

_RULES = """
h4,p{font-family:FONTS;font-size:13px}
h4{margin:.8em 0 .2em}
p,pre{margin:.1em 0 .1em 1em;white-space:pre-wrap;overflow-wrap:anywhere}
ins{color:$done-line;text-decoration:none}
del{color:$failed-line;text-decoration:none}
p ins::before{content:"+ "}
p del::before{content:"- "}
"""


class StepChanges(NamedTuple):
    """What one step changed.

    Attributes:
        number: of the step.
        nodes: that ran in it, by name; a node that ran several times stands once.
        checkpoint: the id of the checkpoint that it made; None if it has made none yet.
        changes: what is different after it.
        writers: for each key of the state that was written, the nodes that wrote it.
    """

    number: int
    nodes: tuple[str, ...]
    checkpoint: str | None
    changes: tuple[Change, ...]
    writers: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Changes:
    """The steps of a thread, the oldest first, each with what it changed."""

    story: Story
    steps: tuple[StepChanges, ...]

    def draw_text(self) -> str:
        """The changes as lines of text."""
        blocks = []
        for step, changed in zip(self.story.steps, self.steps, strict=True):
            below = draw_text(changed.changes) or "no change"
            blocks.append(headline(step) + "\n" + "\n".join(f"  {line}" for line in below.split("\n")))
        return "\n".join(blocks)

    def draw_html(self) -> str:
        """The changes as a piece of HTML: no scripts, everything from the state escaped."""
        blocks = (
            f"<h4>{escape(headline(step))}</h4>{draw_html(changed.changes) or '<p><i>no change</i></p>'}"
            for step, changed in zip(self.story.steps, self.steps, strict=True)
        )
        name, css = look("auto", _RULES.replace("FONTS", FONTS))
        return f'<div class="{name}"><style>{css}</style>{"".join(blocks)}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.draw_html(), "text/plain": self.draw_text()}

    def __repr__(self) -> str:
        return f"<Changes of {self.story.name!r}, thread {self.story.thread!r}: {many(len(self.steps), 'step')}>"


def changes(app: Pregel, config: RunnableConfig, limits: Limits = LIMITS) -> Changes:
    """What each step of a thread changed, and which nodes wrote it.

    Args:
        config: the thread; with a `checkpoint_id` the line that leads to that checkpoint, else to the newest.
        limits: how much is told of each step.

    Raises:
        ValueError: the graph has no saver, or the config names no thread or an unknown checkpoint.
    """
    found: dict[int, tuple[Change, ...]] = {}

    def see(step: Step, before: Any, after: Any) -> None:
        found[id(step)] = diff(before, after, limits)

    story = read(app, config, see)
    return Changes(
        story,
        tuple(
            StepChanges(step.number, tuple(names(step)), step.checkpoint, found[id(step)], writers(step))
            for step in story.steps
        ),
    )


def writers(step: Step) -> dict[str, tuple[str, ...]]:
    """For each key that a step's tasks wrote, the names of their nodes."""
    found: dict[str, dict[str, None]] = {}
    for task in step.tasks:
        for key in task.wrote:
            found.setdefault(key, {})[spoken(task.name)] = None
    return {key: tuple(nodes) for key, nodes in found.items()}


def names(step: Step) -> dict[str, int]:
    """The nodes of a step's tasks, and how many tasks each had."""
    found: dict[str, int] = {}
    for task in step.tasks:
        found[spoken(task.name)] = found.get(spoken(task.name), 0) + 1
    return found


def headline(step: Step) -> str:
    """A step in a line: `step 3: plan, fetch x9`, with the sign for times."""
    who: Iterable[str] = (f"{name} {TIMES}{count:,}" if count > 1 else name for name, count in names(step).items())
    source = _SOURCES.get(step.source, "")
    text = ", ".join(plain(name, 60) for name in who)
    if source and text != source:
        text = f"{source}: {text}" if text else source
    return f"step {step.number}: {text}" + (" (not finished)" if step.source == "open" else "")
