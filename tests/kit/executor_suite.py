"""One suite for every executor: graphs whose runs must be equal, event by event, to those on the driver's own threads.

A test file gives the fixtures `executor` and `far` (and a few more) and takes the tests with
`from kit.executor_suite import *`.
"""

from __future__ import annotations

import itertools
import operator
import os
import re
import signal
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Annotated
from unittest.mock import ANY

import pytest
from typing_extensions import TypedDict

from kit import cluster
from kit.drive import Drive
from kit.executor_effects import *
from kit.executor_graphs import *
from kit.executor_ready import *
from kit.forking_nodes import FORKING, RAW, dies_beside_a_child, graph_of
from kit.graphs import parallel_of
from stategraph import (
    START,
    Command,
    InMemorySaver,
    InMemoryStore,
    RetryPolicy,
    Send,
    StateGraph,
    TimeoutPolicy,
)
from stategraph.checkpoint.errors import UnserializableError
from stategraph.executors import Executor, resolve_executor
from stategraph.pregel import ShippingError, WorkerLostError
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

MODES = ["values", "updates", "custom", "messages", "tasks"]
LONG = 30.0
"""Seconds after which a test that hangs gives up."""


def calls(*inputs):
    def script(play):
        for input in inputs:
            play.call(input)

    return script


def asked(play):
    """One of two questions is answered; then the next one as well, wrongly, rightly."""
    play.call({"n": 0})
    play.call(Command(resume="which of the two?"))
    play.answer(f="F")
    play.answer(s="no number")
    play.answer(s="7", o="O")


def asked_in_a_group(play):
    play.call({"n": 0})
    play.answer(o="1", t="2")


def mended(play):
    play.call({"n": 0})
    play.call(None)
    play.call(None, context=True)


def forked(play):
    """An answer that comes after a change from outside goes to the first question asked."""
    play.call({"n": 0})
    play.drive.update_state(play.app, play.config, {"n": 5})
    play.call(Command(resume="yes"))


ONE = {"n": 0}
STORIES = {
    "map-reduce": (map_reduce, calls({"texts": ["one two", "three", "four five six"]})),
    "loop": (loop, calls(ONE)),
    "joins": (joins, calls(ONE)),
    "commands": (commands, calls(ONE)),
    "generator": (lambda **o: row(yields, note_c, **o), calls(ONE)),
    "questions": (questions, asked),
    "questions in a group": (lambda **o: row(asks_in_a_group, **o), asked_in_a_group),
    "a pause by hand": (
        lambda **o: row(pauses_by_hand, **o),
        calls(ONE, Command(resume="yes"), Command(resume="again"), Command(resume="again", update={"n": 1})),
    ),
    "an answer without a question": (lambda **o: row(asks_once, **o), forked),
    "retries": (retries, calls(ONE)),
    "handled": (handled, calls(ONE)),
    "unhandled": (unhandled, mended),
    "nested": (nested, calls(ONE, Command(resume="yes"))),
    "speaks": (lambda **o: row(speaks, **o), calls(ONE)),
    "cached": (cached, calls(ONE, ONE)),
    "looks": (lambda **o: row(looks, **o), calls(ONE)),
    "drains": (lambda **o: row(drains, note_a, **o), calls(ONE, None)),
    "records": (lambda **o: row(of_record, schema=Record, **o), calls({"n": 1, "log": []})),
    "tasks": (squares(square), calls([1, 2, 3], [4])),
    "tasks that fail": (squares(square_or_fail), calls([1, 2, 3])),
}


def told(chunk):
    """A chunk without what differs from run to run."""
    mode, data = chunk
    if mode == "tasks" and data.get("error") is not None:
        data = {**data, "error": (type(data["error"]).__name__, str(data["error"]))}
    if mode == "messages":
        data = (data[0], data[1]["stategraph_node"])
    return f"{mode}: {without_ids(data)}"


