"""A run in a notebook: what the cell shows during the run, and what the saved notebook keeps."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from base64 import b64decode

import pytest

from stategraph.visualize.fold import fit
from stategraph.visualize.labels import TIMES
from stategraph.visualize.layout.pixels import arrange
from stategraph.visualize.live.notebook import describe_run, draw_picture, fit_mark
from stategraph.visualize.live.progress import Progress, TaskEnded, TaskStarted
from stategraph.visualize.model import GraphModel, GraphNode
from stategraph.visualize.svg import Mark

SHAPE = GraphModel("g", (GraphNode("__start__", "START", "start"), GraphNode("a", "a & <b>"), GraphNode("c", "c")), ())
SVG = "{http://www.w3.org/2000/svg}"


def progressed(*events):
    progress = Progress(SHAPE)
    for event in events:
        progress.take(event)
    return progress


def texts(svg):
    return [element.text or "" for element in ET.fromstring(svg).iter(SVG + "text")]


def drawn(progress: Progress, now=0.0):
    return draw_picture(progress, now, fit(SHAPE))


# -- the picture ----------------------------------------------------------------------------------------------


def test_the_picture_is_one_svg_with_headline_graph_and_marks():
    svg = drawn(progressed(*[TaskStarted(0.0, (), "a")] * 200, *[TaskEnded(1.0, (), "a")] * 3), 1.5)
    assert svg.count("<svg") == svg.count("</svg>") == 1
    said = texts(svg)
    assert "superstep 1 · 3 of 200 tasks · 1.5 s" in said and "3/200" in said and "a & <b>" in said
    assert 'class="node is-running" data-node="a"' in svg and 'class="node is-waiting" data-node="c"' in svg


def test_the_bar_has_rate_and_remaining_time():
    progress = progressed(*[TaskStarted(0.0, (), "a")] * 200, *[TaskEnded(1.0, (), "a")] * 20)
    svg = drawn(progress, 2.0)
    assert "10/s · about 18 s left" in texts(svg)
    bar, text = (next(e for e in ET.fromstring(svg).iter(SVG + kind) if e.get("y") == y) for kind, y in (("rect", "36"), ("text", "39")))
    assert float(bar.get("x", "")) + float(bar.get("width", "")) < float(text.get("x", ""))
    assert describe_run(progress, 2.0).splitlines()[0].endswith(" · 2 s · 10/s · about 18 s left")


def test_interrupts_and_errors_are_shown_below_the_graph():
    progress = progressed(TaskStarted(0.0, (), "a"), TaskEnded(0.0, (), "a", paused=True, questions=(("1", "why " * 200),)))
    progress.end(0.0, "failed", "ValueError: \x00 <no>")
    said = texts(drawn(progress))
    assert said[-1] == "ValueError: \ufffd <no>"
    asked = [line for line in said if "why why" in line]
    assert asked[0].startswith("a & <b> asks: why") and len(asked) == 3 and asked[-1].endswith("…")


def test_the_picture_is_as_high_as_what_is_in_it():
    plain, failed = progressed(), progressed()
    failed.end(0.0, "failed", "ValueError: no")
    heights = [float(ET.fromstring(drawn(progress)).get("height", "")) for progress in (plain, failed)]
    assert heights[0] < heights[1]
    for element in ET.fromstring(drawn(failed)).iter(SVG + "text"):
        assert float(element.get("y", "0")) < heights[1]


def test_where_no_picture_can_be_shown_the_same_is_said_describe_run():
    progress = progressed(*[TaskStarted(0.0, (), "a"), TaskEnded(0.0, (), "a")] * 2)
    progress.end(2.0, "failed", "ValueError: no")
    assert describe_run(progress, 9.0).splitlines() == [
        "failed in superstep 1 · 2 tasks · 2 s", f"a & <b>: done · {TIMES}2", "c: waiting", "ValueError: no",
    ]  # fmt: skip


def test_the_graph_is_centred_above_the_bar():
    layout = arrange(SHAPE)
    svg = draw_picture(Progress(SHAPE), 0.0, fit(SHAPE))
    width = float(ET.fromstring(svg).get("width", "0"))
    assert f"translate({(width - layout.width) / 2:g} " in svg


def test_of_a_mark_that_is_too_long_for_its_node_what_failed_is_shown():
    assert fit_mark(Mark("failed", "206/300 · 1 failed · ValueError")).text == "1 failed"
    assert fit_mark(Mark("failed", "stopped")).text == "stopped"
    assert fit_mark(Mark("running", "3/300")).text == "3/300"


# -- in a real kernel -----------------------------------------------------------------------------------------

GRAPH = """
import threading
from typing import TypedDict
from stategraph import END, START, StateGraph
from stategraph.visualize import awatch, watch

