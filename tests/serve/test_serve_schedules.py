"""Schedules: each planned time starts one run, whatever fails in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from in_process import asking, new_thread
from serving import LONG_AGO, flow_app

from stategraph.serve import Limits
from stategraph.serve.records import ROOT
from stategraph.serve.routes import schedules
from stategraph.store import InMemoryStore, PutOp, SearchOp

DAILY = {"assistant_id": "flow", "schedule": "0 7 * * *", "input": {"log": ["x"]}}


class WatchedStore(InMemoryStore):
    """Keeps the kinds of records that each batch has written, and fails when it is told to."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.fails = lambda op: False

    async def abatch(self, ops):
        ops = list(ops)
        if any(self.fails(op) for op in ops):
            raise RuntimeError("the database is gone")
        self.written.append({op.namespace[1] for op in ops if isinstance(op, PutOp) and op.namespace[0] == ROOT})
        return await super().abatch(ops)

    def make_due(self, cron_id, **changed):
        place = (ROOT, "crons")
        found = self.get(place, cron_id)
        assert found is not None
        self.put(place, cron_id, {**found.value, "next_run_date": LONG_AGO, **changed})


async def until(found):
    async with asyncio.timeout(20):
        while not (value := found()):
            await asyncio.sleep(0.005)
    return value


def runs_of(store: WatchedStore):
    return [item.value for item in store.search((ROOT, "runs"))]


def test_a_run_and_the_next_planned_time_are_written_together():
    async def fire(store: WatchedStore):
        async with asking(flow_app(store=store)) as client:
            thread = await new_thread(client)
            made = await client.post(f"/threads/{thread}/runs/crons", json=DAILY)
            store.make_due(made.json()["cron_id"])
            store.written.clear()
            await client.post("/runs/crons", json=DAILY)  # wakes what fires
            await until(lambda: runs_of(store))
            return store.written

    moves = [kinds for kinds in asyncio.run(fire(WatchedStore())) if "crons" in kinds and len(kinds) > 1]
    assert len(moves) == 1 and {"crons", "runs", "unfinished"} <= moves[0]


@pytest.mark.parametrize(
    "fails",
    [
        lambda op: isinstance(op, SearchOp) and op.namespace_prefix == (ROOT, "crons"),
        lambda op: isinstance(op, PutOp) and op.namespace[:2] == (ROOT, "unfinished"),
    ],
    ids=["reading", "writing"],
)  # fmt: skip
async def test_an_error_while_firing_is_logged_and_tried_again(fails, monkeypatch, caplog):
    monkeypatch.setattr(schedules, "RETRY_SECONDS", 0.01)
    store = WatchedStore()
    async with asking(flow_app(store=store)) as client:
        thread = await new_thread(client)
        made = await client.post(f"/threads/{thread}/runs/crons", json=DAILY)
        store.make_due(made.json()["cron_id"])
        store.fails = fails
        await client.post("/runs/crons", json=DAILY)
        await until(lambda: "tried again" in caplog.text)
        assert runs_of(store) == []
        store.fails = lambda op: False
        await until(lambda: runs_of(store))
        [run] = runs_of(store)
    assert run["run_id"].endswith("T07:00:00Z")


async def test_a_schedule_that_meets_a_quota_is_logged_without_a_traceback(monkeypatch, caplog):
    monkeypatch.setattr(schedules, "RETRY_SECONDS", 0.01)
    store, limits = WatchedStore(), Limits(threads_per_user=1)
    app = flow_app(store=store, auth=lambda _: "ann", limits=limits)
    async with asking(app) as client:
        await client.post("/threads", json={"thread_id": "full"})
        made = await client.post("/runs/crons", json={**DAILY, "on_run_completed": "keep"})
        store.make_due(made.json()["cron_id"])
        await client.post("/runs/crons", json={**DAILY, "enabled": False})
        await until(lambda: "as many threads as you may" in caplog.text)
        assert "Traceback" not in caplog.text and runs_of(store) == []
        await client.delete("/threads/full")
        await until(lambda: runs_of(store))


async def make_idle(client):
    """A schedule that is not fired, and whose runs are kept."""
    made = await client.post("/runs/crons", json={**DAILY, "on_run_completed": "keep", "enabled": False})
    return made.json()["cron_id"]


