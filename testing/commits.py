"""Checks of whole supersteps: commit, commit_writes, claim, run_of, head. No graph runs here."""

from __future__ import annotations

import threading
from typing import Any

from ..checkpoint.base import ERROR, CheckpointConflictError, TaskWrites, coordinates
from .conformance import check, raises, same
from .harness import Desk, checkpoint, long_run


@check("commit")
def a_commit_stores_checkpoint_writes_and_head(desk: Desk) -> None:
    """One superstep is one call: the new checkpoint, and the writes of the tasks that made it,
    beside its parent."""
    run = desk.run()
    run.step("1", a=1)
    run.step("2", b=(2,), writes=[("task", [("b", (2,)), ("c", 3)])])
    desk.reopen()
    desk.reads_back(run)
    same(desk.pending("1"), [("task", "b", (2,)), ("task", "c", 3)], "writes beside the parent")
    same((desk.head(), desk.pending()), ("2", []), "head, and writes beside it")
    config = desk.need().parent_config
    same(config and coordinates(config), ("t", "", "1"), "parent")


@check("commit")
def writes_recorded_early_and_again_in_the_commit_count_once(desk: Desk) -> None:
    """Quick tasks are recorded while slow ones run, and may come again with the step."""
    run = desk.run()
    run.step("1", a=1)
    early: list[TaskWrites] = [run.task("one", [("a", 1)]), run.task("two", [(ERROR, "e")])]
    desk.call("commit_writes", "t", "", "1", early)
    desk.call("commit_writes", "t", "", "1", early[:1])
    desk.reopen()
    same(desk.pending(), [("one", "a", 1), ("two", ERROR, "e")], "writes recorded early")
    run.step("2", a=1, writes=[("one", [("a", 9)]), ("two", [("b", 2)])])
    same(
        desk.pending("1"),
        [("one", "a", 1), ("two", ERROR, "e"), ("two", "b", 2)],
        "writes after the commit",
    )


@check("commit", "commit")
def only_the_head_can_be_moved_on(desk: Desk) -> None:
    """Two runs on one thread: the second to commit gets an error that names the winner, and stores
    nothing."""
    one, two = desk.run(), desk.run()
    one.step("1", a=1)
    lost = raises(
        CheckpointConflictError,
        "a second first commit",
        two.step,
        "other",
        a=2,
        writes=[("task", [("a", 2)])],
    )
    same(
        (lost.thread_id, lost.expected, lost.actual),
        ("t", None, "1"),
        "the error's thread, expected and actual head",
    )
    two.head, two.expected = one.head, dict(one.expected)
    one.step("2", a=2)
    lost = raises(
        CheckpointConflictError,
        "a commit on an old head",
        two.step,
        "x",
        a=3,
        writes=[("task", [("a", 3)])],
    )
    same((lost.expected, lost.actual), ("1", "2"), "the error's expected and actual head")
    same((desk.ids(), desk.pending("1")), (["2", "1"], []), "list(), and writes of the losers")
    two.head = "gone"
    raises(
        CheckpointConflictError, "a commit on a head that never was", two.step, "y", parent="1", a=4
    )
    desk.reads_back(one)


@check("commit", "commit")
def a_conflict_on_an_empty_thread_leaves_no_thread(desk: Desk) -> None:
    """A run whose thread was deleted meanwhile must not bring half of it back."""
    run = desk.run()
    run.head, run.expected = "gone", {"gone": checkpoint("gone", {}, {})}
    lost = raises(CheckpointConflictError, "a commit on a deleted thread", run.step, "1", a=1)
    same((lost.expected, lost.actual), ("gone", None), "the error's expected and actual head")
    same(
        (desk.ids(None), desk.get(), desk.head()),
        ([], None, None),
        "list(), get_tuple() and head() after it",
    )


