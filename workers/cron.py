"""`Cron`: the planned times of a cron expression in a time zone.

cronsim implements the rules of cron; when clocks change, it does what Debian's cron does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from ..extras import install_command
from ..pregel.errors import nearest

FIELDS = 5
"""The number of fields: minute, hour, day of the month, month, day of the week."""

EXAMPLE = "such as '30 7 * * 1-5' (at 7:30, Monday to Friday)"

LOOK_BACK = (timedelta(hours=2), timedelta(days=2), timedelta(days=62))
"""How far back the last planned time is sought before all planned times are enumerated."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression and its time zone. Planned times are in UTC."""

    text: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the planned times after this moment, in order."""
        for found in _cronsim().CronSim(self.text, moment.astimezone(self.zone)):
            planned = found.astimezone(UTC)
            if planned > moment:  # when clocks are set back, it may start with an earlier time
                yield planned

    def next(self, moment: datetime) -> datetime:
        """Return the first planned time after this moment.

        Raises:
            ValueError: there is none.
        """
        for planned in self.after(moment):
            return planned
        raise ValueError(f"cron must come again after {moment}, got {self.text!r}")

    def due(self, first: datetime, now: datetime) -> Iterator[datetime]:
        """Yield the planned times from `first`, which is one, until now."""
        yield first
        for planned in self.after(first):
            if planned > now:
                return
            yield planned

    def last(self, first: datetime, now: datetime) -> datetime:
        """Return the newest planned time that is not after `now`; `first` is a planned time."""
        for back in LOOK_BACK:
            if now - back <= first:
                break
            if found := [*takewhile(lambda planned: planned <= now, self.after(now - back))]:
                return found[-1]
        return deque(self.due(first, now), maxlen=1)[0]


def check_cron(text: Any, zone: Any) -> Cron:
    """Return the planned times of an expression.

    Raises:
        ImportError: the extra `cron` is not installed.
        TypeError: one of them is not a string.
        ValueError: the expression or the zone is invalid.
    """
    for name, value in (("cron", text), ("tz", zone)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {value!r}")
    cron = Cron(text, check_zone(zone))
    if len(text.split()) != FIELDS:
        raise ValueError(f"cron must have {FIELDS} fields, {EXAMPLE}, got {text!r}")
    try:
        cron.next(datetime.now(UTC))
    except _cronsim().CronSimError as error:
        raise ValueError(f"cron must be an expression {EXAMPLE}, got {text!r}: {error}") from None
    return cron


def check_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name.

    Raises:
        ValueError: there is no such zone.
    """
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # OSError: the name of a folder
        close = nearest(name, sorted(available_timezones()))
        raise ValueError(f"tz must be the name of a time zone, got {name!r}; {close}") from None


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError as error:
        raise ImportError(f"schedules need cronsim: {install_command('cron')}") from error
    return cronsim
