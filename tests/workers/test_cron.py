"""The planned times of a cron expression, where the clocks change too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from kit.drive import each_case

from stategraph.workers.cron import Cron, check_cron

pytest.importorskip("cronsim")
BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def planned(cron, zone: ZoneInfo, start, number):
    found = islice(Cron(cron, zone).after(utc(start)), number)
    return [f"{each:%Y-%m-%dT%H:%M}" for each in found]


@each_case("cron, zone, start, found", [
# A fixed time that the clocks skip comes at once when they have moved; the day after it is as ever.
("30 2 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
("30 2 * * *", NEW_YORK, "2026-03-07T12:00", ["2026-03-08T07:00", "2026-03-09T06:30"]),
# A fixed time that comes twice is one planned time, the first.
("30 2 * * *", BERLIN, "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
("30 1 * * *", NEW_YORK, "2026-10-31T12:00", ["2026-11-01T05:30", "2026-11-02T06:30"]),
# What comes each hour comes each hour that passes.
("15 * * * *", BERLIN, "2026-03-29T00:00", ["2026-03-29T00:15", "2026-03-29T01:15", "2026-03-29T02:15"]),
("15 * * * *", BERLIN, "2026-10-25T00:00", ["2026-10-25T00:15", "2026-10-25T01:15", "2026-10-25T02:15"]),
# The same time of day before and after, so another one in UTC.
("0 9 * * *", BERLIN, "2026-03-27T12:00", ["2026-03-28T08:00", "2026-03-29T07:00"]),
("0 0 29 2 *", ZoneInfo("UTC"), "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
])
def test_planned_times(cron, zone, start, found):
    assert planned(cron, zone, start, len(found)) == found


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/7 * * * *", "10 1-3 * * *", "0 */2 * * *"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_each_planned_time_is_the_next_of_the_one_before_wherever_one_starts(cron, day):
    """Every minute of the days around a change of clocks: none before its start, none left out, none twice."""
    times = Cron(cron, BERLIN)
    begin = utc(day) - timedelta(hours=12)
    whole = [*times.due(times.next(begin), begin + timedelta(days=3))]
    assert whole == sorted(set(whole))
    for minute in range(0, 3 * 24 * 60, 11):
        start = begin + timedelta(minutes=minute)
        expected = [each for each in whole if each > start]
        if expected:
            assert times.next(start) == expected[0], start
    for earlier, later in pairwise(whole):
        assert times.next(earlier) == later


@each_case("cron", ["* * * * *", "30 2 * * *", "0 0 1 * *", "0 12 29 2 *", "*/10 3 * * 1"])
@each_case("away", [timedelta(seconds=30), timedelta(hours=3), timedelta(days=40), timedelta(days=800)])
def test_the_last_planned_time_is_the_last_of_all(cron, away):
    times = Cron(cron, BERLIN)
    first = times.next(utc("2026-03-28T11:00"))
    now = first + away
    last = times.last(first, now)
    assert first <= last <= now < times.next(last)


@pytest.mark.parametrize(("cron", "tz", "told"), [
    ("* * * *", "UTC", "cron must have 5 fields, such as"),
    ("* * * * * *", "UTC", "cron must have 5 fields"),
    ("@daily", "UTC", "cron must have 5 fields"),
    ("61 * * * *", "UTC", "cron must be an expression .* got '61"),
    ("0 0 31 2 *", "UTC", "cron must be an expression"),
    ("0 0 * * funday", "UTC", "cron must be an expression"),
    ("0 0 * * *", "Europe/Paros", "tz must be the name of a time zone, got 'Europe/Paros'; did you mean 'Europe/Paris'"),
    ("0 0 * * *", "Europe", "tz must be the name of a time zone"),
    ("0 0 * * *", "../etc/passwd", "tz must be the name of a time zone"),
    ("0 0 * * *", "", "tz must be the name of a time zone"),
    (None, "UTC", "cron must be a string"),
    ("0 0 * * *", UTC, "tz must be a string"),
])  # fmt: skip
def test_an_impossible_schedule_is_an_error(cron, tz, told):
    with pytest.raises((TypeError, ValueError), match=told):
        check_cron(cron, tz)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"schedules need cronsim: pip install .*\[cron\]"):
        check_cron("* * * * *", "UTC")
