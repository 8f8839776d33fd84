"""The stream of a whole thread: every event of every run, once, also for a reader that reconnects."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice

import httpx
import pytest
from in_process import asking
from kit.cluster import as_url
from langgraph_sdk import get_sync_client
from served_processes import server, worker
from serving import Gates, flow_app, serving

from stategraph.serve.events import RunEvent, failure
from stategraph.serve.records import Records, now, pointer_to
from stategraph.serve.routes.thread_streams import EventId, ThreadEvents
from stategraph.serve.runs import thread_runs
from stategraph.serve.runs.runner import ThreadNews
from stategraph.serve.runs.thread_runs import Begin, Ended, ThreadRuns
from stategraph.store import InMemoryStore, SearchOp

RUN = ["metadata", "updates", "updates", "run_done"]


class Scene:
    """A server with a thread."""

    def __init__(self, url, client, gates):
        self.url, self.client, self.gates = url, client, gates
        self.thread = client.threads.create()["thread_id"]

    def begin(self, topic="", **options):
        options = {"input": {"topic": topic}, "stream_mode": "updates", **options}
        return str(self.client.runs.create(self.thread, "flow", **options)["run_id"])

    def run(self, topic=""):
        run = self.begin(topic)
        self.client.runs.join(self.thread, run)
        return run

    def read(self, number, **options):
        """So many events of the thread."""
        parts = []
        for part in self.client.threads.join_stream(self.thread, **options):
            parts.append(part)
            if len(parts) == number:
                return parts
        raise AssertionError(f"the stream has ended after {names(parts)}")


def names(parts):
    return [each.event for each in parts]


def runs_of(parts):
    return [each.data["run_id"] for each in parts if each.event == "run_done"]


@pytest.fixture
def scene(database):
    gates = Gates()
    with serving(flow_app(gates, **database)) as url, get_sync_client(url=url) as client:
        yield Scene(url, client, gates)


def test_a_thread_stream_has_all_its_runs_in_order(scene):
    runs = [scene.run() for _ in range(3)]
    parts = scene.read(12, last_event_id="-1")
    assert names(parts) == RUN * 3 and runs_of(parts) == runs
    assert {each.data["status"] for each in parts if each.event == "run_done"} == {"success"}
    assert len({each.id for each in parts}) == 12


def test_a_reconnected_reader_at_any_event_misses_none_and_gets_none_twice(scene):
    for _ in range(2):
        scene.run()
    parts = scene.read(8, last_event_id="-1")
    for place in range(7):
        assert scene.read(7 - place, last_event_id=parts[place].id) == parts[place + 1 :]


def test_a_reader_gets_what_runs_send_from_now_on(scene):
    scene.run()
    scene.gates.close("slow")
    slow = scene.begin("slow")
    assert scene.gates.reached["slow"].wait(10)
    waiting = scene.begin()
    with httpx.stream("GET", f"{scene.url}/threads/{scene.thread}/stream", timeout=30) as stream:
        lines = stream.iter_lines()
        scene.gates.open("slow")
        done = [line for line in until(lines, "run_done", 2) if line.startswith("data: ") and "status" in line]
        assert [slow in done[0], waiting in done[1]] == [True, True]
        later = scene.begin()  # a stream that has told all waits for the next run
        assert later in [line for line in until(lines, "run_done", 1) if line.startswith("data: ")][-1]


def until(lines, event, number):
    """Lines of a stream, to the end of the event that has come so often."""
    found = []
    for line in lines:
        found.append(line)
        number -= line == f"event: {event}"
        if number == 0 and line == "":
            return found
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize(
    ("modes", "told"),
    [
        ("run_modes", RUN),
        ("lifecycle", ["metadata", "run_done"]),
        ("state_update", ["state_update"]),
        (["lifecycle", "state_update"], ["metadata", "state_update", "run_done"]),
        (["run_modes", "lifecycle", "state_update"], [*RUN[:3], "state_update", "run_done"]),
    ],
)
def test_a_stream_mode_selects_the_events(scene, modes, told):
    for _ in range(2):
        scene.run()
    parts = scene.read(2 * len(told), last_event_id="-1", stream_mode=modes)
    assert names(parts) == told * 2
    states = [each.data["values"]["log"] for each in parts if each.event == "state_update"]
    assert not states or states[-1] == ["a", "b", "a", "b"]
    if told != ["state_update"]:
        rest = scene.read(len(told), last_event_id=parts[len(told) - 1].id, stream_mode=modes)
        assert rest == parts[len(told) :]


def test_a_failed_and_a_cancelled_run_have_an_end_event(scene):
    scene.run("fail")
    scene.gates.close("slow")
    stopped = scene.begin("slow")
    assert scene.gates.reached["slow"].wait(10)
    scene.client.runs.cancel(scene.thread, stopped, wait=True)
    parts = scene.read(4, last_event_id="-1", stream_mode="lifecycle")
    assert [each.data["status"] for each in parts if each.event == "run_done"] == ["error", "interrupted"]
    assert "error" in names(scene.read(5, last_event_id="-1"))


def test_a_run_that_is_rolled_back_does_not_end_the_stream(scene):
    scene.gates.close("slow")
    scene.begin("slow")
    assert scene.gates.reached["slow"].wait(10)
    first = scene.read(2, last_event_id="-1")[-1]
    after = scene.begin(multitask_strategy="rollback")
    parts = scene.read(5, last_event_id=first.id)
    assert runs_of(parts)[-1] == after


def test_a_delayed_run_is_streamed_once_it_has_started(scene):
    later = scene.begin(after_seconds=0.5)
    now = scene.run()
    assert runs_of(scene.read(8, last_event_id="-1")) == [now, later]


def test_many_readers_of_a_thread_get_the_same(scene):
    scene.run()
    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(scene.read, 8, last_event_id="-1") for _ in range(8)]
        scene.run()
        told = [each.result(30) for each in readers]
    assert all(each == told[0] for each in told)


def test_a_server_that_stops_ends_the_streams_of_idle_threads():
    app = flow_app()
    with serving(app) as url, get_sync_client(url=url) as client:
        thread = client.threads.create()["thread_id"]
        begun, ended = threading.Event(), threading.Event()

        def read():
            with httpx.stream("GET", f"{url}/threads/{thread}/stream", timeout=30) as stream:
                begun.set()
                stream.read()
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(10)
        app.state.begin_to_stop()
        assert ended.wait(10)
        reader.join()


@pytest.mark.parametrize("last", ["x", "1", "1.2", "a.b.c", "1.x.y", ""])
def test_an_id_that_is_none_is_refused(scene, last):
    place = f"{scene.url}/threads/{scene.thread}/stream"
    answered = httpx.get(place, headers={"Last-Event-ID": last})
    assert answered.status_code == 422 and "last-event-id must be" in answered.json()["detail"]
    for mode in ("x", '["x"]', "[", "[[]]"):
        assert httpx.get(place, params={"stream_mode": mode}).status_code == 422


def test_an_id_leads_to_no_run_of_another_thread(scene):
    scene.run()
    theirs = scene.read(2, last_event_id="-1")[0].id
    scene.thread = scene.client.threads.create()["thread_id"]
    own = scene.run()
    assert runs_of(scene.read(4, last_event_id=theirs)) == [own]


@pytest.mark.parametrize("seen", [0, 1])
async def test_a_stream_ends_when_the_thread_belongs_to_another_user(seen):
    """The reader has deleted the thread, and another user has made one with the same id."""
    app = flow_app(auth=lambda asked: asked.headers["x-user"], hosts=None)
    async with asking(app) as client:

        async def run(user, text):
            headers, sent = {"x-user": user}, {"assistant_id": "flow", "input": {"log": [text]}}
            await client.post("/threads", json={"thread_id": "t"}, headers=headers)
            (await client.post("/threads/t/runs/wait", json=sent, headers=headers)).raise_for_status()

        await run("ann", "hers")
        events = ThreadEvents(service_of(app), "t", "ann", ["run_modes", "lifecycle", "state_update"])
        stream = events.read(EventId.parse("-1"))
        told = [await anext(stream) for _ in range(seen)]
        assert (await client.delete("/threads/t", headers={"x-user": "ann"})).status_code == 204
        await run("bob", "his secret")
        told = b"".join([*told, *[part async for part in stream]]).decode()
    assert "his secret" not in told and ("hers" in told) == bool(seen)


def service_of(app):
    [streams] = [each.endpoint.__wrapped__.__self__ for each in app.routes if each.path == "/threads/{thread_id}/stream"]
    return streams._service


class Slow:
    """A runner of one run, whose reader gets these events each time it begins to read."""

    queue = None

    def __init__(self, reads):
        self._reads, self.stopping, self.news = reads, asyncio.Event(), ThreadNews()

    async def events(self, record, start):
        for part in self._reads.pop(0):
            yield part

    async def status(self, record):
        return "running" if self._reads else "success"

    async def find(self, run_id, thread_id):
        return None


GONE, TOLD = [failure({"error": "TooSlow"})], [RunEvent(7, "updates", (), b"{}")]


@pytest.mark.parametrize("reads", [[[GONE], [TOLD, GONE], [TOLD, GONE], [TOLD]], [[GONE], [GONE], [GONE], []]])
def test_a_reader_that_is_repeatedly_too_slow_still_gets_the_end(reads, monkeypatch):
    monkeypatch.setattr(thread_runs, "SECONDS_BETWEEN_LOOKS", 0.001)
    expected = [part for each in reads for part in each]

    async def read():
        runs = ThreadRuns(Records(InMemoryStore()), Slow([*reads]), "t")  # type: ignore[arg-type]
        return [part async for part in runs.read({"run_id": "r"}, 0)]

    *parts, end = asyncio.run(asyncio.wait_for(read(), 20))
    assert parts == expected and isinstance(end, Ended) and end.status == "success"


async def test_a_running_run_without_events_does_not_block_its_readers():
    runs = ThreadRuns(Records(InMemoryStore()), Slow([[], [TOLD]]), "t")  # type: ignore[arg-type]
    assert [part async for part in runs.read({"run_id": "r"}, None)] == []


class Counting(InMemoryStore):
    """Counts searches, and does something behind the first one."""

    def __init__(self):
        super().__init__()
        self.searches = 0
        self.then = None

    async def abatch(self, ops):
        ops = [*ops]
        found = await super().abatch(ops)
        if any(isinstance(op, SearchOp) for op in ops):
            self.searches += 1
            if then := self.then:
                self.then = None
                await then()
        return found


def a_run(number, status):
    began = f"2026-01-01T00:{number // 60:02}:{number % 60:02}+00:00"
    known = {"thread_id": "t", "graph_id": "flow", "owner": "", "kwargs": {}}
    return {**known, "run_id": str(number), "created_at": began, "updated_at": now(), "status": status}


def test_the_runs_of_a_long_thread_are_searched_once():
    async def follow():
        store = Counting()
        records = Records(store)
        for number in range(600):
            await records.put(("runs", str(number), a_run(number, "success"), "t"))
        runs = ThreadRuns(records, Slow([]), "t")  # type: ignore[arg-type]
        found = []
        async for begin in runs.follow(Begin(-1, "")):
            found.append(begin.run_id)
            if len(found) == 600:
                return found, store.searches
        raise AssertionError

    found, searches = asyncio.run(asyncio.wait_for(follow(), 30))
    assert found == [str(number) for number in range(600)] and searches < 12


async def test_a_run_that_ends_during_the_search_for_the_next_is_streamed_first():
    store = Counting()
    records = Records(store)
    for number in range(2):
        run = a_run(number, "pending")
        await records.put(("runs", run["run_id"], run, "t"), ("unfinished", run["run_id"], pointer_to(run), "t"))

    async def end():
        await records.put(("runs", "0", a_run(0, "success"), "t"), ("unfinished", "0", None, "t"))

    store.then = end
    runs = ThreadRuns(records, Slow([]), "t")  # type: ignore[arg-type]
    follower = runs.follow(Begin(-1, ""))
    assert [(await anext(follower)).run_id for _ in range(2)] == ["0", "1"]


def test_a_thread_is_streamed_by_any_server_also_after_a_restart(postgres, tmp_path):
    """Of a server that never saw the runs begin, and of the next one, where the reader has stopped."""
    url = as_url(postgres)
    with ExitStack() as stack:
        first, one = stack.enter_context(server(tmp_path, url))
        _, two = stack.enter_context(server(tmp_path, url))
        stack.enter_context(worker(tmp_path, url))
        thread = one.threads.create()["thread_id"]
        sent = {"input": {"log": [], "pace": 0.01}, "stream_mode": "updates"}
        runs = [one.runs.create(thread, "flow", **sent)["run_id"]]
        seen = []
        for part in two.threads.join_stream(thread, last_event_id="-1"):
            seen.append(part)
            if runs_of(seen) == runs:
                if len(runs) == 3:
                    break
                runs.append(one.runs.create(thread, "flow", **sent)["run_id"])
        assert names(seen) == ["metadata", *["updates"] * 4, "run_done"] * 3
        first.kill()
        _, next_one = stack.enter_context(server(tmp_path, url))
        for place in (2, 5, 8):
            told = islice(next_one.threads.join_stream(thread, last_event_id=seen[place].id), len(seen) - place - 1)
            assert [*told] == seen[place + 1 :]
