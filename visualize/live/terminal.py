"""Shows a run in a terminal: as a live table if `rich` is installed, otherwise as plain lines.

Only draws a Progress as text. Writes to stderr, so that the program's own output stays separate.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from ...checkpoint.printable import printable
from ..labels import TIMES
from ..trace.values import duration
from .progress import EARLIER, NodeRow, Progress, Superstep, split_mark

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

SIGNS = {"waiting": "○", "running": "▶", "done": "✔", "failed": "✘", "paused": "‖"}
STYLES = {
    "waiting": "dim",
    "running": "bold cyan",
    "done": "green",
    "failed": "bold red",
    "paused": "bold yellow",
    "starting": "dim",
    "stopped": "bold red",
}
AROUND = 8
"""Lines of a terminal reserved for what surrounds the rows."""
LULL = 10.0
"""Seconds after which plain lines report how far a superstep with many tasks has come."""
PLAIN = str.maketrans({"·": "-", TIMES: "x", "…": "..."})
"""Replacements for terminals that can only show ASCII."""


def can_draw(file: TextIO) -> bool:
    """Return whether a live table can be shown there."""
    encoding = (getattr(file, "encoding", "") or "").lower()
    return file.isatty() and encoding.startswith("utf") and find_spec("rich") is not None


class Lines:
    """Writes one line per superstep when it has ended, one now and then during a long one, and the
    result of the run at the end. No control codes.

    Args:
        file: None for stderr.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._told = 0
        self._last: float | None = None

    def draw(self, progress: Progress, now: float) -> None:
        """Write the lines that have not been written yet."""
        steps = progress.supersteps if progress.lists_supersteps else []
        whole = len(steps) if progress.over else max(0, len(steps) - 1)
        for number in range(self._told, whole):
            self._write(f"superstep {number + 1}: {describe_superstep(steps[number])}")
        if self._last is None or self._told < whole:
            self._last = now
        self._told = whole
        pace = progress.pace(now)
        if pace and now - self._last >= LULL:
            self._last = now
            self._write(f"{progress.headline(now)} · {pace}")
        if progress.over:
            for line in (progress.headline(now), *progress.notes()):
                self._write(line)

    def _write(self, line: str) -> None:
        line = printable(line)
        file = self._file or sys.stderr
        encoding = getattr(file, "encoding", None) or "utf-8"
        if not encoding.lower().startswith("utf"):
            line = line.translate(PLAIN).encode(encoding, "replace").decode(encoding)
        print(line, file=file, flush=True)


def describe_superstep(step: Superstep) -> str:
    """Return what ran in a superstep, and for how long.

    >>> from collections import Counter
    >>> describe_superstep(Superstep(2, 1.0, 2.5, 2, 2, Counter(count=1, log=1), {"log": "failed"}))
    'count, log failed (1.5 s)'
    """
    shown = []
    for name, count in step.tasks.items():
        kept = step.kept[name]
        ran = count - kept
        times = f" {TIMES}{ran:,}" if ran > 1 else ""
        shown.append(
            " ".join(
                filter(
                    None, (name + times, step.halted.get(name), f"({kept:,} kept)" if kept else "")
                )
            )
        )
    return f"{', '.join(shown)} ({duration(step.ended - step.started)})"


class Table:
    """A live table of the nodes. Its last state stays on the screen.

    Args:
        file: None for stderr.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._live: Live | None = None

    def draw(self, progress: Progress, now: float) -> None:
        """Redraw the table."""
        live = self._live = self._live or self._open()
        try:
            room = (
                None
                if progress.over
                else max(3, live.console.height - AROUND - len(progress.notes()))
            )
            live.update(render_rich(progress, now, room), refresh=True)
        except BaseException:
            live.stop()  # restores stdout
            raise
        if progress.over:
            live.stop()

    def _open(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        file = self._file or sys.stderr
        # What nodes print appears above the table, unless stdout is redirected.
        live = Live(
            console=Console(file=file), auto_refresh=False, redirect_stdout=sys.stdout.isatty()
        )
        live.start()
        return live


def render_rich(progress: Progress, now: float, room: int | None = None) -> Group:
    """Return a Progress as an object for `rich`.

    Args:
        room: the maximum number of rows; None for all.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(printable(progress.headline(now)), style=STYLES[progress.state])]
    parts += [_bar(progress, progress.pace(now)), _table(progress.rows(now), room)]
    style = STYLES["failed"] if progress.error else STYLES["paused"]
    parts += [Text(printable(note), style=style) for note in progress.notes()]
    return Group(*parts)


def _bar(progress: Progress, pace: str) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table as RichTable

    style = STYLES[progress.state if progress.over else "running"].removeprefix("bold ")
    bar = ProgressBar(
        total=1.0, completed=progress.share, width=40, complete_style=style, finished_style=style
    )
    if not pace:
        return bar
    line = RichTable.grid(padding=(0, 2))
    line.add_row(bar, pace)
    return line


def _table(rows: list[NodeRow], room: int | None) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("node", overflow="ellipsis", no_wrap=True, min_width=12)
    table.add_column("state", min_width=24)  # so that columns do not move
    for title in ("runs", "left", "time"):
        table.add_column(title, justify="right", no_wrap=True, min_width=6)
    visible, rest = pick_rows(rows, room)
    for row in visible:
        table.add_row(*_table_cells(row))
    if rest:
        counts = Counter[str](row.mark.state for row in rest)
        words = ", ".join(f"{counts[state]} {state}" for state in SIGNS if counts[state])
        table.add_row(Text(f"… {len(rest)} more", style="dim"), Text(words, style="dim"))
    return table


def _table_cells(row: NodeRow) -> Iterator[Any]:
    from rich.text import Text

    state, waiting = row.mark.state, row.mark.state == "waiting"
    yield Text("  " * row.depth + printable(row.label), style="dim" if waiting else "")
    status = Text(printable(f"{SIGNS[state]} {split_mark(row.mark)[0]}"), style=STYLES[state])
    if detail := detail_of(row):
        status.append(f"  {printable(detail)}", style="red" if state == "failed" else "default")
    yield status
    yield f"{row.runs:,}" if row.runs else ""
    yield f"{row.left:,}" if row.left else ""
    yield "" if waiting else duration(row.seconds)


def detail_of(row: NodeRow) -> str:
    """Return the details beside the state; counts and times of finished nodes have their own
    columns."""
    parts = split_mark(row.mark)[1].split(" · ")
    return " · ".join(
        p for p in parts if row.mark.state != "done" or "retr" in p or "kept" in p or p == EARLIER
    )


def pick_rows(rows: list[NodeRow], room: int | None) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows to show if there is room for this many, in order, and the others."""
    if room is None or len(rows) <= room:
        return rows, []
    urgency = ["failed", "paused", "running", "done", "waiting"]
    best = sorted(range(len(rows)), key=lambda n: (urgency.index(rows[n].mark.state), n))[:room]
    return [rows[n] for n in sorted(best)], [
        rows[n] for n in range(len(rows)) if n not in set(best)
    ]
