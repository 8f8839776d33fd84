"""What a job takes of the database, counted; and that what it does not ask it need not know."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import pairwise

import psycopg
import pytest
from kit import cluster
from kit.fleet import State, log_of, queue_at_work, until, working
from kit.graphs import CONFIG, EMPTY, chain_of, thread_config
from psycopg import errors

from stategraph import START, Command, Pregel, Runtime, StateGraph, interrupt
from stategraph.checkpoint.errors import StorageError
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sql import postgres_tables
from stategraph.checkpoint.sql.postgres_server import ConnectionLostError
from stategraph.checkpoint.sql.postgres_wire import Patient, PreparedStatements, Wire
from stategraph.pregel.drivers import journal
from stategraph.workers import Queue, tables
from stategraph.workers.jobs import Job, JobName, hash_name
from stategraph.workers.saver import WorkerSaver
from stategraph.workers.session import Terms, WorkerSession

postgres = cluster.emptied
NAMES = {text: name for texts in (tables.STATEMENTS, postgres_tables.STATEMENTS) for name, text in texts.items()}
ALONE = {"concurrency": 1, "poll": 300.0}
"""One job after the other, and no looks in between."""


def chain(nodes, last=lambda: None, name="counted"):
    """A graph of so many nodes; it says when its last one runs."""

    def step(state):
        return {"log": [len(state["log"])]}

    def final(state):
        last()
        return step(state)

    builder = StateGraph(State)
    before = START
    for number in range(nodes):
        builder.add_node(f"n{number}", final if number == nodes - 1 else step)
        builder.add_edge(before, f"n{number}")
        before = f"n{number}"
    return builder.compile(name=name)


class Watch:
    """What was sent, while jobs run: names of statements, and marks between jobs."""

    def __init__(self, monkeypatch):
        self.seen = []
        self.trips = 0
        bind, wait = PreparedStatements._bind, Patient.wait

        def watched(statements: PreparedStatements, text, values):
            self.seen.append(NAMES.get(text, text))
            return bind(statements, text, values)

        def counted(connection: Patient, *args, **options):
            self.trips += 1
            return wait(connection, *args, **options)

        monkeypatch.setattr(PreparedStatements, "_bind", watched)
        monkeypatch.setattr(Patient, "wait", counted)

    def mark(self):
        """A job's last node runs."""
        self.seen.append(f"-- {self.trips}")

    def jobs(self):
        """Statements and round trips from each mark to the next."""
        marks = [at for at, name in enumerate(self.seen) if name.startswith("--")]
        return [
            (self.seen[a + 1 : b], int(self.seen[b][3:]) - int(self.seen[a][3:]))
            for a, b in pairwise(marks)
        ]


def hold_for_as_long_as_it_takes(monkeypatch):
    """What is held is stored with what comes next, and not by itself after a moment."""
    monkeypatch.setattr(journal.HELD, "submit", lambda entry, store: None)


@pytest.mark.parametrize(("nodes", "durability", "taken"), [
    (1, None, ["create_rows", "end", "claim_with_ends"]),
    (3, "sync", ["commit_row", "end", "claim_with_ends", "create_rows", "commit_row"]),
    (3, "exit", ["create_rows", "end", "claim_with_ends"]),
])  # fmt: skip
def test_a_job_takes_one_commit_for_each_node_and_one_for_its_end(postgres, monkeypatch, nodes, durability, taken):
    """The input goes with the first node, the claim with the end of the job before. Nothing is looked up, and each
    round trip is one transaction (PERFORMANCE P28, P36)."""
    hold_for_as_long_as_it_takes(monkeypatch)
    watch = Watch(monkeypatch)
    graph = chain(nodes, watch.mark)
    with Queue.from_conn_string(postgres, graph, durability=durability) as queue:
        queue.submit_many([(f"t{number}", {"log": []}) for number in range(16)])
        with working(graph, postgres, **ALONE):
            until(lambda: len(watch.jobs()) == 15)  # nothing is asked of the server meanwhile
            until(lambda: queue.counts() == {"counted": {"done": 16}})
    for statements, trips in watch.jobs()[8:14]:  # by then all is prepared
        assert statements == taken
        assert trips == len(taken) - 1, "the end and the claim are one"


