"""Runs of a fleet that are cancelled, rolled back or replaced: whatever happens at the same time, the records tell what
the runs have done."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager

import httpx
import psycopg
import pytest
from kit.fleet import until
from receiver import receiver as receiver
from serving import RUN, Gates, make_flow, opened, serving

from stategraph.checkpoint import UnknownTypeError
from stategraph.serve import create_app
from stategraph.serve.records import ROOT
from stategraph.serve.runs import fleet as fleet_runs
from stategraph.serve.runs.fleet import FleetRuns
from stategraph.store.postgres import PostgresStore
from stategraph.workers import Queue
from stategraph.workers.jobs import JobCodec


class Thread:
    """A thread of a server, on which a run may have ended."""

    def __init__(self, client):
        self.client = client
        self.place = f"/threads/{client.post('/threads', json={}).json()['thread_id']}"

    @property
    def id(self):
        return self.place.rpartition("/")[2]

    def begin(self, *words, **more):
        """Begin a run whose input has these words; return its address."""
        answer = self.post(*words, **more)
        return f"{self.place}/runs/{answer.raise_for_status().json()['run_id']}"

    def begin_slow(self, gates, *words, **more):
        """Begin a run that is at work until its gate is opened."""
        gates.close("slow")
        run = self.begin(*words, topic="slow", **more)
        assert gates.reached["slow"].wait(30)
        return run

    def post(self, *words: str, assistant="flow", topic="", **more):
        sent = {"assistant_id": assistant, "input": {"log": [*words], "topic": topic}, **more}
        return self.client.post(f"{self.place}/runs", json=sent)

    def log(self):
        return self.client.get(f"{self.place}/state").json()["values"].get("log")

    def status(self, run):
        """The status of a run; 404 if its record was deleted."""
        answer = self.client.get(run)
        return answer.json()["status"] if answer.status_code == 200 else answer.status_code

    def reaches(self, run, status):
        until(lambda: self.status(run) == status)
        assert self.status(run) == status  # also once a server has recorded it


@contextmanager
def served(db, gates, workers=2, *webhooks):
    """A new thread of a server of its own."""
    graphs = {name: make_flow(gates, name) for name in ("flow", "other")}
    with ExitStack() as stack:
        place = stack.enter_context(opened("postgres", db))
        url = stack.enter_context(serving(create_app(graphs, workers=workers, webhooks=webhooks, **place)))
        limits = httpx.Limits(max_keepalive_connections=0)  # a server that fails closes the connection
        yield Thread(stack.enter_context(httpx.Client(base_url=url, timeout=60, limits=limits)))


@pytest.fixture
def gates():
    return Gates()


@pytest.fixture
def thread(postgres, gates):
    with served(postgres, gates) as thread:
        yield thread


def end_of(db, thread: Thread, run):
    """The result of a run's job, which no server has noticed yet."""
    with Queue.from_conn_string(db, "flow") as queue:
        return queue.result(thread.id, run_id=run.rpartition("/")[2], wait=30)


# -- cancel ----------------------------------------------------------------------------------------


def test_a_rollback_that_is_refused_because_the_run_has_ended_changes_nothing(thread, postgres, monkeypatch):
    async def nothing(*_):
        pass

    with monkeypatch.context() as patched:
        patched.setattr(FleetRuns, "look", nothing)  # nobody learns of the end
        run = thread.begin("in")
        assert end_of(postgres, thread, run).status == "done"
        refused = thread.client.post(f"{run}/cancel?action=rollback")
    assert refused.status_code == 409 and "has ended" in refused.json()["detail"]
    thread.reaches(run, "success")
    assert thread.log() == ["in", "a", "b"]


def test_a_run_that_ends_during_a_rollback_is_rolled_back(thread, postgres, gates, monkeypatch):
    run = thread.begin_slow(gates, "in")
    cancel = Queue.cancel

    def end_before(queue: Queue, run_id, **more):
        gates.open("slow")
        assert end_of(postgres, thread, run).status == "done"
        return cancel(queue, run_id, **more)

    monkeypatch.setattr(Queue, "cancel", end_before)
    assert thread.client.post(f"{run}/cancel?action=rollback").status_code == 200
    assert thread.status(run) == 404 and not thread.log()


