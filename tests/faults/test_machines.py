"""Machines with a real network between them: whatever is cut off, for a while or permanently, nothing is lost or done
twice.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from kit import cluster, machines
from kit.drive import run_threads
from kit.fleet import Fleet, counting, judged, until
from kit.graphs import Log, graph_of, thread_config
from kit.machines import Host, Network
from psycopg import Connection

from stategraph.checkpoint import StorageError
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sql.postgres_server import ConnectionLostError
from stategraph.store.postgres import PostgresStore
from stategraph.workers import JobResult, Queue, listener

NOTICED = 25
"""Seconds after which TCP tells either side that the other one is gone."""

SLACK = 10
"""Seconds that are allowed on top, since this machine is busy."""


def five(pause=0.0):
    """An input of five steps."""
    return {"log": [], "left": 5, "pause": pause}


class Site:
    """A network with a server's machine in it.

    Attributes:
        desk: the machine at which the test itself sits.
    """

    def __init__(self, network: Network, server: Host, postgres: cluster.Cluster):
        self.network, self.server, self.postgres = network, server, postgres
        self.desk = network.host()

    def schema(self):
        return self.postgres.schema()

    def seen(self, host: Host):
        """How many connections with a machine the server believes to have; not one that was just being opened, which
        was not told yet what to do when nobody answers."""
        with psycopg.connect(self.postgres.console(self.postgres.address), autocommit=True) as console:
            text = "SELECT count(*) FROM pg_stat_activity WHERE client_addr = %s AND query <> ''"
            return int(console.execute(text, [host.address]).fetchall()[0][0])


@pytest.fixture(scope="module")
def built():
    machines.require()
    with Network() as network:
        server = network.host()
        with machines.postgres_on(server) as postgres:
            yield Site(network, server, postgres)


@pytest.fixture
def site(built):
    """For one test, with all cables plugged in."""
    with built.desk.inside():
        yield built
    built.network.remove(built.network.hosts[2:])
    for host in (built.desk, built.server):
        host.plug()


def took(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


def underway(workers, threads):
    """Whether so many threads have begun their second step."""
    return len({thread for thread, number, _ in workers.notes.read() if number}) == threads


# -- half a minute and longer -----------------------------------------------------------------------------------


@dataclass
class Story:
    """What became of machines of which nobody heard for half a minute. One took four jobs with it and another; a third,
    alone at its queue, came back.

    Attributes:
        elsewhere, unlocked, unseen: seconds until their jobs went on, a row that one had locked was free, and the
            server had forgotten its connections.
        moved, kept, after: the jobs that others went on with, that nobody took, and that came later.
        before, since: the checkpoints of the moved ones, before the one that was cut off was back, and long after.
        left: how that worker's process ended when it was told to.
    """

    elsewhere: float = 0.0
    unlocked: float = 0.0
    unseen: float = 0.0
    moved: list[JobResult] = field(default_factory=list)
    kept: list[JobResult] = field(default_factory=list)
    after: list[JobResult] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)
    since: list[Any] = field(default_factory=list)
    left: int | None = None


@pytest.fixture(scope="module")
def story(built, tmp_path_factory):
    """Told once for all tests of it, since it is long."""
    with built.desk.inside(), ExitStack() as stack:
        scene = Scene(built, tmp_path_factory.mktemp("notes"), stack)
        scene.begin()
        scene.cut_off()
        scene.come_back()
        return scene.story


class Scene:
    """Workers on machines: `lost` loses its power, `cut` is cut off and comes back, `stays` is started then; and
    `alone`, the only one of another queue, is cut off as well."""

    MOVED, KEPT, AFTER = ([f"{kind} {number}" for number in range(4)] for kind in ("moved", "kept", "after"))

    def __init__(self, site: Site, folder, stack):
        self.site, self.story, self.stack = site, Story(), stack
        self.lost, self.cut, self.stays, self.alone = (site.network.host() for _ in range(4))
        self.url = site.schema()
        self.queue, self.workers = self.opened(self.url, folder / "one", concurrency=2)
        self.other_queue, self.hermits = self.opened(site.schema(), folder / "other", concurrency=4)
        saver = stack.enter_context(PostgresSaver.from_conn_string(self.url, timeout=60))
        self.app = counting.copy({"checkpointer": saver})

    def opened(self, url, folder, **options):
        folder.mkdir()
        queue = self.stack.enter_context(Queue.from_conn_string(url, counting))
        queue.setup()
        return queue, self.stack.enter_context(Fleet(url, folder, **options))

    def begin(self):
        self.workers.start(self.lost)
        self.returning = self.workers.start(self.cut)
        self.hermits.start(self.alone)
        until(lambda: len(self.queue.workers()) == 2 and self.other_queue.workers())
        self.queue.submit_many([(name, five(0.6)) for name in self.MOVED])
        self.other_queue.submit_many([(name, five(0.6)) for name in self.KEPT])
        until(lambda: underway(self.workers, 4) and underway(self.hermits, 4))

    def cut_off(self):
        story, others = self.story, []
        with self.a_row_locked():
            self.lost.lose_power()
            self.cut.pull()
            self.alone.pull()
            began = time.monotonic()
            self.staying = self.workers.start(self.stays)
            app, locked = self.app, thread_config("locked")
            others.append(threading.Thread(target=lambda: app.invoke(five(), locked)))
            others[0].start()
            until(lambda: any(each.attempts > 1 for each in self.queue.jobs()), NOTICED + SLACK)
            story.elsewhere = time.monotonic() - began
            others[0].join()
            story.unlocked = time.monotonic() - began
            until(lambda: not any(map(self.site.seen, (self.lost, self.cut, self.alone))), SLACK)
            story.unseen = time.monotonic() - began
        judged(self.queue, self.workers, self.MOVED)

    @contextmanager
    def a_row_locked(self):
        """By the machine that will be lost, in the middle of a transaction."""
        with self.lost.inside():
            saver = self.stack.enter_context(PostgresSaver.from_conn_string(self.url))
            session = self.stack.enter_context(suppressed(saver._session(write=True)))
        session.rows("lock_namespace", "locked", "")
        yield

    def come_back(self):
        story = self.story
        self.alone.plug()
        story.before = self.stored()
        self.cut.plug()
        judged(self.other_queue, self.hermits, self.KEPT)
        until(lambda: [each.name for each in self.queue.workers()] == ["w3", "w2"])
        self.staying.terminate()
        self.staying.join()
        self.queue.submit_many([(name, five()) for name in self.AFTER])
        story.after = [self.queue.result(name, wait=60) for name in self.AFTER]
        self.returning.terminate()  # it ends when all its runs have
        self.returning.join(60)
        story.left = self.returning.exitcode
        story.since = self.stored()
        story.moved = [self.queue.result(name) for name in self.MOVED]
        story.kept = [self.other_queue.result(name) for name in self.KEPT]

    def stored(self):
        return [[each.config for each in self.app.get_state_history(thread_config(name))] for name in self.MOVED]


@contextmanager
def suppressed(opened):
    """A transaction whose connection breaks before its end."""
    with suppress(StorageError), opened as session:
        yield session


def test_no_thread_that_was_started_on_a_machine_runs_a_task_elsewhere(site):
    at_work = threading.Barrier(2)  # so that one of two tasks is on a thread that the engine keeps

    def look(state):
        at_work.wait(10)
        return {"log": [os.readlink("/proc/thread-self/ns/net")]}

    app = graph_of(Log, "S>a S>b", a=look, b=look).compile()

    def places():
        return {*app.invoke({"log": []})["log"], os.readlink("/proc/thread-self/ns/net")}

    there = places()
    with machines.outside():
        here = places()
    assert len(there) == len(here) == 1
    assert there != here


@pytest.mark.trial
def test_jobs_of_silent_machines_are_resumed_elsewhere_after_half_a_minute(story):
    assert NOTICED - 10 < story.elsewhere < NOTICED + SLACK
    assert [(each.status, each.attempts) for each in story.moved] == [("done", 2)] * 4


@pytest.mark.trial
def test_a_machine_that_is_back_too_late_changes_nothing_and_works_on(story):
    assert story.since == story.before
    assert [(each.status, each.attempts) for each in story.after] == [("done", 1)] * 4
    assert story.left == 0


@pytest.mark.trial
def test_a_machine_that_is_back_keeps_jobs_that_no_other_claimed(story):
    assert [(each.status, each.attempts) for each in story.kept] == [("done", 1)] * 4


@pytest.mark.trial
def test_a_machine_that_vanished_keeps_no_lock_and_no_connection_for_longer(story):
    assert story.unlocked < NOTICED + SLACK
    assert story.unseen < NOTICED + SLACK


# -- for seconds ------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_a_server_that_is_cut_off_from_all_loses_nothing(site, tmp_path):
    names = [f"t{number}" for number in range(12)]
    url = site.schema()
    with Queue.from_conn_string(url, counting) as queue, ExitStack() as stack:
        queue.setup()
        fleets = []
        for timeout in (30, 1):  # one rides it out, the other gives its connections up
            (folder := tmp_path / f"{timeout}").mkdir()
            fleets.append(stack.enter_context(Fleet(url, folder, timeout=timeout)))
            fleets[-1].start(site.network.host())
        queue.submit_many([(name, five(0.2)) for name in names])
        until(lambda: all(underway(each, 4) for each in fleets))
        site.server.pull()
        time.sleep(3)
        site.server.plug()
        fleets[0].notes = Both(fleets)
        judged(queue, fleets[0], names)
        assert queue.counts() == {"counting": {"done": 12}}


class Both:
    """The notes of several fleets, read as one."""

    def __init__(self, fleets):
        self._all = [each.notes for each in fleets]

    def read(self):
        return [note for each in self._all for note in each.read()]


@pytest.mark.trial
def test_on_a_slow_line_that_loses_some_of_what_passes_every_step_is_exact(site, tmp_path):
    names = [f"t{number}" for number in range(12)]
    url = site.schema()
    with Queue.from_conn_string(url, counting) as queue, Fleet(url, tmp_path) as workers:
        queue.setup()
        for _ in range(2):
            workers.start(site.network.host(quality=(0.025, 0.05)))
        queue.submit_many([(name, five()) for name in names])
        judged(queue, workers, names)
        assert queue.counts() == {"counting": {"done": 12}}


@pytest.mark.trial
def test_a_worker_cut_off_from_the_queue_gets_an_error_in_time_and_polls_again(site):
    with Queue.from_conn_string(site.schema(), counting, timeout=1) as queue:
        run_id = queue.submit("t", five())
        threading.Timer(0.3, site.desk.pull).start()
        for call in (
            lambda: queue.result("t", wait=60),
            lambda: queue.result("t", wait=0.1),
            lambda: queue.submit("u", five(), run_id="u"),
        ):
            began = time.monotonic()
            with pytest.raises(StorageError, match="did not answer within 1 s|no connection to the Postgres server within"):
                call()
            assert time.monotonic() - began < 2 + SLACK
        site.desk.plug()
        until(lambda: answered(lambda: queue.submit("u", five(), run_id="u")))
        assert queue.result("t", wait=0.1).run_id == run_id
        assert queue.counts() == {"counting": {"waiting": 2}}


def answered(call):
    try:
        call()
    except StorageError:
        return False
    return True


@pytest.mark.trial
def test_a_queue_is_closed_in_time_though_its_server_is_out_of_reach(site, monkeypatch):
    """Even if that happens while it begins to listen."""
    listening, execute = threading.Event(), Connection.execute

    def cut(self, query, *args, **kwargs):
        if "LISTEN" in str(query):
            site.desk.pull()
            listening.set()
        return execute(self, query, *args, **kwargs)

    monkeypatch.setattr(Connection, "execute", cut)
    monkeypatch.setattr(listener, "PATIENCE", 1)
    queue = Queue(site.schema(), counting, timeout=1)
    queue.submit("t", five())
    with pytest.raises(StorageError):
        queue.result("t", wait=60)
    assert listening.wait(10)
    assert took(queue.close) < 2 + SLACK


@pytest.mark.trial
def test_what_was_given_up_is_not_done_later(site):
    """The system keeps what was sent and not confirmed, and would send it again when the network is back."""
    with PostgresStore.from_conn_string(site.schema(), timeout=1) as store:
        store.put(("a",), "key", {"turn": 0})
        site.desk.pull()
        with pytest.raises(ConnectionLostError):
            store.put(("a",), "key", {"turn": 1})
        site.desk.plug()
        until(lambda: answered(lambda: store.put(("a",), "key", {"turn": 2})))
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            found = store.get(("a",), "key")
            assert found is not None and found.value == {"turn": 2}
            time.sleep(0.05)


@pytest.mark.trial
def test_a_run_that_is_cut_off_ends_in_time_and_resumes(drive, site):
    with PostgresSaver.from_conn_string(site.schema(), timeout=1) as saver:
        app = counting.copy({"checkpointer": saver})
        drive.invoke(app, {"log": [], "left": 1}, thread_config("idle"))
        threading.Timer(0.5, site.desk.pull).start()
        began = time.monotonic()
        with pytest.raises(StorageError):
            drive.invoke(app, {"log": [], "left": 20, "pause": 0.1}, thread_config("t"))
        assert time.monotonic() - began < 3 + SLACK
        site.desk.plug()
        until(lambda: answered(lambda: drive.get_state(app, thread_config("t"))))
        stored = drive.get_state(app, thread_config("t")).values["log"]
        assert 1 <= len(stored) < 20
        assert drive.invoke(app, None, thread_config("t"))["log"] == [*range(20)]
        assert [each.metadata["step"] for each in drive.history(app, thread_config("t"))] == [*range(20, -2, -1)]


@pytest.mark.trial
def test_a_server_that_lost_its_power_is_reconnected(site):
    """Nobody heard that the connections had ended; the idle ones in a pool look as if they were alive."""
    with PostgresSaver.from_conn_string(site.schema(), timeout=20) as saver:
        app = counting.copy({"checkpointer": saver})
        together = threading.Barrier(5)

        def use():
            with saver._statements() as session:
                session.rows("all_namespaces")
                together.wait()

        threads = [threading.Thread(target=use) for _ in range(5)]
        run_threads(threads)
        app.invoke(five(), thread_config("t"))
        site.server.lose_power()
        site.server.switch_on()
        with site.server.inside():
            site.postgres.start()
        assert app.invoke({"left": 9}, thread_config("t"))["log"] == [*range(9)]
