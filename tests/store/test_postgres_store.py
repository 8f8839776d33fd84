"""What is Postgres's own about `PostgresStore`: round trips, races, servers that restart. That it answers as the other
stores do is shown in `test_store`."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from kit import cluster
from kit.cluster import Proxy, Traced
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool

from stategraph.checkpoint import StorageError
from stategraph.checkpoint.sql import postgres_server as server_module
from stategraph.checkpoint.sql import postgres_wire as wire_module
from stategraph.checkpoint.sql.postgres_server import ConnectionLostError
from stategraph.checkpoint.sql.postgres_wire import Patient
from stategraph.store import GetOp, ItemChangedError, PutOp, SearchOp, UnchangedOp, escape
from stategraph.store import postgres as store_module
from stategraph.store.postgres import PAGE, PostgresStore

A = ("a",)


@pytest.fixture
def store(postgres):
    with PostgresStore.from_conn_string(postgres) as opened:
        yield opened


def found_keys(store, *prefix, **options):
    return [item.key for item in store.search(prefix, **options)]


def test_a_database_keeps_all_and_all_see_it(postgres):
    index = {"dims": 2, "embed": lambda texts: [[len(text), 1] for text in texts], "fields": ["text"]}
    with PostgresStore.from_conn_string(postgres, index=index) as one:
        one.put(("a", "b"), "k", {"text": "cat"}, ttl=5)
        before = one.search((), query="cat")
        assert before[0].score == pytest.approx(1)
        with PostgresStore.from_conn_string(postgres, index=index) as two:
            assert two.search((), query="cat") == before
            two.put(("a", "b"), "l", {"text": "dog"})
        assert found_keys(one, "a") == ["l", "k"]
    with PostgresStore.from_conn_string(postgres) as other:
        other.setup()
        assert [item.score for item in other.search((), query="cat")] == [None, None], "its vectors do not count here"
    with pytest.raises(StorageError, match="closed"):
        other.get(A, "k")


def test_names_may_be_long_and_hold_any_character(store):
    long = "ü\0'%" * 5000
    places = [(long,), (long, "x"), (long + "x",), ("a", long), A, ("a\0",)]
    for number, place in enumerate(places):
        store.put(place, long, {"n": number})
    assert [store.get(place, long).value["n"] for place in places] == [*range(6)]  # type: ignore[union-attr]
    assert [item.value["n"] for item in store.search((long,))] == [1, 0]
    assert [item.value["n"] for item in store.search(A)] == [4, 3]
    assert store.list_namespaces() == sorted(places)


def test_a_batch_is_stored_whole_or_not_at_all(store, postgres):
    store.put(A, "old", {"n": 0})
    with psycopg.connect(postgres) as connection:
        connection.execute("ALTER TABLE stategraph_items ADD CHECK (key <> 'bad')")
    batch = [PutOp(A, "old", {"n": 1}), PutOp(A, "new", {}), PutOp(A, "bad", {})]
    with pytest.raises(StorageError, match="violates check constraint"):
        store.batch(batch)
    assert found_keys(store, "a") == ["old"]
    assert store.get(A, "old").value == {"n": 0}  # type: ignore[union-attr]
    store.batch(batch[:2])
    assert found_keys(store, "a") == ["new", "old"]


def test_round_trips_do_not_grow_with_the_batch(postgres, tmp_path):
    traced = Traced(postgres, tmp_path / "trace")
    store = PostgresStore(traced.connection)
    for number in range(6):  # until all is prepared
        store.put(A, "k", {"n": number})
        store.get(A, "k")
        store.search(A)
        store.batch([PutOp(A, "k", {}), PutOp(A, "l", {})])
    traced.trips()
    store.put(A, "k", {"n": 1})
    assert traced.trips() == 1
    store.get(A, "k")
    assert traced.trips() == 1
    store.search(A)
    assert traced.trips() == 3
    store.batch([PutOp(A, str(number), {"n": number}) for number in range(500)])
    assert traced.trips() <= 6
    assert len(store.search((), limit=1000)) == 502
    traced.close()


def test_a_search_sees_one_state_however_long_it_is(store, postgres):
    names = [str(number) for number in range(2 * PAGE + 10)]
    store.batch([PutOp(A, name, {}) for name in names])
    rows = wire_module.Wire.rows
    pages = []

    def put_meanwhile(wire, statement, *values):
        found = rows(wire, statement, *values)
        if statement == store_module._SCAN and not pages:
            pages.append(1)
            with PostgresStore.from_conn_string(postgres) as other:
                other.put(A, "0", {"moved": "to the front"})
                other.delete(A, "1")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_module.Wire, "rows", put_meanwhile)
        assert found_keys(store, "a", limit=10_000) == names[::-1]
    assert found_keys(store, "a", limit=10_000) == ["0", *names[:1:-1]]


def test_batches_in_each_others_way_all_arrive(store, monkeypatch):
    clashes = []
    is_clash = store_module.is_clash
    monkeypatch.setattr(store_module, "is_clash", lambda error: clashes.append(error) or is_clash(error))
    names = [str(number) for number in range(20)]
    gate = threading.Barrier(4)

    def work(name):
        for turn in range(10):
            gate.wait()
            order = names if name % 2 else names[::-1]
            store.batch([PutOp(A, key, {"by": name, "turn": turn}) for key in order])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, name) for name in range(4)]:
            done.result()
    assert not clashes, "they write in one order, so none waits for one that waits for it"
    assert sorted(found_keys(store, "a", limit=100), key=int) == names
    found = store.search(A, limit=100)
    assert {item.value["turn"] for item in found} == {9}
    assert len({item.value["by"] for item in found}) == 1, "one batch came last, whole"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_store_finds_its_server_again(server, postgres, mode):
    with PostgresStore.from_conn_string(postgres) as store:
        store.put(A, "k", {"n": 1})
        server.restart(mode)
        assert store.get(A, "k").value == {"n": 1}  # type: ignore[union-attr]
        server.restart(mode)
        store.put(A, "k", {"n": 2})
        assert store.get(A, "k").value == {"n": 2}  # type: ignore[union-attr]


@pytest.fixture
def server():
    return cluster.shared()


def test_reads_survive_a_lost_response_and_writes_raise_that_the_outcome_is_unknown(server, postgres):
    proxy = Proxy(server.port)
    try:
        with PostgresStore.from_conn_string(proxy.address(postgres), pool_size=1) as store:
            store.put(A, "k", {"n": 1})
            for lose in ("question", "answer"):
                proxy.lose = lose
                assert store.get(A, "k").value == {"n": 1}  # type: ignore[union-attr]
                proxy.lose = lose
                assert found_keys(store) == ["k"]
            proxy.lose = "answer"
            with pytest.raises(ConnectionLostError, match="is not known"):
                store.put(A, "k", {"n": 2})
            assert found_keys(store) == ["k"]
    finally:
        proxy.close()


def test_the_set_of_sql_texts_is_fixed(postgres):
    sent = set()

    class Watched(psycopg.RawCursor[Any]):
        def execute(self, query, *args, **kwargs):
            sent.add(query)
            return super().execute(query, *args, **kwargs)

        def executemany(self, query, *args, **kwargs):
            sent.add(query)
            return super().executemany(query, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_module, "RawCursor", Watched)
        with PostgresStore.from_conn_string(postgres, ttl={"default_ttl": 5, "sweep_interval_minutes": 1e-9}) as store:
            for text in ("'; DROP TABLE stategraph_items; --", "$1", "%s", "\\", '"', "a\0b", "ü", "%", "_"):
                store.batch([PutOp((text,), text, {text: text}), PutOp((text, text), text, {text: text})])
                found = store.batch([GetOp((text,), text), SearchOp((text,), {escape(text): text})])
                assert found[0].value == {text: text}  # type: ignore[union-attr]
                assert len(found[1]) == 2  # type: ignore[arg-type]
                assert (text, text) in store.list_namespaces()
                store.delete((text,), text)
                store.sweep_ttl()
            assert len(store.search((), limit=100)) == 9
    known = {text for module in (store_module, server_module, wire_module) for text in vars(module).values() if isinstance(text, str)}
    assert sent <= known | {text for group in store_module.MIGRATIONS for text in group}


def test_a_pool_and_a_connection_handed_in_stay_open(postgres):
    with ConnectionPool(postgres, min_size=1, max_size=2, name="stategraph") as pool, psycopg.connect(postgres) as one:
        for number, target in enumerate((pool, one)):
            store = PostgresStore(target)
            store.batch([PutOp(A, str(key), {}) for key in range(number, number + 3)])
            store.close()
        assert one.execute("SELECT count(*) FROM stategraph_items").fetchone() == (4,)
        with pool.connection() as connection:
            assert connection.execute("SELECT count(*) FROM stategraph_items").fetchone() == (4,)


# -- reopened in another process ------------------------------------------------------------------------------------------------


def again(store):
    return pickle.loads(pickle.dumps(store.reopen()))()


def test_the_same_tables_are_opened_again(postgres):
    index = {"dims": 1, "embed": embed_lengths}
    with PostgresStore.from_conn_string(postgres, index=index, ttl={"default_ttl": 3}, pool_size=2, timeout=5) as store:
        store.put(A, "k", {"n": 1})
        with closing(again(store)) as other:
            assert other.search((), query="x") == store.search((), query="x") != []
            assert other._options == store._options == {
                "index": index, "ttl": {"default_ttl": 3}, "clock": time.time, "pool_size": 2, "timeout": 5
            }  # fmt: skip


def embed_lengths(texts):
    return [[len(text)] for text in texts]


def test_what_the_environment_adds_goes_along(postgres, monkeypatch):
    parts = conninfo_to_dict(postgres)
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    monkeypatch.setenv("PGPASSWORD", "a 'secret")
    monkeypatch.setenv("PGOPTIONS", str(parts.pop("options")))
    monkeypatch.setenv("PGPORT", str(parts.pop("port")))
    with PostgresStore.from_conn_string(make_conninfo(**parts)) as store:  # type: ignore[arg-type]
        store.put(A, "k", {"n": 1})
        opens = store.reopen()
        for name in ("PGHOST", "PGPASSWORD", "PGPORT", "PGOPTIONS"):
            monkeypatch.delenv(name)
        assert "secret" in opens.address and "secret" not in repr(opens)
        with closing(opens()) as other:
            assert other.get(A, "k") == store.get(A, "k") is not None


def test_a_service_is_left_to_the_other_side(monkeypatch):
    monkeypatch.setenv("PGHOST", "elsewhere")
    with PostgresStore.from_conn_string("service=mine") as store:
        assert store.reopen().address == "service=mine"


@pytest.mark.parametrize("pooled", [False, True])
def test_of_a_connection_handed_in_its_session_counts(postgres, pooled):
    schema = str(conninfo_to_dict(postgres)["options"]).partition("=")[2]
    told = f"""SET search_path = {schema}, "$user", public; SET ROLE pg_monitor"""
    address = cluster.shared().address
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"GRANT ALL ON SCHEMA {schema} TO pg_monitor")  # type: ignore[arg-type]

    def configure(connection):
        connection.autocommit = True
        connection.execute(told)

    with ExitStack() as stack:
        if pooled:
            given = stack.enter_context(ConnectionPool(address, min_size=1, configure=configure, name="stategraph"))
        else:
            given = stack.enter_context(psycopg.connect(f"{address} password=secret"))
            configure(given)
        store = PostgresStore(given)
        store.put(A, "k", {"n": 1})
        opens = store.reopen()
        assert ("secret" in opens.address) != pooled and "secret" not in repr(opens)
        with closing(opens()) as other:
            assert other.get(A, "k") == store.get(A, "k") is not None
            with other._server.statements() as wire:
                shown = wire.rows("SELECT current_user::text, current_setting('search_path')")
        assert shown == [("pg_monitor", f'{schema}, "$user", public')]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "/tmp", "", "db,localhost"])
def test_a_local_address_is_not_taken_for_another_machines(monkeypatch, host):
    with PostgresStore.from_conn_string(make_conninfo(host=host)) as store:
        opens = store.reopen()
    opens().close()
    monkeypatch.setattr(store_module, "this_network", lambda: "another")
    with pytest.raises(StorageError, match="has a local address.*: open the store with a host name or address that is valid"):
        opens()
    with PostgresStore.from_conn_string(make_conninfo(host="localhost", hostaddr="10.0.0.7")) as store:
        opens = store.reopen()
    opens().close()


def test_one_that_was_closed_is_not_opened_elsewhere(store):
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.reopen()


# -- batches are whole ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("put", "outcomes"),
    [
        (lambda store: store.batch([PutOp(A, key, {}) for key in "az"]), [[], ["z", "a"]]),
        # The first that is put alone is not kept where the second is deleted.
        (lambda store: [store.put(A, key, {}) for key in "az"], [[], ["z"], ["z", "a"]]),
    ],
)
def test_a_batch_of_deletes_is_done_whole_before_or_after_puts(store, postgres, put, outcomes):
    """The deletes are held up in the middle, when the puts come: these are all deleted, or they all stay."""
    store.put(A, "m", {})
    with psycopg.connect(postgres, autocommit=True) as watch, ThreadPoolExecutor(2) as pool:
        with psycopg.connect(postgres) as other:
            other.execute("SELECT FROM stategraph_items FOR UPDATE")
            deletes = pool.submit(store.batch, [PutOp(A, key, None) for key in "amz"])
            wait_until(lambda: waiting(watch) == 1)
            puts = pool.submit(put, store)
            wait_until(lambda: waiting(watch) == 2 or puts.done())
        deletes.result(), puts.result()
    assert found_keys(store) in outcomes


def test_a_delete_comes_before_or_after_a_batch_with_a_condition(store, postgres):
    """It comes when the batch has found its condition true, and has not written yet: what was read is not what goes."""
    store.batch([PutOp(A, "0", {}), PutOp(A, "x", {"n": 1})])
    with psycopg.connect(postgres, autocommit=True) as watch, ThreadPoolExecutor(2) as pool:
        with psycopg.connect(postgres) as other:
            other.execute("SELECT FROM stategraph_items WHERE key = '0' FOR UPDATE")
            change = [UnchangedOp(A, "x", {"n": 1}), PutOp(A, "0", {}), PutOp(A, "x", {"n": 2})]
            update = pool.submit(store.batch, change)
            wait_until(lambda: waiting(watch) == 1)
            delete = pool.submit(store.delete, A, "x")
            wait_until(lambda: waiting(watch) == 2 or delete.done())
        update.result(), delete.result()
    assert found_keys(store) == ["0"]


def waiting(watch: psycopg.Connection[Any]):
    """How many sessions wait for a lock."""
    return watch.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted").fetchone()[0]  # type: ignore[index]


def wait_until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_reads_that_renew_and_puts_do_not_wait_for_each_other(postgres, monkeypatch):
    clashes = []
    monkeypatch.setattr(store_module, "is_clash", lambda error: clashes.append(error) or False)
    with PostgresStore.from_conn_string(postgres, ttl={"default_ttl": 5}) as store:
        store.batch([PutOp(A, key, {}) for key in "abcdef"])
        gate = threading.Barrier(4, timeout=20)

        def work(name):
            for _ in range(20):
                gate.wait()
                keys = "abcdef" if name % 2 else "fedcba"
                store.batch([*(GetOp(A, key) for key in keys[:3]), *(PutOp(A, key, {}) for key in keys[3:])])

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, name) for name in range(4)]:
                done.result()
    assert not clashes


def test_round_trips_of_batches_on_connections_of_its_own(postgres, monkeypatch):
    trips, wait = [], Patient.wait

    def count(self: Patient, *args, **kwargs):
        trips.append(args)
        return wait(self, *args, **kwargs)

    def write(n):
        seen = UnchangedOp(A, "1", {"n": n - 1} if n else None)
        return [seen, PutOp(A, "1", {"n": n}), PutOp(A, "2", {"n": n}), PutOp(A, "3", None)]

    read = [GetOp(A, "1"), GetOp(A, "none"), GetOp(A, "2"), GetOp(A, "1")]
    with PostgresStore.from_conn_string(postgres, pool_size=1) as store:
        for number in range(5):  # until all is prepared
            store.batch(write(number))
            store.batch(read)
        monkeypatch.setattr(Patient, "wait", count)
        store.batch(write(5))
        assert len(trips) == 4  # begin; locks and numbers; what is there; writes and commit
        trips.clear()
        found = store.batch(read)
        assert len(trips) == 1
        assert [each and each.value["n"] for each in found] == [5, None, 5, 5]
        with pytest.raises(ItemChangedError):
            store.batch(write(5))
        assert store.get(A, "1").value == {"n": 5}  # type: ignore[union-attr]
        store.batch(write(6))
