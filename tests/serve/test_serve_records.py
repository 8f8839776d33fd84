"""Records that several requests and runs change at once: no change is lost."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from in_process import OwnStore, YieldingStore, asking, new_thread
from kit.graphs import chain_of
from serving import RUN, Gates, Log, flow_app, make_flow

from stategraph import START, InMemorySaver, StateGraph, interrupt
from stategraph.serve import create_app, records, stores
from stategraph.serve.routes import threads
from stategraph.serve.runs.runner import puts_of
from stategraph.serve.runs.settler import Outcome, Settler
from stategraph.store import GetOp, SearchOp


def app_of(**options):
    return flow_app(store=YieldingStore(), **options)


@pytest.mark.parametrize("make_store", [YieldingStore, OwnStore])
async def test_a_change_of_a_thread_while_runs_begin_and_end_is_kept(make_store):
    async with asking(flow_app(store=make_store())) as client:
        place = f"/threads/{await new_thread(client)}"
        run = RUN
        runs = [client.post(f"{place}/runs/wait", json=run) for _ in range(5)]
        many = [client.patch(place, json={"metadata": {str(n): n}}) for n in range(40)]
        await asyncio.gather(*runs, *many)
        thread = (await client.get(place)).json()
    assert thread["status"] == "idle" and thread["metadata"]["graph_id"] == "flow"
    assert {str(n) for n in range(40)} <= {*thread["metadata"]}


@pytest.mark.parametrize("steps", range(0, 24, 3))
async def test_a_deleted_thread_leaves_no_run_that_begins_later(steps):
    """Another request has posted it meanwhile."""
    store = YieldingStore()
    async with asking(flow_app(store=store)) as client:
        place = f"/threads/{await new_thread(client)}"
        run = RUN
        await client.post(f"{place}/runs/wait", json=run)
        deleting = asyncio.create_task(client.delete(place))
        for _ in range(steps):
            await asyncio.sleep(0)
        posted = await client.post(f"{place}/runs", json={**run, "after_seconds": 3600})
        deleted = await deleting
        if deleted.status_code == 409:
            assert posted.status_code == 200 and "meanwhile" in deleted.json()["detail"]
            deleted = await client.delete(place)
        assert deleted.status_code == 204 and posted.status_code in (200, 404, 409)
        assert store.search((records.ROOT, "unfinished")) == []


@pytest.mark.parametrize(
    "path",
    [
        "/threads/{}/history?limit=x",
        "/threads/{}/history?limit=-1",
        "/threads/{}/runs?limit=x",
        "/threads/{}/runs?offset=-1",
        "/threads/{}/state?subgraphs=perhaps",
        "/threads/{}/state/nothing-of-the-kind",
        "/assistants/flow/graph?xray=²",
        f"/assistants/flow/graph?xray={'9' * 5000}",
        "/assistants/flow/subgraphs?recurse=perhaps",
    ],
)
async def test_a_bad_parameter_is_refused_with_a_sentence(path):
    async with asking(app_of()) as client:
        thread = await new_thread(client)
        run = RUN
        await client.post(f"/threads/{thread}/runs/wait", json=run)
        refused = await client.get(path.format(thread))
    assert refused.status_code in (404, 422) and refused.json()["detail"]


@pytest.mark.parametrize(
    "checkpoint",
    [
        {"checkpoint_ns": "nowhere:1"},
        {"checkpoint_ns": "a:b|c:d|"},
        {"checkpoint_ns": 7, "checkpoint_id": {"x": 1}},
        {"checkpoint_id": "\ud800"},
        {"checkpoint_id": "\x00"},
    ],
)
@pytest.mark.parametrize("place", ["state/checkpoint", "history", "state", "runs/wait"])
async def test_a_checkpoint_that_cannot_be_is_refused_with_a_sentence(place, checkpoint):
    async with asking(app_of()) as client:
        thread = await new_thread(client)
        run = RUN
        await client.post(f"/threads/{thread}/runs/wait", json=run)
        body = {"assistant_id": "flow", "checkpoint": checkpoint, "values": {"log": []}}
        answered = await client.post(f"/threads/{thread}/{place}", content=json.dumps(body))
    assert answered.status_code < 500


async def test_an_assistant_whose_graph_is_no_longer_served_is_an_error():
    async def ask(store: YieldingStore):
        graphs = {"flow": make_flow(Gates()), "gone": make_flow(Gates())}
        async with asking(create_app(graphs, store=store)) as client:
            made = (await client.post("/assistants", json={"graph_id": "gone"})).json()["assistant_id"]
        async with asking(create_app({"flow": graphs["flow"]}, store=store)) as client:
            for path in ("graph", "schemas", "subgraphs"):
                yield await client.get(f"/assistants/{made}/{path}")
            yield await client.post("/runs/wait", json={"assistant_id": made, "input": {}})
            assert (await client.get(f"/assistants/{made}")).status_code == 200
            assert (await client.delete(f"/assistants/{made}")).status_code == 204

    refused = [each async for each in ask(YieldingStore())]
    assert [each.status_code for each in refused] == [409] * 4
    assert all("'gone' is not served any more" in each.json()["detail"] for each in refused)


async def test_records_made_without_users_belong_to_no_user():
    store = YieldingStore()
    flow = {"flow": make_flow(Gates())}
    async with asking(create_app(flow, store=store)) as client:
        thread = await new_thread(client)
        assistant = (await client.post("/assistants", json={"graph_id": "flow"})).json()["assistant_id"]
        cron = {"assistant_id": "flow", "schedule": "0 7 * * *"}
        cron_id = (await client.post("/runs/crons", json=cron)).json()["cron_id"]
    async with asking(create_app(flow, store=store, auth=lambda _: "ann")) as client:
        paths = [f"/threads/{thread}", f"/assistants/{assistant}", f"/runs/crons/{cron_id}"]
        codes = [(await client.get(path)).status_code for path in paths]
        kinds = ["threads", "assistants", "runs/crons"]
        found = [(await client.post(f"/{kind}/search", json={})).json() for kind in kinds]
        assert (codes, found[0], [each["name"] for each in found[1]], found[2]) == ([404] * 3, [], ["flow"], [])


async def test_a_page_of_threads_is_all_that_is_read():
    asked = []

    class Counting(YieldingStore):
        async def abatch(self, ops):
            ops = [*ops]
            assert not any(isinstance(op, SearchOp) for op in ops)
            return await super().abatch(ops)

        async def alook_up(self, lookup):
            found = await super().alook_up(lookup)
            asked.append(len(found))
            return found

    async with asking(flow_app(store=Counting())) as client:
        made = [await new_thread(client) for _ in range(9)]
        asked.clear()
        body = {"limit": 3, "offset": 2, "status": "idle", "select": ["thread_id"]}
        page = (await client.post("/threads/search", json=body)).json()
        made, page = (made, [each["thread_id"] for each in page])
    assert page == made[::-1][2:5]
    assert asked == [3]


def test_a_store_with_an_index_does_not_embed_records():
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return [[1.0] for _ in texts]

    async def run():
        store = YieldingStore(index={"dims": 1, "embed": embed})
        async with asking(flow_app(store=store)) as client:
            run = RUN
            await client.post(f"/threads/{await new_thread(client)}/runs/wait", json=run)

    asyncio.run(run())
    assert embedded == []


async def test_a_run_costs_three_calls_of_the_store():
    """Its thread is read when it begins, and both are written; and again when it ends, if the thread is as it was."""
    calls = []

    class Counting(YieldingStore):
        async def abatch(self, ops):
            ops = [*ops]
            calls.append([type(op).__name__ for op in ops])
            return await super().abatch(ops)

    async with asking(flow_app(store=Counting())) as client:
        thread = await new_thread(client)
        body = RUN
        await client.post(f"/threads/{thread}/runs/wait", json=body)
        calls.clear()
        await client.post(f"/threads/{thread}/runs/wait", json=body)
    assert calls == [["GetOp"], ["PutOp"] * 2, [*["UnchangedOp"] * 2, *["PutOp"] * 3]]


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_runs_that_are_replaced_before_they_begin_end(strategy):
    async with asking(app_of()) as client:
        thread = await new_thread(client)
        body = {**RUN, "thread_id": thread, "multitask_strategy": strategy}
        begun = (await client.post("/runs/batch", json=[body] * 3)).json()
        for each in begun:
            await client.get(f"/threads/{thread}/runs/{each['run_id']}/join")
        runs = (await client.get(f"/threads/{thread}/runs")).json()
        kept = ["success"] if strategy == "rollback" else ["success", "interrupted", "interrupted"]
        assert [each["status"] for each in runs] == kept
        assert (await client.get(f"/threads/{thread}")).json()["values"]["log"] == ["a", "b"]


async def test_a_search_by_ids_reads_those_records_and_no_list():
    asked = []

    class Watching(YieldingStore):
        async def abatch(self, ops):
            ops = [*ops]
            asked.extend(op for op in ops if op.__class__ in (GetOp, SearchOp))
            return await super().abatch(ops)

    async with asking(flow_app(store=Watching())) as client:
        made = [await new_thread(client) for _ in range(20)]
        for _ in range(3):
            await client.patch(f"/threads/{made[1]}", json={"metadata": {"m": 1}})
        asked.clear()
        wanted = [made[0], made[1], made[1], "x", "", "\x00", "x" * 300]
        body = {"ids": wanted, "select": ["thread_id"], "status": "idle"}
        found = (await client.post("/threads/search", json=body)).json()
        assert [each["thread_id"] for each in found] == [made[1], made[0]]  # written last first
        assert len(asked) <= 8 and not any(isinstance(op, SearchOp) for op in asked)
        body |= {"sort_by": "created_at", "sort_order": "asc", "limit": 1, "offset": 1}
        assert [each["thread_id"] for each in (await client.post("/threads/search", json=body)).json()] == [made[1]]
        assert (await client.post("/threads/count", json={"ids": wanted, "metadata": {"m": 1}})).json() == 1


@pytest.mark.parametrize("pages", [1, 3, 7, 20, 5000])
async def test_a_sorted_search_reads_all_records_in_pages(monkeypatch, pages):
    monkeypatch.setattr(stores, "PAGE", pages)
    async with asking(app_of()) as client:
        made = [await new_thread(client) for _ in range(7)]
        for order, wanted in (("asc", made), ("desc", made[::-1])):
            for offset in (0, 2, 6, 9):
                body = {"sort_by": "created_at", "sort_order": order, "limit": 3, "offset": offset}
                found = (await client.post("/threads/search", json=body)).json()
                assert [each["thread_id"] for each in found] == wanted[offset : offset + 3]
        assert (await client.post("/threads/count", json={})).json() == 7


async def test_threads_are_found_by_their_values():
    async with asking(app_of()) as client:
        made = [await new_thread(client) for _ in range(4)]
        for thread in made[:3]:
            run = {"assistant_id": "flow", "input": {"log": [], "topic": "t" if thread != made[1] else "u"}}
            await client.post(f"/threads/{thread}/runs/wait", json=run)
        for asked, wanted in (({}, [made[2], made[0]]), ({"sort_order": "asc"}, [made[0], made[2]])):
            body = {"values": {"topic": "t"}, **asked}
            found = (await client.post("/threads/search", json=body)).json()
            assert [each["thread_id"] for each in found] == wanted
            found = (await client.post("/threads/search", json={**body, "limit": 1, "offset": 1})).json()
            assert [each["thread_id"] for each in found] == wanted[1:]
        assert (await client.post("/threads/count", json={"values": {"topic": "t"}})).json() == 2


async def test_a_search_by_values_reads_no_more_records_than_it_needs(monkeypatch):
    monkeypatch.setattr(records, "FEW", 2)
    read = []

    class Watching(YieldingStore):
        async def abatch(self, ops):
            ops = [*ops]
            assert not any(isinstance(op, SearchOp) for op in ops)
            read.extend(op.key for op in ops if isinstance(op, GetOp))
            return await super().abatch(ops)

    async with asking(flow_app(store=Watching())) as client:
        made = [await new_thread(client) for _ in range(7)]
        for thread in made:
            run = {"assistant_id": "flow", "input": {"log": [], "topic": "t"}}
            await client.post(f"/threads/{thread}/runs/wait", json=run)
        for limit, order, wanted in ((1, "desc", made[:4:-1]), (3, "asc", made[:4])):
            read.clear()
            body = {"values": {"topic": "t"}, "limit": limit, "sort_order": order}
            found = (await client.post("/threads/search", json=body)).json()
            assert [each["thread_id"] for each in found] == wanted[:limit]
            assert read == wanted


async def test_the_page_finds_texts_of_threads_not_the_names_of_their_fields():
    async with asking(app_of()) as client:
        for topic in ("metadata", "t"):
            run = {"assistant_id": "flow", "input": {"log": [], "topic": topic}}
            await client.post(f"/threads/{await new_thread(client)}/runs/wait", json=run)
        found = (await client.post("/page/threads", json={"text": "metadata"})).json()
    assert len(found["threads"]) == 1 and found["searched"] == 2


def test_the_status_of_a_thread_says_after_each_run_whether_work_is_pending():
    async def run(options):
        async with asking(app_of()) as client:
            place = f"/threads/{await new_thread(client)}"
            body = {**RUN, **options}
            await client.post(f"{place}/runs/wait", json=body)
            return str((await client.get(place)).json()["status"])

    stops = [{}, {"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}, {"interrupt_after": ["b"]}]
    assert [asyncio.run(run(each)) for each in stops] == ["idle", "interrupted", "interrupted", "idle"]


async def test_all_interrupts_of_a_superstep_are_reported_with_finished_tasks():
    def ask(state):
        return {"log": [interrupt(f"{state['topic']}?")]}

    async def done(state):
        return {"log": ["done"]}

    graph = StateGraph(Log)
    for name, node in {"one": ask, "two": ask, "z": done}.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
    async with asking(create_app({"flow": graph.compile()}, store=YieldingStore())) as client:
        place = f"/threads/{await new_thread(client)}"
        body = {"assistant_id": "flow", "input": {"log": ["x"], "topic": "t"}}
        told = (await client.post(f"{place}/runs/wait", json=body)).json()
        told, status = (told, (await client.get(place)).json()["status"])
    assert status == "interrupted" and told["log"] == ["x", "done"]
    assert [each["value"] for each in told["__interrupt__"]] == ["t?", "t?"]


async def test_failed_threads_are_grouped_in_time_that_grows_with_their_messages_only():
    """Each request waits while one is answered, and whoever makes a graph fail may choose the message."""
    hard = ["1" * 40_000 + "g", "1-" * 20_000 + "g", "a-" * 20_000 + "g"]
    same = ["order 12 of 01a221d2-59e9-76d2-8b68-2dad768e49d6", "order 7 of abcdef01-59e9-76d2-8b68-2dad768e49d6"]

    def fail(state):
        raise ValueError([*hard, *same][int(state["topic"])])

    graph = chain_of(Log, fail=fail).compile()
    async with asking(create_app({"fails": graph})) as client:
        for number in range(5):
            place = f"/threads/{await new_thread(client)}"
            await client.post(f"{place}/runs/wait", json={"assistant_id": "fails", "input": {"topic": str(number)}})
        began = time.perf_counter()
        groups = (await client.get("/page/overview")).json()["failures"]
        assert time.perf_counter() - began < 5
    assert [len(each["threads"]) for each in groups] == [2, 1, 1, 1]


async def test_the_delay_of_a_run_is_none_of_the_time_that_it_took_or_waited():
    async with asking(app_of()) as client:
        run = RUN
        place = f"/threads/{await new_thread(client)}"
        await client.post(f"{place}/runs/wait", json={**run, "after_seconds": 1})
        later = (await client.post(f"{place}/runs", json={**run, "after_seconds": 3600})).json()
        took = (await client.get("/page/overview")).json()["took"]
        [waits] = (await client.get("/page/queue")).json()["runs"]
        await client.post(f"{place}/runs/{later['run_id']}/cancel?wait=true")
        least, most = (await client.get("/page/overview")).json()["took"]
    assert 0 < took[1] < 1 and waits["run_at"] > waits["created_at"]
    assert least == 0 or most < 1


async def test_the_end_of_a_run_that_is_recorded_late_leaves_the_thread_as_a_later_one_has_left_it():
    saver, found = InMemorySaver(), records.Records(YieldingStore())
    app = make_flow(Gates()).copy({"checkpointer": saver})
    await app.ainvoke({"log": [], "topic": "ask"}, {"configurable": {"thread_id": "t"}})  # a later run, which has paused
    thread = {**threads.new_thread("t", "", {}), "status": "interrupted"}
    run = {"run_id": "r", "thread_id": "t", "graph_id": "flow", "created_at": records.now(), "owner": "", "kwargs": {"temporary": False}}
    await found.put(("threads", "t", thread), *puts_of(run))
    await Settler({"flow": app}, found).end(run, Outcome("success", {"log": []}, None, is_over=True), None)
    assert (await found.get("threads", "t"))["status"] == "interrupted"
    assert (await found.find("runs", "r", "t"))["status"] == "success"
