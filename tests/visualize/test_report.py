"""The report: its data, and the page opened in a real browser."""

from __future__ import annotations

import json
import re
import tomllib
from base64 import b64encode
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

import pytest
from broken_values import Broken
from kit import stored_threads as threads
from kit.browser import brightness, browsing, contrast, needs_chromium
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of, thread_config
from kit.stored_threads import Timeless

from stategraph import START, Command, InMemorySaver, Send, StateGraph, interrupt
from stategraph.visualize.labels import TIMES
from stategraph.visualize.render.report import draw_report, gather, report
from stategraph.visualize.render.step_data import MOST_ROWS, within
from stategraph.visualize.trace.diff import diff
from stategraph.visualize.trace.values import INSIDE

HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\">&amp;'`${1}\u202e\x00\x1b\u2028"


def data_of(page):
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def hostile():
    """Every name, text, question and error that a page shows tries to break out of it."""
    graph = StateGraph(threads.Log)
    graph.add_node(HOSTILE.replace(":", "").replace("|", "").replace("\x00", ""), threads.note({HOSTILE: HOSTILE}))
    graph.add_node("ask", lambda state: {"log": [interrupt(HOSTILE)]})
    graph.add_node("bad", failing)
    name = HOSTILE.replace(":", "").replace("|", "").replace("\x00", "")
    graph.add_edge(START, name).add_edge(name, "ask").add_edge(name, "bad")
    app = graph.compile(InMemorySaver(), name=HOSTILE)
    thread = {"configurable": {"thread_id": "<b>\u202e\"'&"}, "metadata": {"who": "<script>alert(1)</script>"}}
    with pytest.raises(ValueError, match="onerror"):
        app.invoke(EMPTY, thread)
    return app, thread


def failing(state):
    raise ValueError(HOSTILE)


# -- the data -------------------------------------------------------------------------------------------------


def test_steps_show_number_headline_nodes_and_the_state_after_them():
    found = gather(*threads.map_reduce(2, failing=()))
    assert [(s["n"], s["h"], s.get("w")) for s in found.steps] == [
        (0, "input", None), (1, "plan", ["plan"]), (2, "fetch \u00d72", ["fetch"]), (3, "gather", ["gather"]),
    ]  # fmt: skip
    states = {}
    for step in found.steps:
        states.update({key: found.values[number] for key, number in step["v"].items()})
    assert states == {"log": "['plan', 'page 0', 'page 1']", "count": "3"}


def test_equal_values_are_kept_once():
    app = threads.compiled(
        chain_of(dict, a=lambda state: {**state, "x": "same", "n": 1}, b=lambda state: {**state, "y": "same", "n": 2}),
        "twice",
    )
    app.invoke({}, CONFIG)
    found = gather(app, CONFIG)
    assert found.values.count("same") == 1


def test_changes_that_do_not_fit_are_counted():
    changes = diff({}, {str(n): "x" * 100 for n in range(30)})
    kept = list(within(changes, 700))
    assert 2 <= len(kept) <= 8
    assert kept[-1].kind == "more"
    assert int(kept[-1].after) + len(kept) - 1 == 30


def test_an_error_is_shown_with_its_notes_and_its_step():
    [error] = gather(*threads.failed()).errors
    assert (error.step, error.path, error.title) == (1, "bad", "in step 1")
    raised = error.text.partition("\n\nTraceback (most recent call last):\n")[2]
    assert raised.startswith("  File ") and "\nValueError: </script><b>boom</b>\na note\n" in raised
    assert error.text.startswith("KeyError: 'the cause'\n\nThe above exception was the direct cause")


def test_an_interrupt_is_shown_once_at_its_deepest_level():
    app = threads.nested()[0]
    thread = thread_config("other")
    app.invoke(EMPTY, thread)
    [question] = gather(app, thread).questions
    assert (question.path, question.text, question.step) == (INSIDE.join(("holder", "deep", "ask")), "deep?", 2)


