"""The drawing as a web page: it is self-contained, its legend fits, and it can be moved, zoomed and searched, in a
real browser.
"""

from __future__ import annotations

import re
import warnings
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from example_graphs import (
    DRAWN,
    error_handlers,
    graph,
    hostile_names,
    joined,
    map_reduce,
    node,
    tool_agent,
)
from kit.browser import Browser, browsing, needs_chromium
from timelines import START, step, task, told_of

from stategraph.visualize.labels import EDGE_KINDS, NODE_KINDS


def page(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DRAWN[name]().draw_html(**options)


class Elements(HTMLParser):
    """The tags of a page with their attributes, and the texts of its legend."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"


def legend(text):
    return re.findall(r"<span>(.*?)</span>", text.partition("<aside>")[2])


@pytest.mark.parametrize("name", DRAWN)
def test_a_page_needs_nothing_but_itself(name):
    text = page(name)
    elements = Elements(text)
    assert not elements.open
    assert not [tag for tag, attrs in elements.found if tag in ("link", "img", "iframe", "object") or "src" in attrs]
    assert not re.findall(r"url\(|@import|https?://", text.replace("http://www.w3.org/2000/svg", ""))
    svg = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert svg is not None
    ElementTree.fromstring(svg[0])


def test_names_cannot_break_out():
    name = "</script><script>alert(1)</script><!--"
    drawn = joined(graph(name)).compile(name=name).get_graph().draw_html()
    assert drawn.count("<script>") == 1 and "<!--" not in drawn and "alert(1)</" not in drawn.replace("&lt;", "")
    assert Elements(hostile_names().draw_html()).open == []


def test_the_legend_explains_what_occurs_and_nothing_else():
    assert legend(page("chain")) == [EDGE_KINDS["plain"]]
    assert legend(page("map_reduce")) == [EDGE_KINDS["plain"], EDGE_KINDS["send"]]
    assert legend(page("error_handlers")) == [NODE_KINDS["handler"], EDGE_KINDS["plain"], EDGE_KINDS["error"]]
    assert legend(page("breakpoints"))[0] == NODE_KINDS["breakpoint"]


def test_a_fixed_theme_cannot_be_switched():
    dark = page("chain", theme="dark")
    assert '<html lang="en" data-theme="dark">' in dark and 'id="theme"' not in dark
    assert 'id="theme"' in page("chain")


def test_a_wrong_theme_is_refused():
    with pytest.raises(ValueError, match="theme must be one of auto, light, dark"):
        page("chain", theme="blue")


def test_the_page_is_written_where_it_is_asked_to(tmp_path):
    text = map_reduce().draw_html(tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == text


# -- in a browser ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(size=(1000, 700)) as browser:
        yield browser


@pytest.fixture
def shown(browser, tmp_path):
    """The page of the tool agent."""
    tool_agent().draw_html(tmp_path / "agent.html")
    browser.said.clear()
    browser.asked_for.clear()
    browser.open(tmp_path / "agent.html")
    return browser


def view(browser: Browser):
    return [float(number) for number in browser.run("document.querySelector('#view>svg').getAttribute('viewBox')").split()]


def hover(browser, selector):
    place = browser.run(
        f"(() => {{ const b = document.querySelector('{selector}').getBoundingClientRect();"
        "return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
    )
    browser.tell("Input.dispatchMouseEvent", type="mouseMoved", **place)


@needs_chromium
def test_a_long_timeline_begins_at_its_left_in_full_size_and_a_row_keeps_its_colour(browser, tmp_path):
    steps = [step(n, task("tick" if n % 2 else "tock", (100 + n, 1))) for n in range(1, 201)]
    told_of(START, *steps).draw_html(tmp_path / "time.html")
    browser.open(tmp_path / "time.html")
    assert view(browser)[0] == 0 and view(browser)[2] == browser.run("document.querySelector('main').clientWidth")
    hover(browser, ".row[data-node=tick] text")
    lit = browser.run("[...document.querySelectorAll('.lit')].map(e => e.dataset.node)")
    assert {*lit} == {"tick"} and len(lit) == 101
    browser.click("#fit")
    assert view(browser)[2] > 10_000


@needs_chromium
def test_a_wide_graph_fills_the_page(browser, tmp_path):
    """The height that the picture has elsewhere follows its width; here both are those of the page."""
    builder = graph("plan")
    for number in range(30):
        builder.add_node(f"n{number}", node).add_edge("plan", f"n{number}")
    builder.compile().get_graph().draw_html(tmp_path / "wide.html")
    browser.open(tmp_path / "wide.html")
    sizes = "['#view', '#view>svg'].map(s => document.querySelector(s).getBoundingClientRect()).map(b => [b.width, b.height])"
    page, picture = browser.run(sizes)
    assert picture == page


@needs_chromium
def test_the_page_opens_without_errors_or_requests(shown):
    assert shown.said == [] and len(shown.asked_for) == 1
    assert shown.texts("h1") == ["StateGraph"] and shown.texts("header p") == ["2 nodes, 4 edges"]
    boxes = shown.run("[...document.querySelectorAll('#view .node')].map(e => e.getBoundingClientRect().toJSON())")
    area = shown.run("document.querySelector('#view').getBoundingClientRect().toJSON()")
    assert len(boxes) == 4
    assert all(area["left"] <= b["left"] and b["right"] <= area["right"] and area["top"] <= b["top"] and b["bottom"] <= area["bottom"] for b in boxes)


@needs_chromium
def test_buttons_and_keys_zoom_and_fit(shown):
    whole = view(shown)
    shown.click("#in")
    assert view(shown)[2] == pytest.approx(whole[2] / 1.25)
    shown.click("#out")
    assert view(shown) == pytest.approx(whole, abs=0.01)
    shown.press("+")
    shown.press("ArrowDown")
    assert view(shown) != pytest.approx(whole)
    shown.click("#fit")
    assert view(shown) == pytest.approx(whole)


@needs_chromium
def test_the_wheel_zooms_at_the_pointer_and_dragging_moves(shown):
    whole = view(shown)
    shown.tell("Input.dispatchMouseEvent", type="mouseWheel", x=300, y=300, deltaX=0, deltaY=-200)
    assert view(shown)[2] < whole[2]
    before = view(shown)
    for kind, x in (("mousePressed", 300), ("mouseMoved", 350), ("mouseReleased", 350)):
        shown.tell("Input.dispatchMouseEvent", type=kind, x=x, y=300, button="left", buttons=1, clickCount=1)
    moved = view(shown)
    assert moved[0] < before[0] and moved[2] == before[2] and moved[1] == pytest.approx(before[1])


@needs_chromium
def test_what_is_pointed_at_keeps_its_colour_with_its_edges_and_neighbours(shown):
    lit = "[...document.querySelectorAll('#view .lit')].map(e => e.dataset.node || e.dataset.source + ' ' + e.dataset.target)"
    hover(shown, '#view [data-node="call_tool"]')
    assert sorted(shown.run(lit)) == ["call_tool", "call_tool think", "think", "think call_tool"]
    hover(shown, "header")
    assert shown.run("document.querySelector('#view>svg').classList.contains('asked')") is False


@needs_chromium
def test_the_theme_can_be_switched(shown):
    ground = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.querySelector('#view .page')).fill"
    light = shown.run(ground)
    shown.click("#theme")
    dark = shown.run(ground)
    assert dark != light and len(set(dark.split("rgb"))) == 2  # page and drawing alike
    shown.click("#theme")
    assert shown.run(ground) == light


@needs_chromium
def test_the_samples_of_the_legend_are_drawn_like_the_drawing(browser, tmp_path):
    error_handlers().draw_html(tmp_path / "x.html")
    browser.open(tmp_path / "x.html")
    stroke = "getComputedStyle(document.querySelector('{} .error .line')).stroke"
    assert browser.run(stroke.format("#view")) == browser.run(stroke.format("aside"))
