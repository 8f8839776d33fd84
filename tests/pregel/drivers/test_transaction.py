"""`runtime.transaction`: the rows a function has written and the record of its result are committed together or not
at all. What it has in common with `runtime.once`: `test_effects.py`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from kit.bank import Bank, asking, failing, lose, one_node
from kit.bank import bank as bank
from kit.graphs import CONFIG, Log, chain_of, graph_of, thread_config
from kit.savers import opened_saver
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from stategraph import (
    START,
    Command,
    InMemorySaver,
    RetryPolicy,
    Runtime,
    StateGraph,
    interrupt,
)
from stategraph.checkpoint.encryption import Encryption
from stategraph.checkpoint.errors import CheckpointConflictError
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.executors.proxies import TaskProxy

# -- found again --------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_an_error_of_the_database_in_the_function_is_the_drivers_own(drive, bank):
    def wrong(connection):
        connection.execute("INSERT INTO missing VALUES (1)")

    def body(state):
        yield "pay", wrong

    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        drive.invoke(one_node(drive, body, bank.saver), {}, CONFIG)


def test_several_in_one_node_and_siblings_side_by_side(drive, bank):
    def node_of(name):
        def node(state, runtime: Runtime):
            got = [runtime.transaction(str(number), bank.pay, f"{name}{number}") for number in range(3)]
            return {"log": [name] if len(set(got)) == 3 else got}

        async def anode(state, runtime: Runtime):
            calls = (runtime.atransaction(str(number), bank.pay, f"{name}{number}") for number in range(3))
            got = await asyncio.gather(*calls)
            return {"log": [name] if len(set(got)) == 3 else got}

        return anode if drive.is_async else node

    builder = StateGraph(Log)
    for name in "abc":
        builder.add_node(name, node_of(name)).add_edge(START, name)
    app = builder.compile(bank.saver)
    assert drive.invoke(app, {}, CONFIG) == {"log": ["a", "b", "c"]}
    assert bank.rows() == [f"{name}{number}" for name in "abc" for number in range(3)]


def test_an_attempt_that_was_given_up_in_it_is_waited_for(bank):
    """The next attempt finds what the transaction of the first has left."""
    began, go_on, receipts = threading.Event(), threading.Event(), []

    def slow(connection):
        first = not began.is_set()
        began.set()
        receipt = bank.pay(connection)
        if first:
            assert go_on.wait(10)
        return receipt

    def node(state, runtime: Runtime):
        if began.is_set():
            go_on.set()
        receipts.append(runtime.transaction("pay", slow))
        return {"log": ["done"]}

    policy = RetryPolicy(max_attempts=2, initial_interval=0)
    builder = StateGraph(Log).add_node("pay", node, timeout=0.5, retry_policy=policy).add_edge(START, "pay")
    try:
        builder.compile(bank.saver).invoke({}, CONFIG)
    except TimeoutError:
        pass  # the second attempt may be too slow, too; what was written is what counts
    assert bank.calls == bank.rows() == ["book"]
    assert set(receipts) == {"receipt 1"}


# -- two runs at once ---------------------------------------------------------------------------------------------


def test_a_run_that_was_overtaken_writes_nothing(drive, bank):
    """The thread is edited while its node runs: the head is no longer this run's."""


    def edit():
        one_node(drive, body, bank.saver).update_state(CONFIG, {"log": ["edited"]}, as_node="pay")

    def body(state):
        another = threading.Thread(target=edit)
        another.start()
        another.join()
        return {"log": [(yield "pay", bank.pay)]}

    with pytest.raises(CheckpointConflictError):
        drive.invoke(one_node(drive, body, bank.saver), {}, CONFIG)
    assert bank.calls == bank.rows() == []


# -- what is refused ----------------------------------------------------------------------------------------------


