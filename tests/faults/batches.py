"""R43: a store's batches are whole, whoever else writes the same places at the same moment."""

import threading
import time
from contextlib import ExitStack
from random import Random

import psycopg

from stategraph import InMemoryStore
from stategraph.store import PutOp
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore
from stategraph.testing import CheckFailed
from stategraph.testing.concurrency import side_by_side

from .campaign import trial
from .stages import postgres

BATCHES = 100
"""Batches of one round."""

KEYS = [str(number) for number in range(12)]


def opened(round, stack, kind):
    """How a writer opens the store of this round; in memory there is one for all."""
    if kind == "memory":
        store = InMemoryStore()
        return lambda: store
    if kind == "sqlite":
        path = str(round.folder / "store.db")
        return lambda: stack.enter_context(SqliteStore.from_conn_string(path))
    address = postgres(round).address
    held_up(address)
    return lambda: stack.enter_context(PostgresStore.from_conn_string(address, pool_size=2))


def look(store, where):
    """All places, or none, are there, and of one batch.

    Raises:
        CheckFailed: only a part is.
    """
    found = {item.key: item.value["by"] for item in store.search(("a",), limit=100)}
    if found and (sorted(found) != sorted(KEYS) or len(set(found.values())) > 1):
        raise CheckFailed(f"{where}: a part of a batch: {found}")


def held_up(address):
    """A batch deletes all places, and is held up in the middle, when another comes that puts them: none is left of the
    one, or all of the other."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(PostgresStore.from_conn_string(address)) for _ in range(2))
        middle = sorted(KEYS)[len(KEYS) // 2]
        one.put(("a",), middle, {"by": "before"})
        watching = stack.enter_context(psycopg.connect(address, autocommit=True))

        def wait(sessions, *others):
            deadline = time.monotonic() + 20
            text = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
            while watching.execute(text).fetchone()[0] < sessions and all(each.is_alive() for each in others):  # type: ignore[index]
                if time.monotonic() > deadline:
                    raise CheckFailed("nobody waits")

        with psycopg.connect(address) as holding:
            holding.execute("SELECT FROM stategraph_items FOR UPDATE")
            deletes = threading.Thread(target=one.batch, args=([PutOp(("a",), key, None) for key in KEYS],))
            deletes.start()
            wait(1, deletes)
            puts = [PutOp(("a",), key, {"by": "puts"}) for key in KEYS if key != middle]
            putting = threading.Thread(target=two.batch, args=(puts,))
            putting.start()
            wait(2, putting)
        deletes.join()
        putting.join()
        left = [item.key for item in one.search(("a",), limit=100)]
        if len(left) not in (0, len(puts)):
            raise CheckFailed(f"a part of a batch: {left}")
        one.batch([PutOp(("a",), key, None) for key in KEYS])


@trial("R43", quick=3, full=1_000)
def racing_batches(round):
    """100 batches by 4 writers on the same 12 places, in any order of these: each puts all or deletes all. Whoever looks in
    between, and at the end, sees the whole of one batch. In memory, SQLite and Postgres."""
    kind = ("postgres", "sqlite", "memory")[round.number % 3]
    with ExitStack() as stack:
        opens = opened(round, stack, kind)
        stores = [opens() for _ in range(5)]
        done = threading.Event()

        def write(number):
            random = Random(f"{round.random.random()} {number}")
            for turn in range(BATCHES // 4):
                keys = random.sample(KEYS, len(KEYS))
                value = random.choice([None, {"by": f"{number}.{turn}"}])
                stores[number].batch([PutOp(("a",), key, value) for key in keys])
            return BATCHES // 4

        def watch():
            looks = 0
            while not done.is_set():
                look(stores[4], kind)
                looks += 1
            return looks

        def all_write():
            try:
                return sum(side_by_side([lambda n=n: write(n) for n in range(4)]))
            finally:
                done.set()

        wrote, looked = side_by_side([all_write, watch])
        look(stores[4], kind)
        round.count("batches", wrote)
        round.count("looks", looked)
