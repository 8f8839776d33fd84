"""What is posted to a thread from outside while it runs: one more source of writes at the barrier.

A run reads the posts of its thread where a superstep follows: as it goes on with one, and at each
barrier, behind the writes of the tasks. With schedule="ready" it reads them at each step, and takes
them if something is under way or starts after it. They are folded into the state at once and go
with the next commit, as writes of `__post__`; its transaction deletes them. So a post is in one
step of the thread, or waits: a run that loses its head, or its process, has taken none.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from ...channels.aggregate import BinaryOperatorAggregate, is_overwrite
from ...channels.base import MISSING, InvalidUpdateError
from ...channels.topic import Topic
from ...checkpoint.base import (
    POST,
    POST_TASK_ID,
    BaseCheckpointSaver,
    Commit,
    Post,
    RunnableConfig,
    TaskWrites,
    coordinates,
)
from ...checkpoint.overrides import stores_at_once
from ...checkpoint.serde import Blob
from ..errors import GraphWarning, repr_of
from ..program.program import Program
from ..program.writes import Draft, Pair
from ..schedule.machine import Machine
from .effects import Effect, Effects, ReadPosts
from .settings import Graph, Thread
from .stream import Stream


class Inbox:
    """The posts that one run takes.

    Raises:
        ValueError: the checkpointer keeps none.
    """

    __slots__ = ("_applied", "_seen", "_thread", "_unshown")

    def __init__(self, thread: Thread) -> None:
        assert thread.saver is not None
        check_keeps_posts(thread.saver)
        self._thread = thread
        # What the run has read: until its commit is stored the table still has it.
        self._seen: set[int] = set()
        # What is in the state and in no commit yet.
        self._applied: list[Post] = []
        self._unshown: list[list[Pair]] = []

    def take(self, machine: Machine, streams: Iterable[Stream]) -> Effects:
        """Fold what waits into the state, if a superstep follows, and show it."""
        if machine.plan(coerce=False):
            self.fold(machine, (yield from self.read()))
            self.show(streams)

    def read(self) -> Generator[Effect, None, Sequence[Post]]:
        """What waits, but for what is folded in."""
        effect = ReadPosts()
        yield effect
        return [post for post in effect.posts if post.id not in self._seen]

    def fold(self, machine: Machine, posts: Iterable[Post]) -> None:
        """Fold posts into the state; the next commit takes them."""
        for post in posts:
            self._seen.add(post.id)
            writes = self._apply(machine, post)
            if writes:
                self._unshown.append(writes)

    def show(self, streams: Iterable[Stream]) -> None:
        """Show readers what has been folded in since."""
        for writes in self._unshown:
            for stream in streams:
                stream.posted(writes)
        self._unshown = []

    def _apply(self, machine: Machine, post: Post) -> list[Pair]:
        try:
            writes = decode_post(self._thread.saver, post)
            machine.apply_writes(writes)
        except Exception as error:
            # The run has not made it and cannot mend it: it goes on as if it had not come yet.
            warnings.warn(
                f"{self._thread}: post {post.id} cannot be taken and waits on: {repr_of(error)}",
                GraphWarning,
                stacklevel=2,
            )
            return []
        self._applied.append(post)
        return writes

    def hand_over(self, commit: Commit) -> None:
        """Let a commit hold what has come in since the one before."""
        if self._applied:
            taken, self._applied = self._applied, []
            commit.taken = [post.id for post in taken]
            # With durability "exit" a new thread has no checkpoint beside which they could stand.
            if commit.parent_id is not None:
                pairs = [pair for post in taken for pair in post.writes]
                commit.writes.append(TaskWrites(POST_TASK_ID, POST, pairs))


def check_keeps_posts(saver: BaseCheckpointSaver) -> None:
    """Refuse a checkpointer that has no table for posts, or does not store a step in one
    transaction.

    Raises:
        ValueError: it is one.
    """
    if not saver.keeps_posts:
        raise ValueError(
            f"{type(saver).__name__} keeps no posts: use a checkpointer with `keeps_posts`, such "
            "as SqliteSaver or PostgresSaver, or compile without inbox=True"
        )
    if not stores_at_once(saver):
        raise ValueError(
            f"{type(saver).__name__} overrides put() or put_writes(), so that it stores a step in "
            "several transactions: a post could be in two steps. Compile without inbox=True, or "
            "override commit()"
        )


def encode_post(
    graph: Graph, saver: BaseCheckpointSaver, where: RunnableConfig, values: Any
) -> tuple[str, list[tuple[str, Blob]]]:
    """The thread and the writes of a post, checked as far as can be without the thread's state.

    Raises: as `Pregel.post`.
    """
    program = graph.program
    if not graph.inbox:
        raise ValueError(
            f"{program.name} takes no posts: only a StateGraph compiled with inbox=True does"
        )
    check_keeps_posts(saver)
    thread_id, ns, checkpoint_id = coordinates(where)
    if ns or checkpoint_id is not None:
        raise ValueError(
            "post() needs the config of a thread, got one that names "
            f"{'a nested graph' if ns else 'a checkpoint'}: a post goes to the whole thread"
        )
    draft = Draft(POST)
    try:
        program.scope.make_writer().write(values, draft)
    except Exception as error:
        error.add_note(f"in a post to thread {thread_id!r}")
        raise
    if not draft.writes:
        raise InvalidUpdateError(f"a post must have a value for a key, got {values!r}")
    encoded = []
    for key, value in draft.writes:
        _check_write(program, key, value)
        try:
            encoded.append((key, saver.serde.dumps(value)))
        except Exception as error:
            error.add_note(f"while storing key {key!r} of a post to thread {thread_id!r}")
            raise
    return thread_id, encoded


def _check_write(program: Program, key: str, value: Any) -> None:
    """Refuse what is no addition to a key.

    Raises:
        InvalidUpdateError: saying why.
    """
    if key not in program.scope.keys:
        raise InvalidUpdateError("a post must be an update of keys: it cannot say where to go")
    channel = program.channels[key]
    if not isinstance(channel, (BinaryOperatorAggregate, Topic)):
        raise InvalidUpdateError(
            f"a post cannot write key {key!r}: it has no reducer, so what the nodes write there "
            "would be lost. Give it one: Annotated[..., reducer]"
        )
    if is_overwrite(value):
        raise InvalidUpdateError(
            f"a post cannot overwrite key {key!r}: what the nodes write there would be lost"
        )
    try:
        channel.from_checkpoint(MISSING).update([value])
    except Exception as error:
        raise InvalidUpdateError(
            f"a post to key {key!r} does not fit its reducer: {repr_of(error)}"
        ) from error


def decode_post(saver: Any, post: Post) -> list[Pair]:
    """What a post writes."""
    return [(name, saver.serde.loads(blob)) for name, blob in post.writes]


def show_posts(saver: Any, posts: Sequence[Post], shown: Any) -> tuple[Any, ...]:
    """What waits, as it was posted.

    Args:
        shown: the channels of the state; a string if it is one value without keys.
    """
    decoded = [decode_post(saver, post) for post in posts]
    if isinstance(shown, str):
        return tuple(writes[0][1] for writes in decoded)
    return tuple(dict(writes) for writes in decoded)
