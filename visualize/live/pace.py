"""How fast tasks end, and how long the remaining ones will take at that pace."""

from __future__ import annotations

from collections import deque

from ..trace.values import count_noun, duration

WINDOW = 60.0
"""How many seconds a pace looks back: what was slow an hour ago says little about the rest."""
GRAIN = 1.0
"""How many seconds share a sample, so that a pace costs the same for ten tasks and for a
million."""


class Pace:
    """How many tasks end per second.

    Args:
        began: when the first of them started, by the caller's clock.
    """

    __slots__ = ("_began", "_bucket", "_ended", "_samples")

    def __init__(self, began: float) -> None:
        self._began = began
        self._ended = 0
        self._samples = deque(((began, 0),))  # (time, how many had ended by then), the oldest first
        self._bucket = -1

    def count(self, at: float) -> None:
        """Count a task that was run and has ended."""
        self._ended += 1
        samples, bucket = self._samples, int((at - self._began) / GRAIN)
        if bucket == self._bucket:
            samples[-1] = (at, self._ended)
            return
        self._bucket = bucket
        samples.append((at, self._ended))
        while at - samples[1][0] >= WINDOW:
            samples.popleft()

    @property
    def sample_count(self) -> int:
        """How many samples it keeps."""
        return len(self._samples)

    def rate(self, now: float) -> float:
        """Return tasks per second, over the last minute or since the newest older sample."""
        since, before = self._samples[0]
        return (self._ended - before) / (now - since) if now > since else 0.0


def describe_pace(left: int, rate: float, failed: int, retries: int) -> str:
    """Return how fast tasks end, when the remaining ones will have ended, and what went wrong.

    Args:
        left: how many tasks have not ended.
        rate: tasks per second.

    >>> describe_pace(600, 12.0, 1, 0)
    '12/s · about 50 s left · 1 failed'
    >>> describe_pace(3, 0.05, 0, 2)
    '3/min · about 1 min left · 2 retries'
    """
    parts = []
    if left and rate:
        seconds = max(1, round(left / rate))
        rest = f"{seconds} s" if seconds < 60 else duration(seconds)
        parts += [_format_rate(rate), f"about {rest} left"]
    if failed:
        parts.append(f"{failed:,} failed")
    if retries:
        parts.append(count_noun(retries, "retry", "retries"))
    return " · ".join(parts)


def _format_rate(rate: float) -> str:
    units = (("s", 1), ("min", 60), ("h", 3600))
    unit, seconds = next((each for each in units if rate * each[1] >= 1), units[-1])
    count = rate * seconds
    return f"{count:,.0f}/{unit}" if count >= 9.95 else f"{count:.1f}/{unit}".replace(".0/", "/")
