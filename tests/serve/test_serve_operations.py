"""What operators have: metrics, an audit log, traces that go on, a description of the API, and the erasure of a user."""

import asyncio
import json
import logging
import sqlite3
from contextlib import closing
from uuid import uuid4

import httpx
import psycopg
import pytest
from canaries import CLEAR, HIDDEN, HOOK, make_teller, session, tables_of, texts_of
from in_process import asking, new_thread, routes_of
from kit.fleet import until
from kit.graphs import Log, chain_of
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from serving import RUN, Gates, flow_app, opened, serving

from stategraph import Budget
from stategraph.otel import instrument
from stategraph.pregel.drivers.spending import BUDGETS
from stategraph.serve import create_app
from stategraph.serve.operations.routes import describe_api
from stategraph.serve.operations.watch import AUDIT
from stategraph.serve.records import ROOT
from stategraph.store import InMemoryStore

ANN, OPS = {"x-user": "ann"}, {"x-user": "ops"}


def app_of(**options):
    return flow_app(**options)


def by_user(request):
    return request.headers.get("x-user")


# -- metrics --------------------------------------------------------------------------------------------------


def samples(text):
    """What Prometheus reads: name and the values of a few labels → value."""
    labels = ("http_route", "http_response_status_code", "status")
    return {
        (each.name, *(each.labels[name] for name in labels if name in each.labels)): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


async def test_metrics_count_requests_by_route_and_runs():
    async with asking(app_of(metrics=True)) as client:
        thread = await new_thread(client)
        for _ in range(3):
            assert (await client.post(f"/threads/{thread}/runs/wait", json=RUN)).status_code == 200
        assert (await client.get(f"/threads/{uuid4()}")).status_code == 404
        assert (await client.get("/nowhere")).status_code == 404
        answered = await client.get("/metrics")
    assert answered.headers["content-type"].startswith("text/plain")
    found = samples(answered.text)
    count = "http_server_request_duration_seconds_count"
    assert found[count, "/threads/{thread_id}/runs/wait", "200"] == 3
    assert found[count, "/threads/{thread_id}", "404"] == 1
    assert found[count, "", "404"] == 1, "a path that is no route makes no series of its own"
    assert sum(value for name, value in found.items() if name[0] == "stategraph_run_duration_seconds_count") == 3
    assert found["http_server_active_requests",] == 1
    assert found["stategraph_runs_open",] == 0


async def test_two_servers_of_a_process_have_metrics_of_their_own():
    async with asking(app_of(metrics=True)) as one, asking(app_of(metrics=True)) as other:
        await one.get("/info")
        count = ("http_server_request_duration_seconds_count", "/info", "200")
        assert samples((await one.get("/metrics")).text)[count] == 1
        assert count not in samples((await other.get("/metrics")).text)


async def test_metrics_are_for_operators():
    async with asking(app_of(metrics=True, auth=by_user, operators=["ops"])) as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=ANN)).status_code == 403
        assert (await client.get("/metrics", headers=OPS)).status_code == 200


async def test_without_metrics_nothing_is_measured():
    async with asking(app_of()) as client:
        assert (await client.get("/metrics")).status_code == 404


async def test_budgets_of_users_are_measured_and_each_user_sees_their_own():
    paying = chain_of(Log, pay=lambda state, runtime: runtime.spend(usd=0.75))
    graph = paying.compile(budget=[Budget(usd=1, calls=9, per="user"), Budget(usd=5)])
    app = create_app({"paying": graph}, metrics=True, auth=by_user, operators=["ops"])
    async with asking(app) as client:
        for user in (ANN, ANN, ANN, {"x-user": "bob"}):
            run = {"assistant_id": "paying", "input": {"log": []}}
            await client.post("/runs/wait", json=run, headers=user)
        text = (await client.get("/metrics", headers=OPS)).text
        [mine] = [
            each for each in (await client.get("/page/queue", headers=ANN)).json()["budgets"] if each["unit"] == "usd"
        ]
        receipt = (await client.delete("/users/ann", headers=ANN)).json()
        assert any("erasing would refill it" in each for each in receipt["may_linger"])
        after = (await client.get("/page/queue", headers=ANN)).json()["budgets"]
    found = {
        (each.name, each.labels["key"], each.labels["unit"]): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name.startswith("stategraph_budget")
    }
    assert found == {
        (f"stategraph_budget_{value}", user, unit): number
        for user, spent in (("ann", 1.5), ("bob", 0.75))
        for value, unit, number in (("spent", "usd", spent), ("limit", "usd", 1), ("spent", "calls", 0), ("limit", "calls", 9))
    }
    assert mine == {"graph": "paying", "per": "user", "key": "ann", "unit": "usd", "spent": 1.5, "limit": 1} == after[0]


