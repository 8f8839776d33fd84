"""The graph's store where nodes run on executors: which can be opened there, when, how often, and how it is closed."""

import dataclasses
import functools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from kit import cluster
from kit.executor_graphs import (
    INDEX,
    Noted,
    State,
    lengths,
    only_looks,
    opens_its_store,
    recalls_in_time,
    remembers,
    row,
)

from stategraph import START, InMemoryStore, InvalidGraphError, StateGraph, entrypoint, task
from stategraph.checkpoint import StorageError
from stategraph.executors import Executor, ProcessExecutor, pickling
from stategraph.executors.protocol import Unsendable
from stategraph.executors.stores import OpenStores, dump_opener
from stategraph.pregel import ShippingError
from stategraph.store import BaseStore
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

postgres = cluster.emptied


@pytest.fixture(scope="module")
def one():
    with ProcessExecutor(1) as found:
        yield found


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


# -- which can be opened there ------------------------------------------------------------------------------------


class Silent(BaseStore):
    """Says nothing of how it is opened."""


class Ducks:
    """A store by its methods only."""

    def put(self, *args): ...


@pytest.mark.parametrize("store", [InMemoryStore(), SqliteStore(":memory:"), SqliteStore(""), Silent(), Ducks()])
def test_a_store_that_lives_in_its_process_is_refused_at_compile(one, store):
    kind = type(store).__name__
    with pytest.raises(InvalidGraphError, match=rf"'remembers'.* parameter 'store'.*\({kind}\) stays with the driver"):
        row(remembers, executor=one, store=store)
    pinned = StateGraph(State).add_node(remembers, executor=one).add_edge(START, "remembers")
    with pytest.raises(InvalidGraphError, match="stays with the driver"):
        pinned.compile(store=store)


def test_the_store_of_the_graph_around_is_refused_at_the_call(drive, one):
    inside = row(remembers)
    app = row(("inside", inside), executor=one, store=InMemoryStore())
    with pytest.raises(ShippingError, match=r"'remembers'.* its parameter 'store': the store \(InMemoryStore\) stays") as caught:
        drive.invoke(app, {"n": 1})
    assert (caught.value.node, caught.value.path) == ("remembers", "its parameter 'store'")


def test_the_store_of_the_graph_around_is_used(drive, one, tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "a.db")) as store:
        drive.invoke(row(("inside", row(remembers)), executor=one, store=store), {"n": 1})
        assert store.get(("notes", "1"), "n").value == {"n": 1}  # type: ignore[union-attr]


def test_a_task_on_an_executor_has_the_store(drive, one, tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "a.db")) as store:

        @entrypoint(store=store)
        def flow(n):
            return task(remembers, executor=one)({"n": n}).result()

        drive.invoke(flow, 4)
        assert store.get(("notes", "4"), "n").value == {"n": 4}  # type: ignore[union-attr]


def test_without_a_store_a_function_gets_none(drive, one):
    assert drive.invoke(row(opens_its_store, executor=one), {})["log"] == [None]


def test_a_subclass_is_opened_as_what_it_is(one, tmp_path):
    class Mine(SqliteStore):
        pass

    with Mine.from_conn_string(str(tmp_path / "a.db")) as store:
        assert row(opens_its_store, executor=one, store=store).invoke({})["log"] == ["Mine"]


# -- what travels along -------------------------------------------------------------------------------------------


async def far_lengths(texts):
    return lengths(texts)


@pytest.mark.parametrize("embed", [lengths, far_lengths, lambda texts: lengths(texts), functools.partial(map, lambda t: [len(t), 1])])
def test_what_finds_by_meaning_goes_along(one, tmp_path, embed):
    if isinstance(embed, functools.partial):
        embed = Listed(embed)
    with SqliteStore.from_conn_string(str(tmp_path / "a.db"), index={**INDEX, "embed": embed}) as store:
        assert row(recalls_in_time, executor=one, store=store).invoke({})["log"] == ["3"]
        assert store.search((), query="xxx", limit=1)[0].key == "3"


