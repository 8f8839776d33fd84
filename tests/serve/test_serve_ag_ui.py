"""The server, as a frontend that speaks AG-UI sees it: over a real socket."""

import threading

import httpx
import pytest
from ag_ui.core import ToolMessage, UserMessage
from ag_ui.core.types import ImagePart, TextPart
from ag_ui_page import Page, arguments, make_tool
from hypothesis import given
from hypothesis import strategies as st
from jsonpatch import apply_patch
from served_agents import make_desk, make_forgetful, make_langchain
from serving import Gates, make_flow, serving

from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.serve import create_app
from stategraph.serve.protocols.ag_ui import routes
from stategraph.serve.protocols.ag_ui.events import AgUiEvents
from stategraph.store.sqlite import SqliteStore


@pytest.fixture
def gates():
    return Gates()


@pytest.fixture
def url(gates):
    with serving(create_app({"desk": make_desk(gates), "flow": make_flow(gates)})) as url:
        yield url


def stored(page):
    """The state that the server holds, as its own API tells it."""
    address = page.address.partition("/ag-ui")[0]
    answer = httpx.get(f"{address}/threads/{page.thread}/state", headers=page.headers)
    return dict(answer.raise_for_status().json()["values"])


def check_agreement(page):
    """What the page holds is what the server holds."""
    values = stored(page)
    assert [each.id for each in page.messages] == [each["id"] for each in values.pop("messages")]
    assert page.state == values


def test_a_chat_with_a_tool(url):
    page = Page(url)
    end = page.run("weather")
    assert end.outcome.type == "success" and end.outcome.pending_tool_call_ids is None
    assert (end.thread_id, end.run_id) == (page.thread, page.events[0].run_id)
    [call], [result] = page.of("TOOL_CALL_START"), page.of("TOOL_CALL_RESULT")
    assert (call.tool_call_id, call.tool_call_name, call.parent_message_id) == ("call-1", "weather", "answer-1")
    assert len(page.of("TOOL_CALL_ARGS")) == 2 and arguments(page.of("TOOL_CALL_ARGS")) == {"city": "Rome"}
    assert (result.tool_call_id, result.content) == ("call-1", "sunny")
    assert page.text() == "Let me see.Done: sunny"
    assert [each.step_name for each in page.of("STEP_STARTED")] == ["model", "tools", "model"]
    assert page.of("CUSTOM")[0].name == "thinking" and page.of("CUSTOM")[0].value == {"about": "weather"}
    assert page.said() == [
        ("user", "weather"), ("assistant", "Let me see."), ("tool", "sunny"), ("assistant", "Done: sunny"),
    ]  # fmt: skip
    assert page.state == {"log": ["model", "tools", "model"], "order": {"items": ["sunny"]}}
    check_agreement(page)


def test_messages_without_ids_keep_their_order():
    with serving(create_app({"forgetful": make_forgetful()})) as url:
        page = Page(url, graph="forgetful")
        end = page.run("hi")
    assert end.outcome.pending_tool_call_ids is None
    assert [call.tool_call_id for call in page.of("TOOL_CALL_START")] == ["c1", "c2"]
    assert page.said() == [
        ("user", "hi"), ("assistant", None), ("tool", "seen"), ("tool", "seen"), ("assistant", "Done."),
    ]  # fmt: skip
    assert [call.function.arguments for call in page.messages[1].tool_calls] == ['{"at": "it"}', '{"at": "him"}']


