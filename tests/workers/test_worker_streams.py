"""Streams of jobs: stored by workers in Postgres, read by any client, from any event, each chunk once."""

from __future__ import annotations

import asyncio
import operator
import threading
from dataclasses import dataclass
from typing import Annotated

import pytest
from kit.fleet import queue_at_work, until, working
from kit.graphs import CONFIG, chain_of
from typing_extensions import TypedDict

from stategraph import START, Command, get_stream_writer, interrupt
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.workers import Queue, Worker
from stategraph.workers.chunk_batches import ChunkWriter, ChunkWrites
from stategraph.workers.chunks import Asked, ChunksGoneError, ChunkTable
from stategraph.workers.jobs import JobName


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    asks: bool


@dataclass
class Point:
    x: int


class Places(TypedDict):
    place: Point


class Gate:
    """Node b waits here, if it is closed."""

    def __init__(self):
        self.opened, self.reached = threading.Event(), threading.Event()
        self.opened.set()
        self.calls = 0


def make_graph(gate: Gate, *, is_async):
    def a(state: Log):
        get_stream_writer()({"from": "a"})
        return {"log": ["a"]}

    def b(state: Log):
        gate.reached.set()
        assert gate.opened.wait(60)
        answer = interrupt("name?") if state.get("asks") else "b"
        return {"log": [answer]}

    async def ab(state: Log):
        gate.reached.set()
        gate.calls += 1
        is_first = gate.calls == 1
        while not gate.opened.is_set() and is_first:
            await asyncio.sleep(0.005)
        return {"log": [interrupt("name?") if state.get("asks") else "b"]}

    return chain_of(Log, a=a, b=ab if is_async else b).compile(name="flow")


MODES = ["updates", "custom", "values"]
ALL = [
    (1, "values", {"log": ["x"]}),
    (2, "custom", {"from": "a"}),
    (3, "updates", {"a": {"log": ["a"]}}),
    (4, "values", {"log": ["x", "a"]}),
    (5, "updates", {"b": {"log": ["b"]}}),
    (6, "values", {"log": ["x", "a", "b"]}),
]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_is_read_while_the_job_runs_and_afterwards(postgres, is_async):
    gate = Gate()
    graph = make_graph(gate, is_async=is_async)
    gate.opened.clear()
    with queue_at_work(graph, postgres) as queue:
        run = queue.submit("t", {"log": ["x"]}, stream_mode=MODES)
        chunks = queue.stream("t", run_id=run)
        found = [next(chunks) for _ in range(4)]
        assert gate.reached.wait(60)
        gate.opened.set()
        found += chunks
        assert [(each.seq, each.mode, each.data) for each in found] == ALL
        assert [each.seq for each in queue.stream("t", run_id=run, after=4)] == [5, 6]
        assert queue.result("t", run_id=run).value == {"log": ["x", "a", "b"]}

        async def read():
            return [each.seq async for each in queue.astream("t", after=2)]

        assert asyncio.run(read()) == [3, 4, 5, 6]
        assert queue.forget() == 1
        with pytest.raises(LookupError):
            [*queue.stream("t", run_id=run)]
        gone, unknown = queue.chunk_table().read_many([Asked(id, JobName("flow", "t", run), 0) for id in (1, 2)])
        assert isinstance(gone, LookupError) and isinstance(unknown, LookupError)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_streamed_job_pauses_and_is_answered(postgres, is_async):
    graph = make_graph(Gate(), is_async=is_async)
    with queue_at_work(graph, postgres) as queue:
        run = queue.submit("t", {"asks": True}, stream_mode="updates")
        assert [each.mode for each in queue.stream("t", run_id=run)] == ["updates", "updates"]
        found = queue.result("t", run_id=run)
        assert found.status == "paused" and [each.value for each in found.interrupts] == ["name?"]
        queue.submit("t", Command(resume="Ann"), stream_mode="updates")
        assert [each.data for each in queue.stream("t")] == [{"b": {"log": ["Ann"]}}]
        assert queue.result("t").value == {"log": ["a", "Ann"], "asks": True}
        queue.submit("t", None, stream_mode="values", interrupt_before=["a"])  # nothing is left to do
        [*queue.stream("t")]
        assert queue.result("t").value == {"log": ["a", "Ann"], "asks": True}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_streamed_job_that_forks_an_earlier_checkpoint_pauses_at_its_question(postgres, is_async):
    graph = make_graph(Gate(), is_async=is_async)
    with (
        Queue.from_conn_string(postgres, graph) as queue,
        working(graph, postgres),
        PostgresSaver.from_conn_string(postgres) as saver,
    ):
        seen = graph.copy({"checkpointer": saver})
        queue.submit("t", {"asks": True})
        assert queue.result("t").status == "paused"
        queue.submit("t", Command(resume="Ann"))
        assert queue.result("t").value == {"log": ["a", "Ann"], "asks": True}
        (before,) = [each for each in seen.get_state_history(CONFIG) if each.next == ("a",)]
        at = {"configurable": {"checkpoint_id": before.config["configurable"]["checkpoint_id"]}}
        queue.submit("t", None, config=at, stream_mode="updates")
        found = queue.result("t")
        assert found.status == "paused" and [each.value for each in found.interrupts] == ["name?"]
        queue.submit("t", Command(resume="Bob"), stream_mode="updates")
        assert queue.result("t").value == {"log": ["a", "Bob"], "asks": True}


