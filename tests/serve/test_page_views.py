"""The views of one thread on the server's page, in a real browser and by their routes: steps, graph, timeline, branches."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from contextlib import ExitStack

import httpx
import pytest
from kit import stored_threads as threads
from kit.browser import browsing, contrast, needs_chromium
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of
from paged import HOSTILE, Reader
from serving import Gates, make_flow, serving

from stategraph import START, Budget, InMemorySaver, Send, StateGraph, interrupt
from stategraph.serve import create_app
from stategraph.visualize.render.thread_pages import ThreadPages
from stategraph.visualize.trace.index import ThreadIndex

VIEWS = ["steps", "graph", "timeline", "branches"]
DRAWN = {
    "steps": ".step-detail .chk", "graph": ".graph-picture svg", "timeline": ".time-picture svg", "branches": ".branch-list",
}  # fmt: skip


def serve_thread(stack, app, thread_id="t", **options):
    """A server with one graph on whose thread something has run already."""
    url = stack.enter_context(serving(create_app({"g": app}, checkpointer=app.checkpointer, **options)))
    client = stack.enter_context(httpx.Client(base_url=url, timeout=30))
    client.post("/threads", json={"thread_id": thread_id, "metadata": {"graph_id": "g"}}).raise_for_status()
    return client


# -- the routes -----------------------------------------------------------------------------------------------


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.mark.trial
@pytest.mark.parametrize(("path", "status"), [
    ("steps?first=-1", 422), ("steps?count=x", 422), ("steps?count=9999999999", 422), ("steps?tip=other", 404),
    ("step?at=other", 404), ("task?at=open&id=x", 404), ("value?at=other&key=log", 404), ("compare?one=a&other=b", 404),
    ("find?at=other", 404), ("other", 404),
    (f"logs?after={'9' * 5000}", 422), ("logs?after=x", 422),
])  # fmt: skip
def test_what_cannot_be_shown_is_said(stack, path, status):
    client = serve_thread(stack, threads.asked("yes")[0])
    found = client.get(f"/page/threads/t/{path}")
    assert found.status_code == status and found.json()["detail"]


def test_a_thread_on_which_nothing_ran_has_no_views(stack):
    client = serve_thread(stack, threads.asking())
    client.post("/threads", json={"thread_id": "new"}).raise_for_status()
    assert client.get("/page/threads/new/steps").json()["detail"] == "no graph has run on this thread yet"
    client.post("/threads", json={"thread_id": "empty", "metadata": {"graph_id": "g"}}).raise_for_status()
    report = client.get("/page/threads/empty/report")
    assert report.status_code == 404 and "empty" in report.json()["detail"]
    assert client.get("/page/threads/t/steps").json()["count"] == 0  # its graph is known, and has stored nothing
    assert client.get("/page/threads/other/steps").status_code == 404


def test_each_graph_has_its_own_drawing_though_neither_was_compiled_with_a_name(stack):
    graphs = {
        name: StateGraph(threads.Log).add_node(node, threads.note(node)).add_edge(START, node).compile()
        for name, node in {"trips": "plan", "slow": "nap"}.items()
    }
    url = stack.enter_context(serving(create_app(graphs)))
    client = stack.enter_context(httpx.Client(base_url=url, timeout=30))
    for name, node in {"trips": "plan", "slow": "nap"}.items():
        client.post("/threads", json={"thread_id": name, "metadata": {"graph_id": name}}).raise_for_status()
        assert f'data-node="{node}"' in client.get(f"/page/threads/{name}/graph").text
        assert client.get(f"/page/threads/{name}/nodes").json()["name"] == name


def test_threads_are_read_off_the_event_loop(stack, monkeypatch):
    names = []
    read = ThreadPages.steps

    def steps(self: ThreadPages, *args, **kwargs):
        names.append(threading.current_thread().name)
        return read(self, *args, **kwargs)

    monkeypatch.setattr(ThreadPages, "steps", steps)
    client = serve_thread(stack, threads.asked("yes")[0])
    assert client.get("/page/threads/t/steps").json()["count"] == 4
    assert [name.rpartition("_")[0] for name in names] == ["stategraph-views"]


def test_a_saver_without_sync_methods_is_an_error(stack):
    class Async(InMemorySaver):
        def list(self, *args, **kwargs):
            raise NotImplementedError("use alist")

    app, _ = threads.asked("yes")
    client = serve_thread(stack, app.copy({"checkpointer": Async()}))
    found = client.get("/page/threads/t/steps")
    assert (found.status_code, found.json()["detail"]) == (501, "the views need a checkpointer with sync methods: use alist")


# -- the page -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium():
    with browsing() as browser:
        yield browser


Show = Callable[..., Reader]


@pytest.fixture
def show(chromium, stack):
    """Opens a view of a thread. Afterwards: the console said nothing, so no policy forbade anything."""
    chromium.said.clear()
    chromium.asked_for.clear()
    readers = []

    def opened(app, view="steps", **options):
        client = serve_thread(stack, app, **options)
        reader = Reader(chromium, str(client.base_url).rstrip("/"))
        readers.append(reader)
        reader.go(f"#/thread/t/{view}")
        reader.until(f"document.querySelector({DRAWN[view.partition('/')[0]]!r})")
        return reader

    yield opened
    for reader in readers:
        reader.leave()
    urls = tuple(reader.url for reader in readers)
    # What it says of a server of an earlier test may come late.
    assert [each for each in chromium.said if "http" not in each or any(url in each for url in urls)] == []
    assert all(each.startswith((*urls, "data:,", "about:")) for each in chromium.asked_for)


def choose_step(reader, number):
    """Click the step with a number, and wait until it is shown."""
    reader.browser.run(
        f"[...document.querySelectorAll('.step-row .head')].find(e => e.querySelector('.n').textContent === '{number}').click()"
    )
    reader.until(f"document.querySelector('.detail-head h2').textContent === 'Step {number}'")


def classes(reader, node):
    found = reader.browser.run(f"document.querySelector('.graph-picture [data-node=\"{node}\"]').getAttribute('class')")
    return {each for each in found.split() if each.startswith(("is-", "faded"))}


SAID = {"role": "assistant", "content": "hi", "response_metadata": {"model_name": "small"}}
USED = {"prompt_tokens": 1000, "completion_tokens": 100}


def test_what_models_have_used_is_priced_by_message_step_and_run(stack):
    """By the table of the graph's budget; what a hostile message says of its use is ignored."""
    wrong = ["x", {"prompt_tokens": "many"}, {"prompt_tokens": [1]}, 3]
    messages = [{**SAID, "usage": USED, "id": "a"}, *({**SAID, "usage": usage, "id": str(usage)} for usage in wrong), 7, None]
    graph = StateGraph(dict).add_node("model", lambda state: {"log": [*state["log"], *messages]})
    app = graph.add_edge(START, "model").compile(InMemorySaver(), budget=Budget(usd=9, prices={"small": (2.0, 10.0)}))
    for _ in range(2):
        app.invoke(EMPTY, CONFIG)
    client = serve_thread(stack, app)
    told = client.get("/page/threads/t/steps").json()
    cost = [1000, 100, pytest.approx(0.003)]
    assert ([each.get("$") for each in told["steps"]], told["runs"]) == ([None, cost, None, cost], [0, 2])
    assert client.get("/page/threads/t/run?number=2").json()["$"] == cost
    assert client.get("/page/threads/t/run?number=3").status_code == 404
    usage = client.get("/page/threads/t/usage?key=log").json()
    assert (usage["each"], usage["all"]) == ([cost, *[[]] * 6], cost)
    assert client.get("/page/threads/t/usage?key=nothing").json() == {"each": [], "all": []}


