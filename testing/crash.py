"""Checks that kill the process: what was acknowledged is there, nothing is there by half, and a
resume ends as an unbroken run. For checkpointers that outlive their process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checkpoint.base import Expected
from ..checkpoint.memory import InMemorySaver
from .asserts import SYNC, CheckFailed, assert_same, assert_that
from .conformance import register_check
from .graphs import looping, shown, thread
from .harness import Commits, Harness, SaverSource
from .processes import KillAt, Ledger, ProcessEnd, Processes

STEPS = 8
LANES = 3
ROUNDS = 4
WRITING = ("commit", "record", "put", "put_writes")


def script(run: Commits) -> None:
    """What the process that is killed commits: step n holds n everywhere, so that half a step is
    seen."""
    for step in range(STEPS):
        run.step(
            f"{step}",
            a=step,
            long=[f"{step}" * 9] * (20 + step),
            writes=_writes(step) if step else (),
        )


def _writes(step: int) -> list[tuple[str, list[tuple[str, Any]]]]:
    return [(f"task {n}", [("a", step), ("long", (step, n))]) for n in range(2)]


def committing(suite: SaverSource, folder: Path, at: int | None) -> int:
    """Commit the script's steps, noting each that was acknowledged; killed at a call inside the
    checkpointer. How many calls there were."""
    ledger = Ledger(folder.parent / f"{folder.name}.ledger")
    with Harness(suite, folder, SYNC) as harness:
        kill = KillAt(at)
        kill.around(harness.saver, "commit")

        def call(method: str, commits: Any) -> None:
            getattr(harness.saver, method)(commits)
            ledger.note(commits[-1].id)

        script(Commits(call, harness.saver))
    return kill.calls


def points(harness: Harness, calls: int, count: int) -> list[int]:
    """At which calls to kill: spread over all of them, by chance."""
    assert_that(
        calls > 0,
        "no call of the checkpointer could be stopped: is commit() inherited and put() in C?",
    )
    count = min(calls, count * harness.scale)
    return [1 + (n * calls + harness.random.randrange(calls)) // count for n in range(count)]


@register_check("crash", "durable", modes=(SYNC,))
def what_was_acknowledged_survives_a_kill(harness: Harness) -> None:
    """Killed between any two things that commit() does: each step is there whole or not at all, and
    what was returned from is there."""
    harness.close()
    with Processes() as processes:
        calls = processes.one(committing, harness.suite, harness.folder / "dry", None)
        for number, at in enumerate(points(harness, calls, 12)):
            folder = harness.folder / f"{number}"
            (ended,) = processes.run((committing, harness.suite, folder, at))
            _died(ended, at, f"call {at} of {calls}")
            acknowledged = [id for (id,) in Ledger(harness.folder / f"{number}.ledger").read()]
            with harness.fresh(f"{number}") as after:
                _whole(after, len(acknowledged), f"killed at call {at} of {calls} in commit()")


def _died(ended: ProcessEnd, at: int, where: str) -> None:
    """Check that a process was killed at a call, or ended before it came to that: a client that
    waits for its server makes some calls more or less each time."""
    if not ended.killed and (ended.error or ended.result >= at):
        raise CheckFailed(
            f"the process should have been killed at {where}, but it ended: "
            f"{ended.error or 'as usual'}"
        )


def _whole(harness: Harness, acknowledged: int, where: str) -> None:
    """The storage holds the first steps of the script, at least those acknowledged, and can be gone
    on with."""
    ids = harness.ids()[::-1]
    assert_same(ids, [f"{step}" for step in range(len(ids))], f"{where}: stored steps")
    assert_that(
        acknowledged <= len(ids) <= acknowledged + 1,
        f"{where}: {acknowledged} steps were acknowledged, so that or one more is expected, got "
        f"{len(ids)}",
    )
    model = Commits(lambda *args: None, harness.saver)
    script(model)
    assert_same(harness.head(), ids[-1] if ids else None, f"{where}: head")
    for step, id in enumerate(ids):
        assert_same(harness.need(id).checkpoint, model.expected[id], f"{where}: checkpoint {id!r}")
        made = (
            [(task, *pair) for task, pairs in _writes(step + 1) for pair in pairs]
            if step + 1 < len(ids)
            else []
        )
        assert_same(harness.pending(id), made, f"{where}: writes beside checkpoint {id!r}")
    model.call, model.head = harness.call, ids[-1] if ids else None
    model.step("more", a="more")
    assert_same(harness.need().checkpoint, model.expected["more"], f"{where}: the step after it")


def recording(suite: SaverSource, folder: Path, at: int | None) -> int:
    """Record beside several checkpoints; killed at a call inside the checkpointer. How many calls
    there were."""
    with Harness(suite, folder, SYNC) as harness:
        run = harness.run()
        for step in range(3):
            run.step(f"{step}", a=step)
        seen = Expected("2", harness.need().revision)
        kill = KillAt(at)
        kill.around(harness.saver, "record")
        harness.record(seen, _records(run))
    return kill.calls


def _records(run: Commits) -> dict[str, Any]:
    return {f"{step}": [run.task(f"task {step}", [("a", step)])] for step in range(3)}


@register_check("crash", "durable", "record", modes=(SYNC,))
def a_kill_leaves_records_beside_all_checkpoints_or_none(harness: Harness) -> None:
    """Killed between any two things that record() does: of several questions that were
    asked at once none is there alone."""
    harness.close()
    with Processes() as processes:
        calls = processes.one(recording, harness.suite, harness.folder / "dry", None)
        for number, at in enumerate(points(harness, calls, 6)):
            (ended,) = processes.run((recording, harness.suite, harness.folder / f"{number}", at))
            _died(ended, at, f"call {at} of {calls}")
            with harness.fresh(f"{number}") as after:
                recorded = [len(after.pending(f"{step}")) for step in range(3)]
                assert_that(
                    recorded in ([0, 0, 0], [1, 1, 1]),
                    f"killed at call {at} of {calls} in record(): records beside each "
                    f"checkpoint are {recorded}",
                )


def tidying(suite: SaverSource, folder: Path, method: str, given: Any, at: int | None) -> int:
    """Forget or copy; killed at a call inside the checkpointer. How many calls there were."""
    with Harness(suite, folder, SYNC) as harness, KillAt(at) as kill:
        getattr(harness.saver, method)(*given)
    return kill.calls


@register_check("crash", "durable", "prune", "copy_thread", modes=(SYNC,))
def forgetting_and_copying_are_whole_when_killed(harness: Harness) -> None:
    """Killed inside prune, copy_thread or delete_thread: all of it was done or nothing, and the
    thread goes on."""
    harness.close()
    everything = [f"{step}" for step in reversed(range(STEPS))]
    work: dict[
        str, tuple[Any, tuple[list[str], list[str]]]
    ] = {  # what is called, and what is left in "t" and "u"
        "prune": ((["t"],), (everything[:1], [])),
        "copy_thread": (("t", "u"), (everything, everything)),
        "delete_thread": (("t",), ([], [])),
    }
    with Processes() as processes:
        for method, (given, left) in work.items():
            calls = processes.one(_tidied, harness.suite, harness.folder / method, method, given)
            for number, at in enumerate(points(harness, calls, 4)):
                name, where = f"{method} {number}", f"killed at call {at} of {calls} in {method}()"
                with harness.fresh(name) as one:
                    run = one.run()
                    script(run)
                (ended,) = processes.run(
                    (tidying, harness.suite, harness.folder / name, method, given, at)
                )
                _died(ended, at, where)
                with harness.fresh(name) as one:
                    found = (one.ids("t"), one.ids("u"))
                    done = "all or nothing of it should be done, but 't' and 'u' hold"
                    assert_that(found in ((everything, []), left), f"{where}: {done} {found}")
                    for thread_id, ids in zip("tu", found, strict=True):
                        one.reads_back(run, ids, thread_id)


def _tidied(suite: SaverSource, folder: Path, method: str, given: Any) -> int:
    with Harness(suite, folder, SYNC) as harness:
        script(harness.run())
    return tidying(suite, folder, method, given, None)


# -- runs ------------------------------------------------------------------------------------------


def running(suite: SaverSource, folder: Path, durability: Any, at: int | None) -> int:
    """Run a graph, noting each effect before it is returned; killed at a call inside the
    checkpointer. How many calls there were."""
    ledger = Ledger(folder.parent / f"{folder.name}.ledger")
    with Harness(suite, folder, SYNC) as harness:
        kill = KillAt(at)
        app = looping(harness.saver, LANES, ledger.note)
        kill.around(harness.saver, *WRITING)
        app.invoke({"left": ROUNDS, "log": ["start"]}, thread(), durability=durability)
    return kill.calls


@register_check("crash", "durable", modes=(SYNC,))
def a_killed_run_is_resumed_as_if_it_never_stopped(harness: Harness) -> None:
    """Killed anywhere inside the checkpointer: the resumed run ends in the same state, with the
    same history, no effect is missing, and only what was in flight is done again."""
    harness.close()
    expected, killed = _unbroken(), 0
    with Processes() as processes:
        for durability, in_flight in (("sync", LANES), ("async", 2 * LANES), ("exit", None)):
            calls = processes.one(
                running, harness.suite, harness.folder / durability, durability, None
            )
            for number, at in enumerate(points(harness, calls, 6 if durability == "sync" else 2)):
                name = f"{durability} {number}"
                (ended,) = processes.run(
                    (running, harness.suite, harness.folder / name, durability, at)
                )
                where = f"durability {durability!r}, killed at its call {at} of {calls}"
                assert_same(ended.error, "", f"{where}: error before that")
                killed += (
                    ended.killed
                )  # threads make a few calls more or less each time, so the last may not come
                ledger = Ledger(harness.folder / f"{name}.ledger")
                with harness.fresh(name) as after:
                    got = _resumed(after, ledger)
                assert_same(got, expected, f"{where}: state and history, ")
                check_effects(ledger.read(), in_flight, where)
    assert_that(
        killed, "no process was killed: no calls of the checkpointer's methods were counted"
    )


def _unbroken() -> list[Any]:
    app = looping(InMemorySaver(), LANES)
    app.invoke({"left": ROUNDS, "log": ["start"]}, thread())
    return [app.get_state(thread()).values, _last(app)]


def _last(app: Any) -> list[Any]:
    """What the last checkpoint shows, but its place in the history: durability "exit" keeps only
    the last ones."""
    rows = shown([*app.get_state_history(thread())][:1])
    return [{**row, "parent": None, "step": None, "source": None} for row in rows]


def _resumed(harness: Harness, ledger: Ledger) -> list[Any]:
    app = looping(harness.saver, LANES, ledger.note)
    found = harness.get() is not None
    app.invoke(None if found else {"left": ROUNDS, "log": ["start"]}, thread())
    return [app.get_state(thread()).values, _last(app)]


def check_effects(noted: list[list[Any]], in_flight: int | None, where: str) -> None:
    """Every effect of the looping graph was had, and no more of them twice than were in flight.

    Args:
        in_flight: None if any number may be repeated.

    Raises:
        CheckFailed: names them.
    """
    counts: dict[str, int] = {}
    for words in noted:
        counts[str(words)] = counts.get(str(words), 0) + 1
    wanted = [str(["work", left, lane]) for left in range(1, ROUNDS + 1) for lane in range(LANES)]
    wanted += [str(["gather", left]) for left in range(1, ROUNDS + 1)]
    assert_same(sorted(counts), sorted(wanted), f"{where}: effects")
    repeated = {name: count for name, count in counts.items() if count > 1}
    assert_that(
        in_flight is None or sum(repeated.values()) - len(repeated) <= in_flight,
        f"{where}: at most {in_flight} tasks were in flight, but these were repeated: {repeated}",
    )