def test_messages_of_langchain_in_a_graph_inside():
    with serving(create_app({"langchain": make_langchain()})) as url:
        page = Page(url, graph="langchain")
        assert page.run("hi").outcome.pending_tool_call_ids is None
        assert page.said() == [("user", "hi"), ("assistant", None), ("tool", "seen"), ("assistant", "Done.")]
        assert page.messages[1].tool_calls[0].function.name == "look" and page.messages[2].error == "seen"
        assert len(page.of("TOOL_CALL_ARGS")) == 2 and arguments(page.of("TOOL_CALL_ARGS")) == {"at": "it"}
        assert [each.delta for each in page.of("TEXT_MESSAGE_CONTENT")] == ["Do", "ne."]
        assert [each.content for each in page.of("TOOL_CALL_RESULT")] == ["seen"]
        assert [each.step_name for each in page.of("STEP_STARTED")] == ["agent"]
        before = [each.id for each in page.messages]
        page.run("so")  # the result got another id in the state, and is not doubled
        assert [each.id for each in page.messages][:4] == before
        assert [each["type"] for each in stored(page)["messages"]][:5] == ["human", "ai", "tool", "ai", "human"]


def test_messages_that_are_sent_again_are_not_doubled(url):
    page = Page(url)
    page.run("weather")
    page.run("hi")
    assert [role for role, _ in page.said()] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert page.state["log"] == ["model", "tools", "model", "model"]
    check_agreement(page)


def test_a_message_that_the_user_has_edited_replaces_the_old_one(url):
    page = Page(url)
    page.run("hi")
    page.messages[0] = UserMessage(id=page.messages[0].id, content="ho")
    page.run("so")
    assert page.said()[0] == ("user", "ho") and len(page.said()) == 4
    check_agreement(page)


def test_a_page_without_history_receives_it(url):
    page = Page(url)
    page.run("weather")
    other = Page(url, thread=page.thread)
    other.messages.append(UserMessage(id="new", content="hi"))
    other.run()
    assert len(other.messages) == 6 and other.state["order"] == {"items": ["sunny"]}
    assert other.kinds().index("MESSAGES_SNAPSHOT") < other.kinds().index("TEXT_MESSAGE_START")
    # What the page held keeps its place, as the protocol says: the rest comes behind it.
    assert {each.id for each in other.messages} == {each["id"] for each in stored(other)["messages"]}


def test_what_the_page_changes_of_the_state_replaces_it(url):
    page = Page(url)
    page.run("weather")
    page.state = {"log": ["mine"], "order": {"items": []}, "unknown": 1}
    page.run("hi")
    assert page.state == {"log": ["mine", "model"], "order": {"items": []}}
    check_agreement(page)


