"""The time to live of threads: after so many minutes without a change they are deleted or pruned."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from in_process import asking
from serving import Gates, flow_app

from stategraph.serve.records import Records
from stategraph.serve.routes import threads as thread_routes
from stategraph.store import InMemoryStore

RUN = {"assistant_id": "flow", "input": {"log": []}, "if_not_exists": "create"}


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(thread_routes, "SECONDS_BETWEEN_LOOKS", 0.01)


async def age(store, id, **since):
    """Let a thread's last change, and the time at which it is looked at, be earlier."""
    records = Records(store, None)
    thread = await records.get("threads", id)
    earlier = {name: (datetime.now(UTC) - each).isoformat() for name, each in since.items()}
    await records.put(("threads", id, {**thread, **earlier}))


async def test_a_thread_is_deleted_after_its_time_without_a_change():
    store = InMemoryStore()
    async with asking(flow_app(store=store)) as client:
        for id in ("old", "young", "endless"):
            ttl = None if id == "endless" else {"ttl": 60, "strategy": "delete"}
            made = (await client.post("/threads", json={"thread_id": id, "ttl": ttl})).json()
            assert made.get("ttl") == ttl
            await client.post(f"/threads/{id}/runs/wait", json=RUN)
        hours, second = timedelta(hours=2), timedelta(seconds=1)
        await age(store, "old", updated_at=hours, expires_at=hours)
        await age(store, "young", updated_at=second, expires_at=hours)  # it has changed since
        await age(store, "endless", updated_at=hours)
        while (await client.get("/threads/old")).status_code == 200:
            await asyncio.sleep(0.01)
        young = (await client.get("/threads/young")).json()
        assert young["expires_at"] > datetime.now(UTC).isoformat()
        assert (await client.get("/threads/endless")).status_code == 200


async def test_a_thread_may_keep_its_latest_checkpoint_only():
    store = InMemoryStore()
    async with asking(flow_app(store=store)) as client:
        await client.post("/threads/t/runs/wait", json=RUN)
        changed = await client.patch("/threads/t", json={"ttl": {"ttl": 60, "strategy": "keep_latest"}})
        assert changed.json()["ttl"]["strategy"] == "keep_latest"
        assert len((await client.get("/threads/t/history")).json()) > 1
        await age(store, "t", updated_at=timedelta(hours=2), expires_at=timedelta(hours=2))
        while len((await client.get("/threads/t/history")).json()) > 1:
            await asyncio.sleep(0.01)
        assert (await client.get("/threads/t")).json()["values"]["log"] == ["a", "b"]


async def test_a_busy_thread_is_left_alone():
    gates, store = Gates(), InMemoryStore()
    gates.close("slow")
    async with asking(flow_app(gates, store=store)) as client:
        await client.post("/threads", json={"thread_id": "t", "ttl": 60})
        begun = await client.post("/threads/t/runs", json={"assistant_id": "flow", "input": {"log": [], "topic": "slow"}})
        await gates.are_reached("slow", 1)
        await age(store, "t", updated_at=timedelta(hours=2), expires_at=timedelta(hours=2))
        while (await client.get("/threads/t")).json()["expires_at"] < datetime.now(UTC).isoformat():
            await asyncio.sleep(0.01)
        gates.open("slow")
        path = f"/threads/t/runs/{begun.json()['run_id']}/join"
        assert (await client.get(path)).json()["log"] == ["a", "b"]
