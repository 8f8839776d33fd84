"""Checks that kill the process: what was acknowledged is there, nothing is there by half, and a
resume ends as an unbroken run. For checkpointers that outlive their process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..checkpoint.base import Expected
from ..checkpoint.memory import InMemorySaver
from .asserts import SYNC, CheckFailed, assert_same, assert_that
from .conformance import register_check
from .graphs import looping, shown, thread
from .harness import Commits, Harness, SaverSource
from .processes import KillAt, Ledger, Processes

STEPS = 8
LANES = 3
ROUNDS = 4
START: Any = {"left": ROUNDS, "log": ["start"]}
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
    ledger = _ledger(folder)
    with Harness(suite, folder, SYNC) as harness:
        kill = KillAt(at)
        kill.around(harness.saver, "commit")

        def call(method: str, commits: Any) -> None:
            getattr(harness.saver, method)(commits)
            ledger.note(commits[-1].id)

        script(Commits(call, harness.saver))
    return kill.calls


def kill_often(
    harness: Harness, count: int, job: Callable[..., int], *args: Any
) -> Iterator[tuple[Harness, str]]:
    """Kill a job at calls that are spread by chance over all that it makes inside the checkpointer.

    Args:
        count: how often.
        job: is given the suite, a folder, the arguments, and at which call to be killed; returns
            how many there were.

    Yields:
        a harness on what is left each time, and when it was killed, in words.
    """
    harness.close()
    with Processes() as processes:
        folder = harness.folder / " ".join([job.__name__, *map(str, args[:1])])
        calls = processes.one(job, harness.suite, folder / "dry", *args, None)
        assert_that(
            calls > 0,
            "no call of the checkpointer could be stopped: is commit() inherited and put() in C?",
        )
        count = min(calls, count * harness.scale)
        for number in range(count):
            at = 1 + (number * calls + harness.random.randrange(calls)) // count
            where = f"killed at call {at} of {calls} in {folder.name}"
            (ended,) = processes.run((job, harness.suite, folder / f"{number}", *args, at))
            # A client that waits for its server makes some calls more or less each time.
            if not ended.killed and (ended.error or ended.result >= at):
                raise CheckFailed(f"should be {where}, but it ended: {ended.error or 'as usual'}")
            with harness.fresh(f"{folder.name}/{number}") as left:
                yield left, where


def _ledger(folder: Path) -> Ledger:
    return Ledger(folder.with_suffix(".ledger"))


@register_check("crash", "durable", modes=(SYNC,))
def what_was_acknowledged_survives_a_kill(harness: Harness) -> None:
    """Killed between any two things that commit() does: each step is there whole or not at all, and
    what was returned from is there."""
    for left, where in kill_often(harness, 12, committing):
        _whole(left, len(_ledger(left.folder).read()), where)


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
    for left, where in kill_often(harness, 6, recording):
        recorded = [len(left.pending(f"{step}")) for step in range(3)]
        text = f"{where}: records beside each checkpoint are {recorded}"
        assert_that(recorded in ([0, 0, 0], [1, 1, 1]), text)


def tidying(suite: SaverSource, folder: Path, method: str, given: Any, at: int | None) -> int:
    """Forget or copy; killed at a call inside the checkpointer. How many calls there were."""
    with Harness(suite, folder, SYNC) as harness:
        script(harness.run())
        with KillAt(at) as kill:
            getattr(harness.saver, method)(*given)
    return kill.calls


EVERYTHING = [f"{step}" for step in reversed(range(STEPS))]
TIDYING: Mapping[str, tuple[tuple[Any, ...], tuple[list[str], list[str]]]] = {
    "prune": ((["t"],), (EVERYTHING[:1], [])),
    "copy_thread": (("t", "u"), (EVERYTHING, EVERYTHING)),
    "delete_thread": (("t",), ([], [])),
}
"""What is called with what, and what it leaves in the threads "t" and "u"."""


@register_check("crash", "durable", "prune", "copy_thread", modes=(SYNC,))
def forgetting_and_copying_are_whole_when_killed(harness: Harness) -> None:
    """Killed inside prune, copy_thread or delete_thread: all of it was done or nothing, and the
    thread goes on."""
    for method, (given, done) in TIDYING.items():
        for left, where in kill_often(harness, 4, tidying, method, given):
            run = Commits(lambda *args: None, left.saver)
            script(run)
            found = (left.ids("t"), left.ids("u"))
            text = "all or nothing of it should be done, but 't' and 'u' hold"
            assert_that(found in ((EVERYTHING, []), done), f"{where}: {text} {found}")
            for thread_id, ids in zip("tu", found, strict=True):
                left.reads_back(run, ids, thread_id)


# -- runs ------------------------------------------------------------------------------------------


def running(suite: SaverSource, folder: Path, durability: Any, at: int | None) -> int:
    """Run a graph, noting each effect before it is returned; killed at a call inside the
    checkpointer. How many calls there were."""
    ledger = _ledger(folder)
    with Harness(suite, folder, SYNC) as harness:
        kill = KillAt(at)
        app = looping(harness.saver, LANES, ledger.note)
        kill.around(harness.saver, *WRITING)
        app.invoke(START, thread(), durability=durability)
    return kill.calls


@register_check("crash", "durable", modes=(SYNC,))
def a_killed_run_is_resumed_as_if_it_never_stopped(harness: Harness) -> None:
    """Killed anywhere inside the checkpointer: the resumed run ends in the same state, with the
    same history, no effect is missing, and only what was in flight is done again."""
    expected = _ended(looping(InMemorySaver(), LANES), START)
    for durability, in_flight in (("sync", LANES), ("async", 2 * LANES), ("exit", None)):
        count = 6 if durability == "sync" else 2
        for left, where in kill_often(harness, count, running, durability):
            ledger = _ledger(left.folder)
            app = looping(left.saver, LANES, ledger.note)
            got = _ended(app, START if left.get() is None else None)
            assert_same(got, expected, f"{where}: state and history, ")
            check_effects(ledger.read(), in_flight, where)


def _ended(app: Any, given: Any) -> list[Any]:
    """The state in which a run ends, and what the last checkpoint shows, but its place in the
    history: durability "exit" keeps only the last ones."""
    app.invoke(given, thread())
    rows = shown([*app.get_state_history(thread())][:1])
    rows = [{**row, "parent": None, "step": None, "source": None} for row in rows]
    return [app.get_state(thread()).values, rows]


def check_effects(noted: list[list[Any]], in_flight: int | None, where: str) -> None:
    """Every effect of the looping graph was had, and no more of them twice than were in flight.

    Args:
        in_flight: None if any number may be repeated.

    Raises:
        CheckFailed: names them.
    """
    counts = Counter(map(str, noted))
    wanted = [str(["work", left, lane]) for left in range(1, ROUNDS + 1) for lane in range(LANES)]
    wanted += [str(["gather", left]) for left in range(1, ROUNDS + 1)]
    assert_same(sorted(counts), sorted(wanted), f"{where}: effects")
    repeated = {name: count for name, count in counts.items() if count > 1}
    assert_that(
        in_flight is None or sum(repeated.values()) - len(repeated) <= in_flight,
        f"{where}: at most {in_flight} tasks were in flight, but these were repeated: {repeated}",
    )
