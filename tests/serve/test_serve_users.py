"""The user of a request is set by the server: a graph sees it on every route, and no client can change it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TypedDict

import httpx
import orjson
import pytest
from kit.graphs import chain_of
from serving import LONG_AGO, opened, serving
from websockets.sync.client import connect

from stategraph import Runtime, get_config, interrupt
from stategraph.serve import create_app

ANN = {"x-user": "ann"}
FORGED = {
    "langgraph_auth_user_id": "eve",
    "langgraph_auth_user": {"identity": "eve", "permissions": ["admin"]},
    "langgraph_auth_permissions": ["admin"],
    "user_id": "eve",
    "assistant_id": "eve's",
    "graph_id": "eve's",
    "mine": "kept",
}
RUN = {
    "assistant_id": "who",
    "input": {"topic": "go"},
    "config": {"configurable": FORGED},
    "context": {"user_id": "eve", "mine": "kept"},
}


class State(TypedDict, total=False):
    topic: str


class Told:
    """What the nodes and routers of a graph have been told, in order."""

    def __init__(self):
        self.heard = []

    def take(self):
        limit = time.monotonic() + 20
        while not self.heard:
            assert time.monotonic() < limit, "no run has begun"
            time.sleep(0.005)
        heard, self.heard = self.heard, []
        return heard

    def graph(self):
        def note(runtime: Runtime):
            self.heard.append((get_config()["configurable"], runtime.server_info, runtime.context))

        def look(state, runtime: Runtime):
            note(runtime)
            if state.get("topic") == "fail":
                raise ValueError("boom")
            return {"topic": interrupt("?")} if state.get("topic") == "ask" else {}

        def route(state, runtime: Runtime):
            note(runtime)
            return "__end__"

        return chain_of(State, look=look).add_conditional_edges("look", route, ["__end__"]).compile(name="who")


@pytest.fixture
def told():
    return Told()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def served(request, told, tmp_path):
    """A client of a server that knows its users, and the server's store."""
    with ExitStack() as stack:
        place = {}
        if request.param == "sqlite":
            place = stack.enter_context(opened("sqlite", tmp_path / "db"))
        if request.param == "postgres":
            place = stack.enter_context(opened("postgres", request.getfixturevalue("postgres"))) | {"workers": 1}
        app = create_app(
            {"who": told.graph()}, auth=lambda request: request.headers.get("x-user"), hosts=None, **place
        )
        url = stack.enter_context(serving(app))
        yield stack.enter_context(httpx.Client(base_url=url, headers=ANN, timeout=20)), place.get("store")


def ask(client: httpx.Client, path, body):
    answered = client.post(path, json=body)
    assert answered.is_success, answered.text
    return answered


def new_thread(client):
    return str(ask(client, "/threads", {}).json()["thread_id"])


def begin(path):
    def run(client: httpx.Client):
        ask(client, path.replace("THREAD", new_thread(client)), RUN)

    return run


def run_batch(client: httpx.Client):
    ask(client, "/runs/batch", [RUN, {**RUN, "thread_id": new_thread(client)}])


def resume(client: httpx.Client):
    place = f"/threads/{new_thread(client)}/runs/wait"
    ask(client, place, {**RUN, "input": {"topic": "ask"}})
    ask(client, place, {**RUN, "input": None, "command": {"resume": "go"}})


def run_own_assistant(client: httpx.Client):
    own = {"graph_id": "who", "config": RUN["config"], "context": RUN["context"]}
    made = ask(client, "/assistants", own).json()["assistant_id"]
    ask(client, "/runs/wait", {"assistant_id": made, "input": {"topic": "go"}})


def edit(client: httpx.Client):
    """The router of the node that the edit speaks for is called by the edit."""
    thread = new_thread(client)
    ask(client, f"/threads/{thread}/runs/wait", RUN)
    sent = {"values": {"topic": "x"}, "as_node": "look", "config": RUN["config"], "checkpoint": FORGED}
    ask(client, f"/threads/{thread}/state", sent)


def edit_at_once(client: httpx.Client):
    step = {"updates": [{"values": {"topic": "x"}, "as_node": "look"}]}
    ask(client, "/threads", {"metadata": {**FORGED, "graph_id": "who"}, "supersteps": [step]})


