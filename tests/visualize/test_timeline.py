"""When everything in a thread ran: bars, gaps, calls, and the text timeline."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from kit import stored_threads as threads
from kit.stored_threads import Timeless
from timelines import QUESTION, START, overlapping, step, task, told_of

from stategraph.visualize.image import as_image
from stategraph.visualize.render.timeline import Timeline, timeline
from stategraph.visualize.render.timeline_model import ScaleRoom, build_scale


def gaps(found: Timeline):
    return [tuple(gap) for gap in found.gaps]  # type: ignore[misc]


def calls(found: Timeline):
    return [tuple(call) for call in found.calls]  # type: ignore[misc]


def test_each_attempt_is_a_bar():
    found = told_of(START, step(1, task("a", (100, 1), (103, 2), wait=2)))
    assert [(b.row, b.step, b.began, b.took, b.state, b.attempt, b.attempts) for b in found.bars] == [
        ("a", 1, 100, 1, "failed", 1, 2),
        ("a", 1, 103, 2, "done", 2, 2),
    ]
    assert found.rows == ("a",)


def test_waiting_for_a_retry_is_no_new_call():
    found = told_of(START, step(1, task("a", (100, 1), (103, 2), wait=2)))
    assert gaps(found) == [(1, 101, 103, "retry")]
    assert calls(found) == [("input", 0, 100)]
    assert (found.ran, found.waited) == (5, 0)


def test_a_retry_during_another_task_is_no_gap():
    found = told_of(START, step(1, task("a", (100, 1), (103, 2), wait=2), task("b", (100, 4))))
    assert gaps(found) == []


def test_an_attempt_later_than_any_retry_policy_allows_belongs_to_a_new_call():
    found = told_of(START, step(1, task("a", (100, 1), (500, 2), wait=2)))
    assert gaps(found) == [(1, 101, 500, "idle")]
    assert calls(found) == [("input", 0, 100), ("resume", 1, 500)]


def test_a_hole_in_a_step_that_no_attempt_explains_is_a_process_that_died():
    ran = task("a", (100, 1)), task("a", (500, 2), id="killed"), task("a", (502.9, 1), id="late")
    found = told_of(START, step(1, *ran))
    assert gaps(found) == [(1, 101, 500, "stopped")]
    assert calls(found) == [("input", 0, 100), ("resume", 1, 500)]


def test_a_wait_for_an_answer_ends_with_the_next_attempt_of_the_interrupted_task():
    asking = task("ask", (100, 1), (5000, 1), questions=(QUESTION,))
    found = told_of(START, step(1, asking, task("b", (100, 2))))
    assert gaps(found) == [(1, 102, 5000, "answer")]
    assert calls(found)[1:] == [("resume", 1, 5000)]
    assert [bar.state for bar in found.bars] == ["paused", "done", "done"]
    assert (found.waited, found.ran) == (4898, 3)


def test_a_retry_during_an_interrupt_is_not_part_of_the_wait_for_the_answer():
    asking = task("ask", (100, 1), (5000, 1), questions=(QUESTION,))
    found = told_of(START, step(1, asking, task("b", (100, 1), (104, 1), wait=3)))
    assert gaps(found) == [(1, 101, 104, "retry"), (1, 105, 5000, "answer")]
    assert [(bar.row, bar.state) for bar in found.bars] == [
        ("ask", "paused"), ("ask", "done"), ("b", "failed"), ("b", "done"),
    ]  # fmt: skip


def test_a_task_that_asks_twice_waits_twice():
    asking = task("ask", (100, 1), (200, 1), (300, 1), questions=(QUESTION,))
    found = told_of(START, step(1, asking))
    assert [gap[3] for gap in gaps(found)] == ["answer", "answer"]
    assert [call[0] for call in calls(found)] == ["input", "resume", "resume"]


def test_a_second_between_two_steps_makes_two_calls_of_them():
    found = told_of(START, step(1, task("a", (100, 1))), step(2, task("b", (101.9, 1))), step(3, task("c", (104, 1))))
    assert gaps(found) == [(3, pytest.approx(102.9), 104, "idle")]
    assert calls(found) == [("input", 0, 100), ("resume", 3, 104)]


def test_a_breakpoint_makes_two_calls_however_soon_the_run_resumes():
    found = told_of(START, step(1, task("a", (100, 1))), step(2, task("b", (101.1, 1)), stopped=True))
    assert [call[0] for call in calls(found)] == ["input", "resume"]


def test_a_step_that_another_run_ended_was_not_started_by_it():
    before = step(1, task("a", (100, 1)), metadata={"run_id": "x"})
    ask = task("ask", (101.1, 1), (500, 1), questions=(QUESTION,))
    failed = task("bad", (101.1, 1), (500, 1))
    for each in (ask, failed):
        found = told_of(START, before, step(2, each, metadata={"run_id": "y"}))
        assert calls(found) == [("input", 0, 100), ("resume", 2, 500)]


def test_another_run_id_is_another_call():
    steps = [step(n, task("a", (100 + n, 1)), metadata={"run_id": "x" if n < 3 else "y"}) for n in range(1, 5)]
    assert calls(told_of(START, *steps))[1:] == [("resume", 3, 103)]


# -- steps that overlap (schedule="ready") --------------------------------------------------------------------------


def asked_beside(answered):
    """`ask` starts beside a > b, asks after both have ended, and is answered then."""
    paused = task("ask", (100, 2.5), state="paused", questions=(QUESTION,))
    return told_of(
        START,
        overlapping(1, task("a", (100, 1)), paused),
        overlapping(2, task("b", (101, 1)), since=101),
        step(3, task("ask", (answered, 1), questions=(QUESTION,)), since=102),
    )


@pytest.mark.parametrize("answered", [102.51, 110])
def test_a_question_is_part_of_the_step_in_which_its_task_ends(answered):
    found = asked_beside(answered)
    assert gaps(found) == [(3, 102.5, answered, "answer")]
    assert calls(found) == [("input", 0, 100), ("resume", 3, answered)]
    bars = [(b.step, b.began, b.state, b.attempt, b.attempts) for b in found.bars if b.row == "ask"]
    assert bars == [(3, 100, "paused", 1, 2), (3, answered, "done", 2, 2)]
    assert found.waited == answered - 102.5
    assert [found.took(place) for place in range(4)] == [0, 1, 1, None]  # the last stopped midway
    assert "2 calls" in found.summary and "for answers" in found.summary


@pytest.mark.parametrize("state", ["failed", "paused"])
def test_what_is_still_open_is_drawn_once_at_its_time(state):
    slow = task("slow", (100, 4), state=state)
    found = told_of(
        START,
        overlapping(1, task("a", (100, 1)), slow),
        overlapping(2, task("b", (101.2, 0.8)), since=101),
        overlapping(3, task("c", (102, 1)), since=102),
        step(4, replace(slow, spans=()), source="open", since=103),
    )
    assert [(b.began, b.took, b.state) for b in found.bars if b.row == "slow"] == [(100, 4, state)]
    assert [found.took(place) for place in range(5)] == [0, 1, 1, 1, 1]
    scale = build_scale(found, ScaleRoom(500, 10, 20))
    [bar] = [bar for bar in found.bars if bar.row == "slow"]
    assert scale.place(bar.step, bar.began) == scale.span(1)[0]
    assert scale.place(bar.step, bar.ended) == scale.span(4)[1]
    widths = [scale.span(place)[1] - scale.span(place)[0] for place in range(1, 5)]
    assert widths == [pytest.approx(widths[0])] * 4


def test_a_part_of_a_thread_shows_a_question_across_the_steps_that_it_overlapped():
    """The step in which its task has ended is not in this part."""
    paused = task("ask", (100, 1.5), state="paused", questions=(QUESTION,))
    found = told_of(
        overlapping(1, task("a", (100, 1)), paused),
        overlapping(2, task("b", (101, 1)), since=101),
        overlapping(3, task("c", (102, 1)), since=102),
    )
    scale = build_scale(found, ScaleRoom(500, 10, 20))
    assert scale.span(1)[0] < scale.place(0, 101.5) < scale.span(1)[1]
    assert [found.took(place) for place in range(3)] == [1, 1, 1]
    answered = replace(paused, spans=((100, 1.5), (200, 1)))
    assert told_of(overlapping(1, task("a", (100, 1)), answered)).took(0) == 1


@pytest.mark.parametrize("told", [{"stopped": True}, {"metadata": {"run_id": "y"}}])
def test_another_call_begins_where_something_starts_again_after_a_stop(told):
    """c and d start with it, and d, before which there may be a breakpoint, ends after c."""
    paused = task("ask", (100, 1), state="paused", questions=(QUESTION,))
    found = told_of(
        START,
        overlapping(1, task("a", (100, 1)), paused, metadata={"run_id": "x"}),
        overlapping(2, task("b", (101, 1)), since=101),
        overlapping(3, task("c", (102.1, 1)), since=102, metadata=told.get("metadata", {})),
        overlapping(4, task("d", (102.1, 2)), since=103, stopped=told.get("stopped", False)),
        step(5, replace(paused, spans=()), source="open", since=104),
    )
    assert gaps(found) == [(3, 102, 102.1, "idle")]
    assert calls(found) == [("input", 0, 100), ("resume", 3, 102.1)]


def test_input_update_and_fork_are_calls():
    found = told_of(
        START,
        step(1, task("a", (100, 1))),
        step(2, source="update", at=110.0),
        step(3, task("__start__", (120, 0)), source="input"),
        step(4, source="fork", at=130.0),
        step(5, task("a", (130, 1))),
    )
    assert calls(found) == [("input", 0, 100), ("update", 2, 110), ("input", 3, 120), ("fork", 4, 130)]


def test_the_rows_of_a_nested_graph_are_below_its_node():
    inner = step(0, task("holder:x", (101, 1)), task("holder:y", (102, 1)))
    found = told_of(
        START, step(1, task("a", (100, 3)), task("holder", (100, 3), steps=(inner,))), step(2, task("z", (104, 1)))
    )
    assert found.rows == ("a", "holder", "holder:x", "holder:y", "z")
    again = step(1, task("b", (100, 3)), task("holder", (100, 3), steps=(inner,)))
    assert told_of(START, again, step(2, task("b", (104, 1)), task("holder", (104, 1)))).rows[1:3] == (
        "holder",
        "holder:x",
    )


def test_without_times_every_step_has_the_same_width_and_it_is_said():
    found = told_of(step(0, task("__start__"), source="input"), step(1, task("a"), task("b")), step(2, task("c")))
    assert not found.timed
    assert [(b.row, b.began, b.took) for b in found.bars] == [("a", 1.0, 1.0), ("b", 1.0, 1.0), ("c", 2.0, 1.0)]
    assert "times not stored: every step is drawn equally wide" in found.summary
    assert [call.source for call in found.calls] == ["input"]


def test_a_saver_without_times_still_has_a_timeline():
    app, thread = threads.asked("yes")
    found = timeline(app.copy({"checkpointer": Timeless(app.checkpointer)}), thread)
    assert found.rows == ("draft", "ask", "check", "publish")
    assert [call.source for call in found.calls] == ["input", "resume"]
    assert found.draw_svg().count("<rect") > 5


def test_a_real_thread_is_shown_in_the_order_it_ran():
    found = timeline(*threads.asked("yes"))
    assert [call.source for call in found.calls] == ["input", "resume"]
    assert [gap.kind for gap in found.gaps if gap.kind != "retry"] == ["answer"]
    starts = [bar.began for bar in found.bars if bar.row in ("draft", "publish")]
    assert starts == sorted(starts)
    assert all(bar.took >= 0 for bar in found.bars)


def test_a_forked_thread_mentions_what_is_not_shown():
    found = timeline(*threads.forked())
    assert [call.source for call in found.calls] == ["input", "update", "resume"]
    assert "1 other branch not shown" in found.summary


def test_the_picture_in_characters():
    asking = task("ask", (102, 2), (5000, 2), questions=(QUESTION,))
    found = told_of(
        START, step(1, task("plan", (100, 2))), step(2, asking, task("fetch", (102, 1), (104, 2), wait=1, id="f"))
    )
    assert found.draw_text(60) == "\n".join(
        [
            "graph · thread t · 3 steps · 2 calls · ran 8 s · waited 1 h 22 min for answers",
            "call   ┌input                                   ┌resumed",
            "step   0   1            2",
            "plan       █████████████                       ┊",
            "ask                     ██████████?────────────┊████████████",
            "fetch                   ████✗──────██████████  ┊",
            "┊ waited for an answer: 1 h 22 min",
            "█ ran  ✗ failed  ? asked  ─ waits  ┊ nothing ran",
        ]
    )


def test_a_call_near_the_right_end_is_named_on_its_left():
    paused = task("ask", (100, 0.1), state="paused", questions=(QUESTION,))
    answered = task("ask", (400, 0.001), questions=(QUESTION,))
    found = told_of(START, overlapping(1, task("a", (100, 90)), paused), step(2, answered, since=190))
    head = found.draw_text(60).splitlines()[1]
    assert "┌input" in head and head.endswith("resumed┐")


def test_a_fan_out_is_one_line_with_its_number():
    tasks = [task("work", (100 + n / 10, 1), id=f"w{n}") for n in range(300)]
    text = told_of(START, step(1, *tasks)).draw_text()
    assert text.count("work") == 1
    assert "\u00d7300" in text


def test_ten_thousand_attempts_with_gaps_are_summarized_quickly():
    tasks = [task("work", (100.0 + 10 * n, 1.0), (105.0 + 10 * n, 5.0), id=f"w{n}", wait=4) for n in range(5000)]
    began = time.perf_counter()
    found = told_of(START, step(1, *tasks))
    assert len(found.gaps) == 5000
    assert found.took(1) == 50_000
    found.draw_text()
    assert time.perf_counter() - began < 3


def test_a_step_that_stopped_midway_has_no_length():
    found = told_of(
        START, step(1, task("a", (100, 1), (500, 2))), step(2, task("b", (502, 3))), step(3, source="update")
    )
    assert [found.took(place) for place in range(4)] == [0, None, 3, None]


def test_a_timeline_without_steps_is_drawn():
    found = told_of()
    assert found.draw_text().startswith("graph · thread t · 0 steps · 0 calls")
    assert found.draw_svg().startswith("<svg")


def test_what_the_graph_has_no_place_for_is_said_at_the_top():
    found = timeline(*threads.renamed(threads.declined))
    assert found.state == "failed"
    assert found.draw_text().startswith("The thread has pending work for parts of the graph that are gone")
    assert "The thread has pending work" in found.draw_svg().partition("</title>")[2]


def test_a_timeline_shows_itself_in_a_notebook():
    found = timeline(*threads.failed())
    shown = found._repr_mimebundle_()
    assert shown.pop("text/html") == as_image(found.draw_svg(), repr(found))
    assert shown == {"image/svg+xml": found.draw_svg(), "text/plain": found.draw_text()}
    assert repr(found).startswith("<Timeline of 'failing', thread 't': 2 steps")


def test_markup_in_names_is_escaped():
    odd = told_of(START, step(1, task("a\x1b[31m\u202e", (100, 1))))
    assert "\x1b" not in replace(odd, thread="\x07\n").draw_text()
