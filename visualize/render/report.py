"""A thread as one self-contained HTML page: graph, timeline, steps with changes, questions, errors.

Only combines what other modules read and draw. `fill` escapes everything that comes from a graph or
a state. Also the command `python -m stategraph report`.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import warnings
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ...checkpoint.base import RunnableConfig, address
from ...checkpoint.command import open_saver
from ...checkpoint.encryption import KEYS_HELP
from ...graph.loader import TARGET_HELP, NotFoundError, find_graph
from ...pregel.app import Pregel
from ...pregel.errors import StateGraphError
from ...pregel.names import NS_END, START
from ...pregel.types import AnyConfig
from ..assets import bundle_script, read_asset
from ..extract import extract
from ..fold import fit
from ..group import group
from ..labels import TIMES, drop_illegal
from ..markup import Markup, fill
from ..svg import URGENT, Mark, State, count_of, draw_svg, fold_marks
from ..trace.diff import DiffLimits
from ..trace.reader import read_snapshot, read_trace
from ..trace.records import Trace, TraceTask, find_still_failed
from ..trace.values import block, count_noun, format_value, sanitize
from .branches import branches
from .step_data import (
    Data,
    StateTexts,
    describe_changes,
    describe_error,
    describe_step,
    describe_writers,
    list_task_rows,
    within,
)
from .timeline import Timeline, build_timeline

_CALM = {
    "done": "done",
    "failed": "failed",
    "paused": "waits for an answer",
    "waiting": "not finished",
}
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def report(app: Pregel, config: AnyConfig, path: str | Path) -> Path:
    """Write the history of a thread as one HTML page, which is readable offline and loads nothing.

    The page contains text from the states, so protect it like the thread itself. Texts are
    shortened in proportion to the length of the thread; the page says to what length.

    Args:
        config: the thread. A `checkpoint_id` selects the line that leads to that checkpoint; by
            default, it leads to the newest.
        path: the file to write.

    Returns:
        The path.

    Raises:
        TypeError: `app` is not a compiled graph.
        ValueError: the graph has no checkpointer, or the config names no stored thread.
    """
    path = Path(path)
    path.write_text(draw_report(app, config), encoding="utf-8")
    return path


def draw_report(app: Pregel, config: AnyConfig) -> str:
    """Return the page as text; see `report`."""
    data = gather(app, config)
    trace = data.trace
    held = app.nested(trace.ns)
    fitted = fit(extract(held if isinstance(held, Pregel) else app, xray=True))
    data.fold(fitted.homes)
    steps = len(data.trace.steps)
    across = 1180 if steps <= 40 else min(30 * steps, 1800)
    drawn = {*fitted.homes, *(part.id for part in fitted.model.parts)}
    marks = fold_marks(_marks(trace, drawn), fitted.homes)
    graph = draw_svg(fitted.model, fitted.layout, marks=marks)
    times = replace(data.timeline, remarks=()).draw_svg(width=across)  # the page shows them itself
    script = bundle_script("render/report.js")
    found = {"steps": data.steps, "values": data.values}
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return fill(
        read_asset("render/report.html"),
        policy=_POLICY.format(b64encode(sha256(script.encode()).digest()).decode()),
        title=sanitize(f"{trace.name} · thread {trace.thread}", 400),
        style=Markup(read_asset("components/run.css") + read_asset("render/report.css")),
        name=sanitize(trace.name, 120),
        state=trace.state,
        standing=_CALM[trace.state],
        thread=sanitize(trace.thread, 200),
        summary=sanitize(data.timeline.summary, 400),
        older="" if trace.whole else _OLDER,
        troubles=[
            *(fill(_REMARK, sanitize(remark)) for remark in trace.remarks),
            *(_trouble(question, "question", "asks") for question in data.questions),
            *(_trouble(error, "failure", "failed") for error in data.errors if error.is_open),
        ],
        fit=" fit" if steps <= 40 else "",
        times=Markup(times),
        graph=Markup(graph),
        handled=_list_handled(data),
        branches=_list_branches(trace, app, config),
        limit=f"{data.limit:,}",
        unread=f" · {count_noun(trace.unread, 'nested run')} not read" if trace.unread else "",
        checkpoint=fill(" · checkpoint <code>{}</code>", trace.checkpoint)
        if trace.checkpoint
        else "",
        data=Markup(text.translate(_UNSAFE)),
        script=Markup(script),
    )


_UNSAFE = {ord(mark): f"\\u{ord(mark):04x}" for mark in "&<\u2028\u2029"}
"""Characters by which an HTML parser could find the end of a script in JSON."""
_OLDER = Markup(
    '<p class="sub">Shown up to the checkpoint that was asked for; the thread goes on after it.</p>'
)
_REMARK = '<section class="card failure"><p><b>{}</b></p></section>\n'
_CARD = '<section class="card" id="{}"><h2>{}</h2>{}</section>\n'
_GO_TO = '<button data-go="{}">go to the step</button>'
_TROUBLE = """<section class="card {look}"><p><b>{name}</b> {verb} {go_to}</p>\
<pre>{text}</pre><p class="chk">{title}{called}</p></section>
"""
_HANDLED = """<details><summary>{name} {title}: {brief}</summary><p>{go_to}</p>\
<pre>{text}</pre></details>"""
_BRANCHES = """<p class="sub">To look at one, pass the id of its newest checkpoint as \
checkpoint_id.</p><table>{}</table><div class="scroll">{}</div>"""


def _trouble(trouble: Trouble, look: str, verb: str) -> Markup:
    """Return a question or an error, with a button that leads to its step."""
    called = f", called with {trouble.input}" if trouble.input else ""
    told = {"look": look, "verb": verb, "title": trouble.title, "called": called}
    return _show_trouble(_TROUBLE, trouble, **told)


def _show_trouble(template: str, trouble: Trouble, **told: str) -> Markup:
    name, go_to = sanitize(trouble.path, 120), fill(_GO_TO, trouble.step)
    return fill(template, name=name, go_to=go_to, text=trouble.text, **told)


def _list_handled(data: ReportData) -> Iterator[Markup]:
    """Yield errors that are over: an error handler took them, or the thread continued another
    way."""
    rows = [
        _show_trouble(_HANDLED, error, title=error.title, brief=sanitize(error.text, 120))
        for error in data.errors
        if not error.is_open
    ]
    if rows:
        yield fill(_CARD, "handled", "Earlier errors", rows)
    if data.unheard:
        yield fill('<p class="sub">{} not shown.</p>', count_noun(data.unheard, "more error"))


_ORIGINS = {
    "loop": "by a run",
    "update": "by update_state",
    "input": "by a new input",
    "fork": "by a replay",
}


def _list_branches(trace: Trace, app: Pregel, config: AnyConfig) -> Iterator[Markup]:
    """Yield where the thread has other branches, and the tree of all of them."""
    places = {step.checkpoint: place for place, step in enumerate(trace.steps)}
    rows = []
    for branch in trace.branches[:100]:
        place, where = places.get(branch.parent), Markup("elsewhere")
        if place is not None:
            where = fill(f"after step {{}} {_GO_TO}", trace.steps[place].number, place)
        tip = fill("<code>{}</code>", sanitize(branch.tip, 400))
        cells = where, _ORIGINS.get(branch.source, ""), count_noun(branch.size, "checkpoint"), tip
        rows.append(fill("<tr>{}</tr>", [fill("<td>{}</td>", cell) for cell in cells]))
    if rows:
        tree = Markup(draw_svg(branches(app, config).model))
        yield fill(_CARD, "branches", "Other branches", fill(_BRANCHES, rows, tree))


def _marks(trace: Trace, drawn: set[str]) -> dict[str, Mark]:
    """Return the final state of each node, and how many tasks it had."""
    ended: Counter[tuple[str, State]] = Counter()
    states: dict[str, State] = {}
    for step in trace.steps:
        last: dict[str, list[State]] = group(
            (task.node, task.state)
            for task in step.own_tasks(besides=find_still_failed(step, trace.steps))
            if task.state != "lost"
        )
        for node, found in last.items():
            ended.update((node, state) for state in found)
            states[node] = min(found, key=URGENT.index)
    return {
        node: Mark(state, _count_tasks(*(ended[node, each] for each in URGENT)))
        for node, state in states.items()
        if node in drawn and node.rpartition(NS_END)[2] != START
    }


def _count_tasks(failed: int, *others: int) -> str:
    """Return how many tasks a node had, and how many of them failed."""
    all_of_them = failed + sum(others)
    if all_of_them == 1:
        return ""
    return count_of(failed, all_of_them, "failed") if failed else f"{TIMES}{all_of_them:,}"


BUDGET = 1_200_000
"""The maximum number of characters for all changes of a report, and for all its values."""

MOST = 50
"""How many errors and questions are shown."""


class Trouble(NamedTuple):
    """An error or a question of a task. `step` is its index in the list of steps, `is_open` whether
    that is the open one, `path` the task's name for readers, `input` what a task that failed was
    called with."""

    step: int
    is_open: bool
    path: str
    title: str
    text: str
    input: str = ""


@dataclass
class ReportData:
    """Everything that a page shows.

    Attributes:
        steps: what the page's script reads, one dict per step; see `describe_step`.
        values: the texts of values; steps name them by number.
        limit: the maximum number of characters of a value.
        unheard: the number of errors left out because there are too many.
    """

    trace: Trace
    timeline: Timeline
    limit: int
    steps: list[Data] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    errors: list[Trouble] = field(default_factory=list)
    questions: list[Trouble] = field(default_factory=list)
    unheard: int = 0

    def fold(self, homes: Mapping[str, str]) -> None:
        """Add to each step the nodes that represent its nodes in the pictures."""
        for step in self.steps:
            ran = step.get("w", ())
            for known in (homes, self.timeline.homes):
                told = dict.fromkeys(drop_illegal(known[id]) for id in ran if id in known)
                ran = [*ran, *(id for id in told if id not in ran)]
            if ran:
                step["w"] = ran


def gather(app: Pregel, config: AnyConfig) -> ReportData:
    """Read a thread and shorten its content.

    Raises:
        TypeError, ValueError: see `read_trace`.
    """
    metadata = read_snapshot(app, config).metadata
    expected = int((metadata or {}).get("step", 0)) + 3
    states = StateTexts(_share(expected, 200, 6000), _limits(expected))
    trace = read_trace(app, config, states.look, texts=True)
    report = ReportData(trace, build_timeline(trace), states.limit)
    numbers: dict[str, int] = {}
    room = _share(len(trace.steps), 150, 20_000)
    forks = Counter(branch.parent for branch in trace.branches)
    for place, step in enumerate(trace.steps):
        told = states.told.pop(id(step))
        rows = list(list_task_rows(step))
        data = describe_step(
            report.timeline,
            place,
            step,
            d=describe_changes(within(told.changes, room)),
            b=describe_writers(step) if len(rows) > 1 else {},
            k=rows,
            v={key: numbers.setdefault(text, len(numbers)) for key, text in told.after.items()},
            x=list(told.gone),
            f=forks[step.checkpoint],
        )
        report.steps.append(data)
    report.values = list(numbers)
    _gather_troubles(report)
    return report


def _share(count: int, least: int, most: int) -> int:
    return max(least, min(most, BUDGET // max(count, 1)))


def _limits(count: int) -> DiffLimits:
    few = count > 2000
    return DiffLimits(changes=12 if few else 60, text=80 if few else 200, lines=6 if few else 30)


# -- errors and questions --------------------------------------------------------------------------


def _gather_troubles(report: ReportData) -> None:
    """Collect the errors of all steps, and the open questions."""
    steps = report.trace.steps
    for place, step in enumerate(steps):
        is_open = step.source == "open"
        for task in step.all_tasks(besides=find_still_failed(step, steps)):
            inside = [task for inner in task.steps for task in inner.all_tasks()]
            if task.error is not None and not _is_raised_inside(task.error, inside):
                title = f"in step {step.number}"
                text = describe_error(task.error, task.traceback)
                report.errors.append(
                    Trouble(place, is_open, task.path, title, text, sanitize(task.input))
                )
            if is_open and task.state == "paused" and not any(each.questions for each in inside):
                for question in task.questions:
                    title = f'answer with Command(resume={{"{question.id}": ...}})'
                    text = block(question.value, 4000)
                    report.questions.append(Trouble(place, is_open, task.path, title, text))
    report.unheard = max(len(report.errors) - MOST, 0)
    del report.errors[MOST:], report.questions[MOST:]


def _is_raised_inside(error: BaseException, inside: Iterable[TraceTask]) -> bool:
    """Return whether a task inside has raised the error, which then is shown there. They were
    stored separately, so their texts are compared."""
    texts = (format_value(task.error, 2000) for task in inside if task.error is not None)
    return format_value(error, 2000) in texts


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the arguments of the command to its parser."""
    parser.add_argument("graph", help=f"the graph that made the thread: {TARGET_HELP}")
    parser.add_argument(
        "--db", required=True, metavar="FILE-OR-URL", help="an SQLite file, or postgresql://..."
    )
    parser.add_argument("--thread", required=True, metavar="ID", help="the thread's id")
    parser.add_argument(
        "--checkpoint",
        metavar="ID",
        help="show the history that leads to this checkpoint (default: the newest)",
    )
    parser.add_argument("--keys", metavar="FILE", help=KEYS_HELP)
    out = "the file to write (%(default)s)"
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help=out
    )
    return parser


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """Add this as a command of `python -m stategraph`."""
    add_arguments(parser).set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Execute the command; exit with code 2 and a message if it fails."""
    try:
        if asked.out.suffix.lower() not in (".html", ".htm"):
            raise NotFoundError(f"{asked.out}: a report's file must end with .html")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the graph are for its authors
            graph = find_graph(asked.graph)
        with open_saver(asked.db, graph.serde, asked.keys) as saver:
            app = graph.copy({"checkpointer": saver})
            where: RunnableConfig = address(asked.thread, "", asked.checkpoint)
            if app.get_state(where).metadata is None:
                raise NotFoundError(f"{asked.db} has no thread {asked.thread!r}")
            print(report(app, where, asked.out))
    except OSError as error:
        parser.error(
            f"{error.filename or asked.out}: {error.strerror}" if error.strerror else str(error)
        )
    except sqlite3.Error as error:
        parser.error(f"{asked.db} cannot be read: {error}")
    except (StateGraphError, ValueError) as error:
        parser.error(str(error))
    return 0
