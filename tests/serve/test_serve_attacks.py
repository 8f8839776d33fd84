"""Names and ids that a client makes up: of the engine, of the server and of other users."""

from __future__ import annotations

import asyncio

import pytest
from in_process import asking
from serving import Gates, make_flow

from stategraph.serve import create_app
from stategraph.serve.records import ROOT
from stategraph.serve.runs.in_process import Runs
from stategraph.store import InMemoryStore

RUN = {"assistant_id": "flow", "input": {"log": ["x"]}}


class Client:
    """What one user asks for."""

    def __init__(self, client, user):
        self._client, self._headers = client, {"x-user": user}

    async def ask(self, method, path, body=None, **headers):
        return await self._client.request(method, path, json=body, headers={**self._headers, **headers})

    async def thread(self):
        thread = str((await self.ask("POST", "/threads", {})).json()["thread_id"])
        assert (await self.ask("POST", f"/threads/{thread}/runs/wait", RUN)).status_code == 200
        return thread

    async def run_of(self, thread):
        return str((await self.ask("GET", f"/threads/{thread}/runs")).json()[0]["run_id"])

    async def state(self, thread):
        return (await self.ask("GET", f"/threads/{thread}/state")).json()


def with_two_users(check, store=None):
    async def run():
        app = create_app(
            {"flow": make_flow(Gates())}, store=store, auth=lambda asked: asked.headers.get("x-user"), hosts=None
        )
        async with asking(app) as client:
            await check(Client(client, "ann"), Client(client, "bob"))

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_checkpoint_of_another_thread_leads_nowhere():
    async def check(ann: Client, bob: Client):
        hers, his = await ann.thread(), await bob.thread()
        at = (await ann.state(hers))["checkpoint"]
        id = at["checkpoint_id"]
        asked = [
            await bob.ask("GET", f"/threads/{his}/state/{id}"),
            await bob.ask("POST", f"/threads/{his}/state/checkpoint", {"checkpoint": at}),
            await bob.ask("POST", f"/threads/{his}/state", {"values": {}, "checkpoint": at}),
            await bob.ask("POST", f"/threads/{his}/runs/wait", {**RUN, "checkpoint": at}),
        ]
        for answered in asked:
            assert answered.status_code in (404, 422) or "__error__" in answered.text, answered.text
        history = await bob.ask("POST", f"/threads/{his}/history", {"checkpoint": at, "before": id})
        assert hers not in history.text
        assert (await ann.state(hers))["checkpoint"] == at

    with_two_users(check)


def test_a_config_names_no_other_thread_and_nothing_of_the_engine():
    async def check(ann: Client, bob: Client):
        hers, his = await ann.thread(), await bob.thread()
        before = await ann.state(hers)
        made_up = {
            "thread_id": hers,
            "checkpoint_id": before["checkpoint"]["checkpoint_id"],
            "checkpoint_ns": "x",
            "__pregel_read": 1,
            "__stategraph": 1,
        }
        config = {"configurable": made_up, "run_id": "r", "callbacks": ["x"], "store": "x", "thread_id": hers}
        body = {**RUN, "config": config, "metadata": {"owner": "ann"}}
        assert (await bob.ask("POST", f"/threads/{his}/runs/wait", body)).json()["log"] == [*"xab"] * 2
        assert await ann.state(hers) == before
        made = await bob.ask("POST", "/assistants", {"graph_id": "flow", "config": config})
        body = {**RUN, "assistant_id": made.json()["assistant_id"]}
        assert (await bob.ask("POST", f"/threads/{his}/runs/wait", body)).status_code == 200
        assert await ann.state(hers) == before

    with_two_users(check)


def test_a_run_is_found_in_its_own_thread_only():
    async def check(ann: Client, bob: Client):
        hers, his = await ann.thread(), await bob.thread()
        run = await ann.run_of(hers)
        for method, end in (("GET", ""), ("GET", "/join"), ("GET", "/stream"), ("POST", "/cancel"), ("DELETE", "")):
            for place in (his, hers, "nowhere"):
                assert (await bob.ask(method, f"/threads/{place}/runs/{run}{end}")).status_code == 404
        assert await ann.run_of(hers) == run

    with_two_users(check)


def test_joining_a_run_returns_no_state_of_a_later_thread_with_the_same_id(monkeypatch):
    """Its thread is deleted while its end is awaited, and another user makes one with the same id."""

    async def check(ann: Client, bob: Client):
        thread = await ann.thread()
        run = await ann.run_of(thread)

        async def replace_meanwhile(*_):
            assert (await ann.ask("DELETE", f"/threads/{thread}")).status_code == 204
            assert (await bob.ask("POST", "/threads", {"thread_id": thread})).status_code == 200
            values = {"graph_id": "flow"}, {"values": {"log": ["a secret of bob"]}, "as_node": "b"}
            await bob.ask("PATCH", f"/threads/{thread}", {"metadata": values[0]})
            assert (await bob.ask("POST", f"/threads/{thread}/state", values[1])).status_code == 200

        monkeypatch.setattr(Runs, "answer", replace_meanwhile)
        joined = await ann.ask("GET", f"/threads/{thread}/runs/{run}/join")
        assert joined.status_code == 404 and "secret" not in joined.text

    with_two_users(check)