@pytest.mark.trial
def test_a_question_ends_the_run_and_the_next_input_answers_it(url):
    page = Page(url)
    end = page.run("approve")
    [asked] = end.outcome.interrupts
    assert (asked.reason, asked.message, asked.tool_call_id) == ("tool_call", "Really?", "call-1")
    assert asked.response_schema["required"] == ["approved"]
    assert asked.metadata["value"]["question"] == "Really?"
    check_agreement(page)
    assert page.resume({"approved": True}).outcome.type == "success"
    assert page.kinds()[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"] and not page.of("TOOL_CALL_START")
    assert page.of("TOOL_CALL_RESULT")[0].content == "True" and page.said()[-1] == ("assistant", "Done: True")
    check_agreement(page)


def test_a_question_stays_open_until_it_is_answered(url):
    page = Page(url)
    [asked] = page.run("approve").outcome.interrupts
    held = [*page.messages]
    refused = page.run("hi")
    assert page.kinds() == ["RUN_ERROR"]
    assert refused.code == "interrupt_open" and asked.id in refused.message
    page.messages = held
    wrong = [{"interruptId": "other", "status": "resolved", "payload": 1}]
    assert page.run(resume=wrong).code == "interrupt_open"
    known = {"interruptId": asked.id, "status": "resolved", "payload": {"approved": False}}
    assert page.run(resume=[*wrong, known]).outcome.type == "success"
    assert page.said()[-1] == ("assistant", "Done: False")


@pytest.mark.trial
def test_an_answer_that_is_sent_again_changes_nothing(url):
    page = Page(url)
    page.run("approve")
    given = page.given(resume=[{
        "interruptId": page.events[-1].outcome.interrupts[0].id, "status": "resolved", "payload": {"approved": True},
    }])  # fmt: skip
    page.send(given)
    before = stored(page)
    assert page.send(given).outcome.type == "success"
    assert stored(page) == before
    check_agreement(page)


def test_a_question_that_is_abandoned_is_answered_with_none(url):
    page = Page(url, graph="flow")
    page.state = {"topic": "ask"}
    [asked] = page.run().outcome.interrupts
    assert (asked.reason, asked.metadata) == ("input_required", {"value": {"question": "name?"}})
    page.resume(None, status="cancelled")
    assert page.state["log"] == ["a", None]


@pytest.mark.trial
def test_runs_of_a_stopped_server_continue_in_the_next(tmp_path, gates):
    place, page = str(tmp_path / "served.db"), Page("")
    gates.close("weather")
    for is_first in (True, False):
        with SqliteSaver.from_conn_string(place) as saver, SqliteStore.from_conn_string(place) as store:
            app = create_app({"desk": make_desk(gates)}, checkpointer=saver, store=store)
            with serving(app) as url:
                page.address = f"{url}/ag-ui/desk"
                if is_first:
                    running = threading.Thread(target=page.run, args=["weather"])
                    running.start()
                    assert gates.reached["weather"].wait(20)
                    app.state.begin_to_stop()
                    gates.open("weather")
                    running.join(20)
                    assert (page.events[-1].type.value, page.events[-1].code) == ("RUN_ERROR", "server_stopped")
                else:
                    while httpx.get(f"{url}/threads/{page.thread}").json()["status"] == "busy":
                        pass
                    page.run("hi")
                    values = stored(page)
    assert [each["content"] for each in values.pop("messages")] == [
        "weather", "Let me see.", "sunny", "Done: sunny", "hi", "You said hi.",
    ]  # fmt: skip
    assert page.state == values
    # What the page has not seen comes behind what it holds, as the protocol says.
    assert [text for _, text in page.said()] == [
        "weather", "Let me see.", "hi", "sunny", "Done: sunny", "You said hi.",
    ]  # fmt: skip


def test_tools_of_the_page_reach_the_graph_and_are_called_by_the_page(url):
    page = Page(url)
    tools = [make_tool("locate")]
    page.run("tools?", tools=tools)
    assert page.said()[-1] == ("assistant", "['locate'] ['locate']")
    end = page.run("locate", tools=tools)
    [call] = page.of("TOOL_CALL_START")
    assert end.outcome.pending_tool_call_ids == [call.tool_call_id]
    page.messages.append(ToolMessage(id="found", tool_call_id=call.tool_call_id, content="Rome"))
    assert page.run(tools=tools).outcome.pending_tool_call_ids is None
    assert page.said()[-1] == ("assistant", "Done: Rome")
    check_agreement(page)


def test_a_failure_is_reported(url):
    page = Page(url)
    end = page.run("fail")
    assert (end.type.value, end.code, end.message) == ("RUN_ERROR", "ValueError", "boom")
    page.messages.pop()
    assert page.run("hi").outcome.type == "success"


def test_a_run_that_is_cancelled_says_so(url, gates):
    gates.close("hi")
    page = Page(url)
    running = threading.Thread(target=page.run, args=["hi"])
    running.start()
    assert gates.reached["hi"].wait(20)
    busy = Page(url, thread=page.thread).run("so")
    assert busy.status_code == 409
    httpx.post(f"{url}/runs/cancel", json={"thread_id": page.thread, "status": "all"}).raise_for_status()
    running.join(20)
    assert page.events[-1].outcome.type == "cancelled"


def test_a_run_that_begins_later_is_not_waited_for(url, monkeypatch):
    page = Page(url)
    later = {"assistant_id": "desk", "input": {}, "after_seconds": 3600}
    httpx.post(f"{url}/threads", json={"thread_id": page.thread}).raise_for_status()
    httpx.post(f"{url}/threads/{page.thread}/runs", json=later).raise_for_status()
    monkeypatch.setattr(routes, "PATIENCE", 3600.0)
    assert page.run("hi").type.value == "RUN_FINISHED"


def test_a_page_that_leaves_stops_the_run(url, gates):
    gates.close("hi")
    page = Page(url)
    body = page.given("hi").model_dump(by_alias=True)
    with httpx.stream("POST", page.address, json=body, timeout=60) as response:
        lines = response.iter_lines()  # kept, since the response is closed with it
        assert next(lines).startswith("data: ")
        assert gates.reached["hi"].wait(20)
    while httpx.get(f"{url}/threads/{page.thread}").json()["status"] == "busy":
        pass
    [run] = httpx.get(f"{url}/threads/{page.thread}/runs").json()
    assert run["status"] == "interrupted"
    gates.open("hi")
    page.messages.clear()
    assert page.run("so").outcome.type == "success"


def test_pictures_travel_both_ways(url):
    page = Page(url)
    picture = ImagePart(source={"type": "data", "value": "aGk=", "mimeType": "image/png"})
    page.messages.append(UserMessage(id="seen", content=[TextPart(text="look"), picture]))
    page.run()
    assert stored(page)["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]
    assert page.messages[0].content[1].source == picture.source


def auth(request):
    return {"Bearer ann": "ann", "Bearer bob": "bob"}.get(request.headers.get("authorization"))


def test_response_times_reveal_nothing_of_other_users(gates, monkeypatch):
    waited = []

    async def wait(_, thread_id):
        waited.append(thread_id)

    monkeypatch.setattr("stategraph.serve.protocols.ag_ui.routes._wait_until_free", wait)
    with serving(create_app({"desk": make_desk(gates)}, auth=auth)) as url:
        ann = Page(url, token="Bearer ann")
        ann.run("approve")
        assert Page(url, thread=ann.thread, token="Bearer bob").run("hi").status_code == 404
        assert waited == [ann.thread]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422), ({"threadId": "1", "runId": "1", "messages": [{"role": "hm"}]}, 422), (b"{", 422),
        ({"threadId": "", "runId": "1", "messages": []}, 422), (b'{"threadId": "1", "runId": "1", "messages": [], "state": 1e999}', 422), (b"x" * 5_000_000, 413),
    ],
)  # fmt: skip
def test_what_is_no_input_is_refused(url, body, status):
    given = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = httpx.post(f"{url}/ag-ui/desk", headers={"content-type": "application/json"}, **given)
    assert answer.status_code == status and "detail" in answer.json()


