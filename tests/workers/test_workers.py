"""Many workers on one Postgres: each submitted job is run, in order, by one worker at a time, whichever dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kit import cluster, fleet
from kit.fleet import (
    Fleet,
    State,
    all_ended,
    counting,
    job_of,
    judged,
    log_of,
    looped,
    queue_at_work,
    until,
    working,
)
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of, thread_config
from psycopg_pool import ConnectionPool

from stategraph import END, Command, InMemorySaver, Pregel, StateGraph, interrupt
from stategraph.__main__ import main
from stategraph.checkpoint import DamagedError, StorageError, UnserializableError
from stategraph.checkpoint.encryption import Encryption
from stategraph.checkpoint.integrity import Integrity
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.serde import Serializer
from stategraph.checkpoint.sql import postgres_wire as wire_module
from stategraph.checkpoint.sql.postgres_server import ConnectionLostError
from stategraph.workers import JobOpenError, Queue, Worker, WorkersDiedError, runner, tables
from stategraph.workers import waiting as waiting_module
from stategraph.workers.jobs import JobCodec, JobEnd
from stategraph.workers.runner import JobRunner
from stategraph.workers.session import LISTENERS, SessionLostError, Terms, WorkerSession

TERMS = Terms("counting", "tester", 3, 20)


def five(**more):
    """An input of five steps."""
    return {"log": [], "left": 5, **more}


def cut(session):
    """What the server does when a connection is gone."""
    session._connection.close()


# -- submit and result ------------------------------------------------------------------------------------------


def test_a_submitted_input_is_run_and_its_result_is_what_invoke_gives(drive, postgres, queue):
    with working(counting, postgres):
        run_id = drive.call(queue, "submit", "t", five())
        found = drive.call(queue, "result", "t", wait=30)
        assert (found.status, found.run_id, found.attempts) == ("done", run_id, 1)
        assert found.unwrap() == {"log": [0, 1, 2, 3, 4], "left": 5}
    with PostgresSaver.from_conn_string(postgres) as saver:
        head = saver.get_tuple(CONFIG)
        assert head is not None and head.metadata["run_id"] == run_id


def test_an_async_graph_is_run_on_one_event_loop(postgres):
    loops = set()

    async def step(state):
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return {"log": [len(state["log"])]}

    graph = looped(step, "awaited")
    with queue_at_work(graph, postgres) as queue:
        names = [f"t{number}" for number in range(5)]
        queue.submit_many([(name, five()) for name in names])
        assert [queue.result(name, wait=30).unwrap()["log"] for name in names] == [[0, 1, 2, 3, 4]] * 5
    assert len(loops) == 1


def test_config_and_context_reach_the_nodes(postgres):
    def step(state, config, runtime):
        return {"log": [config["configurable"]["tone"], config["metadata"]["by"], runtime.context, config["tags"]]}

    graph = looped(step, "told")
    with queue_at_work(graph, postgres) as queue:
        config = {"configurable": {"tone": "low"}, "metadata": {"by": "me"}, "tags": ["x"]}
        queue.submit("t", five(left=1), config=config, context={"user": 7})
        assert log_of(queue) == ["low", "me", {"user": 7}, ["x"]]


@pytest.mark.parametrize("durability", [None, "exit"])
def test_an_interrupted_run_is_paused_and_an_answer_resumes_it(postgres, durability):
    graph = fleet.asking()
    with Queue.from_conn_string(postgres, graph, durability=durability) as queue, working(graph, postgres):
        queue.submit("t", EMPTY)
        for answer, question in (("a", "first"), ("b", "second"), ("c", "third")):
            paused = queue.result("t", wait=30)
            assert (paused.status, [each.value for each in paused.interrupts]) == ("paused", [question])
            queue.submit("t", Command(resume=answer))
        assert log_of(queue) == ["a", "b", "c"]


def test_a_failed_run_reports_its_nodes_error_and_none_resumes_it(postgres):
    good = threading.Event()

    def step(state):
        if len(state["log"]) == 2 and not good.is_set():
            raise ValueError("no good")
        return {"log": [len(state["log"])]}

    graph = looped(step, "fails")
    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", five())
        failed = queue.result("t", wait=30)
        assert failed.status == "failed"
        with pytest.raises(ValueError, match="no good"):
            failed.unwrap()
        good.set()
        queue.submit("t", None)
        assert log_of(queue) == [0, 1, 2, 3, 4]


def test_a_waiting_client_is_notified_and_does_not_poll(drive, postgres, queue, monkeypatch):
    monkeypatch.setattr(waiting_module, "POLL", 300.0)
    with working(counting, postgres, poll=300.0):
        until(queue.workers)
        for number in range(3):
            drive.call(queue, "submit", f"t{number}", five())
            assert drive.call(queue, "result", f"t{number}", wait=30).status == "done"


def test_a_pool_in_place_of_an_address_does_too(postgres):
    with ConnectionPool(postgres, min_size=1, max_size=2, name="stategraph") as pool, working(counting, postgres):
        queue = Queue(pool, "counting")
        queue.submit("t", five())
        assert log_of(queue) == [0, 1, 2, 3, 4]
        queue.close()


def test_a_result_may_be_read_before_it_is_available(queue):
    queue.submit("t", five(), run_id="r")
    assert queue.result("t", wait=0).status == "waiting"
    assert queue.result("t", wait=0.01).open
    with pytest.raises(JobOpenError, match="'r' of thread 't' is waiting"):
        queue.result("t", wait=0).unwrap()
    with pytest.raises(LookupError, match="'u' has no job here"):
        queue.result("u")
    with pytest.raises(LookupError, match="no job named 'r'"):
        queue.result("u", run_id="r")


def test_a_run_id_submitted_twice_is_one_job(postgres, queue):
    for _ in range(3):
        assert queue.submit("t", five(), run_id="r") == "r"
    assert queue.submit_many([("t", five()), ("t", five())], run_ids=["r", "s"]) == ["r", "s"]
    with working(counting, postgres):
        assert queue.result("t", run_id="s", wait=30).status == "done"
    queue.submit("t", five(), run_id="r")
    assert queue.counts() == {"counting": {"done": 2}}


def test_a_mistake_is_reported_at_submit(postgres, queue):
    with pytest.raises(UnserializableError, match=r"\['input'\]\['log'\]\[0\]"):
        queue.submit("t", {"log": [threading.Lock()]})
    with pytest.raises(ValueError, match="thread_id must be a non-empty string"):
        queue.submit("", five())
    with pytest.raises(ValueError, match="priority must be an integer between"):
        queue.submit("t", five(), priority=2**31)
    with pytest.raises(ValueError, match="must not have a thread_id"):
        queue.submit("t", five(), config=thread_config("u"))
    with pytest.raises(ValueError, match="needs 2 run ids, got 1"):
        queue.submit_many([("t", five()), ("u", five())], run_ids=["r"])
    with pytest.raises(ValueError, match="'waitin'; did you mean 'waiting'"):
        queue.jobs(["waitin"])
    with pytest.raises(ValueError, match="integer >= 1, got 0"):
        queue.limit(0)
    with pytest.raises(TypeError, match="compiled graph or the name of one, got 7"):
        Queue(postgres, 7)  # type: ignore[arg-type]
    assert queue.counts() == {}


def test_a_graph_that_no_other_worker_could_resume_is_refused(postgres):
    with pytest.raises(ValueError, match="'counting' stores its threads in memory"):
        Worker(counting.copy({"checkpointer": InMemorySaver()}), postgres)
    with pytest.raises(TypeError, match=r"compile\(\) it first"):
        Worker(StateGraph(State), postgres)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above 0"):
        Worker(counting, postgres, concurrency=0)
    nameless = chain_of(State, a=lambda state: {}).compile()
    for make in (Worker, lambda *given: Queue(*reversed(given))):
        with pytest.raises(ValueError, match="must have a name"):
            make(nameless, postgres)
    assert Worker(nameless, postgres, name="any").name == "any"


@pytest.mark.trial
def test_texts_may_hold_anything(postgres):
    attacks = ["'; DROP TABLE stategraph_jobs; --", "$1", "%s", "\\", '"', "{}", "ü", "\x01", "long" * 3000]
    sent = set()

    class Watched(psycopg.RawCursor[Any]):
        def execute(self, query, *args, **kwargs):
            sent.add(query)
            return super().execute(query, *args, **kwargs)

    def step(state):
        raise ValueError(state["log"][0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_module, "RawCursor", Watched)
        for text in attacks:
            graph = looped(step, text[:900])
            with queue_at_work(graph, postgres, label=text) as queue:
                queue.submit(text, {"log": [text], "left": 2}, run_id=text, config={"metadata": {"a": text}})
                found = queue.result(text, run_id=text, wait=30)
                assert (found.graph, found.thread_id, found.run_id) == (text[:900], text, text)
                assert str(found.error) == text
                queue.cancel(text)
                queue.retry(text)
        with Queue.from_conn_string(postgres, "any") as queue:
            assert queue.counts() == {text[:900]: {"failed": 1} for text in attacks}
    known = {*tables.STATEMENTS.values(), *(text for group in tables.MIGRATIONS for text in group)}
    own = {text for text in sent if "stategraph_jobs" in text or "stategraph_workers" in text or "LISTEN" in text}
    assert own <= known
    assert len(own) > 15
    for text in ("a\0b", "\ud800", "", "n" * 1001):
        with pytest.raises(ValueError):
            Queue(postgres, text)


def test_inputs_outcomes_streams_and_threads_may_be_encrypted(postgres):
    integrity = Encryption(b"k" * 32)
    secret = "a very private text"
    graph = looped(lambda state: {"log": [secret]}, "private")
    with Queue.from_conn_string(postgres, graph, integrity=integrity) as queue, working(graph, postgres, integrity=integrity):
        queue.submit("t", {"log": [secret], "left": 3}, stream_mode="updates")
        assert [each.data for each in queue.stream("t")] == [{"step": {"log": [secret]}}] * 2
        assert log_of(queue) == [secret] * 3
    with psycopg.connect(postgres) as connection:
        for table in ("jobs", "chunks", "checkpoints", "values", "writes"):
            rows = connection.execute(f"SELECT t::text FROM stategraph_{table} AS t").fetchall()  # type: ignore[arg-type]
            assert rows or table in ("values", "writes")
            assert not any(secret.encode().hex() in row[0] for row in rows)
    with Queue.from_conn_string(postgres, graph) as other, pytest.raises(DamagedError):
        other.result("t")


def test_a_modified_row_is_an_error(postgres, queue):
    with working(counting, postgres):
        queue.submit("t", five(), run_id="r")
        queue.result("t", wait=30)
    with psycopg.connect(postgres) as connection:
        connection.execute("UPDATE stategraph_jobs SET outcome = set_byte(outcome, 9, get_byte(outcome, 9) # 1)")
    with pytest.raises(DamagedError, match="the outcome of the job 'r' of thread 't'"):
        queue.result("t")


def approving(approves):
    """A graph of which the newer version asks for an approval at the end."""
    builder = graph_of(State, "S>step")
    if approves:
        builder.add_node("approve", lambda state: {"log": [interrupt("approve?")]})
        builder.add_edge("step", "approve")
    return builder.compile(name="approving")


def test_a_worker_leaves_a_thread_of_another_version_to_others(postgres, caplog):
    newer, older = approving(True), approving(False)
    names = [f"t{number}" for number in range(8)]
    with Queue.from_conn_string(postgres, newer) as queue:
        with working(newer, postgres):
            queue.submit_many([(name, {"log": []}) for name in names])
            assert {queue.result(name, wait=30).status for name in names} == {"paused"}
        with working(older, postgres):
            queue.submit("t0", Command(resume="yes"), run_id="answer")
            until(lambda: "the job 'answer' of thread 't0' is left to other workers" in caplog.text)
            queue.submit("free", EMPTY)
            assert queue.result("free", wait=30).value["log"] == ["step"]
            assert {(job.status, job.attempts) for job in queue.jobs()} == {("waiting", 1)}
            with working(newer, postgres):
                for name in names[1:]:
                    queue.submit(name, Command(resume="yes"))
                found = [queue.result(name, wait=30) for name in names]
        assert all(each.value["log"] == ["step", "yes"] for each in found)


# -- order ------------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_jobs_of_a_thread_run_by_priority_then_as_submitted_never_side_by_side(postgres):
    lock, inside, order = threading.Lock(), [0], []

    def step(state, config):
        with lock:
            inside[0] += 1
            assert inside[0] == 1, "two runs of one thread at once"
            order.append(state["left"])
        time.sleep(0.002)
        with lock:
            inside[0] -= 1
        return {"log": [state["left"]]}

    builder = chain_of(State, step=step).add_edge("step", END)
    graph = builder.compile(name="order")
    with Queue.from_conn_string(postgres, graph) as queue:
        for number in range(30):
            queue.submit("t", {"left": number}, priority=-(number % 3), run_id=str(number))
        with working(graph, postgres, 3):
            until(lambda: all_ended(queue))
        expected = sorted(range(30), key=lambda number: (number % 3, number))
        assert order == expected
        assert queue.result("t", run_id=str(expected[-1])).unwrap()["log"] == expected


def test_of_several_threads_the_one_of_higher_priority_goes_first(session, queue):
    for number in range(6):
        queue.submit(f"t{number}", five(), priority=number % 3)
    assert [job.name.thread_id for job in session.claim(4)] == ["t2", "t5", "t1", "t4"]
    assert [job.name.thread_id for job in session.claim(4)] == ["t0", "t3"]
    assert session.claim(4) == []


def test_the_many_jobs_of_one_key_do_not_delay_the_first_of_another(session, queue):
    queue.submit_many([(f"ann{number}", five()) for number in range(200)], fairness_key="ann")
    assert [job.name.thread_id for job in session.claim(3)] == ["ann0", "ann1", "ann2"]
    for number in range(2):
        queue.submit(f"bob{number}", five(), fairness_key="bob")
    queue.submit("eve", five(), fairness_key="eve")
    assert {job.name.thread_id for job in session.claim(3)} == {"ann3", "bob0", "eve"}
    assert {job.name.thread_id for job in session.claim(2)} == {"ann4", "bob1"}
    queue.submit("urgent", five(), fairness_key="ann", priority=1)
    queue.submit("keyless", five())
    assert [session.claim(1)[0].name.thread_id for _ in range(3)] == ["urgent", "keyless", "ann5"]
    with pytest.raises(ValueError, match="fairness_key must be a string, got 7"):
        queue.submit("t", five(), fairness_key=7)


def test_however_many_claim_at_once_a_thread_is_had_by_one(postgres, session, queue):
    sessions = [session, *(WorkerSession(postgres, TERMS).open() for _ in range(5))]
    gate = threading.Barrier(6)
    had = []

    def claim(one: WorkerSession):
        for number in range(20):
            gate.wait()
            if one is session:
                queue.submit_many([("a", None), ("b", None)], priority=number)
            taken = one.claim(2)
            had.extend(taken)
            gate.wait()
            running = Counter(job.name.thread_id for job in had)
            assert set(running.values()) <= {1}, "two jobs of a thread were claimed"
            gate.wait()
            if taken:
                one.end([JobEnd(job.id, job.attempt, "done") for job in taken])
            if one is session:
                had.clear()

    threads = [threading.Thread(target=claim, args=(each,)) for each in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for each in sessions[1:]:
        each.close()
    assert queue.counts()["counting"]["done"] >= 20


@pytest.mark.trial
def test_a_limit_is_kept_exactly_by_all_workers(postgres):
    lock, inside, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def step(state):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if inside[0] == 4:
                full.set()
        assert full.wait(30), "the limit is never reached"
        with lock:
            inside[0] -= 1
        return {"log": [0]}

    graph = looped(step, "limited")
    with Queue.from_conn_string(postgres, graph) as queue:
        queue.limit(4)
        names = [f"t{number}" for number in range(60)]
        queue.submit_many([(name, five(left=1)) for name in names])
        with working(graph, postgres, 3, concurrency=4):
            until(lambda: all_ended(queue))
        assert most == [4]
        assert queue.counts() == {"limited": {"done": 60}}
        queue.limit(None)
        full.clear()
        queue.submit_many([(name, five(left=1)) for name in names])
        with working(graph, postgres, 3, concurrency=4):
            until(lambda: all_ended(queue))  # four are inside at some time, so all go on
        assert queue.counts() == {"limited": {"done": 120}}


# -- claims -----------------------------------------------------------------------------------------------------


def test_a_claim_whose_response_was_lost_is_returned_when_the_worker_reconnects(postgres, queue):
    proxy = cluster.Proxy(cluster.shared().port)
    try:
        with working(counting, proxy.address(postgres)):
            queue.submit("t", five())
            assert queue.result("t", wait=30).status == "done"  # it has begun in good order
            queue.submit_many([(f"t{number}", five()) for number in range(8)])
            for _ in range(5):
                proxy.lose = "answer"
                queue.submit("t", five())
                until(lambda: proxy.lose is None)
            until(lambda: all_ended(queue))
        assert queue.counts() == {"counting": {"done": 14}}
    finally:
        proxy.close()


def test_a_claim_ends_with_the_connection_and_another_takes_it_over(postgres, session, queue):
    queue.submit("t", five())
    other = WorkerSession(postgres, TERMS).open()
    (job,) = session.claim(1)
    assert other.watch() == 0 and other.claim(1) == []
    cut(session)
    assert until(other.watch) == 1
    (again,) = other.claim(1)
    assert (again.id, again.attempt) == (job.id, job.attempt + 1)
    other.close()


def test_a_worker_that_lost_a_claim_cannot_end_the_job(postgres, session, queue):
    queue.submit("t", five())
    (job,) = session.claim(1)
    cut(session)
    other = WorkerSession(postgres, TERMS).open()
    until(other.watch)
    (again,) = other.claim(1)
    late = WorkerSession(postgres, TERMS, before=session.worker).open()
    assert late.kept == set()
    late.end([JobEnd(job.id, job.attempt, "failed")])
    assert queue.result("t", wait=0).status == "running"
    other.end([JobEnd(again.id, again.attempt, "done")])
    assert queue.result("t", wait=0).status == "done"
    for each in (other, late):
        each.close()


def test_a_worker_that_reconnects_in_time_keeps_its_claims(postgres, session, queue):
    queue.submit_many([("t", five()), ("u", five())])
    jobs = session.claim(2)
    cut(session)
    back = WorkerSession(postgres, TERMS, before=session.worker).open()
    other = WorkerSession(postgres, TERMS).open()
    assert back.kept == {(job.id, job.attempt) for job in jobs}
    assert other.watch() == 0
    back.end([JobEnd(job.id, job.attempt, "done") for job in jobs])
    assert queue.counts() == {"counting": {"done": 2}}
    for each in (back, other):
        each.close()


def test_each_death_at_the_same_step_counts_and_the_third_parks_the_job_and_its_thread(postgres, queue, session):
    queue.submit("t", five(), run_id="bad")
    queue.submit("t", five(), run_id="next")
    for deaths in (0, 1, 2):
        one = WorkerSession(postgres, TERMS).open()
        (job,) = one.claim(9)
        assert job.begun == (deaths < 2), "the last try is kept back, to be run alone"
        assert deaths < 2 or one.begin(job)
        cut(one)
        until(session.watch)
    found = queue.result("t", run_id="bad")
    assert (found.status, found.attempts) == ("parked", 3)
    with pytest.raises(WorkersDiedError, match="3 workers died"):
        found.unwrap()
    assert session.claim(9) == [], "its thread waits"
    assert queue.retry("bad") and not queue.retry("next")
    (job,) = session.claim(9)
    session.end([JobEnd(job.id, job.attempt, "waiting")])
    assert queue.cancel("bad") and not queue.cancel("bad")
    assert [job.name.run_id for job in session.claim(9)] == ["next"]


def test_a_job_on_its_last_attempt_runs_alone(postgres, queue, session):
    lock, inside, beside = threading.Lock(), [0], set()

    def step(state, runtime):
        with lock:
            inside[0] += 1
            beside.add((runtime.execution_info.thread_id == "suspect", inside[0]))
        time.sleep(0.005)
        with lock:
            inside[0] -= 1
        return {"log": [len(state["log"])]}

    queue.submit("suspect", five())
    for _ in range(2):
        one = WorkerSession(postgres, TERMS).open()
        assert one.claim(1)
        cut(one)
        until(session.watch)
    queue.submit_many([(f"t{number}", five()) for number in range(12)])
    with working(looped(step), postgres):
        until(lambda: all_ended(queue))
    assert (True, 1) in beside and (False, 2) in beside
    assert not {number for suspect, number in beside if suspect} - {1}
    assert queue.counts() == {"counting": {"done": 13}}


def test_a_job_that_was_kept_back_does_not_pay_for_others(postgres, queue, session):
    queue.submit("t", five())
    for _ in range(2):
        one = WorkerSession(postgres, TERMS).open()
        one.claim(1)
        cut(one)
        until(session.watch)
    one = WorkerSession(postgres, TERMS).open()
    assert [job.begun for job in one.claim(1)] == [False]
    cut(one)
    until(session.watch)
    assert queue.result("t", wait=0).status == "waiting"


def test_deaths_count_only_while_the_thread_makes_no_progress(postgres, queue, session):
    queue.submit("t", {"log": [], "left": 1000})
    with PostgresSaver.from_conn_string(postgres) as saver:
        app = counting.copy({"checkpointer": saver})
        for _ in range(5):
            one = WorkerSession(postgres, TERMS).open()
            (job,) = one.claim(1)
            assert job.begun
            app.invoke({"log": [], "left": 1}, CONFIG)
            cut(one)
            until(session.watch)
    assert queue.result("t", wait=0).status == "waiting"


def test_the_input_and_start_are_no_further_than_nothing(postgres, queue, session):
    """Each may be stored by another worker: the first died before both, the second between them."""
    queue.submit("t", five())
    with PostgresSaver.from_conn_string(postgres) as saver:
        app = counting.copy({"checkpointer": saver})
        for stored in (0, 1, 1):
            one = WorkerSession(postgres, TERMS).open()
            (job,) = one.claim(1)
            assert job.begun or one.begin(job)
            for _ in range(stored):
                app.update_state(CONFIG, EMPTY, as_node="__input__")
            cut(one)
            until(session.watch)
    assert queue.result("t", wait=0).status == "parked"


def test_a_graceful_shutdown_does_not_count_as_a_death(postgres, queue, session):
    queue.submit("t", five())
    for _ in range(4):
        one = WorkerSession(postgres, TERMS).open()
        (job,) = one.claim(1)
        assert job.begun
        one.leave()
        cut(one)
        until(session.watch)


def test_few_of_many_workers_are_notified_of_new_jobs_and_others_replace_them(postgres, queue):
    many = [WorkerSession(postgres, TERMS).open() for _ in range(LISTENERS + 4)]
    assert [each._listens for each in many] == [True] * LISTENERS + [False] * 4
    for each in many[:3]:
        each.close()
    for each in many[3:]:
        each.watch()
    assert [each._listens for each in many[3:]] == [True] * LISTENERS + [False]
    for each in many[3:]:
        each.close()


def test_a_whole_fleet_that_died_is_buried_by_one(postgres, queue, session):
    queue.submit_many([(f"t{number}", five()) for number in range(8)])
    dead = [WorkerSession(postgres, TERMS).open() for _ in range(8)]
    assert [len(each.claim(1)) for each in dead] == [1] * 8
    for each in dead:
        cut(each)
    until(lambda: session.watch() is not None and len(queue.workers()) == 1)
    assert queue.counts() == {"counting": {"waiting": 8}}


# -- an input that is given twice -------------------------------------------------------------------------------


def test_an_answer_never_reaches_the_question_after_its_own(postgres):
    form, stored = JobCodec(Serializer(), Integrity()), []
    app = fleet.asking().copy({"checkpointer": InMemorySaver()})
    runs = JobRunner(app, form, lambda job, task: stored.append(task))
    config = CONFIG
    app.invoke(EMPTY, config)
    job = job_of(form, Command(resume="a"))
    assert runs.run(job).status == "paused"
    for attempt in (2, 3):  # its worker died before it could say so
        assert runs.run(replace(job, attempt=attempt, task=stored[-1])).status == "paused"
        assert [each.value for each in app.get_state(config).interrupts] == ["second"]
    app.invoke(Command(resume="b"), config)
    assert runs.run(replace(job, attempt=4, task=stored[-1])).status == "paused"
    assert app.get_state(config).values["log"] == ["a", "b"]


def test_an_update_is_applied_once_however_often_its_job_is_started():
    form = JobCodec(Serializer(), Integrity())
    broken = threading.Event()

    def step(state):
        if not broken.is_set():
            raise KeyboardInterrupt
        return {"log": ["step"]}

    app = looped(step).copy({"checkpointer": InMemorySaver()})
    runs = JobRunner(app, form, lambda job, task: None)
    config = CONFIG
    broken.set()
    app.invoke({"log": [], "left": 1}, config)
    broken.clear()
    job = job_of(form, Command(update={"log": ["update"], "left": 3}, goto="step"))
    assert runs.run(job).status == "failed"
    broken.set()
    assert runs.run(replace(job, attempt=2)).status == "done"
    assert runs.run(replace(job, attempt=3)).status == "done"
    assert app.get_state(config).values["log"] == ["step", "update", "step"]


def disturbed(*events):
    """A thread with one step on it, and a job with an update for it. Its node meets these events,
    one each time it runs."""
    form, ahead = JobCodec(Serializer(), Integrity()), [*events]

    def step(state):
        if ahead and state["log"]:
            ahead.pop(0)(app, config)
        return {"log": ["step"]}

    app = looped(step).copy({"checkpointer": InMemorySaver()})
    config = CONFIG
    app.invoke({"log": [], "left": 1}, config)
    job = job_of(form, Command(update={"log": ["update"], "left": 6}, goto="step"))
    return app, JobRunner(app, form, lambda job, task: None), job, config


def lose_the_database(app: Pregel, config):
    raise StorageError("the database is out of reach")


def take_the_thread(app: Pregel, config):
    """Another run takes the thread: this one can commit nothing any more."""
    app.update_state(config, {"log": ["other"]}, as_node="step")


def run_undisturbed(app: Pregel, config):
    """Nothing happens."""


@pytest.mark.parametrize(
    "events",
    [
        # The second try finds the update beside the checkpoint. The third does not: another run has
        # gone on from there, with the update.
        (lose_the_database, take_the_thread),
        (run_undisturbed, take_the_thread),  # a superstep of the run is stored
    ],
)
def test_an_update_is_applied_once_whatever_its_run_meets(events):
    app, runs, job, config = disturbed(*events)
    assert runs.run(job).status == "done"
    log = app.get_state(config).values["log"]
    assert log.count("update") == log.count("other") == 1, log


# -- workers that are stopped -----------------------------------------------------------------------------------


def test_a_stopped_worker_gives_its_jobs_back_at_the_next_superstep(postgres, queue, tmp_path):
    with Fleet(postgres, tmp_path) as workers:
        first = workers.start()
        queue.submit_many([(f"t{n}", {"log": [], "left": 400, "pause": 0.005}) for n in range(4)])
        until(lambda: len(workers.notes.read()) > 40)
        os.kill(first.pid, signal.SIGTERM)
        first.join(30)
        assert first.exitcode == 0
        assert queue.counts() == {"counting": {"waiting": 4}} and queue.workers() == []
        assert workers.repeats() == 0
        workers.start()
        for number in range(4):
            assert queue.result(f"t{number}", wait=60).unwrap()["log"] == [*range(400)]
        assert workers.repeats() == 0, "no step was done twice"


def test_a_job_is_cancelled_while_it_waits_and_while_it_runs(postgres, queue):
    queue.submit("t", five(), run_id="waits")
    assert queue.cancel("waits") and queue.result("t").status == "cancelled"
    with working(counting, postgres):
        queue.submit("t", {"log": [], "left": 10**6, "pause": 0.001}, run_id="runs")
        until(lambda: queue.result("t", wait=0).status == "running")
        assert queue.cancel("runs")
        assert queue.result("t", wait=30).status == "cancelled"
    assert not queue.cancel("runs") and not queue.cancel("unknown")


def test_jobs_are_forgotten_and_their_threads_stay(postgres, queue):
    with working(counting, postgres):
        queue.submit("t", five())
        queue.result("t", wait=30)
    queue.submit("u", five())
    assert queue.forget(timedelta(days=1)) == 0
    assert queue.forget() == 1
    with pytest.raises(LookupError, match="it has been deleted"):
        queue.result("t")
    assert queue.result("u", wait=0).open
    with PostgresSaver.from_conn_string(postgres) as saver:
        assert [*saver.threads()] == ["t"]


# -- a database that is away ------------------------------------------------------------------------------------


def test_a_claim_made_by_a_lost_session_is_moved_to_the_next_one(postgres, queue, session):
    queue.submit("t", five())
    queue.submit("t", five(), priority=1)
    with psycopg.connect(postgres) as other:
        other.execute("UPDATE stategraph_jobs SET state = 'running' WHERE priority = 0")  # the claim waits for its end
        session._connection.patience = 0.2
        with pytest.raises(SessionLostError, match="did not answer"):
            session.claim(1)
        back = WorkerSession(postgres, TERMS, before=session.worker).open()
        other.rollback()
    with psycopg.connect(postgres, autocommit=True) as admin:
        until(lambda: not admin.execute(
            "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%picked%' AND pid <> pg_backend_pid()"
        ).fetchall())  # fmt: skip
    assert len(back.claim(1)) == 1
    back.close()


def test_a_connection_that_breaks_while_a_client_waits_is_replaced(postgres, queue):
    proxy = cluster.Proxy(cluster.shared().port)
    try:
        with Queue.from_conn_string(proxy.address(postgres), counting) as waiting:
            waiting.submit("t", five())
            for number in range(3):
                proxy.lose, proxy.after = "answer", number
                assert waiting.result("t", wait=0.01).open
                assert proxy.lose is None
    finally:
        proxy.close()


def test_a_submit_with_unknown_outcome_raises_an_error(postgres, queue):
    """Also when the second try finds no server at all."""
    server, failed = cluster.shared(), []

    def submit(queue):
        try:
            queue.submit("t", five(), run_id="r")
        except ConnectionLostError as error:
            failed.append(error)

    with closing(psycopg.connect(postgres)) as other, Queue.from_conn_string(postgres, counting, timeout=3) as hasty:
        hasty.setup()
        other.execute("LOCK TABLE stategraph_jobs IN EXCLUSIVE MODE")
        thread = threading.Thread(target=submit, args=(hasty,))
        thread.start()
        until(lambda: other.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
        server.stop("immediate")
        try:
            thread.join(30)
        finally:
            server.start()
        assert "not known whether" in str(failed[0]) and "run_id='r'" in failed[0].__notes__[0]
    for _ in range(2):
        queue.submit("t", five(), run_id="r")
    assert queue.counts() == {"counting": {"waiting": 1}}


def test_a_job_goes_back_to_the_queue_when_the_database_is_away_for_long(postgres, queue, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "REPEATS", 2)
    server, begun = cluster.shared(), threading.Event()

    def step(state):
        begun.set()
        time.sleep(0.05)
        return {"log": [len(state["log"])]}

    with working(looped(step), postgres, timeout=1):
        queue.submit("t", five())
        assert begun.wait(30)
        server.stop("immediate")
        try:
            until(lambda: not any(each.name == "stategraph-job" for each in threading.enumerate()))
        finally:
            server.start()
        assert until(lambda: answered(queue, "t")).unwrap()["log"] == [0, 1, 2, 3, 4]


def answered(queue, thread):
    try:
        found = queue.result(thread, wait=0)
    except StorageError:
        return None
    return None if found.open else found


# -- workers that die -------------------------------------------------------------------------------------------


def test_workers_killed_at_random_lose_nothing_and_every_effect_has_one_key(postgres, queue, tmp_path):
    names = [f"t{number}" for number in range(60)]
    chance = random.Random(7)
    with Fleet(postgres, tmp_path) as workers:
        for _ in range(3):
            workers.start()
        queue.submit_many([(name, five(pause=0.02)) for name in names])
        kills = 0
        while not all_ended(queue):
            # By what was done, not by the clock: on a busy machine the next kill would come before a worker has begun.
            noted = len(workers.notes.read())
            # Often enough apart that no job meets three deaths in its first step, for which it would be parked.
            until(lambda noted=noted: len(workers.notes.read()) >= noted + 60 or all_ended(queue))
            workers.kill(chance.choice(workers.processes))
            workers.start()
            kills += 1
        judged(queue, workers, names)
    assert kills >= 3
    assert queue.counts() == {"counting": {"done": 60}}


def test_a_job_whose_node_exits_its_process_continues_elsewhere(postgres, queue, tmp_path):
    with Fleet(postgres, tmp_path) as workers:
        first = workers.start()
        queue.submit("exits", five(exits=str(tmp_path / "has exited")))
        first.join(60)
        assert first.exitcode == 1
        assert queue.result("exits", wait=0).open, "nobody has told an end of it"
        workers.start()
        assert queue.result("exits", wait=60).unwrap()["log"] == [0, 1, 2, 3, 4]
        tries = [note for note in workers.notes.read() if note[:2] == ["exits", 0]]
        assert len(tries) == 2 and tries[0] == tries[1], "under the same idempotency key"


def test_a_disconnected_worker_can_neither_commit_nor_end_its_job(postgres, queue, tmp_path):
    with Fleet(postgres, tmp_path) as workers:
        cut_off = workers.start()
        queue.submit("t", five(pause=0.2))
        until(lambda: len(workers.notes.read()) == 2)
        os.kill(cut_off.pid, signal.SIGSTOP)  # inside the second step
        ((id, *_),) = queue.workers()
        queue.evict(id)
        with psycopg.connect(postgres, autocommit=True) as admin:  # and its saver's connections
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND query LIKE '%stategraph_checkpoints%'"
            )
        workers.start()
        assert queue.result("t", wait=60).unwrap()["log"] == [0, 1, 2, 3, 4]
        with PostgresSaver.from_conn_string(postgres) as saver:
            before = [each.checkpoint["id"] for each in saver.list(CONFIG)]
            os.kill(cut_off.pid, signal.SIGCONT)
            until(lambda: len(queue.workers()) == 2 and {each.running for each in queue.workers()} == {0})
            os.kill(cut_off.pid, signal.SIGTERM)
            cut_off.join(30)
            assert cut_off.exitcode == 0
            assert [each.checkpoint["id"] for each in saver.list(CONFIG)] == before
        found = queue.result("t")
        assert (found.status, found.attempts) == ("done", 2)
        judged(queue, workers, ["t"])


def test_a_worker_with_a_hanging_node_is_evicted_and_its_late_result_is_dropped(postgres):
    go_on, tries = threading.Event(), []

    def step(state):
        tries.append(len(state["log"]))
        if len(tries) == 2:
            assert go_on.wait(60)
            return {"log": ["late"]}
        return {"log": [len(state["log"])]}

    graph = looped(step, "hangs")
    with queue_at_work(graph, postgres, 2, concurrency=1) as queue:
        queue.submit("t", five())
        until(lambda: len(tries) == 2)
        hanging = next(each.id for each in queue.workers() if each.running)
        assert queue.evict(hanging) == 1
        assert log_of(queue) == [0, 1, 2, 3, 4]
        go_on.set()
    with PostgresSaver.from_conn_string(postgres) as saver:
        assert graph.copy({"checkpointer": saver}).get_state(CONFIG).values["log"] == [0, 1, 2, 3, 4]
    assert tries == [0, 1, 1, 2, 3, 4]


# -- the command line -------------------------------------------------------------------------------------------


def test_the_command_line_runs_workers_and_lists_jobs(postgres, queue, tmp_path, capsys):
    graph = f"{Path(fleet.__file__)}:counting"
    words = ["work", "--db", postgres, graph, "--concurrency", "2", "--limit", "2", "--poll", "0.05", "--label", "me"]
    with subprocess.Popen([sys.executable, "-m", "stategraph", *words], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        queue.submit("t", five(), run_id="r")
        assert queue.result("t", wait=60).unwrap()["log"] == [0, 1, 2, 3, 4]
        assert main(["queue", "--db", postgres]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "counting: 1 done"
        assert lines[1].split("\t")[1:] == ["counting", "me", "0 running"]
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert b"working for the queue 'counting', 2 jobs at once" in process.stderr.read()
    queue.submit("u", five(), run_id="s", priority=4)
    assert main(["queue", "--db", postgres]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "s\tcounting\tu\twaiting\tpriority 4"
    assert main(["queue", "--db", postgres, "--cancel", "s", "--retry", "s", "--forget", "0"]) == 0
    assert capsys.readouterr().out.splitlines() == ["s: there is no such job", "s: cancelled", "forgot 2 jobs"]
    assert main(["queue", "--db", postgres, "--evict", "12345"]) == 0
    assert capsys.readouterr().out == "there is no such worker\n"


@pytest.mark.trial
def test_a_worker_of_the_command_line_has_observers(postgres, queue, tmp_path):
    noting = "from stategraph import Observer\nfrom pathlib import Path\nclass Noting(Observer):\n"
    noting += "    def run_ended(self, run, status, seconds, error):\n        Path('noted').write_text(f'{run.thread_id} {status}')\n"
    (tmp_path / "noting.py").write_text(noting)
    words = ["work", "--db", postgres, f"{Path(fleet.__file__)}:counting", "--poll", "0.05", "--observer", "noting:Noting"]
    with subprocess.Popen([sys.executable, "-m", "stategraph", *words], cwd=tmp_path) as process:
        queue.submit("t", five(), run_id="r")
        assert queue.result("t", wait=60).status == "done"
        process.terminate()
        assert process.wait(30) == 0
    assert (tmp_path / "noted").read_text() == "t finished"


def test_what_users_wrote_steers_no_terminal(postgres, capsys):
    evil = "a\x1b[2J\x9b31m\u202e\u2066\r\x07\x7f\u2028z"

    def fails(state):
        raise ValueError(evil)

    failing = looped(fails, name=evil)
    with queue_at_work(failing, postgres, label=evil) as queue:
        queue.submit(evil, five(), run_id=evil)
        assert queue.result(evil, wait=30).status == "failed"
        calls = [[], ["--cancel", evil], ["--retry", evil], ["--cancel", evil, "--thread", evil + "2"]]
        for words in calls:
            assert main(["queue", "--db", postgres, *words]) == 0
            lines = capsys.readouterr().out.split("\n")
            assert all(line.replace("\t", "").isprintable() for line in lines)
            assert "\\x1b[2J" in lines[0]
        queue.submit(evil + "2", five(), run_id=evil)
        with pytest.raises(SystemExit):
            main(["queue", "--db", postgres, "--cancel", evil])
        told = capsys.readouterr().err
        assert "several jobs have the run id" in told and all(line.isprintable() for line in told.split("\n"))


def test_a_command_line_that_cannot_be_says_why(postgres, capsys):
    for words, reason in (
        (["work", "--db", "host=127.0.0.1 port=1", f"{fleet.__file__}:counting"], "cannot be reached"),
        (["work", "--db", postgres, f"{fleet.__file__}:nothing"], "has no 'nothing'"),
        (["work", "--db", postgres, f"{fleet.__file__}:counting", "--concurrency", "0"], "above 0"),
        (["work", "--db", postgres, f"{fleet.__file__}:counting", "--observer", "no.such:thing"], "observer 'no.such:thing' cannot be loaded: No module named 'no'"),
        (["queue", "--db", "this is = not '"], "not a Postgres connection string"),
        (["queue", "--db", postgres, "--forget", "-1"], "not be negative, got -1 day"),
        (["queue", "--db", postgres, "--forget", "inf"], "infinity"),
        (["queue", "--db", postgres, "--list", "-1"], "integer >= 0, got -1"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err


def test_a_machine_that_vanished_is_noticed_by_both_ends(session):
    """By TCP itself: the server lets go of the claims within half a minute, whatever its own settings are."""
    shown = [session._connection.execute(f"SHOW tcp_{name}").fetchone() for name in (
        "keepalives_idle", "keepalives_interval", "keepalives_count", "user_timeout")]  # fmt: skip
    assert shown == [("10",), ("5",), ("3",), ("25000",)] or shown == [("10",), ("5",), ("3",), ("25s",)]
    info = session._connection.info.get_parameters()
    assert (info["keepalives_idle"], info["tcp_user_timeout"]) == ("10", "25000")


def test_a_lost_session_is_reported(session):
    cut(session)
    with pytest.raises(SessionLostError, match="broke"):
        session.claim(1)