@pytest.mark.parametrize("last", ["-7", "10" * 3000, "²", "x", "1e3", "0\x85"])
def test_a_forged_event_id_is_refused_or_begins_somewhere(last):
    async def check(ann: Client, _: Client):
        thread = await ann.thread()
        place = f"/threads/{thread}/runs/{await ann.run_of(thread)}/stream"
        headers = {"last-event-id": last.encode()}
        assert (await ann.ask("GET", place, **headers)).status_code in (200, 422)

    with_two_users(check)


@pytest.mark.parametrize("last", [str(2**63), "10" * 2000])
def test_an_event_id_that_no_database_counts_to_is_refused(last):
    async def check(ann: Client, _: Client):
        thread = await ann.thread()
        run = await ann.run_of(thread)
        for place, id in ((f"runs/{run}/stream", last), ("stream", f"{last}.1.{run}"), ("stream", f"1.{last}.{run}")):
            answered = await ann.ask("GET", f"/threads/{thread}/{place}", **{"last-event-id": id})
            assert answered.status_code == 422 and "must be the id of an event" in answered.text

    with_two_users(check)


def test_a_user_id_with_dots_can_store_items():
    async def check(ann: Client, _: Client):
        for user in ("a@b.c", "a@b", "a@b.c.d"):
            him = Client(ann._client, user)
            for namespace in ([user], [user, "x", "y"]):
                item = {"namespace": namespace, "key": "k", "value": {"of": namespace}}
                assert (await him.ask("PUT", "/store/items", item)).status_code == 204
                found = await him.ask("GET", f"/store/items?namespace={'.'.join(namespace)}&key=k")
                assert found.json()["value"] == {"of": namespace}
        assert (await ann.ask("GET", "/store/items?namespace=annx&key=k")).status_code == 403

    with_two_users(check)


@pytest.mark.parametrize("id", ["a/b", ".", ".."])
def test_a_thread_that_no_address_reaches_is_not_made(id):
    async def check(ann: Client, _: Client):
        of_batch = [{**RUN, "thread_id": id, "if_not_exists": "create"}]
        page = {"threadId": id, "runId": "r", "messages": [], "tools": [], "context": [], "state": {}, "forwardedProps": {}}
        for place, body in (("/threads", {"thread_id": id}), ("/runs/batch", of_batch), ("/ag-ui/flow", page)):
            refused = await ann.ask("POST", place, body)
            assert refused.status_code == 422 and "nor hold a slash" in refused.text
        assert (await ann.ask("POST", "/threads/search", {})).json() == []

    with_two_users(check)


INTERNAL = ["__start__", "__end__", "__copy__", "__input__", "__error_handler__", "__error_handler__b", "__pregel_tasks", ""]


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_names_as_nodes_change_no_more_than_the_own_thread(name):
    async def check(ann: Client, bob: Client):
        hers, his = await ann.thread(), await bob.thread()
        before = await ann.state(hers)
        place = f"/threads/{his}"
        commands = [
            {"goto": name},
            {"goto": [name, "a"]},
            {"goto": {"node": name, "input": {"log": ["x"]}}},
            {"goto": [{"node": name, "input": None}]},
            {"update": {name: 1}},
            {"update": [[name, 1]]},
        ]
        for command in commands:
            answered = await bob.ask("POST", f"{place}/runs/wait", {"assistant_id": "flow", "command": command})
            assert answered.status_code < 500, answered.text
        for values in ({"log": ["y"]}, None, [{"log": []}, name], {name: 1}):
            answered = await bob.ask("POST", f"{place}/state", {"values": values, "as_node": name})
            assert answered.status_code < 500, answered.text
        steps = [{"updates": [{"values": {"log": []}, "as_node": name}]}]
        made = {"supersteps": steps, "metadata": {"graph_id": "flow"}}
        assert (await bob.ask("POST", "/threads", made)).status_code < 500
        assert (await bob.ask("GET", f"{place}/state")).status_code == 200
        assert (await bob.ask("GET", f"{place}/history")).status_code == 200
        assert (await bob.ask("POST", f"{place}/runs/wait", RUN)).status_code == 200
        assert await ann.state(hers) == before

    with_two_users(check)