@needs_chromium
def test_a_step_shows_its_changes_and_every_task_with_input_result_and_attempts(show):
    reader = show(threads.map_reduce()[0])
    choose_step(reader, 2)
    assert "+ 'page 8'" in reader.browser.texts(".step-detail .diff pre")[0]
    reader.until("document.querySelectorAll('.task-row .task-name').length === 9")
    rows = [row for row in reader.browser.texts(".task-rows .task-row") if "{'page': 3}" in row]
    assert len(rows) == 1 and "3 attempts" in rows[0] and "{'log': ['page 3']}" in rows[0]
    reader.browser.run("document.querySelectorAll('.task-name')[3].click()")
    reader.until("document.querySelectorAll('.task-chosen .starts li').length === 3")
    reader.sees("attempt 3: began", within=".task-chosen")
    assert reader.browser.texts(".task-chosen pre") == ["{'page': 3}", "{'log': ['page 3']}"]


@needs_chromium
def test_values_are_coloured_by_their_type(show):
    reader = show(threads.map_reduce()[0])
    choose_step(reader, 2)
    reader.until("document.querySelector('.task-row .is-number-value')")
    assert reader.browser.texts(".task-row:nth-child(1) .is-string-value")[0] == "'page'"
    draw = "import('./page/value-view.js').then(({colour}) => colour(%s).map((each) => each.className ?? '').join())"
    said = {"[1, -2.5e3, 'a\\'1', None, x1]": ["number", "number", "string", "constant"], "it's 5, isn't it": [], "True": ["constant"]}
    for text, kinds in said.items():
        classes = reader.browser.run(draw % json.dumps(text)).split(",")
        assert [each for each in classes if each] == [f"is-{kind}-value" for kind in kinds]


