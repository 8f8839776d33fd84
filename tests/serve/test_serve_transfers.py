"""A thread as one file: exported, imported by an operator elsewhere, and gone on with there."""

import json
import threading

import pytest
from in_process import asking
from kit.graphs import EMPTY, Log, chain_of, thread_config
from serving import opened

from stategraph import START, StateGraph, interrupt
from stategraph.checkpoint.memory import InMemorySaver
from stategraph.serve import create_app, transfer
from stategraph.serve.routes import threads

OPERATOR = {"x-user": "ops"}
ANN = {"x-user": "ann"}
CALLS = []
RUN = {"assistant_id": "asking", "if_not_exists": "create"}


def by_user(request):
    return request.headers.get("x-user")


def make_graph():
    """One of two siblings asks, inside a nested graph; the other has ended, which is recorded beside the checkpoint."""

    def ask(state):
        return {"log": [interrupt({"said": (1, 2)})]}

    def beside(state):
        CALLS.append("b")
        return {"log": ["b"]}

    inner = chain_of(Log, ask=ask).compile()
    graph = StateGraph(Log)
    for name, node in {"first": lambda state: {"log": ["first"]}, "asks": inner, "beside": beside}.items():
        graph.add_node(name, node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "asks")
    graph.add_edge("first", "beside")
    return graph.compile()


def app_of(options, **more):
    return create_app({"asking": make_graph()}, auth=by_user, operators=["ops"], **options, **more)


async def paused(client):
    """A thread of ann's that has a branch, an edit of its metadata and an open question."""
    await client.post("/threads/t/runs/wait", json={**RUN, "input": {"log": []}}, headers=ANN)
    steps = (await client.get("/threads/t/history", headers=ANN)).json()
    fork = {"values": {"log": ["edited"]}, "as_node": "first", "checkpoint_id": steps[-1]["checkpoint_id"]}
    assert (await client.post("/threads/t/state", json=fork, headers=ANN)).status_code == 200
    await client.patch("/threads/t", json={"metadata": {"of": "tea"}}, headers=ANN)
    return (await client.post("/threads/t/runs/wait", json={**RUN, "input": None}, headers=ANN)).json()


@pytest.mark.parametrize("target", ["memory", "sqlite", "postgres with keys"])
async def test_an_imported_thread_has_the_same_history_and_goes_on(target, tmp_path, request):
    async with asking(app_of({})) as source:
        assert "__interrupt__" in await paused(source)
        file = (await source.get("/threads/t/export", headers=ANN)).json()
        assert json.loads(json.dumps(file)) == file
        told = [(await source.get(path, headers=ANN)).json() for path in ("/threads/t", "/threads/t/history")]
        calls, ended = [*CALLS], (await go_on(source)).json()
        assert ended["log"][-2:] == ["yes", "b"] and calls == CALLS
    if target == "memory":
        await check(app_of({}), file, told, ended)
        return
    place = tmp_path / "target.db" if target == "sqlite" else request.getfixturevalue("postgres")
    with opened(target, place) as options:
        await check(app_of({**options, "queue": None}), file, told, ended)


async def go_on(client):
    return await client.post("/threads/t/runs/wait", json={**RUN, "command": {"resume": "yes"}}, headers=ANN)


async def check(app, file, told, ended):
    async with asking(app) as client:
        made = await client.post("/threads/import", json=file, headers=OPERATOR)
        assert made.status_code == 200, made.text
        assert [(await client.get(path, headers=ANN)).json() for path in ("/threads/t", "/threads/t/history")] == told
        assert (await client.get("/threads/t", headers={"x-user": "bob"})).status_code == 404
        calls = [*CALLS]
        assert (await go_on(client)).json() == ended
        assert calls == CALLS  # `beside` did not run again: its result came along
        again = await client.post("/threads/import", json=file, headers=OPERATOR)
        assert again.status_code == 409 and "delete it first" in again.text


