"""A job that is parked, because its workers died again and again, may be tried again or dropped: the records of its run
and its thread go along, whoever does it."""

import time
from contextlib import contextmanager

import httpx
import psycopg
import pytest
from kit.fleet import until
from receiver import receiver as receiver
from serving import flow_app, opened, serving

from stategraph.workers import Queue

ANN = {"x-user": "ann"}


class Fleet:
    """A server without workers, whose first run has been parked; and one with workers, if it is asked for."""

    def __init__(self, client, db, **more):
        self.client, self._db = client, db
        self.thread = self.client.post("/threads", json={}).json()["thread_id"]
        sent = {"assistant_id": "flow", "input": {"log": ["in"]}, **more}
        self.run = self.client.post(f"/threads/{self.thread}/runs", json=sent).json()["run_id"]
        self.park()
        self.sees("error", "error")
        assert "parked" in self.client.get(f"/threads/{self.thread}").json()["error"]["message"]

    def park(self):
        """As three deaths of workers would."""
        with psycopg.connect(self._db, autocommit=True) as direct:
            direct.execute("UPDATE stategraph_jobs SET state = 'parked', deaths = 3 WHERE state = 'waiting'")

    def sees(self, run, thread):
        """Wait until clients are shown these two statuses."""
        until = time.monotonic() + 20
        while (told := self.told()) != (run, thread):
            assert time.monotonic() < until, told
            time.sleep(0.02)

    def told(self):
        run = self.client.get(f"/threads/{self.thread}/runs/{self.run}").json()["status"]
        return run, self.client.get(f"/threads/{self.thread}").json()["status"]

    def runs_to_its_end(self, webhooks=None):
        """With a worker."""
        with served(self._db, 1, webhooks):
            self.sees("success", "idle")
        assert self.client.get(f"/threads/{self.thread}/state").json()["values"]["log"] == ["in", "a", "b"]


@contextmanager
def served(db, workers, webhooks=None):
    with (
        opened("postgres", db) as place,
        serving(flow_app(auth=_user, workers=workers, webhooks=webhooks or [], **place)) as url,
    ):
        yield url


def _user(request):
    return request.headers.get("x-user")


@pytest.fixture
def fleet(postgres):
    with served(postgres, workers=0) as url, httpx.Client(base_url=url, timeout=30, headers=ANN) as client:
        yield Fleet(client, postgres)


@pytest.mark.trial
def test_a_dead_letter_is_tried_again(fleet):
    assert fleet.client.post(f"/page/dead-letters/{fleet.run}/retry").status_code == 204
    assert fleet.told() == ("pending", "busy")
    assert fleet.client.get(f"/threads/{fleet.thread}").json()["error"] is None
    assert fleet.client.post(f"/page/dead-letters/{fleet.run}/retry").status_code == 404
    fleet.runs_to_its_end()


@pytest.mark.trial
def test_a_dead_letter_that_is_tried_again_may_be_parked_again(fleet):
    fleet.client.post(f"/page/dead-letters/{fleet.run}/retry").raise_for_status()
    fleet.park()
    fleet.sees("error", "error")
    fleet.client.post(f"/page/dead-letters/{fleet.run}/retry").raise_for_status()
    fleet.runs_to_its_end()


@pytest.mark.trial
def test_a_job_that_the_command_line_tries_again_opens_its_run(fleet, postgres):
    with Queue.from_conn_string(postgres, "flow") as queue:
        assert queue.retry(fleet.run)
    fleet.sees("pending", "busy")
    fleet.runs_to_its_end()


@pytest.mark.trial
def test_a_dead_letter_is_dropped_and_the_next_run_begins(fleet):
    thread, old = fleet.thread, fleet.run
    sent = {"assistant_id": "flow", "input": {"log": ["in"]}}
    fleet.run = fleet.client.post(f"/threads/{thread}/runs", json=sent).json()["run_id"]
    assert fleet.told() == ("pending", "busy")
    assert fleet.client.delete(f"/page/dead-letters/{old}").status_code == 204
    assert fleet.client.get(f"/threads/{thread}/runs/{old}").json()["status"] == "interrupted"
    assert fleet.client.delete(f"/page/dead-letters/{old}").status_code == 404
    fleet.runs_to_its_end()


@pytest.mark.parametrize("end", ["retry", "drop"])
def test_a_webhook_reports_that_a_run_is_parked(postgres, receiver, end):
    with served(postgres, 0, [receiver.place]) as url, httpx.Client(base_url=url, timeout=30, headers=ANN) as client:
        fleet = Fleet(client, postgres, webhook=receiver.place)
        until(lambda: receiver.got)
        assert receiver.got[0][1]["status"] == "error" and "parked" in receiver.got[0][1]["error"]["message"]
        if end == "retry":
            client.post(f"/page/dead-letters/{fleet.run}/retry").raise_for_status()
            fleet.runs_to_its_end([receiver.place])
            until(lambda: len(receiver.got) == 2)
            assert receiver.got[1][1]["status"] == "success"
        else:
            client.delete(f"/page/dead-letters/{fleet.run}").raise_for_status()
            assert fleet.told()[0] == "interrupted"
            assert client.get("/ok").status_code == 200 and len(receiver.got) == 1


def test_only_the_owner_of_the_thread_acts_on_its_dead_letters(fleet):
    for headers, status in (({"x-user": "bob"}, 404), ({"x-user": ""}, 401)):
        for method, end in (("POST", "/retry"), ("DELETE", "")):
            place = f"/page/dead-letters/{fleet.run}{end}"
            assert fleet.client.request(method, place, headers=headers).status_code == status
    assert fleet.told() == ("error", "error")


def test_a_deleted_thread_leaves_no_dead_letter(fleet, postgres):
    assert fleet.client.delete(f"/threads/{fleet.thread}").status_code == 204
    with Queue.from_conn_string(postgres, "flow") as queue:
        assert not queue.named(fleet.run), "its job is gone, too"


def test_a_dead_letter_that_is_tried_again_while_it_is_dropped_is_recorded_as_it_stands(fleet, postgres, monkeypatch):
    def cancel(self, run_id, **given):
        """As if another server retried the job just before, and it began at once: it is told to end, and goes on."""
        with psycopg.connect(postgres, autocommit=True) as direct:
            direct.execute("UPDATE stategraph_jobs SET state = 'running', deaths = 0 WHERE state = 'parked'")
        return True

    monkeypatch.setattr(Queue, "cancel", cancel)
    fleet.client.delete(f"/page/dead-letters/{fleet.run}")
    fleet.sees("running", "busy")
