"""Storages whose whole content can be taken, put back and compared, and savers on them whose calls wait at gates."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from stategraph import InMemorySaver
from stategraph.checkpoint.base import BaseCheckpointSaver
from stategraph.checkpoint.errors import StorageError
from stategraph.checkpoint.sqlite import SqliteSaver

from .world import DIES, DIES_AFTER, LOST, OK, STORING, UNANSWERED, Dead, Process

READING = {"get_tuple", "get", "head", "list", "run_of", "threads"}
"""What a saver is asked without changing it. All its other public methods store something."""


def faces():
    """Public methods of a saver, without their async twins."""
    names = {name for cls in BaseCheckpointSaver.__mro__[:-1] for name in vars(cls) if not name.startswith("_")}
    return {name: None for name in sorted(names) if "a" + name in names}


class Gated(BaseCheckpointSaver):
    """A saver of a process: each of its calls waits at a gate, and may fail there. Has the inner saver's nature."""

    def __init__(self, process: Process, in_memory):
        super().__init__()
        self.process = process
        self.in_memory = in_memory  # type: ignore[misc]
        self.inner = None
        self.gate_reads = True

    def _do(self, name, outcome, args, kwargs):
        if outcome == LOST:
            raise StorageError("the storage is not there just now")
        if outcome == DIES:
            raise Dead
        result = getattr(self.inner, name)(*args, **kwargs)
        if outcome == UNANSWERED:
            raise StorageError("the storage is not there just now, but it has done what it was asked")
        if outcome == DIES_AFTER:
            raise Dead
        return result

    def _at_once(self, name, args):
        """How a call goes that need not wait; "" if it must."""
        if self.process.dead:
            raise Dead
        if name in READING and (self.in_memory or not self.gate_reads):
            return OK
        return self.process.now(self._label(name, args), STORING) if self.in_memory else ""

    def call(self, name, args, kwargs):
        """Do what a saver is asked for, as the world lets it go."""
        outcomes = (OK,) if name in READING else STORING
        outcome = self._at_once(name, args) or self.process.gate(self._label(name, args), outcomes)
        return self._do(name, outcome, args, kwargs)

    async def acall(self, name, args, kwargs):
        """`call` for coroutines."""
        outcomes = (OK,) if name in READING else STORING
        outcome = self._at_once(name, args) or await self.process.agate(self._label(name, args), outcomes)
        return self._do(name, outcome, args, kwargs)

    def _label(self, name, args):
        """What is stored, in few words."""
        if name == "commit" and args:
            (commits,) = args
            steps = [f"{each.metadata.get('source')} step {each.metadata.get('step')}" for each in commits]
            return f"commit of {', '.join(steps)}" + self._ns(commits[0].checkpoint_ns)
        return name + _names(args)

    @staticmethod
    def _ns(ns):
        return f" in {ns.split(':')[0]}" if ns else ""


def _names(args):
    """The kinds of writes in what is to be recorded."""
    found = []
    for each in args:
        if isinstance(each, Mapping):
            for record in chain(*each.values()):
                writes = getattr(record, "writes", ())
                found.append("+".join(sorted(name.strip("_") for name, _ in writes)))
    return f" of {', '.join(found)}" if found else ""


def _face(name):
    def call(self: Gated, *args, **kwargs):
        return self.call(name, args, kwargs)

    return call


def _async_face(name):
    async def call(self: Gated, *args, **kwargs):
        return await self.acall(name, args, kwargs)

    async def items(self: Gated, *args, **kwargs):
        for each in [*(await self.acall(name, args, kwargs))]:
            yield each

    return items if name in ("list", "threads") else call


for _name in faces():
    setattr(Gated, _name, _face(_name))
    setattr(Gated, "a" + _name, _async_face(_name))


def _own(space):
    """A namespace with containers of its own."""
    fields = {name: getattr(space, name) for name in space.__slots__}
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = {key: [*each] if type(each) is list else each for key, each in value.items()}
    return type(space)(**fields)