def broken_map(count, broken):
    """A fan-out in which some of the tasks fail."""

    def check(state):
        if state["n"] in broken:
            raise ValueError(f"item {state['n']} is broken")
        return {"log": [f"item {state['n']}"]}

    graph = StateGraph(threads.Log).add_node("check", check)
    graph.add_conditional_edges(START, lambda state: [Send("check", {"n": n}) for n in range(count)], ["check"])
    app = threads.compiled(graph, "checks")
    with pytest.raises((ValueError, ExceptionGroup)):
        app.invoke(EMPTY, CONFIG)
    return app, CONFIG


def test_each_of_many_tasks_is_shown_with_its_input_and_result():
    found = gather(*broken_map(30, {7, 19}))
    step = found.steps[-1]
    assert step["l"] == "2 of 30 failed"
    rows = {row[3]: (row[0], row[1], row[4]) for row in step["k"]}
    assert rows["{'n': 6}"] == ("check", "done", "{'log': ['item 6']}")
    assert [given for given, (_, state, _) in rows.items() if state == "failed"] == ["{'n': 7}", "{'n': 19}"]
    assert rows["{'n': 19}"][2] == "ValueError: item 19 is broken"
    assert [error.input for error in found.errors] == ["{'n': 7}", "{'n': 19}"]


def test_a_task_that_was_sent_none_keeps_its_result_in_its_column():
    graph = StateGraph(threads.Log).add_node("check", lambda state: {"log": ["done"]})
    graph.add_conditional_edges(START, lambda state: [Send("check", None)], ["check"])
    app = threads.compiled(graph, "none")
    app.invoke(EMPTY, CONFIG)
    [row] = gather(app, CONFIG).steps[-1]["k"]
    assert row[3:] == ["None", "{'log': ['done']}"]


def test_of_very_many_tasks_failed_ones_are_always_shown():
    [*_, step] = gather(*broken_map(300, {298})).steps
    assert step["k"][-1] == ["…", "", f"{300 - MOST_ROWS} more"] and len(step["k"]) == MOST_ROWS + 1
    assert [row[3] for row in step["k"] if row[1] == "failed"] == ["{'n': 298}"]


def test_an_answered_interrupt_is_not_shown_as_open():
    assert gather(*threads.asked("yes")).questions == []


def test_an_error_that_a_later_call_got_past_is_not_called_handled():
    broken = [True]

    def fail_once(state):
        if broken:
            raise ValueError(f"broken: {broken.pop()}")
        return {"log": ["repaired"]}

    graph = graph_of(threads.Log, "S>first>last S>bad", bad=fail_once)
    app = graph.compile(InMemorySaver(), schedule="ready", on_failure="finish")
    with pytest.raises(ValueError, match="broken"):
        app.invoke(EMPTY, CONFIG)
    app.invoke(None, CONFIG)
    page = draw_report(app, CONFIG)
    assert "<h2>Earlier errors</h2>" in page and "broken: True" in page


def test_a_nested_failure_is_shown_once():
    app = threads.compiled(
        chain_of(threads.Log, holder=chain_of(threads.Log, bad=failing).compile()),
        "outer",
    )
    with pytest.raises(ValueError, match="onerror"):
        app.invoke(EMPTY, CONFIG)
    assert [error.path for error in gather(app, CONFIG).errors] == [INSIDE.join(("holder", "bad"))]


def test_objects_with_broken_methods_do_not_break_a_report():
    class Live(InMemorySaver):
        """Hands out something that cannot be touched."""

        def get_tuple(self, config):
            found = super().get_tuple(config)
            return found and spoil(found)

        def list(self, config, **kwargs):
            return (spoil(found) for found in super().list(config, **kwargs))

    def spoil(found):
        values = {**found.checkpoint["channel_values"], "count": Broken()}
        return found._replace(checkpoint={**found.checkpoint, "channel_values": values})

    app = chain_of(threads.Log, a=threads.note("a")).compile(Live())
    app.invoke(EMPTY, CONFIG)
    assert "<Broken>" in gather(app, CONFIG).values


