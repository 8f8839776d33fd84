"""Checks of searches among all threads: a checkpointer that has an index finds what one that looks
at each checkpoint finds."""

from __future__ import annotations

from typing import Any

from .asserts import SYNC, assert_same
from .conformance import register_check
from .harness import Harness

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 1.0, -0.0, 1.5, 10**15, 1e15, -1, 2**63 - 1),
    *("", "1", "None", "ann", "Ann", "\u00e9", "e\u0301", "\u20ac \U0001f600", "x" * 5000),
    *([], {}, [1], [True], {"a": {"b": 1}}, {"a": {"b": 1.0}}, {"a": {"b": None}}, {"a": {}}),
)


def found(harness: Harness, wanted: dict[str, Any], **options: Any) -> list[str]:
    """The checkpoints that a search among all threads gives."""
    return harness.ids(None, filter=wanted, **options)


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
            assert_same(found(harness, wanted), expected, f"list(None, filter={wanted!r:.80})")
    assert_same(found(harness, {"value": "nobody"}), [], "list() of what nobody has")
    assert_same(found(harness, {"absent": None}), [], "list() of a key that is absent")


@register_check("list")
def a_search_finds_what_a_thread_was_and_is(harness: Harness) -> None:
    """Metadata may change from step to step, in any namespace, and be put anew."""
    for id, user, ns in (("0", "ann", ""), ("1", "bob", ""), ("2", "ann", "n"), ("3", None, "")):
        said: dict[str, Any] = {} if user is None else {"user": user}
        harness.put(id, ns=ns, **said)
        harness.put(f"u{id}", thread="u", user=f"{user}")
    assert_same(found(harness, {"user": "ann"}), ["u2", "2", "u0", "0"], "list() of 'ann'")
    assert_same(found(harness, {"user": "bob"}), ["u1", "1"], "list() of 'bob'")
    harness.put("1", user="eve")
    harness.reopen()
    assert_same(found(harness, {"user": "bob"}), ["u1"], "list() of 'bob' once it was put anew")
    assert_same(found(harness, {"user": "eve"}), ["1"], "list() of 'eve'")
    harness.call("delete_thread", "t")
    assert_same(found(harness, {"user": "ann"}), ["u2", "u0"], "list() once a thread is deleted")
    harness.put("0", user="ann")
    assert_same(found(harness, {"user": "ann"}), ["0", "u2", "u0"], "list() once it is back")


@register_check("prune", "prune", "copy_thread", "delete_for_runs")
def a_search_follows_what_is_forgotten_and_copied(harness: Harness) -> None:
    """What is gone is not found, what stays and what is copied is."""
    for step in range(6):
        harness.put(f"{step}", user=f"user {step // 2}", run_id=f"r{step}", step=step)
    harness.call("copy_thread", "t", "copy")
    assert_same(found(harness, {"user": "user 0"}), ["1", "0", "1", "0"], "list() with a copy")
    harness.call("prune", ["t"], keep_last=3)
    harness.reopen()
    assert_same(found(harness, {"user": "user 0"}), ["1", "0"], "list() of what was pruned")
    assert_same(found(harness, {"user": "user 1"}), ["3", "2", "3"], "list() of what is left")
    harness.call("delete_for_runs", ["r3"])
    assert_same(found(harness, {"user": "user 1"}), ["2"], "list() once a run is deleted")
    harness.put("next", user="user 1", thread="copy")
    assert_same(found(harness, {"user": "user 1"}), ["next", "2"], "list() once the copy went on")


@register_check("list")
def a_search_gives_pages_of_what_fits(harness: Harness) -> None:
    """Of many threads, newest first, as many as are asked for."""
    for number in range(60):
        harness.put(f"{number}", thread=f"t{number % 40}", team="odd" if number % 2 else "even")
    odd = [f"{number}" for number in reversed(range(60)) if number % 2]
    assert_same(found(harness, {"team": "odd"}), odd, "list()")
    assert_same(found(harness, {"team": "odd"}, limit=7), odd[:7], "list(limit=7)")
    before = harness.at("39", thread="t39")
    after = [id for id in odd if int(id) < 39]
    assert_same(found(harness, {"team": "odd"}, before=before), after, "list(before)")
    # A checkpoint that does not fit may be named, too.
    other: Any = {"configurable": {"checkpoint_id": "38"}}
    assert_same(found(harness, {"team": "odd"}, before=other), after, "list(before without thread)")


@register_check("list", modes=(SYNC,))
def threads_are_found_by_their_metadata(harness: Harness) -> None:
    """A support desk looks for the threads of one person."""
    for id, name in enumerate(["a", "b", "c", "a", "d", "b"]):
        harness.put(f"{id}", thread=name, user="ann" if name in "ab" else "bob", seen=id)
    names = [*harness.saver.threads(filter={"user": "ann"})]
    assert_same(names, ["b", "a"], "threads(filter={'user': 'ann'})")
    names = [*harness.saver.threads(filter={"user": "ann", "seen": 0})]
    assert_same(names, ["a"], "threads(filter=...) of two keys")
    assert_same([*harness.saver.threads(filter={})], ["b", "d", "a", "c"], "threads(filter={})")
