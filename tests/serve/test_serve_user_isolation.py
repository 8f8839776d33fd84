"""Every route of the server, requested by another user: nothing of a user is visible to or changed by another.

The routes are those of the app, so a new one is tested without being named here.
"""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from in_process import asking, routes_of
from serving import Gates, flow_app, make_flow

from stategraph import InMemorySaver
from stategraph.serve import create_app
from stategraph.serve.records import ROOT
from stategraph.store import InMemoryStore

PUBLIC = {("GET", path) for path in ("/ok", "/info", "/", "/page/{file}", "/openapi.json", "/docs")}
"""What everybody may ask for: nothing of a user is in it."""
REFUSED = {
    ("POST", "/runs/batch"),
    ("POST", "/page/dead-letters/{run_id}/retry"),
    ("DELETE", "/page/dead-letters/{run_id}"),
    ("POST", "/threads/import"),
}
"""What nobody gets: in this process nothing is ever a dead letter, see test_serve_dead_letters.py, and it has no operators,
see test_serve_transfers.py."""
SESSIONS = {("GET", "/mcp"), ("POST", "/mcp"), ("DELETE", "/mcp")}
"""What takes no single request: test_serve_mcp.py tells its users apart."""
ENDLESS = {("GET", "/threads/{thread_id}/stream"), ("POST", "/threads/{thread_id}/stream/events")}
"""What ends when its reader goes: test_serve_thread_streams.py and test_serve_sessions.py read it."""
SECRET = "a secret of ann"


def make_app(store=None, saver=None):
    return create_app(
        {"flow": make_flow(Gates())},
        targets={"flow": "flows.py:flow"},
        store=store,
        checkpointer=saver,
        auth=lambda request: request.headers.get("x-user"),
        hosts=None,
    )


ROUTES = [*routes_of(make_app().routes)]


class Scene:
    """A server with something of everything that is ann's."""

    def __init__(self, client, store, saver):
        self.client, self.store, self.saver = client, store, saver
        self.ids = {}

    async def ask(self, user, method, path, body=None):
        headers = {"x-user": user} if user else {}
        return await self.client.request(method, path, json=body, headers=headers)

    async def fill(self):
        async def made(path, body):
            answered = await self.ask("ann", "POST", path, body)
            assert answered.status_code == 200, answered.text
            return answered.json()

        thread = (await made("/threads", {"metadata": {"note": SECRET}}))["thread_id"]
        run = {"assistant_id": "flow", "input": {"log": [SECRET]}}
        await made(f"/threads/{thread}/runs/wait", run)
        listed = await self.ask("ann", "GET", f"/threads/{thread}/runs")
        _, step, before = (await self.ask("ann", "GET", f"/threads/{thread}/history?limit=3")).json()
        named = {"graph_id": "flow", "name": SECRET}
        cron = {"assistant_id": "flow", "schedule": "0 7 * * *", "input": {"log": [SECRET]}}
        self.ids = {
            "thread_id": thread,
            "run_id": listed.json()[0]["run_id"],
            "checkpoint_id": step["checkpoint"]["checkpoint_id"],
            "task_id": before["tasks"][0]["id"],
            "assistant_id": (await made("/assistants", named))["assistant_id"],
            "cron_id": (await made("/runs/crons", cron))["cron_id"],
        }
        self.store.put(("ann", "notes"), "k", {"text": SECRET})

    def path(self, path):
        for name, id in {**self.ids, "user_id": "ann"}.items():
            path = path.replace(f"{{{name}}}", id)
        key, at = ("k" if path.startswith("/store") else "log"), self.ids["checkpoint_id"]
        asked = f"namespace=ann.notes&key={key}&at={at}&one={at}&other={at}&id={self.ids['task_id']}"
        return path.replace("{namespace:path}", "").rstrip("/") + f"?{asked}"

    def body(self, path):
        """What fits a route: a body takes what it knows and passes over the rest."""
        if path.startswith("/ag-ui/"):
            empty = {"messages": [], "tools": [], "context": [], "forwardedProps": {}}
            return {**empty, "threadId": self.ids["thread_id"], "runId": "r", "state": {"log": ["of bob"]}}
        if path.startswith("/a2a/"):
            task = f"{self.ids['thread_id']}:{self.ids['run_id']}"
            return {"id": 1, "method": "tasks/get", "params": {"id": task}}
        if path.endswith("/commands"):
            begin = {"assistant_id": "flow", "input": {"log": ["of bob"]}}
            return {"id": 1, "method": "run.start", "params": begin}
        checkpoint = {key: self.ids[key] for key in ("thread_id", "checkpoint_id")} | {"checkpoint_ns": ""}
        return {
            **self.ids,
            "channels": ["values"],
            "checkpoint": checkpoint,
            "command": None,
            "graph_id": "flow",
            "if_exists": "do_nothing",
            "if_not_exists": "create",
            "ids": [self.ids["thread_id"]],
            "input": {"log": ["of bob"]},
            "key": "k",
            "metadata": {"of": "bob"},
            "name": "of bob",
            "namespace": ["ann", "notes"],
            "namespace_prefix": ["ann"],
            "prefix": ["ann"],
            "run_ids": [self.ids["run_id"]],
            "schedule": "0 8 * * *",
            "text": SECRET,
            "thread_ids": [self.ids["thread_id"]],
            "value": {"text": "of bob"},
            "values": {"log": ["of bob"]},
            "version": 1,
        }

    def kept(self):
        """All that is ann's, as it is stored."""
        items = [item.dict() for item in self.store.search((), limit=1000)]
        hers = [each for each in items if each["namespace"][0] != ROOT or each["value"].get("owner") == "ann"]
        thread = {"configurable": {"thread_id": self.ids["thread_id"]}}
        return json.dumps(hers), [step.config for step in self.saver.list(thread)]


