"""A server without a queue leaves threads that wait for another version of its graph alone."""

import asyncio

import pytest
from in_process import asking
from kit.graphs import Log, chain_of

from stategraph import InMemorySaver, interrupt
from stategraph.serve import create_app
from stategraph.store import InMemoryStore


def shop(version):
    def ask(_):
        return {"log": [interrupt("go?"), version]}

    return chain_of(Log, ask=ask).compile(name="shop", version=version)


@pytest.fixture
def server():
    """Make a server of one version, on the same database each time."""
    database = {"checkpointer": InMemorySaver(), "store": InMemoryStore()}
    return lambda version, **options: asking(create_app({"shop": shop(version)}, **database, **options))


async def run(client, thread="t", **given):
    body = {"assistant_id": "shop", "if_not_exists": "create", **given}
    return await client.post(f"/threads/{thread}/runs/wait", json=body)


START = {"input": {"log": []}}
ANSWER = {"command": {"resume": "yes"}}


@pytest.mark.parametrize("other", ["2", None])
async def test_a_paused_thread_waits_for_its_version(server, other):
    async with server("1") as client:
        assert "__interrupt__" in (await run(client, **START)).json()
    async with server(other) as client:
        refused = await run(client, **ANSWER)
        assert refused.status_code == 409
        assert "the thread 't' waits for version '1' of 'shop'" in refused.json()["detail"]
        assert "--serves 1" in refused.json()["detail"]
        assert "__interrupt__" in (await run(client, "new", **START)).json()
    async with server("1") as client:
        assert (await run(client, **ANSWER)).json()["log"] == ["yes", "1"]
    async with server(other) as client:  # at rest it is free
        assert "__interrupt__" in (await run(client, **START)).json()


async def test_a_server_continues_the_threads_of_versions_that_it_serves(server):
    async with server("1") as client:
        await run(client, **START)
    async with server("2", serves=["1"]) as client:
        assert (await client.get("/info")).json()["graphs"] == {"shop": "2"}
        assert (await run(client, **ANSWER)).json()["log"] == ["yes", "2"]


async def test_a_thread_of_a_graph_without_a_version_is_free(server):
    async with server(None) as client:
        await run(client, **START)
    async with server("1") as client:
        assert (await run(client, **ANSWER)).json()["log"] == ["yes", "1"]


@pytest.mark.trial
@pytest.mark.parametrize("other", ["2", None])
async def test_a_run_that_a_server_has_left_goes_on_with_its_version(server, monkeypatch, other):
    reached, gate = asyncio.Event(), asyncio.Event()

    def held(version):
        async def wait(_):
            reached.set()
            await gate.wait()
            return {"log": [version]}

        return chain_of(Log, first=lambda _: {"log": [version]}, wait=wait).compile(name="shop", version=version)

    monkeypatch.setitem(globals(), "shop", held)
    async with server("1") as client:
        body = {"assistant_id": "shop", "if_not_exists": "create", **START}
        left = (await client.post("/threads/t/runs", json=body)).json()["run_id"]
        await reached.wait()
    gate.set()
    async with server(other) as client:
        assert (await run(client, **START)).status_code == 409
        assert (await client.get(f"/threads/t/runs/{left}")).json()["status"] == "pending"
    async with server("1") as client:
        assert (await client.get(f"/threads/t/runs/{left}/join")).json()["log"] == ["1", "1"]
        assert (await run(client, **START)).json()["log"] == ["1"] * 4
