"""The timeline's picture: what is placed where, in numbers read from the SVG."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import stored_threads as threads
from timelines import QUESTION, START, overlapping, step, task, told_of

from stategraph.visualize.labels import TIMES
from stategraph.visualize.render.timeline import Timeline, timeline
from stategraph.visualize.render.timeline_model import ScaleRoom, build_scale
from stategraph.visualize.render.timeline_svg import LANES

SVG = "{http://www.w3.org/2000/svg}"


def drawn(found: Timeline, **kwargs):
    return ElementTree.fromstring(found.draw_svg(**kwargs))


def boxes(root: ElementTree.Element, node):
    """(look, left, right) of the bars of a node."""
    return [
        (rect.get("class", ""), float(rect.get("x", "")), float(rect.get("x", "")) + float(rect.get("width", "")))
        for group in root.iter(f"{SVG}g")
        if group.get("class") == "bar" and group.get("data-node") == node
        for rect in group.iter(f"{SVG}rect")
    ]


def texts(root: ElementTree.Element):
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_attempts_are_bars_and_the_wait_between_them_a_line():
    root = drawn(told_of(START, step(1, task("a", (100, 4), (105, 5), wait=1))))
    (first, _, end), (second, start, _) = boxes(root, "a")
    assert (first, second) == ("failed", "done")
    [line] = [path for path in root.iter(f"{SVG}path") if path.get("class") == "wait"]
    assert [float(n) for n in re.findall(r"[\d.]+", line.get("d", ""))[::2]] == [end, start]


def test_the_picture_names_its_thread_and_graph():
    root = drawn(told_of(START, step(1, task("a", (100, 4)))))
    titles = [*(each.text or "" for each in root.iter(f"{SVG}title")), root.get("aria-label", "")]
    assert any(text.startswith("Timeline of ") for text in titles)


def test_a_bar_is_as_long_as_its_time_within_a_step():
    root = drawn(told_of(START, step(1, task("a", (100, 4)), task("b", (100, 2)))))
    [(_, a0, a1)], [(_, b0, b1)] = boxes(root, "a"), boxes(root, "b")
    assert a0 == b0
    assert (a1 - a0) / (b1 - b0) == pytest.approx(2, rel=0.01)


def test_a_step_of_a_microsecond_is_visible_next_to_one_of_an_hour():
    root = drawn(told_of(START, step(1, task("a", (100, 1e-6))), step(2, task("b", (100.5, 3600)))))
    [(_, left, right)] = boxes(root, "a")
    assert right - left >= 2


def test_the_time_of_a_step_does_not_print_over_that_of_a_wait_in_it():
    found = told_of(START, step(1, task("a", (100, 0.15), (100.753, 0.01), wait=0.6)))
    root = drawn(found, width=400)
    assert "603 ms" in texts(root) and "763 ms" not in texts(root)


def test_an_error_handler_is_called_as_in_the_drawing_of_the_graph():
    found = timeline(*threads.rescued())
    assert "rescue" in texts(drawn(found)) and "rescue" in found.draw_text()
    assert not any("on error of" in text for text in (*texts(drawn(found)), found.draw_text()))


def test_a_wait_for_an_answer_has_one_width_however_long_it_was():
    def right_end(answered):
        return boxes(drawn(told_of(START, step(1, task("a", (100, 1), (answered, 1), questions=(QUESTION,))))), "a")[
            -1
        ][2]

    assert right_end(110) == right_end(1_000_000)
    found = told_of(START, step(1, task("a", (100, 1), (3701, 1), questions=(QUESTION,))))
    assert "1 h" in texts(drawn(found))
    assert "answer: nothing ran for 1 h" in found.draw_svg()


def test_a_retry_wait_that_dwarfs_everything_is_shortened_and_labelled():
    assert "30 s" in texts(drawn(told_of(START, step(1, task("a", (100, 0.1), (130.1, 0.1), wait=30)))))


def test_tasks_side_by_side_have_lanes_up_to_a_limit():
    def tops(count):
        tasks = [task("work", (100, 1), id=str(n)) for n in range(count)]
        root = drawn(told_of(START, step(1, *tasks)))
        return {r.get("y") for g in root.iter(f"{SVG}g") if g.get("class") == "bar" for r in g.iter(f"{SVG}rect")}

    assert [len(tops(n)) for n in (1, 2, LANES, LANES + 1)] == [1, 2, LANES, 1]


def test_tasks_of_one_node_that_end_in_different_steps_have_lanes():
    """With schedule="ready", each ends in a step of its own."""

    def tops(count):
        ends = [overlapping(n, task("w", (100, n), id=str(n)), since=99.0 + n) for n in range(1, count + 1)]
        root = drawn(told_of(START, *ends))
        return {box.get("y") for bar in root.iter(f"{SVG}g") if bar.get("class") == "bar" for box in bar.iter(f"{SVG}rect")}

    assert [len(tops(count)) for count in (1, 2, 5, 50)] == [1, 2, 5, 6]


def test_a_thousand_tasks_become_one_bar_with_their_number_and_their_failures():
    tasks = [task("work", (100 + n / 100, 1), id=str(n)) for n in range(998)]
    tasks += [task("work", (104 + n, 1), (106 + n, 1), id=f"f{n}", wait=1) for n in range(2)]
    root = drawn(told_of(START, step(1, *tasks)))
    assert [look for look, _, _ in boxes(root, "work")] == ["done", "solid", "solid"]
    assert "\u00d71,000" in texts(root)
    assert "1,000 tasks: 1,000 ran" in told_of(START, step(1, *tasks)).draw_svg()


def test_one_after_the_other_tasks_share_a_lane():
    tasks = [task("work", (100.0 + n, 0.9), id=str(n)) for n in range(20)]
    found = boxes(drawn(told_of(START, step(1, *tasks))), "work")
    assert len(found) == 20
    assert all(one[2] <= other[1] for one, other in pairwise(found))


def test_what_has_not_run_is_an_empty_box():
    root = drawn(
        told_of(START, step(1, task("a", state="waiting"), task("b", (100, 1), state="failed"), source="open"))
    )
    assert [look for look, _, _ in boxes(root, "a")] == ["waiting"]


def test_calls_are_named_above_the_steps():
    root = drawn(timeline(*threads.forked()))
    assert [text for text in texts(root) if text in ("1 input", "2 update_state", "3 resumed")] == [
        "1 input", "2 update_state", "3 resumed",
    ]  # fmt: skip


@pytest.mark.trial
def test_thousands_of_steps_are_drawn_small():
    steps = [step(n, task("tick" if n % 2 else "tock", (100 + n, 1))) for n in range(1, 10_001)]
    assert len(told_of(START, *steps).draw_svg()) < 400_000


def test_the_page_of_a_timeline_shows_each_step_and_needs_nothing_but_itself(tmp_path):
    steps = [step(n, task("tick" if n % 2 else "tock", (100 + n, 1))) for n in range(1, 1001)]
    found = told_of(START, *steps)
    page = found.draw_html(tmp_path / "x.html", theme="dark")
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == page and found.summary in page
    assert len(re.findall(r'<g class="step"', found.draw_svg())) < 1001 == len(re.findall(r'<g class="step"', page))
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


@pytest.mark.trial
def test_a_narrow_column_combines_many_steps_and_shows_a_failure_among_them():
    steps = [step(n, task("tick", (100 + n, 1), state="failed" if n == 500 else "done")) for n in range(1, 2001)]
    root = drawn(told_of(START, *steps))
    looks = [look for look, _, _ in boxes(root, "tick")]
    assert looks.count("failed") == 1
    ranges = [
        (int(g.get("data-step", "")), int(g.get("data-last", "")))
        for g in root.iter(f"{SVG}g")
        if g.get("class") == "step"
    ]
    assert [n for first, last in ranges for n in range(first, last + 1)] == list(range(2001))


def test_a_theme_has_its_colours_and_an_unknown_one_is_an_error():
    found = timeline(*threads.failed())
    assert "prefers-color-scheme" in found.draw_svg()
    assert "var(" not in found.draw_svg(theme="light") + found.draw_svg(theme="dark")
    with pytest.raises(ValueError, match="'blue'"):
        found.draw_svg(theme="blue")  # type: ignore[arg-type]


def test_names_are_escaped():
    root = drawn(told_of(START, step(1, task('<b a="1">&\x00', (100, 1)))))
    assert '<b a="1">&\\x00' in texts(root)


SPANS = st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 100)), max_size=3)


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), SPANS, st.booleans()), max_size=5), max_size=6))
def test_whatever_the_times_are_everything_stays_within_the_picture_and_steps_stay_in_order(made):
    steps = [
        step(n, *(task(name, *sorted(spans), id=f"{n}{k}", questions=(QUESTION,) * asks) for k, (name, spans, asks) in enumerate(tasks)))
        for n, tasks in enumerate(made)
    ]  # fmt: skip
    found = told_of(*steps)
    scale = build_scale(found, ScaleRoom(500, 10, 20))
    ends = [scale.span(n) for n in range(len(steps))]
    assert all(start <= stop for start, stop in ends)
    assert all(one[1] <= other[0] + 1e-6 for one, other in pairwise(ends))
    root = drawn(found)
    assert all(-0.1 <= left <= right <= scale_width(root) for name in "abc" for _, left, right in boxes(root, name))
    found.draw_text(60)


def scale_width(root: ElementTree.Element):
    return float(root.get("width", ""))


def test_the_default_width_fits_a_notebook_cell():
    width = re.search(r'width="(\d+)"', timeline(*threads.long(300)).draw_svg())
    assert width is not None and int(width[1]) <= 960


def test_the_name_of_the_last_call_is_not_cut_off():
    svg = timeline(*threads.nested()).draw_svg()
    [(x, label)] = re.findall(r'<text class="dim" x="([\d.]+)" y="14">(2 resumed)</text>', svg)
    [left] = {*re.findall(r'translate\(([1-9]\d+) 0\)', svg)}
    width = re.search(r'width="(\d+)"', svg)
    assert width is not None and int(left) + float(x) + 5.6 * len(label) <= int(width[1])


def test_lines_of_text_with_counts_are_no_longer_than_asked():
    text = timeline(*threads.long(300)).draw_text(60)
    assert max(map(len, text.split("\n"))) <= 60


def test_a_process_that_died_in_mid_step_is_marked_and_the_tasks_of_both_processes_are_counted():
    before = [task("a", (100 + n / 10, 0.1), id=f"before{n}") for n in range(50)]
    after = [task("a", (500 + n / 10, 0.1), id=f"after{n}") for n in range(60)]
    found = told_of(START, step(1, *before, *after))
    picture = found.draw_svg()
    assert picture.count('class="cut"') == 2  # where it happened, and in the legend
    assert [f"{TIMES}{count}" in picture for count in (50, 60, 110)] == [True, True, False]
    assert "┊ stopped in mid-step, continued after" in found.draw_text()
