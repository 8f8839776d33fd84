"""A run in a terminal: plain lines anywhere, a table where there is `rich`."""

from __future__ import annotations

import io
import sys

import pytest

from stategraph.visualize.labels import TIMES
from stategraph.visualize.live.progress import NodeRow, Progress, TaskEnded, TaskStarted
from stategraph.visualize.live.view import Lines, Table, can_draw, pick_rows, render_rich
from stategraph.visualize.model import GraphModel, GraphNode
from stategraph.visualize.svg import Mark

NODES = ("plan", "count", "sum")


def progressed(*events, names=NODES):
    progress = Progress(GraphModel("g", tuple(GraphNode(name, name) for name in names), ()))
    for event in events:
        progress.take(event)
    return progress


FIRST = [TaskStarted(0.0, (), "plan", 1), TaskEnded(0.5, (), "plan")]
SECOND = [*[TaskStarted(0.5, (), "count", 2)] * 3, *[TaskEnded(2.0, (), "count")] * 3]


class Terminal(io.StringIO):
    """A terminal of this encoding."""

    def __init__(self, encoding):
        super().__init__()
        self.shown_encoding = encoding

    encoding = property(lambda self: self.shown_encoding)  # type: ignore[assignment]

    def isatty(self):
        return True


# -- plain lines ----------------------------------------------------------------------------------------------


def test_each_superstep_becomes_one_line_once_it_is_over():
    file, progress = io.StringIO(), progressed()
    lines = Lines(file)
    for event in [*FIRST, *SECOND[:3]]:
        progress.take(event)
        lines.draw(progress, 0.0)
    assert file.getvalue() == "superstep 1: plan (500 ms)\n"
    for event in SECOND[3:]:
        progress.take(event)
    progress.end(2.0)
    lines.draw(progress, 9.0)
    assert file.getvalue().splitlines()[1:] == [
        f"superstep 2: count {TIMES}3 (1.5 s)",
        "done · 2 supersteps · 4 tasks · 2 s",
    ]


def test_lines_say_what_failed_and_what_is_asked():
    asked = (("1", "really?"),)
    events = [TaskStarted(0.0, (), "plan"), TaskStarted(0.0, (), "sum"), TaskEnded(0.0, (), "plan", paused=True, questions=asked)]
    file, progress = io.StringIO(), progressed(*events, TaskEnded(0.0, (), "sum", "ValueError: no"))
    progress.end(0.0, "failed", "ValueError: no")
    Lines(file).draw(progress, 0.0)
    assert file.getvalue().splitlines() == [
        "superstep 1: plan paused, sum failed (0 s)",
        "failed in superstep 1 · 2 tasks · 1 question · 0 s",
        "plan asks: really?",
        "ValueError: no",
    ]


def test_lines_fit_the_encoding_of_the_terminal():
    raw = io.BytesIO()
    progress = progressed(*SECOND, TaskStarted(3.0, (), "日本", 3))
    progress.end(3.0)
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Lines(file).draw(progress, 0.0)
    assert raw.getvalue().decode().splitlines() == [
        "superstep 1: count x3 (1.5 s)", "superstep 2: ?? (0 s)", "done - 2 supersteps - 3 tasks - 3 s",
    ]  # fmt: skip


def test_a_table_needs_rich_a_terminal_and_its_signs(monkeypatch):
    assert not can_draw(io.StringIO())
    assert not can_draw(Terminal("ascii"))
    monkeypatch.setitem(sys.modules, "rich", None)
    assert not can_draw(Terminal("utf-8"))


EVIL = "a\x1b[2J\x9b31m\u202e\u2066\r\x07\x7f\u2028z"


def steered():
    """A run whose nodes, questions and error try to steer the terminal."""
    first = [TaskStarted(0.0, (), EVIL), TaskEnded(1.0, (), EVIL, failure=EVIL)]
    second = [TaskStarted(1.0, (), "asks"), TaskEnded(2.0, (), "asks", paused=True, questions=(("1", EVIL),))]
    progress = progressed(*first, *second, names=(EVIL, "asks"))
    progress.end(2.0, "failed", f"ValueError: {EVIL}")
    return progress


def test_what_users_wrote_steers_no_terminal():
    file = io.StringIO()
    Lines(file).draw(steered(), 2.0)
    lines = file.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert file.getvalue().count("\\x1b[2J") >= 3, "the node, its question and the error are shown"