def test_a_job_on_a_thread_with_earlier_jobs_reads_once(postgres, monkeypatch):
    watch = Watch(monkeypatch)
    graph = chain(1, watch.mark)
    with Queue.from_conn_string(postgres, graph) as queue:
        queue.submit_many([("t", {"log": []}) for _ in range(16)])
        with working(graph, postgres, **ALONE):
            until(lambda: queue.counts() == {"counted": {"done": 16}})
        assert queue.result("t").unwrap()["log"] == [*range(16)]
    taken = ["commit_row", "end", "claim_with_ends", "look", "commit_row", "commit_row"]
    looks = [[name for name in statements if name != "counts"] for statements, _ in watch.jobs()[8:14]]
    assert [names for names in looks if names != taken] in ([], [[*taken, "values"]] * len(looks))


@pytest.mark.parametrize("size", [1, 100, 3_000])
def test_a_thread_is_the_same_whether_a_job_or_a_call_made_it(postgres, size):
    """Short and long values, and writes that have a row of their own."""
    graph = chain(2)
    given = {"log": ["x" * size]}
    with Queue.from_conn_string(postgres, graph) as queue, PostgresSaver.from_conn_string(postgres) as saver:
        with working(graph, postgres):
            queue.submit("job", given, run_id="r")
            queue.result("job", wait=30)
        app = graph.copy({"checkpointer": saver})
        app.invoke(given, {"configurable": {"thread_id": "call"}, "run_id": "r"})

        def history(thread):
            found = app.get_state_history(thread_config(thread))
            return [(s.values, s.next, s.metadata["source"], s.metadata["step"], s.metadata["run_id"]) for s in found]

        assert len(history("job")) == 4
        assert history("job") == history("call")
        # What was stored can be built on.
        log = app.invoke({"log": ["y"]}, thread_config("job"))["log"]
        assert log == [*given["log"], 1, 2, "y", 4, 5]


@contextmanager
def run_past(graph: Pregel, postgres, monkeypatch):
    """Somebody runs each job's thread past the queue, once, after it was claimed and before it begins."""
    running = WorkerSaver.running
    with PostgresSaver.from_conn_string(postgres) as saver:
        app = graph.copy({"checkpointer": saver})

        def late(self: WorkerSaver, job, *, trusted):
            if trusted:
                app.invoke({"log": ["past"]}, thread_config(job.name.thread_id))
            return running(self, job, trusted=trusted)

        monkeypatch.setattr(WorkerSaver, "running", late)
        yield


@pytest.mark.parametrize("before", [0, 2])
def test_data_read_by_a_claim_may_be_outdated_when_the_run_starts(postgres, monkeypatch, before):
    graph = chain(1)
    with Queue.from_conn_string(postgres, graph) as queue:
        with working(graph, postgres):
            for _ in range(before):
                queue.submit("t", EMPTY)
                queue.result("t", wait=30)
        with run_past(graph, postgres, monkeypatch), working(graph, postgres):
            queue.submit("t", {"log": ["job"]})
            log = log_of(queue)
    assert log == [*range(before), "past", before + 1, "job", before + 3]


def test_a_job_forgotten_and_submitted_again_under_its_run_id_is_done_once(postgres):
    graph = chain(1)
    with queue_at_work(graph, postgres) as queue:
        for run_id in ("first", "second"):
            queue.submit("t", EMPTY, run_id=run_id)
            queue.result("t", run_id=run_id, wait=30)
        queue.forget()
        queue.submit("t", EMPTY, run_id="first")
        assert log_of(queue, "first") == [0], "what it came to then"
    with PostgresSaver.from_conn_string(postgres) as saver:
        app = graph.copy({"checkpointer": saver})
        assert app.get_state(CONFIG).values["log"] == [0, 1]


