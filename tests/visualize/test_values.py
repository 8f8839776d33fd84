"""Any value as short, harmless text."""

from decimal import Decimal

from broken_values import JSON, Broken, BrokenError
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import each_case

from stategraph.visualize.labels import drop_illegal
from stategraph.visualize.trace.values import block, duration, format_value, sanitize


@each_case(
    "value", [None, 1, -2.5, "a'b", [], [1, "x"], (1,), {"a": {"b": 2}}, Decimal("1.5"), {1}, b"ab"]
)
def test_a_small_value_is_shown_as_python_writes_it(value):
    assert format_value(value) == repr(value)


@given(JSON, st.integers(1, 300))
def test_what_is_shown_is_never_much_longer_than_asked_and_stays_on_one_line(value, limit):
    text = format_value(value, limit)
    assert len(text) <= limit + 70
    assert "\n" not in text


@given(JSON, st.integers(1, 300))
def test_a_block_is_never_much_longer_than_asked(value, limit):
    assert len(block(value, limit)) <= 2 * limit + 200


@each_case("make", [Broken, lambda: [Broken()], lambda: {"a": Broken()}, BrokenError, lambda: 10**5000])
def test_a_value_that_cannot_show_itself_is_shown_by_its_type(make):
    assert "<" in format_value(make())
    assert "<" in block(make())


def test_a_huge_text_is_shortened_with_its_length():
    assert format_value("x" * 1_000_000, 30) == "'" + "x" * 20 + "… (1,000,000 characters)'"
    assert sanitize("x" * 1_000_000, 5) == "xxxxx… (1,000,000 characters)"


def test_a_self_referential_list_is_shown():
    endless = [1]
    endless.append(endless)
    assert format_value(endless, 5000).startswith("[1, [1, ")


def test_where_an_object_lies_in_memory_is_left_out():
    assert " at 0x" not in format_value(object())


def test_sets_are_shown_in_one_order():
    assert format_value({"b", "a", "c"}) == "{'a', 'b', 'c'}"


def test_bidi_marks_and_terminal_escapes_are_escaped():
    assert sanitize("a\u202eb\x1b[31m\x00") == "a\\u202eb\\x1b[31m\\x00"
    assert sanitize("שלום\tworld\n") == "שלום\tworld\n"


def test_what_no_page_can_hold_is_replaced():
    assert drop_illegal("a\x00b\ud800c\uffff") == "a\ufffdb\ufffdc\ufffd"


def test_a_block_shows_parts_on_lines_and_a_text_line_by_line():
    long = "word " * 30
    assert block({"a": [long, 1], "b": 2}) == f"a:\n  - {long!r}\n  - 1\nb: 2"
    assert block("one\ntwo") == "one\ntwo"


def test_durations_are_shown_in_the_unit_that_fits():
    told = [duration(s) for s in (0, 2e-6, 0.0042, 0.25, 59.4, 60, 3599, 3600, 86400 * 3)]
    assert told == ["0 s", "2 µs", "4.2 ms", "250 ms", "59.4 s", "1 min", "59 min 59 s", "1 h", "3 d"]


def test_an_error_cannot_send_control_codes_to_the_terminal():
    assert format_value([ValueError("\x1b[2Jgone\u202e")]) == r"[ValueError: \x1b[2Jgone\u202e]"
