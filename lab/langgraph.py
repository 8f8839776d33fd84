"""Reads the threads of a database of LangGraph's `SqliteSaver` or `PostgresSaver`, so that the lab
can run them again. Nothing of LangGraph is imported.

The tables, and the forms of what is in them, are those of langgraph-checkpoint-sqlite and -postgres
3. Tasks are found by their paths: their ids are made otherwise there.
"""

from __future__ import annotations

import json
import sqlite3
from ast import literal_eval
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from sys import modules
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack

from ..channels.base import MISSING
from ..checkpoint.base import ERROR, INTERRUPT, NULL_TASK_ID, RESUME, address
from ..checkpoint.errors import UnknownTypeError
from ..checkpoint.memory import InMemorySaver
from ..checkpoint.serde import Serializer
from ..checkpoint.sql.redact import is_conninfo
from ..pregel.app import Pregel
from ..pregel.names import NS_END, NS_SEP, child_ns, path_text
from ..pregel.run.snapshots import view
from ..pregel.task.interrupts import question_id
from ..pregel.task.task import Task
from ..pregel.types import Command, Interrupt, Overwrite, Send
from ..testing.recorder import error_of

_PLAIN: Final[Mapping[str, Any]] = {
    **{f"builtins.{each.__name__}": each for each in (set, frozenset, tuple)},
    **{f"datetime.{each.__name__}": each for each in (date, datetime, time, timedelta, timezone)},
    **{f"langgraph.types.{each.__name__}": each for each in (Command, Interrupt, Overwrite, Send)},
    "collections.deque": deque,
    "decimal.Decimal": Decimal,
    "uuid.UUID": UUID,
    "zoneinfo.ZoneInfo": ZoneInfo,
}
"""The types that may be made by their name, beside those of the graph's state and the messages of
LangChain, if the program has loaded it."""


def read_langgraph(
    path: str | Path,
    app: Pregel[Any, Any, Any, Any],
    threads: Collection[str] | None = None,
) -> InMemorySaver:
    """Return the threads of a database of LangGraph's `SqliteSaver` or `PostgresSaver`, in a
    checkpointer in memory. `app.copy({"checkpointer": ...})` works on them.

    Results of `@task` calls are not found again, since LangGraph does not store their arguments. Of
    several questions that a node has asked one after another, only the last has its answer.

    Args:
        path: the SQLite file, or postgresql://... It is only read.
        app: the graph that ran the threads, compiled here or under LangGraph's names.
        threads: the ids of those to read; None for all.

    Raises:
        sqlite3.Error, psycopg.Error: it cannot be read, or has not these tables.
    """
    on_server = is_conninfo(str(path))
    if on_server:
        from psycopg import connect

        opened: Any = connect(str(path))
        opened.read_only = True
    else:
        opened = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    with closing(opened) as db:

        def query(text: str, *values: str) -> list[tuple[Any, ...]]:
            found = db.execute(text.replace("?", "%s") if on_server else text, values)
            rows: list[tuple[Any, ...]] = found.fetchall()
            return rows

        reader = _Reader(app, query, on_server=on_server)
        wanted = "SELECT thread_id FROM checkpoints GROUP BY 1 ORDER BY max(checkpoint_id)"
        for (thread,) in query(wanted):
            if threads is None or thread in threads:
                reader.read(thread)
    return reader.saver


