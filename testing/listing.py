"""Checks of `list`: order, scope, filters, before, limit."""

from __future__ import annotations

from typing import Any

from .asserts import SYNC, assert_raises, assert_same
from .conformance import register_check
from .harness import Harness


def shelf(harness: Harness) -> Harness:
    """Two threads, one of them with a namespace, put in turn."""
    for step in range(4):
        harness.put(
            f"t{step}",
            {"a": step},
            step=step,
            source="input" if step == 0 else "loop",
            odd=bool(step % 2),
        )
        harness.put(f"n{step}", ns="n", step=step)
    harness.put("u0", thread="u", step=0, run_id="r", note=None)
    return harness


ROOT: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@register_check("list")
def newest_is_what_was_committed_last(harness: Harness) -> None:
    """Order is that of commits: ids and clocks of several machines do not agree."""
    for id in ("5", "1", "9", "3"):
        harness.put(id)
    harness.reopen()
    harness.shows(ids=["3", "9", "1", "5"])
    assert_same(
        (harness.head(), harness.need().checkpoint["id"]), ("3", "3"), "head() and get_tuple()"
    )


@register_check("list")
def it_takes_all_threads_or_one_or_a_namespace_or_a_checkpoint(harness: Harness) -> None:
    """The more a config names, the less is listed."""
    shelf(harness)
    everything = ["u0", "n3", "t3", "n2", "t2", "n1", "t1", "n0", "t0"]
    harness.shows(everything=everything, ids=everything[1:])
    harness.shows(thread="u", ids=["u0"])
    harness.shows(thread="nobody", ids=[])
    assert_same(harness.ids(ROOT), ["t3", "t2", "t1", "t0"], "list() of the root")
    assert_same(
        harness.ids(harness.at(ns="n")), ["n3", "n2", "n1", "n0"], "list() of namespace 'n'"
    )
    assert_same(harness.ids(harness.at("t2")), ["t2"], "list() of one checkpoint")
    assert_same(harness.ids(harness.at("n2")), [], "list() of a checkpoint of another namespace")


@register_check("list")
def filters_mean_equality_of_all_keys(harness: Harness) -> None:
    """People search threads by metadata of their own; an absent key equals nothing, not even
    None."""
    shelf(harness)
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
        assert_same(
            harness.ids(config, filter=filter), expected, f"list({config}, filter={filter})"
        )
    assert_same(harness.ids(ROOT, filter=None), ["t3", "t2", "t1", "t0"], "list(filter=None)")


@register_check("list")
def before_is_strict_and_limit_counts_what_is_left(harness: Harness) -> None:
    """Pages of a history neither repeat nor skip a checkpoint."""
    shelf(harness)
    bare: Any = {"configurable": {"checkpoint_id": "t1"}}
    wanted: list[tuple[Any, dict[str, Any], list[str]]] = [
        (ROOT, {"before": harness.at("t2")}, ["t1", "t0"]),
        (ROOT, {"before": harness.at("t0")}, []),
        (ROOT, {"before": harness.at()}, ["t2", "t1", "t0"]),
        (ROOT, {"before": bare}, ["t0"]),
        ("t", {"before": harness.at("n1", ns="n")}, ["t1", "n0", "t0"]),
        (ROOT, {"limit": 1}, ["t3"]),
        (ROOT, {"limit": 9}, ["t3", "t2", "t1", "t0"]),
        (ROOT, {"limit": 2, "before": harness.at("t3")}, ["t2", "t1"]),
        (ROOT, {"limit": 1, "filter": {"odd": True}}, ["t3"]),
        (ROOT, {"limit": 2, "filter": {"odd": False}, "before": harness.at("t3")}, ["t2", "t0"]),
        (ROOT, {"limit": 0}, []),
    ]
    for config, options, expected in wanted:
        assert_same(harness.ids(config, **options), expected, f"list({config}, {options})")


@register_check("list")
def a_before_that_is_not_there_and_a_limit_below_zero_are_refused(harness: Harness) -> None:
    """Nothing, or everything, would both be wrong answers."""
    shelf(harness)
    assert_raises(ValueError, harness.ids, ROOT, before=harness.at("x"))
    assert_raises(ValueError, harness.ids, ROOT, limit=-1)


