"""A thread as one self-contained HTML page: graph, timeline, steps with changes, questions, errors.

Only combines what other modules read and draw. Escapes everything that comes from a graph or a
state.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import NamedTuple

from ...pregel.app import Pregel
from ...pregel.names import NS_END, START
from ...pregel.types import AnyConfig
from ..assets import bundle_script, read_asset
from ..extract import extract
from ..fold import fit
from ..group import group
from ..labels import TIMES, drop_illegal
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
    without_empty,
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
    title = f"{trace.name} · thread {trace.thread}"
    script = bundle_script("render/report.js")
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_policy(script))}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{_text(title)}</title><style>{_style()}</style></head><body>\n",
            *_header(data),
            "<main>",
            *(
                f'<section class="card failure"><p><b>{_text(remark, 2000)}</b></p></section>\n'
                for remark in trace.remarks
            ),
            *(_trouble(question, "question", "asks") for question in data.questions),
            *(
                _trouble(error, "failure", "failed")
                for error in data.errors
                if _is_open(data, error)
            ),
            _card(
                "time",
                "Timeline",
                f'<div class="scroll{" fit" if steps <= 40 else ""}">{times}</div>',
                "card time-picture",
            ),
            '<div class="columns">'
            f"{_card('graph', 'Graph', graph, 'card graph-picture')}"
            f"{_card('told', 'Steps', _STEPS)}</div>",
            *_list_handled(data),
            *_list_branches(trace, app, config),
            "</main>",
            f"<footer>{_footer(data)}</footer>",
            f'<script type="application/json" id="data">{_data(data)}</script>\n',
            f"<script>{script}</script></body></html>\n",
        ]
    )


def _policy(script: str) -> str:
    """Return the Content-Security-Policy: the page may only run this script, and cannot turn text
    into HTML."""
    return _POLICY.format(b64encode(sha256(script.encode()).digest()).decode())


def _style() -> str:
    return read_asset("components/run.css") + read_asset("render/report.css")


_STEPS = """<div class="bar-line"><input id="search" type="search"
 placeholder="Search the steps" aria-label="Search">