def test_a_connection_lost_after_the_first_commits_does_not_store_them_twice(postgres, monkeypatch):
    commit, lost = WorkerSaver._commit, []

    def answer_lost(*args):
        commit(*args)
        if not lost:
            lost.append(True)
            raise ConnectionLostError("the connection broke")

    monkeypatch.setattr(WorkerSaver, "_commit", answer_lost)
    graph = chain(2)
    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", EMPTY)
        assert log_of(queue) == [0, 1]
    assert lost
    with PostgresSaver.from_conn_string(postgres) as saver:
        assert len([*saver.list(CONFIG)]) == 4


def test_a_first_node_that_is_done_again_has_the_same_idempotency_key(postgres, monkeypatch):
    """The worker dies in it, and nothing of the thread is stored yet."""
    hold_for_as_long_as_it_takes(monkeypatch)
    keys, begun, release = [], threading.Event(), threading.Event()

    def step(state, runtime: Runtime):
        keys.append(runtime.idempotency_key)
        if len(keys) == 1:
            begun.set()
            assert release.wait(60)
        return {"log": [0]}

    graph = chain_of(State, step=step).compile(name="keyed")
    with Queue.from_conn_string(postgres, graph) as queue, PostgresSaver.from_conn_string(postgres) as saver:
        queue.submit("t", EMPTY)
        with working(graph, postgres):
            assert begun.wait(60)
            assert saver.get_tuple(CONFIG) is None
            take_from_its_worker(postgres)
            try:
                assert log_of(queue) == [0]
            finally:
                release.set()
        queue.submit("other", EMPTY)
        with working(graph, postgres):
            queue.result("other", wait=30)
    assert keys[0] == keys[1] != keys[2]


def take_from_its_worker(postgres):
    """Give the job that runs to whoever claims it next, as if its worker were dead."""
    with psycopg.connect(postgres) as admin:
        admin.execute("UPDATE stategraph_jobs SET state = 'waiting', worker = NULL WHERE state = 'running'")
        admin.execute("SELECT pg_notify('stategraph_work', %s)", (str(hash_name("keyed")),))


def test_a_first_node_that_takes_long_has_its_input_stored_meanwhile(postgres):
    release = threading.Event()
    graph = chain(1, lambda: release.wait(60))
    thread = CONFIG
    with Queue.from_conn_string(postgres, graph) as queue, PostgresSaver.from_conn_string(postgres) as saver:
        app = graph.copy({"checkpointer": saver})
        with working(graph, postgres):
            queue.submit("t", {"log": ["given"]})
            until(lambda: app.get_state(thread).next == ("n0",))
            assert app.get_state(thread).values == {"log": ["given"]}
            release.set()
            assert log_of(queue) == ["given", 1]


def test_a_first_node_that_extends_a_long_value_stores_what_it_adds(postgres, monkeypatch):
    """By one transaction: the value before gets its number there."""
    hold_for_as_long_as_it_takes(monkeypatch)
    graph = chain(1)
    given = [f"{number:0100}" for number in range(100)]
    with Queue.from_conn_string(postgres, graph) as queue, PostgresSaver.from_conn_string(postgres) as saver:
        with working(graph, postgres):
            queue.submit("t", {"log": given})
            assert log_of(queue) == [*given, 100]
        app = graph.copy({"checkpointer": saver})
        history = [*app.get_state_history(CONFIG)]
        assert [len(each.values.get("log", ())) for each in history] == [101, 100, 0]
        with psycopg.connect(postgres) as admin:
            found = admin.execute("SELECT sum(length(data)) FROM stategraph_values").fetchone()
        assert found is not None and found[0] < 2.1 * len("".join(given))


def test_a_run_that_asks_at_its_first_node_has_its_input_stored(postgres):
    graph = chain_of(State, ask=lambda state: {"log": [interrupt("what?")]}).compile(name="asks")
    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", {"log": ["given"]})
        assert queue.result("t", wait=30).status == "paused"
        queue.submit("t", Command(resume="that"))
        assert log_of(queue) == ["given", "that"]


def test_a_router_that_fails_before_the_first_node_leaves_the_input_stored(postgres):
    def route(state):
        raise ValueError("no way")

    builder = StateGraph(State)
    builder.add_node("step", lambda state: {"log": [1]})
    builder.add_conditional_edges(START, route, ["step"])
    graph = builder.compile(name="lost")
    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", {"log": ["given"]})
        assert queue.result("t", wait=30).status == "failed"
    with PostgresSaver.from_conn_string(postgres) as saver:
        found = saver.get_tuple(CONFIG)
        assert found is not None and found.metadata["source"] == "input"