@pytest.mark.parametrize("goto", [{}, {"input": 1}, {"node": 3}, {"node": {}}, 3, [3], [[]], True])
def test_a_goto_that_is_none_is_no_fault_of_the_server(goto):
    async def check(ann: Client, _: Client):
        thread = await ann.thread()
        body = {"assistant_id": "flow", "command": {"goto": goto}}
        answered = await ann.ask("POST", f"/threads/{thread}/runs/wait", body)
        assert answered.status_code == 422 or "__error__" in answered.text
        assert (await ann.ask("POST", f"/threads/{thread}/runs/wait", RUN)).status_code == 200

    with_two_users(check)


@pytest.mark.trial
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"command": {"goto": 5}}, "command.goto: goto must be the name of a node"),
        ({"command": {"goto": ["a", {"x": 1}]}}, "got {'x': 1}"),
        ({"command": {"goto": ["a", "c"]}}, "command.goto names no node: 'c'; known: 'a', 'b'"),
        ({"command": {"update": 5}}, "update must be an object or a list of [key, value] pairs, got 5"),
        ({"command": {"update": ["x"]}}, "command.update: "),
        ({"command": {"resume": None}}, "must have an update, a goto or a resume"),
        ({"interrupt_before": ["c"]}, "interrupt_before names no node: 'c'"),
        ({"config": {"recursion_limit": "x"}}, "recursion_limit must be an integer >= 1, got 'x'"),
        ({"config": {"max_concurrency": True}}, "max_concurrency must be an integer >= 1, got True"),
        ({"config": {"tags": "x"}}, "tags must be a list of strings"),
        ({"config": {"configurable": 5}}, "config: configurable must be an object, got 5"),
        ({"after_seconds": 2**70}, "after_seconds: "),
        ({"checkpoint": {"checkpoint_id": 5}}, "checkpoint_id must be a string, got 5"),
    ],
)
@pytest.mark.parametrize("end", ["", "/wait", "/stream"])
def test_a_malformed_run_is_refused_with_what_and_where(asked, said, end):
    async def check(ann: Client, _: Client):
        thread = await ann.thread()
        before = await ann.ask("GET", f"/threads/{thread}/runs")
        answered = await ann.ask("POST", f"/threads/{thread}/runs{end}", {**RUN, **asked})
        assert answered.status_code == 422 and said in answered.json()["detail"]
        assert (await ann.ask("GET", f"/threads/{thread}/runs")).json() == before.json()

    with_two_users(check)


def test_an_assistant_with_a_malformed_config_is_refused():
    async def check(ann: Client, _: Client):
        made = await ann.ask("POST", "/assistants", {"graph_id": "flow", "config": {"configurable": 5}})
        assert made.status_code == 422 and "configurable must be an object" in made.json()["detail"]

    with_two_users(check)


@pytest.mark.trial
@pytest.mark.parametrize("user", ["ann", ROOT, "*", "an"])
@pytest.mark.parametrize(
    "namespace",
    [[], [""], ["*"], ["*", "notes"], [ROOT], [ROOT, "threads"], ["bob"], ["bob", "notes"], ["ann.notes"], ["%62ob"]],
)
def test_a_namespace_of_another_user_is_neither_read_nor_written(user, namespace):
    store = InMemoryStore()
    store.put(("bob", "notes"), "k", {"text": "of bob"})

    async def check(_: Client, bob: Client):
        await bob.thread()
        before = [item.dict() for item in store.search((), limit=1000)]
        eve = Client(bob._client, user)
        asked = [
            await eve.ask("PUT", "/store/items", {"namespace": namespace, "key": "k", "value": {"text": "mine"}}),
            await eve.ask("DELETE", "/store/items", {"namespace": namespace, "key": "k"}),
            await eve.ask("POST", "/store/items/search", {"namespace_prefix": namespace}),
            await eve.ask("POST", "/store/namespaces", {"prefix": namespace}),
            await eve.ask("POST", "/store/namespaces", {"prefix": [], "suffix": namespace}),
            await eve.ask("GET", f"/store/items?namespace={'.'.join(namespace)}&key=k"),
        ]
        for answered in asked:
            assert answered.status_code < 500
            assert answered.status_code > 299 or "bob" not in answered.text
        stored = [item.dict() for item in store.search((), limit=1000)]
        assert [item for item in stored if item["namespace"][0] != user] == before or user == ROOT
        assert [item for item in before if item not in stored] == []

    with_two_users(check, store)


@pytest.mark.parametrize(
    "path",
    [
        "/threads/../runs/crons",
        "/threads/%2e%2e/state",
        "/threads/%2F%2F/state",
        "/threads/a%00b/state",
        "/threads/%ff%fe/state",
        "/threads/" + "x" * 60_000,
        "/assistants/flow/subgraphs/%00",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/page/....//app.py",
        "//evil.example/threads",
        "/threads/stategraph_serve/state",
    ],
)
def test_a_path_leads_to_nothing_but_routes(path):
    async def check(ann: Client, _: Client):
        answered = await ann.ask("GET", f"http://localhost{path}")
        assert answered.status_code in (404, 405, 422), answered.text
        assert "import" not in answered.text

    with_two_users(check)