@pytest.mark.trial
def test_no_run_starts_from_a_state_that_is_being_rolled_back(thread, gates, monkeypatch):
    async def nothing(*_):
        pass

    thread.reaches(thread.begin("past"), "success")
    run = thread.begin_slow(gates, "in")
    with monkeypatch.context() as patched:  # nobody learns of the end
        patched.setattr(FleetRuns, "look", nothing)
        patched.setattr(FleetRuns, "_end_of", nothing)
        assert thread.client.post(f"{run}/cancel?action=rollback").status_code == 200
        refused = thread.post("later")
        assert refused.status_code == 409 and "rolled back" in refused.json()["detail"]
        assert "taken_back" not in thread.client.get(thread.place).json()
    gates.open("slow")
    thread.reaches(run, 404)
    thread.reaches(thread.begin("later"), "success")
    assert thread.log() == ["past", "a", "b", "later", "a", "b"]


def lose_the_job(monkeypatch, thread: Thread, **more):
    """A run whose server dies before it submits the job."""

    async def die(*_):
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(FleetRuns, "submit_job", die)
        assert thread.post("in", **more).status_code == 500
    [run] = thread.client.get(f"{thread.place}/runs").json()
    return f"{thread.place}/runs/{run['run_id']}"


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
def test_a_run_that_is_cancelled_before_its_job_was_submitted_never_begins(postgres, gates, monkeypatch, action):
    with served(postgres, gates) as thread:
        run = lose_the_job(monkeypatch, thread)
        monkeypatch.setattr(fleet_runs, "SECONDS_TO_SUBMIT", 0.5)
        assert thread.client.post(f"{run}/cancel?wait=true&action={action}").status_code == 200
        assert thread.status(run) == ("interrupted" if action == "interrupt" else 404)
        assert thread.client.get(thread.place).json()["status"] == "idle"
        with Queue.from_conn_string(postgres, "flow") as queue:
            assert queue.named(run.rpartition("/")[2]) == []


def test_the_next_server_ends_a_run_that_was_cancelled_before_its_job_was_submitted(postgres, gates, monkeypatch):
    with served(postgres, gates, workers=0) as thread:
        run = lose_the_job(monkeypatch, thread)
        assert thread.client.post(f"{run}/cancel").status_code == 200
    with served(postgres, gates) as other:
        other.reaches(run, "interrupted")
        assert other.client.get(f"{run.partition('/runs')[0]}/state").json()["values"] == {}


@pytest.mark.trial
def test_a_run_that_is_cancelled_at_another_server_before_its_own_submits_the_job_is_stopped(
    thread, postgres, gates, monkeypatch
):
    submit = FleetRuns.submit_job
    with served(postgres, gates, workers=0) as other:

        async def cancel_before(runs, record):
            place = f"{thread.place}/runs/{record['run_id']}"
            (await asyncio.to_thread(other.client.post, f"{place}/cancel")).raise_for_status()
            await submit(runs, record)

        monkeypatch.setattr(FleetRuns, "submit_job", cancel_before)
        gates.close("slow")
        run = thread.begin("in", topic="slow")
        thread.reaches(run, "interrupted")


@pytest.mark.trial
def test_a_stop_that_a_server_stored_before_it_died_is_carried_out(thread, gates, monkeypatch):
    run = thread.begin_slow(gates, "in")

    def die(*_, **__):
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "cancel", die)
        assert thread.client.post(f"{run}/cancel").status_code == 500
    thread.reaches(run, "interrupted")


# -- care ------------------------------------------------------------------------------------------


def test_a_run_with_a_damaged_outcome_ends_and_so_do_all_others(thread, postgres, monkeypatch):
    other = Thread(thread.client)

    async def nothing(*_):
        pass

    with monkeypatch.context() as patched:
        patched.setattr(FleetRuns, "look", nothing)
        runs = [each.begin("in") for each in (thread, other)]
        for each, run in zip((thread, other), runs, strict=True):
            end_of(postgres, each, run)
        with psycopg.connect(postgres, autocommit=True) as direct:
            direct.execute("UPDATE stategraph_jobs SET outcome = 'damaged' WHERE id = 1")
    with PostgresStore.from_conn_string(postgres) as store:
        until(lambda: not store.search((ROOT, "unfinished")))
    assert [each.status(run) for each, run in zip((thread, other), runs, strict=True)] == ["error", "success"]


@pytest.mark.trial
def test_a_webhook_reports_a_run_that_could_not_be_submitted(postgres, gates, receiver, monkeypatch):
    """Its server died before, and its thread has become busy since."""
    with served(postgres, gates, 0, receiver.place) as thread:
        run = lose_the_job(monkeypatch, thread, multitask_strategy="reject", webhook=receiver.place)
        thread.begin("2")
        monkeypatch.setattr(fleet_runs, "SECONDS_TO_SUBMIT", 0.5)
        thread.reaches(run, "error")
        until(lambda: receiver.got)
    assert receiver.got[0][1]["status"] == "error" and "busy" in receiver.got[0][1]["error"]["message"]