@needs_chromium
def test_a_failure_shows_its_traceback_and_a_question_what_it_asks(show):
    reader = show(threads.failed()[0])
    assert reader.browser.texts(".step-detail .chip.failed")[0] == "1 of 2 failed"
    reader.press_button("failed 1")
    reader.press_button("bad")
    reader.sees("The above exception was the direct cause", "ValueError: </script><b>boom</b>", within=".task-chosen")
    reader = show(threads.asked()[0])
    reader.press_button("ask")
    reader.sees("{'publish?': 'draft'}", within=".task-chosen")


@needs_chromium
def test_the_state_after_a_step_is_read_whole_when_it_is_unfolded(show):
    app = threads.compiled(chain_of(threads.Log, a=threads.note("x" * 100_000 + "end")), "big")
    app.invoke(EMPTY, CONFIG)
    reader = show(app)
    reader.browser.click(".step-detail .state > summary")
    reader.until("document.querySelector('.state details')")
    assert len(reader.browser.texts(".state details pre")[0]) < 3000
    reader.browser.click(".state details summary")
    reader.until("document.querySelector('.state details pre').textContent.includes('xend')")


@needs_chromium
def test_tasks_of_nested_graphs_are_listed_below_those_that_ran_them(show):
    reader = show(threads.nested()[0])
    reader.until("document.querySelectorAll('.task-name').length === 4")
    names = reader.browser.texts(".task-name")
    assert names == ["holder", "holder \u203a first", "holder \u203a deep", "holder \u203a deep \u203a ask"]


@needs_chromium
def test_the_graph_marks_the_state_of_each_node_and_a_node_shows_its_steps(show):
    reader = show(threads.asked()[0], "graph")
    reader.sees("The marks cover 2 steps. Choose a node to see its steps.", within=".graph-side")
    assert [classes(reader, node) for node in ("draft", "ask", "check", "publish")] == [
        {"is-done"}, {"is-paused"}, {"is-done"}, set(),
    ]  # fmt: skip
    reader.browser.click('.graph-picture [data-node="draft"]')
    reader.until("document.querySelector('.graph-side h2').textContent === 'draft'")
    assert reader.browser.texts(".graph-side .head .n") == ["1"]
    assert classes(reader, "ask") == {"is-paused", "faded"}
    reader.browser.click(".graph-side .head")
    reader.until("document.querySelector('.detail-head h2')?.textContent === 'Step 1'")


@needs_chromium
def test_the_graph_marks_the_nodes_of_nested_graphs_and_counts_tasks(show):
    reader = show(threads.nested()[0], "graph")
    assert [classes(reader, node) for node in ("holder", "holder:first", "holder:deep:ask")] == [{"is-done"}] * 3
    reader = show(threads.map_reduce()[0], "graph")
    assert reader.browser.texts('[data-node="fetch"] .badge') == ["\u00d79"]


@needs_chromium
def test_a_run_is_shown_while_it_continues(chromium, stack):
    gates = Gates()
    app = make_flow(gates).copy({"checkpointer": InMemorySaver()})
    client = serve_thread(stack, app)
    reader = Reader(chromium, str(client.base_url).rstrip("/"))
    for view, seen, after in [
        ("graph", "document.querySelector('[data-node=b]').matches('.is-running')", "document.querySelector('[data-node=b]').matches('.is-done')"),
        ("steps", "document.querySelector('.steps-bar .sub').textContent.includes('one open')", "!document.querySelector('.steps-bar .sub').textContent.includes('open')"),
    ]:  # fmt: skip
        gates.close("slow")
        run = {"assistant_id": "g", "input": {"topic": "slow", "log": []}, "stream_mode": ["updates"]}
        client.post("/threads/t/runs", json=run).raise_for_status()
        assert gates.reached["slow"].wait(10)
        reader.go(f"#/thread/t/{view}")
        reader.until(f"document.querySelector({DRAWN[view]!r})")
        reader.until(seen)
        gates.open("slow")
        reader.until(after)
    last = "[...document.querySelectorAll('.step-row .h')].at(-1).firstChild.textContent"
    assert reader.browser.run(last) == "b"
    reader.leave()