def test_the_queue_is_measured(postgres):
    with (
        opened("postgres", postgres) as options,
        serving(app_of(metrics=True, workers=0, **options)) as url,
        httpx.Client(base_url=url) as client,
    ):
        client.post("/runs", json=RUN)
        client.post("/runs", json=RUN)
        text = until(lambda: "stategraph_queue_jobs" in (found := client.get("/metrics").text) and found)
    assert sum(value for name, value in samples(text).items() if name[0] == "stategraph_queue_jobs") == 2


# -- traces and the audit log ---------------------------------------------------------------------------------


async def test_a_trace_of_the_client_goes_on_in_the_run():
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    stop = instrument(provider)
    trace_id, parent = f"{uuid4().int:032x}", "00f067aa0ba902b7"
    try:
        async with asking(app_of()) as client:
            sent = {"traceparent": f"00-{trace_id}-{parent}-01"}
            await client.post("/runs/wait", json=RUN, headers=sent)
            await client.post("/runs/wait", json=RUN)
    finally:
        stop()
    traces = {f"{span.context.trace_id:032x}" for span in spans.get_finished_spans()}
    assert trace_id in traces and len(traces) == 2
    [run] = [each for each in spans.get_finished_spans() if each.parent and f"{each.parent.span_id:016x}" == parent]
    assert f"{run.context.trace_id:032x}" == trace_id


async def test_the_audit_log_says_who_changed_what(caplog):
    with caplog.at_level(logging.INFO, AUDIT.name):
        async with asking(app_of(auth=by_user)) as client:
            thread = await new_thread(client, headers=ANN)
            await client.get(f"/threads/{thread}", headers=ANN)
            await client.post("/threads/search", json={}, headers=ANN)
            await client.delete(f"/threads/{thread}", headers={"x-user": "bob"})
            await client.delete(f"/threads/{thread}", headers=ANN)
            await client.delete(f"/threads/{thread}")
    told = [json.loads(each.message) for each in caplog.records if each.name == AUDIT.name]
    one = "/threads/{thread_id}"
    assert [(each["user"], each["method"], each["route"], each["status"]) for each in told] == [
        ("ann", "POST", "/threads", 200),
        ("bob", "DELETE", one, 404),
        ("ann", "DELETE", one, 204),
        (None, "DELETE", one, 401),
    ]
    assert {each["thread_id"] for each in told[1:]} == {thread}


async def test_a_route_is_named_whatever_its_parameters_are_called():
    async with asking(app_of(metrics=True)) as client:
        await client.post("/threads", json={"thread_id": "state"})
        assert (await client.get("/threads/state/state")).status_code == 200
        assert (await client.get("/threads/state/runs/runs")).status_code == 404
        found = samples((await client.get("/metrics")).text)
    count = "http_server_request_duration_seconds_count"
    assert found[count, "/threads/{thread_id}/state", "200"] == 1
    assert found[count, "/threads/{thread_id}/runs/{run_id}", "404"] == 1


# -- the description of the API -------------------------------------------------------------------------------


def refs_in(value):
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(refs_in, value.values()))
    return set().union(*map(refs_in, value)) if isinstance(value, list) else set()


