"""Runs in the server's own process: when they begin, how they are stopped, and what a database that
fails does to them."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from urllib.parse import quote

import httpx
import pytest
from in_process import YieldingStore, asking
from kit.graphs import chain_of
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import ConflictError
from serving import Gates, Log, flow_app, make_flow, new_thread, serving

from stategraph import InMemorySaver
from stategraph.checkpoint.base import ERROR
from stategraph.serve import create_app
from stategraph.serve.encode import encode
from stategraph.serve.events import EventLog, KeptBytes
from stategraph.serve.records import ROOT
from stategraph.serve.runs import in_process
from stategraph.serve.runs.execution import EndedRuns, Execution
from stategraph.store import InMemoryStore


@pytest.fixture
def gates():
    return Gates()


class Failing(InMemoryStore):
    """Refuses the writes that `refuses` returns True for."""

    def __init__(self):
        super().__init__()
        self.refuses = lambda ops: False
        self.refused = 0

    async def abatch(self, ops):
        ops = [*ops]
        if self.refuses(ops):
            self.refused += 1
            raise OSError("the disk is full")
        return await super().abatch(ops)


def stores(ops, kind, *, ends):
    """Whether a write makes a record of this kind, or ends it."""
    named = [op for op in ops if getattr(op, "namespace", ())[1:2] == (kind,) and hasattr(op, "value")]
    return any((op.value is None) == ends for op in named)


def test_a_run_that_could_not_be_stored_does_not_begin(gates):
    store = Failing()
    with serving(flow_app(gates, store=store)) as url, get_sync_client(url=url) as client:
        thread = new_thread(client)
        gates.close("first")
        gates.close("second")
        first = client.runs.create(thread, "flow", input={"topic": "first"})["run_id"]
        assert gates.reached["first"].wait(10)

        def refuse(ops):
            if not stores(ops, "unfinished", ends=False):
                return False
            gates.open("first")  # its thread would be free now
            return True

        store.refuses = refuse
        asked = {"assistant_id": "flow", "input": {"topic": "second"}}
        assert httpx.post(f"{url}/threads/{thread}/runs", json=asked).status_code == 500
        store.refuses = lambda ops: False
        client.runs.join(thread, first)
        assert client.runs.wait(thread, "flow", input={"topic": ""})["log"] == ["a", "b", "a", "b"]
        assert not gates.reached["second"].is_set()


@pytest.mark.parametrize("tries", [1, 100])
def test_an_outcome_that_cannot_be_stored_blocks_no_other_run(gates, tries, monkeypatch, caplog):
    monkeypatch.setattr("stategraph.serve.runs.in_process.PAUSES", (0.01,))
    store = Failing()
    store.refuses = lambda ops: stores(ops, "unfinished", ends=True) and store.refused < tries
    app = flow_app(gates, store=store)
    with serving(app) as url, get_sync_client(url=url, timeout=10) as client:
        thread = new_thread(client)
        assert client.runs.wait(thread, "flow", input={"log": ["x"]})["log"] == ["x", "a", "b"]
        [run] = client.runs.list(thread)
        assert len([*client.runs.join_stream(thread, run["run_id"], last_event_id="-1")]) == 4
        assert client.runs.wait(thread, "flow", input={})["log"] == ["x", "a", "b", "a", "b"]
        if tries == 1:
            assert client.runs.get(thread, run["run_id"])["status"] == "success"
    assert f"the end of the run {run['run_id']} could not be stored" in caplog.text


def test_the_end_of_a_failed_run_is_stored_by_a_later_attempt(gates, monkeypatch):
    monkeypatch.setattr("stategraph.serve.runs.in_process.PAUSES", (0.01,))
    store = Failing()
    store.refuses = lambda ops: stores(ops, "unfinished", ends=True) and store.refused < 1
    with serving(flow_app(gates, store=store)) as url, get_sync_client(url=url, timeout=10) as client:
        thread = new_thread(client)
        client.runs.wait(thread, "flow", input={"topic": "fail"}, raise_error=False)
        client.runs.wait(thread, "flow", input={"topic": ""})  # its turn comes when the end is stored
        shown = [each["status"] for each in client.runs.list(thread)]
    assert shown == ["success", "error"] and store.refused == 1


def test_an_interrupt_cuts_the_run_at_once(gates):
    with serving(flow_app(gates)) as url, get_sync_client(url=url, timeout=10) as client:
        thread = new_thread(client)
        gates.close("slow")  # and nobody opens it
        old = client.runs.create(thread, "flow", input={"log": ["1"], "topic": "slow"})["run_id"]
        waits = client.runs.create(thread, "flow", input={"log": ["2"], "topic": ""})["run_id"]
        assert gates.reached["slow"].wait(10)
        result = client.runs.wait(
            thread, "flow", input={"log": ["3"], "topic": ""}, multitask_strategy="interrupt"
        )
        assert result["log"] == ["1", "a", "3", "a", "b"]
        assert {client.runs.get(thread, run)["status"] for run in (old, waits)} == {"interrupted"}


def test_a_run_that_waits_is_cancelled_before_the_one_that_runs_has_ended(gates):
    with serving(flow_app(gates)) as url, get_sync_client(url=url, timeout=10) as client:
        thread = new_thread(client)
        gates.close("slow")
        first = client.runs.create(thread, "flow", input={"topic": "slow"})["run_id"]
        waits = client.runs.create(thread, "flow", input={"log": ["never"]})["run_id"]
        assert gates.reached["slow"].wait(10)
        cancelled = httpx.post(f"{url}/threads/{thread}/runs/{waits}/cancel?wait=true", timeout=10)
        assert cancelled.status_code == 200
        assert client.runs.get(thread, waits)["status"] == "interrupted"
        assert client.runs.get(thread, first)["status"] == "running"
        gates.open("slow")
        assert client.runs.join(thread, first)["log"] == ["a", "b"]


async def begin(client, thread, topic, **options):
    asked = {"assistant_id": "flow", "input": {"topic": topic}, **options}
    return (await client.post(f"/threads/{thread}/runs", json=asked)).json()["run_id"]


async def statuses(client, thread, ids):
    for id in ids:
        await client.get(f"/threads/{thread}/runs/{id}/join", timeout=20)
    return [(await client.get(f"/threads/{thread}/runs/{id}")).json()["status"] for id in ids]


async def test_a_run_that_waits_may_be_stopped_by_several_at_once(gates):
    async with asking(flow_app(gates, store=YieldingStore())) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        gates.close("slow")
        ids = [await begin(client, thread, topic) for topic in ("slow", "", "")]
        assert await asyncio.to_thread(gates.reached["slow"].wait, 10)
        await asyncio.gather(*(client.post(f"/threads/{thread}/runs/{ids[1]}/cancel") for _ in range(3)))
        gates.open("slow")
        assert await statuses(client, thread, ids) == ["success", "interrupted", "success"]


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_runs_that_replace_each_other_at_once_all_end(gates, strategy):
    async with asking(flow_app(gates, store=YieldingStore())) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        gates.close("slow")
        first = await begin(client, thread, "slow")
        assert await asyncio.to_thread(gates.reached["slow"].wait, 10)
        begins = (begin(client, thread, "", multitask_strategy=strategy) for _ in range(3))
        ids = await asyncio.gather(*begins)
        gates.open("slow")
        for id in (first, *ids):
            await client.get(f"/threads/{thread}/runs/{id}/join", timeout=20)
        assert not {"pending", "running"} & {each["status"] for each in (await client.get(f"/threads/{thread}/runs")).json()}
        assert (await client.get(f"/threads/{thread}")).json()["status"] == "idle"


def test_a_run_that_has_ended_is_not_rolled_back(gates):
    with serving(flow_app(gates)) as url, get_sync_client(url=url) as client:
        thread = new_thread(client)
        client.runs.wait(thread, "flow", input={"log": []})
        [run] = client.runs.list(thread)
        client.runs.cancel(thread, run["run_id"])  # nothing is left to do
        with pytest.raises(ConflictError, match="has ended"):
            client.runs.cancel(thread, run["run_id"], action="rollback")
        assert client.threads.get_state(thread)["values"]["log"] == ["a", "b"]


async def test_a_state_that_cannot_be_encoded_ends_its_run():
    def node(state: Log):
        return {"log": [10**5000]}  # type: ignore[list-item]

    graph = chain_of(Log, node=node).compile(name="large")
    async with asking(create_app({"large": graph})) as client:
        begins = {"assistant_id": "large", "input": {}, "stream_mode": ["custom"], "if_not_exists": "create"}
        for times in (1, 2):  # the thread is free for the next run
            ended = await client.post("/threads/t/runs/wait", json=begins)
            assert ended.json() == {"log": [hex(10**5000)] * times}
        found = await client.post("/threads/search", json={"limit": 10})
        assert found.json()[0]["values"] == ended.json()


async def test_a_failure_that_cannot_be_stored_as_it_is_ends_its_run():
    def node(state: Log):
        raise ValueError("no file \udcff")

    graph = chain_of(Log, node=node).compile(name="failing")
    async with asking(create_app({"failing": graph})) as client:
        begins = {"assistant_id": "failing", "input": {}, "if_not_exists": "create"}
        failed = await client.post("/threads/t/runs/wait", json=begins)
        assert failed.json() == {ERROR: {"error": "ValueError", "message": "no file ?"}}
        assert (await client.get("/threads/t")).json()["status"] == "error"


def test_a_run_whose_result_cannot_be_encoded_ends(monkeypatch):
    def fail(value):
        if ERROR not in value:
            raise RecursionError("too deep")
        return encode(value)

    monkeypatch.setattr("stategraph.serve.runs.execution.encode", fail)
    execution = Execution({"run_id": "r", "thread_id": "t"})
    execution.result = {"log": []}
    execution.close()
    assert execution.ended.is_set() and b"too deep" in execution.body


@pytest.mark.parametrize("thread", ["日本", "a?b#c d", "50%25", "ü;=@"])
async def test_the_url_of_a_run_may_contain_any_thread_id(thread):
    async with asking(flow_app()) as client:
        begins = {"assistant_id": "flow", "input": {"log": ["x"]}, "if_not_exists": "create"}
        for end in ("", "/wait", "/stream"):
            begun = await client.post(f"/threads/{quote(thread)}/runs{end}", json=begins)
            assert begun.status_code == 200
            found = await client.get(begun.headers["content-location"])
            assert found.json()["thread_id"] == thread
            assert (await client.get(begun.headers["location"])).status_code == 200


def test_runs_of_a_graph_that_is_not_served_stay_pending(gates, caplog):
    store, saver = InMemoryStore(), InMemorySaver()

    def app(*names: str):
        graphs = {name: make_flow(gates) for name in names}
        return create_app(graphs, checkpointer=saver, store=store, drain_seconds=0)

    gates.close("slow")
    with serving(app("flow", "other")) as url, get_sync_client(url=url) as client:
        thread = new_thread(client)
        run = client.runs.create(thread, "other", input={"topic": "slow"})["run_id"]
        assistant = client.assistants.search(graph_id="other")[0]["assistant_id"]
        assert gates.reached["slow"].wait(10)
    caplog.set_level(logging.WARNING)
    with serving(app("flow")) as url, get_sync_client(url=url) as client:
        assert "that are not served stay pending: {'other': 1}" in caplog.text
        assert client.runs.get(thread, run)["status"] == "pending"
        for call in (
            lambda: client.runs.join(thread, run),
            lambda: client.runs.wait(None, assistant, input={}),
        ):
            with pytest.raises(Exception, match=r"409|not served"):
                call()
        assert client.threads.get(thread)["status"] == "idle"
    gates.open("slow")
    with serving(app("flow", "other")) as url, get_sync_client(url=url) as client:
        assert client.runs.join(thread, run)["log"] == ["a", "b"]


@pytest.mark.parametrize("clock_went_back", [False, True])
@pytest.mark.parametrize("how", [None, "rollback"])
def test_the_next_server_continues_a_run_before_those_that_had_not_begun(gates, monkeypatch, how, clock_went_back):
    options = {"store": InMemoryStore(), "checkpointer": InMemorySaver(), "drain_seconds": 0}
    gates.close("slow")
    with serving(flow_app(gates, **options)) as url, get_sync_client(url=url) as client:
        thread = new_thread(client)
        client.runs.wait(thread, "flow", input={"log": ["first"]})
        later = client.runs.create(thread, "flow", input={"log": ["later"], "topic": ""}, after_seconds=3600)["run_id"]
        run = client.runs.create(thread, "flow", input={"log": ["run"], "topic": "slow"})["run_id"]
        assert gates.reached["slow"].wait(10)
    pointers = ROOT, "unfinished", thread
    for id, changes in (
        (run, {"stopped": how}),
        (later, {"begins_at": "1999-12-31T00:00:00+00:00"} if clock_went_back else {}),
    ):
        options["store"].put(pointers, id, {**options["store"].get(pointers, id).value, **changes})
    monkeypatch.setattr(in_process, "seconds_until", lambda moment: 0.0)
    gates.open("slow")
    with serving(flow_app(gates, **options)) as url, get_sync_client(url=url) as client:
        client.runs.join(thread, later)
        log = client.threads.get_state(thread)["values"]["log"]
    assert log == ["first", "a", "b", *([] if how else ["run", "a", "b"]), "later", "a", "b"]


def test_a_run_of_a_graph_that_is_not_served_is_deleted_permanently(gates):
    store, saver = InMemoryStore(), InMemorySaver()

    def app(*names: str):
        return create_app({name: make_flow(gates) for name in names}, checkpointer=saver, store=store)

    later = {"input": {"log": []}, "after_seconds": 3600}
    with serving(app("flow", "other")) as url, get_sync_client(url=url) as client:
        threads = [new_thread(client) for _ in range(2)]
        runs = [client.runs.create(thread, "other", **later)["run_id"] for thread in threads]
    with serving(app("flow")) as url, get_sync_client(url=url) as client:
        client.runs.delete(threads[0], runs[0])
        client.threads.delete(threads[1])
    assert store.search((ROOT, "unfinished")) == []


def test_what_is_deleted_cannot_be_read_from_memory(gates):
    with serving(flow_app(gates)) as url, httpx.Client(base_url=url) as client:

        def run(thread):
            sent = {"assistant_id": "flow", "input": {"log": ["secret"]}, "if_not_exists": "create"}
            answered = client.post(f"/threads/{thread}/runs/wait", json=sent)
            return answered.headers["content-location"].rpartition("/")[2]

        runs = [("one", run("one")), ("two", run("two")), ("two", run("two"))]
        assert client.delete(f"/threads/one/runs/{runs[0][1]}").status_code == 204
        assert client.delete("/threads/two").status_code == 204
        for thread, id in runs:
            for place in (f"/threads/{thread}/runs/{id}", f"/threads/{thread}/runs/{id}/join", f"/runs/{id}/stream"):
                assert client.get(place, headers={"last-event-id": "-1"}).status_code == 404
        assert client.get(f"/threads/one/runs/{run('one')}/join").json()["log"] == ["secret", "a", "b"] * 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "?limit=many"),
        ("GET", "?offset=-1"),
        ("GET", "/{run}/stream?cancel_on_disconnect=perhaps"),
        ("POST", "/{run}/cancel?wait=perhaps"),
        ("POST", "/{run}/cancel?action=explode"),
    ],
)
def test_bad_query_parameters_are_refused(gates, method, path):
    with serving(flow_app(gates)) as url, get_sync_client(url=url) as client:
        thread = new_thread(client)
        run = client.runs.create(thread, "flow", input={})["run_id"]
        place = f"{url}/threads/{thread}/runs{path.format(run=run)}"
        assert httpx.request(method, place).status_code == 422
        bad_id = {"last-event-id": "--1"}
        assert httpx.get(f"{url}/threads/{thread}/runs/{run}/stream", headers=bad_id).status_code == 422


def test_what_is_kept_of_ended_runs_is_bounded():
    kept = EndedRuns(most_runs=3, most_bytes=1100)
    for number in range(5):
        kept.add(ended(str(number), 10))
    assert [kept.find(str(number)) is not None for number in range(5)] == [False, False, True, True, True]
    kept.add(ended("long", 900))
    assert kept.find("4") is not None and kept.find("2") is None
    kept.add(ended("longer", 5000))
    assert kept.find("longer") is not None and kept.find("long") is None
    kept.add(ended("x", 10))
    kept.add(ended("y", 10, metadata={"m": "x" * 1000}))
    assert kept.find("y") is not None and kept.find("x") is None


def test_what_is_kept_of_one_users_ended_runs_is_bounded():
    kept = EndedRuns(kept=KeptBytes(1000))
    kept.add(ended("other", 500, owner="ann"))
    for number in range(5):
        kept.add(ended(str(number), 300, owner="bob"))
    assert [kept.find(str(number)) is not None for number in range(5)] == [False, False, False, True, True]
    kept.add(ended("long", 5000, owner="bob"))
    assert kept.find("long") is not None and kept.find("4") is None
    assert kept.find("other") is not None


async def test_the_events_of_one_users_live_runs_are_bounded():
    kept = KeptBytes(most_of_one=10_000)
    logs = [EventLog(kept=kept, user="bob") for _ in range(5)]
    other = EventLog(kept=kept, user="ann")
    for log in [*logs, other]:
        for _ in range(8):
            log.add("values", "x" * 1000)
    assert sum(log.size for log in logs) < 10_000 + 5 * 1100
    assert other.next_id == 8 and other.size > 8000
    assert logs[-1].next_id == 8 and 0 < logs[-1].size < 1100  # the newest event is always kept
    for log in logs:
        log.release()
    assert not kept.is_full("bob")
    logs[0].add("values", "x")


def test_an_ended_run_references_neither_frames_of_its_nodes_nor_its_request(monkeypatch):
    class Large: ...

    monkeypatch.setattr(logging.getLogger("stategraph.serve"), "disabled", True)  # pytest holds what is logged

    held = []

    async def node(state: Log):
        local = Large()
        held.append(weakref.ref(local))
        raise ValueError("boom")

    graph = chain_of(Log, node=node).compile(name="failing")

    async def run():
        async with asking(create_app({"failing": graph})) as client:
            begins = {"assistant_id": "failing", "input": {}, "context": {"n": 1}, "metadata": {"m": 2}}
            failed = await client.post("/runs/wait", json=begins)
            gc.collect()
            assert [each() for each in held] == [None]
            [thread, _, run] = failed.headers["content-location"].split("/")[2:]
            kept = (await client.get(f"/threads/{thread}/runs/{run}")).json()
            assert (kept["status"], kept["kwargs"], kept["metadata"]["m"]) == ("error", {}, 2)

    asyncio.run(asyncio.wait_for(run(), 10))


def ended(id, size, **record):
    execution = Execution({"run_id": id, "thread_id": "t", **record})
    execution.result = "x" * size
    execution.close()
    return execution
