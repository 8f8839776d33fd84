"""The page at `/` in a real browser: threads, inbox, chat, state, schedules, queue; safe and usable."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import httpx
import psycopg
import pytest
from kit.browser import DRIVES_CHROMIUM, browsing
from kit.graphs import Log, chain_of, graph_of
from paged import HOSTILE, Reader, Speech, make_chat, make_orders, relaying
from serving import opened, serving
from starlette.applications import Starlette
from starlette.routing import Mount
from typing_extensions import TypedDict

from stategraph import (
    START,
    Budget,
    MessagesState,
    Runtime,
    StateGraph,
    get_stream_writer,
    interrupt,
)
from stategraph.serve import create_app
from stategraph.serve.page import lists

pytestmark = DRIVES_CHROMIUM


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture
def speech():
    return Speech()


@pytest.fixture
def url(request, speech):
    """A server in memory; with "workers" one whose runs are jobs of workers on Postgres."""
    graphs = {"orders": make_orders(), "chat": make_chat(speech)}
    if getattr(request, "param", "here") == "here":
        with serving(create_app(graphs)) as url:
            yield url
        return
    with opened("postgres", request.getfixturevalue("postgres")) as place, serving(create_app(graphs, **place)) as url:
        yield url


@pytest.fixture
def client(url):
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture
def page(browser, url):
    browser.said.clear()
    browser.asked_for.clear()
    reader = Reader(browser, url)
    yield reader
    reader.leave()
    # No script of a text ran, and no policy had to forbid one; nobody else was asked for anything.
    assert browser.said == []
    assert all(each.startswith((url, "data:,", "about:")) for each in browser.asked_for)


def order(client: httpx.Client, thread_id, item="tea", **metadata):
    """An order that waits for its answers."""
    client.post("/threads", json={"thread_id": thread_id, "metadata": metadata}).raise_for_status()
    body = {"assistant_id": "orders", "input": {"item": item, "price": 3.5}}
    return client.post(f"/threads/{thread_id}/runs/wait", json=body).raise_for_status().json()


def answer(client: httpx.Client, thread_id):
    """Answer both questions of an order."""
    asked = client.get(f"/threads/{thread_id}/state").json()["interrupts"]
    told = {each["id"]: {"approved": True, "amount": 7} if each["response_schema"] else "yes" for each in asked}
    body = {"assistant_id": "orders", "command": {"resume": told}}
    return client.post(f"/threads/{thread_id}/runs/wait", json=body).json()


def finish(client, thread_id):
    """Wait until the newest run of a thread has ended."""
    [run] = client.get(f"/threads/{thread_id}/runs?limit=1").json()
    client.get(f"/threads/{thread_id}/runs/{run['run_id']}/join")


def values(client: httpx.Client, thread_id):
    return client.get(f"/threads/{thread_id}/state").json()["values"]


# -- threads -------------------------------------------------------------------------------------------------------


def test_a_thread_is_started_by_the_form_of_its_graph(page, client):
    page.go("")
    page.sees("There are no threads yet")
    page.press_button("New thread")
    page.choose(page.field("graph"), "orders")
    page.write(page.field("item optional"), "tea")
    page.write(page.field("price optional"), "three")
    page.press_button("Start")
    page.sees("Price must be a number.")
    page.write(page.field("price optional"), "3.5")
    page.write("[aria-label='Thread id']", "order 1 ü")
    page.press_button("Start")
    page.sees("order 1 ü", "paused", within=".thread-head")
    [thread] = client.post("/threads/search", json={}).json()
    assert thread["thread_id"] == "order 1 ü"
    assert thread["values"] == {"item": "tea", "price": 3.5, "log": ["checked tea"]}


def test_threads_are_found_by_id_metadata_state_and_status(page, client):
    order(client, "a", "green tea", customer="Ann")
    order(client, "b", "coffee", customer="Bob")
    order(client, "c", "coffee")
    answer(client, "c")
    page.go("")
    page.sees("a", "b", "c", "customer: Ann")

    def finds(*ids: str):
        page.until(f"[...document.querySelectorAll('a.row')].map(e => e.dataset.row).sort().join() === '{','.join(ids)}'")

    finds("a", "b", "c")
    for text, ids in {"GREEN": "a", "bob": "b", "coffee": "bc", "nothing has this": ""}.items():
        page.write("input[type=search]", text)
        finds(*ids)
    page.sees("No thread fits.")
    page.write("input[type=search]", "coffee")
    page.choose("[aria-label=Status]", "idle")
    finds("c")
    client.post("/threads", json={"thread_id": "d", "metadata": {"graph_id": "chat", "note": "coffee"}}).raise_for_status()
    page.choose("[aria-label=Graph]", "chat")
    finds("d")
    page.write("input[type=search]", " ")
    finds("d")
    page.choose("[aria-label=Graph]", "orders")
    finds("c")


def test_a_text_is_searched_in_all_states_piece_by_piece(page, client, monkeypatch):
    monkeypatch.setattr(lists, "SEARCHED", 2)
    order(client, "oldest", "green tea")
    order(client, "named-green")  # found by its id: its state need not be read
    for number in range(4):
        order(client, f"t{number}", "coffee")
    order(client, "newest", "green coffee")
    page.go("")
    page.write("input[type=search]", "green")
    page.sees("2 found. Searched ids, metadata and errors of all 7 threads, and the states of the 2 written last.")
    assert page.browser.texts("a.row .id") == ["newest", "named-green"]
    client.post("/threads", json={"thread_id": "another-green"})  # what is new does not move the place
    page.press_button("Search further")
    page.sees("2 found. Searched ids, metadata and errors of all 8 threads, and the states of the 5 written last.")
    page.press_button("Search further")
    page.sees("3 found. Searched ids, metadata, errors and states of all 8 threads.")
    assert page.browser.texts("a.row .id") == ["newest", "named-green", "oldest"]
    assert "Search further" not in page.text()
    page.write("input[type=search]", "nothing has this")
    page.sees("No thread fits.", "0 found. Searched ids")


def test_threads_are_found_by_when_they_were_written(page, client):
    for name in ("old", "new"):
        order(client, name)
    written = client.get("/threads/new").json()["updated_at"]
    found = client.post("/page/threads", json={"since": written, "text": ""}).json()
    assert ([each["thread_id"] for each in found["threads"]], found["further"]) == (["new"], None)
    assert client.post("/page/threads", json={"since": written, "text": "old"}).json()["threads"] == []
    assert client.post("/page/threads", json={"since": "yesterday"}).status_code == 422
    page.go("")
    page.choose("[aria-label=Written]", "last hour")
    page.sees("2 found.", "old", "new")


def test_a_search_says_when_it_finds_more_than_is_asked_for(client):
    for number in range(3):
        client.post("/threads", json={"thread_id": f"t{number}"}).raise_for_status()
    found = client.post("/page/threads", json={"text": "T", "limit": 2}).json()
    assert [each["thread_id"] for each in found["threads"]] == ["t2", "t1"]
    assert (found["has_more"], found["searched"], found["of"], found["further"]) == (True, 3, 3, None)
    assert client.post("/page/threads", json={"text": "t", "further": ["x"]}).status_code == 422


def test_the_list_of_threads_has_pages_and_follows_what_happens(page, client):
    for number in range(31):
        client.post("/threads", json={"thread_id": f"t{number:02}"})
    page.go("")
    page.sees("1 to 30")
    page.press_button("Older")
    page.sees("31 to 31", "t00")
    page.press_button("Newer")
    page.sees("1 to 30")
    order(client, "newest")
    page.sees("newest", "paused")


# -- inbox -----------------------------------------------------------------------------------------------------------


def test_questions_are_answered_in_the_inbox_by_their_forms(page, client):
    order(client, "one")
    order(client, "two", "coffee")
    page.go("#/inbox")
    page.sees("2 threads ask", "approve asks", "Buy tea?", "3.5", "Is it legal?")
    card = ".inbox-entry:has([data-row=one])"
    page.press_button("Answer all 2", card)
    page.sees("Approved must be chosen.", within="#said")
    page.choose(page.field("approved", card), "yes")
    page.write(page.field("amount", card), "many")
    page.write(f"{card} textarea.code", "yes")
    page.press_button("Answer all 2", card)
    page.sees("Amount must be a number.", within="#said")
    assert values(client, "one")["log"] == ["checked tea"]
    page.write(page.field("amount", card), "350")
    page.choose(page.field("kind optional", card), "gift")
    page.press_button("Answer all 2", card)
    page.sees("1 thread asks")
    page.misses("Buy tea?")
    finish(client, "one")
    assert values(client, "one")["log"] == ["checked tea", "gift of 350: True", "legal: yes", "packed", "shipped tea"]


def test_one_of_two_questions_is_answered_and_what_is_typed_for_the_other_stays(page, client):
    order(client, "one")
    page.go("#/inbox")
    page.write(page.field("note optional"), "half a senten")
    page.write("[aria-label='Question of legal'] textarea", '{"is": ["JSON"]}')
    page.press_button("Answer", "[aria-label='Question of legal']")
    page.misses("Is it legal?")
    assert page.browser.run(f"document.querySelector('{page.field('note optional')}').value") == "half a senten"
    [open_question] = client.get("/threads/one/state").json()["interrupts"]
    assert open_question["value"]["question"] == "Buy tea?"


def test_an_answer_that_does_not_fit_is_reported_and_can_be_corrected(page, client):
    order(client, "one")
    page.go("#/inbox")
    page.press_button("as JSON")
    page.write("[aria-label='Question of approve'] textarea.code", '{"approved": "perhaps"}')
    page.press_button("Answer", "[aria-label='Question of approve']")
    page.sees("approved", within="#said")
    page.sees("Buy tea?")


NESTED = {
    "type": "object",
    "properties": {"who": {"$ref": "#/$defs/Person"}, "kind": {"enum": ["a", "b"], "default": "b"}, "v": {"const": 1}},
    "required": ["who", "v"],
    "$defs": {
        "Person": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "default": "Ann"},
                "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                "boss": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}], "default": None},
                "tags": {"type": "array", "items": {"type": "string"}, "default": ["x", "y"]},
            },
            "required": ["name"],
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        (None, "yes", "yes"),
        (None, "true", True),
        (None, '{"a": [1]}', {"a": [1]}),
        (None, '{"a": [1', "the value must be JSON"),
        ({"type": "string"}, "12", "12"),
        ({"type": "string", "default": "tea"}, None, "tea"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "", "the value must be a number"),
        ({"type": "integer"}, "1.5", "the value must be a whole number"),
        ({"type": "integer", "default": 3}, None, 3),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "12", 12),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "twelve", "twelve"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"enum": ["a", 2, None], "default": 2}, None, 2),
        ({"enum": ["a", "b"]}, None, "the value must be chosen"),
        ({"type": "boolean", "default": True}, None, True),
        ({"type": "array", "items": {"type": "integer"}, "default": [1, 2]}, None, [1, 2]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "tea", "the value must be JSON"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "", {}),
        ({"type": "object", "properties": {"messages": {"type": "array"}}}, "hi", {"messages": [{"role": "user", "content": "hi"}]}),
        ({"type": "object", "properties": {"messages": {"type": "array"}}}, '[{"role": "user", "content": "x"}]', {"messages": [{"role": "user", "content": "x"}]}),
        ({"type": "object", "properties": {HOSTILE: {"type": "string", "default": HOSTILE}}}, None, {HOSTILE: HOSTILE}),
        (NESTED, None, {"who": {"name": "Ann", "tags": ["x", "y"]}, "kind": "b", "v": 1}),
    ],
)  # fmt: skip
def test_a_form_gives_what_its_schema_says(page, schema, typed, value):
    page.go("#/overview")
    script = f"""import(new URL("page/form.js", document.baseURI)).then(({{ makeForm }}) => {{
        const form = makeForm({json.dumps(schema)}), typed = {json.dumps(typed)};
        document.querySelector("main").append(form.element);
        if (typed !== null) form.element.querySelector("input, textarea").value = typed;
        try {{ return {{ value: form.read() }}; }} catch (error) {{ return {{ error: error.message }}; }}
    }})"""
    found = page.browser.run(script)
    assert found.get("value", found.get("error", "").split(":")[0]) == value


def test_an_object_that_may_be_left_out_is_added_by_a_button(page):
    page.go("#/overview")
    page.browser.run(f"""import(new URL("page/form.js", document.baseURI)).then(({{ makeForm }}) => {{
        window.form = makeForm({json.dumps(NESTED)});
        document.querySelector("main").append(window.form.element);
    }})""")
    page.press_button("+ boss")
    page.sees("\u2212 boss", "+ boss")
    assert page.browser.run("window.form.read().who.boss") == {"name": "Ann", "tags": ["x", "y"]}
    page.press_button("\u2212 boss")
    assert page.browser.run("'boss' in window.form.read().who") is False


def test_a_title_that_says_more_than_the_name_is_the_label(page):
    schema = {"type": "object", "required": ["max_sum"], "properties": {
        "amount": {"type": "number", "title": "Amount (EUR)"}, "max_sum": {"type": "number", "title": "Max Sum"}, "who": {"$ref": "#/$defs/Person"},
    }, "$defs": {"Person": {"type": "string", "title": "Person"}}}  # fmt: skip
    page.go("#/overview")
    page.browser.run(f"""import(new URL("page/form.js", document.baseURI)).then(({{ makeForm }}) => {{
        document.querySelector("main").append(makeForm({json.dumps(schema)}).element);
    }})""")
    assert page.browser.texts("main label") == ["Amount (EUR) optional", "max_sum", "who optional"]


# -- chat ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["here", "workers"], indirect=True)
def test_a_message_is_sent_and_its_answer_is_streamed_by_token(page, client, speech):
    client.post("/threads", json={"thread_id": "chat", "metadata": {"assistant_id": "chat", "graph_id": "chat"}})
    page.go("#/thread/chat")
    page.sees("No messages yet")
    page.write("[aria-label=Message]", "How is the weather in Rome?")
    page.browser.press("Enter")
    page.sees("How is the weather in Rome?", within=".messages .from-user")
    speech.go_on.release()
    page.sees("It is", within=".live")
    page.sees("busy", within=".thread-head")
    speech.go_on.release()
    page.sees("It is sunny", within=".live")
    speech.go_on.release()
    page.sees("It is sunny in Rome.", within=".messages:not(.live)")
    page.sees("idle", within=".thread-head")
    page.until("document.querySelector('.live').childElementCount === 0")
    assert page.browser.texts(".messages .who") == ["user", "assistant", "assistant"]
    assert page.browser.texts("details.tool > summary") == ['weather {"city":"Rome"}', 'tool · weather {"sky": "clear"}']


def test_an_interrupt_is_shown_after_the_newest_message_with_yes_and_no_buttons(browser):
    def model(state: MessagesState):
        return {"messages": [{"role": "assistant", "content": "A long draft.\n\n" + "- line\n" * 80}]}

    def send(state: MessagesState):
        approved = interrupt("Send it?", response_schema=bool)
        return {"messages": [{"role": "assistant", "content": f"approved: {approved}"}]}

    app = graph_of(MessagesState, "S>model>send", model=model, send=send).compile()
    with serving(create_app({"mail": app})) as url, httpx.Client(base_url=url, timeout=30) as client:
        page = Reader(browser, url)
        for thread, button, answer in (("one", "Yes", True), ("two", "No", False)):
            client.post("/threads", json={"thread_id": thread})
            said = {"messages": [{"role": "user", "content": "write"}]}
            client.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "mail", "input": said})
            page.go(f"#/thread/{thread}/chat")
            page.sees("A long draft.", "Send it?", within=".tab-chat")
            # Who opens the chat sees its end: the question, below the message it is about.
            in_sight = "(box => box.top > 0 && box.bottom <= innerHeight)(document.querySelector('.asks').getBoundingClientRect())"
            page.until(in_sight)
            assert page.browser.run("scrollY") > 0
            page.click("nav.tabs a[href$=steps]")
            page.until("document.querySelector('.questions').nextElementSibling === document.querySelector('nav.tabs')")
            page.press_button(button)
            finish(client, thread)
            page.click("nav.tabs a[href$=chat]")
            page.sees(f"approved: {answer}", within=".tab-chat")
            page.until("!document.querySelector('.asks')")
        page.leave()


def test_a_stream_that_breaks_off_is_joined_again_behind_the_last_event(browser, url, client, speech):
    client.post("/threads", json={"thread_id": "chat", "metadata": {"assistant_id": "chat", "graph_id": "chat"}})
    with relaying(url) as relay:
        page = Reader(browser, relay.url)
        page.go("#/thread/chat")
        page.write("[aria-label=Message]", "hello")
        page.press_button("Send")
        speech.go_on.release()
        page.sees("It is", within=".live")
        relay.cut()
        page.until("!document.getElementById('lost').hidden")
        speech.go_on.release()
        relay.mend()
        page.sees("It is sunny", within=".live")
        page.until("document.getElementById('lost').hidden")
        assert browser.texts(".live .text") == ["It is sunny"]
        speech.go_on.release()
        page.sees("It is sunny in Rome.", within=".messages:not(.live)")
        page.leave()


@contextmanager
def offline(page: Reader):
    """The browser reaches nobody for the time of a `with`."""
    usual = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.browser.tell("Network.emulateNetworkConditions", offline=True, **usual)
    try:
        yield
    finally:
        page.browser.tell("Network.emulateNetworkConditions", offline=False, **usual)


def test_a_run_can_be_cancelled(page, client, speech):
    client.post("/threads", json={"thread_id": "chat"})
    client.post("/threads/chat/runs", json={"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "hello"}]}})
    page.go("#/thread/chat")
    page.sees("busy", within=".thread-head")
    page.asks_for("/stream")
    page.press_button("Cancel")
    page.sees("paused", within=".thread-head")
    speech.go_on.release(9)
    page.press_button("Continue")
    page.sees("It is sunny in Rome.", "idle")


def test_a_hidden_page_leaves_its_stream_and_joins_it_again(page, client, speech):
    client.post("/threads", json={"thread_id": "chat", "metadata": {"assistant_id": "chat", "graph_id": "chat"}})
    page.go("#/thread/chat")
    page.write("[aria-label=Message]", "hello")
    page.press_button("Send")
    speech.go_on.release()
    page.sees("It is", within=".live")

    def turn(is_hidden):
        told = f"Object.defineProperty(document, 'hidden', {{value: {str(is_hidden).lower()}, configurable: true}})"
        page.browser.run(f"{told}; document.dispatchEvent(new Event('visibilitychange'))")

    turn(True)
    speech.go_on.release()
    page.browser.asked_for.clear()
    turn(False)
    page.sees("It is sunny", within=".live")
    page.asks_for("/stream")
    assert page.browser.texts(".live .text") == ["It is sunny"]
    speech.go_on.release()
    page.sees("It is sunny in Rome.", within=".messages:not(.live)")


def test_a_thread_runs_again_with_another_input(page, client):
    client.post("/threads", json={"thread_id": "empty"})
    page.go("#/thread/empty")
    page.press_button("Run", ".thread-head")
    page.choose(page.field("graph"), "orders")
    page.write(page.field("item optional"), "tea")
    page.press_button("Run", "section.start")
    page.sees("paused", within=".thread-head")
    assert values(client, "empty")["item"] == "tea"


class Tone(TypedDict):
    tone: str
    loud: bool


def test_a_run_is_started_with_a_context_and_stops_before_a_node(browser):
    """The form shows the context that the assistant has, and the nodes of its graph."""

    def say(state: Log, runtime: Runtime[Tone]):
        get_stream_writer()({"said": "hello"})
        assert go_on.wait(30)
        return {"log": [f"{runtime.context['tone']}, {runtime.context['loud']}"]}

    go_on = threading.Event()
    app = StateGraph(Log, context_schema=Tone).add_sequence([("say", say), ("end", lambda state: {})]).add_edge(START, "say").compile()
    with serving(create_app({"g": app})) as url, httpx.Client(base_url=url) as client:
        client.post("/assistants", json={"graph_id": "g", "name": "polite", "context": {"tone": "kind"}}).raise_for_status()
        page = Reader(browser, url)
        page.go("")
        page.press_button("New thread")
        page.choose(page.field("graph"), "polite (g)")
        page.until("document.querySelector('.start fieldset textarea').value === 'kind'")
        page.choose(page.field("loud"), "yes")
        page.browser.run("document.querySelector('.stops').open = true")
        page.click(".stops input[value=end]")
        page.press_button("Start")
        page.sees("Said by nodes", "hello", within=".steps-said")
        go_on.set()
        page.sees("paused", within=".thread-head")
        [thread] = client.post("/threads/search", json={}).json()
        state = client.get(f"/threads/{thread['thread_id']}/state").json()
        assert (state["values"], state["next"]) == ({"log": ["kind, True"]}, ["end"])
        page.press_button("Continue")
        page.sees("idle", within=".thread-head")
        page.leave()


def test_threads_are_titled_by_their_metadata_or_first_message(page, client, speech):
    order(client, "order", title="Tea for two")
    speech.go_on.release(9)
    client.post("/threads", json={"thread_id": "chat"})
    body = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "Is it sunny?"}]}}
    client.post("/threads/chat/runs/wait", json=body).raise_for_status()
    page.go("")
    page.sees("Tea for two", "Is it sunny?")
    page.browser.run("location.hash = '#/thread/chat'")
    page.sees("Is it sunny?", "chat ·", within=".thread-head")
    page.until("document.title === 'Is it sunny? · stategraph'")


def test_a_thread_whose_first_message_is_still_to_come_gets_its_title_then(browser):
    go_on = threading.Event()

    def greet(state):
        assert go_on.wait(30)
        return {"messages": [{"role": "assistant", "content": "Good morning"}]}

    app = chain_of(MessagesState, greet=greet).compile()
    with serving(create_app({"g": app})) as url, httpx.Client(base_url=url) as client:
        client.post("/threads", json={"thread_id": "early"}).raise_for_status()
        client.post("/threads/early/runs", json={"assistant_id": "g", "input": {"messages": []}}).raise_for_status()
        page = Reader(browser, url)
        page.go("")
        page.sees("early", "busy")
        page.asks_for("threads/search")
        go_on.set()
        page.sees("Good morning", "idle")
        page.leave()


def test_the_items_of_the_store_are_shown_by_namespace_and_deleted(page, client):
    for user, drink in {"ann": "tea", "bob": "coffee"}.items():
        item = {"namespace": ["users", user], "key": "drink", "value": {"likes": drink, "cups": 2}}
        client.put("/store/items", json=item).raise_for_status()
    page.go("#/store")
    page.sees("2 namespaces", "tea", "coffee")
    page.press_button("users / ann")
    page.until("document.querySelectorAll('.item').length === 1 && document.querySelector('.item .is-number-value').textContent === '2'")
    assert "coffee" not in page.text()
    page.browser.run("window.confirm = () => true")
    page.press_button("Delete")
    page.sees("The store is empty.")
    assert [each["value"]["likes"] for each in client.post("/store/items/search", json={"namespace_prefix": []}).json()["items"]] == ["coffee"]


# -- state -----------------------------------------------------------------------------------------------------------


def test_a_state_is_edited_and_the_run_resumed(page, client):
    order(client, "one", "bomb")
    assert answer(client, "one")["__error__"]["error"] == "ValueError"
    page.go("#/thread/one/state")
    page.sees("error", within=".thread-head")
    page.sees("ValueError", within=".thread-head + div")
    page.press_button("edit", ".state-row:first-child")
    assert page.browser.run("document.querySelector('.editor textarea').value") == '{\n  "item": "bomb"\n}'
    page.write(".editor textarea", '{"item": ')
    page.press_button("Save and continue")
    page.sees("The update must be JSON", within="#said")
    page.write(".editor textarea", '{"item": "cake"}')
    page.press_button("Save and continue")
    page.sees("idle", within=".thread-head")
    page.sees("shipped cake")
    assert values(client, "one")["item"] == "cake"


def test_the_state_is_edited_as_a_node(page, client):
    order(client, "one")
    page.go("#/thread/one/state")
    page.sees("State now")
    page.browser.press("e")
    page.write(".editor textarea", '{"log": ["the lawyer says yes"]}')
    page.choose("[aria-label='As node']", "as legal")
    page.press_button("Save", ".editor")
    page.sees("the lawyer says yes")
    page.misses("Is it legal?")
    assert [task["name"] for task in client.get("/threads/one/state").json()["tasks"]] == ["approve"]


def test_a_thread_is_forked_from_an_earlier_step(page, client):
    order(client, "one")
    answer(client, "one")
    steps = client.get("/threads/one/history").json()
    before = next(step for step in steps if set(step["next"]) == {"approve", "legal"})
    page.go(f"#/thread/one/state/{before['checkpoint_id']}")
    page.sees("State at step 1", "next: approve, legal")
    page.press_button("Fork from here")
    page.sees("A: branch 1", "B: branch 2", within=".compared")
    page.sees("paused", within=".thread-head")
    page.sees("Buy tea?", "Is it legal?")
    assert len(client.get("/threads/one/history").json()) > len(steps)


def test_a_message_is_edited_and_what_comes_of_it_stands_beside_the_old(page, client, speech):
    speech.go_on.release(9)
    client.post("/threads", json={"thread_id": "chat"}).raise_for_status()
    for text in ("Is it sunny?", "And tomorrow?"):
        body = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": text}]}}
        client.post("/threads/chat/runs/wait", json=body).raise_for_status()
    page.go("#/thread/chat")
    page.sees("And tomorrow?")
    page.press_button("edit", ".message.from-user")
    page.sees("State at step 0", "Edit the state of this step")
    edited = page.browser.run("document.querySelector('.editor textarea').value")
    page.write(".editor textarea", edited.replace("sunny", "rainy"))
    page.press_button("Save and continue")
    page.sees("A: branch 1", "B: branch 2", within=".compared")
    page.sees("idle", within=".thread-head")
    page.press_button("Chat")
    page.sees("Is it rainy?", "It is sunny in Rome.")
    assert [each["content"] for each in values(client, "chat")["messages"]] == ["Is it rainy?", "It is sunny in Rome."]


def test_a_thread_is_copied_and_deleted(page, client):
    order(client, "one")
    page.go("#/thread/one")
    page.press_button("Copy")
    page.until("!location.hash.startsWith('#/thread/one')")
    page.sees("paused", within=".thread-head")
    page.browser.run("window.confirm = () => true")
    page.press_button("Delete")
    page.sees("Threads", "one")
    assert len(client.post("/threads/search", json={}).json()) == 1


def test_a_thread_is_saved_as_a_file(page, client):
    order(client, "one")
    page.go("#/thread/one")
    page.sees("paused", within=".thread-head")
    page.browser.run("URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return '#saved'; }")
    page.press_button("Export")
    page.until("window.saved")
    saved = json.loads(page.browser.run("window.saved"))
    assert saved == client.get("/threads/one/export").json()


def test_what_messages_have_cost_is_shown_for_each_and_for_all(page, client):
    def said(id, out):
        usage = {"input_tokens": 1200, "output_tokens": out, "total_tokens": 1200 + out}
        return {"role": "assistant", "id": id, "content": id, "usage_metadata": usage}

    values = {"messages": [{"role": "user", "content": "hi"}, said("m1", 30), said("m2", 4)]}
    made = {"thread_id": "t", "metadata": {"graph_id": "chat", "assistant_id": "chat"}}
    client.post("/threads", json=made).raise_for_status()
    client.post("/threads/t/state", json={"values": values, "as_node": "model"}).raise_for_status()
    page.go("#/thread/t/chat")
    page.sees("1,200 in · 30 out", "1,200 in · 4 out", "together 2,400 in · 34 out")


def test_where_a_run_begins_is_shown_among_the_steps(page, client):
    order(client, "one")
    answer(client, "one")
    again = {"assistant_id": "orders", "input": {"item": "coffee", "price": 1.0}}
    client.post("/threads/one/runs/wait", json=again).raise_for_status()
    page.go("#/thread/one/steps")
    page.sees("in 2 runs, one open", "run 1", "run 2")
    page.sees("Run 2", "3 steps", within="[aria-label=Run]")
    page.press_button("\u2039")
    page.sees("Run 1", "5 steps", within="[aria-label=Run]")


def test_the_step_at_which_a_key_became_a_value_is_found(page, client):
    order(client, "one")
    order_again = {"assistant_id": "orders", "input": {"item": "coffee", "price": 1.0}}
    client.post("/threads/one/runs/wait", json=order_again).raise_for_status()
    page.go("#/thread/one/steps")
    for asked, found in {"item = COFF": ["step 3: 'coffee'"], "price": ["step 3: 1.0", "step 0: 3.5"], "item = x": []}.items():
        page.write("[aria-label='Go to step']", asked)
        page.browser.press("Enter")
        page.until(f"JSON.stringify([...document.querySelectorAll('.steps-found a')].map(e => e.textContent)) === {json.dumps(json.dumps(found, separators=(',', ':')))}")
    page.sees("item did not become x.")
    page.write("[aria-label='Go to step']", "price = 3.5")
    page.browser.press("Enter")
    page.press_button("step 0: 3.5")
    page.sees("Step 0", within=".detail-head")


def test_an_open_question_folds_and_the_views_stay_in_sight(page, client):
    order(client, "one")
    page.go("#/thread/one")
    page.sees("2 open questions", "Is it legal?")
    page.until("document.querySelector('.tabs').getBoundingClientRect().bottom < innerHeight - 100")
    page.click(".questions > summary")
    page.misses("Is it legal?", within=".questions")
    page.browser.run("scrollTo(0, document.body.scrollHeight)")
    assert page.browser.run("document.querySelector('.tabs').getBoundingClientRect().top") > 0


def test_the_first_tab_is_one_that_has_something_to_show(page, client):
    client.post("/threads", json={"thread_id": "new"}).raise_for_status()
    order(client, "ran")
    for thread, tab in {"new": "State", "ran": "Steps"}.items():
        page.go(f"#/thread/{thread}")
        page.sees(tab, within=".tabs [aria-current]")


# -- schedules and what is at work -----------------------------------------------------------------------------------


def test_a_schedule_is_made_paused_and_deleted(page, client):
    page.go("#/schedules")
    page.sees("There are no schedules. A schedule starts a run at each time that its cron expression matches.")
    page.press_button("New schedule")
    page.choose(page.field("graph"), "orders")
    page.write(page.field("item optional"), "tea")
    page.write(page.field("cron expression"), "every day")
    page.press_button("Save")
    page.until("document.querySelector('[role=alert]:not([hidden])')?.textContent.includes('every day')")
    page.browser.said.clear()  # the browser tells of the refusal
    page.write(page.field("cron expression"), "0 9 * * *")
    page.write(page.field("time zone"), "UTC")
    page.press_button("Save")
    page.sees("0 9 * * *", "orders", '{"item":"tea"}', "next in")
    page.press_button("Pause")
    page.sees("paused")
    [cron] = client.post("/runs/crons/search", json={}).json()
    assert (cron["enabled"], cron["payload"]["input"]) == (False, {"item": "tea"})
    page.press_button("Resume")
    page.sees("next in")
    page.browser.run("window.confirm = () => true")
    page.press_button("Delete")
    page.sees("There are no schedules")


def test_the_queue_shows_running_jobs(page, client, speech):
    page.go("#/overview")
    page.sees("Runs take place in this server", "No run is under way.")
    client.post("/threads", json={"thread_id": "chat"})
    body = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "hello"}]}}
    client.post("/threads/chat/runs", json=body)
    client.post("/threads/chat/runs", json=body)
    page.sees("chat", "running", "pending")
    speech.go_on.release(9)
    page.sees("No run is under way.")


def test_the_queue_shows_what_is_spent_of_shared_budgets(browser):
    paying = chain_of(Log, pay=lambda state, runtime: runtime.spend(usd=0.75)).compile(budget=Budget(usd=0.5, per="user"))
    with serving(create_app({"paying": paying})) as url, httpx.Client(base_url=url, timeout=30) as client:
        config = {"configurable": {"user": "ann"}}
        client.post("/runs/wait", json={"assistant_id": "paying", "input": {"log": []}, "config": config})
        page = Reader(browser, url)
        page.go("#/overview")
        page.sees("Budgets", "user ann", "0.75 of 0.5 usd", "empty")
        page.leave()


def test_the_queue_shows_workers_jobs_and_dead_letters_of_a_fleet(browser, postgres, speech):
    def auth(request):
        return request.cookies.get("user")

    body = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "hello"}]}}
    with opened("postgres", postgres) as bound:
        with serving(create_app({"chat": make_chat(speech)}, **bound, workers=1)) as url:
            page = Reader(browser, url)
            with httpx.Client(base_url=url, timeout=30) as client:
                for thread in ("first", "second"):
                    client.post("/threads", json={"thread_id": thread})
                    client.post(f"/threads/{thread}/runs", json=body).raise_for_status()
            page.go("#/overview")
            page.sees("Workers 1", "1 job", "Jobs 2", "first", "running", "second", "waiting", "No job has been given up")
            speech.go_on.release(9)
            page.sees("No job waits or runs.", "idle")
            page.leave()
        with serving(create_app({"chat": make_chat(speech)}, **bound, workers=0, auth=auth)) as url:
            for user in ("ann", "bob"):
                with httpx.Client(base_url=url, timeout=30, cookies={"user": user}) as client:
                    client.post("/threads", json={"thread_id": f"of-{user}"})
                    client.post(f"/threads/of-{user}/runs", json=body).raise_for_status()
            with psycopg.connect(postgres, autocommit=True) as direct:
                direct.execute("UPDATE stategraph_jobs SET state = 'parked' WHERE state = 'waiting'")
            with httpx.Client(base_url=url, cookies={"user": "ann"}) as client:
                told = client.get("/page/queue").json()
            assert [(each["thread_id"], each["status"]) for each in told["dead"]] == [("of-ann", "parked")]
            assert (told["jobs"], "workers" in told) == ([], False)
            browser.tell("Network.setCookie", url=url, name="user", value="ann")
            page = Reader(browser, url)
            page.go("#/overview")
            page.sees("Dead letters 1", "of-ann", "parked")
            assert "Workers" not in page.text() and "of-bob" not in page.text()
            page.press_button("Retry")
            page.sees("No job has been given up", "of-ann", "waiting")
            with psycopg.connect(postgres, autocommit=True) as direct:
                direct.execute("UPDATE stategraph_jobs SET state = 'parked', deaths = 3 WHERE state = 'waiting'")
            page.sees("Dead letters 1", "3 workers died")
            browser.run("window.confirm = () => false")
            page.press_button("Drop")
            browser.run("new Promise(done => setTimeout(done, 100)); window.confirm = () => true")
            page.sees("Dead letters 1")
            page.press_button("Drop")
            page.sees("No job has been given up", "No job waits or runs.")
            browser.tell("Network.clearBrowserCookies")
            page.leave()


def test_the_overview_groups_failures_and_tries_them_again(page, client):
    for thread in ("one", "two"):
        order(client, thread, "bomb")
        answer(client, thread)
    order(client, "asks")
    page.go("#/overview")
    page.sees("Failures 1", "ValueError", "cannot ship", "2 threads", "40 %")  # five runs, two of them failed
    told = client.get("/page/overview").json()
    assert [sum(kind) for kind in zip(*told["minutes"], strict=True)] == [5, 2]
    assert 0 < told["took"][0] <= told["took"][1]
    before = {each: client.get(f"/threads/{each}/runs").json() for each in ("one", "two")}
    page.press_button("Retry all")
    page.sees("2 threads tried again.", within="#said")
    for thread, runs in before.items():
        finish(client, thread)
        assert len(client.get(f"/threads/{thread}/runs").json()) == len(runs) + 1
    page.sees("57 %")


# -- keys, errors ------------------------------------------------------------------------------------------------------


def test_the_keyboard_is_enough(page, client):
    order(client, "one")
    order(client, "two")
    page.go("")
    page.sees("one", "two")
    press = page.browser.press
    press("j"), press("j"), press("j"), press("k")
    assert page.browser.run("document.activeElement.dataset.row") == "two"
    press("Enter")
    page.sees("two", within=".thread-head")
    press("g"), press("i")
    page.sees("2 threads ask")
    press("g"), press("t")
    page.until("document.querySelector('a.row')")
    press("/")
    assert page.browser.run("document.activeElement.type") == "search"
    page.browser.tell("Input.insertText", text="one")
    page.until("document.querySelectorAll('a.row').length === 1")
    press("Escape")
    press("?")
    page.sees("next row", "inbox", within="dialog")
    press("Escape")
    page.until("!document.querySelector('dialog')")


def test_the_link_to_the_content_leaves_the_view_as_it_is(page):
    page.go("#/overview")
    page.sees("No run is under way.")
    page.browser.run("document.querySelector('.skip').focus()")
    page.browser.press("Enter")
    page.until("document.activeElement.id === 'main'")
    assert page.browser.run("location.hash") == "#/overview"
    page.sees("No run is under way.")


def test_errors_are_sentences(page):
    page.go("#/thread/nobody")
    page.sees("There is no thread “nobody”.")
    page.go("#/nowhere")
    page.sees("There is no such page: choose one above.")
    page.browser.said.clear()  # the browser tells of the 404
    page.go("")
    with offline(page):
        page.until("document.getElementById('lost').textContent.startsWith('The server cannot be reached')")
        page.sees("Threads")
    page.until("document.getElementById('lost').hidden")
    page.browser.said.clear()  # the browser tells of requests that failed


# -- safety ------------------------------------------------------------------------------------------------------------


def test_hostile_texts_are_never_interpreted_as_html(page, client, speech):
    id = "<b onclick=alert(1)>id\"'"
    client.post("/threads", json={"thread_id": id, "metadata": {HOSTILE: HOSTILE}}).raise_for_status()
    place = "/threads/" + httpx.QueryParams({"": id}).__str__()[1:].replace("+", "%20")
    client.post(f"{place}/runs/wait", json={"assistant_id": "orders", "input": {"item": HOSTILE}}).raise_for_status()
    order(client, "bomb", "bomb")
    answer(client, "bomb")
    client.post("/threads", json={"thread_id": "chat"})
    message = {"role": "user", "content": HOSTILE, "name": HOSTILE}
    speech.pieces = [HOSTILE]
    speech.go_on.release(9)
    client.post("/threads/chat/runs/wait", json={"assistant_id": "chat", "input": {"messages": [message]}})
    made = {"assistant_id": "chat", "name": HOSTILE, "graph_id": "chat"}
    client.post("/assistants", json=made).raise_for_status()
    client.post("/runs/crons", json={"assistant_id": "orders", "schedule": "0 9 * * *", "input": {HOSTILE: HOSTILE}})
    within = "encodeURIComponent(" + repr(id) + ")"
    page.go("")
    for place in ("''", "'inbox'", f"'thread/' + {within}", f"'thread/' + {within} + '/state'", "'thread/bomb'", "'thread/chat/chat'", "'schedules'", "'overview'", "'store'"):
        page.browser.run(f"location.hash = '#/' + {place}")
        page.until("document.querySelector('main').childElementCount > 0")
        page.browser.run("new Promise(done => setTimeout(done, 300))")
        assert page.browser.run("document.querySelectorAll('main img, main script, main b[onclick]').length") == 0
    page.browser.run("location.hash = '#/thread/bomb/state'")
    page.sees("cannot ship <img src=x")
    assert page.browser.run("window.hacked") is None


def test_the_policy_forbids_what_a_mistake_of_the_page_would_let_in(page):
    page.go("")
    for attempt in (
        "document.body.innerHTML = '<img src=x>'",
        "document.createElement('script').text = '1'",
        "new DOMParser().parseFromString('<p>', 'text/html')",
    ):
        refused = f"(() => {{ try {{ {attempt}; return 'done'; }} catch (error) {{ return error.name; }} }})()"
        assert page.browser.run(refused) in ("TypeError", "EvalError"), attempt
    page.browser.said.clear()


def test_files_are_sent_with_the_policy_and_only_those_of_the_page(client):
    shell = client.get("/")
    policy = shell.headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):
        assert rule in policy.split("; ")
    script = client.get("/page/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["x-content-type-options"] == "nosniff"
    again = client.get("/page/main.js", headers={"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("page.py", "nothing.js", "..%2Fapp.py", "..%2F..%2Fpyproject.toml", "%2Fetc%2Fpasswd"):
        assert client.get(f"/page/{name}").status_code == 404, name
    assert client.post("/", json={}).status_code == 405


def test_behind_a_cookie_each_user_sees_the_own_threads(browser):
    def auth(request):
        return {"s3cret": "ann", "other": "bob"}.get(request.cookies.get("session"))

    app = create_app({"orders": make_orders()}, auth=auth)
    with serving(app) as url:
        for user, cookie in {"ann": "s3cret", "bob": "other"}.items():
            with httpx.Client(base_url=url, cookies={"session": cookie}) as client:
                order(client, f"of-{user}", "tea")
        page = Reader(browser, url)
        page.go("")  # the shell holds no data: everybody gets it
        page.sees("You are not logged in here")
        browser.tell("Network.setCookie", url=url, name="session", value="s3cret", httpOnly=True, sameSite="Strict")
        page.go("")
        page.sees("of-ann")
        page.write("input[type=search]", "tea")
        page.browser.run("new Promise(done => setTimeout(done, 500))")
        page.sees("of-ann")
        assert "of-bob" not in page.text()
        page.go("#/thread/of-bob")
        page.sees("There is no thread “of-bob”.")
        page.go("#/overview")
        page.sees("No run is under way.")
        browser.tell("Network.clearBrowserCookies")
        browser.said.clear()


def test_a_token_logs_in_for_as_long_as_the_tab_is_open(browser):
    def auth(request):
        return {"Bearer s3cret": "ann"}.get(request.headers.get("authorization", ""))

    with serving(create_app({"orders": make_orders()}, auth=auth)) as url:
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer s3cret"}) as client:
            order(client, "of-ann", "tea")
        page = Reader(browser, url)
        page.go("")
        for token in ("wrong…", "\u200bs3cret"):  # what no header can have is left out
            page.sees("You are not logged in here")
            page.write("[aria-label=Token]", token)
            page.press_button("Log in")
        page.sees("of-ann")
        page.go("#/thread/of-ann/graph")  # drawings are asked for with it, too
        page.until("document.querySelector('.graph-picture svg')")
        page.browser.run("sessionStorage.clear()")
        page.go("")
        page.sees("You are not logged in here")
        page.leave()


def test_a_browser_that_allows_no_storage_shows_the_page(browser):
    forbidden = "Object.defineProperty(window, 'sessionStorage', { get() { throw new Error('not allowed'); } })"
    with serving(create_app({"orders": make_orders()})) as url:
        with httpx.Client(base_url=url) as client:
            order(client, "one", "tea")
        script = browser.tell("Page.addScriptToEvaluateOnNewDocument", source=forbidden)["identifier"]
        page = Reader(browser, url)
        page.go("")
        page.sees("one")
        page.leave()
        browser.tell("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_it_works_below_a_path_of_another_app(browser):
    app = create_app({"orders": make_orders()})
    site = Starlette(routes=[Mount("/graphs", app)], lifespan=lambda _: app.router.lifespan_context(app))
    with serving(site) as url:
        page = Reader(browser, f"{url}/graphs")
        with httpx.Client(base_url=f"{url}/graphs") as client:
            order(client, "one")
        page.go("#/inbox")
        page.sees("Buy tea?")
        assert all(each.startswith((f"{url}/graphs/", "data:", "about:")) for each in browser.asked_for[-5:])


# -- looks ---------------------------------------------------------------------------------------------------------------


def test_dark_and_light_can_be_chosen_and_stay_chosen(page):
    page.go("")
    shade = "getComputedStyle(document.body).backgroundColor"
    light = page.browser.run(shade)
    page.click("#theme")
    dark = page.browser.run(shade)
    assert dark != light
    page.go("#/inbox")
    assert page.browser.run(shade) == dark
    page.click("#theme")
    assert page.browser.run(shade) == light


CONTRASTS = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const paint = (colours) => {
    canvas.fillStyle = "#fff"; canvas.fillRect(0, 0, 1, 1);
    for (const each of colours) { canvas.fillStyle = each; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const backs = (element) => element ? [...backs(element.parentElement), getComputedStyle(element).backgroundColor] : [];
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((each) => each.nodeType === 3 && each.data.trim()).map((each) => each.data).join("");
    if (!text || !element.checkVisibility() || element.closest("svg, option, .skip, :disabled")) continue;
    const back = backs(element), pair = [light(paint(back)), light(paint([...back, getComputedStyle(element).color]))].sort();
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (contrast < 4.5) poor.push(`${text.slice(0, 30)} (${element.className}): ${contrast.toFixed(2)}`);
  }
  return [...new Set(poor)];
})()
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_contrast_to_their_background(page, client, speech, theme):
    order(client, "asks")
    order(client, "failed", "bomb")
    answer(client, "failed")
    speech.pieces = ["# Sky\n\n> said\n\n- `code` [link](https://a.org) [b.org](https://a.org)\n\n```python\ngo()\n```\n\n", "a|b\n-|-\nc|~~d~~"]
    speech.go_on.release(9)
    client.post("/threads", json={"thread_id": "chat"})
    client.post("/threads/chat/runs/wait", json={"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "weather `x` https://a.org"}]}})
    client.post("/runs/crons", json={"assistant_id": "orders", "schedule": "0 9 * * *", "input": {"item": "tea"}})
    for place in ("", "#/inbox", "#/thread/asks/state", "#/thread/failed/steps", "#/thread/chat/chat", "#/schedules", "#/overview", "#/store"):
        page.go(place)
        page.browser.run(f"document.documentElement.dataset.theme = '{theme}'; new Promise(done => setTimeout(done, 300))")
        assert page.browser.run(CONTRASTS) == [], place


@pytest.mark.parametrize("width", [390, 1280])
def test_every_view_fits_its_window_and_names_its_controls(page, client, width, speech):
    order(client, "a-long-id-" * 8, "word " * 200)
    speech.pieces = ["long" * 300]
    speech.go_on.release(9)
    client.post("/threads", json={"thread_id": "chat"})
    client.post("/threads/chat/runs/wait", json={"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "x" * 900}]}})
    client.post("/runs/crons", json={"assistant_id": "orders", "schedule": "0 9 * * *", "input": {"item": "tea " * 99}})
    page.browser.tell("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
    try:
        for place in ("", "#/inbox", f"#/thread/{'a-long-id-' * 8}/state", "#/thread/chat", "#/schedules", "#/overview", "#/store"):
            page.go(place)
            page.browser.run("new Promise(done => setTimeout(done, 300))")
            assert page.browser.run("document.documentElement.scrollWidth") <= width, place
            nameless = """[...document.querySelectorAll('button, input, textarea, select, a')].filter(each => !(
                each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length)).map(each => each.outerHTML)"""
            assert page.browser.run(nameless) == [], place
    finally:
        page.browser.tell("Emulation.clearDeviceMetricsOverride")
