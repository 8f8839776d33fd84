"""Servers whose runs are jobs of workers on Postgres: several share the database, and whoever dies, each
reader gets each event once."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack

import anyio
import httpx
import pytest
from in_process import asking, new_thread
from kit import cluster
from kit.cluster import as_url, free_port
from served_processes import process, server, worker
from serving import Gates, flow_app, make_flow, opened

from stategraph.serve.runs.fleet import read_events
from stategraph.workers import Queue


@pytest.fixture
def url(postgres):
    return as_url(postgres)


STEPS = ["a", "b", "c", "d"]


def names(parts):
    return [name for part in parts if part.event == "updates" for name in part.data]


def ids(parts):
    return [int(part.id) for part in parts if part.id is not None]


@pytest.mark.parametrize("joins", [False, True])
def test_a_reader_continues_at_the_next_server_after_a_kill(url, tmp_path, joins):
    """The official client comes back by itself, with the id of the last event; so may anybody."""
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(worker(tmp_path, url))
        first, client = stack.enter_context(server(tmp_path, url, port))
        thread = client.threads.create()["thread_id"]
        seen = []
        sent = {"log": ["in"], "pace": 0.4}
        for part in client.runs.stream(thread, "flow", input=sent, stream_mode=["updates", "values"]):
            seen.append(part)
            if names(seen) == ["a", "b"] and first.poll() is None:
                first.kill()
                first.wait()
                _, client = stack.enter_context(server(tmp_path, url, port))
                if joins:
                    break
        [run] = [each["run_id"] for each in client.runs.list(thread)]
        if joins:
            seen += client.runs.join_stream(thread, run, last_event_id=seen[-1].id)
        assert names(seen) == STEPS
        assert ids(seen) == sorted({*ids(seen)})
        assert [*client.runs.join_stream(thread, run, last_event_id="-1")] == seen
        assert client.runs.join(thread, run)["log"] == ["in", *STEPS]
        assert client.runs.get(thread, run)["status"] == "success"
        assert client.threads.get(thread)["status"] == "idle"


def test_a_reader_does_not_notice_that_a_worker_was_killed(url, tmp_path):
    with ExitStack() as stack:
        first = stack.enter_context(worker(tmp_path, url))
        _, client = stack.enter_context(server(tmp_path, url))
        thread = client.threads.create()["thread_id"]
        seen = []
        for part in client.runs.stream(thread, "flow", input={"log": [], "pace": 1.0}, stream_mode="updates"):
            seen.append(part)
            if names(seen) == ["a"] and first.poll() is None:
                first.kill()
                stack.enter_context(worker(tmp_path, url))
        assert names(seen) == STEPS and ids(seen) == sorted({*ids(seen)})
        assert client.threads.get_state(thread)["values"]["log"] == STEPS


def test_a_reader_that_has_seen_the_error_of_a_run_does_not_get_it_again(url, tmp_path):
    with ExitStack() as stack:
        stack.enter_context(worker(tmp_path, url))
        _, client = stack.enter_context(server(tmp_path, url))
        thread = client.threads.create()["thread_id"]
        for modes in (["updates"], ["messages", "updates"]):
            sent = {"log": ["in"], "pace": "soon"}  # what no node can take
            run = client.runs.create(thread, "flow", input=sent, stream_mode=modes)["run_id"]
            seen = [*client.runs.join_stream(thread, run, last_event_id="-1")]
            assert [part.event for part in seen] == ["metadata", "error"]
            for n, part in enumerate(seen, 1):
                assert [*client.runs.join_stream(thread, run, last_event_id=part.id)] == seen[n:]


async def test_a_disconnected_reader_is_no_server_error(postgres):
    """When a client disconnects, Starlette cancels the request again and again until it has ended."""

    async def read(queue: Queue, record, begun: anyio.Event):
        async for _ in read_events(queue, record, 0, asyncio.Event()):
            begun.set()

    with Queue.from_conn_string(postgres, make_flow(Gates())) as queue:
        queue.setup()
        run_id = queue.submit("t", {"log": []}, stream_mode=["values"])
        record = {"thread_id": "t", "run_id": run_id, "kwargs": {"stream_mode": ["values"], "subgraphs": False}}
        for seconds in (0.0, 0.05, 0.3):  # while the database is asked, and while nothing comes
            async with anyio.create_task_group() as requests:
                begun = anyio.Event()
                requests.start_soon(read, queue, record, begun)
                await begun.wait()
                await anyio.sleep(seconds)
                requests.cancel_scope.cancel()


async def test_the_priority_of_a_run_follows_from_its_user_and_its_body(postgres):
    asked = []

    def decide(user, body):
        asked.append((user, body["input"]))
        return body["input"]["rank"]

    with opened("postgres", postgres) as options:
        options = {**options, "workers": 0, "priority": decide, "auth": lambda _: "ann"}
        async with asking(flow_app(**options)) as client:
            for rank in (1, 3, 2):
                thread = await new_thread(client)
                body = {"assistant_id": "flow", "input": {"log": [], "rank": rank}}
                assert (await client.post(f"/threads/{thread}/runs", json=body)).status_code == 200
            body["input"]["rank"] = "high"  # the function's mistake, not the client's
            assert (await client.post(f"/threads/{thread}/runs", json=body)).status_code == 500
    assert asked[:3] == [("ann", {"log": [], "rank": rank}) for rank in (1, 3, 2)]
    with Queue.from_conn_string(postgres, make_flow(Gates())) as queue:
        assert [job.priority for job in queue.jobs()] == [1, 3, 2]


def test_a_priority_needs_a_queue():
    with pytest.raises(ValueError, match="priority= needs queue="):
        flow_app(priority=lambda user, body: 1)

    async def decide(user, body):
        return 1

    with pytest.raises(TypeError, match="priority must be a plain function"):
        flow_app(priority=decide)


@pytest.mark.trial
def test_sigterm_ends_a_server_whose_database_is_unreachable(tmp_path):
    """Readers have left meanwhile, whose runs cannot be cancelled."""
    database = cluster.Cluster(cluster.programs() or pytest.skip("no Postgres server"))
    port = free_port()
    try:
        with ExitStack() as stack:
            running = stack.enter_context(process(tmp_path, as_url(database.schema()), port))
            http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30))
            body = {"assistant_id": "flow", "input": {"log": [], "pace": 60}, "if_not_exists": "create", "on_disconnect": "cancel"}
            with ExitStack() as readers:
                for thread in range(60):
                    readers.enter_context(http.stream("POST", f"/threads/{thread}/runs/stream", json=body))
                database.stop("immediate")
            time.sleep(1)
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
    finally:
        database.remove()