class _Reader:
    """Reads thread after thread.

    Args:
        query: gives the rows of a statement.
        on_server: whether the tables are those of Postgres.
    """

    def __init__(
        self, app: Pregel, query: Callable[..., list[tuple[Any, ...]]], *, on_server: bool
    ) -> None:
        self._app, self._query, self._on_server = app, query, on_server
        self._hook = _hook_of(app.serde)
        self.saver = InMemorySaver(serde=app.serde)
        self._ids: dict[str, str] = {}

    def read(self, thread: str) -> None:
        """Read one thread, outer graphs before those inside them."""
        rows = self._query(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata "
            "FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id",
            thread,
        )
        values = self._read_values(thread) if self._on_server else {}
        rows.sort(key=lambda row: row[0].count(NS_SEP) + bool(row[0]))
        for ns, id, parent, kind, data, metadata in rows:
            here = self._rename(ns)
            held = data if self._on_server else self._load(kind, data)
            held.pop("pending_sends", None)
            for name, version in held["channel_versions"].items():
                if (ns, name, version) in values:
                    held["channel_values"][name] = values[ns, name, version]
            held["channel_versions"] = _numbers(held["channel_versions"])
            seen = held["versions_seen"].items()
            held["versions_seen"] = {name: _numbers(each) for name, each in seen}
            about = metadata if self._on_server else json.loads(metadata)
            parents = about.get("parents", {}).items()
            about["parents"] = {self._rename(name): each for name, each in parents}
            self.saver.put(address(thread, here, parent), held, about, held["channel_versions"])
            self._read_writes(thread, ns, here, id)

    def _read_values(self, thread: str) -> dict[tuple[str, str, str], Any]:
        """What Postgres keeps apart: values by namespace, channel and version."""
        return {
            (ns, name, version): self._load(kind, data)
            for ns, name, version, kind, data in self._query(
                "SELECT checkpoint_ns, channel, version, type, blob FROM checkpoint_blobs "
                "WHERE thread_id = ?",
                thread,
            )
            if kind != "empty"
        }

    def _read_writes(self, thread: str, ns: str, here: str, id: str) -> None:
        where = address(thread, here, id)
        found = self.saver.get_tuple(where)
        graph = self._app.nested(here)
        assert found is not None
        tasks: dict[str, Task] = {}
        if isinstance(graph, Pregel):
            for task in view(graph.program, found).tasks:
                tasks[path_text(task.path)] = tasks[path_text((*task.path, False))] = task
        by_task: dict[tuple[str, str], list[tuple[str, Any]]] = {}
        place = "blob FROM checkpoint_writes" if self._on_server else "value FROM writes"
        for task_id, path, channel, kind, data in self._query(
            f"SELECT task_id, task_path, channel, type, {place} "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? "
            "ORDER BY task_path, task_id, idx",
            thread,
            ns,
            id,
        ):
            by_task.setdefault((task_id, path), []).append((channel, self._load(kind, data)))
        for (task_id, path), writes in by_task.items():
            made_by = tasks.get(path)
            if task_id == NULL_TASK_ID:  # the answer is with the task that took it
                writes = [each for each in writes if each[0] != RESUME]
            elif made_by is not None:
                self._ids[task_id] = made_by.id
                inside = child_ns(here, made_by.name, made_by.id, stable=False)
                writes = list(_convert(writes, inside))
            if writes:
                self.saver.put_writes(where, writes, self._ids.get(task_id, task_id), path)

    def _rename(self, ns: str) -> str:
        """A namespace with our ids of the tasks."""
        levels = (level.rpartition(NS_END) for level in ns.split(NS_SEP))
        return NS_SEP.join(f"{name}{colon}{self._ids.get(id, id)}" for name, colon, id in levels)

    def _load(self, kind: str, data: bytes) -> Any:
        if kind in ("bytes", "bytearray"):
            return data
        if kind == "msgpack":
            option = ormsgpack.OPT_NON_STR_KEYS
            return ormsgpack.unpackb(data, ext_hook=self._hook, option=option)
        return json.loads(data) if kind == "json" else None


def _numbers(versions: Mapping[str, Any]) -> dict[str, int]:
    """Versions as whole numbers; there they are texts that begin with one."""
    return {name: int(str(each).partition(".")[0]) for name, each in versions.items()}


def _convert(writes: list[tuple[str, Any]], ns: str) -> Iterator[tuple[str, Any]]:
    """What a task has written, with its question and answer by an id, and its error."""
    marks = dict(writes)
    answers = marks.get(RESUME) or []
    ended = any(channel not in (RESUME, INTERRUPT, ERROR) for channel in marks)
    place = max(len(answers) - ended, 0)
    for channel, value in writes:
        if channel == INTERRUPT:
            ids = [question_id(ns, place + number, each.value) for number, each in enumerate(value)]
            yield channel, [Interrupt(each.value, id) for each, id in zip(value, ids, strict=True)]
            if ended and answers:
                yield RESUME, {ids[0]: answers[-1]}
        elif channel == ERROR:
            kind, _, text = str(value).partition("(")  # it is a repr
            with suppress(ValueError, SyntaxError):
                text = str(literal_eval(text.removesuffix(")")))
            yield channel, error_of(f"{kind}: {text.removesuffix(')')}")
        elif channel != RESUME:
            yield channel, value


_MESSAGES: Final = ("langchain_core.messages", "langchain_core.documents")


def _hook_of(serde: Serializer) -> Callable[[int, bytes], Any]:
    """What makes objects of their names and arguments."""

    def make(code: int, data: bytes) -> Any:
        option = ormsgpack.OPT_NON_STR_KEYS
        module, name, given, *rest = ormsgpack.unpackb(data, ext_hook=make, option=option)
        known = _PLAIN.get(f"{module}.{name}")
        if known is not None and code == 3 and rest == ["fromisoformat"]:
            return known.fromisoformat(given)
        if known is not None:
            return known(given) if code == 0 else known(*given) if code == 1 else known(**given)
        if module.startswith(_MESSAGES) and module in modules:
            kind = getattr(modules[module], name)
            plain = {
                key: field.get_default(call_default_factory=True)
                for key, field in kind.model_fields.items()
            }
            # LangGraph stores all fields, so nothing says which were given.
            own = {key: each for key, each in given.items() if each != plain.get(key, MISSING)}
            return kind.model_validate(own)
        try:
            return serde.decode_object(f"{module}:{name}", given)
        except UnknownTypeError:
            return given

    return make
