"""What was measured, as pictures: bars for the cases, lines for the curves. SVG by hand, readable
on light and dark.

Pure: numbers in, text out. Both axes of curves, and the one of bars, are logarithmic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from goals import CASES, OTHERS, Samples, middle
from table import shown

NAMES = {"ours": "stategraph", "peer": "LangGraph", **OTHERS, "floor": "bare Python"}
STYLE = """
:root{--page:#fff;--ink:#1f2328;--soft:#59636e;--line:#d8dee4;--ours:#0969da;--peer:#bc4c00;--floor:#8c959f;
--pydantic_graph:#8250df;--burr:#1a7f37;--llama_index:#bf3989}
@media (prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--ours:#58a6ff;
--peer:#f0883e;--floor:#6e7681;--pydantic_graph:#bc8cff;--burr:#3fb950;--llama_index:#f778ba}}
text{font:12px system-ui,sans-serif;fill:var(--ink)}.soft{fill:var(--soft);font-size:11px}
.grid{stroke:var(--line);fill:none}.line{fill:none;stroke-width:2}
"""
SOLID = "".join(f".{e}{{fill:var(--{e})}}.line.{e}{{stroke:var(--{e});fill:none}}" for e in NAMES)


def page(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """The whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img"><title>{escape(title)}</title><style>{STYLE}{SOLID}</style>'
        f'<rect width="{width:g}" height="{height:g}" rx="8" style="fill:var(--page)"/>{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, words: str, cls: str = "", anchor: str = "start") -> str:
    name = f' class="{cls}"' if cls else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def legend(engines: Sequence[str], x: float, y: float) -> list[str]:
    """What the colours mean, in one row."""
    parts = []
    for engine in engines:
        parts.append(
            f'<rect class="{engine}" x="{x:.0f}" y="{y - 9:g}" width="10" height="10" rx="2"/>'
        )
        parts.append(text(x + 15, y, NAMES[engine], "soft"))
        x += 34 + 6.2 * len(NAMES[engine])
    return parts


class Axis:
    """A logarithmic axis over whole powers of ten."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = floor(log10(min(values))), ceil(log10(max(values)))
        if self.low == self.high:
            self.high += 1
        self._start, self._step = start, (end - start) / (self.high - self.low)

    def at(self, value: float) -> float:
        """Where a value stands."""
        return self._start + (log10(value) - self.low) * self._step

    def marks(self) -> list[tuple[float, float]]:
        """(value, place) of the powers of ten."""
        return [(10.0**n, self.at(10.0**n)) for n in range(self.low, self.high + 1)]


def amount(value: float) -> str:
    """A power of ten in few letters."""
    return (
        f"{value:,.0f}"
        if 1 <= value < 1e6
        else f"{value / 1e6:,.0f}M"
        if value >= 1e6
        else f"{value:g}"
    )


def bars(samples: Samples) -> str:
    """A group of bars for each case that is a time, in microseconds."""
    times = {name: mine for name, mine in middle(samples).items() if CASES[name].unit == "µs"}
    # A difference of two times may be below zero, where a scale of powers of ten has no place.
    above = {name: {e: t for e, t in mine.items() if t > 0} for name, mine in times.items()}
    found = {name: mine for name, mine in above.items() if mine}
    order = [engine for engine in NAMES if any(engine in mine for mine in found.values())]
    left, width, high, room = 345.0, 940.0, 10.0, 12.0
    every = [1e6 * value for mine in found.values() for value in mine.values()] or [1.0]
    axis = Axis(every, left, width - 90)
    parts, y = [], 56.0
    for name, mine in found.items():
        here = [engine for engine in order if engine in mine]
        parts.append(
            text(left - 10, y + high * len(here) / 2 + 4, f"{name}  {CASES[name].text}", "", "end")
        )
        for engine in here:
            end = axis.at(1e6 * mine[engine])
            bar = f'x="{left:g}" y="{y:g}" width="{max(end - left, 1):.1f}" height="{high - 1:g}" rx="1"'
            parts.append(f'<rect class="{engine}" {bar}/>')
            parts.append(text(end + 5, y + high - 1.5, shown(mine[engine], "µs"), "soft"))
            y += high
        y += room
    grid = [f'<path class="grid" d="M{x:.1f} 44V{y - room / 2:g}"/>' for _, x in axis.marks()]
    grid += [text(x, 40, f"{amount(value)} µs", "soft", "middle") for value, x in axis.marks()]
    return page(width, y, [*grid, *legend(order, 16, 20), *parts], "Microseconds per unit of work")


Points = Mapping[str, Mapping[int, float]]
"""engine → size → seconds per unit"""


def curves(found: Mapping[str, tuple[str, Points]]) -> str:
    """A panel for each curve, two beside each other: size to the right, microseconds per unit
    upwards.

    Args:
        found: name → (what grows and what is timed, the points).
    """
    wide, tall, columns = 460.0, 230.0, 2
    parts = legend([e for e in NAMES if any(e in points for _, points in found.values())], 16, 20)
    for index, (label, points) in enumerate(found.values()):
        x, y = index % columns * wide, 34 + index // columns * tall
        parts += panel(label, points, (x + 72, y + 24, x + wide - 32, y + tall - 26))
    height = 34 + ceil(len(found) / columns) * tall + 6
    return page(wide * columns, height, parts, "Cost of a unit of work as something grows")


def panel(label: str, points: Points, box: tuple[float, float, float, float]) -> list[str]:
    left, top, right, bottom = box
    sizes = [size for line in points.values() for size in line]
    costs = [1e6 * cost for line in points.values() for cost in line.values() if cost > 0]
    if not costs:
        return [text(left, top, f"{label}: no numbers")]
    across, up = Axis(sizes, left, right), Axis(costs, bottom, top)
    parts = [text(left - 56, top - 8, label)]
    for value, x in across.marks():
        parts.append(f'<path class="grid" d="M{x:.1f} {top:g}V{bottom:g}"/>')
        parts.append(text(x, bottom + 15, amount(value), "soft", "middle"))
    for value, y in up.marks():
        parts.append(f'<path class="grid" d="M{left:g} {y:.1f}H{right:g}"/>')
        parts.append(text(left - 5, y + 4, f"{amount(value)} µs", "soft", "end"))
    for engine, line in points.items():
        dots = [
            (across.at(size), up.at(1e6 * cost)) for size, cost in sorted(line.items()) if cost > 0
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        parts.append(f'<polyline class="line {engine}" points="{path}"/>')
        parts += [f'<circle class="{engine}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in dots]
    return parts
