"""Sessions with a thread (`client.threads.stream`), as the official client for Python has them."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import Annotated, Any, TypedDict

import httpx
import orjson
import pytest
from kit.graphs import EMPTY, graph_of
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph_sdk import get_client, get_sync_client
from serving import Gates, make_flow, serving
from speaking import is_end, speak
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from stategraph import END, START, Send, StateGraph, add_messages, get_stream_writer, interrupt
from stategraph.checkpoint.errors import StorageError
from stategraph.serve import Limits, create_app
from stategraph.serve.protocols.sessions.routes import first_seq, moment_of_seq
from stategraph.store import GetOp, InMemoryStore, SearchOp

CALL = [
    AIMessageChunk("let me "),
    AIMessageChunk("", tool_call_chunks=[{"name": "add", "args": "", "id": "c1", "index": 0}]),
    AIMessageChunk("", tool_call_chunks=[{"name": None, "args": '{"x":1,', "id": None, "index": 0}]),
    AIMessageChunk("", tool_call_chunks=[{"name": None, "args": '"y":2}', "id": None, "index": 0}]),
]
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
TEXT = [AIMessageChunk("it is "), AIMessageChunk("three", usage_metadata=USAGE)]


class Adder(BaseChatModel):
    """Calls the tool, and then tells its result."""

    @property
    def _llm_type(self):
        return "adder"

    def _generate(self, messages, *_, **__):
        whole = sum((chunk.message for chunk in self._stream(messages)), AIMessageChunk(""))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(whole.content, tool_calls=whole.tool_calls))])

    def _stream(self, messages, *_, **__):
        for chunk in TEXT if messages[-1].type == "tool" else CALL:
            yield ChatGenerationChunk(message=chunk.model_copy())


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def model(state: Chat):
    return {"messages": [await Adder().ainvoke(state["messages"])]}


def tools(state: Chat):
    [call] = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage(str(sum(call["args"].values())), tool_call_id=call["id"], name="add")]}


def more(state: Chat):
    return "tools" if state["messages"][-1].tool_calls else END


class Said(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    topic: str


def report(state: Said):
    get_stream_writer()({"name": "progress", "payload": {"done": 1}})


def make_graphs(gates):
    flow = make_flow(gates)
    outer = StateGraph(Said).add_node("inner", flow).add_node("report", report)
    chat = graph_of(Chat, "S>model", model=model, tools=tools)
    chat.add_conditional_edges("model", more, ["tools", END]).add_edge("tools", "model")
    return {
        "flow": flow,
        "outer": outer.add_edge(START, "inner").add_edge("inner", "report").compile(name="outer"),
        "chat": chat.compile(name="chat"),
    }


@pytest.fixture
def gates():
    return Gates()


@pytest.fixture
def url(gates, database):
    with serving(create_app(make_graphs(gates), **database)) as url:
        yield url


@pytest.fixture
def memory_url(gates):
    with serving(create_app(make_graphs(gates))) as url:
        yield url


def run(url, work: Callable[[Any], Any]):
    """What a coroutine brings that has a client."""

    async def main():
        async with get_client(url=url) as client:
            return await asyncio.wait_for(work(client), 30)

    return asyncio.run(main())


def test_a_run_is_started_and_its_states_are_read(url):
    async def work(client):
        async with client.threads.stream(assistant_id="flow") as session:
            begun = await session.run.start(input={"log": ["x"]}, metadata={"by": "ann"})
            # The client ends its values with the run, whether it has yielded the last ones or not.
            before = [{}, {"log": []}]  # it may look at the thread before the input is there
            steps = [*before, {"log": ["x"]}, {"log": ["x", "a"]}, {"log": ["x", "a", "b"]}]
            values = [value async for value in session.values]
            assert values and all(each in steps for each in values)
            assert await session.output == {"log": ["x", "a", "b"]} and not session.interrupted
            [found] = await client.runs.list(session.thread_id)
            assert found["run_id"] == begun["run_id"] and found["status"] == "success"
            assert found["metadata"]["by"] == "ann"

    run(url, work)


def test_a_question_is_answered_in_the_session(url):
    async def work(client):
        async with client.threads.stream(assistant_id="flow") as session:
            await session.run.start(input={"topic": "ask"})
            assert [value async for value in session.values]
            assert session.interrupted and session.interrupts[0]["value"] == {"question": "name?"}
            await session.run.respond("Ann")
            assert (await session.output)["log"] == ["a", "Ann"] and not session.interrupted

    run(url, work)


def test_a_question_of_a_graph_inside_is_answered_by_its_id(url):
    async def work(client):
        async with client.threads.stream(assistant_id="outer") as session:
            await session.run.start(input={"topic": "ask"})
            assert [value async for value in session.values]
            [asked] = session.interrupts
            assert asked["namespace"][0].startswith("inner:")
            await session.run.respond("Ann", interrupt_id=asked["interrupt_id"])
            assert (await session.output)["log"] == ["a", "Ann"]

    run(url, work)


def test_an_input_on_a_thread_that_asks_is_the_answer(memory_url):
    async def work(client):
        thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread, "flow", input={"topic": "ask"})
        async with client.threads.stream(thread, assistant_id="flow") as session:
            await session.run.start(input="Ann")
            assert (await session.output)["log"] == ["a", "Ann"]

    run(memory_url, work)


def test_a_failure_is_reported(url):
    async def work(client):
        async with client.threads.stream(assistant_id="flow") as session:
            await session.run.start(input={"topic": "fail"})
            with pytest.raises(RuntimeError, match="boom"):
                await session.output

    run(url, work)


def test_messages_are_streamed_with_their_tool_calls_and_usage(url):
    async def work(client):
        async with client.threads.stream(assistant_id="chat") as session:
            await session.run.start(input={"messages": [{"role": "user", "content": "1+2?"}]})
            calling, telling = [message async for message in session.messages]
            assert [text async for text in calling.text] == ["let me "]
            assert [call["args"] for call in await calling.tool_calls] == [{"x": 1, "y": 2}]
            assert [text async for text in telling.text] == ["it is ", "three"]
            assert (await telling.output).usage_metadata == USAGE
            assert (await session.output)["messages"][-1]["content"] == "it is three"

    run(url, work)


def test_tool_calls_are_streamed_with_their_results(url):
    async def work(client):
        async with client.threads.stream(assistant_id="chat") as session:
            await session.run.start(input={"messages": [{"role": "user", "content": "1+2?"}]})
            calls = [call async for call in session.tool_calls]
            assert [(call.name, call.input) for call in calls] == [("add", {"x": 1, "y": 2})]
            assert (await calls[0].output)["content"] == "3"

    run(url, work)


def test_what_the_stream_writer_sends_is_read_by_its_name(url):
    async def work(client):
        async with client.threads.stream(assistant_id="outer") as session:
            await session.run.start(input=EMPTY)
            assert [each async for each in session.extensions["progress"]] == [{"name": "progress", "payload": {"done": 1}}]

    run(url, work)


def test_a_session_on_an_old_thread_reads_the_new_run_only(url):
    async def work(client):
        thread = (await client.threads.create())["thread_id"]
        for _ in range(2):
            await client.runs.wait(thread, "flow", input={"log": ["old"]})
        async with client.threads.stream(thread, assistant_id="flow") as session:
            await session.run.start(input={"log": ["new"]})
            async for event in session.subscribe(["values"]):
                assert event["params"]["data"]["log"][6] == "new"

    run(url, work)


def test_the_synchronous_client_has_sessions(url):
    """Its readers may miss the end of a run that has ended before they begin, although it was sent to them, and wait
    for ever: so it has three tries."""
    found = Queue()

    def work():
        try:
            with get_sync_client(url=url) as client, client.threads.stream(assistant_id="flow") as session:
                session.run.start(input={"topic": "ask"})
                values, interrupted = [*session.values], session.interrupted
                session.run.respond("Ann")
                found.put((bool(values), interrupted, session.output["log"]))
        except Exception as error:
            found.put(error)

    for _ in range(3):
        Thread(target=work, daemon=True).start()
        with suppress(Empty):
            assert found.get(timeout=20) == (True, True, ["a", "Ann"])
            return
    pytest.fail("none of three sessions has ended")


def test_what_cannot_be_is_refused_with_a_sentence(memory_url):
    async def work(client):
        async with client.threads.stream(assistant_id="nope") as session:
            with pytest.raises(RuntimeError, match="there is no assistant or graph 'nope'"):
                await session.run.start(input={})

    run(memory_url, work)


# -- what goes over the wire -------------------------------------------------------------------------


class Wire:
    """A thread, without the official client."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=url, timeout=30)
        self.place = f"/threads/{self.http.post('/threads', json={}).json()['thread_id']}"

    def command(self, method, **params):
        answered = self.http.post(f"{self.place}/commands", json={"id": 7, "method": method, "params": params})
        assert answered.status_code == 200 and answered.json()["id"] == 7, answered.text
        return answered.json()

    def read(self, until=1, **asked):
        """Events, until so many runs have ended."""
        asked.setdefault("channels", ["lifecycle", "values"])
        found, late = [], time.monotonic() + 60
        with self.http.stream("POST", f"{self.place}/stream/events", json=asked) as stream:
            assert stream.status_code == 200, stream.read()
            for line in stream.iter_lines():  # pings are among them
                assert time.monotonic() < late, f"no end within a minute, only {found}"
                if line.startswith("data: "):
                    found.append(orjson.loads(line[6:]))
                    until -= found[-1]["method"] == "lifecycle" and is_end(found[-1])
                    if not until:
                        return found
        raise AssertionError("the stream has ended")


