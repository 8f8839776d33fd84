"""Schedules: workers submit a job at each planned time, once, whichever worker finds it due."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
import pytest
from kit import cluster
from kit.fleet import counting, until, working

from stategraph.__main__ import main
from stategraph.checkpoint import UnserializableError
from stategraph.checkpoint.encryption import Encryption
from stategraph.checkpoint.integrity import Integrity
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.serde import Serializer
from stategraph.workers import Queue
from stategraph.workers import scheduler as scheduler_module
from stategraph.workers.jobs import JobCodec
from stategraph.workers.scheduler import Scheduler
from stategraph.workers.session import Terms, WorkerSession

pytest.importorskip("cronsim")
postgres = cluster.emptied
MINUTE = timedelta(minutes=1)
ONE = {"log": [], "left": 1}


@pytest.fixture
def queue(postgres):
    with PostgresSaver.from_conn_string(postgres) as saver:
        saver.setup()
    with Queue.from_conn_string(postgres, counting) as opened:
        opened.setup()
        yield opened


@pytest.fixture
def session(postgres, queue):
    opened = open_session(postgres)
    yield opened
    opened.close()


def open_session(url, graph="counting", integrity: Integrity | None = None):
    """What a worker has, without its thread."""
    codec = JobCodec(counting.serde if graph == "counting" else Serializer(), integrity or Integrity())
    return WorkerSession(url, Terms(graph, "tester", 3, 20), scheduler=Scheduler(graph, codec)).open()


def miss(url, minutes, name="daily"):
    """As if no worker had been there since: the first planned time of a schedule for each minute."""
    with psycopg.connect(url, autocommit=True) as admin:
        ((first,), *_) = admin.execute(
            "UPDATE stategraph_schedules SET next_at = date_trunc('minute', now()) - make_interval(mins => %s) "
            "WHERE name = %s RETURNING next_at", [minutes, name.encode()],
        ).fetchall()  # fmt: skip
    return first.astimezone(UTC)


def runs(name, first, last):
    """The run ids of a schedule for each minute, between two planned times."""
    number = (last - first) // MINUTE + 1
    return [f"{name}@{first + index * MINUTE:%Y-%m-%dT%H:%M:%SZ}" for index in range(number)]


def last_fired(queue):
    (schedule,) = queue.schedules()
    assert schedule.last_at is not None and schedule.next_at == schedule.last_at + MINUTE
    return schedule.last_at


def test_each_planned_time_is_a_job_with_the_schedules_input(drive, postgres, queue):
    when = drive.call(queue, "schedule", "daily", "* * * * *", {"log": ["given"], "left": 2}, missed="all", priority=3)
    assert timedelta() < when - datetime.now(UTC) <= MINUTE
    first = miss(postgres, 2)
    with working(counting, postgres):
        until(lambda: queue.counts().get("counting", {}).get("done", 0) >= 3)
    expected = runs("daily", first, last_fired(queue))
    jobs = queue.jobs(("done",))
    assert [job.run_id for job in jobs] == expected
    assert [job.thread_id for job in jobs] == [f"counting/{run}" for run in expected], "a thread of its own"
    assert {job.priority for job in jobs} == {3}
    assert queue.result(jobs[0].thread_id).unwrap()["log"] == ["given", 1]


def test_a_worker_fires_a_schedule_on_time_though_it_polls_every_five_minutes(postgres, queue):
    queue.schedule("daily", "* * * * *", ONE)
    with working(counting, postgres, poll=300.0):
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute("UPDATE stategraph_schedules SET next_at = date_trunc('second', now()) + interval '1 s'")
        queue.submit("t", ONE)  # it looks when it has nothing to do
        until(lambda: queue.counts().get("counting", {}).get("done", 0) == 2)


@pytest.mark.parametrize("missed", ["one", "all", "none"])
def test_what_becomes_of_missed_times(missed, postgres, queue, session):
    queue.schedule("daily", "* * * * *", ONE, missed=missed)
    first = miss(postgres, 5)
    found = [job.name.run_id for job in session.claim(100)]
    (schedule,) = queue.schedules()
    last = schedule.next_at - MINUTE
    expected = runs("daily", first, last)
    # The newest is less than a minute ago, so nobody was late for it.
    assert found == (expected if missed == "all" else expected[-1:])


def test_a_missed_time_is_fired_once_or_skipped_by_option(postgres, queue, session):
    for missed in ("one", "none"):
        queue.schedule(missed, "0 4 1 1 *", ONE, missed=missed)
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("UPDATE stategraph_schedules SET next_at = '2020-01-01T04:00Z'")
    found = [job.name.run_id for job in session.claim(100)]
    year = datetime.now(UTC).year
    assert found == [f"one@{year}-01-01T04:00:00Z"]
    assert [(each.name, each.next_at.year) for each in queue.schedules()] == [("none", year + 1), ("one", year + 1)]
    assert next(each.last_at for each in queue.schedules()) is None


def test_more_missed_times_than_go_into_one_transaction(postgres, queue, session, monkeypatch):
    monkeypatch.setattr(scheduler_module, "MOST_AT_ONCE", 4)
    queue.schedule("daily", "* * * * *", ONE, missed="all")
    first = miss(postgres, 10)
    found = [job.name.run_id for job in session.claim(100)]
    assert found == runs("daily", first, last_fired(queue))


def test_however_many_workers_find_it_due_each_time_is_fired_once(postgres, queue):
    sessions = [open_session(postgres) for _ in range(4)]
    try:
        queue.schedule("daily", "* * * * *", ONE, missed="all")
        for _ in range(10):
            first = miss(postgres, 3)
            with ThreadPoolExecutor(4) as pool:
                claimed = [*pool.map(lambda session: session.claim(100), sessions)]
            for session, jobs in zip(sessions, claimed, strict=True):
                assert all(job.worker == session.worker for job in jobs)
            found = sorted(job.run_id for job in queue.jobs(("running", "waiting"), limit=1000))
            assert found == runs("daily", first, last_fired(queue))
            with psycopg.connect(postgres, autocommit=True) as admin:
                admin.execute("DELETE FROM stategraph_jobs")
    finally:
        for session in sessions:
            session.close()


def test_a_thread_that_is_named_has_all_jobs_one_after_the_other(postgres, queue, session):
    queue.schedule("daily", "* * * * *", ONE, missed="all", thread_id="news")
    miss(postgres, 3)
    assert len(session.claim(100)) == 1
    assert {job.thread_id for job in queue.jobs()} == {"news"}


def test_two_graphs_may_have_schedules_of_one_name(postgres, queue, session):
    with Queue.from_conn_string(postgres, "another") as other:
        other.schedule("daily", "* * * * *", ONE, missed="one")
        queue.schedule("daily", "* * * * *", ONE, missed="one")
        assert [each.graph for each in queue.schedules()] == ["another", "counting"]
        miss(postgres, 3)
        second = open_session(postgres, "another")
        assert len(session.claim(100)) == len(second.claim(100)) == 1
        second.close()
        assert other.unschedule("daily")
        assert [each.graph for each in queue.schedules()] == ["counting"]


def test_an_unchanged_schedule_continues_and_a_changed_one_restarts(postgres, queue):
    queue.schedule("daily", "* * * * *", ONE)
    first = miss(postgres, 5)
    assert queue.schedule("daily", "* * * * *", {"log": [], "left": 2}, missed="all") == first
    assert queue.schedules()[0].missed == "all"
    moved = queue.schedule("daily", "0 4 * * *", ONE, tz="Europe/Berlin")
    assert moved > datetime.now(UTC) and moved.astimezone(ZoneInfo("Europe/Berlin")).hour == 4
    assert [each.tz for each in queue.schedules()] == ["Europe/Berlin"]


def test_a_schedule_that_changes_while_it_is_fired_is_not_fired_as_it_was(postgres, queue, session, monkeypatch):
    queue.schedule("daily", "* * * * *", ONE, priority=1)
    miss(postgres, 3)
    find = scheduler_module.find_moments

    def change(*given):
        monkeypatch.setattr(scheduler_module, "find_moments", find)
        queue.schedule("daily", "* * * * *", ONE, priority=2)
        return find(*given)

    monkeypatch.setattr(scheduler_module, "find_moments", change)
    claimed = session.claim(100) or session.claim(100)
    assert len(claimed) == 1
    assert [job.priority for job in queue.jobs()] == [2]


def test_what_is_no_longer_scheduled_fires_no_more(postgres, queue, session):
    queue.schedule("daily", "* * * * *", ONE)
    miss(postgres, 3)
    assert queue.unschedule("daily") and not queue.unschedule("daily")
    assert session.claim(100) == [] and queue.schedules() == []


@pytest.mark.parametrize(("name", "cron", "more", "told"), [
    ("", "* * * * *", {}, "a schedule's name must have 1 to 1000 bytes"),
    (5, "* * * * *", {}, "a schedule's name must be a string"),
    ("daily", "* * *", {}, "cron must have 5 fields"),
    ("daily", "* * * * *", {"tz": "Mars"}, "tz must be the name of a time zone"),
    ("daily", "* * * * *", {"missed": "two"}, "missed must be one of one, all, none, got 'two'"),
    ("daily", "* * * * *", {"thread_id": ""}, "thread_id must be a non-empty string"),
    ("daily", "* * * * *", {"durability": "often"}, "durability must be"),
    ("daily", "* * * * *", {"config": {"run_id": "r"}}, "must not have a run_id"),
])  # fmt: skip
def test_an_invalid_schedule_is_refused_at_once(name, cron, more, told, queue):
    with pytest.raises((TypeError, ValueError), match=told):
        queue.schedule(name, cron, ONE, **more)
    assert queue.schedules() == []


def test_an_input_that_cannot_be_stored_is_an_error_at_once(queue):
    with pytest.raises(UnserializableError):
        queue.schedule("daily", "* * * * *", {"log": [object()]})


def test_what_one_worker_cannot_fire_another_can(postgres, queue, caplog):
    """It is told once, keeps no worker busy, and holds up no other schedule."""
    secret = Encryption(bytes(32))
    queue.schedule("daily", "* * * * *", ONE)
    with Queue.from_conn_string(postgres, counting, integrity=secret) as locked:
        locked.schedule("secret", "* * * * *", ONE)
    miss(postgres, 3)
    miss(postgres, 4, "secret")
    plain = open_session(postgres)
    knows = open_session(postgres, integrity=secret)
    with caplog.at_level(logging.ERROR):
        assert [job.name.run_id[:5] for job in plain.claim(100)] == ["daily"]
        assert plain.claim(100) == []
        plain.watch()
    assert [record.message[:33] for record in caplog.records] == ["the schedule 'secret' cannot be f"]
    assert plain._next_wake > 0
    assert [job.name.run_id[:6] for job in knows.claim(100)] == ["secret"]
    plain.close()
    knows.close()


def test_the_command_line_shows_and_removes_schedules(postgres, queue, capsys):
    queue.schedule("daily", "30 7 * * 1-5", ONE, tz="Europe/Berlin")
    (schedule,) = queue.schedules()
    look = ["queue", "--db", postgres]
    assert main(look) == 0
    shown = capsys.readouterr().out
    assert f"schedule daily\tcounting\t30 7 * * 1-5 (Europe/Berlin)\tnext {schedule.next_at.isoformat()}" in shown
    assert main([*look, "--unschedule", "daily", "--as", "another"]) == 0
    assert "there is no such schedule" in capsys.readouterr().out
    assert main([*look, "--unschedule", "daily"]) == 0
    assert "daily: no longer a schedule" in capsys.readouterr().out
    assert queue.schedules() == []


def test_the_command_line_asks_which_of_two_is_meant(postgres, queue, capsys):
    with Queue.from_conn_string(postgres, "another") as other:
        other.schedule("daily", "0 0 * * *", ONE)
        queue.schedule("daily", "0 0 * * *", ONE)
    with pytest.raises(SystemExit):
        main(["queue", "--db", postgres, "--unschedule", "daily"])
    assert "several graphs have the schedule 'daily'" in capsys.readouterr().err
    assert len(queue.schedules()) == 2


def test_a_schedule_resumes_at_once_after_the_database_clock_was_ahead(postgres, queue, session):
    """By ten years when it fired last; it is the same if the clock is put back by ten years now."""
    queue.schedule("daily", "* * * * *", ONE)
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(
            "UPDATE stategraph_schedules SET "
            "next_at = date_trunc('minute', now()) + interval '10 years 1 minute', "
            "last_at = date_trunc('minute', now()) + interval '10 years'"
        )
    assert session.claim(100) == []
    (schedule,) = queue.schedules()
    assert timedelta() < schedule.next_at - datetime.now(UTC) <= MINUTE
    first = miss(postgres, 0)
    assert [job.name.run_id for job in session.claim(100)] == runs("daily", first, first)