class Memory:
    """Threads in an `InMemorySaver`.

    Args:
        model: as if it were a database: calls take time, and what ends early is recorded.
    """

    def __init__(self, model):
        self.in_memory = not model
        self.saver = InMemorySaver()

    def open(self, *gated: Gated):
        """Give processes their savers."""
        for each in gated:
            each.inner = self.saver
            each.serde = self.saver.serde

    def take(self, *gated: Gated):
        """All it holds."""
        return self._copied(vars(self.saver))

    def put(self, content, *gated: Gated):
        """Hold this and nothing else."""
        vars(self.saver).update(self._copied(content))

    @staticmethod
    def _copied(content):
        """What changes in it is copied. Records and blobs never change, they are replaced."""
        threads = {
            thread: {ns: _own(space) for ns, space in spaces.items()} for thread, spaces in content["_threads"].items()
        }
        newest = content["_newest"].copy()
        return {"_threads": threads, "_sequence": content["_sequence"], "_newest": newest}

    def close(self):
        """Nothing is open."""

    def unread(self, content):
        """What no reading call shows."""
        return [
            (ns, sorted((id, repr(tasks)) for id, tasks in space.writes.items() if id not in space.records))
            for spaces in self.saver._threads.values()
            for ns, space in sorted(spaces.items())
        ]


class Tables:
    """Threads in the tables of a database. Each process has a saver of its own.

    Attributes:
        names: the tables: of spaces, of checkpoints, of long values, of writes.
    """

    in_memory = False
    names: tuple[str, ...]
    insert: str
    mark: Any

    connection: Any
    saver: Any

    def _new_saver(self):
        raise NotImplementedError

    def open(self, *gated: Gated):
        """Give processes their savers."""
        for each in gated:
            each.inner = self._new_saver()
            each.serde = each.inner.serde

    def take(self, *gated: Gated):
        """All it holds. What a saver knows of it besides, it leaves with the runs."""
        return [self.connection.execute(f"SELECT * FROM {table}").fetchall() for table in self.names]

    def put(self, content, *gated: Gated):
        """Hold this and nothing else."""
        cursor = self.connection.cursor()
        cursor.execute("BEGIN")
        for table, found in zip(self.names, content, strict=True):
            cursor.execute(f"DELETE FROM {table}")
            if found:
                cursor.executemany(self.insert.format(table, ", ".join(self.mark * len(found[0]))), found)
        cursor.execute("COMMIT")

    def unread(self, content):
        """What no reading call shows: records beside checkpoints that are not there."""
        _, checkpoints, _, writes = content
        there = {row[2] for row in checkpoints}
        return [(row[1], _text(row[2])) for row in writes if row[2] not in there]

    def close(self):
        """Close the database."""
        self.connection.close()


def _text(name):
    return name.decode() if isinstance(name, bytes) else name


class Sqlite(Tables):
    """Threads in an SQLite database."""

    names = ("spaces", "checkpoints", "channel_values", "writes")
    insert, mark = "INSERT INTO {} VALUES ({})", ["?"]

    def __init__(self):
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.saver = self._new_saver()

    def _new_saver(self):
        return SqliteSaver(self.connection)


class Postgres(Tables):
    """Threads in a schema of a Postgres of our own."""

    names = ("stategraph_spaces", "stategraph_checkpoints", "stategraph_values", "stategraph_writes")
    insert, mark = "INSERT INTO {} OVERRIDING SYSTEM VALUE VALUES ({})", ["%s"]

    def __init__(self):
        import psycopg
        from kit import cluster

        self.address = cluster.shared().schema()
        self.stack = ExitStack()
        self.saver = self._new_saver()
        self.saver.setup()
        self.connection = psycopg.connect(self.address, autocommit=True)

    def _new_saver(self):
        from stategraph.checkpoint.postgres import PostgresSaver

        return self.stack.enter_context(PostgresSaver.from_conn_string(self.address, pool_size=1))

    def close(self):
        self.connection.close()
        self.stack.close()


STORAGES = {"memory": partial(Memory, False), "model": partial(Memory, True), "sqlite": Sqlite, "postgres": Postgres}
"""By name. The model is memory whose calls take time, as if it were a database."""

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|run-\d+")
_ANSWER = re.compile(r"([a-z]\d)=(\d+)")


def canonical(text):
    """The same for what differs in ids only."""
    names = {}
    numbers = {}

    def name(found: re.Match[str]):
        return names.setdefault(found[0], f"<{len(names)}>")

    def answer(found: re.Match[str]):
        of = numbers.setdefault(found[1], {})
        return f"{found[1]}={of.setdefault(found[2], chr(97 + len(of)))}"

    return _ANSWER.sub(answer, _ID.sub(name, text))


def shown(saver):
    """All that a saver shows, without times."""
    rows = []
    for found in saver.list(None):
        checkpoint = {name: value for name, value in found.checkpoint.items() if name != "ts"}
        rows.append(
            repr(
                (
                    found.config["configurable"].get("checkpoint_ns"),
                    checkpoint["id"],
                    found.parent_config and found.parent_config["configurable"].get("checkpoint_id"),
                    checkpoint,
                    found.metadata,
                    found.pending_writes,
                )
            )
        )
    return "\n".join(rows)
