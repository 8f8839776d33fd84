"""Nodes with effects (`runtime.once`), for `executor_suite.py`: at the top of a module, so that workers find them by name.

`state["texts"]` is a folder; each effect leaves a line in its file `ledger`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

from kit.executor_graphs import State
from kit.graphs import CONFIG
from stategraph import Runtime, get_runtime, interrupt
from stategraph.checkpoint.sqlite import SqliteSaver


def charge(folder, what):
    with (Path(folder) / "ledger").open("a") as ledger:
        ledger.write(what + "\n")
    return f"receipt for {what}"


async def acharge(folder, what):
    await asyncio.sleep(0)
    return charge(folder, what)


def charged(folder):
    """The effects that were had."""
    ledger = folder / "ledger"
    return ledger.read_text().split() if ledger.exists() else []


def is_first(folder, name):
    """Whether nobody has come here before, in any process."""
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pays(state: State, runtime: Runtime):
    """Its first attempt fails; then it asks, and runs again from its top."""
    (folder,) = state["texts"]
    receipt = runtime.once("charge", charge, folder, "book")
    if is_first(folder, "failed"):
        raise ConnectionError
    return {"log": [receipt, interrupt("content?")]}


async def apays(state: State, runtime: Runtime):
    """The same, with two effects side by side."""
    (folder,) = state["texts"]
    both = [runtime.aonce(what, acharge, folder, what) for what in ("book", "pen")]
    receipts = await asyncio.gather(*both)
    if is_first(folder, "failed"):
        raise ConnectionError
    return {"log": [*receipts, interrupt("content?")]}


def pays_and_dies(state: State, runtime: Runtime):
    """Its worker dies after the record of the one effect, and before that of the other."""
    (folder,) = state["texts"]
    receipt = runtime.once("book", charge, folder, "book")
    return {"log": [receipt, runtime.once("pen", charge_and_die, folder, "pen")]}


def charge_and_die(folder, what):
    receipt = charge(folder, what)
    if is_first(folder, "died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


def pays_and_looks(state: State, runtime: Runtime):
    """What stands in the thread when `once` has returned."""
    (folder,) = state["texts"]
    runtime.once("charge", charge, folder, "book")
    with SqliteSaver.from_conn_string(f"{folder}/threads.db") as saver:
        found = saver.get_tuple(CONFIG)
    assert found is not None
    return {"log": [value for _, _, value in found.pending_writes]}


def pays_twice(state: State, runtime: Runtime):
    (folder,) = state["texts"]
    runtime.once("charge", charge, folder, "book")
    runtime.once("charge", charge, folder, "book")
    return {}


def get_lock(folder):
    charge(folder, "book")
    return threading.Lock()


def get_object(folder):
    charge(folder, "book")
    return Path


def pays_for_a_lock(state: State, runtime: Runtime):
    """It cannot be pickled, so it cannot reach the driver."""
    return {"log": [runtime.once("charge", get_lock, *state["texts"])]}


def pays_for_a_class(state: State, runtime: Runtime):
    """It reaches the driver, which cannot store it."""
    return {"log": [runtime.once("charge", get_object, *state["texts"])]}


def waits_and_pays(state: State, runtime: Runtime):
    """Its first attempt is given up while it waits, and comes to its effect after that."""
    (folder,) = state["texts"]
    if is_first(folder, "pid"):
        while not (Path(folder) / "go").exists():
            time.sleep(0.01)
        try:
            runtime.once("late", charge, folder, "late")
        finally:
            (Path(folder) / "ended").touch()
    return {"log": [runtime.once("in time", charge, folder, "in_time")]}


def pays_without_the_parameter(state: State):
    return {"log": [get_runtime().once("charge", charge, *state["texts"], "book")]}
