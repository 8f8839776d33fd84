"""Everything that a run stores passes one lane, in order: checkpoints, what tasks leave, results of `@task` calls."""

import ast
import asyncio
import threading
from collections import deque
from pathlib import Path

import pytest
from kit.graphs import CONFIG, EMPTY
from kit.pausing_graphs import graph

from stategraph import InMemorySaver, entrypoint, interrupt, task
from stategraph.checkpoint.base import RETURN
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.drivers.journal import Journal
from stategraph.pregel.run.effects import Entry

ROOT = Path(__file__).parents[3]
WRITES = {"commit", "record", "put", "put_writes"}
WRITING = WRITES | {f"a{name}" for name in WRITES}


class Slow(SqliteSaver):
    """Holds each checkpoint back until something else was brought to be stored, or a while has passed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.brought = threading.Event()
        self.order = []

    def commit(self, commits):
        self.brought.wait(0.05)
        self.order.append(f"checkpoint {commits[-1].id}")
        super().commit(commits)

    def record(self, where, expected, writes):
        self.brought.set()
        self.order += [f"beside {id}" for id in writes]
        return super().record(where, expected, writes)


@pytest.fixture
def saver(tmp_path):
    opened = Slow(str(tmp_path / "threads.db"), synchronous="off")
    yield opened
    opened.close()


@task
def twice(x):
    return 2 * x


@task
async def thrice(x):
    return 3 * x


def calling(state):
    return {"log": [twice(1).result(), twice(2).result()]}


async def acalling(state):
    return {"log": [await thrice(1), await thrice(2)]}


def test_a_call_waits_for_the_checkpoint_at_which_it_is_recorded(drive, saver):
    app = graph("S>a>b>E", a=lambda s: {"log": ["a"]}, b=calling, checkpointer=saver)
    drive.invoke(app, EMPTY, CONFIG, durability="async")
    assert app.get_state(CONFIG).values == {"log": ["a", 2, 4]}
    assert len(list(app.get_state_history(CONFIG))) == 4
    stored = [entry.split()[1] for entry in saver.order if entry.startswith("checkpoint")]
    for position, entry in enumerate(saver.order):
        if entry.startswith("beside"):
            assert entry.split()[1] in [e.split()[1] for e in saver.order[:position] if e.startswith("checkpoint")]
    assert len(stored) == 4


def test_calls_of_coroutines_wait_for_the_checkpoint(saver):
    app = graph("S>a>b>E", a=lambda s: {"log": ["a"]}, b=acalling, checkpointer=saver)
    asyncio.run(app.ainvoke(EMPTY, CONFIG, durability="async"))
    assert app.get_state(CONFIG).values == {"log": ["a", 3, 6]}


def test_calls_of_an_entrypoint_wait_as_well(drive, saver):
    @entrypoint(checkpointer=saver)
    def flow(x):
        return twice(x).result() + twice(x + 1).result()

    assert drive.invoke(flow, 1, CONFIG, durability="async") == 6
    assert flow.get_state(CONFIG).values == 6


class Full(Exception):
    """No room."""


class Waiting(InMemorySaver):
    """In memory, and yet its async methods let others run meanwhile."""

    async def arecord(self, *args):
        for _ in range(9):
            await asyncio.sleep(0)
        return await super().arecord(*args)


async def test_a_saver_in_memory_that_waits_stores_each_entry_once():
    @entrypoint(checkpointer=Waiting())
    async def flow(given):
        calls = [thrice(number) for number in range(5)]
        return [await call for call in calls]

    assert (await asyncio.wait_for(flow.ainvoke({}, CONFIG), 10)) == [0, 3, 6, 9, 12]


def test_after_a_failed_checkpoint_no_call_is_recorded(drive, saver, monkeypatch):
    app = graph("S>a>b>E", a=lambda s: {"log": ["a"]}, b=calling, checkpointer=saver)

    def commit(commits):
        saver.brought.wait(0.05)
        if commits[-1].metadata["step"] == 1:
            raise Full
        SqliteSaver.commit(saver, commits)

    monkeypatch.setattr(saver, "commit", commit)
    with pytest.raises(Full):
        drive.invoke(app, EMPTY, CONFIG, durability="async")
    monkeypatch.undo()
    assert app.get_state(CONFIG).next == ("a",)
    assert not [entry for entry in saver.order if entry.startswith("beside")]
    assert drive.invoke(app, None, CONFIG) == {"log": ["a", 2, 4]}


class Counting(SqliteSaver):
    """Notes how many results each `record` brings. The first is slow: it waits until three calls have come to their ends."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.brought, self.calls = [], threading.Semaphore(0)

    def record(self, where, expected, writes):
        (records,) = writes.values()
        self.brought.append(sum(name == RETURN for record in records for name, _ in record.writes))
        if len(self.brought) == 1:
            assert all(self.calls.acquire(timeout=10) for _ in range(3))
        return super().record(where, expected, writes)


@pytest.fixture
def counting(tmp_path):
    opened = Counting(str(tmp_path / "threads.db"), synchronous="off")
    yield opened
    opened.close()


def many_calls(saver, waits, words=""):
    """An entrypoint with 40 calls side by side that end together; a later one asks."""

    @task
    def slow(x):
        waits.wait(10)
        saver.calls.release()
        return f"{words}{x}"

    @entrypoint(checkpointer=saver)
    def flow(given):
        done = [slow(number) for number in range(40)]
        waits.set()
        found = [call.result() for call in done]
        interrupt("go on?")
        return found

    return flow


def test_results_of_calls_that_wait_together_are_recorded_together(drive, counting):
    thread = drive.on(many_calls(counting, threading.Event()))
    thread.invoke({})
    assert sum(counting.brought) == 40
    assert len([each for each in counting.brought if each]) < 40
    counting.brought.clear()
    assert thread.resume(True) == [str(number) for number in range(40)]
    assert sum(counting.brought) == 0, "each is found"


def test_large_results_are_recorded_apart(drive, counting):
    flow = many_calls(counting, threading.Event(), "long " * 60_000)
    drive.invoke(flow, {}, CONFIG)
    assert sum(counting.brought) == 40
    assert max(counting.brought) <= 3


def test_records_may_come_while_the_journal_looks_at_its_queue(counting):
    """A call that ends on another thread appends to the queue at any moment."""

    class Arriving(Entry):
        @property
        def held(self):  # type: ignore[override]
            queue.append(Entry(None, (), "1"))
            return True

        @held.setter
        def held(self, value):
            pass

    queue = deque()
    journal = Journal.__new__(Journal)
    journal._queue = queue
    commit = object()
    queue += [Arriving(commit), Arriving(commit)]
    assert len(journal._next_entries()) == 2


@pytest.mark.trial
def test_only_the_journal_calls_what_a_saver_writes_with():
    for room in ("pregel", "executors", "graph", "visualize"):
        for path in sorted((ROOT / room).rglob("*.py")):
            calls = {
                node.func.attr
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in WRITING
                and "saver" in ast.unparse(node.func.value).rsplit(".", 1)[-1]
            }
            if path.name not in ("journal.py", "ajournal.py"):
                assert not calls, f"{path.relative_to(ROOT)} stores past the journal: {calls}"