@pytest.fixture
def wire(url):
    wire = Wire(url)
    yield wire
    wire.http.close()


@pytest.fixture
def memory_wire(memory_url):
    wire = Wire(memory_url)
    yield wire
    wire.http.close()


def names(events):
    return [e["params"]["data"]["event"] if e["method"] == "lifecycle" else e["method"] for e in events]


def read_before_a_run(wire, **asked):
    """The first two events of a stream that is opened before a run is started."""
    request = wire.http.build_request("POST", f"{wire.place}/stream/events", json=asked)
    stream = wire.http.send(request, stream=True)
    wire.command("run.start", assistant_id="flow", input=EMPTY)
    lines = stream.iter_lines()
    found = [orjson.loads(next(line for line in lines if line.startswith("data: "))[6:]) for _ in range(2)]
    stream.close()
    return found


RUN = ["running", "values", "values", "values", "completed"]


def test_a_reconnected_reader_at_any_event_misses_none_and_gets_none_twice(wire):
    before = wire.command("run.start", assistant_id="flow", input=EMPTY)["meta"]["applied_through_seq"]
    first = wire.read()
    wire.command("run.start", assistant_id="flow", input=EMPTY)
    events = wire.read(2, since=0)
    assert names(events) == RUN * 2 and [e["event_id"] for e in first] == [e["event_id"] for e in events[:5]]
    assert len({e["event_id"] for e in events}) == 10
    numbers = [e["seq"] for e in events]
    assert numbers == sorted({*numbers}) and before < numbers[0] and numbers[-1] < 2**53
    for place in range(9):
        rest = wire.read(1 if place >= 4 else 2, since=numbers[place])
        assert [e["seq"] for e in rest] == numbers[place + 1 :]


