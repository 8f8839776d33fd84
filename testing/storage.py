"""Checks of what surrounds a storage: the clock goes wrong, the disk is full, bytes are to grow
with what changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from ..channels.base import StateGraphError
from .conformance import SYNC, CheckFailed, check, holds, same
from .graphs import appending, looping, thread
from .harness import Desk

# -- the clock -------------------------------------------------------------------------------------


@contextmanager
def wrong_clock(random: Random) -> Iterator[None]:
    """Inside, `time.time` and `time.time_ns` jump by up to a year to either side at every look."""
    real = time.time, time.time_ns
    year = 365 * 86400

    def wrong() -> float:
        return real[0]() + random.choice([-year, -86400, -5, -0.001, 0, 0.001, 5, 86400, year])

    time.time, time.time_ns = wrong, lambda: int(wrong() * 1e9)
    try:
        yield
    finally:
        time.time, time.time_ns = real


@check("clock")
def the_latest_is_what_was_committed_last_whatever_the_time(desk: Desk) -> None:
    """Machines disagree about the time, and clocks are set back: neither times nor ids may decide
    order."""
    run = desk.run()
    ids = [f"{number:03}" for number in range(20)]
    desk.random.shuffle(ids)
    for number, id in enumerate(ids):
        commit, whole = run.made(id, "head", [], {"a": number}, ts=desk.random.uniform(0, 4e9))
        desk.call("commit", commit)
        run.expected[id], run.steps[id], run.head = whole, number, id
        same(desk.need().checkpoint["id"], id, f"newest after commit {number}")
    desk.reopen()
    same((desk.head(), desk.ids()), (ids[-1], ids[::-1]), "head() and list()")
    same(desk.ids(limit=3), ids[:-4:-1], "list(limit=3)")
    same(desk.ids(before=desk.at(ids[5])), ids[4::-1], "list(before)")


@check("clock")
def a_run_under_a_clock_that_jumps_ends_as_any_other(desk: Desk) -> None:
    """A clock set back by five seconds must not hide what was stored since."""
    expected = looping(None).invoke({"left": 3, "log": []})
    app = looping(desk.saver)
    for number in range(3 * desk.scale):
        config = thread(f"{number}")
        with wrong_clock(desk.random):
            desk.world.call(app, "invoke", {"left": 3, "log": []}, config)
            again = desk.world.call(app, "get_state", config)
        same(again.values, expected, f"state of run {number}")
        steps = [
            each.metadata["step"] for each in desk.world.items(app, "get_state_history", config)
        ]
        same(steps, sorted(steps, reverse=True), f"steps in the history of run {number}")


# -- a full disk -----------------------------------------------------------------------------------


@check("full", "full", worlds=(SYNC,))
def a_full_storage_refuses_whole_steps_and_goes_on_when_there_is_room(desk: Desk) -> None:
    """A typed error, the step before it can be read, nothing is there by half, and the same step
    succeeds later."""
    refused = 0
    for number in range(12 * desk.scale):
        with desk.fresh(f"{number}") as one:
            refused += _fill(one, room=desk.random.randrange(100_000))
    holds(refused, "the hook full() limits nothing: every step was stored")


def _fill(desk: Desk, room: int) -> int:
    """Commit until there is no room; whether that happened."""
    run = desk.run()
    run.step("start", a=0)
    error: Exception | None = None
    with desk.suite.full(desk.saver, room):
        for step in range(60):
            before = run.head
            try:
                run.step(f"{step}", **_step(step))
            except Exception as caught:
                error = caught
                break
        if error is None:
            desk.reads_back(run)  # what was told ok is there
            return 0
        if not isinstance(error, (StateGraphError, OSError)):
            raise CheckFailed(
                f"a full storage: expected StorageError, got {type(error).__name__}: {error}"
            )
        same(desk.head(), before, "head while the storage is full")
        same(
            desk.need().checkpoint,
            run.expected[before or ""],
            "newest checkpoint while the storage is full",
        )
        same(desk.pending(), [], "writes of the step that was refused")
    run.step(f"{step}", **_step(step))
    run.step("more", a="more")
    desk.reopen()
    desk.reads_back(run)
    same(desk.ids(), [*run.expected][::-1], "list() once there was room")
    return 1


def _step(step: int) -> Any:
    return {
        "a": step,
        "long": [f"{step}" * 800] * 2,
        "writes": [("task", [("a", step), ("long", f"{step}" * 900)])],
    }


@check("full", "full", worlds=(SYNC,))
def a_run_that_met_a_full_storage_is_resumed_once_there_is_room(desk: Desk) -> None:
    """The run stops with the error instead of going on unsaved, and ends later as if nothing had
    been."""
    durabilities: Any = ("sync", "async", "exit")
    for number, durability in enumerate(durabilities * desk.scale):
        with desk.fresh(f"{number}") as one:
            app = appending(one.saver, "x" * 2000)
            app.invoke({"left": 1, "log": ["start"]}, thread())
            given: Any = {"left": 30, "log": ["again"]}
            stopped = False
            with one.suite.full(one.saver, desk.random.randrange(40_000)):
                try:
                    app.invoke(given, thread(), durability=durability)
                except (StateGraphError, OSError):
                    stopped = True
                log = app.get_state(thread()).values["log"]
            holds(
                stopped,
                f"a run that stores 60 KB with durability {durability!r} in less room raises an "
                "error",
            )
            result = app.invoke(None if "again" in log else given, thread())
            expected = ["start", "x" * 2000, "again", *["x" * 2000] * 30]
            same(result["log"], expected, f"log after the resume, durability {durability!r}, ")


# -- growth ----------------------------------------------------------------------------------------


@check("growth", "durable", "size", worlds=(SYNC,))
def appending_to_a_list_takes_bytes_as_the_list_grows(desk: Desk) -> None:
    """A conversation of 1,000 messages must not store 500,000: twice the steps take about twice the
    bytes."""
    steps, item = 150 * desk.scale, "m" * 100
    sizes = []
    for part in range(3):
        app = appending(desk.saver, item)
        if part:
            app.invoke({"left": steps, "log": []}, thread())
        else:
            app.invoke({"left": 1, "log": []}, thread("other"))
        desk.close()
        sizes.append(desk.suite.size(desk.folder))
        desk.saver = desk.another()
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    holds(
        second <= 1.6 * max(first, 1),
        f"{steps} more steps: expected about the bytes of the first {steps}, {first:,}, got "
        f"{second:,}",
    )
