"""Checks with threads, loops and processes that work on one storage at once. One writer wins each
head."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from ..checkpoint.base import BaseCheckpointSaver, CheckpointConflictError, address
from ..checkpoint.serde import Blob
from ..pregel.types import Command
from .asserts import ASYNC, SYNC, CheckFailed, assert_same
from .conformance import register_check
from .graphs import Note, appending, asking, thread
from .harness import Commits, Harness, Mode, SaverSource, checkpoint
from .processes import Ledger, Processes


class Attempt(NamedTuple):
    """One try to move a head on: `won` if the commit returned."""

    head: str | None
    id: str
    won: bool


def check_race(attempts: Iterable[Attempt], chain: Sequence[str]) -> None:
    """What racing writers saw fits what is stored: one winner for each head, and every winner is in
    the chain.

    Args:
        chain: the ids that are stored, oldest first.

    Raises:
        CheckFailed: says which commit was lost, doubled, or never made.

    >>> a, b = Attempt(None, "a", True), Attempt(None, "b", False)
    >>> check_race([a, b, Attempt("a", "c", True)], ["a", "c"])
    >>> check_race([a, Attempt(None, "b", True)], ["a", "b"])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    CheckFailed: head None was moved on by 2 writers that were all told ok: ['a', 'b']
    """
    won: dict[str | None, list[str]] = {}
    for attempt in attempts:
        if attempt.won:
            won.setdefault(attempt.head, []).append(attempt.id)
    for head, ids in won.items():
        if len(ids) > 1:
            raise CheckFailed(
                f"head {head!r} was moved on by {len(ids)} writers that were all told ok: "
                f"{sorted(ids)}"
            )
    stored = dict(zip([None, *chain], chain, strict=False))
    for head, (id,) in won.items():
        if stored.get(head) != id:
            raise CheckFailed(
                f"a writer was told ok for {id!r} after {head!r}, where {stored.get(head)!r} is "
                "stored"
            )
    ghosts = [id for id in chain if [id] not in won.values()]
    if ghosts:
        raise CheckFailed(f"stored, though their writers were told of a conflict: {ghosts}")


def race(
    saver: BaseCheckpointSaver, name: str, rounds: int, meet: Callable[[], Any] = str
) -> list[Attempt]:
    """Move the head of thread "t" on, again and again, each time from where it was seen.

    Args:
        meet: called between looking at the head and moving it, and after that: waits for the
            others.
    """
    attempts = []
    run = Commits(partial(Mode(SYNC).call, saver), saver)
    for turn in range(rounds):
        run.head = head = saver.head(address("t", ""))
        run.expected = {head: checkpoint("", {}, {})} if head else {}
        id = f"{name} {turn}"
        meet()
        try:
            run.step(id, a=[name, turn], writes=[("task", [("a", id)])] if head else ())
        except CheckpointConflictError:
            attempts.append(Attempt(head, id, False))
        else:
            attempts.append(Attempt(head, id, True))
        meet()
    return attempts


def side_by_side(jobs: Iterable[Callable[[], Any]]) -> list[Any]:
    """Call all at the same time, each on a thread of its own; their results, in order.

    Raises:
        CheckFailed: one did not end within a minute.
        Exception: what the first of them raised.
    """
    jobs = [*jobs]
    barrier = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []

    def work(number: int, job: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[number] = job()
        except BaseException as error:  # raised below, on the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(jobs)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that quick savers are interrupted too
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    finally:
        sys.setswitchinterval(interval)
    if any(each.is_alive() for each in threads):
        raise CheckFailed("a call among several at once did not end within a minute")
    for error in errors:
        raise error
    return results


@register_check("concurrency", "commit", modes=(SYNC,))
def one_of_many_threads_wins_each_head(harness: Harness) -> None:
    """Each commit names the head it has seen: exactly one gets it, the others a conflict, and no ok
    is lost."""
    rounds = 15 * harness.scale
    meet = threading.Barrier(4, timeout=60).wait
    attempts = side_by_side(partial(race, harness.saver, f"w{n}", rounds, meet) for n in range(4))
    _raced(harness, [attempt for each in attempts for attempt in each])


def _raced(harness: Harness, attempts: list[Attempt]) -> None:
    harness.reopen()
    found = harness.listed("t")[::-1]
    check_race(attempts, [each.checkpoint["id"] for each in found])
    for before, after in pairwise(found):
        id = after.checkpoint["id"]
        parent = after.parent_config and after.parent_config["configurable"]["checkpoint_id"]
        assert_same(parent, before.checkpoint["id"], f"parent of {id!r}")
        assert_same(
            [tuple(each) for each in before.pending_writes or ()],
            [("task", "a", id)],
            f"writes that made {id!r}",
        )


@register_check("concurrency", "durable", "commit", modes=(SYNC,))
def one_of_many_processes_wins_each_head(harness: Harness) -> None:
    """The same between processes: a lock inside one process does not help."""
    harness.close()
    with Processes() as processes:
        jobs = [
            (racing, harness.suite, harness.folder, f"p{n}", 15 * harness.scale) for n in range(3)
        ]
        ended = processes.run(*jobs)
    for each in ended:
        assert_same(each.error, "", "error of a racing process")
    harness.saver = harness.another()
    _raced(harness, [attempt for each in ended for attempt in each.result])


def racing(suite: SaverSource, folder: Path, name: str, rounds: int) -> list[Attempt]:
    """What each racing process does."""
    with Harness(suite, folder, SYNC) as harness:
        return race(harness.saver, name, rounds)


@register_check("concurrency")
def threads_of_their_own_do_not_disturb_each_other(harness: Harness) -> None:
    """A server runs many conversations at once, each with a loop of its own if it has one: all of
    them end as if they were alone."""
    app = appending(harness.saver, "x")

    def talk(name: str) -> None:
        with Mode(harness.mode.name) as mode:
            for _ in range(3):
                mode.call(app, "invoke", {"left": 5, "log": [name]}, thread(name))

    names = [f"thread {n}" for n in range(4)]
    side_by_side(partial(talk, name) for name in names)
    logs = [harness.state(app, thread(name)).values["log"] for name in names]
    assert_same(logs, [[name, *["x"] * 5] * 3 for name in names], "logs of all threads")


@register_check("concurrency", modes=(SYNC,))
def reading_while_another_writes_sees_whole_steps(harness: Harness) -> None:
    """A reader gets a state that was committed, never half of one."""
    for _ in range(harness.scale):
        harness.call("delete_thread", "t")
        _read_and_write(harness)


def _read_and_write(harness: Harness) -> None:
    left = [60]

    def write() -> None:
        run = harness.run()
        for step in count():
            run.step(f"{step}", a=step, b=(step,), long=[f"{step}"] * 40)
            if left[0] <= 0:
                return

    def read() -> None:
        try:
            while left[0] > 0:
                left[0] -= harness.saver.head(harness.at()) is not None
                for found in [
                    harness.saver.get_tuple(harness.at()),
                    *harness.saver.list(harness.at(), limit=2),
                ]:
                    if found is not None:
                        step = int(found.checkpoint["id"])
                        expected = {"a": step, "b": (step,), "long": [f"{step}"] * 40}
                        assert_same(
                            found.checkpoint["channel_values"],
                            expected,
                            f"values of {step} while written",
                        )
        finally:
            left[0] = 0

    side_by_side([write, read])


@register_check("concurrency", modes=(SYNC,))
def what_is_being_read_stays_while_the_next_step_is_stored(harness: Harness) -> None:
    """A step that is stored between the reading of bytes and the making of values must not shine
    through."""
    run = harness.run()
    run.step("0", a=0, b=(0,), c=[0] * 100)
    harness.reopen()
    run = _resumed(harness, run)
    reads: list[Callable[[], Any]] = [
        lambda: harness.saver.get_tuple(harness.at()),
        lambda: next(harness.saver.list(harness.at())),
    ]
    for step, read in enumerate(reads * 2):
        expected = run.expected[f"{step}"]
        found = _meanwhile(harness.saver, read, partial(_step, run, step + 1))
        assert_same(found.checkpoint, expected, f"checkpoint {step}, while the next was stored")


def _step(run: Commits, step: int) -> None:
    run.step(f"{step}", a=step, b=(step,), c=[step] * (100 + step))


def _resumed(harness: Harness, before: Commits) -> Commits:
    """The same run on the checkpointer that is open now."""
    run = harness.run()
    run.head, run.expected, run.steps = before.head, before.expected, before.steps
    return run


def _meanwhile(
    saver: BaseCheckpointSaver, read: Callable[[], Any], work: Callable[[], None]
) -> Any:
    """What `read` gives if somebody works in the moment when its first value is decoded; where a
    lock forbids that, the work is done after it."""
    worker = threading.Thread(target=work, daemon=True)
    loads = saver.serde.loads

    def interrupted(blob: Blob) -> Any:
        if worker.ident is None:
            worker.start()
            worker.join(0.5)
        return loads(blob)

    saver.serde.loads = interrupted  # type: ignore[method-assign]  # put back below
    try:
        found = read()
    finally:
        saver.serde.loads = loads  # type: ignore[method-assign]  # as it was
    if worker.ident is None:  # it decodes in a way of its own
        worker.start()
    worker.join(60)
    return found


@register_check("concurrency", modes=(ASYNC,))
def several_calls_may_wait_at_once_on_one_loop(harness: Harness) -> None:
    """An async server awaits many threads at the same time."""
    app = appending(harness.saver, "x")

    async def talk(name: str) -> Any:
        for _ in range(2):
            result = await app.ainvoke({"left": 5, "log": [name]}, thread(name))
        return result["log"]

    class Talks:
        """So that the harness's loop can run it."""

        async def aall(self, names: list[str]) -> list[Any]:
            return await asyncio.gather(*map(talk, names))

    names = [f"thread {n}" for n in range(6)]
    logs = harness.mode.call(Talks(), "all", names)
    assert_same(logs, [[name, *["x"] * 5] * 2 for name in names], "logs of all threads")


