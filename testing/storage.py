"""Checks of what surrounds a storage: the clock goes wrong, the disk is full, bytes are to grow
with what changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from ..channels.base import StateGraphError
from ..pregel.clock import CLOCK
from .asserts import SYNC, CheckFailed, assert_same, assert_that
from .conformance import register_check
from .graphs import appending, looping, thread
from .harness import Harness

# -- the clock -------------------------------------------------------------------------------------


@contextmanager
def wrong_clock(random: Random) -> Iterator[None]:
    """Make `time.time` and `time.time_ns` jump by up to a year either way at every call."""
    real = time.time, time.time_ns, CLOCK.time
    year = 365 * 86400

    def wrong() -> float:
        return real[0]() + random.choice([-year, -86400, -5, -0.001, 0, 0.001, 5, 86400, year])

    time.time, time.time_ns, CLOCK.time = wrong, lambda: int(wrong() * 1e9), wrong
    try:
        yield
    finally:
        time.time, time.time_ns, CLOCK.time = real


@register_check("clock")
def the_latest_is_what_was_committed_last_whatever_the_time(harness: Harness) -> None:
    """Machines disagree about the time, and clocks are set back: neither times nor ids may decide
    order."""
    run = harness.run()
    ids = [f"{number:03}" for number in range(20)]
    harness.random.shuffle(ids)
    for number, id in enumerate(ids):
        commit, whole = run.made(id, "head", [], {"a": number}, ts=harness.random.uniform(0, 4e9))
        harness.call("commit", [commit])
        run.expect(commit, whole)
        assert_same(harness.need().checkpoint["id"], id, f"newest after commit {number}")
    harness.reopen()
    harness.shows(head=ids[-1], ids=ids[::-1])
    assert_same(harness.ids(limit=3), ids[:-4:-1], "list(limit=3)")
    assert_same(harness.ids(before=harness.at(ids[5])), ids[4::-1], "list(before)")


@register_check("clock")
def a_run_under_a_clock_that_jumps_ends_as_any_other(harness: Harness) -> None:
    """A clock set back by five seconds must not hide what was stored since."""
    expected = looping(None).invoke({"left": 3, "log": []})
    app = looping(harness.saver)
    for number in range(3 * harness.scale):
        config = thread(f"{number}")
        with wrong_clock(harness.random):
            harness.invoke(app, {"left": 3, "log": []}, config)
            again = harness.state(app, config)
        assert_same(again.values, expected, f"state of run {number}")
        steps = [
            each.metadata["step"] for each in harness.mode.items(app, "get_state_history", config)
        ]
        assert_same(steps, sorted(steps, reverse=True), f"steps in the history of run {number}")


# -- a full disk -----------------------------------------------------------------------------------


@register_check("full", "full", modes=(SYNC,))
def a_full_storage_refuses_whole_steps_and_goes_on_when_there_is_room(harness: Harness) -> None:
    """A typed error, the step before it can be read, nothing is there by half, and the same step
    succeeds later."""
    refused = 0
    for number in range(12 * harness.scale):
        with harness.fresh(f"{number}") as one:
            refused += _fill(one, room=harness.random.randrange(100_000))
    assert_that(refused, "the hook full() has no effect: every step was stored")


def _fill(harness: Harness, room: int) -> int:
    """Commit until the storage is full; whether that happened."""
    run = harness.run()
    run.step("start", a=0)
    error: Exception | None = None
    with harness.suite.full(harness.saver, room):
        for step in range(60):
            before = run.head
            try:
                run.step(f"{step}", **_step(step))
            except Exception as caught:
                error = caught
                break
        if error is None:
            harness.reads_back(run)  # what was told ok is there
            return 0
        if not isinstance(error, (StateGraphError, OSError)):
            raise CheckFailed(
                f"a full storage: expected StorageError, got {type(error).__name__}: {error}"
            )
        harness.shows(head=before)
        assert_same(
            harness.need().checkpoint,
            run.expected[before or ""],
            "newest checkpoint while the storage is full",
        )
        harness.shows(pending=[])
    run.step(f"{step}", **_step(step))
    run.step("more", a="more")
    harness.reopen()
    harness.reads_back(run)
    harness.shows(ids=[*run.expected][::-1])
    return 1


def _step(step: int) -> Any:
    return {
        "a": step,
        "long": [f"{step}" * 800] * 2,
        "writes": [("task", [("a", step), ("long", f"{step}" * 900)])],
    }


@register_check("full", "full", modes=(SYNC,))
def a_run_that_met_a_full_storage_is_resumed_once_there_is_room(harness: Harness) -> None:
    """The run stops with the error instead of going on unsaved, and ends later as if nothing had
    been."""
    durabilities: Any = ("sync", "async", "exit")
    for number, durability in enumerate(durabilities * harness.scale):
        with harness.fresh(f"{number}") as one:
            app = appending(one.saver, "x" * 2000)
            app.invoke({"left": 1, "log": ["start"]}, thread())
            given: Any = {"left": 30, "log": ["again"]}
            stopped = False
            with one.suite.full(one.saver, harness.random.randrange(40_000)):
                try:
                    app.invoke(given, thread(), durability=durability)
                except (StateGraphError, OSError):
                    stopped = True
                log = app.get_state(thread()).values["log"]
            assert_that(
                stopped,
                f"a run that stores 60 KB with durability {durability!r} in less room raises an "
                "error",
            )
            result = app.invoke(None if "again" in log else given, thread())
            expected = ["start", "x" * 2000, "again", *["x" * 2000] * 30]
            assert_same(
                result["log"], expected, f"log after the resume, durability {durability!r}, "
            )


# -- growth ----------------------------------------------------------------------------------------


@register_check("growth", "durable", "size", modes=(SYNC,))
def appending_to_a_list_takes_bytes_as_the_list_grows(harness: Harness) -> None:
    """A conversation of 1,000 messages must not store 500,000: twice the steps take about twice the
    bytes."""
    steps, item = 150 * harness.scale, "m" * 100
    sizes = []
    for part in range(3):
        app = appending(harness.saver, item)
        if part:
            app.invoke({"left": steps, "log": []}, thread())
        else:
            app.invoke({"left": 1, "log": []}, thread("other"))
        harness.close()
        sizes.append(harness.suite.size(harness.folder))
        harness.saver = harness.another()
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert_that(
        second <= 1.6 * max(first, 1),
        f"{steps} more steps: expected about the bytes of the first {steps}, {first:,}, got "
        f"{second:,}",
    )
