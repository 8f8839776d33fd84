"""R6 to R8: several at once on one thread. One writer wins, an answer is taken once, a call delivered twice is one."""

from __future__ import annotations

import os
import time
from functools import partial

from kit.graphs import EMPTY, Log, chain_of

from stategraph import (
    CheckpointConflictError,
    Command,
    UnknownInterruptError,
    interrupt,
)
from stategraph.checkpoint.base import address
from stategraph.testing import CheckFailed, Ledger, assert_same, check_race
from stategraph.testing.concurrency import race, side_by_side
from stategraph.testing.graphs import appending

from .campaign import trial
from .stages import Storage, config, sqlite

REFUSED = (CheckpointConflictError, UnknownInterruptError)


class Gate:
    """Where processes wait for each other: a file that each makes a byte longer when it comes."""

    def __init__(self, path, count):
        self.path = path
        self.count = count
        self.turn = 0

    def __call__(self):
        """Wait until all have come as often as this one."""
        self.turn += 1
        deadline = time.monotonic() + 60
        with open(self.path, "ab", buffering=0) as file:
            file.write(b".")
            while os.fstat(file.fileno()).st_size < self.turn * self.count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.path.name}: not everybody came")
                time.sleep(0.0002)


# -- R6 ---------------------------------------------------------------------------------------------------------


def racing(storage, gate: Gate, name, rounds):
    """Move one head on, again and again, all at the same moment."""
    with storage.open() as saver:
        return race(saver, name, rounds, gate)


def appended(storage, name, rounds):
    """Give one thread input again and again; the inputs whose runs were told ok."""
    won = []
    with storage.open() as saver:
        app = appending(saver, "x")
        for turn in range(rounds):
            try:
                app.invoke({"left": 1, "log": [f"{name} {turn}"]}, config())
                won.append(f"{name} {turn}")
            except CheckpointConflictError:
                pass
    return won


@trial("R6", quick=2, full=20, on_postgres=(1, 20))
def racing_processes_on_sqlite(round, storage: Storage):
    """8 processes move one head on, 50 times each (12 at first): one winner for each head, every ok in the chain."""
    turns = 12 if round.number < 2 else 50
    with storage.open():
        pass  # the tables are there
    ended = round.bench.run(*((racing, storage, Gate(round.folder / "gate", 8), f"p{n}", turns) for n in range(8)))
    for each in ended:
        assert_same(each.error, "", "error of a racing process")
    attempts = [attempt for each in ended for attempt in each.result]
    with storage.open() as saver:
        check_race(attempts, [each.checkpoint["id"] for each in saver.list(address("t", ""))][::-1])
    round.count("attempts", len(attempts))
    round.count("won", sum(each.won for each in attempts))


@trial("R6", quick=1, full=50)
def racing_runs(round):
    """4 processes run a graph on one thread: the inputs of runs told ok stand once in the final log, no other doubly."""
    storage = sqlite(round)
    with storage.open() as saver:
        appending(saver, "x").invoke({"left": 1, "log": []}, config())
    ended = round.bench.run(*((appended, storage, f"p{n}", 10) for n in range(4)))
    for each in ended:
        assert_same(each.error, "", "error of a racing process")
    with storage.open() as saver:
        log = appending(saver, "x").get_state(config()).values["log"]
    won = [name for each in ended for name in each.result]
    for name in {each for each in log if each != "x"} | {*won}:
        assert_same(log.count(name), 1, f"how often the input {name!r} stands in the log")
    round.count("runs told ok", len(won))


# -- R7 ---------------------------------------------------------------------------------------------------------


def asking(saver, ledger: Ledger, thread):
    """A node that asks, and has an effect."""

    def ask(state: Log):
        answer = interrupt("pay?")
        ledger.note("paid", thread, answer)
        return {"log": [answer]}

    return chain_of(Log, ask=ask).compile(saver)


def answered(storage, folder, name, count, threads):
    """Answer every thread at the moment at which the others do; how often this one was told ok."""
    gate, effects, won = Gate(folder / "gate", count), Ledger(folder / "effects"), 0
    with storage.open() as saver:
        for thread in threads:
            app = asking(saver, effects, thread)
            gate()
            try:
                app.invoke(Command(resume=name), config(thread))
                won += 1
            except REFUSED:
                pass
    return won


@trial("R7", quick=2, full=50, on_postgres=(1, 50))
def answers_in_sqlite(round, storage: Storage):
    """2, 4 or 8 processes answer the same 20 questions (6 at first) at the same moment: each effect fires once."""
    count = round.random.choice([2, 4, 8])
    threads = [f"{n}" for n in range(6 if round.number < 2 else 20)]
    with storage.open() as saver:
        for thread in threads:
            asking(saver, Ledger(round.folder / "effects"), thread).invoke(EMPTY, config(thread))
    ended = round.bench.run(*((answered, storage, round.folder, f"p{n}", count, threads) for n in range(count)))
    for each in ended:
        assert_same(each.error, "", "error of a process that answers")
    _paid_once(round, threads, sum(each.result for each in ended))