# -- multitask_strategy ----------------------------------------------------------------------------


@pytest.mark.trial
def test_a_rollback_deletes_the_runs_that_it_stops(thread, gates):
    gates.close("slow")
    first = thread.begin("1", topic="slow")
    waiting = thread.begin("2")
    assert gates.reached["slow"].wait(30)
    last = thread.begin("3", multitask_strategy="rollback")
    thread.reaches(last, "success")
    assert thread.log() == ["3", "a", "b"]
    for run in (first, waiting):
        thread.reaches(run, 404)


@pytest.mark.trial
def test_a_rollback_keeps_a_delayed_run(thread):
    later = thread.begin("later", after_seconds=2)
    thread.reaches(thread.begin("now", multitask_strategy="rollback"), "success")
    assert thread.status(later) == "pending"
    thread.reaches(later, "success")
    assert thread.log() == ["now", "a", "b", "later", "a", "b"]


@pytest.mark.trial
def test_a_rollback_stops_runs_of_other_graphs(thread, gates):
    gates.close("slow")
    first = thread.begin("1", topic="slow", assistant="other")
    assert gates.reached["slow"].wait(30)
    thread.reaches(thread.begin("2", multitask_strategy="rollback"), "success")
    thread.reaches(first, 404)
    assert thread.log() == ["2", "a", "b"]


def test_reject_counts_runs_of_other_graphs_and_leaves_the_thread_as_it_is(thread, gates):
    gates.close("slow")
    first = thread.begin("1", topic="slow", assistant="other")
    before = thread.client.get(thread.place).json()["metadata"]
    refused = thread.post("2", multitask_strategy="reject")
    assert refused.status_code == 409 and "busy" in refused.json()["detail"]
    assert thread.client.get(thread.place).json()["metadata"] == before
    assert [run["run_id"] for run in thread.client.get(f"{thread.place}/runs").json()] == [first.rpartition("/")[2]]
    gates.open("slow")
    thread.reaches(first, "success")


@pytest.mark.trial
def test_a_rollback_that_is_refused_keeps_the_records_of_the_others(thread, gates):
    gates.close("slow")
    first = thread.begin("1", topic="slow")
    nested = {"checkpoint_ns": "x:1"}
    refused = thread.post("2", multitask_strategy="rollback", checkpoint=nested)
    assert refused.status_code == 422 and "checkpoint_ns" in refused.json()["detail"]
    gates.open("slow")
    thread.reaches(first, "success")


def test_a_run_that_is_refused_creates_no_thread(thread):
    sent = {**RUN, "if_not_exists": "create", "checkpoint": {"checkpoint_ns": "x:1"}}
    assert thread.client.post("/threads/new/runs", json=sent).status_code == 422
    assert thread.client.get("/threads/new").status_code == 404


@pytest.mark.trial
def test_the_record_of_a_replaced_run_is_deleted_also_if_another_server_has_recorded_its_end(
    thread, postgres, gates, monkeypatch
):
    first = thread.begin_slow(gates, "1")
    note = FleetRuns._note_replaced
    with served(postgres, gates, workers=0) as other:

        async def note_late(runs, record):
            await asyncio.to_thread(other.reaches, first, "interrupted")
            await note(runs, record)

        monkeypatch.setattr(FleetRuns, "_note_replaced", note_late)
        thread.reaches(thread.begin("2", multitask_strategy="rollback"), "success")
    assert thread.status(first) == 404
    assert thread.log() == ["2", "a", "b"]


@pytest.mark.parametrize("what", ["outcome", "chunk"])
def test_a_run_whose_results_no_server_can_read_ends(thread, monkeypatch, what):
    """They hold a type that the server does not know."""
    read = JobCodec.read

    def refuse(codec, kind, *words):
        if kind == what:
            raise UnknownTypeError("app.Plan")
        return read(codec, kind, *words)

    monkeypatch.setattr(JobCodec, "read", refuse)
    run = thread.begin("in")
    thread.reaches(run, "error" if what == "outcome" else "success")
    with thread.client.stream("GET", f"{run}/stream", headers={"Last-Event-ID": "-1"}) as stream:
        assert "no type is registered as 'app.Plan'" in stream.read().decode()
