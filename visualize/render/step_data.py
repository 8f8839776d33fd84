"""The data of one step, as plain values: its changes, its tasks, the texts of its state. Shared by
reports and a server's page.

Everything here is text, shortened. Its appearance is decided elsewhere.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...graph.messages.models import note_message
from ...pregel.budgets import find_price
from ...pregel.names import METADATA_PREFIX, START
from ...pregel.observer import Operation
from ..group import group
from ..labels import TIMES, drop_illegal
from ..trace.changes import headline, writers
from ..trace.diff import Change, DiffLimits, count_change, diff
from ..trace.records import TraceStep, TraceTask, find_still_failed
from ..trace.values import block, duration, format_key, format_value, sanitize
from .timeline import Timeline

BAD = ("failed", "paused")
"""The states of tasks that are shown first."""

MOST_ROWS = 60
"""How many rows of tasks are shown for a step."""

Data = dict[str, Any]


# -- states ----------------------------------------------------------------------------------------


class StepTexts(NamedTuple):
    """The changes of one step, and the texts of the keys that it changed or removed."""

    changes: tuple[Change, ...]
    after: dict[str, str]
    gone: tuple[str, ...]


class StateTexts:
    """Converts the states that the trace passes to it, newest first, to short texts, so that none
    must be kept."""

    def __init__(self, limit: int, limits: DiffLimits) -> None:
        self.limit = limit
        self.limits = limits
        self.told: dict[int, StepTexts] = {}

    def look(self, step: TraceStep, before: Any, after: Any) -> None:
        """Process a step, as a `StepVisitor`."""
        changes = diff(before, after, self.limits)
        old, new = state_keys(before), state_keys(after)
        touched = {change.path[0] if change.path else "" for change in changes}
        every = any(change.kind == "more" for change in changes) or "" in touched
        after_texts = {
            key: block(value, self.limit) for key, value in new.items() if every or key in touched
        }
        gone = tuple(key for key in old if key not in new)
        self.told[id(step)] = StepTexts(changes, after_texts, gone)


def state_keys(state: Any) -> dict[str, Any]:
    """Return the state by its keys, as the changes name them; a state without keys gets an empty
    name."""
    if isinstance(state, dict):
        return {format_key(key): value for key, value in state.items()}
    return {"": state}


def within(changes: Iterable[Change], room: int) -> Iterator[Change]:
    """Yield the changes that fit into this many characters, then the number of those left out."""
    changes = list(changes)
    for place, change in enumerate(changes):
        size = 40 + sum(map(len, (change.where, change.before, change.after, *change.lines)))
        if size > room and place:
            left = sum(
                int(c.after.replace(",", "")) if c.kind == "more" else 1 for c in changes[place:]
            )
            yield Change((), "more", "", f"{left:,}")
            return
        if size > room:
            change = change._replace(
                before=change.before[:40], after=change.after[:80], lines=change.lines[:2]
            )
        room -= size
        yield change


# -- what models have used -------------------------------------------------------------------------

Prices = Mapping[str, tuple[float, float]]


def count_usage(messages: Iterable[Any], prices: Prices) -> list[float]:
    """Return the tokens of input and of output that messages tell of, and the dollars that they
    cost by `Budget.prices`; nothing if no message tells."""
    found = []
    for message in messages:
        chat = Operation(kind="chat")
        note_message(chat, message)
        told = [chat.response.get(name) for name in ("input_tokens", "output_tokens")]
        given, made = (each if isinstance(each, int | float) else 0 for each in told)
        if given or made:
            model = str(chat.response.get("model", ""))
            found.append((given, made, find_price(prices, model, (given, made))))
    return [sum(each) for each in zip(*found, strict=True)]


def list_new_messages(before: Any, after: Any) -> Iterator[Any]:
    """Yield what a step has added to the lists of a state, by the ids of messages."""
    old = state_keys(before)
    for key, values in state_keys(after).items():
        known = old.get(key)
        if isinstance(values, list) and values != known:
            known = known if isinstance(known, list) else []
            ids = {_id_of(each) for each in known}
            for place, value in enumerate(values):
                id = _id_of(value)
                if place >= len(known) if id is None else id not in ids:
                    yield value


def _id_of(message: Any) -> Any:
    id = message.get("id") if isinstance(message, dict) else getattr(message, "id", None)
    return id if isinstance(id, str) else None


# -- steps -----------------------------------------------------------------------------------------


def describe_step(timeline: Timeline, place: int, step: TraceStep, **more: Any) -> Data:
    """Return one step in the form that scripts read, with more entries.

    n: number, h: headline, s: status, l: how many tasks have which status, t: how long it ran, c:
    checkpoint, a: stored at (milliseconds since the epoch), w: ids of its nodes including nested
    ones, m: the caller's metadata. Empty entries are left out.

    A report adds d: changes as rows, see `describe_changes`, b: key → who wrote it, k: its tasks as
    rows, v: key → number of its value, x: removed keys, f: how many branches leave here.
    """
    took = timeline.took(place)
    engine = "source", "step", "parents"
    own = {
        key: value
        for key, value in step.metadata.items()
        if key not in engine and not key.startswith(METADATA_PREFIX)
    }
    ids = dict.fromkeys(drop_illegal(task.node) for task in step.all_tasks() if task.name != START)
    data = {
        "n": step.number,
        "h": headline(step).partition(": ")[2],
        "s": _standing(step, timeline.steps),
        "t": "" if took is None else duration(took),
        "c": step.checkpoint,
        "a": round(step.at * 1000) if step.at else 0,
        "w": list(ids),
        "l": _count_states(step),
        "m": format_value(own, 400) if own else "",
        **more,
    }
    return {key: value for key, value in data.items() if value or key == "n"}


def count_by_node(step: TraceStep, steps: Sequence[TraceStep]) -> dict[str, dict[str, int]]:
    """Return how many tasks of each node have which status, by the nodes' ids; without those that
    the last of the steps shows again."""
    found: dict[str, Counter[str]] = {}
    for task in step.own_tasks(besides=find_still_failed(step, steps)):
        if task.name != START:
            found.setdefault(drop_illegal(task.node), Counter())[task.state] += 1
    return {node: dict(counts) for node, counts in found.items()}


def describe_writers(step: TraceStep) -> dict[str, str]:
    """Return who wrote each key, for a step with several different tasks."""
    return {sanitize(key, 80): ", ".join(names) for key, names in writers(step).items()}


def describe_changes(changes: Iterable[Change]) -> list[list[Any]]:
    """Return changes as rows: [kind, where, ...], followed by the old value, the new value, or the
    amount and the differing lines of a text or list."""
    return [_describe_change(change) for change in changes]


def _describe_change(change: Change) -> list[Any]:
    if count := count_change(change):
        return ["lines", change.where, count, [*change.lines]]
    texts = {"changed": (change.before, change.after), "removed": (change.before,)}
    return [change.kind, change.where, *texts.get(change.kind, (change.after,))]


def _standing(step: TraceStep, steps: Sequence[TraceStep]) -> str:
    still_failed = find_still_failed(step, steps)
    states = {task.state for task in step.tasks if task.id not in still_failed}
    if step.source == "open":
        return next((state for state in (*BAD, "running") if state in states), "waiting")
    return "handled" if "failed" in states else ""


def list_task_rows(step: TraceStep) -> Iterator[list[str]]:
    """Yield [node, state, starts and times, input, result, note] of each task, the last two only
    if they exist; equal ones share a row. If there are too many, those that did not end well are
    preferred."""
    groups = group(
        ((task.path, task.state, len(task.spans), _in_and_out(task)), task)
        for task in step.all_tasks()
        if task.name != START
    )
    rows = list(groups.items())
    shown = set(sorted(range(len(rows)), key=lambda n: rows[n][0][1] not in BAD)[:MOST_ROWS])
    for number, ((_, state, _, texts), tasks) in enumerate(rows):
        if number in shown:
            yield [tasks[0].path, state, _describe_times(tasks), *texts]
    if len(rows) > MOST_ROWS:
        yield ["…", "", f"{len(rows) - MOST_ROWS:,} more"]


def describe_task(task: TraceTask) -> Data:
    """Return one task: its row as in a table, and what leads to more about it."""
    took = "" if task.state == "running" else _describe_times([task])
    row = [task.path, task.state, took, *_in_and_out(task)]
    return {"id": task.id, "node": drop_illegal(task.node), "row": row}


def describe_whole_task(task: TraceTask) -> Data:
    """Return everything that is known about a task; its input and result are as long as they were
    read."""
    return {
        **describe_task(task),
        "input": task.input,
        "result": task.result,
        "wrote": [sanitize(key, 80) for key in task.wrote],
        "error": "" if (error := _error(task)) is None else describe_error(error, task.traceback),
        "questions": [
            {"id": question.id, "value": block(question.value, 4000)}
            for question in task.questions
        ],
        "starts": [
            {"name": f"{task.noun} {n}", "began": round(began * 1000), "took": duration(took)}
            for n, (began, took) in enumerate(task.spans, 1)
        ],
    }


def describe_error(error: BaseException, raised_at: str) -> str:
    """Return an error with its notes and causes, as Python prints it.

    Args:
        raised_at: the lines of its traceback, which is not stored in it.
    """
    try:
        lines = traceback.format_exception(error)
        if raised_at:
            own = [*traceback.TracebackException.from_exception(error).format(chain=False)]
            lines.insert(len(lines) - len(own), f"Traceback (most recent call last):\n{raised_at}")
    except Exception:  # a foreign __str__ or __cause__ may raise anything
        lines = [format_value(error, 400)]
    return sanitize("".join(lines), 6000).rstrip()


def _count_states(step: TraceStep) -> str:
    """Return the states of a step's tasks, if not all of them are done: `2 of 30 failed`."""
    if len(step.tasks) < 2:
        return ""
    states = Counter(task.state for task in step.tasks)
    return ", ".join(
        f"{count:,} of {len(step.tasks):,} {state}"
        for state, count in states.items()
        if state in BAD
    )


def _describe_times(tasks: list[TraceTask]) -> str:
    """Return how many tasks there were, how often each of them was started, and how long that
    took."""
    starts = len(tasks[0].spans)
    times = [took for task in tasks for _, took in task.spans]
    parts = [f"{TIMES}{len(tasks):,}"] if len(tasks) > 1 else []
    if starts > 1:
        parts.append(f"{starts} {tasks[0].noun}s")
    if len(times) == 1:
        parts.append(duration(times[0]))
    elif times:
        parts.append(f"{duration(min(times))} to {duration(max(times))}")
    return " ".join(parts)


def _error(task: TraceTask) -> BaseException | None:
    """Return what a task raised, unless it runs again."""
    return None if task.state == "running" else task.error


def _in_and_out(task: TraceTask) -> tuple[str, ...]:
    """Return a task's input and its outcome: its result, and what it raised or asked."""
    note = ""
    error = _error(task)
    if error is not None:
        note = format_value(error, 160)
    elif task.questions:
        note = f"asked: {format_value(task.questions[0].value, 160)}"
    return tuple(map(sanitize, (task.input, *filter(None, (task.result, note)))))
