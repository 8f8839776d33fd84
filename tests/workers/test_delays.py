"""Delayed jobs: claimed at their time by the database's clock, and not before."""

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from kit import cluster
from kit.fleet import all_ended, counting, until, working

from stategraph.__main__ import main
from stategraph.workers import Queue, When, tables
from stategraph.workers.jobs import JobEnd
from stategraph.workers.session import MOST_WOKEN, Terms, WorkerSession

postgres = cluster.emptied
DAY = timedelta(days=1)
LONG = {"poll": 300.0}
"""No looks in between: whatever wakes the worker is a notice or its own timer."""


def one(**more):
    """An input of one step."""
    return {"log": [], "left": 1, **more}


def let_pass(url, run_id, seconds=0):
    """As if so much time had passed: a job is due that many seconds from now."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "UPDATE stategraph_jobs SET run_at = now() + make_interval(secs => %s) "
            "WHERE run_id = %s", [seconds, run_id.encode()],
        )  # fmt: skip


def claims(session, room=10):
    return [job.name.run_id for job in session.claim(room)]


def test_a_delayed_job_is_claimed_at_its_time_and_not_before(drive, postgres, queue, session):
    drive.call(queue, "submit", "t", one(), run_id="soon", when=When(delay=60))
    drive.call(queue, "submit", "u", one(), run_id="late", when=When(at=datetime.now(UTC) + DAY))
    assert claims(session) == []
    session.watch()
    assert claims(session) == []
    found = queue.result("t", wait=0)
    assert found.status == "delayed" and found.open and found.run_at is not None
    assert timedelta() < found.run_at - datetime.now(UTC) <= timedelta(seconds=60)
    let_pass(postgres, "soon")
    session.watch()
    assert claims(session) == ["soon"]
    assert queue.counts() == {"counting": {"delayed": 1, "running": 1}}


@pytest.mark.parametrize("when", [{"delay": 0}, {"at": datetime(2020, 1, 1, tzinfo=UTC)}])
def test_a_time_that_is_over_means_at_once(when, queue, postgres):
    with working(counting, postgres, **LONG):
        queue.submit("t", one(), when=When(**when))
        assert queue.result("t", wait=30).status == "done"


def test_a_worker_wakes_in_time_though_it_polls_every_five_minutes(postgres, queue):
    with working(counting, postgres, **LONG):
        queue.submit("now", one())
        assert queue.result("now", wait=30).status == "done"
        queue.submit("t", one(), when=When(delay=0.3))
        queue.submit("u", one(), when=When(at=datetime.now(UTC) + timedelta(seconds=0.2)))
        assert queue.result("t", wait=30).status == "done"
        assert queue.result("u", wait=30).status == "done"


def test_a_worker_that_starts_later_knows_what_is_delayed(postgres, queue):
    queue.submit("t", one(), when=When(delay=0.3))
    with working(counting, postgres, **LONG):
        assert queue.result("t", wait=30).status == "done"


def test_a_worker_that_waits_for_a_time_asks_the_database_nothing_meanwhile(session, queue, monkeypatch):
    queue.submit("t", one(), when=When(delay=0.3))
    sent = []
    run = WorkerSession._rows
    monkeypatch.setattr(
        WorkerSession, "_rows", lambda self, name, *values: sent.append(name) or run(self, name, *values)
    )
    near, far = socket.socketpair()
    assert claims(session) == []
    while not (found := claims(session)):
        session.wait(near, 300.0)
    near.close()
    far.close()
    assert len(found) == 1
    assert len(sent) <= 8, sent


def test_a_backlog_does_not_starve_a_delayed_job(postgres, queue, session):
    """While each claim finds work, no claim asks whose time has come; the look does."""
    queue.submit("t", one(), run_id="timed", when=When(delay=60), priority=1)
    queue.submit_many([(f"u{number}", one()) for number in range(4)], run_ids=list("abcd"))
    first = session.claim(1)
    session.watch()
    let_pass(postgres, "timed")
    session.watch()  # no claim has asked since the last look
    ended = [JobEnd(job.id, job.attempt, "cancelled") for job in first]
    assert [job.name.run_id for job in session.end_and_claim(ended, 1)] == ["timed"]


def test_a_full_worker_makes_jobs_ready_for_others_and_does_not_spin(postgres, queue, session):
    other = WorkerSession(postgres, Terms("counting", "other", 3, 20)).open()
    near, far = socket.socketpair()
    try:
        assert claims(session) == [] and claims(other) == []
        queue.submit("t", one(), when=When(delay=0.2))
        until(lambda: (session.wait(near, 0.5), queue.counts()["counting"].get("waiting"))[1])
        other.wait(near, 300.0)  # it is notified
        assert len(claims(other)) == 1
    finally:
        near.close()
        far.close()
        other.close()


def test_a_delayed_job_blocks_no_other_job_of_its_thread(postgres, queue, session):
    queue.submit("t", one(), run_id="later", when=When(delay=60))
    queue.submit("t", one(), run_id="now")
    (now,) = session.claim(10)
    assert now.name.run_id == "now"
    let_pass(postgres, "later")
    session.watch()
    assert claims(session) == [], "they still run one after the other"
    session.end([JobEnd(now.id, now.attempt, "cancelled")])
    assert claims(session) == ["later"]


@pytest.mark.parametrize("end", ["waiting", "sleeping"])
def test_a_job_that_has_begun_goes_before_one_that_was_delayed(end, postgres, queue, session):
    queue.submit("t", one(), run_id="later", when=When(delay=60))
    queue.submit("t", one(), run_id="now")
    (now,) = session.claim(10)
    session.watch()
    let_pass(postgres, "later")
    session.watch()  # no claim has asked since the last look
    at = (datetime.now(UTC) + DAY).timestamp() if end == "sleeping" else None
    session.end([JobEnd(now.id, now.attempt, end, run_at=at)])  # "waiting": as after its worker's death
    assert claims(session) == ([] if end == "sleeping" else ["now"])


def test_those_that_are_due_go_by_priority_then_as_submitted(postgres, queue, session):
    queue.submit("t", one(), run_id="first", when=When(delay=90))
    queue.submit("u", one(), run_id="second", when=When(delay=60))
    queue.submit("v", one(), run_id="urgent", when=When(delay=120), priority=5)
    for run_id in ("second", "urgent", "first"):
        let_pass(postgres, run_id)
    session.watch()
    assert claims(session) == ["urgent", "first", "second"]


def test_a_job_is_put_back_until_a_time_and_its_thread_waits(postgres, queue, session):
    queue.submit("t", one(), run_id="sleeper")
    queue.submit("t", one(), run_id="behind")
    (job,) = session.claim(10)
    wake_at = datetime.now(UTC) + DAY
    session.end([JobEnd(job.id, job.attempt, "sleeping", run_at=wake_at.timestamp())])
    found = queue.result("t", run_id="sleeper", wait=0)
    assert (found.status, found.open, found.run_at) == ("sleeping", True, wake_at)
    assert claims(session) == []
    queue.submit("t", one(), run_id="urgent", priority=1)
    (urgent,) = session.claim(10)
    assert urgent.name.run_id == "urgent", "a higher priority goes before one that has begun, as ever"
    session.end([JobEnd(urgent.id, urgent.attempt, "cancelled")])
    let_pass(postgres, "sleeper")
    session.watch()
    (job,) = session.claim(10)
    assert (job.name.run_id, job.attempt) == ("sleeper", 2)


@pytest.mark.parametrize("state", ["delayed", "sleeping"])
def test_a_job_that_waits_for_its_time_can_be_cancelled(state, queue, session):
    queue.submit("t", one(), run_id="r", when=When(delay=60 if state == "delayed" else None))
    for job in session.claim(1):
        later = (datetime.now(UTC) + DAY).timestamp()
        session.end([JobEnd(job.id, job.attempt, "sleeping", run_at=later)])
    assert queue.result("t", wait=0).status == state
    assert queue.cancel("r")
    assert queue.result("t", wait=30).status == "cancelled"


def test_a_job_cancelled_while_it_ran_does_not_go_to_sleep(queue, session):
    queue.submit("t", one(), run_id="r")
    (job,) = session.claim(1)
    assert queue.cancel("r")
    later = (datetime.now(UTC) + DAY).timestamp()
    session.end([JobEnd(job.id, job.attempt, "sleeping", run_at=later)])
    assert queue.result("t", wait=0).status == "cancelled"


def test_more_than_are_woken_at_once_are_all_woken(queue, session, monkeypatch, postgres):
    monkeypatch.setattr("stategraph.workers.session.MOST_WOKEN", 2)
    queue.submit_many([(f"t{number}", one()) for number in range(5)], when=When(delay=0.05))
    with working(counting, postgres):
        until(lambda: all_ended(queue) and queue.counts() == {"counting": {"done": 5}})
    assert MOST_WOKEN > 100


# -- debounce ---------------------------------------------------------------------------------------


def test_a_newer_input_takes_the_place_of_one_that_waits_and_is_run_once(drive, postgres, queue):
    first = drive.call(queue, "submit", "t", one(log=["old"]), when=When(debounce=60))
    due = queue.result("t", wait=0).run_at
    again = drive.call(queue, "submit", "t", one(log=["new"], left=2), when=When(debounce=0.1), priority=7)
    assert again == first, "all submissions that it stands for have its run id"
    (job,) = queue.jobs()
    assert (job.status, job.priority) == ("delayed", 7)
    assert job.run_at is not None and due is not None and job.run_at < due
    with working(counting, postgres, **LONG):
        assert queue.result("t", run_id=first, wait=30).unwrap()["log"] == ["new", 1]
    assert queue.counts() == {"counting": {"done": 1}}


def test_however_many_follow_it_runs_after_debounce_max(postgres, queue):
    queue.submit("t", one(), when=When(debounce=5, debounce_max=60))
    with psycopg.connect(postgres, autocommit=True) as admin:
        for passed, status in ((56, "delayed"), (61, "waiting")):
            admin.execute(
                "UPDATE stategraph_jobs SET debounced_since = now() - make_interval(secs => %s)",
                [passed],
            )
            queue.submit("t", one(), when=When(debounce=50, debounce_max=60))
            (job,) = queue.jobs()
            assert job.status == status
            assert job.run_at is not None and job.run_at < datetime.now(UTC) + timedelta(seconds=5)


def test_only_one_that_waits_for_a_newer_input_and_was_not_started_is_replaced(postgres, queue, session):
    plain = queue.submit("t", one(), when=When(delay=60))
    other = queue.submit("u", one(), when=When(debounce=60))
    with Queue.from_conn_string(postgres, "another") as foreign:
        foreign.submit("t", one(), when=When(debounce=60))
    first = queue.submit("t", one(), when=When(debounce=60))
    assert len({plain, other, first, queue.submit("t", one(), when=When(debounce=60))}) == 3
    let_pass(postgres, first)
    session.watch()
    (started,) = session.claim(10)
    assert started.name.run_id == first
    second = queue.submit("t", one(), when=When(debounce=60))
    assert second != first, "that one has been started"
    session.end([JobEnd(started.id, started.attempt, "waiting")])
    assert queue.submit("t", one(), when=When(debounce=60)) == second, "and so it has when it was given back"


def test_concurrent_debounced_inputs_are_one_job(postgres, queue):
    with ThreadPoolExecutor(8) as pool:
        runs = [*pool.map(lambda number: queue.submit("t", one(log=[number]), when=When(debounce=60)), range(40))]
    assert len(set(runs)) == 1
    assert len(queue.jobs()) == 1


@pytest.mark.parametrize("more", [
    {"run_id": "r"}, {"delay": 1}, {"at": datetime(2030, 1, 1, tzinfo=UTC)}, {"debounce_max": 1}, {"debounce": -1},
    {"debounce": None, "debounce_max": 5},
])  # fmt: skip
def test_an_invalid_debounce_is_refused_at_once(more, queue):
    more = dict(more)
    with pytest.raises(ValueError, match="must"):
        run_id = more.pop("run_id", None)
        queue.submit("t", one(), run_id=run_id, when=When(**{"debounce": 5, **more}))
    assert queue.counts() == {}


# -- mistakes, notices, tables ---------------------------------------------------------------------


@pytest.mark.parametrize(("when", "told"), [
    ({"delay": -1}, "delay must be 0 seconds or more"),
    ({"delay": float("nan")}, "delay must be 0 seconds or more"),
    ({"delay": "5"}, "delay must be a number of seconds or a timedelta, got '5'"),
    ({"at": datetime(2030, 1, 1)}, "at must have a time zone"),
    ({"at": "tomorrow"}, "at must be a datetime, got 'tomorrow'"),
    ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "one of delay, at and debounce"),
])  # fmt: skip
def test_an_invalid_delay_is_refused_at_once(when, told, queue):
    with pytest.raises((TypeError, ValueError), match=told):
        queue.submit("t", one(), when=When(**when))
    assert queue.counts() == {}


def test_a_time_is_a_record_and_many_inputs_are_not_debounced(queue):
    with pytest.raises(TypeError, match=r"when must be a When such as When\(delay=60\), got 60"):
        queue.submit("t", one(), when=60)
    with pytest.raises(ValueError, match="submit_many cannot debounce"):
        queue.submit_many([("t", one())], when=When(debounce=1))
    assert queue.counts() == {}


@pytest.mark.parametrize("payload", ["+nan", "+-inf", "+", "+soon", "+1e400", "+-5"])
def test_notifications_of_any_role_keep_no_worker_busy(payload, postgres, queue, session):
    queue.submit("t", one(), when=When(delay=60))
    assert claims(session) == []
    before = session._next_wake
    session._on_notice(session._channel + payload.encode())
    assert session._next_wake == before


def test_tables_without_times_are_brought_up_to_date(postgres):
    """A queue of an earlier version: its jobs wait for no time."""
    with psycopg.connect(postgres, autocommit=True) as admin:
        with Queue.from_conn_string(postgres, counting) as queue:
            queue.submit("t", one())
        admin.execute("DROP INDEX stategraph_jobs_live, stategraph_jobs_timed, stategraph_jobs_debounced")
        admin.execute("DROP TABLE stategraph_schedules, stategraph_chunks, stategraph_versions")
        later = ("run_at", "debounced_since", "fairness_key", "turn", "version", "former")
        admin.execute("ALTER TABLE stategraph_jobs " + ", ".join(f"DROP COLUMN {each}" for each in later))
        admin.execute(
            "CREATE INDEX stategraph_jobs_waiting ON stategraph_jobs (graph, priority DESC, id) WHERE state = 'waiting'"
        )
        admin.execute("ALTER TABLE stategraph_workers DROP COLUMN versions")
        admin.execute(
            "CREATE INDEX stategraph_jobs_live ON stategraph_jobs (lane) "
            "WHERE state IN ('waiting', 'running', 'parked')"
        )
        admin.execute("DELETE FROM stategraph_migrations WHERE part = 'workers' AND version > 2")
        with Queue.from_conn_string(postgres, counting) as queue:
            (found,) = queue.jobs()
            assert (found.status, found.run_at) == ("waiting", None)
            queue.submit("u", one(), when=When(delay=0.1))
            with working(counting, postgres):
                assert queue.result("t", wait=30).status == "done"
                assert queue.result("u", wait=30).status == "done"


def test_the_command_line_shows_when_a_job_is_due(queue, postgres, capsys):
    queue.submit("t", one(), run_id="r", when=When(at=datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC)))
    assert main(["queue", "--db", postgres]) == 0
    shown = capsys.readouterr().out
    assert "counting: 1 delayed" in shown
    assert "r\tcounting\tt\tdelayed\tpriority 0\tat 2100-01-02T03:04:05+00:00" in shown


def test_delayed_jobs_however_many_are_in_no_index_that_a_claim_reads():
    waiting = [text for group in tables.MIGRATIONS for text in group if "INDEX stategraph_jobs_waiting\n" in text]
    assert len(waiting) == 2 and all("state = 'waiting'" in text for text in waiting)
