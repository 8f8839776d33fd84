"""What changed between two states."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser

import pytest
from broken_values import JSON, Broken, BrokenError
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import each_case
from pydantic import BaseModel

from stategraph.visualize.trace.diff import Change, DiffLimits, diff, draw_html, draw_text


@dataclass
class Point:
    x: int
    y: int


class Model(BaseModel):
    name: str
    tags: list[str] = []


class Plain:
    def __init__(self, **fields):
        vars(self).update(fields)


class Array:
    """Compares item by item, and has no truth, as arrays do."""

    def __init__(self, *items):
        self.items = items

    def __eq__(self, other):
        return Array(*(one == two for one, two in zip(self.items, other.items, strict=True)))  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        return f"Array{self.items}"

    def __bool__(self):
        raise ValueError("ambiguous")


def told(before, after, limits: DiffLimits | None = None):
    return draw_text(diff(before, after, limits or DiffLimits())).split("\n")


@each_case(
    "before, after, lines",
    [
        ({"a": 1}, {"a": 1}, [""]),
        ({}, {"a": 1}, ["+ a: 1"]),
        ({"a": 1}, {}, ["- a: 1"]),
        ({"a": 1}, {"a": 2}, ["~ a: 1 → 2"]),
        ({"a": {"b": {"c": 1}, "d": 2}}, {"a": {"b": {"c": 3}, "d": 2}}, ["~ a.b.c: 1 → 3"]),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, ["~ a: 1 appended, 3 in all", "    + 3"]),
        ({"a": []}, {"a": [1]}, ["~ a: 1 appended", "    + 1"]),
        ({"a": [1, 2, 3]}, {"a": [1, 5, 3]}, ["~ a[1]: 2 → 5"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ["~ a[0].b: 1 → 2"]),
        ({"a": [1, 2, 3, 4]}, {"a": [1, 4]}, ["~ a[1]: 4 → 2", "    - 2", "    - 3"]),
        ({"a": {1, 2}}, {"a": {2, 3}}, ["~ a: edited", "    - 1", "    + 3"]),
        ({"a": (1,)}, {"a": (1, 2)}, ["~ a: 1 appended, 2 in all", "    + 2"]),
        ({"a": Point(1, 2)}, {"a": Point(1, 3)}, ["~ a.y: 2 → 3"]),
        ({"a": Model(name="x")}, {"a": Model(name="y")}, ["~ a.name: 'x' → 'y'"]),
        ({"a": Plain(b=1)}, {"a": Plain(b=2)}, ["~ a.b: 1 → 2"]),
        ({"a": Plain(b=1)}, {"a": Plain(b=1)}, [""]),
        ({"a": None}, {"a": []}, ["~ a: None → []"]),
        (3, 4, ["~ value: 3 → 4"]),
        ([1], [1, 2], ["~ value: 1 appended, 2 in all", "    + 2"]),
        ({"a": float("nan")}, {"a": float("nan")}, [""]),
        ({"a": Array(1)}, {"a": Array(1)}, [""]),
        ({"a": Array(1)}, {"a": Array(2)}, ["~ a: Array(1,) → Array(2,)"]),
        ({"": 1, 2: 1}, {"": 2, 2: 3}, ["~ '': 1 → 2", "~ 2: 1 → 3"]),
    ],
)  # fmt: skip
def test_a_change_is_shown_at_its_path_and_minimal(before, after, lines):
    assert told(before, after) == lines


def test_a_diff_of_a_multiline_text_shows_the_changed_lines():
    lines = [f"line {n} of a text" for n in range(8)]
    other = [*lines[:3], "new", *lines[4:]]
    found = told({"a": "\n".join(lines)}, {"a": "\n".join(other)})
    assert found == [
        "~ a: edited",
        "      line 2 of a text",
        "    - line 3 of a text",
        "    + new",
        "      line 4 of a text",
    ]


def test_long_texts_are_shown_from_the_first_difference():
    [line] = told({"a": "x" * 5000 + "y" + "z" * 500}, {"a": "x" * 5000 + "!" + "z" * 500})
    assert "xyz" in line and "x!z" in line and len(line) < 500


def test_messages_are_matched_by_their_ids():
    one, two = {"id": "1", "role": "user", "content": "hi"}, {"id": "2", "role": "assistant", "content": "hello"}
    new = {"id": "3", "role": "user", "content": "more"}
    assert told({"m": [one]}, {"m": [one, two]}) == ["~ m: 1 appended, 2 in all", "    + assistant: hello"]
    changed = {**two, "content": "hello!"}
    assert told({"m": [one, two]}, {"m": [changed, new]}) == [
        "~ m: edited", "    - user: hi", "    + user: more", "~ m[2].content: 'hello' → 'hello!'",
    ]  # fmt: skip


def test_changes_beyond_the_limit_are_counted():
    found = diff({}, {str(n): n for n in range(500)}, DiffLimits(changes=3))
    assert len(found) == 4
    assert draw_text(found).endswith("… 497 more changes")


def test_lines_beyond_the_limit_are_counted():
    [change] = diff({"a": []}, {"a": list(range(500))}, DiffLimits(lines=3))
    assert change.lines == ("+ 0", "+ 1", "+ 2", "  … 497 more")


@pytest.mark.trial
def test_a_million_characters_and_a_hundred_thousand_items_stay_small():
    before = {"text": "a\n" * 500_000, "items": list(range(100_000)), "keys": {str(n): n for n in range(20_000)}}
    after = {"text": "b\n" * 500_000, "items": list(range(1, 100_001)), "keys": {str(n): -n for n in range(20_000)}}
    assert len(draw_html(diff(before, after))) < 30_000


@each_case(
    "make", [Broken, BrokenError, lambda: [Broken()], object, lambda: 10**5000, lambda: type, lambda: print]
)
def test_objects_with_broken_methods_do_not_break_a_diff(make):
    odd = make()
    for before, after in ((odd, 1), (1, odd), (odd, odd), ([odd], [odd, 1]), ({"a": odd}, {"a": type(odd)})):
        draw_text(diff({"a": before}, {"a": after}))
        draw_html(diff(before, after))


def test_self_referential_values_do_not_break_a_diff():
    one = {"a": 1}
    one["self"] = one
    two = {"a": 2}
    two["self"] = two
    assert "~ a: 1 → 2" in told(one, two)


@pytest.mark.trial
@given(JSON, JSON)
def test_equal_states_have_no_changes_and_different_ones_have_some(before, after):
    assert diff(before, before) == ()
    if repr(before) != repr(after):
        assert diff(before, after) or before == after


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not attrs

    def handle_data(self, data):
        self.text += data


HOSTILE = st.text(alphabet="<>&'\"/scripton=!-é\n\u202e\x00")


@given(st.dictionaries(HOSTILE, HOSTILE | st.lists(HOSTILE)), st.dictionaries(HOSTILE, HOSTILE | st.lists(HOSTILE)))
def test_no_text_of_a_state_becomes_markup(before, after):
    page = Tags()
    page.feed(draw_html(diff(before, after)))
    page.close()
    assert page.seen <= {"p", "b", "del", "ins", "i", "pre", "span"}
    assert "\u202e" not in page.text


def test_html_marks_added_and_removed_parts_in_words():
    html = draw_html(diff({"a": 1, "b": 1}, {"a": 2, "c": [1]}))
    assert html == (
        "<p><b>b</b> <del>1</del></p><p><b>a</b> <del>1</del> <ins>2</ins></p><p><b>c</b> <ins>[1]</ins></p>"
    )


def test_a_change_names_its_place():
    assert Change(("docs", "[3]", "title"), "changed").where == "docs[3].title"
    assert Change((), "changed").where == "value"