@needs_chromium
def test_what_runs_is_shown_as_running_by_every_view(chromium, stack):
    gates = Gates()
    client = serve_thread(stack, make_flow(gates).copy({"checkpointer": InMemorySaver()}))
    reader = Reader(chromium, str(client.base_url).rstrip("/"))

    def begin(**run):
        gates.close(topic)
        client.post("/threads/t/runs", json={"assistant_id": "g", **run}).raise_for_status()
        assert gates.reached[topic].wait(10)

    def look(*standing: str):
        """Whether each view says of the node b that it stands so, in one of these words."""
        reader.go("#/thread/t/steps")
        reader.until(f"document.querySelectorAll('.task-row .{standing[0]}').length === 1")
        assert [reader.browser.texts(f"{place} .chip") for place in (".step-row:last-child", ".detail-head")] == [[standing[0]]] * 2
        reader.go("#/thread/t/graph")
        reader.until(f"document.querySelector('[data-node=b]').matches('.is-{standing[0]}')")
        assert reader.browser.texts(".graph-side .head:first-child .chip") == [standing[0]]
        reader.go("#/thread/t/timeline")
        reader.until(f"document.querySelector('.time-picture rect.{standing[0]}')")
        titles = reader.browser.texts(".time-picture .bar[data-node=b] title")
        assert titles[-1].startswith(f"b: {standing[-1]}")

    for topic, end, after in [("slow", {}, None), ("ask", {"resume": "Ann"}, ["paused", "asked"]), ("fail", {}, ["failed"])]:
        begin(input={"topic": topic, "log": []})
        look("running")
        texts = reader.browser.texts(".time-picture text.dim")
        assert "1 task running" in texts[-1]
        gates.open(topic)
        client.get(f"/threads/t/runs/{client.get('/threads/t/runs?limit=1').json()[0]['run_id']}/join")
        if after is None:
            continue
        look(*after)
        begin(**({"command": end} if end else {"input": None}))
        look("running")
        titles = reader.browser.texts(".time-picture .bar[data-node=b] title")
        assert [title.split(",")[0] for title in titles[-2:]] == [f"b: {after[-1]}", "b: running"]
        assert "boom" not in reader.text()
        client.post("/runs/cancel", json={"thread_id": "t", "status": "all"}).raise_for_status()
        reader.sees("paused", within=".thread-head")
        gates.open(topic)
        reader.until("!document.querySelector('.time-picture rect.running')")
    reader.leave()


@needs_chromium
def test_an_open_step_is_not_described_as_ended(show):
    reader = show(threads.asked()[0])
    reader.sees("State so far (1 key)", "its checkpoint is stored when the step ends", within=".step-detail")
    reader.misses("no checkpoint yet")
    reader = show(threads.failed()[0])
    reader.sees("State so far (1 key)", within=".step-detail")
    asking = threads.compiled(chain_of(threads.Log, ask=threads.confirmed), "asking")
    asking.invoke(EMPTY, CONFIG)
    reader = show(asking)
    reader.sees("the state has not changed yet", within=".step-detail")
    choose_step(reader, 0)
    reader.sees("State after this step (1 key)", within=".step-detail")


@needs_chromium
def test_a_task_that_was_answered_was_not_attempted_again(show):
    reader = show(threads.asked("yes")[0])
    choose_step(reader, 2)
    reader.until("document.querySelectorAll('.task-name').length === 2")
    [row] = [each for each in reader.browser.texts(".task-rows .task-row") if each.startswith("ask")]
    assert "2 starts" in row and "attempt" not in row
    reader.press_button("ask")
    reader.sees("start 1: began", "start 2: began", within=".task-chosen .starts")
    reader.press_button("Timeline")
    reader.until("document.querySelector('.time-picture .bar[data-node=ask]')")
    titles = reader.browser.texts(".time-picture .bar[data-node=ask] title")
    assert len(titles) == 2 and not any("attempt" in title for title in titles)


