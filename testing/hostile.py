"""Checks with hostile data: whatever people put into ids, names, metadata, filters and limits, a
checkpointer does what `InMemorySaver` does. No text of a user's becomes part of a query, a path, or
a pattern."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from ..channels.base import StateGraphError
from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.memory import InMemorySaver
from .asserts import CheckFailed, assert_same, difference
from .conformance import register_check
from .harness import Harness, checkpoint

ATTACKS = (
    "'", '"', "`", "''", "\\", "\\'", "';--", "'; DROP TABLE checkpoints; --", "' OR '1'='1",
    '" OR ""="', "1; SELECT 1",
    "%", "_", "%s", "%(x)s", "?", ":name", "$1", "{}", "{0}", "[a-z]*", "*", ".", "..",
    "../../etc/passwd",
    "/", "|", ":", "a", "A", "a ", " a", "a|b", "a:b", "a%", "a_", "ab", "a.b", "é", "e\u0301",
    "ß", "ss", "İ", "\u202eab", "\ufeffa",
    "\U0001f600", "\n", "\r\n", "\t", "None", "null", "NULL", "true", "0", "00", "1", "1.0", "-1",
    "1e3", "nan",
    '{"$gt": ""}', '{"a": 1}', "$.a", "a->>'b'", "__error__", "__interrupt__", "<script>",
    "\x7f", "\x01", "x" * 3000,
)  # fmt: skip
"""Texts that have meaning somewhere: in SQL, in patterns, formats, paths, JSON; and some that only
look alike."""

UNTOLD = ("a\x00b", "\x00", "a\ud800", "\udc80")
"""Texts that many databases cannot hold: a checkpointer may refuse them, by a `ValueError`,
`TypeError` or its own error."""

REFUSALS = (ValueError, TypeError, StateGraphError)


def texts(random: Random, count: int, untold: bool = False) -> list[str]:
    """Attack strings, alone and in pairs, the same ones again and again so that they meet."""
    chosen = random.sample(ATTACKS, count)
    return [*chosen, *(one + two for one, two in pairwise(chosen)), *(UNTOLD if untold else ())]


def scalars(random: Random, words: list[str]) -> Any:
    """A metadata value."""
    others: list[Any] = [0, 1, -1, 2**60, 1.0, 1.5, True, False, None, [], {"a": 1}]
    return random.choice([random.choice(words), random.choice(others)])


class Pair:
    """A checkpointer and its oracle: every call goes to both, and both must give the same
    answer."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.oracle: InMemorySaver = InMemorySaver()
        self.done: list[str] = []

    def call(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of both; where it is given texts that not every database can hold, the
        checkpointer may refuse.

        Raises:
            CheckFailed: they answered differently.
        """
        self.done.append(f"{method}{args}{kwargs or ''}")
        got = _answer(lambda: self._read(self.harness.saver, method, *args, **kwargs))
        refusable = any(mark in self.done[-1] for mark in ("\\x00", "\\ud800", "\\udc80"))
        if refusable and isinstance(got, REFUSALS):
            return
        expected = _answer(lambda: self._read(self.oracle, method, *args, **kwargs))
        if isinstance(expected, Exception) and isinstance(got, type(expected)):
            return
        found = difference(got, expected)
        if found is not None:
            path, one, two = found
            raise CheckFailed(
                f"{self.done[-1]:.500}{path}: expected {two!r:.300}, as InMemorySaver gives, got "
                f"{one!r:.300}; "
                f"that was call {len(self.done)}"
            )

    def _read(self, saver: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        mode = self.harness.mode
        if method == "list":
            return [_plain(each) for each in mode.items(saver, method, *args, **kwargs)]
        found = mode.call(saver, method, *args, **kwargs)
        return _plain(found) if method == "get_tuple" and found is not None else found


def _answer(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # what kind it is, is compared
        return error


def _plain(found: Any) -> Any:
    parent = found.parent_config and found.parent_config["configurable"]
    writes = [tuple(each) for each in found.pending_writes or ()]
    return (found.config["configurable"], found.checkpoint, found.metadata, parent, writes)


@register_check("hostile")
def hostile_texts_are_only_texts(harness: Harness) -> None:
    """Threads, namespaces, checkpoints, tasks, channels, metadata and filters with texts that mean
    something to databases: the answers are those of a dict, and no name reaches another's data."""
    for number in range(2 * harness.scale):
        with harness.fresh(f"{number}") as one:
            _script(Pair(one))


@register_check("hostile")
def texts_that_a_database_cannot_hold_are_kept_or_refused(harness: Harness) -> None:
    """NUL and lone surrogates: kept as they are, or refused by a clear error; never cut, never
    confused with another name."""
    with harness.fresh("untold") as one:
        _script(Pair(one), untold=True)
    for text, thread in ((each, name) for each in UNTOLD for name in (f"t{each}", "plain")):
        place: dict[str, Any] = {"thread": thread}
        try:
            harness.put("1", {"a": text}, **place, note=text)
        except REFUSALS:
            harness.shows(everything=[])
            continue
        assert_same(
            (harness.values(**place), _note(harness, **place)),
            ({"a": text}, text),
            f"values with {text!r}",
        )
        harness.shows(thread="t", get=None)
        harness.call("delete_thread", place["thread"])


def _note(harness: Harness, **where: Any) -> Any:
    return dict(harness.need(**where).metadata).get("note")


def _script(pair: Pair, untold: bool = False) -> None:
    random = pair.harness.random
    words = texts(random, 5, untold)
    threads, spaces, ids = (random.sample(words, 4) for _ in range(3))
    namespaces = ["", *spaces]
    whole = [
        name for name in ("copy_thread", "prune", "delete_for_runs") if _has(pair.harness, name)
    ]
    for _ in range(60):
        t, ns, id, word = (random.choice(each) for each in (threads, namespaces, ids, words))
        place = pair.harness.at(id, thread=t, ns=ns)
        head = pair.harness.at(thread=t, ns=ns)
        metadata = {
            "source": "loop",
            "step": 1,
            "parents": {word: id},
            word: scalars(random, words),
            "run_id": t,
        }
        match random.choice(
            ["put"] * 5 + ["write"] * 4 + ["get"] * 3 + ["list"] * 5 + ["delete", "other"]
        ):
            case "put":
                value = checkpoint(id, {word: [word], "a": word}, {word: 1, "a": 1})
                parent = pair.harness.at(random.choice([None, *ids]), thread=t, ns=ns)
                pair.call("put", parent, value, metadata, value["channel_versions"])
            case "write":
                task, path = random.choice(words), random.choice(words)
                pair.call("put_writes", place, [(word, word), ("b", t)], task, path)
            case "get":
                pair.call("get_tuple", random.choice([place, head]))
                pair.call("head", head)
            case "list":
                _list(
                    pair, random, [place, head, {"configurable": {"thread_id": t}}, None], metadata
                )
            case "delete":
                pair.call("delete_thread", random.choice(threads))
            case _ if whole:
                _upkeep(pair, random, random.choice(whole), threads)
    for t in threads:
        _list(pair, random, [{"configurable": {"thread_id": t}}], {})
    pair.call("list", None)


def _has(harness: Harness, method: str) -> bool:
    return getattr(type(harness.saver), method, None) is not getattr(BaseCheckpointSaver, method)


def _list(pair: Pair, random: Random, configs: list[Any], metadata: dict[str, Any]) -> None:
    config = random.choice(configs)
    wanted = (
        dict(random.sample([*metadata.items(), ("absent", None)], random.randrange(3)))
        if metadata
        else None
    )
    before = random.choice([None, None, *configs[:2]])
    limit = random.choice([None, None, 0, 1, 2, 10**12])
    pair.call("list", config, filter=wanted, before=before, limit=limit)


def _upkeep(pair: Pair, random: Random, method: str, threads: list[str]) -> None:
    one, two = random.sample(threads, 2)
    match method:
        case "copy_thread":
            pair.call(method, one, two)
        case "prune":
            pair.call(method, [one], keep_last=random.choice([None, 1, 2]))
        case _:
            pair.call(method, [one])


@register_check("hostile")
def odd_limits_and_filters_are_refused_or_mean_nothing(harness: Harness) -> None:
    """What is handed through from a web page's parameters must not reach a query as text."""
    pair = Pair(harness)
    place = harness.at()
    for id in "12":
        found = checkpoint(id, {}, {})
        pair.call("put", place, found, {"source": "loop", "step": 1, "x": "1"}, {})
    for limit in ("1; DROP TABLE checkpoints", "1", [1], {"a": 1}):
        got = _answer(partial(harness.ids, "t", limit=limit))
        if not isinstance(got, REFUSALS):
            raise CheckFailed(
                f"list(limit={limit!r}): expected a TypeError or ValueError, got {got!r}"
            )
    for key in ATTACKS:
        pair.call("list", place, filter={key: key})
        pair.call("list", place, filter={"x": key})
    pair.call("list", None)


@register_check("hostile")
def very_long_names_are_kept_or_refused(harness: Harness) -> None:
    """Never cut: two names that begin alike stay two."""
    long = "n" * 100_000
    names = [long, long + "a", long + "b"]
    for name in names:
        try:
            harness.put("1", {"a": name[-1]}, thread=name, note=name)
        except REFUSALS:
            return
    for name in names:
        harness.shows(thread=name, values={"a": name[-1]})
        assert_same(_note(harness, thread=name), name, "metadata")
