"""A disk that remembers in which order it was written and synced, so that every state a loss of power could leave can
be made. A VFS for SQLite by apsw, and images of the files. No promise is judged here."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from stategraph.checkpoint.sql.sqlite_database import Database

from .campaign import patched


class Write(NamedTuple):
    """Bytes at a place of a file; a length alone cuts or extends it."""

    file: str
    at: int
    data: bytes | None


class Sync(NamedTuple):
    """All that was written to a file so far is on the disk."""

    file: str


class Gone(NamedTuple):
    """A file was deleted."""

    file: str


class Told(NamedTuple):
    """Somebody was told that this is stored."""

    what: Any


class Recorder(apsw.VFS):
    """Passes everything on to the real files, and remembers it."""

    def __init__(self, name):
        self.events = []
        self.name = name
        super().__init__(name, "")

    def xOpen(self, name, flags):
        return _File(self, name, flags)

    def xDelete(self, filename, syncdir):
        super().xDelete(filename, syncdir)
        self.events.append(Gone(Path(filename).name))


class _File(apsw.VFSFile):
    def __init__(self, disk: Recorder, name, flags):
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name if path else ""
        self._disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data, offset):
        super().xWrite(data, offset)
        self._disk.events.append(Write(self._name, offset, bytes(data)))

    def xTruncate(self, newsize):
        super().xTruncate(newsize)
        self._disk.events.append(Write(self._name, newsize, None))

    def xSync(self, flags):
        super().xSync(flags)
        self._disk.events.append(Sync(self._name))


class _Connection:
    """An apsw connection with the few words of sqlite3's that `Database` uses."""

    def __init__(self, name, vfs):
        self._real = apsw.Connection(name, vfs=vfs)
        self._real.set_busy_timeout(5000)

    def cursor(self):
        return _Cursor(self._real)

    def execute(self, statement, values=()):
        return self.cursor().execute(statement, values)

    @property
    def in_transaction(self):
        return self._real.in_transaction

    def close(self):
        self._real.close()


class _Cursor:
    def __init__(self, real):
        self._real = real
        self._rows = []
        self.lastrowid, self.rowcount = 0, 0

    def execute(self, statement, values=()):
        try:
            self._rows = [*self._real.cursor().execute(statement, tuple(values))]
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from error
        self.lastrowid = self._real.last_insert_rowid()
        self.rowcount = self._real.changes()
        return self

    def fetchall(self):
        return self._rows

    def fetchone(self):
        return self._rows[0] if self._rows else None

    def close(self):
        pass


@contextmanager
def recording(name):
    """Inside, databases that are opened by name are written through a disk that remembers."""
    disk = Recorder(name)
    try:
        with patched(Database, "_connect", lambda self, file, timeout: _Connection(file, name)):
            yield disk
    finally:
        disk.unregister()


def image(events, at, random, folder):
    """The files as a loss of power after so many events may leave them: all that was synced, and of the rest any part.
    What was written is torn in runs of 512 or 4096 bytes, each of which is there or not."""
    files = {}
    loose = {}
    known = set()  # synced since they were made
    ghosts = {}  # deleted, but the folder was not synced since
    for event in events[:at]:
        if isinstance(event, Write):
            loose.setdefault(event.file, []).append(event)
        elif isinstance(event, Sync):
            if event.file not in known and event.file.endswith(("-wal", "-journal")):
                ghosts.clear()  # SQLite syncs the folder with the first sync of such a file
            known.add(event.file)
            for write in loose.pop(event.file, ()):
                _apply(files.setdefault(event.file, bytearray()), write)
        elif isinstance(event, Gone):
            ghosts[event.file] = files.pop(event.file, None)
            loose.pop(event.file, None)
            known.discard(event.file)
    for file, data in ghosts.items():
        if data is not None and file not in loose and file not in files and random.random() < 0.5:
            files[file] = data
    for file, writes in loose.items():
        lucky = random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        for write in writes:
            for piece in _torn(write, random.choice([512, 4096])):
                if random.random() < lucky:
                    _apply(files.setdefault(file, bytearray()), piece)
    for file, data in files.items():
        if not file.endswith("-shm"):
            (folder / file).write_bytes(data)


def _torn(write: Write, sector):
    """A write in pieces that end where sectors do."""
    if write.data is None:
        yield write
        return
    start = 0
    while start < len(write.data):
        end = min(len(write.data), (write.at + start) // sector * sector + sector - write.at)
        yield Write(write.file, write.at + start, write.data[start:end])
        start = end


def _apply(file: bytearray, write: Write):
    if write.data is None:
        if len(file) > write.at:
            del file[write.at :]
        else:
            file.extend(bytes(write.at - len(file)))
        return
    if len(file) < write.at:
        file.extend(bytes(write.at - len(file)))
    file[write.at : write.at + len(write.data)] = write.data