<button id="filter" hidden></button><span class="sub" id="count" role="status"></span>
<button id="older" title="Older steps">&lsaquo;</button><span class="sub" id="page"></span>
<button id="newer" title="Newer steps">&rsaquo;</button></div><ol class="steps" id="steps"></ol>
<noscript>The steps need JavaScript; everything else does not.</noscript>"""


def _data(data: ReportData) -> str:
    """Return JSON in which no HTML parser finds the end of the script."""
    text = json.dumps(
        {"steps": data.steps, "values": data.values}, ensure_ascii=False, separators=(",", ":")
    )
    return (
        text.replace("&", "\\u0026")
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _text(text: str, limit: int = 400) -> str:
    return escape(drop_illegal(sanitize(text, limit)))


def _card(name: str, title: str, body: str, look: str = "card") -> str:
    return f'<section class="{look}" id="{name}"><h2>{title}</h2>{body}</section>\n'


def _header(data: ReportData) -> Iterator[str]:
    trace = data.trace
    yield (
        f'<header><h1>{_text(trace.name, 120)}</h1><span class="chip '
        f'{trace.state}">{_CALM[trace.state]}</span>'
    )
    yield (
        f'<p class="sub">thread <bdi>{_text(trace.thread, 200)}</bdi> · '
        f"{_text(data.timeline.summary)}</p>"
    )
    if not trace.whole:
        yield (
            '<p class="sub">Shown up to the checkpoint that was asked for; the thread goes on '
            "after it.</p>"
        )
    yield "</header>\n"


def _trouble(trouble: Trouble, look: str, verb: str) -> str:
    """Return a question or an error, with a button that leads to its step."""
    name = _text(trouble.path, 120)
    called = f", called with {escape(trouble.input)}" if trouble.input else ""
    return (
        f'<section class="card {look}"><p><b>{name}</b> {verb} '
        f"{_go_to(trouble.step)}</p>"
        f"<pre>{escape(trouble.text)}</pre>"
        f'<p class="chk">{escape(trouble.title)}{called}</p></section>\n'
    )


def _go_to(step: int) -> str:
    return f'<button data-go="{step}">go to the step</button>'


def _is_open(data: ReportData, error: Trouble) -> bool:
    return data.trace.steps[error.step].source == "open"


def _list_handled(data: ReportData) -> Iterator[str]:
    """Yield errors that are over: an error handler took them, or the thread continued another
    way."""
    handled = [error for error in data.errors if not _is_open(data, error)]
    if handled:
        rows = "".join(
            f"<details><summary>{_text(error.path, 120)} {escape(error.title)}: "
            f"{_text(error.text, 120)}"
            f"</summary><p>{_go_to(error.step)}</p>"
            f"<pre>{escape(error.text)}</pre></details>"
            for error in handled
        )
        yield _card("handled", "Earlier errors", rows)
    if data.unheard:
        yield f'<p class="sub">{count_noun(data.unheard, "more error")} not shown.</p>'


_ORIGINS = {
    "loop": "by a run",
    "update": "by update_state",
    "input": "by a new input",
    "fork": "by a replay",
}


def _list_branches(trace: Trace, app: Pregel, config: AnyConfig) -> Iterator[str]:
    """Yield where the thread has other branches, and the tree of all of them."""
    places = {step.checkpoint: (place, step.number) for place, step in enumerate(trace.steps)}
    rows = []
    for branch in trace.branches[:100]:
        place = places.get(branch.parent)
        where = "elsewhere"
        if place:
            where = f"after step {place[1]} {_go_to(place[0])}"
        cells = [
            where,
            _ORIGINS.get(branch.source, ""),
            count_noun(branch.size, "checkpoint"),
            f"<code>{_text(branch.tip)}</code>",
        ]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if rows:
        note = (
            '<p class="sub">To look at one, pass the id of its newest checkpoint as '
            "checkpoint_id.</p>"
        )
        tree = draw_svg(branches(app, config).model)
        body = f'{note}<table>{"".join(rows)}</table><div class="scroll">{tree}</div>'
        yield _card("branches", "Other branches", body)


def _footer(data: ReportData) -> str:
    keys = (
        "<kbd>j</kbd> <kbd>k</kbd> next and previous step · <kbd>Enter</kbd> open · <kbd>[</kbd> "
        "<kbd>]</kbd> pages · "
    )
    keys += "<kbd>/</kbd> search · <kbd>Esc</kbd> show all · click a node to see only its steps"
    unread = (
        f" · {count_noun(data.trace.unread, 'nested run')} not read" if data.trace.unread else ""
    )
    checkpoint = (
        f" · checkpoint <code>{_text(data.trace.checkpoint)}</code>"
        if data.trace.checkpoint
        else ""
    )
    return f"{keys}<br>Values are shortened to {data.limit:,} characters{unread}{checkpoint}"


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
    """An error or a question of a task. `step` is its index in the list of steps, `path` the task's
    name for readers, `input` what a task that failed was called with."""

    step: int
    node: str
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
        data = {
            **describe_step(report.timeline, place, step),
            "d": describe_changes(within(told.changes, room)),
            "b": describe_writers(step) if len(rows) > 1 else {},
            "k": rows,
            "v": {key: numbers.setdefault(text, len(numbers)) for key, text in told.after.items()},
            "x": list(told.gone),
            "f": forks[step.checkpoint],
        }
        report.steps.append(without_empty(data))
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
        for task in step.all_tasks(besides=find_still_failed(step, steps)):
            if _is_source_of_error(task):
                if len(report.errors) < MOST:
                    report.errors.append(_describe_trouble(place, step.number, task))
                else:
                    report.unheard += 1
            if step.source == "open" and _is_asking(task):
                room = MOST - len(report.questions)
                report.questions += [
                    Trouble(
                        place,
                        task.node,
                        task.path,
                        f'answer with Command(resume={{"{question.id}": ...}})',
                        drop_illegal(block(question.value, 4000)),
                    )
                    for question in task.questions[:room]
                ]


def _is_source_of_error(task: TraceTask) -> bool:
    """Return whether the task itself failed: an error that was raised inside it is shown there."""
    error = task.error
    return error is not None and not any(
        # They were stored separately, so compare their texts.
        inner.error is not None and format_value(inner.error, 2000) == format_value(error, 2000)
        for inner in _below(task)
    )


def _is_asking(task: TraceTask) -> bool:
    return task.state == "paused" and not any(inner.questions for inner in _below(task))


def _below(task: TraceTask) -> Iterator[TraceTask]:
    for step in task.steps:
        yield from step.all_tasks()


def _describe_trouble(place: int, number: int, task: TraceTask) -> Trouble:
    assert task.error is not None
    return Trouble(
        place,
        task.node,
        task.path,
        f"in step {number}",
        describe_error(task.error, task.traceback),
        drop_illegal(sanitize(task.input)),
    )