@needs_chromium
def test_the_finished_tasks_of_a_fan_out_are_counted_live(chromium, stack):
    gates = Gates()

    async def first(state):
        await gates.pass_through("first")
        return {"log": ["first"]}

    async def check(state):
        if state["n"] >= 3:
            await gates.pass_through("late")
        return {"log": [f"item {state['n']}"]}

    graph = graph_of(threads.Log, "S>first", first=first, check=check)
    graph.add_conditional_edges("first", lambda state: [Send("check", {"n": n}) for n in range(8)], ["check"])
    gates.close("first")
    gates.close("late")
    client = serve_thread(stack, threads.compiled(graph, "fan"))
    run = {"assistant_id": "g", "input": {"log": []}, "stream_mode": ["updates"]}
    client.post("/threads/t/runs", json=run).raise_for_status()
    assert gates.reached["first"].wait(10)
    reader = Reader(chromium, str(client.base_url).rstrip("/"))
    reader.go("#/thread/t/graph")
    reader.until("document.querySelector('[data-node=first]').matches('.is-running')")
    gates.open("first")
    reader.until("document.querySelector('[data-node=check] .badge').textContent === '3/8'")
    assert classes(reader, "check") == {"is-running"} and classes(reader, "first") == {"is-done"}
    gates.open("late")
    reader.until("document.querySelector('[data-node=check] .badge').textContent === '\u00d78'")
    reader.until("document.querySelector('[data-node=check]').matches('.is-done')")
    reader.leave()


@needs_chromium
def test_a_column_of_the_timeline_leads_to_its_step(show):
    reader = show(threads.map_reduce()[0], "timeline")
    reader.browser.click('.time-picture .bar[data-node="gather"] rect')
    reader.until("document.querySelector('.detail-head h2')?.textContent === 'Step 3'")
    assert "/steps/" in reader.browser.run("location.hash")


@needs_chromium
def test_the_timeline_is_zoomed_and_the_names_of_its_rows_stay_in_sight(show):
    reader = show(threads.map_reduce()[0], "timeline")
    width = "document.querySelector('.time-picture').scrollWidth"
    before = reader.browser.run(width)
    reader.press_button("+")
    reader.until(f"{width} >= {1.9 * before}")
    at = "document.querySelector('.time-picture%s').getBoundingClientRect()"
    inside = f"{at % ' .row text'}.left >= {at % ''}.left && {at % ' .row text'}.right <= {at % ''}.right"
    reader.until(f"document.querySelector('.time-picture').scrollLeft > 100 && {inside}")
    reader.click("[title='Zoom out']")
    reader.until(f"{width} === {before}")


PROGRAM = """
from typing import TypedDict
from stategraph import START, StateGraph, interrupt

class State(TypedDict, total=False):
    item: str
    answer: str

async def ask(state):
    return {"answer": interrupt("Buy " + state["item"] + "?")}

def pay(state):
    raise ConnectionError("the test must not pay")

graph = StateGraph(State).add_node(ask).add_node("pay", PAY).add_edge(START, "ask").add_edge("ask", "pay").compile()
"""


@pytest.mark.trial
def test_a_thread_is_saved_as_a_test_that_passes(stack, tmp_path):
    app = {}
    exec(PROGRAM.replace("PAY", "lambda state: {}"), app)
    (tmp_path / "shop.py").write_text(PROGRAM.replace("PAY", "pay"))
    client = serve_thread(stack, app["graph"].copy({"checkpointer": InMemorySaver()}), targets={"g": "shop.py:graph"})
    for body in ({"input": {"item": "tea"}}, {"command": {"resume": "yes"}}):
        client.post("/threads/t/runs/wait", json={"assistant_id": "g", **body}).raise_for_status()
    with zipfile.ZipFile(io.BytesIO(client.get("/page/threads/t/test").content)) as found:
        assert found.namelist() == ["test_thread_t.py", "test_thread_t.json"]
        found.extractall(tmp_path)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_thread_t.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    (tmp_path / "test_thread_t.py").write_text((tmp_path / "test_thread_t.py").read_text().replace('    "pay",\n', ""))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "the test must not pay" in done.stdout


def test_a_thread_of_a_graph_whose_place_is_unknown_is_no_test(stack):
    told = serve_thread(stack, threads.asked("yes")[0]).get("/page/threads/t/test")
    assert told.status_code == 409 and "targets={'g': 'module:graph'}" in told.json()["detail"]