def without_ids(value):
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}", "ID", repr(value))


class Play:
    """A story as it is told: chunks (in order, mode by mode: a reader and a task's thread race), errors, history."""

    def __init__(self, drive, build, **options):
        self.drive = drive
        self.app = build(checkpointer=InMemorySaver(), **options)
        own = {"thread_id": "1", "mine": 1, "assistant_id": "a"}
        self.config = {"configurable": own, "run_id": "run", "tags": ["t"], "max_concurrency": 1}
        self.seen = []

    def call(self, input, **options):
        try:
            chunks = self.drive.stream(self.app, input, self.config, stream_mode=MODES, **options)
            self.seen += sorted((told(chunk) for chunk in chunks), key=lambda text: text.partition(":")[0])
        except BaseException as error:
            notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
            self.seen.append(without_ids((type(error), str(error), vars(error).get("code"), notes)))

    def answer(self, **answers):
        """Answer pending questions, each known by its first letter."""
        pending = self.drive.get_state(self.app, self.config).interrupts
        of = {str(q.value if isinstance(q.value, str) else "second")[0]: q.id for q in pending}
        self.call(Command(resume={of[letter]: answer for letter, answer in answers.items()}))

    def end(self):
        for state in self.drive.history(self.app, self.config):
            tasks = [(t.name, t.path, t.result, repr(t.error), t.interrupts) for t in state.tasks]
            self.seen.append(without_ids((state.values, state.next, state.metadata, tasks)))
        return self.seen


def play(drive: Drive, story, **options):
    build, script = STORIES[story]
    told = Play(drive, build, **options)
    script(told)
    return told.end()


# -- equal to the local run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", STORIES)
def test_a_run_is_equal_to_the_local_one_event_by_event(drive, executor, story):
    here, there = play(drive, story), play(drive, story, executor=executor)
    assert there == here


def test_all_events_of_a_task_arrive_before_its_end(drive, executor):
    for _ in range(3):
        told = drive.stream(map_reduce(executor=executor), {"texts": ["a b c", "d e"]}, stream_mode=["custom", "updates"])
        ends = [i for i, (mode, data) in enumerate(told) if mode == "updates" and "word_count" in data]
        assert len(ends) == 2
        for text, words in (("a b c", 3), ("d e", 2)):
            at = [i for i, (mode, data) in enumerate(told) if mode == "custom" and data[0] == text]
            assert [told[i][1][1] for i in at] == text.split()
            assert any(end > at[-1] and told[end][1]["word_count"] == {"log": [words]} for end in ends)


def test_the_executor_of_a_node_wins_over_that_of_the_run(drive, executor, elsewhere):
    graph = StateGraph(State).add_node("here", where, executor="threads").add_node("there", where)
    app = graph.add_edge(START, "here").add_edge("here", "there").compile()
    here, there = drive.invoke(app, {}, executor=executor)["log"]
    assert here == os.getpid() and (there != os.getpid()) == elsewhere
    assert drive.invoke(app, {})["log"] == [os.getpid()] * 2
    pinned = StateGraph(State).add_node("there", where, executor=executor).add_edge(START, "there").compile()
    for run in (None, "threads"):
        assert (drive.invoke(pinned, {}, executor=run)["log"] != [os.getpid()]) == elsewhere


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request, tmp_path):
    """Opens an empty store each time."""
    if request.param == "postgres":
        opens = lambda: PostgresStore(cluster.shared().schema(), index=INDEX)  # noqa: E731
    else:
        names = (tmp_path / f"{n}.db" for n in itertools.count())
        opens = lambda: SqliteStore(next(names), index=INDEX)  # noqa: E731
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(opens()))


