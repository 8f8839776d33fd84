"""Laws of reports and timelines, on random graphs: nothing is lost, and everything can be drawn."""

from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.random_graphs import graphs
from kit.uninterrupted_runs import Thread, look, unbroken

from stategraph.visualize.render.report import draw_report
from stategraph.visualize.render.timeline import timeline
from stategraph.visualize.trace.changes import changes

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")  # random graphs need not make sense


def finished(graph, drive, failing):
    """The thread after as many resumes as it needs; a graph that cannot come to its end by itself is left out."""
    unbroken(graph, drive)
    thread = Thread(graph, drive, *failing)
    thread.invoke(thread.input)
    thread.finish()
    return thread


@pytest.mark.trial
@look(0.4)
@given(graph=graphs(), failing=st.lists(st.integers(1, 12), max_size=3))
def test_every_call_of_a_node_is_a_bar(graph, failing, drive):
    thread = finished(graph, drive, failing)
    bars = Counter(bar.task for bar in timeline(thread.app, thread.config).bars if bar.attempts)
    calls = thread.calls
    if drive.is_async:  # a coroutine that was cancelled because a sibling failed leaves no attempt behind
        assert bars >= Counter(calls.count.keys()) + calls.failed
    else:
        assert bars >= calls.count


@pytest.mark.trial
@look(0.4)
@given(graph=graphs(), failing=st.lists(st.integers(1, 12), max_size=3))
def test_every_stored_step_is_in_the_report_once_and_its_changes_lead_from_state_to_state(graph, failing, drive):
    thread = finished(graph, drive, failing)
    found = changes(thread.app, thread.config)
    history = reversed([*thread.app.get_state_history(thread.config)])
    stored = [snapshot for snapshot in history if (snapshot.metadata or {})["source"] == "loop"]
    assert [step.checkpoint for step in found.steps] == [s.config["configurable"]["checkpoint_id"] for s in stored]
    before = {}
    for step, snapshot in zip(found.steps, stored, strict=True):
        assert bool(step.changes) == (before != snapshot.values)
        before = snapshot.values


@look(0.2)
@given(graph=graphs(), failing=st.lists(st.integers(1, 12), min_size=1, max_size=2))
def test_every_thread_can_be_drawn_at_every_stop(graph, failing, drive):
    thread = Thread(graph, drive, *failing)
    thread.invoke(thread.input)
    found = timeline(thread.app, thread.config)
    ElementTree.fromstring(found.draw_svg())
    assert all(row.rpartition(":")[2] in found.draw_text() for row in found.rows)
    assert draw_report(thread.app, thread.config).endswith("</html>\n")