@register_check("list")
def it_gives_whole_tuples(harness: Harness) -> None:
    """What is listed is what get_tuple gives, pending writes included."""
    shelf(harness)
    harness.write("t1", [("a", 1)])
    for found in harness.listed("t"):
        id, ns = found.checkpoint["id"], found.config["configurable"]["checkpoint_ns"]
        assert_same(tuple(found), tuple(harness.need(id, ns=ns)), f"checkpoint {id!r} as listed")
    assert_same(
        harness.listed(harness.at("t1"))[0].pending_writes,
        [("task", "a", 1)],
        "pending writes of 't1'",
    )


@register_check("list")
def a_long_history_is_listed_whole(harness: Harness) -> None:
    """However a checkpointer reads it page by page."""
    run = harness.run()
    for step in range(70):
        run.step(f"{step}", a=step, b=["x"] * step)
        if step % 3 == 0:
            harness.put(f"u{step}", thread="u")
    expected = [f"{step}" for step in reversed(range(70))]
    harness.shows(ids=expected)
    assert_same(harness.ids("t", limit=33), expected[:33], "list(limit=33)")
    assert_same(
        harness.ids("t", before=harness.at("40"), limit=35),
        expected[30:65],
        "list(before, limit=35)",
    )
    listed = {found.checkpoint["id"]: found.checkpoint for found in harness.listed("t")}
    assert_same(listed, {id: run.expected[id] for id in expected}, "checkpoints as listed")


@register_check("list", modes=(SYNC,))
def a_listing_shows_nothing_that_came_later(harness: Harness) -> None:
    """A history read while the thread moves on is a history, not a mixture."""
    for id in "12":
        harness.put(id)
    listing = harness.saver.list(ROOT)
    first = next(iter(listing)).checkpoint["id"]
    harness.put("3")
    assert_same(
        [first, *(found.checkpoint["id"] for found in listing)],
        ["2", "1"],
        "what the listing gives",
    )


@register_check("list", modes=(SYNC,))
def threads_are_named_by_when_they_moved(harness: Harness) -> None:
    """Whoever looks after many threads begins with the newest."""
    for id, name in enumerate(["a", "b", "c", "a", "b%", "b"]):
        harness.put(f"{id}", thread=name, ns="n" if id == 3 else "")
    harness.call("delete_thread", "c")
    assert_same([*harness.saver.threads()], ["b", "b%", "a"], "threads()")


@register_check("list")
def the_namespaces_of_a_thread_are_those_with_checkpoints(harness: Harness) -> None:
    """By them the memories are found that graphs inside keep."""
    for id, (name, ns) in enumerate([("a", ""), ("a", "n"), ("b", "m"), ("a", "n:=k"), ("a", "n")]):
        harness.put(f"{id}", thread=name, ns=ns)
    assert_same(sorted(harness.call("namespaces", "a")), ["", "n", "n:=k"], "namespaces()")
    assert_same(sorted(harness.call("namespaces", "nobody")), [], "namespaces() of no thread")


# -- searches --------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 1.0, -0.0, 1.5, 10**15, 1e15, -1, 2**63 - 1),
    *("", "1", "None", "ann", "Ann", "\u00e9", "e\u0301", "\u20ac \U0001f600", "x" * 5000),
    *([], {}, [1], [True], {"a": {"b": 1}}, {"a": {"b": 1.0}}, {"a": {"b": None}}, {"a": {}}),
)


def finds(
    harness: Harness,
    expected: list[str],
    limit: int | None = None,
    before: Any = None,
    **wanted: Any,
) -> None:
    """Check which checkpoints a search among all threads gives."""
    got = harness.ids(None, filter=wanted, limit=limit, before=before)
    assert_same(got, expected, f"list(None, filter={wanted!r:.80}, limit={limit}, before={before})")