@pytest.mark.trial
def test_a_store_in_a_database_is_used_as_on_the_driver(drive, executor, new_store):
    there, here = new_store(), new_store()
    told = [Play(drive, memories, store=here), Play(drive, memories, store=there, executor=executor)]
    for one, store in zip(told, (here, there), strict=True):
        store.put(("notes",), "none", {"text": "of the driver"})
        one.call({"n": 3})
    assert told[1].end() == told[0].end() and "of the driver" in str(told[1].seen)
    kept = [[(item.namespace, item.key, item.value) for item in store.search(())] for store in (here, there)]
    assert kept[1] == kept[0] and len(kept[0]) == 3


@pytest.mark.trial
def test_async_functions_await_the_store_on_their_own_event_loops(drive, far, new_store):
    app = row(recalls_in_time, executor=far, store=new_store())
    for _ in range(3):
        assert drive.invoke(app, {})["log"] == ["3"]


# -- what only matters where functions leave the process ----------------------------------------------------------


def test_async_functions_are_awaited_in_the_worker_in_any_run(drive, far):
    assert drive.invoke(row(awaits, executor=far), {"n": 3})["log"] == [("awaits", 3)]


def test_an_error_has_the_traceback_of_its_worker(drive, far):
    with pytest.raises(Oops) as caught:
        drive.invoke(row(fails, executor=far), {"n": 0})
    assert (caught.value.code, caught.value.place) == (7, "there")
    assert "executor_graphs.py" in str(caught.value.__cause__) and "raise Oops(7" in str(caught.value.__cause__)


def test_an_unpicklable_value_is_named_with_node_and_place(drive, far):
    lock = threading.Lock()
    with pytest.raises(ShippingError, match=r"""'note_c'.*state\["log"\]\[1\]\["lock"\]: cannot pickle '_thread.lock'"""):
        drive.invoke(row(note_c, executor=far), {"log": [0, {"lock": lock}]})
    with pytest.raises(ShippingError, match=r"""'gives_a_lock'.*result\["log"\]\[1\]\["lock"\]: cannot pickle"""):
        drive.invoke(row(gives_a_lock, executor=far), {})
    with pytest.raises(ShippingError, match=r"""'looks'.*config\["configurable"\]\["mine"\]: cannot pickle"""):
        drive.invoke(row(looks, executor=far), {}, {"configurable": {"mine": lock}})
    assert drive.invoke(row(count, executor=far), {}, {"configurable": {"mine": lock}})["n"] == 1, "nobody asks for it"


@pytest.mark.parametrize("node", [puts, gets, runs_a_graph, calls_a_task])
def test_features_of_the_driver_raise_in_a_worker(drive, far, node):
    with pytest.raises(RuntimeError, match=rf"'{node.__name__}' runs on an executor.* stays with the driver"):
        drive.invoke(row(node, executor=far, store=InMemoryStore()), {"n": 0})


@pytest.mark.trial
def test_a_worker_that_dies_counts_as_an_attempt(world, mortal, tmp_path):
    given = {"texts": [str(tmp_path / "tries")], "n": 2}
    assert world.invoke(deadly(executor=mortal), given)["log"] == ["survived", "a"]
    assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.trial
