"""LangGraph's `Auth` object as the server's `auth`: who sends a request, and what `@auth.on` lets a user do."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from in_process import asking
from kit.graphs import chain_of
from langgraph_sdk import Auth
from serving import RUN, flow_app, serving
from speaking import speak
from typing_extensions import TypedDict

from stategraph.compat.deployment import action_of
from stategraph.serve import create_app
from stategraph.serve.authorize import LangGraphAuth


class Said(TypedDict, total=False):
    said: dict[str, Any]


def make_auth():
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization, headers):
        if authorization is None:
            raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
        name, _, team = authorization.partition("@")
        return {"identity": name, "permissions": ["read"], "team": team}

    @auth.on
    async def by_team(ctx, value):
        own = {"team": ctx.user["team"]}
        if ctx.action == "create":
            value.setdefault("metadata", {}).update(own)
        return own

    @auth.on.threads.delete
    async def nobody_deletes(ctx, value):
        return ctx.user.identity == "root"

    @auth.on.store
    async def own_namespace(ctx, value):
        if value.get("namespace", ["x"])[0] == "secret":
            raise Auth.exceptions.HTTPException(status_code=403, detail="not yours")

    return auth


def app_of(auth=None):
    return flow_app(auth=auth or make_auth())


def ask(client, who, method, path, body=None):
    return client.request(method, path, json=body, headers={"authorization": who} if who else {})


async def test_who_is_unknown_gets_what_the_handler_raises():
    async with asking(app_of()) as client:
        answered = await ask(client, "", "POST", "/threads", {})
        assert (answered.status_code, answered.json()) == (401, {"detail": "who are you?"})


async def test_a_filter_narrows_what_a_user_sees_and_a_handler_writes_metadata():
    async with asking(app_of()) as client:
        made = (await ask(client, "ann@red", "POST", "/threads", {"metadata": {"n": 1}})).json()
        assert made["metadata"] == {"n": 1, "team": "red"}
        path = f"/threads/{made['thread_id']}"
        for who, status, found in (("ann@red", 200, 1), ("ann@blue", 404, 0), ("bob@red", 404, 0)):
            assert (await ask(client, who, "GET", path)).status_code == status
            assert (await ask(client, who, "POST", f"{path}/runs/wait", RUN)).status_code == status
            assert len((await ask(client, who, "POST", "/threads/search", {"metadata": {"n": 1}})).json()) == found
            assert (await ask(client, who, "POST", "/threads/count", {})).json() == found


async def test_what_a_handler_writes_inside_a_part_of_the_body_is_written():
    auth = make_auth()

    @auth.on.threads.create
    async def sign(ctx, value):
        value["metadata"]["by"] = ctx.user.identity

    async with asking(app_of(auth)) as client:
        made = (await ask(client, "ann@red", "POST", "/threads", {"metadata": {"n": 1}})).json()
        assert made["metadata"] == {"n": 1, "by": "ann"}


async def test_a_thread_that_a_run_makes_is_seen_by_its_maker():
    async with asking(app_of()) as client:
        run = {**RUN, "if_not_exists": "create"}
        assert (await ask(client, "ann@red", "POST", "/threads/t/runs/wait", run)).json()["log"] == ["a", "b"]
        assert (await ask(client, "ann@red", "GET", "/threads/t")).status_code == 200


async def test_the_most_specific_handler_decides():
    async with asking(app_of()) as client:
        for who, status in (("ann@red", 403), ("root@red", 204)):
            id = (await ask(client, who, "POST", "/threads", {})).json()["thread_id"]
            assert (await ask(client, who, "DELETE", f"/threads/{id}")).status_code == status
        item = {"namespace": ["secret"], "key": "k", "value": {}}
        refused = await ask(client, "ann@red", "PUT", "/store/items", item)
        assert (refused.status_code, refused.json()) == (403, {"detail": "not yours"})


async def test_nodes_learn_all_that_auth_knows_of_the_user():
    def say(_, config):
        return {"said": config["configurable"]["langgraph_auth_user"]}

    graph = chain_of(Said, say=say).compile(name="say")
    async with asking(create_app({"say": graph}, auth=make_auth())) as client:
        body = {"assistant_id": "say", "input": {}}
        said = (await ask(client, "ann@red", "POST", "/runs/wait", body)).json()["said"]
    assert said["identity"] == said["display_name"] == "ann"
    assert (said["team"], said["permissions"], said["is_authenticated"]) == ("red", ["read"], True)


async def test_each_command_of_a_websocket_is_authorized():
    auth, asked = make_auth(), []

    @auth.on.threads.create_run
    async def note(ctx, value):
        asked.append(value.get("method"))
        params = value.get("params", {})
        params.setdefault("metadata", {})["by"] = ctx.user.identity
        return params.get("assistant_id") != "secret" and {"team": ctx.user["team"]}

    start = {"id": 1, "method": "run.start", "params": {"assistant_id": "secret", "input": {"log": []}}}
    allowed = {**start, "id": 2, "params": {"assistant_id": "flow", "input": {"log": []}}}
    headers = {"authorization": "ann@red"}
    with serving(app_of(auth)) as url:
        refused, begun = speak(url, start, allowed, headers=headers)
        async with httpx.AsyncClient(base_url=url) as client:
            path = f"/threads/made-by-the-client/runs/{begun['result']['run_id']}"
            record = (await ask(client, "ann@red", "GET", path)).json()
    assert (refused["id"], refused["type"]) == (1, "error") and "create_run threads" in refused["message"]
    assert asked == [None, "run.start", "run.start"] and record["metadata"]["by"] == "ann"


async def test_an_auth_object_without_a_handler_is_refused():
    with pytest.raises(ValueError, match="needs a function with @auth.authenticate"):
        LangGraphAuth(Auth())


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/threads", ("threads", "create")),
        ("GET", "/threads/{thread_id}/state", ("threads", "read")),
        ("POST", "/threads/{thread_id}/state", ("threads", "update")),
        ("POST", "/threads/search", ("threads", "search")),
        ("POST", "/threads/{thread_id}/runs/{run_id}/cancel", ("threads", "update")),
        ("POST", "/runs/wait", ("threads", "create_run")),
        ("POST", "/a2a/{assistant_id}", ("threads", "create_run")),
        ("POST", "/mcp", ("threads", "create_run")),
        ("POST", "/threads/{thread_id}/runs/crons", ("crons", "create")),
        ("POST", "/runs/crons/search", ("crons", "search")),
        ("PATCH", "/assistants/{assistant_id}", ("assistants", "update")),
        ("GET", "/store/items", ("store", "get")),
        ("PUT", "/store/items", ("store", "put")),
        ("POST", "/store/namespaces", ("store", "list_namespaces")),
    ],
)
def test_each_route_is_an_action(method, path, expected):
    assert action_of(method, path) == expected