@needs_chromium
def test_what_nodes_log_is_shown_by_step(show, stack):
    def warn(state):
        logging.getLogger("own.node").warning("no %s left", HOSTILE)
        return {"log": ["warned"]}

    app = threads.compiled(StateGraph(threads.Log).add_node(warn).add_edge(START, "warn"), "warning")
    app.invoke({"log": []}, CONFIG)
    reader = show(app)
    client = stack.enter_context(httpx.Client(base_url=reader.url, timeout=30))
    logging.getLogger("own").warning("outside of a node")
    client.post("/threads/t/runs/wait", json={"assistant_id": "g", "input": {"log": []}}).raise_for_status()
    reader.sees("\u00b7 warn \u00b7 WARNING", "onerror", within=".steps-said")
    [line] = client.get("/page/threads/t/logs").json()
    assert (line["node"], line["level"], line["text"]) == ("warn", "WARNING", f"no {HOSTILE} left")
    assert line["step"] == app.get_state(CONFIG).metadata["step"]
    assert client.get("/page/threads/t/logs", params={"after": line["number"]}).json() == []
    assert client.get("/page/threads/other/logs").status_code == 404


def test_lines_are_kept_of_served_threads_only_and_go_with_them(stack):
    """A node may run graphs of its own, whose threads can have the id of one that is served."""

    def warn(state):
        logging.getLogger("own.node").warning("a line")
        return {"log": ["warned"]}

    def call_others(state):
        for saver in (None, InMemorySaver()):
            inner.compile(saver).invoke({"log": []}, {"configurable": {"thread_id": "other"}})
        return warn(state)

    inner = StateGraph(threads.Log).add_node(warn).add_edge(START, "warn")
    builder = StateGraph(threads.Log).add_node("both", call_others).add_node("inside", inner.compile())
    app = builder.add_edge(START, "both").add_edge("both", "inside").compile(InMemorySaver())
    client = serve_thread(stack, app)

    def run(thread):
        body = {"assistant_id": "g", "input": {"log": []}, "if_not_exists": "create"}
        client.post(f"/threads/{thread}/runs/wait", json=body).raise_for_status()
        return [line["node"] for line in client.get(f"/page/threads/{thread}/logs").json()]

    assert run("t") == ["both", "warn"]
    client.post("/threads", json={"thread_id": "other", "metadata": {"graph_id": "g"}}).raise_for_status()
    assert client.get("/page/threads/other/logs").json() == []
    client.delete("/threads/t").raise_for_status()
    assert run("t") == ["both", "warn"]
    inner.compile().invoke({"log": []})
    assert run("None") == ["both", "warn"]


def test_calls_of_a_task_are_told_like_tasks_inside_it(stack):
    client = serve_thread(stack, threads.calling()[0])

    def ask(view, **asked):
        return client.get(f"/page/threads/t/{view}", params={"at": "open", **asked})

    tasks = ask("tasks").json()["tasks"]
    assert [(each["node"], each["row"][1]) for each in tasks] == [("read", "failed"), *[("read:fetch", "done")] * 3, ("read:fetch", "failed")]
    whole = ask("task", id=tasks[-1]["id"]).json()
    assert whole["row"][0] == "read \u203a fetch" and whole["error"].startswith("Traceback (most recent call last):\n  File ")
    assert 'in fetch\n    raise ValueError(f"page {page} is missing")\nValueError: page 3 is missing' in whole["error"]
    assert "for page in range(4)]" in ask("task", id=tasks[0]["id"]).json()["error"]
    slowest = [each["id"] for each in ask("tasks", slowest=1).json()["tasks"]]
    assert slowest[0] == tasks[0]["id"] and sorted(slowest) == sorted(each["id"] for each in tasks)
    assert ask("timeline").text.count('data-node="read:fetch"') == 2  # its row, and its bars


@needs_chromium
def test_the_slowest_tasks_come_first_if_asked_for(show):
    reader = show(threads.calling()[0])
    reader.until("document.querySelectorAll('.task-name').length === 5")
    reader.press_button("took")
    reader.asks_for("slowest=1")
    reader.until("document.querySelector('.task-titles [aria-pressed=true]')")
    reader.click(".task-row.bad .task-name")
    reader.sees("Traceback", "in read", within=".task-chosen pre.failed")


def test_the_report_of_a_thread_is_sent_as_a_file(stack):
    client = serve_thread(stack, threads.asked("yes")[0])
    told = client.get("/page/threads/t/report")
    assert told.headers["content-disposition"] == "attachment" and told.text.startswith("<!DOCTYPE html>")
    assert client.get("/page/threads/other/report").status_code == 404