# -- the end and the claim ----------------------------------------------------------------------------------------


def test_a_claim_that_conflicts_with_another_loses_no_job_ends(postgres, monkeypatch):
    refused = []

    def meet(self: Wire, *calls):
        refused.append(calls)
        raise errors.UniqueViolation("another worker took a job of the same thread at this moment")

    monkeypatch.setattr(Wire, "rows_together", meet)
    graph = chain(1)
    with queue_at_work(graph, postgres, **ALONE) as queue:
        queue.submit_many([(f"t{number}", {"log": []}) for number in range(5)])
        assert [queue.result(f"t{number}", wait=30).status for number in range(5)] == ["done"] * 5
    assert refused


def test_a_refused_notification_loses_no_claims(postgres, monkeypatch):
    refused = []

    def full(self: WorkerSession, stored, rows):
        refused.append(stored)
        raise errors.ProgramLimitExceeded("too many notifications in the NOTIFY queue")

    monkeypatch.setattr(WorkerSession, "_notify_ended", full)
    graph = chain(1)
    with Queue.from_conn_string(postgres, graph) as queue:
        queue.submit_many([(f"t{number}", {"log": []}) for number in range(5)])
        with working(graph, postgres, **ALONE):
            until(lambda: queue.counts() == {"counted": {"done": 5}})
    assert len(refused) == 5


def test_statements_sent_together_are_one_transaction(postgres):
    insert, divide = "INSERT INTO numbers VALUES ($1::bigint) RETURNING n", "SELECT 1 / $1::bigint"
    with Patient.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (n BIGINT)")
        wire = Wire(connection)
        for number in range(4):  # at first by a cursor, then prepared
            assert wire.rows_together((insert, number), (divide, 1)) == [[(number,)], [(1,)]]
            with pytest.raises(errors.DivisionByZero):
                wire.rows_together((insert, 100), (divide, 0))
        assert connection.execute("SELECT array_agg(n ORDER BY n) FROM numbers").fetchone() == ([0, 1, 2, 3],)


def test_a_thread_s_next_job_is_claimed_as_the_one_before_ends(postgres, monkeypatch):
    claimed = []
    real = WorkerSession.end_and_claim

    def watched(self: WorkerSession, ended, room):
        found = real(self, ended, room)
        claimed.append((len(ended), len(found)))
        return found

    monkeypatch.setattr(WorkerSession, "end_and_claim", watched)
    graph = chain(1)
    with Queue.from_conn_string(postgres, graph) as queue:
        queue.submit_many([("t", {"log": []}) for _ in range(4)])
        with working(graph, postgres, **ALONE):
            until(lambda: queue.counts() == {"counted": {"done": 4}})
    assert claimed == [(1, 1), (1, 1), (1, 1), (1, 0)]


# -- what was held, and lost -------------------------------------------------------------------------------------


def test_a_job_with_only_its_input_stored_gets_the_same_idempotency_keys(postgres, monkeypatch):
    """The moment for which the input is held has passed before START has ended, and the worker dies while START's
    checkpoint is held in its turn: the first node has run, and runs again."""
    held = []

    def store_the_input(entry, store):
        if not held:
            store.__self__._drain()
        held.append(entry)

    def die(self, commits):
        if len(held) > 1:
            raise StorageError("the worker has died")
        PostgresSaver.commit(self, commits)

    def note(state, runtime: Runtime):
        keys.append(runtime.idempotency_key)
        return {"log": [0]}

    keys = []
    builder = chain_of(State, note=note)
    job = Job(1, 1, 1, True, JobName("counted", "t", "r"), b"")
    config = {"configurable": {"thread_id": "t"}, "run_id": "r"}
    with WorkerSaver.from_conn_string(postgres) as saver:
        saver.setup()
        graph = builder.compile(saver)
        with saver.running(job, trusted=False), monkeypatch.context() as patch:
            patch.setattr(journal.HELD, "submit", store_the_input)
            patch.setattr(WorkerSaver, "commit", die)
            with pytest.raises(StorageError, match="died"):
                graph.invoke(EMPTY, config)
        assert [each.metadata["source"] for each in saver.list(config)] == ["input"]
        with saver.running(job, trusted=False):
            assert graph.invoke(EMPTY, config) == {"log": [0]}
    assert len(keys) == 2 and len({*keys}) == 1


