"""Checks of forgetting and copying: delete_thread, delete_for_runs, prune, copy_thread."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .conformance import check, raises, same
from .harness import Desk, long_run
from .listing import ROOT, shelf


@check("delete")
def delete_thread_forgets_all_of_it_and_nothing_else(desk: Desk) -> None:
    """People have a right to be forgotten: checkpoints, namespaces and writes, also when the name
    is used again."""
    shelf(desk)
    desk.write("t3", [("a", 1)])
    desk.call("delete_thread", "t")
    desk.call("delete_thread", "nobody")
    desk.reopen()
    same(
        (desk.ids(None), desk.head(), desk.head(ns="n")),
        (["u0"], None, None),
        "list(None) and the heads",
    )
    desk.put("t3")
    same(desk.pending(), [], "writes beside a checkpoint of the same name")
    run = desk.run("u2")
    run.step("1", a=1)
    desk.call("delete_thread", "u2")
    again = desk.run("u2")
    again.step("1", b=2)
    desk.reads_back(again)


@check("delete", "delete_for_runs")
def delete_for_runs_forgets_what_these_runs_made(desk: Desk) -> None:
    """A run that went wrong is taken out of all threads; what others stored stays complete."""
    desk.put("1", {"a": 1}, run_id="r1")
    desk.put(
        "2", {"a": 1, "b": 2}, parent="1", versions={"a": 1, "b": 2}, new={"b": 2}, run_id="r2"
    )
    desk.put(
        "3", {"a": 1, "b": 3}, parent="2", versions={"a": 1, "b": 3}, new={"b": 3}, run_id="r3"
    )
    desk.put("n", ns="n", run_id="r3")
    desk.put("x", thread="u", run_id="r4")
    desk.write("3", [("a", 1)])
    desk.call("delete_for_runs", [])
    desk.call("delete_for_runs", ["unknown"])
    same(desk.ids(None), ["x", "n", "3", "2", "1"], "list(None) after deleting nothing")
    desk.call("delete_for_runs", ["r2"])
    found = desk.need("3")
    same(
        found.parent_config and found.parent_config["configurable"]["checkpoint_id"],
        "1",
        "nearest ancestor left",
    )
    same(found.checkpoint["channel_values"], {"a": 1, "b": 3}, "values of '3'")
    desk.call("delete_for_runs", ["r3", "r4"])
    desk.reopen()
    same(
        (desk.ids(None), desk.head(), desk.head(ns="n")),
        (["1"], "1", None),
        "list(None) and the heads",
    )
    desk.put("3", parent="1")
    same(desk.pending("3"), [], "writes beside a checkpoint of the same name")
    raises(TypeError, "delete_for_runs('r1')", desk.call, "delete_for_runs", "r1")


@check("delete", "delete_for_runs", "commit")
def a_run_goes_on_after_its_newest_checkpoints_were_deleted(desk: Desk) -> None:
    """Where the head goes, the newest checkpoint left becomes the head, for commits too."""
    for id, run_id in (("1", "r1"), ("2", "r2")):
        desk.put(id, {"a": id}, parent="1" if id == "2" else None, run_id=run_id)
    desk.call("delete_for_runs", ["r2"])
    run = desk.run()
    run.head, run.expected["1"], run.steps["1"] = "1", desk.need().checkpoint, 0
    run.step("3", b=1)
    same((desk.values(), desk.ids()), ({"a": "1", "b": 1}, ["3", "1"]), "values, and list()")


@check("prune", "prune")
def prune_keeps_the_newest_of_each_namespace(desk: Desk) -> None:
    """Threads need not grow for ever, and what stays is complete, with its writes."""
    shelf(desk)
    for id in ("t2", "t3"):
        desk.write(id, [("a", 1)])
    desk.call("prune", [])
    desk.call("prune", ["nobody"])
    desk.call("prune", ["t"], keep_last=2)
    same(desk.ids(None), ["u0", "n3", "t3", "n2", "t2"], "list(None) after keep_last=2")
    desk.call("prune", ["t", "u"])
    desk.reopen()
    same(desk.ids(None), ["u0", "n3", "t3"], "list(None) after prune() without limits")
    same(
        (desk.pending("t3"), desk.values()),
        ([("task", "a", 1)], {"a": 3}),
        "writes and values of what stayed",
    )
    same(desk.need("t3").parent_config, None, "parent of what stayed")
    desk.put("t2")
    same(desk.pending("t2"), [], "writes beside a checkpoint of a name that was pruned")
    desk.call("prune", ["t"], keep_last=0)
    same(desk.ids(None), ["u0"], "list(None) after keep_last=0")
    raises(TypeError, "prune('t')", desk.call, "prune", "t")
    raises(ValueError, "prune(keep_last=-1)", desk.call, "prune", ["u"], keep_last=-1)
    desk.call("prune", keep_last=0)
    same(desk.ids(None), [], "list(None) after keep_last=0 on all threads")


@check("prune", "prune")
def prune_by_age_keeps_the_newest_however_old(desk: Desk) -> None:
    """A thread that rested for a year can still be gone on with."""
    run = desk.run()
    for step in range(3):
        run.step(f"{step}", a=step)
    desk.call("prune", ["t"], older_than=timedelta(days=36500))
    same(desk.ids(), ["2", "1", "0"], "list() after pruning what is older than 100 years")
    desk.call("prune", ["t"], older_than=timedelta(days=1))
    same(desk.ids(), ["2"], "list() after pruning what is older than a day")


@check("prune", "prune")
def what_stays_after_prune_reads_back_and_goes_on(desk: Desk) -> None:
    """Pruning takes checkpoints away on which others build; those must not notice."""
    run = desk.run()
    long_run(run, 100)
    run.step("fork", parent="50", x=1)
    for step in range(20):
        run.step(f"list {step}", x=["a" * 30] * (step + 10))
    desk.call("prune", ["t"], keep_last=60)
    ids = desk.ids()
    same(len(ids), 60, "how many stayed")
    desk.reads_back(run, ids)
    same(desk.need("fork").parent_config, None, "parent of a fork whose parent went")
    desk.reopen()
    for step in range(40):
        run.step(f"more {step}", y=step, x=["a" * 30] * (step + 30))
    desk.reads_back(run, desk.ids())
    desk.call("prune", ["t"])
    run.step("last", z=1)
    desk.reads_back(run, desk.ids())
    same(len(desk.ids()), 2, "how many are there after prune() and one step")


@check("prune", "prune", "commit")
def a_commit_on_a_parent_that_was_pruned_is_complete(desk: Desk) -> None:
    """A run may hold an old checkpoint while somebody prunes; what it changed since is not
    enough."""
    run = desk.run()
    long_run(run, 5)
    desk.call("prune", ["t"])
    run.step("fork", parent="1", z=1)
    run.step("next", z=2)
    desk.reads_back(run, ["4", "fork", "next"])


@check("copy", "copy_thread")
def copy_thread_copies_everything(desk: Desk) -> None:
    """Ids, order, namespaces, metadata and writes; so a copy can be gone back in as the original
    can."""
    shelf(desk)
    desk.put("alone", {"a": 9}, parent="one that is gone")
    run = desk.run()
    run.head, run.expected["alone"] = "alone", desk.need().checkpoint
    for step in range(40):
        run.step(f"{step}", x=["a" * 30] * (step + 10), y=step)
    desk.write("t2", [("a", 1)])
    before = {id: desk.need(id) for id in desk.ids(ROOT)}
    desk.call("copy_thread", "t", "copy")
    desk.reopen()
    same(desk.ids("copy"), desk.ids("t"), "list() of the copy")
    for id, source in before.items():
        copied = desk.need(id, thread="copy")
        same(copied.config["configurable"]["thread_id"], "copy", f"thread of {id!r} in the copy")
        same(_bare(copied), _bare(source), f"checkpoint {id!r} of the copy")
        same(_bare(desk.need(id)), _bare(source), f"checkpoint {id!r} of the source")
    same(
        (desk.head(thread="copy"), desk.head(thread="copy", ns="n")),
        ("39", "n3"),
        "heads of the copy",
    )


def _bare(found: Any) -> Any:
    parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
    return (found.checkpoint, found.metadata, parent, found.pending_writes)


@check("copy", "copy_thread")
def copy_and_source_share_nothing(desk: Desk) -> None:
    """What happens to one afterwards, its end included, must not be seen in the other."""
    shelf(desk)
    desk.write("t2", [("a", 1)])
    desk.call("copy_thread", "t", "copy")
    desk.write("t2", [("b", 2)], "later")
    desk.put("new", {"a": "copy"}, thread="copy", parent="t3")
    desk.write("t2", [("c", 3)], "third", thread="copy")
    same(desk.pending("t2"), [("later", "b", 2), ("task", "a", 1)], "writes of the source")
    same(
        desk.pending("t2", thread="copy"),
        [("task", "a", 1), ("third", "c", 3)],
        "writes of the copy",
    )
    same(
        (desk.ids(ROOT)[0], desk.ids(desk.at(thread="copy"))[0]),
        ("t3", "new"),
        "heads of source and copy",
    )
    kept = desk.ids("copy")
    desk.call("delete_thread", "t")
    same(
        (desk.ids("t"), desk.ids("copy")), ([], kept), "list() of both after the source was deleted"
    )
    same(
        [desk.values(f"t{i}", thread="copy") for i in range(4)],
        [{"a": i} for i in range(4)],
        "values of the copy",
    )


@check("copy", "copy_thread")
def copy_thread_refuses_to_copy_nothing_or_over_something(desk: Desk) -> None:
    """An empty copy and a mixture of two threads are both worse than an error."""
    shelf(desk)
    raises(ValueError, "copy_thread() of no thread", desk.call, "copy_thread", "nobody", "x")
    raises(ValueError, "copy_thread() over a thread", desk.call, "copy_thread", "t", "u")
    same((desk.ids("u"), desk.ids("x")), (["u0"], []), "list() of the targets")


@check("copy", "copy_thread", "prune", "commit")
def copies_of_pruned_threads_go_on(desk: Desk) -> None:
    """Values outlive the checkpoints that wrote them; a copy must take them along, and prune them
    in its turn."""
    run = desk.run()
    for step in range(30):
        run.step(f"{step}", x=["a" * 30] * (step + 10), y=["b" * 90] * 2, z=step)
    desk.call("prune", ["t"], keep_last=3)
    desk.call("copy_thread", "t", "copy")
    desk.reads_back(run, desk.ids(), thread="copy")
    desk.call("delete_thread", "t")
    run.thread = "copy"
    for step in range(5):
        run.step(f"more {step}", x=["a" * 30] * (step + 40))
    desk.call("prune", ["copy"], keep_last=2)
    desk.reopen()
    desk.reads_back(run, desk.ids("copy"))