def test_a_stream_keeps_the_types_of_the_graph(postgres):
    graph = chain_of(Places, move=lambda state: {"place": Point(state["place"].x + 1)}).compile(name="places")
    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", {"place": Point(1)}, stream_mode="values")
        assert [each.data for each in queue.stream("t")] == [{"place": Point(1)}, {"place": Point(2)}]


def test_a_stream_continues_when_another_worker_claims_the_job(postgres):
    gate = Gate()
    gate.opened.clear()
    graph = make_graph(gate, is_async=True)
    with Queue.from_conn_string(postgres, graph) as queue:
        run = queue.submit("t", {"log": ["x"]}, stream_mode="updates")
        with working(graph, postgres):
            chunks = queue.stream("t", run_id=run)
            found = [next(chunks)]
            assert gate.reached.wait(60)
            ((worker, *_),) = queue.workers()
            queue.evict(worker)  # it lives on, and adds nothing any more
            until(lambda: gate.calls == 2)  # its job runs again
            found += chunks
            gate.opened.set()  # what comes of the first run is refused
        assert found == [*queue.stream("t", run_id=run)]
    assert [(each.seq, each.data) for each in found] == [(1, {"a": {"log": ["a"]}}), (2, {"b": {"log": ["b"]}})]


@pytest.mark.trial
def test_streams_share_statements_and_each_reader_gets_its_own(postgres, monkeypatch):
    """Of 40 runs side by side, each with two readers."""
    gate = Gate()
    gate.opened.clear()
    read, adds, reads = ChunkTable.read_many, [], []

    def slow(self, asked):
        reads.append(len(asked))
        threading.Event().wait(0.02)
        return read(self, asked)

    monkeypatch.setattr(ChunkTable, "read_many", slow)
    add = ChunkTable.add
    monkeypatch.setattr(ChunkTable, "add", lambda self, chunks: [adds.append(len(chunks)), add(self, chunks)][1])
    graph = make_graph(gate, is_async=True)

    async def follow(queue, name):
        return [(each.seq, each.data) async for each in queue.astream(name)]

    async def follow_all(queue, names):
        readers = [asyncio.create_task(follow(queue, name)) for name in names]
        while not gate.reached.is_set():
            await asyncio.sleep(0.01)
        gate.opened.set()
        return await asyncio.gather(*readers)

    names = [f"t{number}" for number in range(40)]
    worker = Worker(graph, postgres, poll=0.1, concurrency=20)
    thread = threading.Thread(target=worker.run)
    with Queue.from_conn_string(postgres, graph) as queue:
        for name in names:
            queue.submit(name, {"log": [name]}, stream_mode="values")
        thread.start()
        try:
            found = asyncio.run(follow_all(queue, names * 2))
        finally:
            gate.opened.set()
            worker.stop()
            thread.join(60)
    for name, chunks in zip(names * 2, found, strict=True):
        logs = [[name], [name, "a"], [name, "a", "b"]]
        assert chunks == [(seq, {"log": log}) for seq, log in enumerate(logs, 1)]
    assert sum(adds) == 3 * 40 and len(adds) < 3 * 40 and max(adds) > 10
    assert max(reads) > 20