@register_check("concurrency", "commit", modes=(SYNC,))
def every_run_that_was_told_ok_is_in_the_final_state(harness: Harness) -> None:
    """Many runs on one thread: those that lost got an error; of those that succeeded nothing is
    missing."""
    app = appending(harness.saver, "x")
    app.invoke({"left": 1, "log": []}, thread())

    def attempt(name: str) -> list[str]:
        won = []
        for turn in range(6 * harness.scale):
            try:
                app.invoke({"left": 1, "log": [f"{name} {turn}"]}, thread())
                won.append(f"{name} {turn}")
            except CheckpointConflictError:
                pass
        return won

    won = side_by_side(partial(attempt, f"w{n}") for n in range(3))
    log = app.get_state(thread()).values["log"]
    told = [each for each in log if each != "x"]
    for each in [each for names in won for each in names]:
        assert_same(
            told.count(each),
            1,
            f"how often the input {each!r}, whose run was told ok, is in the final log",
        )


QUESTION = "inner"
LATE = ("CheckpointConflictError", "UnknownInterruptError", "EmptyInputError")
"""The error that the second answer gets."""


def answer(saver: BaseCheckpointSaver, name: str, note: Note, meet: Callable[[], Any]) -> bool:
    """Answer the question of thread "t" at the same time as others; whether it was taken."""
    app = asking(saver, note)
    question = next(each for each in app.get_state(thread()).interrupts if each.value == QUESTION)
    meet()
    try:
        app.invoke(Command(resume={question.id: name}), thread())
    except Exception as error:
        if type(error).__name__ not in LATE:
            raise
        return False
    return True