@needs_chromium
def test_the_timeline_of_a_long_thread_is_loaded_in_parts(show):
    reader = show(threads.long(300)[0], "timeline")
    assert reader.browser.texts(".timeline-bar .sub") == ["242 to 301 of 301 steps"]
    reader.press_button("\u2039 Older")
    reader.until("document.querySelector('.timeline-bar .sub').textContent.startsWith('182 to 241')")
    reader.until("document.querySelector('.time-picture text.dim').textContent.startsWith('18')")
    reader.browser.click('.time-picture .step[data-step="5"]')
    reader.until("document.querySelector('.detail-head h2')?.textContent === 'Step 186'")


@needs_chromium
def test_two_branches_are_shown_side_by_side_with_links_to_their_steps(show):
    reader = show(threads.forked()[0], "branches")
    assert reader.browser.texts(".branch-name b") == ["branch 2", "branch 1"]
    reader.browser.click('[aria-label="Branch 2 as A"]')
    reader.browser.click('[aria-label="Branch 1 as B"]')
    reader.sees("Both went through the same 2 steps first.", "3 steps of its own", "2 steps of its own")
    assert reader.browser.texts(".side-by-side .card:nth-child(2) .head .n") == ["2", "3"]
    reader.sees("- 'a new draft'", "+ 'yes'")
    reader.until("document.querySelectorAll('.branch-tree .ran').length === 2")
    reader.browser.click(".side-by-side .card:nth-child(2) .head")
    reader.until("document.querySelector('.detail-head h2')?.textContent === 'Step 2'")
    reader.sees("This is the line to an older checkpoint or to another branch.")
    assert reader.browser.texts(".step-row .n") == ["0", "1", "2", "3"]
    reader.press_button("Show the newest")
    reader.until("document.querySelectorAll('.step-row').length === 5")


@needs_chromium
def test_from_any_step_the_way_leads_to_editing_and_forking(show):
    reader = show(threads.asked("yes")[0])
    choose_step(reader, 1)
    reader.press_button("State, edit, fork")
    reader.sees("State at step 1", "Fork from here")


@needs_chromium
def test_ten_thousand_steps_are_a_few_elements(show):
    reader = show(threads.long(10_000, growing=False)[0])
    reader.sees("10,001 steps")
    assert reader.browser.run("document.querySelectorAll('*').length") < 600
    assert reader.browser.texts(".step-row .n")[-1] == "10000"
    reader.browser.run("document.querySelector('.steps-list').scrollTop = 36 * 5000")
    reader.until("[...document.querySelectorAll('.step-row .n')].some(e => e.textContent === '5000')")
    assert reader.browser.run("document.querySelectorAll('*').length") < 600
    reader.write(".steps-bar input", "1234")
    reader.browser.press("Enter")
    reader.until("document.querySelector('.detail-head h2').textContent === 'Step 1234'")
    reader.browser.run("document.activeElement.blur()")
    reader.browser.press("j")
    reader.until("document.querySelector('.detail-head h2').textContent === 'Step 1235'")


@needs_chromium
def test_the_newest_step_is_shown_before_all_of_a_long_thread_is_read(show, monkeypatch):
    refresh, may_read = ThreadIndex.refresh, threading.Event()

    def wait_to_read_all(self: ThreadIndex, app, newest=None):
        assert newest is not None or may_read.wait(60)
        refresh(self, app, newest)

    monkeypatch.setattr(ThreadIndex, "refresh", wait_to_read_all)
    try:
        reader = show(threads.long(300, growing=False)[0])
        reader.sees("Step 300", "Tasks (1)", within=".step-detail")
        reader.until("document.querySelector('.task-name')")
        reader.click(".task-name")
        reader.sees("Result", within=".task-chosen")
        assert reader.browser.texts(".step-row .n")[-1] == "300"
    finally:
        may_read.set()
    reader.sees("301 steps")