def test_a_graph_cannot_be_used_inside(drive, bank):
    app = chain_of(Log, a=lambda state: {}).compile()
    with pytest.raises(RuntimeError, match=r"a graph cannot be used inside of runtime.transaction\('k'\)"):
        failing(drive, bank, ("k", lambda _: app.invoke({}, thread_config("another"))))


USES = {
    "get_tuple": lambda saver: saver.get_tuple(CONFIG),
    "list": lambda saver: list(saver.list(CONFIG)),
    "threads": lambda saver: list(saver.threads()),
    "put_writes": lambda saver: saver.put_writes(
        thread_config("u", checkpoint_ns="", checkpoint_id="1"), [("a", 1)], "task"
    ),
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "prune": lambda saver: saver.prune(),
    "aget_tuple": lambda saver: asyncio.run(saver.aget_tuple(CONFIG)),
    "aput_writes": lambda saver: asyncio.run(saver.aput_writes(
        thread_config("u", checkpoint_ns="", checkpoint_id="1"), [("a", 1)], "task"
    )),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_the_function_must_not_use_the_saver(drive, bank, use):
    def wrong(connection):
        bank.pay(connection)
        USES[use](bank.saver)

    with pytest.raises(RuntimeError, match="must not use the (Sqlite|Postgres)Saver in whose transaction it runs"):
        failing(drive, bank, ("k", wrong))
    assert bank.rows() == []
    assert failing(drive, bank, ("k", bank.pay)) == {"log": ["receipt 2"]}, "it can be used afterwards"


def test_a_saver_without_transactions(drive, bank):
    def body(state):
        yield "pay", bank.pay

    with pytest.raises(NotImplementedError, match="on InMemorySaver, which has no transactions: .*on="):
        drive.invoke(one_node(drive, body, InMemorySaver()), {}, CONFIG)
    with pytest.raises(RuntimeError, match="in a graph without a checkpointer"):
        drive.invoke(one_node(drive, body, None), {})
    assert bank.calls == []


def test_on_an_executor():
    elsewhere = SimpleNamespace(name="pay")
    with pytest.raises(RuntimeError, match=r"runtime.transaction\('k'\) stays with the driver: .*executor=\"threads\""):
        TaskProxy.begin_effect(elsewhere, "runtime.transaction", "k", awaits=False)


def test_a_saver_that_overrides_put_writes_is_refused(drive, bank):
    class Watching(type(bank.saver)):  # type: ignore[misc]
        def put_writes(self, *args, **kwargs):
            super().put_writes(*args, **kwargs)

    def body(state):
        yield "pay", bank.pay

    told = r"Watching overrides put_writes\(\), which a transaction would pass by"
    with Watching.from_conn_string(bank.target) as saver, pytest.raises(TypeError, match=told):
        drive.invoke(one_node(drive, body, saver), {}, CONFIG)
    assert bank.calls == []


def test_a_coroutine_function(drive, bank):
    async def wrong(connection): ...

    with pytest.raises(TypeError, match="must be a plain one, got a coroutine function"):
        failing(drive, bank, ("pay", wrong))


# -- SQLite -------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    name = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(name, synchronous="off") as opened:
        yield Bank("sqlite", name, opened)


def with_block(connection):
    with connection:
        connection.execute("INSERT INTO ledger VALUES ('with')")


ENDS = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "execute": lambda connection: connection.execute("COMMIT"),
    "end": lambda connection: connection.execute("END"),
    "begin": lambda connection: connection.execute("BEGIN"),
    "with": with_block,
    "executescript": lambda connection: connection.executescript("INSERT INTO ledger VALUES ('script')"),
}
OWN = {
    "insert": "INSERT INTO checkpoints SELECT * FROM checkpoints",
    "delete": "DELETE FROM Writes",
    "update": "UPDATE spaces SET head_id = NULL",
    "drop": "DROP TABLE channel_values",
    "alter": "ALTER TABLE labels RENAME TO others",
    "trigger": "CREATE TRIGGER late AFTER INSERT ON writes BEGIN SELECT 1; END",
    "by trigger": "INSERT INTO trap VALUES (1)",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_function_must_not_end_the_transaction(drive, file, end):
    def wrong(connection):
        file.pay(connection)
        ENDS[end](connection)

    with pytest.raises(RuntimeError, match="(COMMIT|ROLLBACK|BEGIN) is refused in it"):
        failing(drive, file, ("k", wrong))
    assert file.rows() == []
    assert failing(drive, file, ("k", file.pay)) == {"log": ["receipt 2"]}


@pytest.mark.parametrize("statement", OWN)
def test_the_function_must_not_change_the_savers_tables(drive, file, statement):
    connection = file.connect()
    connection.execute("CREATE TABLE trap (n)")
    connection.execute("CREATE TRIGGER on_trap AFTER INSERT ON trap BEGIN DELETE FROM writes; END")
    connection.close()

    def wrong(connection):
        connection.execute(OWN[statement])

    with pytest.raises(RuntimeError, match="table '[A-Za-z_]+' is the engine's own, and must not be changed"):
        failing(drive, file, ("k", wrong))
    assert failing(drive, file, ("k", file.pay)) == {"log": ["receipt 1"]}


def test_savepoints_are_the_functions_own(drive, file):
    def pay(connection):
        file.pay(connection, "kept")
        connection.execute("SAVEPOINT mine")
        file.pay(connection, "dropped")
        connection.execute("ROLLBACK TO mine")
        connection.execute("RELEASE mine")
        connection.row_factory = sqlite3.Row
        return "done"

    assert failing(drive, file, ("k", pay)) == {"log": ["done"]}
    assert file.rows() == ["kept"]
    assert file.saver.get_tuple(CONFIG) is not None, "the saver's rows are tuples again"


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_transaction_that_sqlite_has_undone_itself(drive, file, goes_on):
    connection = file.connect()
    connection.execute("CREATE TABLE one (n UNIQUE)")
    connection.execute("INSERT INTO one VALUES (1)")
    connection.commit()
    connection.close()

    def wrong(connection):
        file.pay(connection)
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO one VALUES (1)")
        if goes_on:
            connection.execute("INSERT INTO ledger VALUES ('outside')")

    with pytest.raises(Exception, match="SQLite (itself )?has undone"):
        failing(drive, file, ("k", wrong))
    assert file.rows() == []


def test_no_isolation_but_one(file):
    def node(state, runtime: Runtime):
        return {"log": [runtime.transaction("k", file.pay, isolation="repeatable read")]}

    app = chain_of(Log, pay=node).compile(file.saver)
    with pytest.raises(ValueError, match="isolation must be 'serializable' on SQLite"):
        app.invoke({}, CONFIG)


def test_others_of_the_file_wait(file):
    """A commit of another thread of execution, and a read through the same saver, come when the function is through."""
    order = []
    inside, ended = threading.Event(), threading.Event()

    def slow(connection):
        inside.set()
        ended.wait(0.2)  # nothing sets it: time for others to come in, if they could
        order.append("function")

    def plain(state):
        return {"log": ["b"]}

    def node(state, runtime: Runtime):
        runtime.transaction("k", slow)

    first = chain_of(Log, pay=node).compile(file.saver)
    second = chain_of(Log, b=plain).compile(file.saver)

    def other():
        assert inside.wait(10)
        second.invoke({}, thread_config("other"))
        order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    first.invoke({}, CONFIG)
    thread.join()
    assert order == ["function", "other"]


# -- a database of the application's ------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def other_saver(request, tmp_path):
    with opened_saver(request.param, request, tmp_path, "emptied") as opened:
        yield opened


@pytest.fixture(params=["sqlite", "psycopg", "pool", "pool.connection"])
def own(request, tmp_path):
    """(bank, on): a ledger in a database of its own, and how it is opened."""
    if request.param == "sqlite":
        bank = Bank("sqlite", str(tmp_path / "own.db"), None)
        yield bank, bank.connect
        return
    bank = Bank("postgres", request.getfixturevalue("postgres"), None)
    if request.param == "psycopg":
        yield bank, bank.connect
        return
    with ConnectionPool(bank.target, min_size=1, max_size=2) as pool:
        yield bank, pool if request.param == "pool" else pool.connection


def elsewhere(drive, saver, function, on, body=None, **options):
    """a, then a node with a transaction on another database; `body` makes of its receipt what the node returns."""
    finish = body or (lambda receipt: {"log": [receipt]})

    def pay(state, runtime: Runtime):
        return finish(runtime.transaction("k", function, on=on, **options))

    async def apay(state, runtime: Runtime):
        return finish(await runtime.atransaction("k", function, on=on, **options))

    return graph_of(Log, "S>a>pay", pay=apay if drive.is_async else pay).compile(
        checkpointer=saver
    )


@pytest.mark.trial
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_elsewhere_a_retry_a_resume_and_an_edit_find_it(drive, other_saver, own, durability):
    bank, on = own
    fails = [ConnectionError()]

    def ask(receipt):
        if fails:
            raise fails.pop()
        return {"log": [receipt, interrupt("content?")]}

    app = elsewhere(drive, other_saver, bank.pay, on, ask)
    with pytest.raises(ConnectionError):
        drive.invoke(app, {}, CONFIG, durability=durability)
    assert drive.invoke(app, None, CONFIG, durability=durability)["__interrupt__"]
    drive.update_state(app, CONFIG, {"log": ["edited"]}, as_node="a")
    app = elsewhere(drive, other_saver, bank.pay, on, ask)
    assert drive.invoke(app, Command(resume="yes"), CONFIG)["log"] == ["a", "edited", "receipt 1", "yes"]
    assert bank.calls == bank.rows() == ["book"]
    before_pay = [each for each in drive.history(app, CONFIG) if each.next == ("pay",)][-1]
    drive.invoke(app, None, before_pay.config)
    assert bank.rows() == ["book"] * 2, "a fork has it again"


def test_elsewhere_an_error_undoes_it(drive, own):
    bank, on = own
    bank.fails = [ConnectionError()]
    thread = drive.on(elsewhere(drive, InMemorySaver(), bank.pay, on))
    with pytest.raises(ConnectionError):
        thread.invoke({})
    assert bank.rows() == []
    assert thread.invoke(None)["log"] == ["a", "receipt 2"]
    assert bank.rows() == ["book"]


def test_elsewhere_a_copied_thread_has_it_of_its_own(drive, own):
    bank, on = own
    saver = InMemorySaver()

    def stop(receipt):
        raise ConnectionError

    with pytest.raises(ConnectionError):
        drive.invoke(elsewhere(drive, saver, bank.pay, on, stop), {}, CONFIG)
    saver.copy_thread("t", "copy")
    drive.invoke(elsewhere(drive, saver, bank.pay, on), None, thread_config("copy"))
    assert bank.rows() == ["book"] * 2


def test_elsewhere_the_function_must_not_end_it(drive, own):
    bank, on = own

    def wrong(connection):
        bank.pay(connection)
        connection.commit()

    with pytest.raises((RuntimeError, psycopg.ProgrammingError), match="COMMIT is refused|commit\\(\\) forbidden"):
        drive.invoke(elsewhere(drive, InMemorySaver(), wrong, on), {}, CONFIG)
    assert bank.rows() == []


def test_elsewhere_no_commit_of_the_thread_waits(file, tmp_path):
    """What is written through the saver meanwhile is stored."""
    bank = Bank("sqlite", str(tmp_path / "own.db"), None)

    def slow(connection):
        another = threading.Thread(target=file.saver.delete_thread, args=("another",))
        another.start()
        another.join(20)
        assert not another.is_alive()
        return bank.pay(connection)

    def node(state, runtime: Runtime):
        return {"log": [runtime.transaction("k", slow, on=bank.connect)]}

    app = chain_of(Log, pay=node).compile(file.saver)
    assert app.invoke({}, CONFIG) == {"log": ["receipt 1"]}


@pytest.mark.parametrize("name", ["DuplicateObject", "DuplicateTable", "UniqueViolation"])
def test_elsewhere_another_makes_the_table_at_the_same_time(drive, postgres, name):
    """Postgres tells the second of two by one of three errors."""
    bank = Bank("postgres", postgres, None)

    class Second(psycopg.Connection[Any]):
        def execute(self, query, *args, **kwargs):
            if "CREATE TABLE" not in query:
                return super().execute(query, *args, **kwargs)
            with psycopg.connect(postgres) as first:
                first.execute(query)
            raise getattr(psycopg.errors, name)

    app = elsewhere(drive, InMemorySaver(), bank.pay, lambda: Second.connect(postgres))
    assert drive.invoke(app, {}, CONFIG)["log"] == ["a", "receipt 1"]
    assert bank.rows() == ["book"]


@pytest.mark.parametrize(("on", "text"), [
    ("ledger.db", "on must be a function that opens a connection .* got str"),
    (sqlite3.connect(":memory:"), "on must be a function .* got Connection: the transaction needs a connection of its own"),
    (lambda: 7, "on must open a connection of sqlite3 or psycopg, got one of builtins.int"),
])  # fmt: skip
def test_elsewhere_what_opens_nothing(drive, on, text):
    with pytest.raises(TypeError, match=text):
        drive.invoke(elsewhere(drive, InMemorySaver(), lambda _: 1, on), {}, CONFIG)


def test_elsewhere_a_pool_of_asyncio(drive, postgres):
    pool = AsyncConnectionPool(postgres, open=False)
    with pytest.raises(TypeError, match="on must open plain connections, got AsyncConnectionPool of asyncio"):
        drive.invoke(elsewhere(drive, InMemorySaver(), lambda _: 1, pool), {}, CONFIG)


def test_elsewhere_the_outcome_of_a_lost_commit_is_looked_up(drive, postgres):
    """The session ends when it has committed, before the answer is read."""
    bank = Bank("postgres", postgres, None)
    losing = [True]

    class Losing(psycopg.Connection[Any]):
        def wait(self, gen, *args, **kwargs):
            result = super().wait(gen, *args, **kwargs)
            if bank.calls and losing and self.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                losing.clear()
                self.close()
                raise psycopg.OperationalError("the connection broke")
            return result

    app = elsewhere(drive, InMemorySaver(), bank.pay, lambda: Losing.connect(postgres))
    assert drive.invoke(app, {}, CONFIG)["log"] == ["a", "receipt 1"]
    assert not losing and bank.calls == bank.rows() == ["book"]


# -- what is not the saver's --------------------------------------------------------------------------------------


def test_an_encrypted_saver(drive, bank):
    with type(bank.saver).from_conn_string(bank.target, integrity=Encryption(b"k" * 32)) as saver:
        plain, bank.saver = bank.saver, saver
        drive.invoke(asking(drive, bank), {}, CONFIG)
        assert drive.invoke(asking(drive, bank), Command(resume="yes"), CONFIG)["log"] == ["a", "receipt 1", "charged", "yes"]
    bank.saver = plain
    assert bank.rows() == ["book"]


def test_foreign_tables_are_left_alone(drive, bank):
    thread = drive.on(asking(drive, bank))
    thread.invoke({})
    thread.resume("yes")
    bank.saver.copy_thread("t", "copy")
    bank.saver.prune(["t"])
    bank.saver.delete_thread("t")
    assert bank.rows() == ["book"]
    assert thread.app.get_state(thread_config("copy")).values["log"] == ["a", "receipt 1", "charged", "yes"]


# -- Postgres -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server(emptied):
    with PostgresSaver.from_conn_string(emptied) as saver:
        yield Bank("postgres", emptied, saver)


def test_commit_and_rollback_are_refused_by_psycopg(drive, server):
    def wrong(connection):
        server.pay(connection)
        connection.commit()

    with pytest.raises(psycopg.ProgrammingError, match="Explicit commit\\(\\) forbidden"):
        failing(drive, server, ("k", wrong))
    assert server.rows() == []


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"])
def test_a_transaction_that_was_ended_by_a_statement_is_noticed(drive, server, statement):
    def wrong(connection):
        connection.execute(statement)

    with pytest.raises(RuntimeError, match="the function of a transaction has ended it"):
        failing(drive, server, ("k", wrong))
    assert failing(drive, server, ("k", server.pay)) == {"log": ["receipt 1"]}


def isolated(drive, saver, function, isolation, **options):
    def node(state, runtime: Runtime):
        return {"log": [runtime.transaction("k", function, isolation=isolation, **options)]}

    async def anode(state, runtime: Runtime):
        return {"log": [await runtime.atransaction("k", function, isolation=isolation, **options)]}

    return drive.invoke(chain_of(Log, pay=anode if drive.is_async else node).compile(saver), {}, CONFIG)


@pytest.mark.parametrize("isolation", [None, "read committed", "repeatable read", "serializable"])
def test_isolation(drive, server, isolation):
    def level(connection):
        return str(connection.execute("SHOW transaction_isolation").fetchone()[0])

    assert isolated(drive, server.saver, level, isolation) == {"log": [isolation or "read committed"]}


def test_an_isolation_that_is_none(drive, server):
    with pytest.raises(ValueError, match="isolation must be one of 'read committed', .* got 'chaos'"):
        isolated(drive, server.saver, server.pay, "chaos")


@pytest.mark.parametrize("fails", [5, 6])
def test_what_was_in_the_way_of_others_is_called_again(drive, server, fails):
    """Each time another session changes the row that it has read: code 40001."""
    with server.connect() as connection:
        connection.execute("CREATE TABLE counter (n int)")
        connection.execute("INSERT INTO counter VALUES (0)")
    tries = []

    def count(connection):
        (found,) = connection.execute("SELECT n FROM counter").fetchone()
        tries.append(found)
        if len(tries) <= fails:
            with server.connect() as another:
                another.execute("UPDATE counter SET n = n + 1")
        connection.execute("UPDATE counter SET n = %s", (found + 100,))
        return int(found)

    if fails == 5:
        assert isolated(drive, server.saver, count, "repeatable read") == {"log": [5]}
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            isolated(drive, server.saver, count, "repeatable read")
    assert tries == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_commit_response(drive, server, monkeypatch, arrives):
    """If it had arrived the record is found; else the function is called again."""
    server.calls = lose(monkeypatch, "COMMIT", arrives=arrives)
    thread = drive.on(one_node(drive, lambda state: pay_and_ask(server), server.saver))
    asked = thread.invoke({})
    assert asked["__interrupt__"][0].value == "content?"
    assert server.rows() == ["book"]
    assert len(server.calls) == (1 if arrives else 2)
    answered = thread.resume("yes")
    assert answered == {"log": [f"receipt {len(server.calls)}", "yes"]}


def pay_and_ask(bank: Bank):
    receipt = yield "pay", bank.pay
    return {"log": [receipt, interrupt("content?")]}


def test_a_connection_that_breaks_in_the_function(drive, server):
    def breaks(connection):
        receipt = server.pay(connection)
        if len(server.calls) == 1:
            with server.connect() as another:
                another.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        connection.execute("SELECT 1")
        return receipt

    assert failing(drive, server, ("k", breaks)) == {"log": ["receipt 2"]}
    assert server.rows() == ["book"]
