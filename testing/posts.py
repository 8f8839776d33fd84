"""Checks of posts: store_post, read_posts, and commits that take them. No graph runs here."""

from __future__ import annotations

from typing import Any

from ..checkpoint.base import CheckpointConflictError, Post
from .asserts import assert_raises, assert_same
from .conformance import register_check
from .harness import Commits, Harness


def _post(harness: Harness, *values: Any, thread: str = "t") -> None:
    for value in values:
        harness.call("store_post", thread, [("a", harness.saver.serde.dumps(value))])


def _posts(harness: Harness, thread: str = "t") -> list[Post]:
    return [*harness.call("read_posts", thread)]


def _values(harness: Harness, thread: str = "t") -> list[Any]:
    loads = harness.saver.serde.loads
    return [loads(blob) for post in _posts(harness, thread) for _, blob in post.writes]


def _take(run: Commits, id: str, posts: list[Post], **changed: Any) -> None:
    """Commit a superstep that takes posts."""
    commit, whole = run.made(id, "head", (), changed)
    commit.taken = [post.id for post in posts]
    run.call("commit", [commit])
    run.expected[id], run.steps[id], run.head = whole, commit.metadata["step"], id
    run.saver_state = commit.saver_state


@register_check("posts", "store_post")
def posts_wait_in_order_by_thread(harness: Harness) -> None:
    """What is posted waits, also for a thread that has no checkpoint yet, and no other gets it."""
    _post(harness, 1, (2,), "\u0000")
    _post(harness, "other", thread="u")
    harness.reopen()
    assert_same(_values(harness), [1, (2,), "\u0000"], "what was posted")
    assert_same(_values(harness, "u"), ["other"], "what was posted to the other thread")
    assert_same(_values(harness, "v"), [], "what was posted to a thread that nobody knows")
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
    assert_same(_values(harness), ["later"], "what waits")
    _take(run, "3", _posts(harness), a=3)
    run.step("4", a=4)
    harness.reads_back(run)
    assert_same(_values(harness), [], "what waits")


@register_check("posts", "store_post", "commit")
def a_first_commit_takes_posts(harness: Harness) -> None:
    """A thread may be posted to before it exists."""
    _post(harness, "early")
    _take(harness.run(), "1", _posts(harness), a=1)
    assert_same((harness.ids("t"), _values(harness)), (["1"], []), "checkpoints, and what waits")


@register_check("posts", "store_post", "commit")
def a_commit_that_is_refused_takes_nothing(harness: Harness) -> None:
    """Of two runs that have read the same posts, the one that loses the head leaves them."""
    one, two = harness.run(), harness.run()
    _post(harness, "word")
    posts = _posts(harness)
    one.step("1", a=1)
    assert_raises(CheckpointConflictError, _take, two, "other", posts, a=2)
    assert_same(_values(harness), ["word"], "what waits")


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
    assert_same(_values(harness), ["one", "two"], "what waits after prune")
    harness.call("delete_thread", "t")
    harness.reopen()
    left = {thread: _values(harness, thread) for thread in ("t", "copy", "u")}
    assert_same(left, {"t": [], "copy": ["one", "two"], "u": ["other"]}, "what waits")