@needs_chromium
def test_a_thousand_tasks_are_a_few_elements(show):
    def check(state):
        if state["n"] in (7, 998):
            raise ValueError(f"item {state['n']} is broken")
        return {"log": [f"item {state['n']}"]}

    graph = StateGraph(threads.Log).add_node("check", check, error_handler=lambda state: {"log": ["mended"]})
    graph.add_conditional_edges(START, lambda state: [Send("check", {"n": n}) for n in range(1000)], ["check"])
    app = threads.compiled(graph, "checks")
    app.invoke(EMPTY, CONFIG)
    reader = show(app)
    choose_step(reader, 1)
    reader.sees("Tasks (1,002)", "all 1,002", "failed 2")
    reader.until("document.querySelectorAll('.task-name').length > 10")
    assert reader.browser.run("document.querySelectorAll('*').length") < 900
    reader.browser.run("document.querySelector('.task-rows').scrollTop = 30 * 500")
    reader.until("document.querySelector('.task-rows').innerText.includes(\"{'n': 500}\")")
    assert reader.browser.run("document.querySelectorAll('*').length") < 900
    reader.press_button("failed 2")
    reader.until("document.querySelectorAll('.task-rows .task-name').length === 2")
    reader.browser.run("document.querySelectorAll('.task-rows .task-name')[1].click()")
    reader.sees("ValueError: item 998 is broken", within=".task-chosen")


def hostile():
    """Names, values, questions and errors that would be scripts if they became markup."""
    name = HOSTILE.replace(":", "").replace("|", "").replace("\x00", "")

    def fail(state):
        raise ValueError(HOSTILE)

    graph = StateGraph(threads.Log)
    graph.add_node(name, threads.note({HOSTILE: HOSTILE}))
    graph.add_node("ask", lambda state: {"log": [interrupt(HOSTILE)]})
    graph.add_node("bad", fail)
    graph.add_edge(START, name).add_edge(name, "ask").add_edge(name, "bad")
    app = graph.compile(InMemorySaver(), name=HOSTILE)
    with pytest.raises(ValueError, match="onerror"):
        app.invoke(EMPTY, {"configurable": {"thread_id": "t"}, "metadata": {"who": HOSTILE}})
    return app


@needs_chromium
@pytest.mark.parametrize("view", VIEWS)
def test_hostile_texts_stay_texts(show, view):
    reader = show(hostile(), view)
    if view == "steps":
        for number in range(3):
            choose_step(reader, number)
            reader.browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            for task in range(2 if number == 2 else number):
                reader.until(f"document.querySelectorAll('.task-name').length > {task}")
                reader.browser.run(f"document.querySelectorAll('.task-name')[{task}].click()")
                reader.until("document.querySelector('.task-chosen pre')")
        reader.sees("onerror")
    if view == "graph":
        reader.browser.run("document.querySelector('.graph-picture .node[data-node*=onerror]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
        reader.until("document.querySelector('.graph-side h2').textContent.includes('onerror')")
    assert reader.browser.run("document.querySelectorAll('main img, main script').length") == 0
    assert reader.browser.run("window.hacked") is None


@needs_chromium
@pytest.mark.parametrize("make", [threads.nested, threads.forked, threads.failed], ids=["nested", "forked", "failed"])
def test_a_phone_shows_every_view_within_its_width(show, chromium, make):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    chromium.tell("Emulation.setDeviceMetricsOverride", **size)
    try:
        reader = show(make()[0])
        for view in VIEWS:
            reader.go(f"#/thread/t/{view}")
            reader.until(f"document.querySelector({DRAWN[view]!r})")
            assert reader.browser.run("document.documentElement.scrollWidth") <= 390, view
    finally:
        chromium.tell("Emulation.clearDeviceMetricsOverride")


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_in_both_themes(dark, stack):
    client = serve_thread(stack, threads.failed()[0])
    with browsing(dark=dark) as browser:
        reader = Reader(browser, str(client.base_url).rstrip("/"))
        reader.go("#/thread/t/steps")
        reader.until("document.querySelector('.task-row.bad .task-name')")
        for selector, least in [(".step-row.on .h", 7), (".task-row.bad .failed", 4), (".diff ins", 4.5), (".step-row .n", 4)]:
            ink, paper = browser.run(
                f"(() => {{ let e = document.querySelector('{selector}'); const ink = getComputedStyle(e).color;"
                "const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true}); const behind = [];"
                "for (; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);"
                "for (const each of behind) { canvas.fillStyle = each; canvas.fillRect(0, 0, 1, 1); }"
                "const paint = () => `rgb(${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)})`; const paper = paint();"
                "canvas.fillStyle = ink; canvas.fillRect(0, 0, 1, 1); return [paint(), paper]; })()"
            )
            assert contrast(ink, paper) > least, (selector, ink, paper)
        reader.leave()
        assert browser.said == []