@register_check("list")
def a_search_finds_all_values_that_are_equal(harness: Harness) -> None:
    """As Python compares them: 1 is 1.0 and True, and not the text 1; letters that look alike
    differ; what is nested is compared, too."""
    for number, value in enumerate(VALUES):
        harness.put(f"{number}", thread=f"t{number}", value=value, other=number % 3)
    harness.put("none", thread="none")
    harness.reopen()
    for value in VALUES:
        searches: list[dict[str, Any]] = [{"value": value}, {"value": value, "other": 1}]
        for wanted in searches:
            expected = [
                f"{number}"
                for number, each in reversed([*enumerate(VALUES)])
                if each == value and wanted.get("other", number % 3) == number % 3
            ]
            finds(harness, expected, **wanted)
    finds(harness, [], value="nobody")
    finds(harness, [], absent=None)


@register_check("list")
def a_search_finds_what_a_thread_was_and_is(harness: Harness) -> None:
    """Metadata may change from step to step, in any namespace, and be put anew."""
    for id, user, ns in (("0", "ann", ""), ("1", "bob", ""), ("2", "ann", "n"), ("3", None, "")):
        said: dict[str, Any] = {} if user is None else {"user": user}
        harness.put(id, ns=ns, **said)
        harness.put(f"u{id}", thread="u", user=f"{user}")
    finds(harness, ["u2", "2", "u0", "0"], user="ann")
    finds(harness, ["u1", "1"], user="bob")
    harness.put("1", user="eve")
    harness.reopen()
    finds(harness, ["u1"], user="bob")
    finds(harness, ["1"], user="eve")
    harness.call("delete_thread", "t")
    finds(harness, ["u2", "u0"], user="ann")
    harness.put("0", user="ann")
    finds(harness, ["0", "u2", "u0"], user="ann")


@register_check("prune", "prune", "copy_thread", "delete_for_runs")
def a_search_follows_what_is_forgotten_and_copied(harness: Harness) -> None:
    """What is gone is not found, what stays and what is copied is."""
    for step in range(6):
        harness.put(f"{step}", user=f"user {step // 2}", run_id=f"r{step}", step=step)
    harness.call("copy_thread", "t", "copy")
    finds(harness, ["1", "0", "1", "0"], user="user 0")
    harness.call("prune", ["t"], keep_last=3)
    harness.reopen()
    finds(harness, ["1", "0"], user="user 0")
    finds(harness, ["3", "2", "3"], user="user 1")
    harness.call("delete_for_runs", ["r3"])
    finds(harness, ["2"], user="user 1")
    harness.put("next", user="user 1", thread="copy")
    finds(harness, ["next", "2"], user="user 1")


@register_check("list")
def a_search_gives_pages_of_what_fits(harness: Harness) -> None:
    """Of many threads, newest first, as many as are asked for."""
    for number in range(60):
        harness.put(f"{number}", thread=f"t{number % 40}", team="odd" if number % 2 else "even")
    odd = [f"{number}" for number in reversed(range(60)) if number % 2]
    finds(harness, odd, team="odd")
    finds(harness, odd[:7], limit=7, team="odd")
    before = harness.at("39", thread="t39")
    after = [id for id in odd if int(id) < 39]
    finds(harness, after, before=before, team="odd")
    # A checkpoint that does not fit may be named, too.
    other: Any = {"configurable": {"checkpoint_id": "38"}}
    finds(harness, after, before=other, team="odd")


@register_check("list", modes=(SYNC,))
def threads_are_found_by_their_metadata(harness: Harness) -> None:
    """A support desk looks for the threads of one person."""
    for id, name in enumerate(["a", "b", "c", "a", "d", "b"]):
        harness.put(f"{id}", thread=name, user="ann" if name in "ab" else "bob", seen=id)
    names = [*harness.saver.threads(filter={"user": "ann"})]
    assert_same(names, ["b", "a"], "threads(filter={'user': 'ann'})")
    names = [*harness.saver.threads(filter={"user": "ann", "seen": 0})]
    assert_same(names, ["a"], "threads(filter=...) of two keys")
    harness.write("later", [("a", 1)], thread="e")  # whose checkpoint may come
    assert_same([*harness.saver.threads(filter={})], ["b", "d", "a", "c"], "threads(filter={})")
