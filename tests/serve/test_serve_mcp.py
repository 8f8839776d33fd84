"""The server, as the official MCP client sees it: over a real socket, with the protocol of today and with the one before."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
from in_process import asking
from kit.graphs import chain_of
from langchain_core.messages import AnyMessage
from mcp import types
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_calls import ERAS, Person, call, connect, talk
from pydantic import BaseModel
from served_agents import make_desk
from serving import Gates, Log, flow_app, make_flow, opened, serving
from typing_extensions import TypedDict

from stategraph import add_messages, entrypoint, interrupt
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.prebuilt.tool_node import ToolDecision
from stategraph.serve import create_app
from stategraph.serve.protocols.mcp import server as mcp_server
from stategraph.serve.protocols.mcp.tools import ANSWER, make_form, make_tools
from stategraph.serve.runs.in_process import Runs
from stategraph.store.sqlite import SqliteStore


class Order(BaseModel):
    """Orders a thing."""

    item: str
    count: int = 1


class Address(BaseModel):
    street: str


class Delivery(TypedDict):
    to: Address


def make_order():
    def ask(state: Order):
        to = interrupt({"question": "Where to?"}, response_schema=Delivery)["to"]
        return {"item": f"{state.item} to {to.street}"}

    return chain_of(Order, ask=ask).compile()


@entrypoint()
def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


@pytest.fixture
def gates():
    return Gates()


def make_graphs(gates):
    return {"desk": make_desk(gates), "flow": make_flow(gates), "double": double, "an order": make_order()}


@pytest.fixture
def url(gates):
    with serving(create_app(make_graphs(gates))) as url:
        yield url


@pytest.fixture(params=ERAS)
def mode(request):
    return str(request.param)


def text(result):
    return str(result.content[0].text)


def test_each_graph_is_a_tool_with_its_schemas(url, mode):
    found = {each.name: each for each in talk(url, mode, lambda client: client.list_tools()).tools}
    assert [*found] == ["desk", "flow", "double", "an_order", ANSWER]
    assert found["double"].description == "Doubles a number."
    assert found["an_order"].description == "Orders a thing."
    assert found["flow"].description == "Runs the graph flow."
    assert found["double"].input_schema["properties"]["input"] == {"type": "integer"}
    assert found["double"].output_schema["properties"]["result"] == {"type": "integer"}
    assert found["an_order"].input_schema["required"] == ["item"]
    assert found["an_order"].output_schema["properties"]["count"]["type"] == "integer"


def test_a_tool_gives_the_output_of_its_graph(url, mode):
    result = call(url, mode, "flow", {"log": ["x"]})
    assert result.structured_content == {"log": ["x", "a", "b"]} and not result.is_error
    assert json.loads(text(result)) == result.structured_content
    state = httpx.get(f"{url}/threads/{result.meta['thread_id']}/state").json()
    assert state["values"] == result.structured_content
    assert call(url, mode, "double", {"input": 4}).structured_content == {"result": 8}


def test_an_agent_with_tools_continues_its_thread(url, mode):
    said = [{"role": "user", "content": "weather"}]
    first = call(url, mode, "desk", {"messages": said})
    assert first.structured_content["order"] == {"items": ["sunny"]}
    again = [{"role": "user", "content": "hi"}]
    result = call(url, mode, "desk", {"messages": again, "thread_id": first.meta["thread_id"]})
    assert [each["content"] for each in result.structured_content["messages"]] == [
        "weather", "Let me see.", "sunny", "Done: sunny", "hi", "You said hi.",
    ]  # fmt: skip


def test_supersteps_are_reported_as_progress(url, mode):
    told = []

    async def hear(done: float, total: float | None, message: str | None):
        told.append((done, total, message))

    async def session(client: Client):
        given = {"messages": [{"role": "user", "content": "approve"}]}
        return await client.call_tool("desk", given, progress_callback=hear)

    talk(url, mode, session, Person({"approved": True}))
    assert [message for _, _, message in told] == ["model", "tools", "model"]
    # A client of today calls again with the answer: a call of its own.
    assert [done for done, _, _ in told] == ([1, 1, 2] if mode == "auto" else [1, 2, 3])


def test_a_question_is_a_form(url, mode):
    person = Person({"answer": "Ann"})
    result = call(url, mode, "flow", {"topic": "ask"}, person)
    assert result.structured_content == {"topic": "ask", "log": ["a", "Ann"]}
    [asked] = person.asked
    assert asked.message == "name?" and asked.requested_schema["properties"]["answer"]["type"] == "string"

    person = Person({"approved": True})
    given = {"messages": [{"role": "user", "content": "approve"}]}
    assert "Done: True" in text(call(url, mode, "desk", given, person))
    assert person.asked[0].requested_schema["properties"]["approved"]["type"] == "boolean"


def test_a_question_without_elicitation_is_the_result_and_is_answered_by_a_tool(url, mode):
    result = call(url, mode, "flow", {"topic": "ask"})
    [question], thread = result.structured_content["__interrupt__"], result.structured_content["thread_id"]
    assert not result.is_error and question["value"] == {"question": "name?"}
    assert ANSWER in text(result) and thread in text(result) and "name?" in text(result)

    busy = call(url, mode, "flow", {"topic": "x", "thread_id": thread})
    assert busy.is_error and ANSWER in text(busy)
    wrong = call(url, mode, ANSWER, {"thread_id": thread, "answer": "Ann", "question": "other"})
    assert wrong.is_error and question["id"] in text(wrong)
    answered = call(url, mode, ANSWER, {"thread_id": thread, "answer": "Ann"})
    assert answered.structured_content["log"] == ["a", "Ann"]
    again = call(url, mode, ANSWER, {"thread_id": thread, "answer": "Ann"})
    assert again.is_error and "open: none" in text(again)


def test_an_interrupt_whose_answer_fits_no_form_is_the_result(url, mode):
    person = Person()
    result = call(url, mode, "an_order", {"item": "tea"}, person)
    [question] = result.structured_content["__interrupt__"]
    assert person.asked == [] and question["response_schema"]["required"] == ["to"]
    thread = result.structured_content["thread_id"]
    answered = call(url, mode, ANSWER, {"thread_id": thread, "answer": {"to": {"street": "Main St"}}})
    assert answered.structured_content == {"item": "tea to Main St"}


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_question_that_is_declined_stays_open(url, mode, action):
    result = call(url, mode, "flow", {"topic": "ask"}, Person(action))
    thread = result.structured_content["thread_id"]
    assert httpx.get(f"{url}/threads/{thread}").json()["status"] == "interrupted"
    assert call(url, mode, ANSWER, {"thread_id": thread, "answer": "Bo"}).structured_content["log"] == ["a", "Bo"]


@asynccontextmanager
async def stopped_after(path, gates):
    """A server on a database, stopped at the end of the block."""
    with (
        SqliteSaver.from_conn_string(path) as saver,
        SqliteStore.from_conn_string(path) as store,
        serving(create_app(make_graphs(gates), checkpointer=saver, store=store)) as url,
    ):
        yield url


async def test_a_call_that_a_stopping_server_leaves_names_its_thread(tmp_path, gates):
    gates.close("slow")

    async def first(state):
        await gates.pass_through("slow")
        return {"log": ["first"]}

    with opened("sqlite", str(tmp_path / "served.db")) as place:
        chain = chain_of(Log, first=first, last=lambda state: {"log": ["last"]})
        app = create_app({"flow": chain.compile(name="flow")}, **place)
        with serving(app) as url:
            async with connect(url, "auto") as client:
                calling = asyncio.create_task(client.call_tool("flow", {"topic": "slow"}))
                await gates.are_reached("slow", 1)
                app.state.begin_to_stop()
                async with httpx.AsyncClient() as other:
                    while (await other.post(f"{url}/runs", json={"assistant_id": "flow"})).status_code != 503:
                        pass
                gates.open("slow")
                result = await calling
    assert result.is_error and "goes on with the thread" in text(result)


async def test_an_answer_is_accepted_after_a_restart(tmp_path, gates):
    path, given = str(tmp_path / "served.db"), {"topic": "ask"}
    async with stopped_after(path, gates) as url, connect(url, "auto", Person()) as client:
        asked = await client.session.call_tool("flow", given, allow_input_required=True)
    [(id, request)] = asked.input_requests.items()
    assert request.params.message == "name?"
    answers = {id: types.ElicitResult(action="accept", content={"answer": "Ann"})}
    async with stopped_after(path, gates) as url, connect(url, "auto", Person()) as client:
        await client.list_tools()
        for _ in range(2):  # sent again, it is not taken again
            result = await client.call_tool(
                "flow", given, input_responses=answers, request_state=asked.request_state
            )
            assert result.structured_content == {"topic": "ask", "log": ["a", "Ann"]}
        forged = await client.call_tool("double", {"input": 1}, request_state=asked.request_state)
        assert forged.is_error and "one of the graph 'flow'" in text(forged)
        missing = await client.call_tool("flow", given, request_state="none")
        assert missing.is_error and "there is no thread" in text(missing)


def test_what_goes_wrong_is_an_error_of_the_tool(url, mode, monkeypatch):
    failed = call(url, mode, "flow", {"topic": "fail"})
    assert failed.is_error and text(failed) == "ValueError: boom" and failed.meta["thread_id"]
    wrong = call(url, mode, "double", {"input": "x"})
    assert wrong.is_error and text(wrong) == "wrong arguments: $.input: 'x' is not of type 'integer'"
    answer = {"thread_id": failed.meta["thread_id"], "question": ["none"], "answer": 1}
    assert "must name an open question" in text(call(url, mode, "answer_question", answer))
    other = call(url, mode, "double", {"input": 1, "thread_id": failed.meta["thread_id"]})
    assert other.is_error and "one of the graph 'flow'" in text(other)

    async def session(client: Client):
        with pytest.raises(MCPError, match="no tool 'none'; there are: desk, flow"):
            await client.call_tool("none", {})

    talk(url, mode, session)

    def leak(*_):
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("stategraph.serve.protocols.mcp.server.begin_run", leak)
    hidden = call(url, mode, "double", {"input": 1})
    assert hidden.is_error and "hunter2" not in str(hidden)


def test_a_call_that_is_cancelled_stops_its_run(url, mode, gates):
    gates.close("wait")

    async def session(client: Client):
        given = {"topic": "wait", "thread_id": "waiting"}
        calling = asyncio.create_task(client.call_tool("flow", given))
        await asyncio.to_thread(gates.reached["wait"].wait, 20)
        calling.cancel()
        await asyncio.wait([calling])
        async with httpx.AsyncClient(base_url=url) as http:
            while (await http.get("/threads/waiting")).json()["status"] == "busy":
                await asyncio.sleep(0.01)
            [run] = (await http.get("/threads/waiting/runs")).json()
        assert run["status"] == "interrupted"
        assert (await client.call_tool("double", {"input": 2})).structured_content == {"result": 4}

    talk(url, mode, session)


def test_a_result_that_is_not_in_memory_any_more_is_read_from_the_thread(url, mode, monkeypatch):
    answer = Runs.answer

    async def forget(self, record):
        await answer(self, record)
        self._ended.drop(record["run_id"])

    monkeypatch.setattr(Runs, "answer", forget)
    assert call(url, mode, "double", {"input": 2}).structured_content == {"result": 4}
    asked = call(url, mode, "an_order", {"item": "tea"})
    assert not asked.is_error and "Not done yet" in text(asked)
    failed = call(url, mode, "flow", {"topic": "fail"})
    assert failed.is_error and failed.meta["thread_id"] in text(failed)


def test_a_run_that_is_cancelled_elsewhere_is_an_error(url, mode, gates):
    gates.close("wait")

    def cancel():
        assert gates.reached["wait"].wait(20)
        httpx.post(f"{url}/runs/cancel", json={"status": "all"}).raise_for_status()

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    result = call(url, mode, "flow", {"topic": "wait"})
    cancelling.join(20)
    assert result.is_error and text(result) == "the run was cancelled"


@pytest.mark.parametrize("value", ["\ud800", float("inf"), [[[]]] * 2], ids=["surrogate", "inf", "list"])
def test_what_cannot_be_stored_is_refused(url, value):
    """As in the body of any other route: half a character, no number, too many levels."""
    for _ in range(70 if isinstance(value, list) else 0):
        value = [value]
    about = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"_meta": about, "name": "desk", "arguments": {"messages": [value]}}
    headers = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call", "mcp-name": "desk", "content-type": "application/json",
    }  # fmt: skip
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    result = httpx.post(f"{url}/mcp", content=body.replace("Infinity", "1e999"), headers=headers).json()["result"]
    assert result["isError"] and "body" in result["content"][0]["text"]


def test_graphs_whose_tool_names_collide_get_unique_names():
    tools = make_tools({"a b": double, "a/b": double, "x" * 100: double})
    assert [*tools] == ["a_b", "a_b_", "x" * 64]
    assert [each.graph_id for each in tools.values()] == ["a b", "a/b", "x" * 100]
    assert [each.tool.name for each in tools.values()] == [*tools]


def test_a_tool_is_described_by_the_docstring_of_its_input():
    class Trip(TypedDict):
        """Plan a trip to some cities."""

        city: str

    trips = chain_of(Trip, a=lambda _: {}).compile()
    assert make_tools({"trips": trips})["trips"].tool.description == "Plan a trip to some cities."


def auth(request):
    return {"Bearer ann": "ann", "Bearer bob": "bob"}.get(request.headers.get("authorization"))


def test_two_users_have_threads_of_their_own(gates, mode):
    with serving(create_app(make_graphs(gates), auth=auth)) as url:
        asked = call(url, mode, "flow", {"topic": "ask"}, token="Bearer ann")
        given = {"thread_id": asked.structured_content["thread_id"], "answer": "Ann"}
        for name, arguments in ((ANSWER, given), ("flow", {"thread_id": given["thread_id"]})):
            stolen = call(url, mode, name, arguments, token="Bearer bob")
            assert stolen.is_error and "there is no thread" in text(stolen)
        assert call(url, mode, ANSWER, given, token="Bearer ann").structured_content["log"] == ["a", "Ann"]
        assert httpx.post(f"{url}/mcp", json={}).status_code == 401


def test_a_session_is_its_users(gates):
    with serving(create_app(make_graphs(gates), auth=auth)) as url:
        hello = {
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
        }  # fmt: skip
        headers = {"accept": "application/json, text/event-stream", "authorization": "Bearer ann"}
        session = httpx.post(f"{url}/mcp", json=hello, headers=headers).headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        for user, status in (("ann", 200), ("bob", 404)):
            mine = {**headers, "authorization": f"Bearer {user}", "mcp-session-id": session}
            assert httpx.post(f"{url}/mcp", json=listing, headers=mine).status_code == status


def test_a_package_that_is_missing_is_named(url, monkeypatch):
    def load(name: str, _):
        raise ModuleNotFoundError(name="mcp.server" if name == ".mcp.server" else "ag_ui.core")

    monkeypatch.setattr("stategraph.serve.protocols.routes.import_module", load)
    for path, extra in (("/mcp", "mcp"), ("/ag-ui/flow", "ag-ui")):
        answer = httpx.post(url + path, json={})
        assert answer.status_code == 501 and f"[{extra}]" in answer.json()["detail"]


CHOICE = {"$ref": "#/$defs/Size", "$defs": {"Size": {"enum": ["S", "M"], "type": "string"}}}
LIMIT = {"type": "object", "properties": {"n": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None}}}


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        (None, {"answer": {"type": "string", "title": "Answer"}}),
        ({"type": "boolean"}, {"answer": {"type": "boolean"}}),
        ({"const": "yes"}, {"answer": {"type": "string", "enum": ["yes"]}}),
        (CHOICE, {"answer": {"type": "string", "enum": ["S", "M"]}}),
        (LIMIT, {"n": {"type": "integer", "minimum": 1}}),
        ({"type": "object", "properties": {"to": {"type": "array", "items": {"type": "string"}}}}, None),
        ({"enum": [1, 2], "type": "integer"}, None),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, None),
        (True, None),
    ],
)  # fmt: skip
def test_which_questions_are_forms(schema, fields):
    form = make_form({"value": "?", "response_schema": schema})
    assert (form and form.schema["properties"]) == fields


def test_the_decision_about_a_tool_is_a_form():
    from pydantic import TypeAdapter

    form = make_form({"value": {"tool": "t"}, "response_schema": TypeAdapter(ToolDecision).json_schema()})
    assert form is not None and form.schema["required"] == ["decision"] and form.message == '{"tool": "t"}'
    jsonschema.validate({"decision": "approve"}, form.schema)


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


async def post(client, user, body, session=None):
    headers = {"x-user": user, "accept": "application/json, text/event-stream"}
    return await client.post("/mcp", json=body, headers=headers | ({"mcp-session-id": session} if session else {}))


async def test_one_user_opens_sessions_without_end_and_others_keep_theirs(monkeypatch):
    """The user's session that was used least recently is closed: its client is told to open a new one."""
    monkeypatch.setattr(mcp_server, "MOST_SESSIONS", 3)
    app = flow_app(auth=lambda request: request.headers.get("x-user"))
    async with asking(app) as client:
        [other] = [(await post(client, "ann", HELLO)).headers["mcp-session-id"]]
        opened = [(await post(client, "bob", HELLO)).headers["mcp-session-id"] for _ in range(3)]
        assert (await post(client, "bob", LIST, opened[0])).status_code == 200
        opened += [(await post(client, "bob", HELLO)).headers["mcp-session-id"] for _ in range(2)]
        answered = [(await post(client, "bob", LIST, each)).status_code for each in opened]
        assert answered == [200, 404, 404, 200, 200]
        assert (await post(client, "ann", LIST, other)).status_code == 200