@pytest.mark.parametrize("end", ["2026-01-03T00:00:00Z", "2026-01-02T07:00:00+00:00"])
async def test_what_was_missed_is_made_up_for_only_until_the_end(end):
    store = WatchedStore()
    async with asking(flow_app(store=store)) as client:
        found = await make_idle(client)
        store.make_due(found, enabled=True, end_time=end)
        await make_idle(client)  # wakes what fires
        [run] = await until(lambda: runs_of(store))
        assert run["run_id"] == f"{found}@2026-01-02T07:00:00Z"
        assert (await client.get(f"/runs/crons/{found}")).json()["next_run_date"] is None


async def test_a_planned_time_that_is_due_outlasts_a_change_of_the_input():
    store = WatchedStore()
    async with asking(flow_app(store=store)) as client:
        found = await make_idle(client)
        store.fails = lambda op: isinstance(op, SearchOp) and op.namespace_prefix == (ROOT, "crons")
        store.make_due(found, enabled=True)
        await client.patch(f"/runs/crons/{found}", json={"input": {"log": ["y"]}})
        store.fails = lambda op: False
        await make_idle(client)
        [run] = await until(lambda: runs_of(store))
        assert run["kwargs"]["input"] == {"log": ["y"]}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"assistant_id": "flow"}, "schedule"),
        ({**DAILY, "stream_mode": "films"}, "stream_mode"),
        ({**DAILY, "interrupt_before": 3}, "interrupt_before"),
        ({**DAILY, "end_time": "soon"}, "end_time"),
        ({**DAILY, "timezone": "Moon/Base"}, "Moon/Base"),
    ],
)
async def test_a_schedule_that_could_not_begin_a_run_is_refused(body, says):
    async with asking(flow_app()) as client:
        refused = await client.post("/runs/crons", json=body)
    assert refused.status_code == 422 and says in refused.json()["detail"]


async def test_what_becomes_of_the_threads_of_a_schedule_can_be_said_and_changed():
    async with asking(flow_app()) as client:
        made = (await client.post("/runs/crons", json={**DAILY, "on_run_completed": "keep"})).json()
        place = f"/runs/crons/{made['cron_id']}"
        change = {"on_run_completed": "delete", "stream_mode": "updates"}
        changed = (await client.patch(place, json=change)).json()
        kept, payload = [made["payload"]["on_completion"], changed["payload"]]
    assert (kept, payload["on_completion"], payload["stream_mode"]) == ("keep", "delete", "updates")


class Clock(datetime):
    """The clock of the schedules, which a test puts forward and back."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz=None):  # type: ignore[override]
        return datetime.now(tz) + cls.ahead


@pytest.mark.parametrize("years", [10, -10])
async def test_a_schedule_resumes_within_a_minute_once_the_clock_is_right_again(years, monkeypatch):
    monkeypatch.setattr(schedules, "datetime", Clock)
    monkeypatch.setattr(Clock, "ahead", timedelta())
    minutely = {**DAILY, "schedule": "* * * * *"}
    store = WatchedStore()
    def planned(id):
        found = store.get((ROOT, "crons"), id)
        assert found is not None
        return datetime.fromisoformat(found.value["next_run_date"]) - Clock.now(UTC)

    def is_soon(id):
        return timedelta() < planned(id) <= timedelta(minutes=1)

    async with asking(flow_app(store=store)) as client:
        made = (await client.post("/runs/crons", json=minutely)).json()["cron_id"]
        for ahead in (timedelta(days=365 * years), timedelta()):
            Clock.ahead = ahead
            await client.post("/runs/crons", json=DAILY)  # what fires looks again, as it does each minute
            await until(lambda: is_soon(made))


async def test_a_planned_time_starts_no_second_run_when_the_clock_is_set_back(monkeypatch):
    monkeypatch.setattr(schedules, "datetime", Clock)
    store = WatchedStore()
    async with asking(flow_app(store=store)) as client:
        thread = await new_thread(client)
        made = (await client.post(f"/threads/{thread}/runs/crons", json=DAILY)).json()
        first = datetime.fromisoformat(made["next_run_date"])
        for at in (1, -30, 2):  # seconds from the planned time
            Clock.ahead = first + timedelta(seconds=at) - datetime.now(UTC)
            store.written.clear()
            await client.post("/runs/crons", json={**DAILY, "enabled": False})
            await until(lambda: len([kinds for kinds in store.written if "crons" in kinds]) > 1)
        found = store.get((ROOT, "crons"), made["cron_id"])
        runs, planned, first = (runs_of(store), None if found is None else found.value["next_run_date"], first)
    assert len([each for each in runs if "@" in each["run_id"]]) == 1
    assert datetime.fromisoformat(planned) == first + timedelta(days=1)
