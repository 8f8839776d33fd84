"""What is Postgres's own about `PostgresSaver`: round trips, races, servers that restart, hang or refuse. That it keeps
the contract of a saver is shown in `test_conformance`."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
import pytest
from kit import cluster
from kit.cluster import Proxy, Traced, free_port
from kit.fleet import until
from kit.graphs import CONFIG, EMPTY, Log, chain_of, thread_config
from psycopg.adapt import PyFormat, Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool
from psycopg_pool.base import AttemptWithBackoff

from stategraph import END, START, StateGraph
from stategraph.checkpoint import (
    CheckpointConflictError,
    DamagedError,
    Retention,
    StorageError,
    TaskWrites,
)
from stategraph.checkpoint.base import Expected, address
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sql import postgres_server as server_module
from stategraph.checkpoint.sql import postgres_tables as tables
from stategraph.checkpoint.sql import postgres_wire as wire_module
from stategraph.checkpoint.sql.postgres_server import ConnectionLostError, OutOfReachError
from stategraph.testing import Commits as Run
from stategraph.testing.harness import checkpoint

LONG = "x" * 200


@pytest.fixture
def saver(postgres):
    with PostgresSaver.from_conn_string(postgres) as opened:
        yield opened


@pytest.fixture
def server():
    return cluster.shared()


@pytest.fixture
def proxy(server):
    made = Proxy(server.port)
    yield made
    made.close()


def running(saver, thread="t"):
    """Commits supersteps as the engine does."""
    return Run(lambda method, *args: getattr(saver, method)(*args), saver, thread)


def ids(saver: PostgresSaver, thread="t"):
    return [found.checkpoint["id"] for found in saver.list(address(thread, ""))]


# -- round trips ------------------------------------------------------------------------------------------------


@pytest.fixture
def traced(postgres, tmp_path):
    made = Traced(postgres, tmp_path / "trace")
    yield made
    made.close()


def test_a_superstep_is_one_round_trip_and_reading_a_thread_at_most_two(traced):
    saver = PostgresSaver(traced.connection)
    saver.setup()
    traced.trips()
    run = running(saver)
    run.step("0", a=1, b=LONG)
    assert traced.trips() == 1, "the first of a thread"
    for step in range(1, 10):  # psycopg prepares a statement when it comes again, which is a round trip once
        run.step(str(step), a=step, b=LONG * step, writes=[("task", [("a", step)])])
    traced.trips()
    for step in range(10, 30):
        run.step(str(step), a=step, b=LONG * step, writes=[("task", [("a", step)])])
        assert traced.trips() == 1
    found = saver.get_tuple(address("t", ""))  # held, as a run holds it
    assert found is not None
    assert traced.trips() == 2
    assert saver.head(address("t", "")) == "29"
    assert traced.trips() == 1
    assert saver.get_tuple(address("nobody", "")) is None
    assert traced.trips() == 1
    saver.record(("t", ""), Expected("29", 0), {"29": [TaskWrites("task", "", [("a", saver.serde.dumps(1))])]})
    assert traced.trips() == 1


def test_short_values_are_read_in_one_round_trip(traced):
    saver = PostgresSaver(traced.connection)
    for step, run in enumerate([running(saver)] * 5):
        run.step(str(step), a=step)
    traced.trips()
    found = saver.get_tuple(address("t", ""))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 4}
    assert traced.trips() == 1


def test_a_run_of_a_graph_takes_at_most_two_round_trips_a_superstep(traced):
    builder = chain_of(Log, say=lambda state: {"log": [LONG]}).add_conditional_edges(
        "say", lambda state: END if len(state["log"]) >= 50 else "say", ["say", END]
    )
    saver = PostgresSaver(traced.connection)
    app = builder.compile(saver)
    app.invoke(EMPTY, CONFIG)
    traced.trips()
    app.invoke(EMPTY, thread_config("next"))
    trips = traced.trips()
    checkpoints = len(ids(saver, "next"))
    assert trips <= checkpoints + 3, "reading the thread, and little else"


def test_a_large_value_goes_to_the_server_as_the_bytes_it_is(postgres):
    values = [[b"\\" * 10_000, None, bytes(range(256))], [1, -(2**63)], [], [0.5]]
    with wire_module.Patient.connect(postgres) as connection:
        sent = Transformer(connection).dump_sequence(wire_module.bind(values), [PyFormat.AUTO] * 4)
        assert sum(len(each) for each in sent if each is not None) < 10_500
        select = "SELECT $1::bytea[], $2::bigint[], $3::bytea[], $4::float8[]"
        assert [*wire_module.Wire(connection).rows(select, *values)[0]] == values


def test_a_statement_that_is_prepared_gives_what_a_cursor_gives(postgres):
    select = "SELECT $1::bytea, $2::bigint, $3::bytea[], $4::bigint[], $5::float8, $6::boolean"
    rows = [("a", 1, ["b"], [2], 0.5, True), (None, None, [None, "c"], [], None, None), ("", -1, [], [3, 4], 1.0, False)]
    with wire_module.Patient.connect(postgres, autocommit=True) as connection:
        connection.prepare_threshold = None  # as behind a pooler: psycopg's own way
        expected = [wire_module.Wire(connection).rows(select, *row) for row in rows]
        connection.prepare_threshold = 5
        for _ in range(4):
            assert [wire_module.Wire(connection).rows(select, *row) for row in rows] == expected
        prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert prepared == (len(rows),), "one for each combination of types"


def test_a_prepared_statement_that_fails_raises_what_a_cursor_raises_and_can_be_used_again(postgres):
    divide = "SELECT 1 / $1::bigint"
    with wire_module.Patient.connect(postgres, autocommit=True) as connection:
        for _ in range(4):
            assert wire_module.Wire(connection).rows(divide, 1) == [(1,)]
            with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
                wire_module.Wire(connection).rows(divide, 0)
        connection.execute("CREATE TABLE numbers (n BIGINT UNIQUE)")
        insert = "INSERT INTO numbers SELECT * FROM generate_series($1::bigint, $2::bigint)"
        assert [wire_module.Wire(connection).run(insert, 3 * n, 3 * n + 2) for n in range(4)] == [3] * 4


def test_a_statement_that_is_known_takes_one_round_trip_and_no_cursor(postgres, monkeypatch):
    made = []

    class Watched(psycopg.RawCursor[Any]):
        def __init__(self, *args, **options):
            made.append(self)
            super().__init__(*args, **options)

    with wire_module.Patient.connect(postgres, autocommit=True) as connection:
        for _ in range(4):
            wire_module.Wire(connection).rows("SELECT $1::bigint", 1)
        monkeypatch.setattr(wire_module, "RawCursor", Watched)
        trips = []
        monkeypatch.setattr(connection, "wait", lambda gen: trips.append(gen) or wire_module.Patient.wait(connection, gen))
        assert wire_module.Wire(connection).rows("SELECT $1::bigint", 2) == [(2,)]
        assert (len(trips), made) == (1, [])


def test_the_set_of_sql_texts_is_fixed():
    sent = set()

    class Watched(psycopg.RawCursor[Any]):
        def execute(self, query, *args, **kwargs):
            sent.add(query)
            return super().execute(query, *args, **kwargs)

    attacks = ["'; DROP TABLE stategraph_spaces; --", "$1", "%s", "\\", '"', "{}", "ü", "\x01", "%", "_", "*"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_module, "RawCursor", Watched)
        with PostgresSaver.from_conn_string(cluster.shared().schema(), retention=Retention(keep_last=5)) as saver:
            for text in attacks:
                run = running(saver, text)
                run.step(text, **{text: LONG, "run": text})
                run.step(text * 2, **{text: LONG * 2})
                saver.put(address(text, text, text), checkpoint(text, {text: text}, {text: 1}), {"run_id": text}, {})  # type: ignore[typeddict-item]
                saver.put_writes(address(text, text, text), [(text, text)], text, text)
                saver.run_of(address(text, text), text)
                assert [*saver.list(address(text, ""), filter={text: text})] == []
                assert ids(saver, text) == [text * 2, text]
                found = saver.get_tuple(address(text, text))
                assert found is not None
                assert (found.checkpoint["channel_values"], found.pending_writes) == ({text: text}, [(text, text, text)])
            for text in attacks:
                saver.copy_thread(text, f"copy of {text}")
                saver.prune([text], keep_last=1)
                saver.delete_for_runs([text])
                assert ids(saver, text) == [text * 2]
                assert saver.head(address(text, text)) is None
                saver.delete_thread(text)
                assert ids(saver, f"copy of {text}") == [text * 2, text]
    known = {*tables.STATEMENTS.values(), *(text for group in tables.MIGRATIONS for text in group)}
    known |= {text for room in (server_module, wire_module) for text in vars(room).values() if isinstance(text, str)}
    assert sent <= known
    assert len(sent & set(tables.STATEMENTS.values())) > 25


# -- races ------------------------------------------------------------------------------------------------------


def test_a_namespace_is_started_by_one_of_two_runs(saver):
    saver.setup()
    gate = threading.Barrier(6)

    def begin(name):
        gate.wait()
        try:
            running(saver).step(f"by {name}", a=LONG)
        except CheckpointConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(begin, range(6))) == 1
    assert len(ids(saver)) == 1


def test_reads_during_a_prune_are_consistent(saver, monkeypatch):
    run = running(saver)
    for step in range(6):
        run.step(str(step), a=LONG + str(step))
    rows = wire_module.Wire.rows

    def pruned_meanwhile(wire, statement, *values):
        found = rows(wire, statement, *values)
        if statement == tables.STATEMENTS["look"]:
            monkeypatch.undo()
            with PostgresSaver.from_conn_string(conninfo_of(saver)) as other:
                other.prune(["t"], keep_last=1)
        return found

    monkeypatch.setattr(wire_module.Wire, "rows", pruned_meanwhile)
    assert saver.get(address("t", "", "0")) == run.expected["0"]  # as of one moment
    assert saver.get_tuple(address("t", "", "0")) is None
    assert saver.get(address("t", "")) == run.expected["5"]


def conninfo_of(saver):
    return psycopg.conninfo.make_conninfo(**{k: v for k, v in saver._server._options.items() if k in ("host", "port", "user", "dbname", "options")})


def test_a_thread_that_was_begun_meanwhile_is_not_copied_into(saver, monkeypatch):
    app = chain_of(Log, say=lambda state: {"log": [LONG]}).compile(saver)
    app.invoke(EMPTY, CONFIG)
    rows = wire_module.Wire.rows

    def begun_meanwhile(wire, statement, *values):
        found = rows(wire, statement, *values)
        if statement == tables.STATEMENTS["namespaces"]:
            monkeypatch.undo()
            app.invoke({"log": ["mine"]}, thread_config("target"))
        return found

    monkeypatch.setattr(wire_module.Wire, "rows", begun_meanwhile)
    with pytest.raises(ValueError, match="'target' already exists"):
        saver.copy_thread("t", "target")
    assert [each.values.get("log") for each in app.get_state_history(thread_config("target"))] == [["mine", LONG], ["mine"], []]


def test_damage_is_reported_and_not_taken_for_a_prune(saver):
    run = running(saver)
    run.step("0", a=LONG)
    run.step("1", b=1)
    with psycopg.connect(conninfo_of(saver)) as connection:
        connection.execute("UPDATE stategraph_values SET data = set_byte(data, 9, 7)")
    with pytest.raises(DamagedError, match="the value of 'a'"):
        saver.get_tuple(address("t", ""))


# -- servers that go, hang or refuse ----------------------------------------------------------------------------


@pytest.mark.trial
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_run_continues_after_its_server_was_restarted(drive, server, postgres, mode):
    builder = StateGraph(Log)

    def say(state):
        if len(state["log"]) in (3, 6):
            server.restart(mode)
        return {"log": [LONG]}

    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: END if len(state["log"]) >= 9 else "say", ["say", END])
    with PostgresSaver.from_conn_string(postgres) as saver:
        app = builder.compile(saver)
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == [LONG] * 9
        steps = [found.metadata["step"] for found in saver.list(address("t", ""))]
        assert steps == sorted(steps, reverse=True)
        assert len(steps) == len(set(steps)) == 11


@pytest.mark.parametrize("lose", ["question", "answer"])
def test_a_commit_whose_response_was_lost_is_stored_once(proxy, postgres, lose):
    with PostgresSaver.from_conn_string(proxy.address(postgres), pool_size=1) as saver:
        saver.setup()
        run = running(saver)
        for step in range(6):
            proxy.lose = lose
            run.step(str(step), a=LONG * step, writes=[("task", [("a", step)])] if step else ())
            assert proxy.lost.wait(10)
            proxy.lost.clear()
        assert ids(saver) == ["5", "4", "3", "2", "1", "0"]
        for step in range(5):
            found = saver.get_tuple(address("t", "", str(step)))
            assert found is not None
            assert found.checkpoint == run.expected[str(step)]
            assert found.pending_writes == [("task", "a", step + 1)]


@pytest.mark.parametrize("lose", ["question", "answer"])
def test_also_when_the_connection_breaks_inside_a_transaction(proxy, postgres, lose):
    with PostgresSaver.from_conn_string(proxy.address(postgres), pool_size=1) as saver:
        run = running(saver)
        run.step("start", a=LONG)
        for place in range(12):
            run.saver_state = None  # so that it must read the thread before it can go on
            proxy.lose, proxy.after = lose, place
            run.step(str(place), a=f"{LONG} {place}")
            if proxy.lose is not None:
                break
        assert place > 5, "each message of the transaction was lost once, that of its COMMIT too"
        assert ids(saver) == [*map(str, range(place, -1, -1)), "start"]
        for id in ids(saver):
            assert saver.get(address("t", "", id)) == run.expected[id]


@pytest.mark.parametrize("lose", ["question", "answer"])
def test_a_conflict_is_raised_also_when_a_response_was_lost(proxy, postgres, lose):
    with PostgresSaver.from_conn_string(proxy.address(postgres), pool_size=1) as saver:
        running(saver).step("0", a=1)
        proxy.lose = lose
        with pytest.raises(CheckpointConflictError):
            running(saver).step("other", a=2)
        assert ids(saver) == ["0"]


@pytest.mark.parametrize("lose", ["question", "answer"])
def test_reads_and_writes_at_a_checkpoint_survive_a_lost_response(proxy, postgres, lose):
    with PostgresSaver.from_conn_string(proxy.address(postgres), pool_size=1) as saver:
        run = running(saver)
        run.step("0", a=LONG)
        done = [TaskWrites("task", "", [("a", saver.serde.dumps(1))], [1.0, 2.0])]
        proxy.lose = lose
        saver.record(("t", ""), Expected("0", 0), {"0": done})
        proxy.lose = lose
        found = saver.get_tuple(address("t", ""))
        assert found is not None
        assert (found.checkpoint, found.pending_writes) == (run.expected["0"], [("task", "a", 1)])
        assert found.spans is not None
        assert [*found.spans["task"]] == [(1.0, 2.0)], "recorded once"
        for read in (saver.head, saver.get_tuple, lambda where: [*saver.list(where)]):
            proxy.lose = lose
            assert read(address("t", ""))
        assert proxy.lose is None


def test_what_cannot_be_repeated_says_that_its_outcome_is_not_known(proxy, postgres):
    with PostgresSaver.from_conn_string(proxy.address(postgres), pool_size=1) as saver:
        running(saver).step("0", a=1)
        proxy.lose = "answer"
        with pytest.raises(ConnectionLostError, match="is not known"):
            saver.copy_thread("t", "copy")
        assert ids(saver) == ["0"]


def test_a_silent_server_is_given_up_in_time(proxy, postgres):
    with PostgresSaver.from_conn_string(proxy.address(postgres), pool_size=1, timeout=2) as saver:
        run = running(saver)
        run.step("0", a=1)
        proxy.lose = "both"
        began = monotonic()
        with pytest.raises(ConnectionLostError, match=r"did not answer within 2 s.*is not known"):
            run.step("1", a=2)
        assert monotonic() - began < 5
        proxy.lose = None
        with suppress(OutOfReachError):  # the pool may have begun a connection before that: it is given up first
            ids(saver)
        assert ids(saver) == ["0"]
        run.step("1", a=2)


def test_an_unreachable_server_is_an_error_in_time_and_reconnected(server, postgres):
    with PostgresSaver.from_conn_string(postgres, timeout=0.5) as saver:
        run = running(saver)
        run.step("0", a=1)
        server.stop()
        try:
            began = monotonic()
            for work in (lambda: run.step("1", a=2), lambda: saver.get_tuple(address("t", ""))):
                with pytest.raises(StorageError, match=r"within 0.5 s: it is down or out of reach"):
                    work()
            with PostgresSaver.from_conn_string(postgres) as other, pytest.raises(StorageError, match="cannot be reached"):
                other.setup()
            assert monotonic() - began < 3
        finally:
            server.start()
    with PostgresSaver.from_conn_string(postgres, timeout=5) as saver:
        run = running(saver)
        assert saver.head(address("t", "")) == "0"


def test_a_server_that_was_away_for_long_is_found_when_it_is_back(server, postgres, monkeypatch):
    """However long the pool would wait by itself until it tries again."""
    monkeypatch.setattr(AttemptWithBackoff, "INITIAL_DELAY", 60.0)
    monkeypatch.setattr(server_module, "AGAIN", 0.2)
    with PostgresSaver.from_conn_string(postgres, timeout=20) as saver, ThreadPoolExecutor() as pool:
        run = running(saver)
        run.step("0", a=1)
        server.stop()
        try:
            found = pool.submit(ids, saver)
            pool_of = saver._server._own
            until(lambda: pool_of.get_stats().get("connections_errors", 0) > 4)  # a pool left alone gives up
        finally:
            server.start()
        assert found.result(10) == ["0"]


def test_a_lock_held_by_another_session_is_an_error_in_time(postgres):
    with PostgresSaver.from_conn_string(postgres, timeout=0.5) as saver, psycopg.connect(postgres) as other:
        run = running(saver)
        run.step("0", a=1)
        other.execute("SELECT * FROM stategraph_spaces FOR UPDATE")
        began = monotonic()
        with pytest.raises(StorageError, match=r"lock.*Nothing was done"):
            run.step("1", a=2)
        assert monotonic() - began < 2
        other.rollback()
        run.step("1", a=2)
        assert ids(saver) == ["1", "0"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interruption_at_any_statement_leaves_a_step_whole_or_nothing(postgres, when):
    left = [0]
    execute = psycopg.RawCursor.execute

    class Interrupted(psycopg.RawCursor[Any]):
        def execute(self, *args, **kwargs):
            left[0] -= 1
            if left[0] == 0 and when == "before":
                raise KeyboardInterrupt
            done = execute(self, *args, **kwargs)
            if left[0] == 0:
                raise KeyboardInterrupt
            return done

    with psycopg.connect(postgres) as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_module, "RawCursor", Interrupted)
        saver = PostgresSaver(connection)
        saver.setup()
        run = running(saver)
        run.step("0", a=LONG)
        for number in range(1, 50):
            run.saver_state = None  # so that it must read the thread before it can go on
            left[0] = number
            try:
                run.step(str(number), a=LONG + str(number), writes=[("task", [("a", number)])])
            except KeyboardInterrupt:
                left[0] = 0
                assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                run.head = saver.head(address("t", ""))
                assert run.head in (str(number), *run.expected)
                if run.head == str(number):
                    found = saver.get_tuple(address("t", ""))
                    assert found is not None and found.checkpoint["channel_values"] == {"a": LONG + str(number)}
                    run.expected[run.head] = found.checkpoint
            else:
                break
        assert number > 6, "each statement was interrupted once"
        left[0] = 0
        assert ids(saver)[0] == run.head


def test_a_database_error_keeps_its_message(saver):
    running(saver).step("0", a=1)
    with psycopg.connect(conninfo_of(saver)) as connection:
        connection.execute("ALTER TABLE stategraph_checkpoints ADD CHECK (length(body) < 300) NOT VALID")
    with pytest.raises(StorageError, match=r"violates check constraint.*Nothing") as caught:
        running(saver, "u").step("0", **{LONG: LONG})
    assert isinstance(caught.value.__cause__, psycopg.errors.CheckViolation)
    assert ids(saver, "u") == []


# -- opening ----------------------------------------------------------------------------------------------------


def set_up(conninfo):
    with PostgresSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.setup()


def test_tables_of_a_later_version_are_left_alone(postgres):
    set_up(postgres)
    with psycopg.connect(postgres) as connection:
        connection.execute("INSERT INTO stategraph_migrations VALUES ('threads', 99)")
    with PostgresSaver.from_conn_string(postgres) as saver, pytest.raises(StorageError, match="got 99.*Update stategraph"):
        saver.head(address("t", ""))


def test_a_role_that_may_not_make_tables_needs_them_made(server, postgres):
    schema = conninfo_to_dict(postgres)["options"].split("=")[1]
    poor = f"{postgres} user=poor_{schema}"
    with psycopg.connect(server.address, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE poor_{schema} LOGIN")
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO poor_{schema}")
        with PostgresSaver.from_conn_string(poor) as saver, pytest.raises(StorageError, match=r"call setup\(\) once"):
            running(saver).step("0", a=1)
        set_up(postgres)
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO poor_{schema}")
        admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO poor_{schema}")
    with PostgresSaver.from_conn_string(poor) as saver:
        running(saver).step("0", a=LONG)
        assert ids(saver) == ["0"]


def test_invalid_options_are_refused_at_once(server):
    with pytest.raises(StorageError, match="not a Postgres connection string"):
        PostgresSaver("this is = not '")
    with pytest.raises(TypeError, match="a connection string, a psycopg.Connection or a ConnectionPool, got int"):
        PostgresSaver(7)  # type: ignore[arg-type]
    for options in ({"pool_size": 0}, {"timeout": 0}, {"timeout": float("nan")}):
        with pytest.raises(ValueError, match="above 0"):
            PostgresSaver(server.address, **options)  # type: ignore[arg-type]
    for text, reason in (
        (f"host=127.0.0.1 port={free_port()}", "refused"),
        (f"{server.address} dbname=nowhere", '"nowhere" does not exist'),
    ):
        with PostgresSaver.from_conn_string(text) as saver, pytest.raises(StorageError, match=reason):
            saver.get_tuple(address("t", ""))


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_connection_handed_in_stays_open_and_as_it_was(postgres, autocommit):
    with psycopg.connect(postgres, autocommit=autocommit) as connection:
        saver = PostgresSaver(connection)
        run = running(saver)
        run.step("0", a=LONG)
        run.step("1", a=LONG * 2)
        assert saver.get(address("t", "")) == run.expected["1"]
        assert connection.autocommit == autocommit
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert connection.execute("SELECT count(*) FROM stategraph_checkpoints").fetchone() == (2,)
        connection.rollback()
        with connection.transaction(), pytest.raises(StorageError, match="inside a transaction"):
            run.step("2", a=1)
        other = PostgresSaver(connection)
        other.close()
        assert not connection.closed
    with pytest.raises(StorageError, match="closed: hand in a pool"):
        saver.head(address("t", ""))
    with pytest.raises(StorageError, match="Open another"):
        other.head(address("t", ""))


def test_a_pool_handed_in_stays_open(postgres):
    with ConnectionPool(postgres, min_size=1, max_size=2, name="stategraph") as pool:
        saver = PostgresSaver(pool)
        with ThreadPoolExecutor(4) as workers:
            for done in [workers.submit(running(saver, str(name)).step, "0", a=LONG) for name in range(4)]:
                done.result()
        saver.close()
        with pool.connection() as connection:
            assert connection.execute("SELECT count(*) FROM stategraph_checkpoints").fetchone() == (4,)


def test_a_saver_that_is_closed_while_a_call_waits_for_a_connection_says_so(postgres):
    with PostgresSaver.from_conn_string(postgres, pool_size=1) as saver, ThreadPoolExecutor(1) as threads:
        saver.setup()
        pool = saver._server.pool
        connection = pool.getconn()
        waiting = threads.submit(saver.get_tuple, CONFIG)
        until(lambda: pool.get_stats()["requests_waiting"])
        saver.close()
        with pytest.raises(StorageError, match="it was closed"):
            waiting.result(10)
        connection.close()


def test_a_closed_saver_and_one_of_another_process_say_so(postgres, monkeypatch):
    with PostgresSaver.from_conn_string(postgres) as saver:
        running(saver).step("0", a=1)
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(StorageError, match="does not survive a fork"):
                saver.head(address("t", ""))
    with pytest.raises(StorageError, match="closed"):
        saver.head(address("t", ""))


def test_retention_prunes_as_a_run_goes(postgres):
    with PostgresSaver.from_conn_string(postgres, retention=Retention(keep_last=4)) as saver:
        runs = [running(saver, thread) for thread in ("t", "u", "v", "w")]
        for step in range(100):  # in turns: each thread has its own count
            for run in runs:
                run.step(str(step), a=LONG + str(step))
        for run in runs:
            assert 4 <= len(ids(saver, run.thread)) <= 4 + 32
            assert saver.get(address(run.thread, "")) == run.expected["99"]


def test_a_name_that_is_no_string_is_reported_as_damage(postgres, saver):
    running(saver).step("0", a=0)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("UPDATE stategraph_spaces SET checkpoint_ns = '\\xff'")
    with pytest.raises(DamagedError, match="a name is not UTF-8 text"):
        [*saver.threads()]


def test_many_may_set_up_one_new_schema_at_once():
    """`CREATE TABLE IF NOT EXISTS` fails where another makes the table, or its type, at the same moment."""
    for _ in range(5):
        place, barrier = cluster.shared().schema(), threading.Barrier(8)

        def set_up(place=place, barrier=barrier):
            with PostgresSaver.from_conn_string(place, pool_size=1) as saver:
                barrier.wait(30)
                saver.setup()

        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(set_up) for _ in range(8)]:
                each.result()
        with psycopg.connect(place) as connection:
            made = connection.execute("SELECT part, version FROM stategraph_migrations ORDER BY version").fetchall()
            assert made == [(b"threads", version) for version in range(1, len(tables.MIGRATIONS) + 1)]


# -- searches by metadata ---------------------------------------------------------------------------------------


def users(saver, user):
    """The threads of a user, by a search."""
    return [found.config["configurable"]["thread_id"] for found in saver.list(None, filter={"user": user})]


def put_users(saver):
    for number in range(130):
        metadata = {"source": "loop", "step": 0, "parents": {}, "user": f"user {number % 50}"}
        saver.put(address(f"{number}", ""), checkpoint(f"{number}", {}, {}), metadata, {})


def test_tables_of_the_version_before_labels_are_searched(postgres):
    with PostgresSaver.from_conn_string(postgres) as saver, psycopg.connect(postgres, autocommit=True) as raw:
        put_users(saver)
        raw.execute("DROP TABLE stategraph_labels")
        raw.execute("ALTER TABLE stategraph_spaces DROP COLUMN labelled")
        raw.execute("DROP TABLE stategraph_posts")
        raw.execute("DELETE FROM stategraph_migrations WHERE part = 'threads' AND version >= 2")
    with PostgresSaver.from_conn_string(postgres) as saver:
        assert users(saver, "user 7") == ["107", "57", "7"]
        saver.copy_thread("57", "copy")
        metadata = {"source": "loop", "step": 0, "parents": {}, "user": "user 7"}
        saver.put(address("new", ""), checkpoint("new", {}, {}), metadata, {})
        saver.copy_thread("new", "copy of new")
        assert users(saver, "user 7") == ["copy of new", "new", "copy", "107", "57", "7"]
        assert [*saver.threads(filter={"user": "user 49"})] == ["99", "49"]


def test_labels_are_part_of_the_one_statement_of_a_commit(traced):
    saver = PostgresSaver(traced.connection)
    saver.setup()
    run = running(saver)
    made = run.made

    def labelled(*args, **more):
        commit, whole = made(*args, **more)
        commit.metadata["user"] = "ann"
        return commit, whole

    run.made = labelled  # type: ignore[method-assign]
    run.step("1", a=1)
    traced.trips()
    run.step("2", a=2)
    run.step("3", a=LONG)
    assert traced.trips() == 2
    assert [found.checkpoint["id"] for found in saver.list(None, filter={"user": "ann"})] == ["3", "2", "1"]


def test_a_long_thread_is_pruned_in_several_transactions(postgres, monkeypatch):
    """What is left reads back, whatever it builds on, and is as much as after one transaction."""
    monkeypatch.setattr("stategraph.checkpoint.sql.pruning.AT_ONCE", 7)
    left = []
    with PostgresSaver.from_conn_string(postgres) as saver, psycopg.connect(postgres, autocommit=True) as raw:
        for thread, long in (("t", 0), ("u", 10**9)):
            monkeypatch.setattr("stategraph.checkpoint.sql.pruning.LONG", long)
            run = running(saver, thread)
            for step in range(80):
                run.step(f"{step}", a=[LONG] * (step + 1), b=f"{step // 20}" * 300, writes=[("task", [("a", LONG)])])
            saver.prune([thread], keep_last=5)
            kept = [f"{step}" for step in range(79, 74, -1)]
            assert ids(saver, thread) == kept
            for id in kept:
                assert saver.get(address(thread, "", id)) == run.expected[id]
            run.step("80", a=[LONG] * 81)
            assert saver.get(address(thread, "")) == run.expected["80"]
            counts = "SELECT count(*) FROM {} WHERE space = (SELECT id FROM stategraph_spaces WHERE thread_id = %s)"
            tables_left = ("stategraph_checkpoints", "stategraph_values", "stategraph_writes")
            left.append([raw.execute(counts.format(name), [thread.encode()]).fetchone() for name in tables_left])
    assert left[0] == left[1]
