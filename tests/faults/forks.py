"""R41: nodes that fork, and nodes that write into their worker's pipe, on processes of our own that are killed meanwhile.
An answer belongs to its call, and a worker that is lost is noticed while a child of its holds its pipe."""

from __future__ import annotations

import signal
import threading
import time

from kit.forking_nodes import (
    FORKING,
    child_tells,
    dies_beside_a_child,
    graph_of,
    leaves_a_child_of_c,
    plain,
)
from kit.hostile_nodes import HOSTILE, answers_twice, hostile

from stategraph.executors import ProcessExecutor
from stategraph.pregel import WorkerLostError
from stategraph.testing import CheckFailed, assert_same

from .campaign import trial

KINDS = [*FORKING, plain, dies_beside_a_child, answers_twice, hostile, leaves_a_child_of_c]
WORKERS, DRIVERS, CALLS = 2, 3, 6
"""So many threads make so many calls each, on fewer workers."""


def one_call(round, executor: ProcessExecutor, token, wish):
    """A call with a token of its own. Its answer must be its own, and of the worker, not of a child."""
    folder = str(round.folder)
    kind = KINDS[wish]
    if kind is hostile:
        token = f"{[*HOSTILE][round.number % len(HOSTILE)].__name__} {token}"
    app = graph_of(kind, executor=executor)
    try:
        (found,) = app.invoke({"token": token, "folder": folder})["answers"]
    except WorkerLostError:  # its own death, the kill, and what another node has left in the pipe: three
        round.count("calls given up after three workers, and made again")
        (found,) = app.invoke({"token": token, "folder": folder})["answers"]
    assert_same(found[:2], (token, True), f"the answer to {token!r} of {kind.__name__}")
    if kind in FORKING:
        seen = (0,) if kind is child_tells else FORKING[kind]  # nobody listens, so it may
        assert_same(found[2:], seen, f"what {kind.__name__} has seen")


def side_by_side(works, patience):
    """Do all of it on threads.

    Raises:
        CheckFailed: what was raised, or that one does not come to an end.
    """
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), name="stategraph-chaos", daemon=True) for work in works]
    for thread in threads:
        thread.start()
    due = time.monotonic() + patience
    while any(thread.is_alive() for thread in threads) and not errors:
        if time.monotonic() > due:
            raise CheckFailed(f"after {patience} s there are calls without an end")
        time.sleep(0.01)
    for error in errors:
        raise error if isinstance(error, CheckFailed) else CheckFailed(f"{type(error).__name__}: {error}")


@trial("R41", quick=3, full=500)
def forking_nodes(round):
    """18 calls on two processes from three threads, of nodes that fork (by hand, in C, by multiprocessing, pools, preexec)
    and whose children return, raise, exit, write or stay; of nodes that write what is no frame, or another call's, or
    that die beside a child; a worker is killed meanwhile: each call gets the token that it brought, from its worker."""
    executor = round.bench.keep("two processes", lambda: ProcessExecutor(WORKERS))
    random = round.random
    wishes = [[random.randrange(len(KINDS)) for _ in range(CALLS)] for _ in range(DRIVERS)]
    pause = random.uniform(0.05, 0.5)

    def drive(number):
        for place, wish in enumerate(wishes[number]):
            one_call(round, executor, f"{round.number}-{number}-{place}", wish)

    def kill_one():
        time.sleep(pause)
        for worker in [*executor._workers][:1]:
            if worker.started:
                worker.process.send_signal(signal.SIGKILL)
                round.count("workers killed")

    works = [lambda number=number: drive(number) for number in range(DRIVERS)]
    side_by_side([*works, kill_one], 120 if round.bench.bug is None else 15)
    round.count("calls", DRIVERS * CALLS)