def test_a_reconnected_reader_among_many_interrupts_misses_none():
    graph = StateGraph(Said).add_node("ask", lambda n: {"log": [interrupt(n)]})
    graph.add_conditional_edges(START, lambda state: [Send("ask", n) for n in range(400)], ["ask"])
    with serving(create_app({"asks": graph.compile()})) as url:
        wire = Wire(url)
        wire.command("run.start", assistant_id="asks", input=EMPTY)
        events = wire.read(channels=["input", "lifecycle"])
        assert names(events) == ["running", *["input.requested"] * 400, "interrupted"]
        for place in (1, 300, 400):
            rest = wire.read(channels=["input", "lifecycle"], since=events[place]["seq"])
            assert [e["event_id"] for e in rest] == [e["event_id"] for e in events[place + 1 :]]
        wire.http.close()


def test_without_a_place_a_reader_gets_the_last_run(wire):
    for topic in ("first", "last"):
        wire.command("run.start", assistant_id="flow", input={"topic": topic})
        wire.read(channels=["lifecycle"])
    events = wire.read()
    assert names(events) == RUN and events[1]["params"]["data"]["topic"] == "last"


def test_a_reconnected_reader_gets_runs_that_start_before_a_delayed_one(wire):
    wire.command("run.start", assistant_id="flow", input=EMPTY)
    last = wire.read()[-1]["seq"]
    later = {"assistant_id": "flow", "input": {"log": []}, "after_seconds": 3600}
    wire.http.post(f"{wire.place}/runs", json=later).raise_for_status()
    assert names(read_before_a_run(wire, channels=["lifecycle"], since=last)) == ["running", "completed"]


