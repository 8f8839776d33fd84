"""One server or several on one database: whichever gets a request, no change is lost, and nothing is done twice."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from in_process import YieldingStore, asking
from serving import flow_app

from stategraph import InMemorySaver
from stategraph.serve.records import ROOT


@pytest.fixture(autouse=True)
def _no_lock(monkeypatch):
    """Servers with a queue are not alone on their store; here they stand for those."""
    monkeypatch.setattr("stategraph.serve.app.lock_store", lambda store: nullcontext())


@asynccontextmanager
async def servers(count, store=None):
    """Clients of servers that share a store and a saver, and know nothing of each other."""
    place = {"store": store or YieldingStore(), "checkpointer": InMemorySaver()}
    async with AsyncExitStack() as stack:
        apps = [flow_app(**place) for _ in range(count)]
        yield [await stack.enter_async_context(asking(app)) for app in apps]


SERVERS = pytest.mark.parametrize("count", [1, 2])


@SERVERS
async def test_one_thread_is_made_of_several_requests_for_the_same_id(count):
    async with servers(count) as clients:
        many = [clients[n % count].post("/threads", json={"thread_id": "t"}) for n in range(6)]
        assert sorted(each.status_code for each in await asyncio.gather(*many)) == [200, 409, 409, 409, 409, 409]


@SERVERS
async def test_changes_of_an_assistant_at_the_same_time_make_versions_of_their_own(count):
    async with servers(count) as clients:
        made = (await clients[0].post("/assistants", json={"graph_id": "flow"})).json()
        place = f"/assistants/{made['assistant_id']}"
        many = [clients[n % count].patch(place, json={"metadata": {str(n): n}}) for n in range(8)]
        await asyncio.gather(*many)
        versions = (await clients[0].post(f"{place}/versions", json={})).json()
        assert (await clients[0].get(place)).json()["metadata"] == {str(n): n for n in range(8)}
        assert [each["version"] for each in versions] == [*range(9, 0, -1)]


@SERVERS
async def test_a_schedule_is_changed_at_the_same_time_by_several(count):
    async with servers(count) as (one, *others):
        made = await one.post("/runs/crons", json={"assistant_id": "flow", "schedule": "0 7 * * *"})
        place = f"/runs/crons/{made.json()['cron_id']}"
        await asyncio.gather(
            one.patch(place, json={"input": {"log": ["x"]}}),
            (others or [one])[0].patch(place, json={"timezone": "Europe/Vienna"}),
            one.patch(place, json={"enabled": False}),
        )
        cron = (await one.get(place)).json()
    assert cron["payload"]["input"] == {"log": ["x"]}
    assert (cron["timezone"], cron["enabled"]) == ("Europe/Vienna", False)


async def test_one_of_two_servers_fires_a_schedule():
    """A run without a thread would be made once by each."""
    store = YieldingStore()
    async with servers(2, store) as (one, _):
        asked = {"assistant_id": "flow", "schedule": "0 7 * * *", "input": {"log": []}}
        cron = (await one.post("/runs/crons", json={**asked, "on_run_completed": "keep"})).json()["cron_id"]
        item = store.get((ROOT, "crons"), cron)
        assert item is not None
        due = datetime.now(UTC) - timedelta(days=1)
        store.put((ROOT, "crons"), cron, {**item.value, "next_run_date": due.isoformat()})
    async with servers(2, store) as (one, _):  # both look for what is due when they begin
        while (await one.get(f"/runs/crons/{cron}")).json()["next_run_date"] == due.isoformat():
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len([item.key for item in store.search((ROOT, "runs"), limit=10)]) == 1


async def test_a_server_that_stops_leaves_what_is_due_to_the_next_one():
    store = YieldingStore()
    app = flow_app(store=store)
    async with asking(app) as client:
        asked = {"assistant_id": "flow", "schedule": "0 7 * * *", "input": {"log": []}}
        cron = (await client.post("/runs/crons", json=asked)).json()["cron_id"]
        item = store.get((ROOT, "crons"), cron)
        assert item is not None
        due = {**item.value, "next_run_date": "2026-01-01T07:00:00+00:00"}
        store.put((ROOT, "crons"), cron, due)
        app.state.begin_to_stop()
        await client.post("/runs/crons", json=asked)  # now it looks for what is due
        for _ in range(100):
            await asyncio.sleep(0)
        assert (store.get((ROOT, "crons"), cron).value == due)
