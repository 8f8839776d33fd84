"""The sizes of text and nodes, in px: estimated, so that no font is needed. Layout and renderers
use the same sizes, so that they agree."""

from __future__ import annotations

import re
import unicodedata
from itertools import accumulate, takewhile
from typing import NamedTuple

from ..labels import label_lines
from ..model import GraphNode

FONT = 13.0
"""The font size of nodes and clusters."""
SMALL = 11.0
"""The font size of edge labels and badges."""

LONGEST = 220.0
"""A node's text is wrapped at this width."""
MOST_LINES = 3
"""A text of more lines is cut."""
LINE_HEIGHT = 17.0
"""The distance between lines of a node's text."""
LONGEST_LABEL = 150.0
"""An edge's label is wrapped at this width."""
LABEL_LINE = 14.0
"""The distance between lines of an edge's label."""

MARK = 16.0
"""The room for each mark in a node: the hour-glass of a deferred one, the signs of its roles."""


class Size(NamedTuple):
    """Width and height."""

    width: float
    height: float


# Widths of a common sans font, in hundredths of its size.
_WIDTHS = {
    **dict.fromkeys("ijl|'!.,:;I", 31),
    **dict.fromkeys(' ()[]{}frt-/\\"`', 40),
    **dict.fromkeys("abcdeghknopqsuvxyz_0123456789J?*", 62),
    **dict.fromkeys("ABEFKLPSTVXYZ$#+<>=~^", 70),
    **dict.fromkeys("CDGHNOQRUw&", 79),
    **dict.fromkeys("mMW%@", 98),
}


def text_width(text: str, size: float = FONT) -> float:
    """Return the width of one line of text, rather overestimated than underestimated."""
    return sum(map(_width, text)) * size / 100


def _width(character: str) -> int:
    known = _WIDTHS.get(character)
    if known is not None:
        return known
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return 0
    if character > "\u02ff" and (
        unicodedata.east_asian_width(character) in "WF" or ord(character) > 0xFFFF
    ):
        return 125
    return 68


def one_line(text: str) -> str:
    """Return the text with every run of white space and unprintable characters replaced by one
    space."""
    shown = "".join(
        " " if unicodedata.category(c) in ("Cc", "Cs", "Cn", "Co", "Zl", "Zp") else c for c in text
    )
    return " ".join(shown.split())


def fit_text(text: str, longest: float = LONGEST, size: float = FONT) -> str:
    """Return one line that is no wider than `longest`: cut, with an ellipsis, if necessary."""
    text = one_line(text)
    if text_width(text, size) <= longest:
        return text
    room = longest - text_width("…", size)
    widths = accumulate(text_width(character, size) for character in text)
    return text[: sum(1 for _ in takewhile(lambda width: width <= room, widths))].rstrip() + "…"


def wrap_text(text: str, longest: float = LONGEST, size: float = FONT) -> list[str]:
    """Return lines that are no wider than `longest`, broken behind spaces, underscores and other
    marks; the last of `MOST_LINES` is cut if necessary.

    >>> wrap_text("summarize_the_conversation_for_the_next_agent_in_line")
    ['summarize_the_conversation_', 'for_the_next_agent_in_line']
    """
    lines = [""]
    for part in re.findall(r"[^\s_./:-]*[\s_./:-]*", one_line(text)):
        whole = text_width(f"{lines[-1]}{part}".rstrip(), size)
        if whole > longest and lines[-1] and len(lines) < MOST_LINES:
            lines.append("")
        lines[-1] += part
    return [fit_text(line, longest, size) for line in lines]


def fit_lines(node: GraphNode) -> list[str]:
    """Return a node's text as it is drawn; the lines of a folded node have already been wrapped."""
    lines = label_lines(node)
    return lines if len(lines) > 1 else wrap_text(node.label)


def node_size(node: GraphNode) -> Size:
    """Return the size of a node's box."""
    if node.kind == "join":
        side = max(32, round(text_width(node.label, SMALL)) + 10)
        return Size(side, side)
    if node.kind == "unknown":
        return Size(max(44, round(text_width(fit_text(node.label))) + 30), 34)
    if node.kind in ("start", "end"):
        return Size(max(64, text_width(fit_text(node.label), SMALL) + 32), 28)
    extra = MARK * (node.deferred + len(node.roles)) + (8 if node.kind == "subgraph" else 0)
    lines = fit_lines(node)
    widest = max(round(text_width(line)) for line in lines)
    return Size(max(64, widest + 32 + extra), 38 + LINE_HEIGHT * (len(lines) - 1))


def label_size(text: str) -> Size:
    """Return the size of an edge's label; zero if there is none."""
    lines = wrap_text(text, LONGEST_LABEL, SMALL)
    widest = max(round(text_width(line, SMALL)) for line in lines)
    return Size(widest + 12, 18 + LABEL_LINE * (len(lines) - 1)) if widest else Size(0, 0)


def title_size(node: GraphNode) -> Size:
    """Return the size of a cluster's title."""
    mark = MARK * (node.deferred + len(node.roles))
    return Size(round(text_width(fit_text(node.label), SMALL + 1)) + 8 + mark, 18)