def test_a_worker_that_dies_is_detected_though_a_child_keeps_its_files_open(world, mortal, tmp_path):
    app = graph_of(dies_beside_a_child, executor=mortal)
    try:
        assert world.invoke(app, {"token": "t", "folder": str(tmp_path)})["answers"] == [("t", ANY)]
    finally:
        for pid in (tmp_path / "children-t").read_text().split():
            with suppress(ProcessLookupError):  # on own processes it ended with its worker
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.trial
def test_a_task_that_kills_its_workers_fails_after_three(world, mortal, tmp_path):
    app = deadly(executor=mortal, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    with pytest.raises(WorkerLostError, match="'kills_its_worker' lost its worker on .* 3 times") as caught:
        world.invoke(app, {"texts": [str(tmp_path / "tries")], "n": 5}, thread)
    assert caught.value.tries == 3 and len((tmp_path / "tries").read_text()) <= 3
    tasks = world.get_state(app, thread).tasks
    assert [(t.name, t.result) for t in tasks] == [("kills_its_worker", None), ("note_a", {"log": ["a"]})]


@pytest.mark.parametrize("node", RAW, ids=lambda node: node.__name__)
def test_a_child_forked_by_a_node_exits_and_sends_no_result(drive, far, node):
    app = graph_of(node, executor=far)
    for token in ("one", "two"):
        told = drive.stream(app, {"token": token}, stream_mode=["custom", "updates"])
        assert told[-1][1][node.__name__]["answers"] == [(token, ANY, *FORKING[node])]
        assert told[:-1] in ([], [("custom", token)])


@pytest.mark.trial
def test_an_attempt_that_times_out_is_ended(world, far, ends_for_real, tmp_path):
    assert world.invoke(limited(1.0, executor=far), {"texts": [str(tmp_path)]})["log"] == ["in time"]
    if ends_for_real:
        until_gone(int((tmp_path / "pid").read_text()))
    (tmp_path / "go").touch()


@pytest.mark.trial
def test_a_cancelled_run_ends_its_calls(world, far, ends_for_real, tmp_path):
    app = two_stay(executor=far)
    began = time.monotonic()
    pids = world.stream(app, {"texts": [str(tmp_path)]}, stream_mode="custom", take=2)
    assert time.monotonic() - began < LONG, "the run waits for its calls"
    if ends_for_real:
        for pid in pids:
            until_gone(pid)
    (tmp_path / "go").touch()


def until_gone(pid):
    due = time.monotonic() + LONG
    while Path(f"/proc/{pid}").exists() and time.monotonic() < due:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_a_heartbeat_reaches_the_driver(world, far):
    graph = StateGraph(State).add_node(beats, timeout=TimeoutPolicy(idle_timeout=0.6)).add_edge(START, "beats")
    assert world.invoke(graph.compile(executor=far), {"n": 0})["log"] == ["alive"]


def test_a_large_value_is_packed_once_a_superstep(drive, far, monkeypatch):
    class Sum(TypedDict, total=False):
        texts: list
        n: Annotated[int, operator.add]

    shared = []
    there = resolve_executor(far)
    share = there.share
    monkeypatch.setattr(there, "share", lambda blob: (shared.append(len(blob)), share(blob))[1])
    graph = parallel_of(Sum, dict.fromkeys("abcd", reads_much))
    text = "x" * 100_000
    assert drive.invoke(graph.compile(executor=far), {"texts": [text], "n": 0})["n"] == 400_000
    assert len(shared) == 1, "four tasks read it"


@pytest.mark.parametrize(("same", "expected"), [(False, (3, 0)), (True, (1, 1))])
def test_a_large_value_that_one_task_is_sent_is_attached_and_shared_once_another_needs_it(
    far, monkeypatch, same, expected
):
    class Sum(TypedDict, total=False):
        n: Annotated[int, operator.add]

    calls = {"attach": 0, "share": 0}
    there = resolve_executor(far)

    def count(name, result):
        def counted(blob):
            calls[name] += 1
            return result(blob)

        monkeypatch.setattr(there, name, counted)

    share = there.share
    count("attach", share if type(there).attach is Executor.attach else there.attach)
    count("share", share)
    texts = ["x" * 100_000] * 3 if same else [letter * 100_000 for letter in "xyz"]
    graph = StateGraph(Sum).add_node("read", reads_much)
    graph.add_conditional_edges(START, lambda _: [Send("read", {"texts": [*texts[i : i + 1]]}) for i in range(3)], ["read"])
    if same:
        sent = {"texts": texts[:1]}
        graph = StateGraph(Sum).add_node("read", reads_much)
        graph.add_conditional_edges(START, lambda _: [Send("read", sent)] * 3, ["read"])
    assert graph.compile(executor=far).invoke({"n": 0})["n"] == 300_000
    assert (calls["attach"], calls["share"]) == expected


# -- effects ------------------------------------------------------------------------------------------------------


def paying(node, far, saver=None):
    again = RetryPolicy(max_attempts=2, initial_interval=0, retry_on=ConnectionError)
    graph = StateGraph(State).add_node("pay", node, retry_policy=again).add_edge(START, "pay")
    return graph.compile(saver, executor=far)


@pytest.mark.parametrize(("node", "things"), [(pays, ["book"]), (apays, ["book", "pen"])])
def test_an_effect_is_found_by_a_retry_and_by_a_resume(drive, far, tmp_path, node, things):
    saver = InMemorySaver()
    drive.invoke(paying(node, far, saver), {"texts": [str(tmp_path)]}, CONFIG)
    answered = drive.invoke(paying(node, far, saver), Command(resume="yes"), CONFIG)
    assert answered["log"] == [*(f"receipt for {each}" for each in things), "yes"]
    assert sorted(charged(tmp_path)) == things


def test_an_effect_without_a_saver_is_found_by_a_retry(drive, far, tmp_path):
    with pytest.raises(RuntimeError, match="checkpointer"):  # by the question that follows
        drive.invoke(paying(pays, far), {"texts": [str(tmp_path)]})
    assert (tmp_path / "failed").exists() and charged(tmp_path) == ["book"]


def test_an_effect_is_recorded_before_once_returns(drive, far, tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        found = drive.invoke(paying(pays_and_looks, far, saver), {"texts": [str(tmp_path)]}, CONFIG)
    assert found["log"] == ["receipt for book"]


@pytest.mark.trial
def test_a_killed_worker_repeats_an_effect_only_if_it_was_not_recorded(world, mortal, tmp_path):
    app = paying(pays_and_dies, mortal, InMemorySaver())
    assert world.invoke(app, {"texts": [str(tmp_path)]}, CONFIG)["log"] == ["receipt for book", "receipt for pen"]
    assert charged(tmp_path) == ["book", "pen", "pen"]


@pytest.mark.parametrize(("node", "error", "text"), [
    (pays_twice, ValueError, "has come to runtime.once('charge') twice"),
    (pays_for_a_lock, ShippingError, "cannot pickle"),
    (pays_for_a_class, UnserializableError, "cannot store"),
])  # fmt: skip
def test_an_effect_that_cannot_be_recorded_raises(drive, far, tmp_path, node, error, text):
    with pytest.raises(error) as caught:
        drive.invoke(paying(node, far, InMemorySaver()), {"texts": [str(tmp_path)]}, CONFIG)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert text in said and charged(tmp_path) == ["book"]
    if error is not ValueError:
        assert "runtime.once('charge'), which has been called: let it return what can be" in said


def test_a_run_that_records_nothing_before_its_end_has_no_effect(drive, far, tmp_path):
    with pytest.raises(RuntimeError, match='durability="exit", which records nothing before its end'):
        drive.invoke(paying(pays, far, InMemorySaver()), {"texts": [str(tmp_path)]}, CONFIG, durability="exit")
    assert charged(tmp_path) == []


@pytest.mark.trial
def test_an_abandoned_attempt_has_no_effect(world, far, ends_for_real, tmp_path):
    again = RetryPolicy(max_attempts=2, initial_interval=0)
    graph = StateGraph(State).add_node("pay", waits_and_pays, timeout=1.0, retry_policy=again).add_edge(START, "pay")
    app = graph.compile(InMemorySaver(), executor=far)
    assert world.invoke(app, {"texts": [str(tmp_path)]}, CONFIG)["log"] == ["receipt for in_time"]
    (tmp_path / "go").touch()
    due = time.monotonic() + LONG
    while not ends_for_real and not (tmp_path / "ended").exists():
        assert time.monotonic() < due
        time.sleep(0.01)
    assert charged(tmp_path) == ["in_time"]
