"""Checks of `list`: order, scope, filters, before, limit."""

from __future__ import annotations

from typing import Any

from .conformance import SYNC, check, raises, same
from .harness import Desk


def shelf(desk: Desk) -> Desk:
    """Two threads, one of them with a namespace, put in turn."""
    for step in range(4):
        desk.put(
            f"t{step}",
            {"a": step},
            step=step,
            source="input" if step == 0 else "loop",
            odd=bool(step % 2),
        )
        desk.put(f"n{step}", ns="n", step=step)
    desk.put("u0", thread="u", step=0, run_id="r", note=None)
    return desk


ROOT: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@check("list")
def newest_is_what_was_committed_last(desk: Desk) -> None:
    """Order is that of commits: ids and clocks of several machines do not agree."""
    for id in ("5", "1", "9", "3"):
        desk.put(id)
    desk.reopen()
    same(desk.ids(), ["3", "9", "1", "5"], "list()")
    same((desk.head(), desk.need().checkpoint["id"]), ("3", "3"), "head() and get_tuple()")


@check("list")
def it_takes_all_threads_or_one_or_a_namespace_or_a_checkpoint(desk: Desk) -> None:
    """The more a config names, the less is listed."""
    shelf(desk)
    everything = ["u0", "n3", "t3", "n2", "t2", "n1", "t1", "n0", "t0"]
    same(desk.ids(None), everything, "list(None)")
    same(desk.ids("u"), ["u0"], "list() of thread 'u'")
    same(desk.ids("nobody"), [], "list() of a thread that is not there")
    same(desk.ids("t"), everything[1:], "list() of thread 't', all namespaces")
    same(desk.ids(ROOT), ["t3", "t2", "t1", "t0"], "list() of the root")
    same(desk.ids(desk.at(ns="n")), ["n3", "n2", "n1", "n0"], "list() of namespace 'n'")
    same(desk.ids(desk.at("t2")), ["t2"], "list() of one checkpoint")
    same(desk.ids(desk.at("n2")), [], "list() of a checkpoint of another namespace")


@check("list")
def filters_mean_equality_of_all_keys(desk: Desk) -> None:
    """People search threads by metadata of their own; an absent key equals nothing, not even
    None."""
    shelf(desk)
    wanted: list[tuple[Any, dict[str, Any], list[str]]] = [
        (ROOT, {"source": "input"}, ["t0"]),
        (ROOT, {"step": 2}, ["t2"]),
        (ROOT, {"odd": True, "step": 3}, ["t3"]),
        (ROOT, {"odd": True, "step": 2}, []),
        (ROOT, {"absent": None}, []),
        (ROOT, {"parents": {}}, ["t3", "t2", "t1", "t0"]),
        (ROOT, {"step": "2"}, []),
        (ROOT, {}, ["t3", "t2", "t1", "t0"]),
        ("t", {"step": 1}, ["n1", "t1"]),
        (None, {"run_id": "r"}, ["u0"]),
        (None, {"note": None}, ["u0"]),
    ]
    for config, filter, expected in wanted:
        same(desk.ids(config, filter=filter), expected, f"list({config}, filter={filter})")
    same(desk.ids(ROOT, filter=None), ["t3", "t2", "t1", "t0"], "list(filter=None)")


@check("list")
def before_is_strict_and_limit_counts_what_is_left(desk: Desk) -> None:
    """Pages of a history neither repeat nor skip a checkpoint."""
    shelf(desk)
    bare: Any = {"configurable": {"checkpoint_id": "t1"}}
    wanted: list[tuple[Any, dict[str, Any], list[str]]] = [
        (ROOT, {"before": desk.at("t2")}, ["t1", "t0"]),
        (ROOT, {"before": desk.at("t0")}, []),
        (ROOT, {"before": desk.at()}, ["t2", "t1", "t0"]),
        (ROOT, {"before": bare}, ["t0"]),
        ("t", {"before": desk.at("n1", ns="n")}, ["t1", "n0", "t0"]),
        (ROOT, {"limit": 1}, ["t3"]),
        (ROOT, {"limit": 9}, ["t3", "t2", "t1", "t0"]),
        (ROOT, {"limit": 2, "before": desk.at("t3")}, ["t2", "t1"]),
        (ROOT, {"limit": 1, "filter": {"odd": True}}, ["t3"]),
        (ROOT, {"limit": 2, "filter": {"odd": False}, "before": desk.at("t3")}, ["t2", "t0"]),
        (ROOT, {"limit": 0}, []),
    ]
    for config, options, expected in wanted:
        same(desk.ids(config, **options), expected, f"list({config}, {options})")


@check("list")
def a_before_that_is_not_there_and_a_limit_below_zero_are_refused(desk: Desk) -> None:
    """Nothing, or everything, would both be wrong answers."""
    shelf(desk)
    raises(ValueError, "list(before=an unknown checkpoint)", desk.ids, ROOT, before=desk.at("x"))
    raises(ValueError, "list(limit=-1)", desk.ids, ROOT, limit=-1)


@check("list")
def it_gives_whole_tuples(desk: Desk) -> None:
    """What is listed is what get_tuple gives, pending writes included."""
    shelf(desk)
    desk.write("t1", [("a", 1)])
    for found in desk.listed("t"):
        id, ns = found.checkpoint["id"], found.config["configurable"]["checkpoint_ns"]
        same(tuple(found), tuple(desk.need(id, ns=ns)), f"checkpoint {id!r} as listed")
    same(desk.listed(desk.at("t1"))[0].pending_writes, [("task", "a", 1)], "pending writes of 't1'")


@check("list")
def a_long_history_is_listed_whole(desk: Desk) -> None:
    """However a saver reads it page by page."""
    run = desk.run()
    for step in range(70):
        run.step(f"{step}", a=step, b=["x"] * step)
        if step % 3 == 0:
            desk.put(f"u{step}", thread="u")
    expected = [f"{step}" for step in reversed(range(70))]
    same(desk.ids("t"), expected, "list()")
    same(desk.ids("t", limit=33), expected[:33], "list(limit=33)")
    same(desk.ids("t", before=desk.at("40"), limit=35), expected[30:65], "list(before, limit=35)")
    listed = {found.checkpoint["id"]: found.checkpoint for found in desk.listed("t")}
    same(listed, {id: run.expected[id] for id in expected}, "checkpoints as listed")


@check("list", worlds=(SYNC,))
def a_listing_shows_nothing_that_came_later(desk: Desk) -> None:
    """A history read while the thread moves on is a history, not a mixture."""
    for id in "12":
        desk.put(id)
    listing = desk.saver.list(ROOT)
    first = next(iter(listing)).checkpoint["id"]
    desk.put("3")
    same(
        [first, *(found.checkpoint["id"] for found in listing)],
        ["2", "1"],
        "what the listing gives",
    )


@check("list", worlds=(SYNC,))
def threads_are_named_by_when_they_moved(desk: Desk) -> None:
    """Whoever looks after many threads begins with the newest."""
    for id, name in enumerate(["a", "b", "c", "a", "b%", "b"]):
        desk.put(f"{id}", thread=name, ns="n" if id == 3 else "")
    desk.call("delete_thread", "c")
    same([*desk.saver.threads()], ["b", "b%", "a"], "threads()")
