"""Posts in a database: what waits for the next run of a thread, one row per post. The commit that
takes a post deletes its row in the same transaction, so each post is in exactly one superstep."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import CheckpointConflictError
from ..records import Commit, Post
from ..serde import Blob
from .queries import SqlSession
from .rows import ThreadKey


def pack_post(key: ThreadKey, writes: Sequence[tuple[str, Blob]]) -> bytes:
    """Return a post as the bytes of its row."""
    return key.pack("post", [key.thread_id], [(name, *blob) for name, blob in writes])


def find_posts(session: SqlSession, key: ThreadKey) -> list[Post]:
    """Return the waiting posts, in the order of ids.

    Raises:
        DamagedError: one is damaged.
    """
    found = []
    for id, data in session.rows("posts", key.thread_id):
        content = key.unpack("post", [key.thread_id], data)
        found.append(Post(id, [(name, (form, payload)) for name, form, payload in content]))
    return found


def take_posts(session: SqlSession, thread_id: str, commit: Commit) -> None:
    """Delete the posts that a commit takes, in its transaction.

    Raises:
        CheckpointConflictError: some are already gone, and would be in two supersteps.
    """
    if session.run("take_posts", thread_id, [*commit.taken]) != len(commit.taken):
        raise CheckpointConflictError(thread_id, commit.checkpoint_ns, commit.head, commit.head)


def copy_posts(session: SqlSession, key: ThreadKey, to: ThreadKey) -> None:
    """Copy the waiting posts of a thread, in order."""
    for post in find_posts(session, key):
        session.run("add_post", to.thread_id, pack_post(to, post.writes))