@asynccontextmanager
async def scene():
    store, saver = InMemoryStore(), InMemorySaver()
    async with asking(make_app(store, saver)) as client:
        made = Scene(client, store, saver)
        await made.fill()
        yield made


@pytest.mark.trial
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_unauthenticated_requests_are_refused(method, path):
    async with scene() as filled:
        status = (await filled.ask("", method, filled.path(path), filled.body(path))).status_code
    assert status == 401 or ((method, path) in PUBLIC and status in (200, 404)) or (method, path) in REFUSED


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"host": "evil.example"}])
async def test_pages_of_other_sites_reach_no_route(headers):
    app = flow_app()
    async with asking(app) as client:
        for method, path in routes_of(app.routes):
            assert (await client.request(method, path, json={}, headers=headers)).status_code == 403, path


@pytest.mark.trial
@pytest.mark.parametrize(("method", "path"), [each for each in ROUTES if each not in PUBLIC])
def test_another_user_sees_and_changes_nothing(method, path):
    async def ask():
        async with scene() as filled:
            before = filled.kept()
            asked = method, filled.path(path), filled.body(path)
            bobs = await filled.ask("bob", *asked)
            assert bobs.status_code < 500, bobs.text
            if path.startswith("/a2a/") and method == "POST":
                assert "there is no thread" in bobs.json()["error"]["message"]
            elif path.endswith("/commands"):  # the protocol's errors have status 200
                assert bobs.json()["type"] == "error" and "there is no thread" in bobs.json()["message"]
            elif bobs.status_code < 300:
                assert SECRET not in bobs.text
                assert not [id for id in filled.ids.values() if id in bobs.text]
            assert filled.kept() == before
            if (method, path) in ENDLESS:
                assert bobs.status_code == 404
                return
            # The request is a good one: for ann it does what it says.
            anns = await filled.ask("ann", *asked)
            assert anns.status_code < 300 or (method, path) in REFUSED | SESSIONS, anns.text

    asyncio.run(asyncio.wait_for(ask(), 30))


async def test_shared_assistants_are_visible_and_read_only():
    async with scene() as filled:
        for user in ("ann", "bob"):
            found = (await filled.ask(user, "POST", "/assistants/search", {})).json()
            assert {each["name"] for each in found} - {SECRET} == {"flow"}
            [own] = [each["assistant_id"] for each in found if each["name"] == "flow"]
            for method in ("PATCH", "DELETE"):
                assert (await filled.ask(user, method, f"/assistants/{own}", {})).status_code == 403


async def test_a_user_who_names_no_namespace_searches_the_own_ones():
    """As the page does, which does not know who has logged in."""
    app = flow_app(auth=lambda request: request.headers.get("x-user"))
    async with asking(app) as client:
        for user in ("ann", "bob"):
            item = {"namespace": [user, "notes"], "key": "k", "value": {"of": user}}
            await client.put("/store/items", json=item, headers={"x-user": user})
        found = [
            (await client.post(path, json=body, headers={"x-user": "ann"})).json()
            for path, body in (("/store/namespaces", {}), ("/store/items/search", {"namespace_prefix": []}))
        ]
        root = await client.post("/store/namespaces", json={}, headers={"x-user": "*"})
    assert found[0] == {"namespaces": [["ann", "notes"]]}
    assert [each["value"] for each in found[1]["items"]] == [{"of": "ann"}]
    assert root.status_code == 403