@check("commit", "claim")
def only_one_run_may_bring_an_answer(desk: Desk) -> None:
    """Two people press the button at the same moment: whoever comes second is told before any node
    runs."""
    desk.run().step("1", a=1)
    first, second = desk.need(), desk.need()
    desk.call("claim", desk.at("1"), first.revision, [desk.run().task("task", [("a", 1)])])
    late = [desk.run().task("task", [("a", 2)])]
    raises(
        CheckpointConflictError,
        "a second claim",
        desk.call,
        "claim",
        desk.at("1"),
        second.revision,
        late,
    )
    same(desk.pending(), [("task", "a", 1)], "writes after both")
    desk.reopen()
    desk.call("claim", desk.at("1"), desk.need().revision, [desk.run().task("next", [("a", 3)])])
    raises(
        CheckpointConflictError,
        "a claim beside no head",
        desk.call,
        "claim",
        desk.at("0"),
        None,
        late,
    )
    same(
        desk.pending(),
        [("next", "a", 3), ("task", "a", 1)],
        "writes after a claim by one who had read again",
    )


@check("commit")
def the_newest_checkpoint_of_a_run_is_found(desk: Desk) -> None:
    """A message that is delivered twice must be seen to have been worked on."""
    for id, run_id in (("1", "r1"), ("2", "r1"), ("3", "r2")):
        desk.put(id, {"a": id}, run_id=run_id)
    desk.put("1", ns="n", run_id="r3")
    desk.put("1", thread="u", run_id="r4")
    desk.reopen()
    for run_id, expected in (
        ("r1", "2"),
        ("r2", "3"),
        ("r3", None),
        ("r4", None),
        ("r%", None),
        ("", None),
    ):
        found = desk.call("run_of", desk.at(), run_id)
        same(found and found.checkpoint["id"], expected, f"run_of({run_id!r})")


@check("commit", "commit")
def a_commit_that_fails_leaves_nothing(desk: Desk) -> None:
    """Whole or not at all: no writes without their checkpoint, no checkpoint without its head."""
    run = desk.run()
    run.step("1", a=1)
    commit, _ = run.made("2", "head", [("task", [("a", 2)])], {"a": 2})
    commit.metadata["lock"] = threading.Lock()
    try:
        desk.call("commit", commit)
    except Exception:
        same(
            (desk.ids(), desk.head()), (["1"], "1"), "list() and head() after a commit that failed"
        )
        same(desk.pending("1"), [], "writes of the commit that failed")
        run.step("2", a=3)
        desk.reads_back(run)
    else:  # a saver that keeps metadata as it is may keep this
        same(
            (desk.ids(), desk.head()),
            (["2", "1"], "2"),
            "list() and head() after a commit that did not fail",
        )


@check("commit")
def every_checkpoint_of_a_long_thread_reads_back(desk: Desk) -> None:
    """However a saver shortens what it stores, each old checkpoint is complete, and so are forks
    from it."""
    run = desk.run()
    long_run(run, 100)
    for at in (0, 31, 32, 33, 64, 99):
        run.step(f"fork {at}", parent=f"{at}", fork=at, k1=at)
        for step in range(5):
            run.step(f"fork {at} {step}", a=step)
    desk.reopen()
    desk.reads_back(run)
    run.step("after", a=("x",))
    desk.reads_back(run, ["after"])


@check("commit")
def long_values_that_change_a_little_read_back(desk: Desk) -> None:
    """A saver may store what changed; appending, setting, deleting and shrinking must give the very
    value back."""
    run = desk.run()
    items: list[Any] = []
    table: dict[str, Any] = {}
    for step in range(120):
        items = [*items, (step, "x" * 50)] if step % 29 else items[: step // 2]
        table = {key: value for key, value in table.items() if key != f"k{step % 17}"} | {
            f"k{step}": [step] * 20
        }
        run.step(
            f"{step}",
            items=items,
            table=table,
            text="é" * (step * 7 % 400),
            parts={step, *range(step * 3 % 50)},
        )
    desk.reopen()
    desk.reads_back(run)
