"""Neighbors cannot stop a fleet: a role of the database without rights on the tables, a local process without the key,
a node's own child that holds what was its worker's."""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Client

import psycopg
import pytest
from kit.drive import run_threads
from kit.fleet import counting, until, working
from kit.graphs import chain_of

from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.executors import pools
from stategraph.workers import Queue
from stategraph.workers import session as session_module
from stategraph.workers import waiting as waiting_module
from stategraph.workers.session import Terms, WorkerSession

TERMS = Terms("counting", "tester", 3, 20)
GIVEN = {"log": [], "left": 2}


@pytest.fixture
def neighbor(postgres):
    """A role that may connect, and nothing else."""
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("DO $$ BEGIN CREATE ROLE neighbor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with psycopg.connect(f"{postgres} user=neighbor", autocommit=True) as connection:
        yield connection


@pytest.fixture
def queue(postgres):
    with PostgresSaver.from_conn_string(postgres) as saver, Queue.from_conn_string(postgres, counting) as opened:
        saver.setup()
        opened.setup()
        yield opened


def test_the_neighbor_has_no_rights(queue, neighbor):
    with pytest.raises(psycopg.errors.Error):
        neighbor.execute("SELECT * FROM stategraph_jobs")


def test_notifications_of_other_roles_wake_and_end_nothing(
    postgres, queue, neighbor, monkeypatch,
    caplog,
):  # fmt: skip
    monkeypatch.setattr(waiting_module, "POLL", 300.0)
    with working(counting, postgres, poll=300.0):
        until(queue.workers)
        for number, payload in enumerate(["", "x", "-", "9" * 7000, "1.5", "ü", "7"]):
            woken = threading.Event()
            with queue._listener.notify(10_000 + number, woken.set):
                neighbor.execute("SELECT pg_notify('stategraph_ended', %s), pg_notify('stategraph_work', %s)", [payload] * 2)
                neighbor.execute("SELECT pg_notify('stategraph_ended', %s)", [str(10_000 + number)])
                assert woken.wait(30), f"nobody listens any more after {payload!r}"
            queue.submit("t", GIVEN)
            assert queue.result("t", wait=30).status == "done"
    assert "did not come from a worker" in caplog.text


def test_a_job_claimed_while_a_client_starts_to_wait_is_noticed(postgres, queue, monkeypatch):
    """Whoever begins to wait holds the job's row for a moment, and a claim passes over rows that are held."""
    monkeypatch.setattr(waiting_module, "POLL", 300.0)
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$")
        admin.execute("""CREATE TRIGGER slow AFTER UPDATE ON stategraph_jobs FOR EACH ROW
            WHEN (NEW.awaited AND NOT OLD.awaited) EXECUTE FUNCTION dawdle()""")
        queue.submit("t", GIVEN)
        found = []
        waiter = threading.Thread(target=lambda: found.append(queue.result("t", wait=30).status))
        waiter.start()
        held = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        until(lambda: admin.execute(held).fetchone() == (1,))
        with working(counting, postgres, poll=300.0):
            waiter.join()
    assert found == ["done"]


def test_a_notification_received_with_a_response_is_noticed(postgres, queue):
    """libpq has read it behind the answer to a statement, so the socket has nothing more to read."""
    wake, waker = socket.socketpair()
    with wake, waker, closing(WorkerSession(postgres, TERMS).open()) as session:
        assert session.claim(1) == [], "from now on it knows that nothing comes due"
        queue.submit("t", GIVEN)
        connection = session._connection
        assert connection is not None and select.select([connection.pgconn.socket], [], [], 30)[0]
        connection.pgconn.consume_input()
        late = threading.Timer(5, waker.send, [b"!"])
        late.start()
        session.wait(wake, 60)
        late.cancel()
        assert not select.select([wake], [], [], 0)[0], "it was slept over"


def test_a_lock_held_by_a_neighbor_is_not_waited_for(
    postgres, queue, neighbor, monkeypatch,
    caplog,
):  # fmt: skip
    neighbor.execute("SELECT pg_advisory_lock(4711)")
    keys = iter([4711, 4711, 4712])
    monkeypatch.setattr(session_module, "randbits", lambda bits: next(keys))
    with closing(WorkerSession(postgres, TERMS).open()) as session:
        assert session.worker and "chooses another" in caplog.text


def test_a_neighbor_that_waits_for_a_workers_lock_does_not_inherit_its_claims(postgres, queue, neighbor):
    queue.submit("t", GIVEN)
    dead = WorkerSession(postgres, TERMS).open()
    assert len(dead.claim(1)) == 1
    with psycopg.connect(postgres, autocommit=True) as admin, closing(WorkerSession(postgres, TERMS).open()) as other:
        ((key,),) = admin.execute("SELECT key FROM stategraph_workers WHERE id = %s", [dead.worker]).fetchall()
        thread = threading.Thread(target=neighbor.execute, args=("SELECT pg_advisory_lock(%s)", [key]))
        thread.start()
        until(lambda: admin.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
        assert other.watch() == 0, "it lives"
        dead._connection.close()
        thread.join(30)
        assert until(other.watch) == 1
        assert len(other.claim(1)) == 1


def test_other_sessions_may_hold_any_lock_while_tables_are_made_and_limited_jobs_run(postgres, neighbor):
    """The keys that were used before: a neighbor knows them from the source."""
    neighbor.execute("SELECT pg_advisory_lock(7290817265301847)")
    with Queue.from_conn_string(postgres, counting, timeout=5) as queue:
        queue.setup()
        held = neighbor.execute(
            "SELECT pg_advisory_lock(c.oid::integer, n) FROM pg_class AS c, pg_namespace AS s, generate_series(1, 20) n "
            "WHERE relname IN ('stategraph_workers', 'stategraph_limits') AND c.relnamespace = s.oid "
            "AND nspname = current_setting('search_path')"
        )
        assert held.rowcount == 40
        queue.limit(1)
        with working(counting, postgres):
            queue.submit("t", GIVEN)
            assert queue.result("t", wait=30).status == "done"


def test_many_that_make_the_tables_at_once_make_them_once(postgres):
    gate, failed = threading.Barrier(12), []

    def start(number):
        maker = Queue(postgres, "any") if number % 2 else PostgresSaver(postgres)
        gate.wait()
        try:
            maker.setup()
        except Exception as error:
            failed.append(error)
        maker.close()

    threads = [threading.Thread(target=start, args=(number,)) for number in range(12)]
    run_threads(threads)
    assert not failed
    with psycopg.connect(postgres) as admin:
        rows = admin.execute("SELECT part, count(*) FROM stategraph_migrations GROUP BY part").fetchall()
    assert len(rows) == 2


def test_evicting_a_dead_worker_terminates_no_other_session(postgres, queue):
    """Its backend's number may be that of another session by now."""
    with psycopg.connect(postgres, autocommit=True) as innocent, closing(WorkerSession(postgres, TERMS).open()) as session:
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute("UPDATE stategraph_workers SET backend = %s", [innocent.info.backend_pid])
        queue.evict(session.worker)
        assert innocent.execute("SELECT 1").fetchone() == (1,)


# -- the mailbox of pools ---------------------------------------------------------------------------------------


def speaks(state, writer):
    writer("hello")
    return {"n": 1}


@pytest.mark.trial
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="a mailbox is a socket of the file system")
def test_a_silent_or_invalid_connection_blocks_no_other(monkeypatch, caplog):
    address = pools.open_mailbox().address
    silent, babbling = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    builder = chain_of(dict, speaks=speaks)
    with closing(silent), closing(babbling), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        silent.connect(address)
        babbling.connect(address)
        babbling.sendall(b"\0\0\0\5hello")
        with pytest.raises(Exception):  # noqa: B017  # what it is depends on the version of Python
            Client(address, authkey=b"wrong")
        app = builder.compile(executor=pool)
        assert [*app.stream({}, stream_mode="custom")] == ["hello"]
        until(lambda: "it has no key" in caplog.text)
    monkeypatch.setattr(pools, "SECONDS_FOR_KEY", 0.01)
    with caplog.at_level(logging.WARNING), closing(socket.socket(socket.AF_UNIX)) as late:
        late.connect(address)
        until(lambda: "no answer within" in caplog.text)


# -- children of nodes ------------------------------------------------------------------------------------------

FORKS = """
import os, signal, sys, time
from kit import fleet
from stategraph.workers import Worker

def step(state):
    child = os.fork()
    if child == 0:
        signal.pause()
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(str(child))
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    time.sleep(600)

Worker(fleet.looped(step), sys.argv[1], poll=0.05).run()
"""


@pytest.mark.trial
def test_a_child_that_a_node_forked_does_not_keep_its_dead_workers_claims(postgres, queue, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    queue.submit("t", GIVEN)
    noted = tmp_path / "child"
    with subprocess.Popen([sys.executable, "-c", FORKS, postgres, str(noted)], start_new_session=True) as process:
        until(noted.exists)
        child = int(noted.read_text())
        try:
            process.kill()
            process.wait(30)
            os.kill(child, 0)  # it lives
            with working(counting, postgres):
                assert queue.result("t", wait=30).status == "done"
        finally:
            os.kill(child, signal.SIGKILL)
