"""Bars of what was measured, as SVG, for the notebook on speed. No number comes from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from stategraph.visualize.image import as_image
from stategraph.visualize.layout.measure import fit_text, text_width
from stategraph.visualize.theme import FONTS, style_sheet

WIDTH, END = 900, 100
FONT, SMALL = 12.5, 11.0
LEAST, LONGEST = 270.0, 390.0
"""Pixels of the labels; a longer one is cut."""
BAR, ROOM = 11, 12
"""Pixels: of a bar, and between two groups."""
RULES = """
.page{fill:$page}
text{fill:$ink}
.soft{fill:$soft}
.grid{stroke:$cluster-line}
.ours{fill:$running-line}
.peer{fill:$soft}
.floor{fill:$sub-line}
.goal{stroke:$failed-line;stroke-width:2.5}
.round{fill:none;stroke:$ink;stroke-opacity:.55}
"""


class Bar(NamedTuple):
    """One bar.

    Attributes:
        series: "ours", "peer" or "floor".
        text: what stands at its end.
        rounds: single measurements, drawn as small circles on it.
    """

    series: str
    value: float
    text: str
    rounds: Sequence[float] = ()


class Group(NamedTuple):
    """Bars that belong together; `goal` is a mark across them."""

    label: str
    bars: Sequence[Bar]
    goal: float | None = None


def spell_out(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts that can stand alone, in any order: what is "the same" is what the text before is about."""
    found, whole = {}, ""
    for name, text in texts.items():
        if text.startswith("the same"):
            rest = text.removeprefix("the same")
            text = (whole.partition(",")[0] if rest.startswith(",") else whole) + rest
        elif text.endswith(" of it"):
            text = text.removesuffix("it") + whole.partition(", ")[2]
        else:
            whole = text
        found[name] = text
    return found


class Chart:
    """Groups of bars below each other.

    Args:
        log: whether equal steps to the right multiply.
        unit: of the axis.
        base: where bars begin; smaller values lead to the left from there.
    """

    def __init__(
        self, groups: Sequence[Group], *, unit: str, log: bool = False, base: float = 0.0
    ) -> None:
        self.groups, self.unit, self.log, self.base = groups, unit, log, base
        labels = [text_width(group.label, FONT) for group in groups]
        self.left = 30 + min(max(LEAST, *labels), LONGEST)
        values = [v for g in groups for b in g.bars for v in (b.value, *b.rounds)]
        values += [g.goal for g in groups if g.goal is not None]
        self.low = 10.0 ** floor(log10(min(values))) if log else 0.0
        self.high = 10.0 ** ceil(log10(max(values))) if log else max(values)

    def svg(self) -> str:
        """The picture."""
        name, css = style_sheet("auto", RULES)
        parts, y = [], 40.0
        for group in self.groups:
            middle, label = y + len(group.bars) * BAR / 2, fit_text(group.label, LONGEST, FONT)
            parts.append(f'<text x="16" y="{middle:g}" dy=".35em">{escape(label)}</text>')
            for n, bar in enumerate(group.bars):
                parts += self._bar(bar, y + n * BAR, group.goal)
            if group.goal is not None:
                x, bottom = self._x(group.goal), y + len(group.bars) * BAR + 3
                parts.append(
                    f'<path class="goal" d="M{x:.1f} {y - 3:g}V{bottom:g}"><title>goal</title></path>'
                )
            y += len(group.bars) * BAR + ROOM
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" '
            f'height="{y:g}" style="max-width:100%;height:auto" font-family="{FONTS}" font-size="{FONT}">'
            f'<style>{css}</style><rect class="page" width="{WIDTH}" height="{y:g}" rx="8"/>'
            f"{''.join(self._grid(y - ROOM / 2))}{''.join(self._legend())}{''.join(parts)}</svg>"
        )

    def _x(self, value: float) -> float:
        share = (
            (log10(value / self.low) / log10(self.high / self.low))
            if self.log
            else value / self.high
        )
        return self.left + share * (WIDTH - self.left - END)

    def _bar(self, bar: Bar, y: float, goal: float | None) -> list[str]:
        x, middle = self._x(bar.value), y + BAR / 2 - 0.5
        begin = self._x(self.base) if self.base else self.left
        box = f'x="{min(x, begin):.1f}" y="{y:g}" width="{abs(x - begin):.1f}" height="{BAR - 1}"'
        parts = [f'<rect class="{bar.series}" {box} rx="1"/>']
        parts += [
            f'<circle class="round" cx="{self._x(r):.1f}" cy="{middle:g}" r="2.2"/>'
            for r in bar.rounds
        ]
        end = max([x, begin, *map(self._x, bar.rounds)]) + 7
        if goal is not None and abs(self._x(goal) - end) < 40:
            end = max(end, self._x(goal) + 6)  # not on the mark of the goal
        return [
            *parts,
            f'<text x="{end:.1f}" y="{middle:g}" dy=".35em" font-size="11">{escape(bar.text)}</text>',
        ]

    def _grid(self, bottom: float) -> list[str]:
        if self.log:
            marks = [self.low * 10**n for n in range(round(log10(self.high / self.low)) + 1)]
        else:
            step = 10.0 ** floor(log10(self.high / 2))
            step *= next(n for n in (1, 2, 5, 10) if self.high / (n * step) <= 6)
            marks = [n * step for n in range(int(self.high / step) + 1)]
        parts = []
        for mark in marks:
            x = self._x(mark) if mark else self.left
            parts.append(f'<path class="grid" d="M{x:.1f} 32V{bottom:g}"/>')
            parts.append(
                f'<text class="soft" x="{x:.1f}" y="27" text-anchor="middle" font-size="11">{_number(mark)}</text>'
            )
        unit = (
            f'<text class="soft" x="{WIDTH - 16}" y="14" text-anchor="end" font-size="11">'
            f"{escape(self.unit)}</text>"
        )
        return [*parts, unit]

    def _legend(self) -> list[str]:
        """What each colour is, where there are several, and the mark of the goals."""
        names = {"ours": "stategraph", "peer": "LangGraph", "floor": "bare Python"}
        found = dict.fromkeys(names[bar.series] for group in self.groups for bar in group.bars)
        looks = {names[key]: key for key in names}
        entries = [(looks[name], name) for name in found] if len(found) > 1 else []
        if any(group.goal is not None for group in self.groups):
            entries.append(("goal", "the goal"))
        parts, x = [], 16.0
        for look, name in entries:
            mark = f'<rect class="{look}" x="{x:g}" y="18" width="10" height="10" rx="1"/>'
            if look == "goal":
                mark = f'<path class="goal" d="M{x + 5:g} 16V30"/>'
            parts.append(f'{mark}<text x="{x + 15:g}" y="27" font-size="11">{name}</text>')
            x += 28 + 6.4 * len(name)
        return parts

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        svg = self.svg()
        lines = [
            f"{group.label:<44}{bar.series:>6}  {bar.text}"
            for group in self.groups
            for bar in group.bars
        ]
        return {
            "text/html": as_image(svg, "a chart"),
            "image/svg+xml": svg,
            "text/plain": "\n".join(lines),
        }


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