class Listed:
    """An object that can be called."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, texts):
        return list(self.inner(texts))


def test_an_embed_function_that_cannot_be_pickled_is_named(one, tmp_path):
    lock = threading.Lock()
    store = SqliteStore(tmp_path / "a.db", index={"dims": 2, "embed": lambda texts: lock})
    why = r"""store\.options\["index"\]\["embed"\], which uses 'lock': cannot pickle '_thread.lock' object\. .* cannot be sent to a worker"""
    with closing(store), pytest.raises(InvalidGraphError, match=why):
        row(remembers, executor=one, store=store)


def test_without_cloudpickle_definitions_of_the_script_are_an_error(one, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    pickling._value_pickler.cache_clear()
    monkeypatch.setattr("stategraph.executors.stores.dump_function", lambda opens, **_: b"c__main__\nembed")
    found = dump_opener(Noted("log"), one)
    assert isinstance(found, Unsendable) and found.why.endswith("which workers cannot import: install cloudpickle")
    assert dump_opener(Noted("log"), Executor()) == b"c__main__\nembed", "other workers import it"


def test_how_long_items_live_goes_along(one, tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "a.db"), ttl={"default_ttl": 7.0}) as store:
        row(remembers, executor=one, store=store).invoke({"n": 1})
        ttls = store._database.execute("SELECT key, ttl FROM store_items").fetchall()
    assert sorted(ttls) == [("1", 5.0), ("n", 7.0)]


# -- when, and how often ------------------------------------------------------------------------------------------


def test_it_is_opened_once_in_a_process_for_all_runs(drive, one, log):
    for _ in range(3):
        assert drive.invoke(row(opens_its_store, opens_its_store_again, executor=one, store=Noted(log)), {})["log"] == ["Noted"] * 2
    assert log.read_text().split() == ["opened"]


def opens_its_store_again(state, runtime):
    return {"log": [type(runtime.override(previous=1).store).__name__]}


def test_a_worker_keeps_its_connections(drive, one, postgres):
    with PostgresStore.from_conn_string(postgres) as store:
        mine = set(tells_its_connection({}, store)["log"])
        found = [drive.invoke(row(tells_its_connection, executor=one, store=store), {})["log"][0] for _ in range(10)]
    assert len({*found}) <= 2, "a pool that just begins may open a second one"
    assert mine.isdisjoint(found)


def tells_its_connection(state, store):
    with store._server.statements() as wire:
        return {"log": wire.rows("SELECT pg_backend_pid()")}


def test_a_store_is_opened_only_for_nodes_that_use_it(drive, one, log):
    assert drive.invoke(row(only_looks, executor=one, store=Noted(log)), {})["log"] == ["only looked"]
    assert not log.exists()


def test_a_store_that_cannot_be_opened_is_reported_with_the_node(drive, one, tmp_path):
    app = row(opens_its_store, executor=one, store=Noted(tmp_path / "nowhere" / "log"))
    with pytest.raises(ShippingError, match=r"'opens_its_store'.*: the store: cannot be opened in process \d+: FileNotFoundError"):
        drive.invoke(app, {})
    (tmp_path / "nowhere").mkdir()
    assert drive.invoke(app, {})["log"] == ["Noted"], "it is tried again"


@pytest.mark.trial
def test_a_missing_file_is_reported_and_not_created(drive, tmp_path):
    path = tmp_path / "a.db"
    with ProcessExecutor(1) as fresh, SqliteStore.from_conn_string(str(path)) as store:
        app = row(opens_and_reads, executor=fresh, store=store)
        path.rename(tmp_path / "b.db")
        with pytest.raises(RuntimeError, match=r"'opens_and_reads' runs on an executor .*: StorageError: its file '.*/a.db' no longer exists"):
            drive.invoke(app, {})
        assert not path.exists()


class Far(SqliteStore):
    """As a worker on another machine sees it."""

    def reopen(self):
        return dataclasses.replace(super().reopen(), machine="another")  # type: ignore[type-var]


def test_a_worker_on_another_machine_says_what_to_do(drive, one, tmp_path):
    with Far.from_conn_string(str(tmp_path / "a.db")) as store:
        assert drive.invoke(row(only_looks, executor=one, store=store), {})["log"] == ["only looked"]
        with pytest.raises(StorageError, match=r"an SQLite file on another machine, .*: use a PostgresStore") as caught:
            drive.invoke(row(opens_and_reads, executor=one, store=store), {})
    assert any("while node 'opens_and_reads' opened the graph's store in process" in n for n in caught.value.__notes__)


def opens_and_reads(state, runtime):
    return {"log": [runtime.store.get(("a",), "b")]}


# -- what a worker has opened -------------------------------------------------------------------------------------


def recipes(log, count):
    return [pickling.dumps(functools.partial(Noted, log, str(n))) for n in range(count)]


def test_threads_that_ask_at_once_share_one(log):
    stores, (recipe,) = OpenStores(), recipes(log, 1)
    together = threading.Barrier(8)

    def take(user):
        together.wait()
        return stores.take(recipe, user)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(take, range(8)))) == 1
    assert log.read_text().split() == ["opened0"]


def test_those_out_of_use_longest_are_closed(log):
    stores, packed = OpenStores(most=2), recipes(log, 4)
    for n in (0, 1, 2, 0, 3):
        stores.take(packed[n], "a user")
        stores.give_back("a user")
    assert log.read_text().split() == ["opened0", "opened1", "opened2", "closed0", "opened0", "closed1", "opened3", "closed2"]


def test_none_is_closed_that_is_in_use(log):
    stores, packed = OpenStores(most=0), recipes(log, 2)
    for user in ("one", "two"):
        stores.take(packed[0], user)
    stores.take(packed[1], "one")
    stores.give_back("one")
    stores.give_back("nobody")
    assert log.read_text().split() == ["opened0", "opened1", "closed1"]
    stores.give_back("two")
    assert log.read_text().split()[3:] == ["closed0"]


def test_all_are_closed_in_the_end_whatever_one_of_them_says(log):
    stores = OpenStores()
    for packed in (*recipes(log, 1), pickling.dumps(Defiant), pickling.dumps(InMemoryStore), *recipes(log, 2)[1:]):
        stores.take(packed, "a user")
    stores.close()
    stores.close()
    assert log.read_text().split() == ["opened0", "opened1", "closed0", "closed1"]


class Defiant(InMemoryStore):
    def close(self):
        raise OSError("no")


@pytest.mark.trial
def test_a_process_closes_what_it_has_opened_and_the_child_of_a_fork_opens_its_own(log):
    code = f"""if True:
        import os
        from functools import partial
        from kit.executor_graphs import Noted
        from stategraph.executors import pickling
        from stategraph.executors.stores import OPEN

        recipe = pickling.dumps(partial(Noted, {str(log)!r}, ""))
        mine = OPEN.take(recipe, "parent")
        child = os.fork()
        assert (OPEN.take(recipe, "again") is mine) == bool(child)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            OPEN.close()
            os._exit(0)
    """
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert log.read_text().split() == ["opened", "opened", "closed", "closed"]
