"""Checks of whole supersteps, and of what is posted and recorded between them: commit, record,
run_of, head, store_post, transact. No graph runs here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..checkpoint.base import ERROR, RETURN, CheckpointConflictError, Post, TaskWrites, coordinates
from ..checkpoint.records import Expected, Transacted, TransactionPlace
from .asserts import assert_conflict, assert_raises, assert_same, assert_that
from .conformance import register_check
from .harness import Commits, Harness, checkpoint, long_run


@register_check("commit")
def a_commit_stores_checkpoint_writes_and_head(harness: Harness) -> None:
    """One superstep is one call: the new checkpoint, and the writes of the tasks that made it,
    beside its parent."""
    run = harness.run()
    run.step("1", a=1)
    run.step("2", b=(2,), writes=[("task", [("b", (2,)), ("c", 3)])])
    harness.reopen()
    harness.reads_back(run)
    harness.shows("1", pending=[("task", "b", (2,)), ("task", "c", 3)])
    harness.shows(head="2", pending=[])
    config = harness.need().parent_config
    assert_same(config and coordinates(config), ("t", "", "1"), "parent")


@register_check("commit")
def writes_recorded_early_and_again_in_the_commit_count_once(harness: Harness) -> None:
    """Quick tasks are recorded while slow ones run, and may come again with the step."""
    run = harness.run()
    run.step("1", a=1)
    early: list[TaskWrites] = [run.task("one", [("a", 1)]), run.task("two", [(ERROR, "e")])]
    harness.record(None, {"1": early})
    harness.record(None, {"1": early[:1]})
    harness.reopen()
    harness.shows(pending=[("one", "a", 1), ("two", ERROR, "e")])
    run.step("2", a=1, writes=[("one", [("a", 9)]), ("two", [("b", 2)])])
    harness.shows("1", pending=[("one", "a", 1), ("two", ERROR, "e"), ("two", "b", 2)])


@register_check("commit", "commit")
def only_the_head_can_be_moved_on(harness: Harness) -> None:
    """Two runs on one thread: the second to commit gets an error that names the winner, and stores
    nothing."""
    one, two = harness.run(), harness.run()
    one.step("1", a=1)
    assert_conflict((None, "1"), two.step, "other", a=2, writes=[("task", [("a", 2)])])
    two.head, two.expected = one.head, dict(one.expected)
    one.step("2", a=2)
    assert_conflict(("1", "2"), two.step, "x", a=3, writes=[("task", [("a", 3)])])
    harness.shows(ids=["2", "1"])
    harness.shows("1", pending=[])
    two.head = "gone"
    assert_raises(CheckpointConflictError, two.step, "y", parent="1", a=4)
    harness.reads_back(one)


@register_check("commit", "commit")
def a_conflict_on_an_empty_thread_leaves_no_thread(harness: Harness) -> None:
    """A run whose thread was deleted in the meantime must not bring half of it back."""
    run = harness.run()
    run.head, run.expected = "gone", {"gone": checkpoint("gone", {}, {})}
    assert_conflict(("gone", None), run.step, "1", a=1)
    harness.shows(everything=[], get=None, head=None)


@register_check("commit", "commit")
def a_commit_requires_the_heads_of_other_namespaces(harness: Harness) -> None:
    """A turn that lost the thread to another one must not reach the memory of a nested graph."""
    whole, memory = harness.run(), harness.run(ns="memory")
    whole.step("1", a=1)
    memory.step("m1", requires=[("", "1")], a=1)
    memory.step("m2", requires=[("", "1")], a=2)
    whole.step("2", a=2)
    late = [("task", [("a", 3)])]
    assert_conflict(("1", "2"), memory.step, "late", requires=[("", "1")], writes=late, a=3)
    harness.shows(ns="memory", head="m2")
    harness.shows("m2", ns="memory", pending=[])
    new = harness.run(ns="new")
    assert_raises(CheckpointConflictError, new.step, "n1", requires=[("", "1")], a=1)
    harness.shows(ns="new", get=None)
    memory.step("m3", requires=[("", "2")], a=3)
    harness.reopen()
    harness.shows(ns="memory", values={"a": 3})


@register_check("commit", "commit")
def commits_of_several_namespaces_are_stored_together(harness: Harness) -> None:
    """With durability "exit" a memory is stored with the step around it: both, or neither."""
    whole, memory = harness.run(), harness.run(ns="memory")
    whole.step("1", a=1)
    turns = [memory.prepare(id, a=id) for id in ("m1", "m2")]
    for each in turns:
        each.requires = [("", "1")]
    harness.call("commit", [*turns, whole.prepare("2", a=2)])
    harness.reopen()
    harness.shows(head="2", values={"a": 2})
    harness.shows(ns="memory", head="m2", values={"a": "m2"})
    harness.shows("m1", ns="memory", values={"a": "m1"})
    late = memory.prepare("m3", a="m3")
    late.writes = [memory.task("task", [("a", "m3")])]
    whole.head = "1"
    assert_raises(
        CheckpointConflictError, harness.call, "commit", [late, whole.prepare("3", parent="1", a=3)]
    )
    harness.shows(head="2")
    harness.shows(ns="memory", head="m2", pending=[])


@register_check("commit")
def what_tasks_have_left_is_recorded_beside_each_checkpoint(harness: Harness) -> None:
    """Tasks of several checkpoints are under way at once; what each asks stands beside its own."""
    run = harness.run()
    for id in ("1", "2", "3"):
        run.step(id, a=id)
    records = {id: [run.task(f"of {id}", [("a", id)])] for id in ("1", "3", "2")}
    harness.record(Expected("3", harness.need().revision), records)
    harness.reopen()
    for id in ("1", "2", "3"):
        harness.shows(id, pending=[(f"of {id}", "a", id)])
    assert_raises(
        CheckpointConflictError,
        harness.record,
        Expected("2"),
        {"1": [run.task("late", [("a", 9)])]},
    )
    harness.shows("1", pending=[("of 1", "a", "1")])
    run.step("4", a=4)
    harness.reads_back(run)


@register_check("commit", "record")
def only_one_run_may_bring_an_answer(harness: Harness) -> None:
    """Two people press the button at the same moment, or two runs record beside an earlier
    checkpoint: the second one gets an error before any node runs, and stores nothing."""
    run = harness.run()
    run.step("1", a=1)
    run.step("2", a=2)
    revision = harness.need().revision or 0
    late = {id: [run.task("late", [("a", 9)])] for id in ("1", "2")}
    for id in ("1", "2"):
        seen = Expected("2", revision)
        counted = harness.record(seen, {id: [run.task("task", [("a", id)])]})
        revision += 1
        harness.reopen()
        told = (counted, harness.need().revision)
        assert_same(told, (revision, revision), "how many records are beside the head")
        assert_raises(CheckpointConflictError, harness.record, seen, late)
    harness.shows("1", pending=[("task", "a", "1")])
    harness.shows("2", pending=[("task", "a", "2")])
    counted = harness.record(Expected("2", revision), {})
    assert_same(counted, revision + 1, "how many records are beside the head after an empty one")
    run.step("3", a=3, writes=[("write", [("a", 3)])])
    harness.reopen()
    harness.shows("2", pending=[("task", "a", "2"), ("write", "a", 3)])
    harness.reads_back(run)


@register_check("commit")
def the_newest_checkpoint_of_a_run_is_found(harness: Harness) -> None:
    """A message that is delivered twice must be seen to have been worked on."""
    for id, run_id in (("1", "r1"), ("2", "r1"), ("3", "r2")):
        harness.put(id, {"a": id}, run_id=run_id)
    harness.put("1", ns="n", run_id="r3")
    harness.put("1", thread="u", run_id="r4")
    harness.reopen()
    for run_id, expected in (
        ("r1", "2"),
        ("r2", "3"),
        ("r3", None),
        ("r4", None),
        ("r%", None),
        ("", None),
    ):
        found = harness.call("run_of", harness.at(), run_id)
        assert_same(found and found.checkpoint["id"], expected, f"run_of({run_id!r})")


@register_check("commit", "commit")
def a_commit_that_fails_leaves_nothing(harness: Harness) -> None:
    """Whole or not at all: no writes without their checkpoint, no checkpoint without its head."""
    run = harness.run()
    run.step("1", a=1)
    commit, _ = run.made("2", "head", [("task", [("a", 2)])], {"a": 2})
    commit.metadata["lock"] = threading.Lock()
    try:
        harness.call("commit", [commit])
    except Exception:
        harness.shows(ids=["1"], head="1")
        harness.shows("1", pending=[])
        run.step("2", a=3)
        harness.reads_back(run)
    else:  # a saver that keeps metadata as it is may keep this
        harness.shows(ids=["2", "1"], head="2")


@register_check("commit")
def every_checkpoint_of_a_long_thread_reads_back(harness: Harness) -> None:
    """However a checkpointer shortens what it stores, each old checkpoint is complete, and so are
    forks from it."""
    run = harness.run()
    long_run(run, 100)
    for at in (0, 31, 32, 33, 64, 99):
        run.step(f"fork {at}", parent=f"{at}", fork=at, k1=at)
        for step in range(5):
            run.step(f"fork {at} {step}", a=step)
    harness.reopen()
    harness.reads_back(run)
    run.step("after", a=("x",))
    harness.reads_back(run, ["after"])


@register_check("commit")
def long_values_that_change_a_little_read_back(harness: Harness) -> None:
    """A checkpointer may store what changed; appending, setting, deleting and shrinking must give
    the very value back."""
    run = harness.run()
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
    harness.reopen()
    harness.reads_back(run)


# -- posts -----------------------------------------------------------------------------------------


def _post(harness: Harness, *values: Any, thread: str = "t") -> None:
    for value in values:
        harness.call("store_post", thread, [("a", harness.saver.serde.dumps(value))])


def _posts(harness: Harness, thread: str = "t") -> list[Post]:
    return [*harness.call("read_posts", thread)]


def _waits(harness: Harness, *expected: Any, thread: str = "t") -> None:
    """Check what is posted to a thread and waits."""
    loads = harness.saver.serde.loads
    found = [loads(blob) for post in _posts(harness, thread) for _, blob in post.writes]
    assert_same(found, [*expected], f"what waits for {thread!r}")


def _take(run: Commits, id: str, posts: list[Post], **changed: Any) -> None:
    """Commit a superstep that takes posts."""
    commit, whole = run.made(id, "head", (), changed)
    commit.taken = [post.id for post in posts]
    run.call("commit", [commit])
    run.expect(commit, whole)
    run.saver_state = commit.saver_state


@register_check("posts", "store_post")
def posts_wait_in_order_by_thread(harness: Harness) -> None:
    """What is posted waits, also for a thread that has no checkpoint yet, and no other gets it."""
    _post(harness, 1, (2,), "\u0000")
    _post(harness, "other", thread="u")
    harness.reopen()
    _waits(harness, 1, (2,), "\u0000")
    _waits(harness, "other", thread="u")
    _waits(harness, thread="v")
    harness.shows(ids=[])


@register_check("posts", "store_post", "commit")
def a_commit_takes_its_posts_and_no_others(harness: Harness) -> None:
    """What comes in between the look and the commit waits for the next one."""
    run = harness.run()
    run.step("1", a=1)
    _post(harness, "seen")
    seen = _posts(harness)
    _post(harness, "later")
    _take(run, "2", seen, a=2)
    harness.reopen()
    harness.reads_back(run)
    _waits(harness, "later")
    _take(run, "3", _posts(harness), a=3)
    run.step("4", a=4)
    harness.reads_back(run)
    _waits(harness)


@register_check("posts", "store_post", "commit")
def a_first_commit_takes_posts(harness: Harness) -> None:
    """A thread may be posted to before it exists."""
    _post(harness, "early")
    _take(harness.run(), "1", _posts(harness), a=1)
    harness.shows(ids=["1"])
    _waits(harness)


@register_check("posts", "store_post", "commit")
def a_commit_that_is_refused_takes_nothing(harness: Harness) -> None:
    """Of two runs that have read the same posts, the one that loses the head leaves them."""
    one, two = harness.run(), harness.run()
    _post(harness, "word")
    posts = _posts(harness)
    one.step("1", a=1)
    assert_raises(CheckpointConflictError, _take, two, "other", posts, a=2)
    _waits(harness, "word")


@register_check("posts", "store_post", "commit")
def a_post_is_taken_once(harness: Harness) -> None:
    """A commit that takes what another has taken would show it in two steps: it is refused."""
    run = harness.run()
    _post(harness, "word")
    posts = _posts(harness)
    _take(run, "1", posts, a=1)
    assert_raises(CheckpointConflictError, _take, run, "2", posts, a=2)
    harness.shows(ids=["1"])


@register_check("posts", "store_post", "commit")
def the_id_of_a_post_is_not_given_again(harness: Harness) -> None:
    """A run knows by their ids what it has read."""
    run = harness.run()
    _post(harness, "one")
    before = _posts(harness)
    _take(run, "1", before, a=1)
    harness.reopen()
    _post(harness, "two")
    assert_same(_posts(harness)[0].id > before[0].id, True, "a higher id")


@register_check("posts", "store_post", "copy_thread", "prune")
def posts_are_copied_and_deleted_with_their_thread(harness: Harness) -> None:
    """A copy is whole, and what is deleted leaves nothing; pruning is about checkpoints."""
    harness.run().step("1", a=1)
    _post(harness, "one", "two")
    _post(harness, "other", thread="u")
    harness.call("copy_thread", "t", "copy")
    harness.call("prune", keep_last=0)
    _waits(harness, "one", "two")
    harness.call("delete_thread", "t")
    harness.reopen()
    _waits(harness)
    _waits(harness, "one", "two", thread="copy")
    _waits(harness, "other", thread="u")


# -- transactions ----------------------------------------------------------------------------------


def _returning(harness: Harness, value: Any, calls: list[Any]) -> Callable[[Any], TaskWrites]:
    def function(connection: Any) -> TaskWrites:
        assert_that(connection is not None, "the function is given a connection")
        calls.append(value)
        return TaskWrites("effect", "", [(RETURN, harness.saver.serde.dumps(value))])

    return function


def _transact(
    harness: Harness,
    id: str,
    revision: int | None,
    function: Callable[[Any], TaskWrites],
    head: str | None = None,
) -> Transacted:
    place = TransactionPlace(("t", ""), id, Expected(head or id, revision), "effect")
    done: Transacted = harness.call("transact", place, function)
    return done


@register_check("transactions", "transact")
def a_transaction_is_recorded_beside_the_head(harness: Harness) -> None:
    """Who runs the task again finds what the function has returned; it is called once."""
    harness.run().step("1", a=1)
    calls: list[Any] = []
    done = _transact(harness, "1", 0, _returning(harness, 7, calls))
    assert_same(done.revision, 1, "how often something is recorded")
    harness.reopen()
    harness.shows("1", pending=[("effect", RETURN, 7)])
    again = _transact(harness, "1", None, _returning(harness, 8, calls))
    assert_same((again.record.task_id, again.revision), ("effect", 1), "the record that was there")
    assert_same(calls, [7], "calls of the function")


@register_check("transactions", "transact", "commit")
def a_transaction_is_recorded_where_its_task_has_started(harness: Harness) -> None:
    """A task may have started at an earlier checkpoint than the head; who runs it again looks
    there. Another run that works from the head is told."""
    run = harness.run()
    run.step("1", a=1)
    run.step("2", a=2)
    calls: list[Any] = []
    done = _transact(harness, "1", 0, _returning(harness, 7, calls), head="2")
    assert_same(done.revision, 1, "how often something is recorded beside the head")
    harness.reopen()
    harness.shows("1", pending=[("effect", RETURN, 7)])
    harness.shows("2", pending=[])
    again = _transact(harness, "1", None, _returning(harness, 8, calls), head="2")
    assert_same(again.record.task_id, "effect", "the record that was there")
    other = TransactionPlace(("t", ""), "1", Expected("2", 0), "another")
    late = _returning(harness, 9, calls)
    assert_raises(CheckpointConflictError, harness.call, "transact", other, late)
    assert_raises(CheckpointConflictError, _transact, harness, "1", 1, late, head="1")
    assert_same(calls, [7], "calls of the function")
    run.step("3", a=3)
    harness.reads_back(run)


@register_check("transactions", "transact")
def a_transaction_whose_function_raises_leaves_nothing(harness: Harness) -> None:
    """The error is the function's own; the next try is as the first."""
    harness.run().step("1", a=1)

    def fails(connection: Any) -> TaskWrites:
        raise LookupError("no such item")

    assert_raises(LookupError, _transact, harness, "1", 0, fails)
    harness.shows("1", pending=[])
    calls: list[Any] = []
    _transact(harness, "1", 0, _returning(harness, 7, calls))
    assert_same(calls, [7], "calls of the next try")


@register_check("transactions", "transact", "commit")
def a_transaction_of_a_run_that_was_overtaken_is_refused(harness: Harness) -> None:
    """Its thread has moved on, or somebody else has recorded something: nothing is called."""
    run = harness.run()
    run.step("1", a=1)
    calls: list[Any] = []
    late = _returning(harness, 7, calls)
    harness.record(None, {"1": [run.task("other", [("a", 2)])]})
    assert_raises(CheckpointConflictError, _transact, harness, "1", 0, late)
    run.step("2", a=2)
    assert_raises(CheckpointConflictError, _transact, harness, "1", 0, late)
    assert_same(calls, [], "calls of the function")
