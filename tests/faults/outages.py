"""R12: the database goes away and comes back while runs go on, or is cut off."""

from __future__ import annotations

import threading
import time
from itertools import count

from kit import cluster, machines
from kit.graphs import Log as State
from kit.graphs import chain_of, thread_config

from stategraph import END
from stategraph.checkpoint import StorageError
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.store.postgres import PostgresStore
from stategraph.testing import CheckFailed, assert_same

from .campaign import Skipped, trial

STEPS, THREADS, RESTARTS = 40, 3, 3
TURNS = 2
PLACE = ("numbers",)


def counting(saver):
    return (
        chain_of(State, add=lambda state: {"log": [len(state["log"])]})
        .add_conditional_edges("add", lambda state: "add" if len(state["log"]) < STEPS else END, ["add", END])
        .compile(saver)
    )


def carried(app, config):
    """A run to its end; whoever is told that the server is away goes on from what is stored."""
    return told(lambda: app.invoke(None if app.get_state(config).values else {"log": []}, config))


def judged(app, thread):
    """Run a thread; it must hold each step once."""
    config = thread_config(thread)
    assert_same(carried(app, config)["log"], [*range(STEPS)], f"the log of thread {thread}")
    steps = told(lambda: [each.metadata["step"] for each in app.get_state_history(config)])
    assert_same(steps, [*range(STEPS, -2, -1)], f"the steps of thread {thread}")


def told(call):
    """What a call answers, made again while the server is away."""
    for _ in range(20):
        try:
            return call()
        except StorageError:
            time.sleep(0.05)
    raise CheckFailed("20 calls were not answered")


@trial("R12", quick=1, full=100)
def restarted_under_load(round):
    """The server is stopped, as if by power loss every other time, and started again while three threads store
    supersteps: every run ends, every thread holds each step once, and nobody waits beyond the timeout."""
    found = cluster.programs()
    if found is None:
        raise Skipped("no programs of a Postgres server here")
    server = cluster.Cluster(found)
    failed = []
    over = threading.Event()
    try:
        with PostgresSaver.from_conn_string(server.schema(), timeout=20) as saver:
            app = counting(saver)
            saver.setup()

            def work(name):
                try:
                    for run in count():
                        if over.is_set():
                            return
                        judged(app, f"{name} {run}")
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(THREADS)]
            for thread in threads:
                thread.start()
            for turn in range(RESTARTS):
                threads[0].join(round.random.uniform(0.05, 0.4))
                server.restart("immediate" if turn % 2 else "fast")
            over.set()
            for thread in threads:
                thread.join(120)
                if thread.is_alive():
                    raise CheckFailed("a run still waits two minutes after the server is back")
    finally:
        server.remove()
    if failed:
        raise failed[0]


@trial("R12", quick=1, full=50)
def given_up(round):
    """A program stores one number after the other while its cable is pulled and plugged in again; it gives a call up
    after half a second and goes on with the next number. What it was told stored is read back, and no number that was
    given up is stored later on."""
    machines.require()
    with machines.Network() as network:
        server, desk = network.host(), network.host()
        with (
            machines.postgres_on(server) as postgres,
            desk.inside(),
            PostgresStore.from_conn_string(postgres.schema(), timeout=0.5) as store,
        ):
            store.setup()
            for turn in range(TURNS):
                stored_in_turn(round, store, desk, 10 * turn)


def stored_in_turn(round, store, desk: machines.Host, number):
    """Store numbers, from this one on, across a pulled cable, until some time after it is back."""
    store.put(PLACE, "key", {"number": number})
    desk.pull()
    back = time.monotonic() + round.random.uniform(0.6, 2.4)
    plug = threading.Timer(back - time.monotonic(), desk.plug)
    plug.start()
    ends = back + 3  # what the system still sent would be there by then
    while time.monotonic() < ends:
        number += 1
        try:
            store.put(PLACE, "key", {"number": number})
            while time.monotonic() > back and time.monotonic() < ends:
                found = store.get(PLACE, "key")
                assert_same(found and found.value, {"number": number}, "what is stored")
                time.sleep(0.02)
        except StorageError:
            round.count("calls given up")
    plug.join()