def test_graphs_inside_begin_and_end_and_can_be_left_out(wire):
    wire.command("run.start", assistant_id="outer", input={"log": ["x"]})
    events = wire.read(channels=["lifecycle"])
    told = [(e["params"]["data"]["event"], e["params"]["data"]["graph_name"]) for e in events]
    assert told == [("running", "outer"), ("started", "inner"), ("completed", "inner"), ("completed", "outer")]
    assert names(wire.read(channels=["lifecycle", "values"], depth=0)) == ["running", "values", "values", "completed"]
    inside = wire.read(channels=["lifecycle"], depth=0)
    assert names(inside) == ["running", "completed"]


def test_a_stream_that_was_opened_before_the_thread_exists_has_its_first_run(wire):
    wire.place = "/threads/made-by-the-client"
    assert names(read_before_a_run(wire, channels=["lifecycle"])) == ["running", "completed"]


def test_several_questions_are_answered_at_once_and_an_unknown_one_is_refused(wire):
    wire.command("run.start", assistant_id="flow", input={"topic": "ask"})
    [asked] = [e for e in wire.read(channels=["input", "lifecycle"]) if e["method"] == "input.requested"]
    id = asked["params"]["data"]["interrupt_id"]
    refused = wire.command("input.respond", namespace=[], interrupt_id="nope", response=1)
    assert refused["error"] == "no_such_interrupt" and "'nope'" in refused["message"]
    answers = [{"namespace": [], "interrupt_id": id, "response": "Ann"}]
    told = wire.command("input.respond", responses=answers, update={"log": ["edited"]})
    events = wire.read(since=told["meta"]["applied_through_seq"])
    assert events[-2]["params"]["data"]["log"] == ["a", "edited", "Ann"]
    again = wire.command("input.respond", responses=answers)
    assert again["error"] == "no_such_interrupt"


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (("state.get", {}), "unknown_command", "not offered; offered are: run.start, input.respond"),
        (("run.start", {"input": {}}), "invalid_argument", "needs an assistant_id"),
        (("run.start", {"assistant_id": "flow", "config": 5}), "invalid_argument", "config"),
        (("input.respond", {"response": 1}), "invalid_argument", "needs an interrupt_id"),
        (("input.respond", {"responses": []}), "invalid_argument", "at least one answer"),
    ],
)
def test_a_command_that_cannot_be_gets_an_error_of_the_protocol(memory_wire, asked, code, words):
    told = memory_wire.command(asked[0], **asked[1])
    assert told["type"] == "error" and told["error"] == code and words in told["message"]


@pytest.mark.parametrize("body", [{}, {"channels": []}, {"channels": ["nope"]}, {"channels": ["custom:"]}, {"since": 1}])
def test_a_subscription_that_cannot_be_is_refused(memory_wire, body):
    answered = memory_wire.http.post(f"{memory_wire.place}/stream/events", json=body)
    assert answered.status_code == 422 and "channel" in answered.text


def test_users_have_sessions_with_their_own_threads_only(gates):
    def auth(request):
        return request.headers.get("x-user")

    with serving(create_app(make_graphs(gates), auth=auth)) as url:
        thread = "/threads/anns"
        with httpx.Client(base_url=url) as http:
            begin = {"id": 1, "method": "run.start", "params": {"assistant_id": "flow", "input": {"topic": "ask"}}}
            assert http.post(f"{thread}/commands", json=begin).status_code == 401
            ann = http.post(f"{thread}/commands", json=begin, headers={"x-user": "ann"}).json()
            assert ann["type"] == "success"
            bob = http.post(f"{thread}/commands", json=begin, headers={"x-user": "bob"}).json()
            assert bob["type"] == "error" and "there is no thread" in bob["message"]
            reading = {"channels": ["values"]}
            answered = http.post(f"{thread}/stream/events", json=reading, headers={"x-user": "bob"})
            assert answered.status_code == 404
        with pytest.raises(InvalidStatus, match="403"):
            speak(url, SUBSCRIBE, headers={"x-user": "bob"}, thread="anns")


def test_numbers_and_moments_are_made_of_one_another():
    for moment in (1_795_406_175_486_123, 1_767_225_600_000_000):
        assert moment_of_seq(first_seq(moment)) == moment
    assert first_seq(2_850_000_000_000_000) < 2**53  # in 2060


def test_events_are_sent_over_a_websocket(url):
    async def work(client):
        async with client.threads.stream(assistant_id="flow", transport="websocket") as session:
            await session.run.start(input={"topic": "ask"})
            assert [value async for value in session.values] and session.interrupted
            await session.run.respond("Ann")
            assert (await session.output)["log"] == ["a", "Ann"]

    run(url, work)