def _paid_once(round, threads, won):
    paid = [thread for _, thread, _ in Ledger(round.folder / "effects").read()]
    for thread in threads:
        assert_same(paid.count(thread), 1, f"how often the effect of thread {thread!r} fired")
    assert_same(won, len(threads), "how many answers were told ok")
    round.count("questions", len(threads))


@trial("R7", quick=2, full=1_000)
def answers_of_threads(round):
    """2, 4 or 8 threads of one process answer the same question at the same moment: its effect fires once."""
    ledger = Ledger(round.folder / "effects")
    with sqlite(round).open() as saver:
        app = asking(saver, ledger, "t")
        app.invoke(EMPTY, config())

        def answer(number):
            try:
                app.invoke(Command(resume=number), config())
            except REFUSED:
                return False
            return True

        won = side_by_side(partial(answer, n) for n in range(round.random.choice([2, 4, 8])))
    _paid_once(round, ["t"], sum(won))


# -- R8 ---------------------------------------------------------------------------------------------------------


def delivered(app, given, at):
    """A queue delivers a call until it was accepted."""
    for _ in range(1000):
        try:
            return app.invoke(given, at)
        except CheckpointConflictError:
            time.sleep(0)
    raise CheckFailed("a call that is delivered again and again is refused for ever")


@trial("R8", quick=6, full=10_000)
def delivered_again(round):
    """Calls with a run id, answers among them, are delivered two or three times, in turn, late, or at the same moment:
    each is applied once."""
    random = round.random
    with sqlite(round).open() as saver:
        app = appending(saver, "x")
        wanted = []
        calls = []
        for number in range(4):
            at = config(run_id=f"r{number}")
            given = {"left": 1, "log": [f"input {number}"]}
            calls.append((given, at))
            wanted += [f"input {number}", "x"]
            if random.random() < 0.5:
                side_by_side([partial(delivered, app, given, at)] * random.choice([2, 3]))
            else:
                for again in [calls[-1], *random.choices(calls, k=random.choice([1, 2]))]:
                    delivered(app, *again)
            assert_same(app.get_state(config()).values["log"], wanted, f"log after call {number}")
        round.count("calls delivered again", len(calls))
        paid = Ledger(round.folder / "effects")
        one = asking(saver, paid, "q")
        one.invoke(EMPTY, config("q"))
        for _ in range(random.choice([2, 3])):
            one.invoke(Command(resume="yes"), config("q", run_id="answer"))
        assert_same(one.get_state(config("q")).values["log"], ["yes"], "log after one answer")
        assert_same(len(paid.read()), 1, "how often the effect of the answer fired")


def delivered_together(storage, folder, name, threads, how):
    """Deliver a call to each thread, when the other process has loaded the same; how often this one was refused."""
    gate, bodies, refused = Gate(folder / "gate", 2), Ledger(folder / "bodies"), 0
    with storage.open() as saver:
        load, waits = saver.get_tuple, [False]

        def get_tuple(*given):
            found = load(*given)
            if waits[0]:
                waits[0] = False
                gate()
            return found

        saver.get_tuple = get_tuple
        for thread, (durability, schedule) in zip(threads, how, strict=True):

            def node(state: Log, thread=thread):
                bodies.note(thread, name)
                return {"log": ["x"]}

            app = chain_of(Log, node=node).compile(saver, schedule=schedule)  # type: ignore[arg-type]
            waits[0] = True
            try:
                app.invoke({"log": [1]}, config(thread, run_id="r"), durability=durability)  # type: ignore[arg-type]
            except CheckpointConflictError:
                refused += 1
            gate()
            assert_same(app.invoke({"log": [1]}, config(thread, run_id="r"))["log"], [1, "x"], "what comes again")
            gate()
    return refused


@trial("R8", quick=1, full=500, on_postgres=(1, 100))
def run_ids_together_on_sqlite(round, storage: Storage):
    """Two processes deliver the same call with a run id, and have both loaded the thread before either stores: the node
    runs once, one delivery is refused, and it is recognized when it comes again."""
    threads = [f"{n}" for n in range(20)]
    how = [(round.random.choice(["sync", "async", "exit"]), round.random.choice(["supersteps", "ready"])) for _ in threads]
    with storage.open():
        pass
    jobs = ((delivered_together, storage, round.folder, f"p{n}", threads, how) for n in range(2))
    ended = round.bench.run(*jobs)
    for each in ended:
        assert_same(each.error, "", "error of a process that delivers")
    ran = [thread for thread, _ in Ledger(round.folder / "bodies").read()]
    several = {thread: how[int(thread)] for thread in threads if ran.count(thread) != 1}
    assert_same(several, {}, "threads whose node did not run once")
    assert_same(sum(each.result for each in ended), len(threads), "deliveries that were refused")
    round.count("calls delivered together", len(threads))