class State(TypedDict):
    n: int

def build(body):
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"n": state["n"] + 1})
    builder.add_node("second", body)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile()

def second(state):
    print("printed by a node")
    return {"n": state["n"] * 10}

def fail(state):
    raise ValueError("no luck")
"""


@pytest.fixture(scope="module")
def cells():
    """The outputs of a notebook's cells, after it was run by nbclient; the messages of each cell as they came."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    sources = [
        GRAPH,
        "watch(build(second), {'n': 1})",
        "await awatch(build(second), {'n': 2})",
        "watch(build(fail), {'n': 1})",
        # Slow enough to be drawn while it runs: the node waits for the view.
        "from stategraph.visualize.live import notebook\n"
        "drawn, paint = threading.Event(), notebook.draw_picture\n"
        "def telling(progress, *rest):\n"
        "    svg = paint(progress, *rest)\n"
        "    if 'node is-running\" data-node=\"second' in svg: drawn.set()\n"
        "    return svg\n"
        "notebook.draw_picture = telling\n"
        "watch(build(lambda state: {'n': int(drawn.wait(10))}), {'n': 1})",
        "build(second).invoke({'n': 3}, progress=True)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    messages = {}

    class Client(nbclient.NotebookClient):  # type: ignore[misc,name-defined]
        def process_message(self, msg, cell, cell_index):
            messages.setdefault(cell_index, []).append(msg)
            return super().process_message(msg, cell, cell_index)

    Client(notebook, timeout=60, allow_errors=True, kernel_name="python3").execute()
    return notebook.cells, messages


def pictures(cell):
    return [output for output in cell.outputs if output.output_type == "display_data"]


@pytest.mark.trial
def test_the_saved_notebook_keeps_the_last_picture_and_the_result(cells):
    cell = cells[0][1]
    (output,) = pictures(cell)
    assert set(output.data) == {"text/html", "image/svg+xml", "text/plain"}
    assert output.data["text/html"].startswith('<img alt="done · 2 supersteps')
    assert texts(output.data["image/svg+xml"])[-1].startswith("done · 2 supersteps · 2 tasks · ")
    assert output.data["text/plain"].splitlines()[1:] == ["first: done", "second: done"]
    assert [o.data["text/plain"] for o in cell.outputs if o.output_type == "execute_result"] == ["{'n': 20}"]
    assert [o.output_type for o in cell.outputs] == ["display_data", "stream", "execute_result"]
    assert cell.outputs[1].text == "printed by a node\n"


@pytest.mark.trial
def test_a_call_with_progress_is_shown_below_its_cell(cells):
    cell = cells[0][5]
    (output,) = pictures(cell)
    assert texts(output.data["image/svg+xml"])[-1].startswith("done · 2 supersteps · 2 tasks · ")
    assert [o.data["text/plain"] for o in cell.outputs if o.output_type == "execute_result"] == ["{'n': 40}"]


@pytest.mark.trial
def test_a_coroutine_is_watched_on_the_loop_of_the_kernel(cells):
    (output,) = pictures(cells[0][2])
    assert texts(output.data["image/svg+xml"])[-1].startswith("done · 2 supersteps")
    assert [o.data["text/plain"] for o in cells[0][2].outputs if o.output_type == "execute_result"] == ["{'n': 30}"]


@pytest.mark.trial
def test_a_run_that_fails_leaves_its_picture_above_the_error(cells):
    shown, error = [o for o in cells[0][3].outputs if o.output_type != "stream"]
    assert "ValueError: no luck" in texts(shown.data["image/svg+xml"])
    assert error.output_type == "error" and error.ename == "ValueError"


@pytest.mark.trial
def test_the_picture_is_updated_in_place_during_the_run(cells):
    (output,) = pictures(cells[0][4])
    assert texts(output.data["image/svg+xml"])[-1].startswith("done")
    sent = [m["content"]["data"] for m in cells[1][4] if m["msg_type"] in ("display_data", "update_display_data")]
    assert [m["msg_type"] for m in cells[1][4]].count("display_data") == 1
    assert all(data["text/html"].startswith("<img ") for data in sent)
    assert any('is-running" data-node="second' in within(data["text/html"]) for data in sent)


def within(image):
    return b64decode(image.partition("base64,")[2].partition('"')[0]).decode()