def test_what_users_wrote_steers_no_table():
    lines = as_text(steered(), 2.0)
    assert all(line.isprintable() for line in lines)
    assert "".join(lines).count("\\x1b[2J") >= 3


# -- the table ------------------------------------------------------------------------------------------------


def as_text(progress: Progress, now, room=None):
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=100, height=40)
    console.print(render_rich(progress, now, room))
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_the_table_shows_state_runs_remaining_tasks_and_time():
    lines = as_text(progressed(*FIRST, *SECOND[:4]), 2.5)
    assert lines[0] == "superstep 2 · 1 of 3 tasks · 2.5 s"
    assert lines[2].split() == ["node", "state", "runs", "left", "time"]
    assert [line.split() for line in lines[4:]] == [
        ["plan", "✔", "done", "1", "500", "ms"],
        ["count", "▶", "running", "1/3", "1", "2", "2", "s"],
        ["sum", "○", "waiting"],
    ]


def test_interrupts_and_the_error_are_shown_below_the_table():
    asked = (("1", "really [bold]?"),)
    progress = progressed(TaskStarted(0.0, (), "plan"), TaskEnded(0.0, (), "plan", paused=True, questions=asked))
    progress.end(0.0, "failed", "ValueError: [/] no")
    assert as_text(progress, 0.0)[-2:] == ["plan asks: really [bold]?", "ValueError: [/] no"]


def row(state):
    return NodeRow(state, 0, Mark(state), 0, 0, 0.0)


def test_where_there_is_no_room_the_most_telling_rows_are_shown_in_their_order():
    rows = [row(state) for state in ("done", "waiting", "running", "done", "failed", "paused")]
    shown, rest = pick_rows(rows, 4)
    assert [r.label for r in shown] == ["done", "running", "failed", "paused"]
    assert [r.label for r in rest] == ["waiting", "done"]
    assert pick_rows(rows, 6) == (rows, []) == pick_rows(rows, None)


def test_the_rows_that_are_left_out_are_counted():
    names = tuple(f"n{n}" for n in range(50))
    lines = as_text(progressed(TaskStarted(0.0, (), "n40"), names=names), 0.0, 3)
    assert lines[-1].split() == ["…", "47", "more", "47", "waiting"]
    assert any(line.split()[0] == "n40" for line in lines)


def test_the_last_table_stays_and_stdout_is_given_back():
    pytest.importorskip("rich")
    file, stdout = Terminal("utf-8"), sys.stdout
    table, progress = Table(file), progressed(*FIRST)
    table.draw(progress, 0.5)
    progress.end(0.5)
    table.draw(progress, 9.0)
    assert sys.stdout is stdout
    assert "done · 1 superstep · 1 task · 500 ms" in file.getvalue()


def test_a_table_that_breaks_gives_stdout_back():
    pytest.importorskip("rich")

    class Broken(Progress):
        def headline(self, now):
            raise OSError("broken")

    stdout = sys.stdout
    with pytest.raises(OSError, match="broken"):
        Table(Terminal("utf-8")).draw(Broken(GraphModel("g", (), ())), 0.0)
    assert sys.stdout is stdout


def test_the_bar_has_rate_and_remaining_time():
    many = [*FIRST, *[TaskStarted(0.5, (), "count", 2)] * 100, *[TaskEnded(2.5, (), "count")] * 10]
    assert as_text(progressed(*many), 2.5)[1].endswith("5/s · about 18 s left")
    assert "/s" not in as_text(progressed(*FIRST), 0.5)[1]


def test_plain_lines_report_the_progress_of_a_long_superstep():
    file = io.StringIO()
    lines, progress = Lines(file), progressed(*FIRST, *[TaskStarted(0.5, (), "count", 2)] * 100)
    for second in range(1, 31):
        progress.take(TaskEnded(float(second), (), "count"))
        lines.draw(progress, float(second))
    assert [line.split(" · ")[:2] for line in file.getvalue().splitlines()[1:]] == [
        ["superstep 2", "11 of 100 tasks"],
        ["superstep 2", "21 of 100 tasks"],
    ]
    assert file.getvalue().splitlines()[1].endswith("/s · about 1 min 25 s left")