async def test_a_session_that_is_closed_is_no_longer_counted(monkeypatch):
    monkeypatch.setattr(mcp_server, "MOST_SESSIONS", 2)
    async with asking(flow_app()) as client:
        kept = (await post(client, "", HELLO)).headers["mcp-session-id"]
        for _ in range(4):
            session = (await post(client, "", HELLO)).headers["mcp-session-id"]
            closed = await client.delete("/mcp", headers={"mcp-session-id": session})
            assert closed.status_code == 200
        assert (await post(client, "", LIST, kept)).status_code == 200


class Typed(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    to: Address


class Own(TypedDict):
    messages: Annotated[list[Any], add_messages]


@pytest.mark.parametrize("schema", [Typed, Own])
@pytest.mark.parametrize("message", [{"role": "user", "content": "hi"}, {"type": "human", "content": "hi"}, "hi"])
def test_a_chat_graph_has_a_small_schema_and_takes_messages_that_are_dicts(schema, message):
    def reply(state):
        return {"messages": [{"role": "assistant", "content": "hello", "id": "a"}]}

    chat = chain_of(schema, reply=reply).compile()
    tool = make_tools({"chat": chat})["chat"]
    assert len(json.dumps([tool.tool.input_schema, tool.tool.output_schema])) < 2_500
    given = {"messages": [message], **({"to": {"street": "x"}} if schema is Typed else {})}
    assert tool.read(given) == (None, given)
    with pytest.raises(ValueError, match="content"):
        tool.read({**given, "messages": [{"role": "user"}]})
    if schema is Typed:  # what other keys need stays
        with pytest.raises(ValueError, match="street"):
            tool.read({**given, "to": {}})