# -- the page as text -----------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    app, thread = threads.asked()
    path = report(app, thread, str(tmp_path / "thread.html"))
    assert path == tmp_path / "thread.html"
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=|url\((?!#)|@import|fetch\(|XMLHttp""", page)
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}


def test_the_files_of_the_page_are_in_the_wheel():
    root = Path(__file__).resolve().parents[2]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    needed = {path.name for path in (root / "visualize" / "render").glob("report.*") if path.suffix != ".py"}
    assert needed == {"report.css", "report.html", "report.js"}
    assert all(any(fnmatch(name, kind) for kind in listed["stategraph.visualize.render"]) for name in needed)


def test_the_page_has_one_script_that_may_run_with_each_component_once():
    page = draw_report(*threads.asked())
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in policy and "require-trusted-types-for" in policy
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script, re.MULTILINE)
    assert {"make", "drawHead", "choose"} <= set(names)
    assert len(names) == len(set(names)), "components and report.js must not use a name twice"
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)


def test_no_text_of_a_thread_becomes_markup():
    page = draw_report(*hostile())
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert "\x00" not in page
    page.encode("utf-8")


def test_bidi_marks_are_escaped():
    page = draw_report(*hostile())
    shown = page[: page.index('<div class="columns">')] + page[page.index('id="told"') : page.index('id="data"')]
    assert "\u202e" not in re.sub(r'data-node="[^"]*"', "", shown)  # ids stay as they are
    for step in data_of(page)["steps"]:
        assert "\u202e" not in json.dumps({**step, "w": []}, ensure_ascii=False)


def test_a_text_of_a_million_characters_is_shortened_and_the_page_says_so():
    app = threads.compiled(chain_of(threads.Log, a=threads.note("x" * 1_000_000)), "big")
    app.invoke(EMPTY, CONFIG)
    page = draw_report(app, CONFIG)
    assert len(page) < 150_000
    assert "(1,000,000 characters)" in page
    assert "Values are shortened to 6,000 characters" in page


@pytest.mark.parametrize("make", [threads.map_reduce, threads.asked, threads.failed, threads.forked, threads.nested])
def test_every_node_of_a_step_can_be_found_in_the_graph(make):
    page = draw_report(*make())
    graph = page[page.index('id="graph"') : page.index('id="told"')]
    drawn = set(re.findall(r'data-node="([^"]+)"', graph))
    assert {node for step in data_of(page)["steps"] for node in step.get("w", ())} <= drawn


def test_a_badge_says_how_many_tasks_failed():
    assert ">1 of 3 failed</text>" in draw_report(*threads.looping(1, 3))
    assert f">{TIMES}3</text>" in draw_report(*threads.looping(0, 3))


def test_an_error_handler_has_one_name_in_the_whole_page():
    page = draw_report(*threads.rescued())
    assert ">rescue</text>" in page and "on error of" not in page


@pytest.mark.parametrize("node", [threads.declined, threads.confirmed])
def test_a_thread_of_an_older_graph_is_not_called_done_and_shows_its_error_or_question(node):
    page = draw_report(*threads.renamed(node))
    assert 'class="chip done"' not in page
    assert page.count("The thread has pending work") == 1
    assert page.index("The thread has pending work") < page.index('id="time"')
    assert "card declined" in page or "charge it?" in page


def test_a_thread_without_times_has_a_page():
    app, thread = threads.asked()
    assert "times not stored" in draw_report(app.copy({"checkpointer": Timeless(app.checkpointer)}), thread)


def test_a_thread_that_cannot_be_read_is_an_error_and_no_file(tmp_path):
    app, _ = threads.asked()
    with pytest.raises(ValueError, match="thread"):
        report(app, {}, tmp_path / "x.html")
    with pytest.raises(ValueError, match="nothing is stored for thread 'other'"):
        report(app, thread_config("other"), tmp_path / "x.html")
    with pytest.raises(TypeError, match="compile"):
        report(StateGraph(threads.Log), CONFIG, tmp_path / "x.html")  # type: ignore[arg-type]
    assert not (tmp_path / "x.html").exists()


# -- the page in a browser ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium():
    with browsing() as browser:
        yield browser