SUBSCRIBE = {"id": 1, "method": "subscription.subscribe", "params": {"channels": ["lifecycle", "values"]}}


def test_a_websocket_takes_commands(memory_url):
    start = {"id": 2, "method": "run.start", "params": {"assistant_id": "flow", "input": {"log": []}}}
    heard = speak(memory_url, SUBSCRIBE, start, last=True)
    answers = [each for each in heard if each["type"] == "success"]
    assert [each["id"] for each in answers] == [1, 2] and answers[0]["result"]["subscription_id"]
    assert names([each for each in heard if each["type"] == "event"]) == RUN


def test_a_websocket_answers_what_cannot_be_with_errors(memory_url):
    unsubscribe = {"id": 3, "method": "subscription.unsubscribe", "params": {"subscription_id": "nope"}}
    heard = speak(memory_url, "{", {}, {"id": 2, "method": "nope"}, unsubscribe, {**SUBSCRIBE, "params": {}})
    codes = ["invalid_argument", "invalid_argument", "unknown_command", "no_such_subscription", "invalid_argument"]
    assert [each["error"] for each in heard] == codes and [each["id"] for each in heard] == [None, None, 2, 3, 1]
    heard = speak(memory_url, *[SUBSCRIBE] * 32, SUBSCRIBE)
    assert heard[-1]["error"] == "invalid_argument" and "at most 32 subscriptions" in heard[-1]["message"]


def test_cross_site_unauthenticated_and_excess_websockets_are_refused(gates):
    def auth(request):
        return request.headers.get("x-user")

    app = create_app(make_graphs(gates), auth=auth, limits=Limits(requests_per_user=1))
    with serving(app) as url:
        for headers in ({}, {"x-user": "ann", "Origin": "http://evil.example"}):
            with pytest.raises(InvalidStatus, match="403"):
                speak(url, SUBSCRIBE, headers=headers)
        place = f"{url.replace('http', 'ws')}/threads/t/stream/events"
        ann = {"x-user": "ann"}
        with connect(place, additional_headers=ann, proxy=None):
            with pytest.raises(InvalidStatus, match="403"):
                speak(url, SUBSCRIBE, headers=ann)
            speak(url, SUBSCRIBE, headers={"x-user": "bob"})
        assert httpx.get(f"{url}/info", headers=ann).status_code == 200


class Failing(InMemoryStore):
    """Refuses operations of a kind."""

    refused: tuple[type, ...] = ()

    async def abatch(self, ops):
        ops = [*ops]
        if any(isinstance(op, self.refused) for op in ops):
            raise StorageError("the database is out of reach")
        return await super().abatch(ops)


@pytest.mark.parametrize("refused", [SearchOp, GetOp])
def test_a_websocket_that_fails_is_closed_so_that_its_client_reconnects(gates, refused, caplog):
    """By a subscription that cannot look for the next run, or by a command that cannot be done."""
    store = Failing()
    with serving(create_app(make_graphs(gates), store=store)) as url:
        with connect(f"{url.replace('http', 'ws')}/threads/t/stream/events", proxy=None) as socket:
            socket.send(orjson.dumps(SUBSCRIBE).decode())
            assert orjson.loads(socket.recv(10))["type"] == "success"
            store.refused = (refused,)
            start = {"id": 2, "method": "run.start", "params": {"assistant_id": "flow", "input": {}}}
            socket.send(orjson.dumps(start).decode())
            with pytest.raises(ConnectionClosedError, match="1011"):
                while True:
                    socket.recv(10)
        store.refused = ()
        assert is_end(speak(url, SUBSCRIBE, start, last=True, thread="t")[-1])
    assert "a session with the thread t has failed" in caplog.text and "out of reach" in caplog.text


def test_a_websocket_takes_text_only(memory_url):
    with connect(f"{memory_url.replace('http', 'ws')}/threads/t/stream/events", proxy=None) as socket:
        socket.send(b"{}")
        with pytest.raises(ConnectionClosedError, match="1003"):
            socket.recv(10)


def test_websockets_end_when_the_server_stops(gates):
    app = create_app(make_graphs(gates))
    with serving(app) as url:
        place = f"{url.replace('http', 'ws')}/threads/t/stream/events"
        with connect(place, proxy=None) as socket:
            socket.send(orjson.dumps(SUBSCRIBE).decode())
            assert orjson.loads(socket.recv(10))["type"] == "success"
            app.state.begin_to_stop()
            with pytest.raises(ConnectionClosed):
                socket.recv(10)