def test_an_invalid_request_of_a_reader_fails_no_other_reader(postgres, monkeypatch):
    graph = make_graph(Gate(), is_async=False)
    sizes = []
    begun, read = threading.Event(), ChunkTable.read_many

    def slow(self, asked):
        sizes.append(len(asked))
        assert begun.wait(60)
        return read(self, asked)

    async def follow(queue, after):
        return [each.seq async for each in queue.astream("t", after=after)]

    async def follow_all(queue):
        readers = [asyncio.create_task(follow(queue, 0))]
        while not sizes:  # from here on it holds up the others
            await asyncio.sleep(0.005)
        readers += [asyncio.create_task(follow(queue, after)) for after in (1, 10**25, 0)]
        while len(queue._waiter._reads._asked) < 3:
            await asyncio.sleep(0.005)
        begun.set()
        return await asyncio.gather(*readers, return_exceptions=True)

    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", {"log": ["x"]}, stream_mode="updates")
        [*queue.stream("t")]
        monkeypatch.setattr(ChunkTable, "read_many", slow)
        one, other, wrong, third = asyncio.run(follow_all(queue))
    assert (one, other, third) == ([1, 2], [2], [1, 2]) and isinstance(wrong, Exception)
    assert sizes[1] == 3


def test_what_is_kept_of_a_stream_is_bounded(postgres):
    graph = make_graph(Gate(), is_async=False)
    with queue_at_work(graph, postgres) as queue:
        run = queue.submit("t", {"log": ["x"]}, stream_mode="updates")
        [*queue.stream("t", run_id=run)]

    class Table:
        """Takes one chunk at a time."""

        kept: dict[int, bytes] = {}  # noqa: RUF012 - of one test

        def encode(self, name, ns, mode, data):
            return bytes(data)

        def add(self, chunks):
            for _, chunk in chunks:
                self.kept[max(self.kept, default=0) + 1] = chunk
            return {1: max(self.kept)}

        def trim(self, job, last):
            self.kept = {seq: chunk for seq, chunk in self.kept.items() if seq > last}

    table = Table()
    job = type("Job", (), {"name": "job", "id": 1})
    writer = ChunkWriter(ChunkWrites(table), job, most_bytes=100)
    for _ in range(20):
        writer.add((), "values", b"x" * 30)
        writer.close()
    assert max(table.kept) == 20 and sum(map(len, table.kept.values())) <= 100


def test_a_reader_gets_an_error_for_a_gap(postgres):
    graph = make_graph(Gate(), is_async=False)
    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", {"log": ["x"]}, stream_mode=MODES)
        [*queue.stream("t")]
        with queue._database.statements() as wire:
            wire.run("DELETE FROM stategraph_chunks WHERE seq <= 3")
        with pytest.raises(ChunksGoneError, match="1 to 3"):
            [*queue.stream("t")]
        assert [each.seq for each in queue.stream("t", after=3)] == [4, 5, 6]


def test_a_stream_mode_that_does_not_exist_is_refused():
    queue = Queue("postgresql:///nowhere", "flow")
    with pytest.raises(ValueError, match="stream_mode"):
        queue.submit("t", {}, stream_mode="vlaues")  # type: ignore[arg-type]


def test_chunks_in_quick_succession_are_stored_together(monkeypatch):
    stored = []

    class Table:
        def encode(self, name, ns, mode, data):
            return bytes(data)

        def add(self, chunks):
            stored.append([(job.id, chunk) for job, chunk in chunks])
            return {}

    monkeypatch.setattr("stategraph.workers.chunk_batches.SECONDS_TO_GATHER", 60.0)  # what ends does not wait for it
    table = Table()
    jobs = [type("Job", (), {"name": "job", "id": id}) for id in (1, 2)]
    writes = ChunkWrites(table)
    first, second = (ChunkWriter(writes, job) for job in jobs)
    for number in range(3):
        first.add((), "values", b"%d" % number)
        second.add((), "values", b"%d" % number)
    first.close()
    assert stored == [[(id, b"%d" % number) for id in (1, 2) for number in range(3)]], "also those of another run"
    second.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_interrupt_with_a_sibling_that_ends_is_streamed(postgres, is_async):
    def ask(state: Log):
        return {"log": [interrupt("name?"), interrupt("age?")]}

    async def done(state: Log):
        return {"log": ["done"]}

    graph = chain_of(Log, ask=ask)
    graph.add_node("done", done if is_async else lambda state: {"log": ["done"]}).add_edge(START, "done")
    flow = graph.compile(name="flow")
    with queue_at_work(flow, postgres) as queue:
        run = queue.submit("t", {"log": ["x"]}, stream_mode="values")
        found = queue.result("t", run_id=run, wait=60)
        assert found.status == "paused" and [each.value for each in found.interrupts] == ["name?"]
        assert found.value == {"log": ["x", "done"]}
