"""Behind PgBouncer in transaction mode: savers, stores and queues work by their URL alone; an error says what a
worker needs.
"""

import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from kit import cluster
from kit.drive import run_threads
from kit.fleet import QUICK, counting, until, working
from kit.graphs import thread_config

from stategraph.checkpoint import StorageError
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sql.postgres_wire import Patient, shares_sessions
from stategraph.store.postgres import PostgresStore
from stategraph.workers import Queue, Worker


@pytest.fixture
def database():
    """A connection string to a fresh database. Not a schema: PgBouncer does not pass `options` on."""
    server = cluster.shared()
    name = f"pooled_{os.urandom(4).hex()}"
    with psycopg.connect(server.address, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        yield server.address.replace("dbname=postgres", f"dbname={name}")
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]


@contextmanager
def bouncer(folder, mode):
    """The port of a PgBouncer before the tests' server, with fewer sessions than its clients want."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        if os.environ.get(cluster.REQUIRED):
            pytest.fail(f"pgbouncer is not installed, and {cluster.REQUIRED} is set")
        pytest.skip("pgbouncer is not installed")
    port = cluster.free_port()
    (folder / "users").write_text('"tester" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={cluster.shared().port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder / 'users'}\npool_mode = {mode}\ndefault_pool_size = 4\n"
    )
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    temporary = Path(tempfile.gettempdir())
    for path in (folder, *folder.parents):  # as many as pytest has made; it runs as another user
        if path == temporary or not path.is_relative_to(temporary):
            break
        path.chmod(0o755)
    with subprocess.Popen([program, "-q", str(folder / "pgbouncer.ini")], stderr=subprocess.DEVNULL, **user) as process:
        try:
            until(lambda: answers(port))
            yield port
        finally:
            process.kill()


def answers(port):
    try:
        psycopg.connect(f"host=127.0.0.1 port={port} user=tester dbname=postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def pooled(database, tmp_path):
    with bouncer(tmp_path, "transaction") as port:
        yield f"{database} port={port}"


def at_once(work, number=8):
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in range(number)]
    run_threads(threads)
    assert not failed


def test_a_saver_works_by_its_url_alone(pooled):
    with PostgresSaver.from_conn_string(pooled) as saver:
        app = counting.copy({"checkpointer": saver})

        def run(number):
            config = thread_config(f"t{number}")
            for _ in range(4):  # a statement is prepared when it is used for the sixth time
                assert app.invoke({"log": [], "left": 5}, config)["log"][:5] == [0, 1, 2, 3, 4]
            assert len([*saver.list(config)]) > 10
            saver.prune([f"t{number}"], keep_last=2)

        at_once(run)
        assert len([*saver.threads()]) == 8


def test_a_store_works_by_its_url_alone(pooled):
    with PostgresStore.from_conn_string(pooled) as store:

        def run(number):
            for key in range(20):
                store.put(("a", str(number)), str(key), {"n": key})
                found = store.get(("a", str(number)), str(key))
                assert found is not None and found.value == {"n": key}
            assert len(store.search(("a", str(number)), limit=100)) == 20

        at_once(run)
        assert len(store.list_namespaces(prefix=("a",))) == 8


def test_a_queue_works_by_its_url_alone_and_its_workers_by_the_servers_own(pooled, database):
    with Queue.from_conn_string(pooled, counting) as queue, working(counting, database):

        def run(number):
            for _ in range(3):
                queue.submit(f"t{number}", {"log": [], "left": 2})
                assert queue.result(f"t{number}", wait=60).status == "done"

        at_once(run)
        assert queue.counts() == {"counting": {"done": 24}}
        assert until(lambda: queue._listener._thread is None or not queue._listener._thread.is_alive()), "it polls"


def test_a_pooler_that_shares_sessions_is_found_whatever_it_has_lent_before(pooled):
    """It lends first what came back last: here not the session that the connection had."""

    taken = []

    def connect():
        with Patient.connect(pooled) as one, Patient.connect(pooled) as two:
            for each in () if taken else (one, two):
                each.execute("SELECT 1")
            one.commit()
        taken.append(True)
        return Patient.connect(pooled, autocommit=True)

    with Patient.connect(pooled, autocommit=True) as connection:
        assert shares_sessions(connection, connect)


def test_a_worker_says_that_it_needs_a_session_of_its_own(pooled):
    with pytest.raises(StorageError, match="a worker must have a session of its own .* give workers the server's own address"):
        Worker(counting, pooled, **QUICK).run()


def test_no_setting_of_ours_stays_in_a_session_that_others_get(pooled):
    with PostgresSaver.from_conn_string(pooled, timeout=7) as saver:
        saver.setup()
        with psycopg.connect(pooled, autocommit=True) as other:
            for _ in range(5):
                assert other.execute("SHOW statement_timeout").fetchone() == ("0",)


def test_an_unsupported_isolation_level_is_an_error(pooled, database):
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET default_transaction_isolation = 'repeatable read'")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="must be 'read committed', got 'repeatable read'"):
        PostgresSaver(pooled).setup()
    PostgresSaver(database).setup()


def test_a_pooler_in_session_mode_serves_workers_too(database, tmp_path):
    with bouncer(tmp_path, "session") as port:
        url = f"{database} port={port}"
        with Queue.from_conn_string(database, counting) as queue, working(counting, url, concurrency=1):
            queue.submit("t", {"log": [], "left": 2})
            assert queue.result("t", wait=60).status == "done"
