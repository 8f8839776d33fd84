"""The same faults, done to the released peer: run with its own Python (`.bench/bin/python tests/faults/peer.py`).

A black box: public names only, none of our packages. It prints one line per promise; benchmarks/RELIABILITY.md has them.
"""

import operator
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt


class State(TypedDict, total=False):
    log: Annotated[list, operator.add]
    left: int


def at(thread="t", **more):
    return {"configurable": {"thread_id": thread}, "recursion_limit": 1000, **more}


def looping(saver, note):
    """As often as `left` says: three tasks side by side, then one that gathers."""

    def work(task):
        note("work", task["left"], task["lane"])
        return {"log": [f"work {task['left']} {task['lane']}"]}

    def gather(state):
        note("gather", state["left"])
        return {"left": state["left"] - 1}

    def spread(state):
        return [Send("work", {"left": state["left"], "lane": n}) for n in range(3)] if state["left"] else END

    graph = StateGraph(State).add_node("work", work).add_node("gather", gather).add_edge("work", "gather")
    graph.add_conditional_edges(START, spread, ["work", END]).add_conditional_edges("gather", spread, ["work", END])
    return graph.compile(checkpointer=saver)


def child(function, *args):
    """Call in a forked process; its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    return pid


def kills(folder, count=60):
    """Killed after the n-th effect, resumed: final states that are right, kills after which more was repeated than ran."""
    wrong = beyond = repeated = 0
    for number in range(count):
        path, ledger = f"{folder}/k{number}.db", f"{folder}/k{number}.txt"
        chance, left = random.Random(number), 6
        kill_at, durability, passed = chance.randrange(1, 24), chance.choice(["sync", "async"]), Counter()

        def note(*words, kill=True, ledger=ledger, kill_at=kill_at, passed=passed):
            with open(ledger, "a") as file:
                file.write(f"{words}\n")
            passed["n"] += 1
            if kill and passed["n"] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        def run(path=path, note=note, left=left, durability=durability):
            with SqliteSaver.from_conn_string(path) as saver:
                looping(saver, note).invoke({"left": left, "log": []}, at(), durability=durability)

        os.waitpid(child(run), 0)
        with SqliteSaver.from_conn_string(path) as saver:
            app = looping(saver, lambda *words, note=note: note(*words, kill=False))
            found = app.get_state(at()).created_at
            app.invoke(None if found else {"left": left, "log": []}, at(), durability="sync")
            log = app.get_state(at()).values["log"]
        wanted = sorted(f"work {n} {lane}" for n in range(1, left + 1) for lane in range(3))
        wrong += sorted(log) != wanted
        lines = Path(ledger).read_text().splitlines()
        more = len(lines) - len(set(lines))
        repeated += more > 0
        beyond += more > 3
    return f"{count} kills: {count - wrong} states right, work repeated after {repeated} (more than 3 tasks after {beyond})"


def lag(folder, steps=200):
    """Durability async: saves fail from the 10th on; the 10th takes half a second. Supersteps that ran after it began."""
    told = []
    for fails in (True, False):
        ran = []

        class Broken(SqliteSaver):
            saves = 0
            ran_then = 0
            ran_later = 0

            def put(self, *args, fails=fails, ran=ran, **kwargs):
                me = type(self)
                me.saves += 1
                if me.saves == 10:
                    me.ran_then = len(ran)
                    time.sleep(0 if fails else 0.5)
                    me.ran_later = len(ran)
                if me.saves >= 10 and fails:
                    raise sqlite3.OperationalError("planted")
                return super().put(*args, **kwargs)

        graph = StateGraph(State).add_node("step", lambda state, ran=ran: ran.append(1) or {"left": state["left"] - 1})
        graph.add_edge(START, "step").add_conditional_edges("step", lambda s: "step" if s["left"] else END, ["step", END])
        with closing(sqlite3.connect(f"{folder}/lag{fails}.db", check_same_thread=False)) as connection:
            app = graph.compile(checkpointer=Broken(connection))
            try:
                app.invoke({"left": steps, "log": []}, at(), durability="async")
            except sqlite3.OperationalError:
                pass
        more = (len(ran) if fails else Broken.ran_later) - Broken.ran_then
        told.append(f"{more} supersteps ran on while a save {'failed' if fails else 'hung'}")
    return "; ".join(told)


def appending(saver):
    graph = StateGraph(State).add_node("x", lambda state: {"log": ["x"]}).add_edge(START, "x")
    return graph.compile(checkpointer=saver)


def racing(folder, processes=4, rounds=10):
    """Processes give one thread input: runs told ok whose input is not in the final log."""
    path = f"{folder}/race.db"
    with SqliteSaver.from_conn_string(path) as saver:
        appending(saver).invoke({"log": []}, at())

    def run(name):
        with SqliteSaver.from_conn_string(path) as saver, open(f"{folder}/won{name}", "w") as won:
            for turn in range(rounds):
                try:
                    appending(saver).invoke({"log": [f"{name} {turn}"]}, at())
                    won.write(f"{name} {turn}\n")
                except sqlite3.OperationalError:
                    pass

    for pid in [child(run, name) for name in range(processes)]:
        os.waitpid(pid, 0)
    won = [line for name in range(processes) for line in Path(f"{folder}/won{name}").read_text().splitlines()]
    with SqliteSaver.from_conn_string(path) as saver:
        log = appending(saver).get_state(at()).values["log"]
    return f"{len(won)} runs told ok, the inputs of {sum(each not in log for each in won)} of them lost"


def answers(folder, rounds=20, threads=4):
    """Threads answer the same question at the same moment: how often the effect fires."""
    fired = Counter()
    with SqliteSaver.from_conn_string(f"{folder}/ask.db") as saver:
        for number in range(rounds):

            def ask(state, number=number):
                answer = interrupt("pay?")
                fired[number] += 1
                time.sleep(0.01)
                return {"log": [answer]}

            app = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)
            app.invoke({"log": []}, at(f"{number}"))
            barrier = threading.Barrier(threads)

            def answer(name, app=app, number=number, barrier=barrier):
                barrier.wait()
                try:
                    app.invoke(Command(resume=name), at(f"{number}"))
                except Exception:
                    pass

            workers = [threading.Thread(target=answer, args=(n,)) for n in range(threads)]
            for each in workers:
                each.start()
            for each in workers:
                each.join()
    more = sum(count > 1 for count in fired.values())
    return f"{rounds} questions, {threads} answers each: the effect fired more than once for {more}, {max(fired.values())} times at most"


def delivered_again(folder):
    """The same run id twice."""
    with SqliteSaver.from_conn_string(f"{folder}/again.db") as saver:
        app, id = appending(saver), "00000000-0000-4000-8000-000000000001"
        for _ in range(2):
            app.invoke({"log": ["input"]}, at(run_id=id))
        return f"the input of one run, delivered twice, is in the log {app.get_state(at()).values['log'].count('input')} times"


def clock(folder, count=5):
    """The second run is another process's, whose clock is 5 s behind: how often it is not the latest."""
    hidden = 0
    for number in range(count):
        path = f"{folder}/clock{number}.db"
        with SqliteSaver.from_conn_string(path) as saver:
            appending(saver).invoke({"log": ["one"]}, at())
        subprocess.run([sys.executable, __file__, "behind", path], check=True)
        with SqliteSaver.from_conn_string(path) as saver:
            hidden += "two" not in appending(saver).get_state(at()).values["log"]
    return f"clock 5 s back between two runs: the second is hidden in {hidden} of {count}"