@pytest.fixture
def page(request, tmp_path):
    """Opens a thread's report. Afterwards: the console said nothing, and nothing but the file was loaded."""
    browser = request.getfixturevalue("chromium")
    browser.said.clear()
    browser.asked_for.clear()
    path = tmp_path / "report.html"

    def opened(made: threads.StoredThread):
        report(*made, path)
        browser.open(path)
        return browser

    yield opened
    assert browser.said == []
    assert {address.partition("#")[0] for address in browser.asked_for} == {path.as_uri()}


def heads(browser):
    return browser.texts("#steps .head .h")


def classes(browser, node):
    found = browser.run(f"document.querySelector('#graph [data-node=\"{node}\"]').getAttribute('class')")
    return set(found.split())


@needs_chromium
def test_clicking_a_step_shows_what_it_changed_and_the_state_after_it(page):
    browser = page(threads.map_reduce())
    browser.click("#steps li:nth-child(3) .head")
    assert browser.texts("#steps .diff b") == ["log"]
    assert "+ 'page 8'" in browser.texts("#steps .diff pre")[0]
    browser.click("#steps .state > summary")
    browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    [shown] = browser.texts("#steps .state details, #steps .state p")
    assert shown.startswith("log") and "'page 3'" in shown and "count" not in shown


@needs_chromium
def test_clicking_a_step_marks_the_nodes_that_ran_and_its_column(page):
    browser = page(threads.asked("yes"))
    browser.click("#steps li:nth-child(3) .head")
    assert [node for node in ("draft", "ask", "check", "publish") if "ran" in classes(browser, node)] == [
        "ask",
        "check",
    ]
    assert browser.run("document.querySelector('#time .step.on').dataset.step") == "2"
    browser.click("#steps li:nth-child(3) .head")
    assert browser.run("document.querySelectorAll('#graph .ran, #time .on, #steps .body').length") == 0


@needs_chromium
def test_clicking_a_node_shows_only_its_steps_and_fades_the_others(page):
    browser = page(threads.asked("yes"))
    browser.click('#graph [data-node="ask"]')
    assert browser.texts("#steps .head .n") == ["2"]
    assert browser.texts("#filter") == ["only ask ✕"]
    assert "faded" not in classes(browser, "ask") and "faded" in classes(browser, "draft")
    faded = browser.run(
        "[...document.querySelectorAll('#time .bar')].filter(b => !b.matches('.faded')).map(b => b.dataset.node)"
    )
    assert faded == ["ask"]
    browser.click("#filter")
    assert browser.texts("#count") == ["4 steps"]


@needs_chromium
def test_clicking_the_box_of_a_nested_graph_shows_the_steps_of_all_inside(page):
    browser = page(threads.nested())
    browser.click('#graph [data-node="holder:deep:ask"]')
    assert browser.texts("#steps .head .n") == ["2"]
    assert "faded" not in classes(browser, "holder")
    assert "faded" in classes(browser, "holder:first")


@needs_chromium
def test_clicking_the_timeline_opens_the_step(page):
    browser = page(threads.map_reduce())
    browser.click('#time .bar[data-node="gather"] rect')
    assert browser.texts("#steps li.on .n") == ["3"]
    assert browser.run("location.hash") == "#step-3"


@needs_chromium
def test_an_error_and_a_question_lead_to_their_step(page):
    browser = page(threads.failed())
    assert "boom" in browser.texts(".failure pre")[0]
    browser.click(".failure button")
    assert browser.texts("#steps li.on .n") == ["1"]
    browser = page(threads.asked())
    browser.click(".question button")
    assert browser.texts("#steps li.on .n") == ["2"]


@needs_chromium
def test_the_keyboard_is_enough(page):
    browser = page(threads.asked("yes"))
    browser.press("j")
    browser.press("j")
    browser.press("Enter")
    assert browser.texts("#steps li.on .n") == ["1"]
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.querySelector('.n').textContent") == "2"
    browser.press("/")
    for letter in "publish":
        browser.press(letter)
    assert browser.run("document.getElementById('search').value") == "publish"
    assert browser.texts("#steps .head .n") == ["3"]
    browser.press("Escape")
    assert browser.texts("#count") == ["4 steps"]
    browser.run("document.querySelector('#graph [data-node=\"draft\"]').focus()")
    browser.press("Enter")
    assert browser.texts("#steps .head .n") == ["1"]


