"""Checks of forgetting and copying: delete_thread, delete_for_runs, prune, copy_thread."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .asserts import assert_raises, assert_same, assert_that
from .conformance import register_check
from .harness import Harness, long_run
from .listing import ROOT, shelf


@register_check("delete")
def delete_thread_forgets_all_of_it_and_nothing_else(harness: Harness) -> None:
    """People have a right to be forgotten: checkpoints, namespaces and writes, also when the name
    is used again."""
    shelf(harness)
    harness.write("t3", [("a", 1)])
    harness.call("delete_thread", "t")
    harness.call("delete_thread", "nobody")
    harness.reopen()
    harness.shows(everything=["u0"], head=None)
    harness.shows(ns="n", head=None)
    harness.put("t3")
    harness.shows(pending=[])
    run = harness.run("u2")
    run.step("1", a=1)
    harness.call("delete_thread", "u2")
    again = harness.run("u2")
    again.step("1", b=2)
    harness.reads_back(again)


@register_check("delete", "delete_for_runs")
def delete_for_runs_forgets_what_these_runs_made(harness: Harness) -> None:
    """A run that went wrong is taken out of all threads; what others stored stays complete."""
    harness.put("1", {"a": 1}, run_id="r1")
    harness.put(
        "2", {"a": 1, "b": 2}, parent="1", versions={"a": 1, "b": 2}, new={"b": 2}, run_id="r2"
    )
    harness.put(
        "3", {"a": 1, "b": 3}, parent="2", versions={"a": 1, "b": 3}, new={"b": 3}, run_id="r3"
    )
    harness.put("n", ns="n", run_id="r3")
    harness.put("x", thread="u", run_id="r4")
    harness.write("3", [("a", 1)])
    harness.call("delete_for_runs", [])
    harness.call("delete_for_runs", ["unknown"])
    harness.shows(everything=["x", "n", "3", "2", "1"])
    harness.call("delete_for_runs", ["r2"])
    harness.shows("3", parent="1", values={"a": 1, "b": 3})
    harness.call("delete_for_runs", ["r3", "r4"])
    harness.reopen()
    harness.shows(everything=["1"], head="1")
    harness.shows(ns="n", head=None)
    harness.put("3", parent="1")
    harness.shows("3", pending=[])
    assert_raises(TypeError, harness.call, "delete_for_runs", "r1")


@register_check("delete", "delete_for_runs", "commit")
def a_run_goes_on_after_its_newest_checkpoints_were_deleted(harness: Harness) -> None:
    """Where the head goes, the newest checkpoint left becomes the head, for commits too."""
    for id, run_id in (("1", "r1"), ("2", "r2")):
        harness.put(id, {"a": id}, parent="1" if id == "2" else None, run_id=run_id)
    harness.call("delete_for_runs", ["r2"])
    run = harness.run()
    run.head, run.expected["1"], run.steps["1"] = "1", harness.need().checkpoint, 0
    run.step("3", b=1)
    harness.shows(values={"a": "1", "b": 1}, ids=["3", "1"])


@register_check("prune", "prune")
def prune_keeps_the_newest_of_each_namespace(harness: Harness) -> None:
    """Threads need not grow for ever, and what stays is complete, with its writes."""
    shelf(harness)
    for id in ("t2", "t3"):
        harness.write(id, [("a", 1)])
    harness.call("prune", [])
    harness.call("prune", ["nobody"])
    harness.call("prune", ["t"], keep_last=2)
    harness.shows(everything=["u0", "n3", "t3", "n2", "t2"])
    harness.call("prune", ["t", "u"])
    harness.reopen()
    harness.shows(everything=["u0", "n3", "t3"], values={"a": 3})
    harness.shows("t3", pending=[("task", "a", 1)], parent=None)
    harness.put("t2")
    harness.shows("t2", pending=[])
    harness.call("prune", ["t"], keep_last=0)
    harness.shows(everything=["u0"])
    assert_raises(TypeError, harness.call, "prune", "t")
    assert_raises(ValueError, harness.call, "prune", ["u"], keep_last=-1)
    harness.call("prune", keep_last=0)
    harness.shows(everything=[])


@register_check("prune", "prune")
def prune_by_age_keeps_the_newest_however_old(harness: Harness) -> None:
    """A thread that rested for a year can still be gone on with."""
    run = harness.run()
    for step in range(3):
        run.step(f"{step}", a=step)
    harness.call("prune", ["t"], older_than=timedelta(days=36500))
    harness.shows(ids=["2", "1", "0"])
    harness.call("prune", ["t"], older_than=timedelta(days=1))
    harness.shows(ids=["2"])


@register_check("prune", "prune")
def what_stays_after_prune_reads_back_and_goes_on(harness: Harness) -> None:
    """Pruning takes checkpoints away on which others build; those must not notice."""
    run = harness.run()
    long_run(run, 100)
    run.step("fork", parent="50", x=1)
    for step in range(20):
        run.step(f"list {step}", x=["a" * 30] * (step + 10))
    harness.call("prune", ["t"], keep_last=60)
    ids = harness.ids()
    assert_same(len(ids), 60, "how many stayed")
    harness.reads_back(run, ids)
    harness.shows("fork", parent=None)
    harness.reopen()
    for step in range(40):
        run.step(f"more {step}", y=step, x=["a" * 30] * (step + 30))
    harness.reads_back(run, harness.ids())
    harness.call("prune", ["t"])
    run.step("last", z=1)
    harness.reads_back(run, harness.ids())
    assert_same(len(harness.ids()), 2, "how many are there after prune() and one step")


@register_check("prune", "prune", "delete_for_runs")
def what_others_build_on_outlives_several_deletions(harness: Harness) -> None:
    """A value stays as long as a checkpoint has it, even if the one that wrote it went long
    before."""
    values: dict[str, Any] = {}
    for number in range(9):
        values |= {"long": ["a" * 30] * (number + 5)} if number < 6 else {}
        new = dict.fromkeys(values, 1)
        parent = f"{number - 1}" if number else None
        harness.put(f"{number}", values, parent=parent, new=new, run_id=f"r{number}")
    for gone in (["r4", "r5"], ["r8"], ["r2"]):
        harness.call("delete_for_runs", gone)
        harness.reopen()
        harness.shows("7", values=values)
    harness.call("prune", ["t"], keep_last=2)
    harness.reopen()
    harness.shows(ids=["7", "6"], values=values)


@register_check("prune", "prune", "commit")
def a_commit_on_a_parent_that_was_pruned_is_complete(harness: Harness) -> None:
    """A run may hold an old checkpoint while somebody prunes; what it changed since is not
    enough."""
    run = harness.run()
    long_run(run, 5)
    harness.call("prune", ["t"])
    run.step("fork", parent="1", z=1)
    run.step("next", z=2)
    harness.reads_back(run, ["4", "fork", "next"])


@register_check("copy", "copy_thread")
def copy_thread_copies_everything(harness: Harness) -> None:
    """Ids, order, namespaces, metadata and writes; so a copy can be gone back in as the original
    can."""
    shelf(harness)
    harness.put("alone", {"a": 9}, parent="one that is gone")
    run = harness.run()
    run.head, run.expected["alone"] = "alone", harness.need().checkpoint
    for step in range(40):
        run.step(f"{step}", x=["a" * 30] * (step + 10), y=step)
    harness.write("t2", [("a", 1)])
    before = {id: harness.need(id) for id in harness.ids(ROOT)}
    harness.call("copy_thread", "t", "copy")
    harness.reopen()
    harness.shows(thread="copy", ids=harness.ids("t"))
    for id, source in before.items():
        copied = harness.need(id, thread="copy")
        assert_same(
            copied.config["configurable"]["thread_id"], "copy", f"thread of {id!r} in the copy"
        )
        assert_same(_bare(copied), _bare(source), f"checkpoint {id!r} of the copy")
        assert_same(_bare(harness.need(id)), _bare(source), f"checkpoint {id!r} of the source")
    harness.shows(thread="copy", head="39")
    harness.shows(thread="copy", ns="n", head="n3")


def _bare(found: Any) -> Any:
    parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
    return (found.checkpoint, found.metadata, parent, found.pending_writes)


@register_check("delete", "stored_bytes", "prune")
def the_bytes_of_a_thread_come_and_go_with_it(harness: Harness) -> None:
    """Quotas count by them, and a thread that is deleted takes nothing."""

    def size(*names: str) -> int:
        return int(harness.call("stored_bytes", names))

    value = "a long text, which no checkpointer stores for less " * 20
    harness.put("1", {"a": value})
    harness.put("n1", {"b": value}, ns="n")
    harness.put("other", {"a": value}, thread="u")
    one, other = size("t"), size("u")
    assert_that(one >= 2 * len(value) and other >= len(value), f"bytes of t and u: {one}, {other}")
    assert_same((size("t", "u"), size("nobody"), size()), (one + other, 0, 0), "bytes together")
    harness.put("2", {"a": value[::-1]}, parent="1", versions={"a": 2}, new={"a": 2})
    harness.write("2", [("a", value.upper())])
    grown = size("t")
    assert_that(grown >= one + 2 * len(value), f"bytes after more was stored: {grown}")
    harness.call("prune", ["t"])
    assert_that(one < size("t") < grown, f"bytes after pruning: {size('t')}")
    harness.call("delete_thread", "t")
    harness.reopen()
    assert_same((size("t"), size("u")), (0, other), "bytes after deleting")


@register_check("copy", "copy_thread")
def copy_and_source_share_nothing(harness: Harness) -> None:
    """What happens to one afterwards, its end included, must not be seen in the other."""
    shelf(harness)
    harness.write("t2", [("a", 1)])
    harness.call("copy_thread", "t", "copy")
    harness.write("t2", [("b", 2)], "later")
    harness.put("new", {"a": "copy"}, thread="copy", parent="t3")
    harness.write("t2", [("c", 3)], "third", thread="copy")
    harness.shows("t2", pending=[("later", "b", 2), ("task", "a", 1)])
    harness.shows("t2", thread="copy", pending=[("task", "a", 1), ("third", "c", 3)])
    assert_same(
        (harness.ids(ROOT)[0], harness.ids(harness.at(thread="copy"))[0]),
        ("t3", "new"),
        "heads of source and copy",
    )
    kept = harness.ids("copy")
    harness.call("delete_thread", "t")
    harness.shows(ids=[])
    harness.shows(thread="copy", ids=kept)
    assert_same(
        [harness.values(f"t{i}", thread="copy") for i in range(4)],
        [{"a": i} for i in range(4)],
        "values of the copy",
    )


@register_check("copy", "copy_thread")
def copy_thread_refuses_to_copy_nothing_or_over_something(harness: Harness) -> None:
    """An empty copy and a mixture of two threads are both worse than an error."""
    shelf(harness)
    assert_raises(ValueError, harness.call, "copy_thread", "nobody", "x")
    assert_raises(ValueError, harness.call, "copy_thread", "t", "u")
    harness.shows(thread="u", ids=["u0"])
    harness.shows(thread="x", ids=[])


@register_check("copy", "copy_thread", "prune", "commit")
def copies_of_pruned_threads_go_on(harness: Harness) -> None:
    """Values outlive the checkpoints that wrote them; a copy must take them along, and prune them
    in its turn."""
    run = harness.run()
    for step in range(30):
        run.step(f"{step}", x=["a" * 30] * (step + 10), y=["b" * 90] * 2, z=step)
    harness.call("prune", ["t"], keep_last=3)
    harness.call("copy_thread", "t", "copy")
    harness.reads_back(run, harness.ids(), thread="copy")
    harness.call("delete_thread", "t")
    run.thread = "copy"
    for step in range(5):
        run.step(f"more {step}", x=["a" * 30] * (step + 40))
    harness.call("prune", ["copy"], keep_last=2)
    harness.reopen()
    harness.reads_back(run, harness.ids("copy"))