def behind(path):
    """A run of a process whose clock is behind."""
    real = time.time, time.time_ns
    time.time, time.time_ns = lambda: real[0]() - 5, lambda: real[1]() - 5 * 10**9
    with SqliteSaver.from_conn_string(path) as saver:
        appending(saver).invoke({"log": ["two"]}, at())


def damage(folder, count=200):
    """A bit of a stored blob is flipped: reads that silently give something else."""
    path = f"{folder}/damage.db"
    with SqliteSaver.from_conn_string(path) as saver:
        app = looping(saver, lambda *words: None)
        app.invoke({"left": 3, "log": ["x" * 200]}, at())
        was = repr(app.get_state(at()).values)
    good, outcomes = Path(path).read_bytes(), Counter()
    for number in range(count):
        chance, copy = random.Random(number), f"{folder}/d.db"
        Path(copy).write_bytes(good)
        with closing(sqlite3.connect(copy)) as connection, connection:
            row, data = connection.execute("SELECT rowid, checkpoint FROM checkpoints ORDER BY checkpoint_id DESC").fetchone()
            changed = bytearray(data)
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            connection.execute("UPDATE checkpoints SET checkpoint = ? WHERE rowid = ?", (bytes(changed), row))
        try:
            with SqliteSaver.from_conn_string(copy) as saver:
                now = repr(looping(saver, lambda *words: None).get_state(at()).values)
            outcomes["same" if now == was else "silently different"] += 1
        except Exception:
            outcomes["error"] += 1
    return f"{count} flipped bits of the newest checkpoint: {dict(outcomes)}"


def values(folder):
    """What comes back as something else."""
    changed = []
    tried = [(1, 2), {"a": (1,)}, {1, 2}, frozenset({1}), 2**70, b"x", bytearray(b"x"), float("nan"), {1: "a"}]
    tried += [timedelta(1), {(1, 2): 3}, "a\0b", [None, True], complex(1, 2), range(3)]
    with SqliteSaver.from_conn_string(f"{folder}/values.db") as saver:
        for number, value in enumerate(tried):
            app = StateGraph(dict).add_node("x", lambda state, value=value: {"v": value}).add_edge(START, "x")
            try:
                app.compile(checkpointer=saver).invoke({"v": 0}, at(f"v{number}"))
                with SqliteSaver.from_conn_string(f"{folder}/values.db") as again:
                    found = app.compile(checkpointer=again).get_state(at(f"v{number}")).values["v"]
                if repr(found) != repr(value) or type(found) is not type(value):
                    changed.append(f"{value!r} -> {found!r}")
            except Exception:
                pass
    return f"{len(tried)} values, {len(changed)} came back as something else: {'; '.join(changed)}"


def main():
    warnings.simplefilter("ignore")
    parts = {"R1, R2": kills, "R5": lag, "R6": racing, "R7": answers, "R8": delivered_again, "R9": clock}
    parts |= {"R13": damage, "R18": values}
    for promise, part in parts.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{promise:<7} {part(folder)}", flush=True)
            except Exception as error:
                print(f"{promise:<7} could not be tried: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["behind"]:
        behind(sys.argv[2])
    else:
        main()