@needs_chromium
def test_search_finds_what_a_step_changed(page):
    browser = page(threads.asked("a <rare> word"))
    browser.click("#search")
    for letter in "<RARE> W":
        browser.press(letter)
    assert browser.texts("#steps .head .n") == ["2"]


@needs_chromium
def test_two_thousand_steps_are_paged(page):
    browser = page(threads.long(2000))
    assert browser.texts("#page") == ["page 1 of 41"]
    assert len(heads(browser)) == 50
    browser.press("]")
    assert browser.texts("#steps .head .n")[0] == "50"
    browser.run("document.querySelectorAll('#time .step')[50].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    first = int(browser.run("document.querySelectorAll('#time .step')[50].dataset.step"))
    assert browser.texts("#steps li.on .n") == [str(first)]
    browser.click("#steps li.on .state > summary")
    browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert f"count {first}".replace(" ", "") in [text.replace(" ", "") for text in browser.texts("#steps .state p")]


@needs_chromium
def test_ten_thousand_steps_open_within_two_seconds(tmp_path, chromium):
    path = report(*threads.long(10_000, growing=False), tmp_path / "long.html")
    assert path.stat().st_size < 5_000_000
    assert chromium.open(path) < 2
    assert chromium.texts("#count") == ["10,001 steps"]


@needs_chromium
def test_hostile_text_stays_text(page):
    browser = page(hostile())
    for number in range(len(heads(browser))):
        browser.click(f"#steps li:nth-child({number + 1}) .head")
        browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.run("document.querySelectorAll('img, main script').length") == 0
    assert "onerror" in browser.run("document.title") and browser.run("document.title") != "pwned"
    assert any("onerror" in text for text in browser.texts("#steps .state"))
    browser.run(
        "document.querySelector('#graph .node[data-node*=onerror]').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert browser.texts("#steps .head .n") == ["1"]


@needs_chromium
def test_an_address_with_a_step_opens_it(page, tmp_path):
    browser = page(threads.asked("yes"))
    browser.run("location.hash = 'step-2'")
    browser.open_again()
    assert browser.texts("#steps li.on .n") == ["2"]


@needs_chromium
def test_other_branches_are_listed_with_links_to_their_fork(page):
    browser = page(threads.forked())
    assert "2 checkpoints" in browser.texts("#branches td")
    browser.click("#branches button")
    assert browser.texts("#steps li.on .n") == ["1"]
    assert browser.texts("#steps li.on .f") == ["1 branch"]


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_is_dark_on_light_or_light_on_dark_as_the_reader_likes(dark, tmp_path):
    path = report(*threads.asked(), tmp_path / "report.html")
    with browsing(dark=dark) as browser:
        browser.open(path)
        for selector in ("body", "#told", ".question", "#graph", "#time"):
            ink, paper = browser.run(
                f"(() => {{ const s = getComputedStyle(document.querySelector('{selector}')); return [s.color, s.backgroundColor]; }})()"
            )
            assert contrast(ink, paper) > 7, selector
        names = "getComputedStyle(document.querySelector('#time .row text')).fill"
        assert (
            contrast(browser.run(names), browser.run("getComputedStyle(document.querySelector('#time .band')).fill"))
            > 7
        )
        assert (brightness(browser.run("getComputedStyle(document.body).backgroundColor")) < 0.2) == dark


@needs_chromium
def test_a_resumed_thread_shows_the_answer_with_the_interrupt(page):
    app, thread = threads.asked()
    app.invoke(Command(resume="fine"), thread)
    browser = page((app, thread))
    browser.click("#steps li:nth-child(3) .head")
    assert "asked: {'publish?': 'draft'}" in browser.texts("#steps td")
    assert "+ 'fine'" in browser.texts("#steps .diff pre")[0]
