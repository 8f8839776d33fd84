"""The states of a task: the table is whole, and the page that explains the engine shows it as it is."""

import re
from pathlib import Path
from typing import get_args

from stategraph.pregel.schedule.states import TRANSITIONS, TaskEvent, TaskState

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "architecture.md"


def test_the_page_shows_the_table():
    [section] = re.findall(r"^### The states of a task\n(.*?)^### ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    shown = re.findall(r"^\| (.+?) \| (.*→.*) \|$", section, re.MULTILINE)[1:]
    assert shown == [
        (state, "; ".join(f"{event} → {after}" for event, after in row.items())) for state, row in TRANSITIONS.items()
    ]


def test_each_state_is_reached_from_work_and_each_event_happens():
    reached, left = {"at work"}, ["at work"]
    while left:
        new = {*TRANSITIONS.get(left.pop(), {}).values()} - reached  # type: ignore[call-overload]
        reached |= new
        left += new
    assert reached == {*get_args(TaskState)}
    assert {event for row in TRANSITIONS.values() for event in row} == {*get_args(TaskEvent)}


def test_what_has_started_can_lose_its_race_in_every_state():
    assert all("loses" in row for row in TRANSITIONS.values())
