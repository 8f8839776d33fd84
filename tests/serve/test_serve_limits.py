"""How many runs may wait or be at work, in all and of one user: in a process of its own, and on a fleet."""

import asyncio

import pytest
from in_process import asking
from serving import Gates, flow_app, opened

from stategraph.checkpoint.base import BaseCheckpointSaver
from stategraph.checkpoint.memory import InMemorySaver
from stategraph.serve import Limits
from stategraph.serve.bodies import MOST_SETTINGS
from stategraph.serve.runs import fleet
from stategraph.serve.runs.fleet import SECONDS_TO_COUNT

RUN = {"assistant_id": "flow", "input": {"topic": "slow"}}


@pytest.fixture
def idle_fleet(postgres):
    """Where servers of a fleet keep their runs, without workers."""
    with opened("postgres", postgres) as place:
        yield {**place, "workers": 0}


@pytest.fixture(params=["memory", "fleet"])
def place(request):
    """Where a server keeps its runs."""
    return {} if request.param == "memory" else request.getfixturevalue("idle_fleet")


@pytest.fixture
def gates():
    made = Gates()
    made.close("slow")
    return made


def _user(request):
    return request.headers.get("x-user")


async def begin(client, user=""):
    return await client.post("/runs", json=RUN, headers={"x-user": user})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/threads", {"metadata": {}}),
        ("/threads/search", {"metadata": {}}),
        ("/assistants", {"graph_id": "flow", "metadata": {}}),
        ("/runs/wait", {**RUN, "input": {"topic": "quick"}, "config": {"configurable": {}}}),
    ],
)
def test_large_metadata_and_configs_are_refused(path, body, gates):
    """They are looked at on the event loop."""

    async def ask(length):
        async with asking(flow_app(gates)) as client:
            key = "metadata" if "metadata" in body else "config"
            filled = {"configurable": {"x": "y" * length}} if key == "config" else {"x": "y" * length}
            return await client.post(path, json={**body, key: filled})

    assert asyncio.run(ask(MOST_SETTINGS - 100)).status_code == 200
    refused = asyncio.run(ask(MOST_SETTINGS))
    assert refused.status_code == 422
    assert f"must have at most {MOST_SETTINGS} characters as JSON, got" in refused.json()["detail"]


async def test_more_runs_than_may_be_are_refused(place, gates):
    async with asking(flow_app(gates, limits=Limits(runs=2), **place)) as client:
        first = (await begin(client)).json()
        answered = [await begin(client) for _ in range(2)]
        assert [each.status_code for each in answered] == [200, 429]
        assert answered[1].json()["detail"].startswith("2 runs wait or are at work already")
        await client.post(f"/threads/{first['thread_id']}/runs/{first['run_id']}/cancel?wait=true")
        await asyncio.sleep(0.11 if place else 0)  # a fleet does not count more often
        assert (await begin(client)).status_code == 200
        gates.open("slow")


async def test_one_user_leaves_room_for_others(place, gates):
    app = flow_app(gates, limits=Limits(runs=3, runs_per_user=2), auth=_user, **place)
    async with asking(app) as client:
        users = ["ann", "ann", "ann", "bob", "bob"]
        answered = [await begin(client, user) for user in users]
        assert [each.status_code for each in answered] == [200, 200, 429, 200, 429]
        assert answered[2].json()["detail"].startswith("2 of your runs wait or are at work")
        assert answered[4].json()["detail"].startswith("3 runs wait")
        gates.open("slow")


async def test_servers_count_the_runs_of_one_another(idle_fleet, gates):
    place = idle_fleet | {"limits": Limits(runs=2)}
    async with asking(flow_app(gates, **place)) as one:
        assert [(await begin(one)).status_code for _ in range(2)] == [200, 200]
        async with asking(flow_app(gates, **place)) as other:
            assert (await begin(other)).status_code == 429


async def test_a_run_that_ended_elsewhere_is_not_counted_when_another_would_be_refused(idle_fleet, gates):
    place = idle_fleet | {"limits": Limits(runs=1)}
    async with asking(flow_app(gates, **place)) as one:
        begun = (await begin(one)).json()
        async with asking(flow_app(gates, **place)) as other:
            assert (await begin(other)).status_code == 429
            path = f"/threads/{begun['thread_id']}/runs/{begun['run_id']}"
            (await one.post(f"{path}/cancel?wait=true")).raise_for_status()
            await asyncio.sleep(SECONDS_TO_COUNT)
            assert (await begin(other)).status_code == 200