def test_an_effect_of_a_job_s_first_node_is_recorded_though_its_checkpoint_was_deferred(postgres):
    charged = []

    def pay(state, runtime: Runtime):
        runtime.once("charge", charged.append, "book")
        if not died:
            died.append(True)
            raise ConnectionError
        return {"log": [0]}

    died = []
    builder = chain_of(State, pay=pay)
    job = Job(1, 1, 1, True, JobName("counted", "t", "r"), b"")
    config = {"configurable": {"thread_id": "t"}, "run_id": "r"}
    with WorkerSaver.from_conn_string(postgres) as saver:
        saver.setup()
        graph = builder.compile(saver)
        with saver.running(job, trusted=False), pytest.raises(ConnectionError):
            graph.invoke(EMPTY, config)
        with saver.running(job, trusted=False):
            assert graph.invoke(EMPTY, config) == {"log": [0]}
    assert charged == ["book"]


# -- a job that its worker has lost, and claims again -------------------------------------------------------------


def test_a_lost_attempt_ends_during_the_next_attempt_in_the_same_worker(postgres):
    def claimed(attempt):
        return Job(1, attempt, 1, True, JobName("counted", "t", "r"), b"")

    with WorkerSaver(postgres) as saver:
        lost, again = (saver.running(claimed(attempt), trusted=False) for attempt in (1, 2))
        lost.__enter__()
        with again:
            lost.__exit__(None, None, None)
            assert saver.keeps_input("t", "r")
        assert not saver.keeps_input("t", "r")


def test_an_answer_is_not_given_before_it_is_bound(postgres, monkeypatch):
    """The worker has another session meanwhile, so that the claim bears another name. Unbound, the answer would reach
    the next question if the worker then died."""
    graph = chain_of(State, ask=lambda state: {"log": [interrupt("what?")]}).compile(name="asks")
    real, bound = Queue.bind, []

    def late(self, job: Job, task):
        worker = job.worker
        if not bound:
            job.worker = 0
        bound.append(task)
        try:
            real(self, job, task)
        finally:
            job.worker = worker

    monkeypatch.setattr(Queue, "bind", late)
    with queue_at_work(graph, postgres) as queue:
        queue.submit("t", EMPTY)
        queue.result("t", wait=30)
        queue.submit("t", Command(resume="that"))
        assert log_of(queue) == ["that"]
    assert len(bound) == 2


def test_a_death_in_the_first_step_counts_whether_its_input_was_stored_by_then_or_not(postgres):
    graph, thread = chain(2), CONFIG

    def die():
        """A worker dies that has claimed the job; of how many it has died at this step."""
        with psycopg.connect(postgres) as admin:
            admin.execute("""
                WITH dead AS (
                    INSERT INTO stategraph_workers (graph, name, backend) VALUES ('counted', 'dead', 0) RETURNING id
                )
                UPDATE stategraph_jobs SET state = 'running', worker = dead.id, begun = true FROM dead
            """)
        session.watch()
        with psycopg.connect(postgres) as admin:
            ((deaths,),) = admin.execute("SELECT deaths FROM stategraph_jobs").fetchall()
        return int(deaths)

    with Queue.from_conn_string(postgres, graph) as queue, PostgresSaver.from_conn_string(postgres) as saver:
        queue.submit("t", EMPTY)
        app, session = graph.copy({"checkpointer": saver}), WorkerSession(postgres, Terms("counted", "bench", 9, 30)).open()
        try:
            saver.setup()
            assert die() == 1
            app.invoke(EMPTY, thread, interrupt_before=["n0"])  # its input and START
            assert [die(), die()] == [2, 3]
            app.invoke(None, thread, interrupt_before=["n1"])
            assert [die(), die()] == [1, 2]
        finally:
            session.close()
