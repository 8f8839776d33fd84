"""Which stored threads the lab runs again. They are only read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from ..channels.base import check_kind
from ..checkpoint.base import BaseCheckpointSaver, address
from ..checkpoint.errors import UnknownTypeError
from ..pregel.app import Pregel, check_compiled
from ..testing.recording import End, Recording, read_file
from ..testing.thread_reader import read_thread

_UNREADABLE = (ValueError, UnknownTypeError)
"""What reading a thread raises that is damaged, or that `migrate` or this program cannot read."""

Threads = int | str | Recording | Path | Mapping[str, Any] | Iterable[str | Recording | Path]


def find_threads(
    app: Pregel[Any, Any, Any, Any],
    *,
    last: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    status: End | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
) -> list[str]:
    """Return the ids of stored threads, the most recently used first. One that cannot be loaded
    fits any status and any time, so that `whatif` names it.

    Args:
        app: the graph that ran the threads, with its checkpointer.
        last: the maximum number of threads.
        metadata: what a checkpoint of theirs must have.
        status: how they stand: "done"; "paused": they wait for an answer or a time; "failed";
            "stopped": at a breakpoint, a limit, or with their process.
        after, before: when their newest checkpoint was stored. A time without a time zone is local.

    Raises:
        ValueError: the checkpointer is missing, there is no such status, or `last` is below 0.
    """
    check_compiled(app)
    check_kind("last", last, int | None, "a number of threads")
    for name, time in (("after", after), ("before", before)):
        check_kind(name, time, datetime | None, "a datetime")
    saver = app.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise ValueError("the graph has no checkpointer: app.copy({'checkpointer': saver})")
    if status not in (None, *get_args(End)):
        raise ValueError(f"status must be one of {', '.join(get_args(End))}, got {status!r}")
    if last is not None and last < 0:
        raise ValueError(f"the number of threads must be 0 or more, got {last}")

    def fits(thread: str) -> bool:
        if (status, after, before) == (None, None, None):
            return True
        try:
            state = app.get_state(address(thread, ""))
        except _UNREADABLE:
            return True
        at = datetime.fromisoformat(state.created_at or "9999-01-01T00:00:00Z")
        if (after and at < after.astimezone()) or (before and at >= before.astimezone()):
            return False
        failed = any(task.error is not None for task in state.tasks)
        waits = state.interrupts or state.wake_at
        open_as = "failed" if failed else "paused" if waits else "stopped"
        return status in (None, open_as if state.next else "done")

    return list(islice(filter(fits, saver.threads(filter=metadata)), last))


def read_recordings(app: Pregel, threads: Threads) -> Iterator[tuple[str, Recording | str]]:
    """The threads, each with its recording, or why it has none."""
    given: Iterable[str | Recording | Path]
    if isinstance(threads, int):
        given = find_threads(app, last=threads)
    elif isinstance(threads, Mapping):
        given = find_threads(app, metadata=threads)
    else:
        given = [threads] if isinstance(threads, str | Recording | Path) else threads
        check_kind("threads", given, Iterable, "a number, ids, a dict of metadata, or recordings")
    for each in given:
        if isinstance(each, Recording):
            yield each.graph, each
        elif isinstance(each, Path):
            files = sorted(each.glob("*.json")) if each.is_dir() else [each]
            yield from (read for file in files for read in _read_file(file))
        else:
            try:
                yield each, read_thread(app, address(each, ""))
            except _UNREADABLE as error:
                yield each, str(error)


def _read_file(file: Path) -> Iterator[tuple[str, Recording]]:
    """The recording of a file, or all those of a cohort by the ids of their threads."""

    def read(held: Any) -> list[tuple[str, Recording]]:
        whole = held if isinstance(held, list) else [held]
        return [(each.get("thread", ""), Recording.from_json(each)) for each in whole]

    found = read_file(file, read)
    for number, (thread, each) in enumerate(found, 1):
        yield thread or (f"{file.name} {number}" if len(found) > 1 else file.name), each