def test_a_graph_that_is_not_there(url):
    answer = Page(url, graph="none").run("hi")
    assert answer.status_code == 404 and "desk" in answer.json()["detail"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("a/~0", max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("ab/~", max_size=2), VALUES), st.dictionaries(st.text("ab/~", max_size=2), VALUES))
def test_a_patch_makes_the_new_value_of_the_old(old, new):
    sent = AgUiEvents("t", "r")
    [snapshot] = sent.of("values", old)
    deltas = [each for event in sent.of("values", new) for each in event.delta]
    made = apply_patch(snapshot.snapshot, [each.model_dump(by_alias=True, exclude_unset=True) for each in deltas])
    assert repr(sorted(made.items(), key=str)) == repr(sorted(new.items(), key=str)) or made == new
    assert [*sent.of("values", made)] == []


def test_a_patch_names_only_what_has_changed():
    """The state comes from a client, and is compared on the event loop: the work grows with its size."""
    rows, deep = [*range(500)], 1
    for _ in range(100):
        deep = [deep]
    sent = AgUiEvents("t", "r")
    assert [*sent.of("values", {"rows": rows, "deep": deep, "gone": 1, "is": 1})]
    [event] = sent.of("values", {"rows": rows[1:], "deep": deep, "is": True})
    operations = [each.model_dump(by_alias=True, exclude_unset=True) for each in event.delta]
    changed = [{"op": "add", "path": "/rows", "value": rows[1:]}, {"op": "add", "path": "/is", "value": True}]
    assert operations == [{"op": "remove", "path": "/gone"}, *changed]
