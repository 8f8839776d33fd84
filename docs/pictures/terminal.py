"""Records a program in a real terminal, and draws what it showed as one SVG that moves.

Only what our programs write is understood: lines, carriage returns, "clear to the end", bold.
"""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import termios
import time
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from html import escape
from pathlib import Path
from typing import NamedTuple

COLUMNS, ROWS = 96, 32
CELL, LINE, MARGIN = 7.8, 18.0, 16.0
SLOWEST = 0.9
"""Longer waits are shortened to this, in seconds."""
QUICKEST = 0.06
"""Shorter ones are shown for this long."""
BEGUN = re.compile(r"\x1b(\[[\d;?]*)?$")
ESCAPE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])")


class Frame(NamedTuple):
    """What the terminal shows from a time on: its last lines, each with the number it has since
    the beginning."""

    at: float
    lines: tuple[tuple[int, str], ...]


def record(
    words: Sequence[str], folder: Path, typed: Mapping[str, str], env: Mapping[str, str]
) -> list[Frame]:
    """Run a program in a terminal, type an answer whenever it prints one of the prompts, and
    return the frames."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(words[0], list(words), {**os.environ, **env, "TERM": "xterm"})
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen, frames, clock, last = _Screen(), list[Frame](), 0.0, time.monotonic()
    left, decoder = dict(typed), getincrementaldecoder("utf-8")()
    while True:
        ready, _, _ = select.select([terminal], [], [], 60)
        try:
            read = os.read(terminal, 1 << 10) if ready else b""
        except OSError:  # Linux: the program has ended
            read = b""
        if not read:
            break
        now = time.monotonic()
        clock, last = clock + min(max(now - last, QUICKEST), SLOWEST), now
        screen.write(decoder.decode(read))
        frames.append(Frame(clock, screen.visible()))
        for prompt, answer in [*left.items()]:
            if prompt in screen.lines[-1]:
                del left[prompt]
                for key in answer:
                    time.sleep(0.15)
                    os.write(terminal, key.encode())
    os.waitpid(process, 0)
    os.close(terminal)
    return frames


class _Screen:
    """The lines that were written, the last one with the cursor."""

    def __init__(self) -> None:
        self.lines, self._at, self._begun = [""], 0, ""

    def write(self, text: str) -> None:
        """Take what was printed; an escape sequence may come in two parts."""
        text = self._begun + text
        self._begun = text[text.rfind("\x1b") :] if BEGUN.search(text) else ""
        for part in re.split(r"(\r|\n|\x1b\[[\d;?]*[A-Za-z])", text.removesuffix(self._begun)):
            code = ESCAPE.fullmatch(part)
            if part == "\n":
                self.lines.append("")
                self._at = 0
            elif part == "\r":
                self._at = 0
            elif code and code[2] == "K":
                self.lines[-1] = self.lines[-1][: self._at]
            elif code and code[2] == "m" and code[1] not in ("", "0"):
                self.lines[-1] = "\x01" + self.lines[-1]
            elif not code:
                line = self.lines[-1]
                self.lines[-1] = line[: self._at] + part + line[self._at + len(part) :]
                self._at += len(part)

    def visible(self) -> tuple[tuple[int, str], ...]:
        """The lines that are in the window."""
        first = max(0, len(self.lines) - ROWS)
        return tuple(enumerate(self.lines))[first:]


def draw(frames: Sequence[Frame], title: str, picture: bytes = b"", shown: float = 5.0) -> str:
    """Return an SVG that shows the frames in turn, and again and again.

    Args:
        picture: a WebP picture to show at the end.
        shown: how many seconds the end is shown.
    """
    end = frames[-1].at + 1.5
    whole = end + shown
    begin = frames[0].at + 0.3  # where nothing moves, the end of the program is shown
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN + 26
    styles: dict[tuple[float, float], str] = {}

    def during(start: float, stop: float) -> str:
        return styles.setdefault((start, stop), f"t{len(styles)}")

    scrolls = [(frame.at, frame.lines[0][0]) for frame in frames]
    texts = []
    for number, text, start, stop in _spans(frames, whole):
        bold = ' font-weight="bold" fill="#fff"' if text.startswith("\x01") else ""
        words = escape(text.lstrip("\x01").rstrip())
        if words.strip():
            y = MARGIN + 26 + LINE * (number + 0.75)
            texts.append(
                f'<text class="{during(start, stop)}" x="{MARGIN}" y="{y:.0f}"{bold}>{words}</text>'
            )
    moves = "".join(
        f"{100 * at / whole:.2f}%{{transform:translateY({-LINE * first:.0f}px)}}"
        for at, first in {first: (at, first) for at, first in reversed(scrolls)}.values()
    )
    last = ""
    if picture:
        source = b64encode(picture).decode()
        last = (
            f'<image class="{during(end, whole)}" y="26" width="{width:.0f}" '
            f'height="{height - 26:.0f}" preserveAspectRatio="xMidYMin meet" '
            f'href="data:image/webp;base64,{source}"/>'
        )
    rules = "".join(
        f".{name}{{visibility:{'visible' if stop >= whole > start + shown else 'hidden'};"
        f"animation:{name} {whole:.2f}s step-end {-begin:.2f}s infinite}}"
        f"@keyframes {name}{{0%{{visibility:{'visible' if start <= 0 else 'hidden'}}}"
        f"{100 * start / whole:.2f}%{{visibility:visible}}"
        + (f"{100 * stop / whole:.2f}%{{visibility:hidden}}" if stop < whole else "")
        + "}"
        for (start, stop), name in styles.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<style>text{{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "fill:#d5dbe3;white-space:pre}"
        f".scroll{{transform:translateY({-LINE * scrolls[-1][1]:.0f}px);"
        f"animation:scroll {whole:.2f}s step-end {-begin:.2f}s infinite}}"
        f"@keyframes scroll{{{moves}}}"
        f"{rules}</style>"
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#161b22"/>'
        '<circle cx="18" cy="14" r="5" fill="#ff5f57"/><circle cx="36" cy="14" r="5" '
        'fill="#febc2e"/><circle cx="54" cy="14" r="5" fill="#28c840"/>'
        f'<svg y="26" width="{width:.0f}" height="{height - 26:.0f}" '
        f'viewBox="0 26 {width:.0f} {height - 26:.0f}"><g class="scroll">'
        f"{''.join(texts)}</g></svg>"
        f"{last}</svg>\n"
    )


def _spans(frames: Sequence[Frame], whole: float) -> list[tuple[int, str, float, float]]:
    """Each text of each line, from when until when it stood there."""
    open_: dict[int, tuple[str, float]] = {}
    found = []
    for frame in frames:
        for number, text in frame.lines:
            before = open_.get(number)
            if before is None or before[0] != text:
                if before is not None:
                    found.append((number, before[0], before[1], frame.at))
                open_[number] = (text, frame.at)
    return found + [(number, text, at, whole) for number, (text, at) in open_.items()]


def still(text: str, title: str) -> str:
    """Return an SVG of a terminal that shows a text."""
    lines = text.rstrip().split("\n")
    width = max(map(len, lines)) * CELL + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    rows = "".join(
        f'<text x="{MARGIN}" y="{MARGIN + LINE * (number + 0.75):.0f}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">'
        "<style>text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "fill:#d5dbe3;white-space:pre}</style>"
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#161b22"/>{rows}</svg>\n'
    )