@pytest.mark.trial
async def test_the_description_names_every_route_and_what_it_reads():
    app = app_of(metrics=True)
    async with asking(app) as client:
        told = (await client.get("/openapi.json")).json()
        page = await client.get("/docs")
        described = {(method.upper(), path) for path, each in told["paths"].items() for method in each}
        served = {(method, path.replace(":path}", "}")) for method, path in routes_of(app.routes)}
        assert {path for _, path in served - described if not path.startswith("/page/")} == {"/", "/mcp"}
        assert all(ref.rpartition("/")[2] in told["components"]["schemas"] for ref in refs_in(told))
        assert all(each["summary"] for methods in told["paths"].values() for each in methods.values())
        # What a body may hold is what the server takes: each field with a wrong type is refused by its name.
        for path, methods in told["paths"].items():
            sent = methods.get("post", {}).get("requestBody")
            if sent is None or "{" in path:
                continue
            schema = told["components"]["schemas"][sent["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
            for name in schema.get("required", ()):
                refused = await client.post(path, json={})
                assert refused.status_code == 422 and name in refused.text, path
    assert "GET /threads/{thread_id}" in page.text and "<script" not in page.text


def test_a_route_that_reads_a_body_says_so():
    described = describe_api(app_of().routes, "1")
    silent = {
        path
        for path, methods in described["paths"].items()
        for method, each in methods.items()
        if method in ("post", "put", "patch") and "requestBody" not in each
    }
    assert silent == {
        "/ag-ui/{assistant_id}",  # a protocol of its own
        "/threads/{thread_id}/copy",
        "/threads/{thread_id}/runs/{run_id}/cancel",
    }


# -- erasure --------------------------------------------------------------------------------------------------


def vacuum(kind, place, conninfo):
    """What the receipt asks for."""
    if kind.startswith("sqlite"):
        with closing(sqlite3.connect(place)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("VACUUM")
        return
    with psycopg.connect(conninfo, autocommit=True) as admin:
        names = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        for (name,) in admin.execute(names).fetchall():
            admin.execute(f"VACUUM FULL {name}")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_after_an_erasure_no_word_of_the_user_is_stored(kind, tmp_path, postgres):
    sdk = pytest.importorskip("langgraph_sdk")
    place = tmp_path / "served.db"
    words = {who: {name: f"canary{uuid4().hex}" for name in (*HIDDEN, *CLEAR)} for who in ("ann", "bob")}
    with opened(kind, place if kind == "sqlite" else postgres) as options:
        app = create_app({"teller": make_teller(words["ann"])}, webhooks=[HOOK], auth=by_user, operators=["ops"], **options)
        with (
            serving(app) as url,
            sdk.get_sync_client(url=url, headers=ANN) as ann,
            sdk.get_sync_client(url=url, headers={"x-user": "bob"}) as bob,
        ):
            session(ann, words["ann"], HOOK, "ann")
            kept = bob.threads.create(metadata={"m": words["bob"]["thread_metadata"]})
            bob.store.put_item(["bob", "notes"], "k", {"text": words["bob"]["item"]})
            receipt = httpx.delete(f"{url}/users/ann", headers=OPS, timeout=30).json()
            assert bob.threads.get(kept["thread_id"])["thread_id"] == kept["thread_id"]
            assert bob.store.get_item(["bob", "notes"], "k")["value"]["text"] == words["bob"]["item"]
            assert not ann.threads.search() and not ann.crons.search()
            assert ann.store.get_item(["ann", "notes"], "k") is None
    assert {kind: len(ids) for kind, ids in receipt["removed"].items()} == {
        "schedules": 1, "runs": 4, "threads": 1, "assistants": 1, "items": 1,
    }  # fmt: skip
    assert any("VACUUM" in each for each in receipt["may_linger"])
    vacuum(kind, place, postgres)
    if kind == "sqlite":
        stored = b"\0".join(texts_of(kind, place, postgres))
    else:
        stored = b"\0".join(tables_of(postgres))  # the receipt says that the write-ahead log holds more
    assert not [name for name, word in words["ann"].items() if word.encode() in stored]
    assert words["bob"]["item"].encode() in stored


async def test_users_erase_themselves_and_nobody_else():
    async with asking(app_of(auth=by_user, operators=["ops"])) as client:
        thread = await new_thread(client, headers=ANN)
        refused = await client.delete("/users/ann", headers={"x-user": "bob"})
        assert refused.status_code == 403 and "operators" in refused.text
        receipt = (await client.delete("/users/ann", headers=ANN)).json()
        assert receipt["removed"] == {"threads": [thread]}
        assert (await client.delete("/users/ann", headers=OPS)).json()["removed"] == {}


@pytest.mark.parametrize("user", ["*", ROOT, BUDGETS])
async def test_an_erasure_leaves_what_belongs_to_all(user):
    """Ids that stand for all namespaces, or are those of the server and the engine."""
    store = InMemoryStore()
    store.put(("bob", "notes"), "k", {"text": "of bob"})
    store.put((BUDGETS, "user"), "bob", {"calls": 3})
    async with asking(app_of(auth=by_user, operators=["ops"], store=store)) as client:
        await client.post("/threads", json={}, headers={"x-user": "bob"})
        before = {(item.namespace, item.key) for item in store.search((), limit=100)}
        for header in ({"x-user": user}, OPS):
            assert (await client.delete(f"/users/{user}", headers=header)).json()["removed"] == {}
        item = {"namespace": [BUDGETS, "user"], "key": "bob", "value": {}}
        assert (await client.put("/store/items", json=item, headers={"x-user": user})).status_code == 403
    assert before == {(item.namespace, item.key) for item in store.search((), limit=100)}


async def test_an_erasure_stops_runs_and_schedules():
    gates = Gates()
    gates.close("wait")
    app = flow_app(gates, auth=by_user)
    async with asking(app) as client:
        thread = await new_thread(client, headers=ANN)
        waiting = {**RUN, "input": {"log": [], "topic": "wait"}, "multitask_strategy": "enqueue"}
        for _ in range(3):
            assert (await client.post(f"/threads/{thread}/runs", json=waiting, headers=ANN)).status_code == 200
        await asyncio.wait_for(gates.are_reached("wait", 1), 10)
        cron = {"assistant_id": "flow", "schedule": "* * * * *", "input": {"log": []}}
        await client.post("/runs/crons", json=cron, headers=ANN)
        receipt = (await client.delete("/users/ann", headers=ANN)).json()
        assert len(receipt["removed"]["runs"]) == 3 and len(receipt["removed"]["schedules"]) == 1
        gates.open("wait")
        assert (await client.get(f"/threads/{thread}", headers=ANN)).status_code == 404


async def test_without_users_there_is_nobody_to_erase():
    async with asking(app_of()) as client:
        refused = await client.delete("/users/ann")
        assert refused.status_code == 409 and "without auth=" in refused.text