async def test_only_operators_import_and_a_damaged_file_leaves_nothing():
    saver = InMemorySaver()
    async with asking(app_of({"checkpointer": saver})) as client:
        await paused(client)
        file = (await client.get("/threads/t/export", headers=ANN)).json()
        assert (await client.post("/threads/import", json=file, headers=ANN)).status_code == 403
        assert (await client.get("/threads/t/export", headers={"x-user": "bob"})).status_code == 404
        other = {**file, "thread": {**file["thread"], "thread_id": "u"}}
        [*rest, last] = other["checkpoints"]
        steps = [
            {**last, "checkpoint": {}},
            {**last, "checkpoint": {**last["checkpoint"], "id": 5}},
            {**last, "metadata": {"$type": "os:system", "value": "true"}},
            {**last, "metadata": {"x": {"$Decimal": "no number"}}},
            {**last, "metadata": {"x": {"$Pattern": ["(", 0]}}},
            {**last, "metadata": {"x": {"$stored": "gQ=="}}},
            {**last, "parent": 5},
            {**last, "namespace": {}},
            {**last, "writes": [["task", 5, 5]]},
        ]
        records = {"metadata": {"graph_id": []}, "error": "boom", "updated_at": "today", "status": "odd", "owner": None}
        records["expires_at"] = "2026-01-01T00:00:00+00:00"  # no ttl says what happens then
        for wrong in (
            {**other, "format": "another"},
            *({**other, "checkpoints": [*rest, step]} for step in steps),
            {**other, "posts": [[[5, 5]]]},
            {**other, "thread": {}},
            {**other, "thread": {**other["thread"], "thread_id": "u/v"}},
            *({**other, "thread": {**other["thread"], key: value}} for key, value in records.items()),
        ):
            refused = await client.post("/threads/import", json=wrong, headers=OPERATOR)
            assert refused.status_code == 422, refused.text
            assert (await client.get("/threads/u", headers=OPERATOR)).status_code == 404
            assert [each async for each in saver.alist(thread_config("u"))] == []


async def test_while_a_long_thread_is_exported_other_requests_are_answered(monkeypatch):
    """What takes long is done on threads: the values of each step, and the file."""
    loop, on_loop = threading.current_thread(), []

    def note(name, function):
        def call(*args, **options):
            if threading.current_thread() is loop:
                on_loop.append(name)
            return function(*args, **options)

        return call

    async with asking(app_of({})) as client:
        await paused(client)
        monkeypatch.setattr(transfer, "to_json", note("to_json", transfer.to_json))
        monkeypatch.setattr(threads, "answer", note("answer", threads.answer))
        assert (await client.get("/threads/t/export", headers=ANN)).status_code == 200
    assert on_loop == ["to_json"]  # of the posts, which are few


async def test_an_import_leaves_a_thread_alone_that_the_server_does_not_know():
    saver = InMemorySaver()
    local = thread_config("local")
    make_graph().copy({"checkpointer": saver}).invoke(EMPTY, local)
    before = [each.config for each in saver.list(local)]
    async with asking(app_of({"checkpointer": saver})) as client:
        await paused(client)
        file = (await client.get("/threads/t/export", headers=ANN)).json()
        file["thread"]["thread_id"] = "local"
        assert (await client.post("/threads/import", json=file, headers=OPERATOR)).status_code == 409
    assert [each.config for each in saver.list(local)] == before


async def test_the_size_of_a_thread_is_told(tmp_path):
    class Silent(InMemorySaver):
        def stored_bytes(self, thread_ids):
            raise NotImplementedError("it does not tell")

    async with asking(app_of({})) as client:
        await paused(client)
        assert (await client.get("/threads/t/size", headers=ANN)).json()["bytes"] > 100
        assert (await client.get("/threads/t/size", headers=OPERATOR)).status_code == 404
    async with asking(app_of({"checkpointer": Silent()})) as client:
        await paused(client)
        assert (await client.get("/threads/t/size", headers=ANN)).status_code == 501