def command(client: httpx.Client):
    sent = {"id": 1, "method": "run.start", "params": RUN}
    ask(client, f"/threads/{new_thread(client)}/commands", sent)


def websocket(client: httpx.Client):
    place = f"{str(client.base_url).replace('http', 'ws').rstrip('/')}/threads/{new_thread(client)}/stream/events"
    with connect(place, additional_headers=ANN, proxy=None) as socket:
        socket.send(orjson.dumps({"id": 1, "method": "run.start", "params": RUN}).decode())
        assert orjson.loads(socket.recv(10))["type"] == "success"


def ag_ui(client: httpx.Client):
    empty = {"messages": [], "tools": [], "context": [], "forwardedProps": {"config": RUN["config"]}}
    sent = {**empty, **FORGED, "threadId": new_thread(client), "runId": "r", "state": {"topic": "go"}}
    ask(client, "/ag-ui/who", sent)


def mcp(client: httpx.Client):
    meta = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    head = {"accept": "application/json, text/event-stream"}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": meta}
    opened = client.post("/mcp", json=first, headers=head)
    head |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=head)
    call = {"name": "who", "arguments": {"topic": "go"}, "_meta": FORGED}
    sent = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    assert '"isError":false' in client.post("/mcp", json=sent, headers=head).text


ROUTES = (
    *map(begin, ("/threads/THREAD/runs", "/threads/THREAD/runs/wait", "/threads/THREAD/runs/stream")),
    *map(begin, ("/runs", "/runs/wait", "/runs/stream")),
    *(run_batch, resume, run_own_assistant, edit, edit_at_once, command, websocket, ag_ui, mcp),
)


def check(heard, user):
    for config, info, context in heard:
        assert info.user is None if user is None else info.user.identity == info.user["identity"] == user
        assert info.graph_id == "who" and info.assistant_id != "eve's"
        assert user is None or (info.user.is_authenticated and info.user.permissions == [])
        assert config["langgraph_auth_user_id"] == config["user_id"] == user
        named = {key: value for key, value in config.items() if key != "ag_ui"}  # there all is the client's
        assert "langgraph_auth_permissions" not in config and "eve" not in str((named, context))
        if context:
            assert context == {"user_id": user, "mine": "kept"} and config["mine"] == "kept"


@pytest.mark.trial
def test_every_route_gets_the_user_from_the_server(served, told):
    for send in ROUTES:
        send(served[0])
        check(told.take(), "ann")


def test_a_schedule_runs_for_its_creator(served, told):
    client, store = served
    if store is None:
        pytest.skip("the planned time is moved in a store that the test knows")
    made = ask(client, "/runs/crons", {**RUN, "schedule": "0 7 * * *"}).json()
    found = store.get(("stategraph_serve", "crons"), made["cron_id"])
    store.put(("stategraph_serve", "crons"), made["cron_id"], {**found.value, "next_run_date": LONG_AGO})
    ask(client, "/runs/crons", {**RUN, "schedule": "0 7 * * *", "enabled": False})  # the server looks again
    check(told.take(), "ann")


def test_without_auth_there_is_no_user_and_user_id_is_a_setting_as_any(told):
    with serving(create_app({"who": told.graph()})) as url, httpx.Client(base_url=url, timeout=20) as client:
        ask(client, "/runs/wait", RUN)
    [(config, info, context), _] = told.take()
    assert info.user is None and info.graph_id == "who"
    assert config["user_id"] == context["user_id"] == "eve"
    assert not [key for key in config if key.startswith("langgraph_auth_")]


def test_a_node_that_raises_is_logged_with_its_ids_and_user(served, told, caplog):
    thread = new_thread(served[0])
    ask(served[0], f"/threads/{thread}/runs/wait", {**RUN, "input": {"topic": "fail"}})
    [run] = served[0].get(f"/threads/{thread}/runs").json()
    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert (record.thread_id, record.run_id, record.graph) == (thread, run["run_id"], "who")  # type: ignore[attr-defined]
    assert (record.node, record.user) == ("look", "ann")  # type: ignore[attr-defined]
    assert record.exc_info is not None and "ValueError: boom" in record.getMessage()