async def test_a_run_that_goes_on_stays_counted_when_its_reader_is_too_slow(idle_fleet, gates, monkeypatch):
    async def end_early(queue, record, start, stopping):
        """As `read_events` does when too much waits for its reader."""
        return
        yield

    monkeypatch.setattr(fleet, "read_events", end_early)
    async with asking(flow_app(gates, **idle_fleet, limits=Limits(runs=1))) as client:
        begun = (await begin(client)).json()
        await client.get(f"/threads/{begun['thread_id']}/runs/{begun['run_id']}/stream")
        monkeypatch.setattr(fleet, "SECONDS_TO_COUNT", 3600.0)
        assert (await begin(client)).status_code == 429


async def test_a_user_has_so_many_threads_and_schedules(place, gates):
    limits = Limits(threads_per_user=2, schedules_per_user=1)
    app = flow_app(gates, auth=_user, limits=limits, **place)
    async with asking(app) as client:

        async def post(path, body, user="ann"):
            return await client.post(path, json=body, headers={"x-user": user})

        for id in "ab":
            assert (await post("/threads", {"thread_id": id})).status_code == 200
        full = [
            await post("/threads", {}),
            await post("/threads/a/copy", {}),
            await post("/threads/c/runs", {**RUN, "if_not_exists": "create"}),
        ]
        assert {each.status_code for each in full} == {429} and "as many threads as you may, 2" in full[0].text
        assert (await post("/threads/a/runs", RUN)).status_code == 200
        assert (await post("/threads", {}, "bob")).status_code == 200
        await client.delete("/threads/b", headers={"x-user": "ann"})
        assert (await post("/threads", {})).status_code == 200
        cron = {**RUN, "schedule": "0 0 1 1 *"}
        asked = [await post("/runs/crons", cron, user) for user in ("ann", "ann", "bob")]
        assert [each.status_code for each in asked] == [200, 429, 200] and "as many schedules as you may, 1" in asked[1].text


async def test_a_user_begins_so_many_runs_in_a_minute(place, gates, monkeypatch):
    moments = [0.0]
    monkeypatch.setattr("stategraph.serve.limits.monotonic", lambda: moments[0])
    limits = Limits(runs_per_minute=2)
    async with asking(flow_app(gates, auth=_user, limits=limits, **place)) as client:
        began = [(await begin(client, user)).status_code for user in ("ann", "ann", "ann", "bob")]
        assert began == [200, 200, 429, 200]
        moments[0] = 60.0
        assert (await begin(client, "ann")).status_code == 200


async def test_a_run_that_was_refused_is_none_of_those_begun_in_a_minute(place, gates):
    limits = Limits(runs_per_minute=2)
    async with asking(flow_app(gates, auth=_user, limits=limits, **place)) as client:
        ann = {"x-user": "ann"}
        await client.post("/threads", json={"thread_id": "t"}, headers=ann)
        run = {**RUN, "multitask_strategy": "reject"}
        answered = [(await client.post("/threads/t/runs", json=run, headers=ann)).status_code for _ in range(4)]
        assert answered == [200, 409, 409, 409]
        assert [(await begin(client, "ann")).status_code for _ in range(2)] == [200, 429]
        gates.open("slow")


async def test_a_user_stores_so_many_bytes(place, gates, monkeypatch):
    moments = [100.0]
    monkeypatch.setattr("stategraph.serve.service.monotonic", lambda: moments[0])
    limits = Limits(stored_bytes_per_user=2000)
    async with asking(flow_app(gates, auth=_user, limits=limits, **place)) as client:
        for user in ("ann", "bob"):
            many = {"log": ["x" * (3000 if user == "ann" else 3)]}
            await client.post("/threads", json={"thread_id": user, "metadata": {"graph_id": "flow"}, "supersteps": [
                {"updates": [{"values": many, "as_node": "__start__"}]}]}, headers={"x-user": user})
        full = await begin(client, "ann")
        assert full.status_code == 429 and "delete some" in full.text
        assert (await begin(client, "bob")).status_code == 200
        await client.delete("/threads/ann", headers={"x-user": "ann"})
        moments[0] += 11
        assert (await begin(client, "ann")).status_code == 200


def test_what_cannot_be_a_limit_is_refused(gates):
    for wrong in ({"threads_per_user": 0}, {"runs": None}, {"runs_per_minute": True}, {"schedules_per_user": 1.5}):
        with pytest.raises(ValueError, match=r"must be an integer >= 1"):
            Limits(**wrong)

    class Silent(InMemorySaver):
        stored_bytes = BaseCheckpointSaver.stored_bytes

    with pytest.raises(ValueError, match="needs a checkpointer with stored_bytes, got Silent"):
        flow_app(gates, checkpointer=Silent(), limits=Limits(stored_bytes_per_user=1))