def check_answers(taken: Sequence[bool], effects: Sequence[Sequence[Any]]) -> None:
    """One of several answers was taken, and its effect was had once.

    Raises:
        CheckFailed: says how many were.
    """
    had = [words for words in effects if words[0] == QUESTION]
    assert_same(
        (sum(taken), len(had)),
        (1, 1),
        f"how many were told ok, and how often the effect was had ({had}),",
    )


@register_check("concurrency", "record", modes=(SYNC,))
def an_answer_is_taken_once(harness: Harness) -> None:
    """Several people press the button at the same moment: one goes on with the run, the others are
    told, and the node behind the question runs once."""
    for _ in range(5 * harness.scale):
        noted: list[Any] = []
        harness.call("delete_thread", "t")
        asking(harness.saver).invoke({"log": []}, thread())
        meet = threading.Barrier(3, timeout=60).wait

        def note(*words: Any, noted: list[Any] = noted) -> None:
            noted.append(words)

        check_answers(
            side_by_side(partial(answer, harness.saver, f"w{n}", note, meet) for n in range(3)),
            noted,
        )


@register_check("concurrency", "durable", "record", modes=(SYNC,))
def an_answer_is_taken_once_by_many_processes(harness: Harness) -> None:
    """The same between processes, such as the workers of a web server."""
    with Processes() as processes:
        for turn in range(3 * harness.scale):
            folder = harness.folder / f"{turn}"
            with harness.fresh(f"{turn}") as one:
                asking(one.saver).invoke({"log": []}, thread())
            ended = processes.run(*[(answering, harness.suite, folder, f"p{n}") for n in range(3)])
            for each in ended:
                assert_same(each.error, "", "error of a process that answers")
            check_answers(
                [each.result for each in ended], Ledger(folder.with_suffix(".ledger")).read()
            )


def answering(suite: SaverSource, folder: Path, name: str) -> bool:
    """What each answering process does; they meet by their lines in a file."""
    met = Ledger(folder.with_suffix(".met"))

    def meet() -> None:
        met.note(name)
        deadline = monotonic() + 60
        while len(met.read()) < 3 and monotonic() < deadline:
            sleep(0.001)

    with Harness(suite, folder, SYNC) as harness:
        return answer(harness.saver, name, Ledger(folder.with_suffix(".ledger")).note, meet)
