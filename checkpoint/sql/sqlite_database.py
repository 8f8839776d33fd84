"""One SQLite connection, for the checkpointers, stores and caches kept in it.

Opening, closing and transactions; it knows no tables. User text never becomes SQL: the modules that
use this hold their statements as constants and bind every value.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypeVar, Union
from urllib.parse import quote

from ...channels.base import check_kind
from ..errors import StorageError
from .redact import is_conninfo, redact_address

if TYPE_CHECKING:
    import sqlite3

Target = Union[str, Path, "sqlite3.Connection"]
"""A file name, `":memory:"`, a `file:` URI, or an open connection."""

BUSY_SECONDS = 30.0
"""How long to wait for another process that writes to the same file."""

AGAIN = 0.01
"""Seconds until the next attempt to open a file that others are opening."""

_NUMBERS_ARE_NAMES = (3, 12) <= sys.version_info < (3, 12, 4)
"""Whether Python takes `?1` for a name, and warns of values without names (gh-117995)."""

POLL = 0.001
"""Seconds until the next attempt to lock a file that others write to. SQLite's own waiting sleeps
ever longer, up to 100 ms: if another process takes the lock again and again, it finds it taken each
time (benchmark P34)."""

NO_LOCK: AbstractContextManager[Any] = nullcontext()

Result = TypeVar("Result")

Synchronous = Literal["off", "normal", "full", "extra"]
"""What is on the disk when a commit returns. `full`: everything. `normal`: a power failure may lose
the last commits, but only whole ones; a crash of the process loses nothing. `off`: a power failure
may damage the file."""

_BEGIN = "BEGIN"
BEGIN_WRITE = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"
_ROLLBACK = "ROLLBACK"
SAVEPOINT = "SAVEPOINT member"
RELEASE = "RELEASE member"
_ROLLBACK_TO = "ROLLBACK TO member"
_WAL = "PRAGMA journal_mode=WAL"
_LOG = "PRAGMA wal_autocheckpoint=4000"
"""Pages in the log (16 MB) before it is copied into the file: the same pages change again and
again."""
_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"
_NO_TIMEOUT = "PRAGMA busy_timeout=0"
_HAS_COLUMN = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"
_SYNCHRONOUS = {
    "off": "PRAGMA synchronous=OFF",
    "normal": "PRAGMA synchronous=NORMAL",
    "full": "PRAGMA synchronous=FULL",
    "extra": "PRAGMA synchronous=EXTRA",
}


class Column(NamedTuple):
    """A column added to a table after its first version, and the statement that adds it."""

    table: str
    name: str
    statement: str


class GroupWriter(Protocol):
    """Makes writes on its connection, those that wait together in one transaction; a
    `SqliteSaver`."""

    @property
    def database(self) -> Database:
        """The connection."""

    async def awrite(self, function: Callable[..., Result], *args: Any) -> Result:
        """Make a write, in one transaction with others that wait."""


def _check_name(name: str) -> None:
    """Refuse the address of a server: SQLite would create a file of this name."""
    if is_conninfo(name):
        raise ValueError(
            "an SQLite database must be a file name, ':memory:' or a 'file:' URI, got "
            f"{redact_address(name)!r}; for Postgres use PostgresSaver or PostgresStore"
        )


class Database:
    """A connection whose tables have been created. Not locked: its owner lets only one thread at a
    time use it.

    Args:
        target: what to open; a given connection is used as it is, and `close` leaves it open.
        schema: the statements that create missing tables, and added columns.
        synchronous: see `Synchronous`; None leaves the setting unchanged.
        timeout: seconds to wait for another writer.
        advice: appended to the error when the database refuses something.
        watched: refuse to write after the file or its log was deleted or replaced: SQLite itself
            would keep writing to a file without a name.
        read_only: change nothing, neither tables nor the journal mode; `target` is a file name.

    Raises:
        StorageError: it cannot be opened.
        ValueError: `synchronous` does not exist, or the target is an address of a server.
    """

    def __init__(
        self,
        target: Target,
        schema: Sequence[str | Column],
        synchronous: Synchronous | None = None,
        timeout: float = BUSY_SECONDS,
        advice: str = "",
        watched: bool = True,
        read_only: bool = False,
    ) -> None:
        # Deferred: importing this package must not load a database driver that is not used.
        import sqlite3

        check_kind("synchronous", synchronous, str | None, "a string")
        check_kind("timeout", timeout, float | int, "a number of seconds")
        if synchronous is not None and synchronous not in _SYNCHRONOUS:
            raise ValueError(
                f"synchronous must be one of {', '.join(_SYNCHRONOUS)}, got {synchronous!r}"
            )
        self.process: int = os.getpid()
        # Whether a group is open, in which transactions become savepoints.
        self.grouped: bool = False
        self._closed = False
        self._advice = advice
        # How long to wait for a lock here, after SQLite's own waiting.
        self._patience = 0.0
        self._files: list[tuple[str, tuple[int, int]]] = []
        # The error for a damaged schema may contain bytes that are not UTF-8.
        self.error: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError)
        self.owned: bool = not isinstance(target, sqlite3.Connection)
        if isinstance(target, sqlite3.Connection):
            self.connection: sqlite3.Connection = target
        else:
            _check_name(str(target))
            name = read_only_uri(str(target)) if read_only else str(target)
            self.connection = self._connect(name, timeout)
        try:
            if not read_only:
                self._prepare_patiently(schema, synchronous, timeout)
                if watched:
                    self._watch()
        except self.error as error:
            self.close()
            raise open_error(target, error) from error
        except BaseException:
            self.close()
            raise

    def _connect(self, name: str, timeout: float) -> sqlite3.Connection:
        import sqlite3

        try:
            return sqlite3.connect(
                name,
                timeout=timeout,
                isolation_level=None,
                check_same_thread=False,
                uri=name.startswith("file:"),
            )
        except sqlite3.Error as error:
            raise open_error(name, error) from error

    def _prepare_patiently(
        self, schema: Sequence[str | Column], synchronous: Synchronous | None, timeout: float
    ) -> None:
        """Prepare, and retry while others prepare or write: SQLite does not wait by itself if it
        would have to upgrade a read lock to a write lock, as for switching to WAL."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._prepare(schema, synchronous, timeout)
                return
            except self.error as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(AGAIN)

    def _prepare(
        self, schema: Sequence[str | Column], synchronous: Synchronous | None, timeout: float
    ) -> None:
        cursor = self.execute(_WAL)
        mode = cursor.fetchone()
        cursor.close()
        # With WAL, only the beginning of a transaction can find the file locked, and it can be
        # retried.
        if self.owned and mode == ("wal",):
            self.execute(_NO_TIMEOUT).close()
            self._patience = timeout
        self.execute(_LOG).close()
        if synchronous is not None:
            self.execute(_SYNCHRONOUS[synchronous]).close()
        mine = not self.connection.in_transaction
        try:
            self.execute(BEGIN_WRITE)
            for part in schema:
                if isinstance(part, str):
                    self.execute(part)
                elif not self.execute(_HAS_COLUMN, (part.table, part.name)).fetchall():
                    self.execute(part.statement)
            self.execute(COMMIT)
        except BaseException:
            if mine:
                self.roll_back()
            raise

    def _watch(self) -> None:
        """Remember the identity of the files, not only their names."""
        name = self.path()
        paths = (name, f"{name}-wal") if name else ()
        found = ((path, identity_of(path)) for path in paths)
        self._files = [(path, identity) for path, identity in found if identity is not None]

    def path(self) -> str | None:
        """Return the file's absolute path; None for a database in memory."""
        try:
            (found,) = self.execute(_FILE).fetchone()
        except UnicodeDecodeError:  # a name that is not valid UTF-8
            return None
        return found or None

    def check_files(self) -> None:
        """Refuse to commit to a file that nobody could find again. Called before each commit; takes
        a few microseconds.

        Raises:
            StorageError: the file was deleted or replaced since it was opened.
        """
        for path, identity in self._files:
            if identity_of(path) != identity:
                raise StorageError(
                    f"the SQLite file {path!r} was deleted or replaced while it was open, so "
                    "further writes would be lost. Nothing of this call was stored. Restore the "
                    f"file, then open it again{self._advice}"
                )

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute one statement with its values bound. Waits while others have the file locked."""
        if _NUMBERS_ARE_NAMES and "?1" in statement:
            values = {str(number): value for number, value in enumerate(values, 1)}  # type: ignore[assignment]
        try:
            return self.connection.execute(statement, values)
        except self.error as error:
            return self.execute_again(error, statement, values)

    def execute_again(
        self, error: Exception, statement: str, values: Sequence[Any] = ()
    ) -> sqlite3.Cursor:
        """Handle the error of a statement: retry it as long as others have the file locked.

        Raises:
            Exception: the error, or that of the last attempt.
        """
        deadline = time.monotonic() + self._patience
        while _is_busy(error) and time.monotonic() < deadline:
            time.sleep(POLL)
            try:
                return self.connection.execute(statement, values)
            except self.error as next_error:
                error = next_error
        raise error

    @contextmanager
    def group(self) -> Iterator[None]:
        """Open a writing transaction in which every other transaction is a savepoint, so that a
        failure in one undoes only that one.

        Raises:
            StorageError: the database refused; nothing of what was done inside is stored.
        """
        with self.session(write=True):
            self.grouped = True
            try:
                yield
            finally:
                self.grouped = False

    def is_undone(self) -> bool:
        """Return whether SQLite has ended the open transaction by itself."""
        return not self.connection.in_transaction

    def session(self, write: bool) -> AbstractContextManager[Any]:
        """Return a transaction."""
        return Session(self, write, NO_LOCK)

    @property
    def is_inherited(self) -> bool:
        """Whether this is the child of a fork. A lock on the connection may be held by a thread
        that exists only in the parent."""
        return self.process != os.getpid()

    def check_process(self) -> None:
        """Refuse to be used in the child of a fork.

        Raises:
            StorageError: this was opened by another process.
        """
        if self.process != os.getpid():
            raise StorageError(
                "an SQLite connection does not survive a fork: open another in the new process"
            )

    def refusal(self, error: Exception) -> StorageError:
        """Return the error to raise for one of the driver's."""
        if self._closed:
            return StorageError(
                "the SQLite checkpointer, store or cache cannot be used: it was closed, and its "
                "connection with it. Keep it open while graphs use it"
            )
        text = str(error).rstrip(".")
        return StorageError(
            f"the SQLite database refused: {text}. Nothing of this call was stored{self._advice}"
        )

    def settle(self) -> bool:
        """Return whether no transaction is open. One of our own that Ctrl-C has interrupted is
        rolled back first."""
        if self.owned:
            self.roll_back()
        return not self.connection.in_transaction

    def roll_back(self) -> None:
        """Roll back the open transaction, or the open savepoint in a group. SQLite ends the
        transaction by itself on some errors, such as a full disk."""
        if not self.connection.in_transaction:
            return
        if not self.grouped:
            self.execute(_ROLLBACK)
            return
        try:
            self.execute(_ROLLBACK_TO)
            self.execute(RELEASE)
        except self.error:
            # The group must not be committed with a partial write in it.
            self.execute(_ROLLBACK)
            raise

    def close(self, lock: AbstractContextManager[Any] = NO_LOCK) -> None:
        """Close the connection, holding a lock, if it was opened here and by this process."""
        if self.owned and not self.is_inherited:
            with lock:
                self._closed = True
                self.connection.close()


class Session:
    """What `with` makes a transaction of a database, or a savepoint in a group: everything inside
    sees one state of the file, and writes are stored all or none. A writer takes the file's write
    lock at the start, so that it cannot fail to get it later. A class, as reading a short thread
    would spend a tenth of its time in generators (benchmark P40).

    Args:
        write: whether it writes; None for no transaction, as each statement is one.
        lock: held as long as the transaction is open.

    Raises:
        StorageError: the database refused, or was opened by another process; nothing was done.
    """

    __slots__ = ("_commit", "_database", "_lock", "_mine", "_write")

    def __init__(
        self, database: Database, write: bool | None, lock: AbstractContextManager[Any]
    ) -> None:
        self._database, self._write, self._lock = database, write, lock

    def __enter__(self) -> Self:
        database = self._database
        if database.process != os.getpid():  # before the lock: see `Database.is_inherited`
            database.check_process()
        self._lock.__enter__()
        begin, self._commit, self._mine = SAVEPOINT, RELEASE, True
        try:
            if not database.grouped:
                begin, self._commit = BEGIN_WRITE if self._write else _BEGIN, COMMIT
                self._mine = not database.connection.in_transaction or database.settle()
            if self._write is None:
                self._commit, self._mine = "", False
            else:
                database.execute(begin)  # inside the try block: Ctrl-C may arrive just after it
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if error is None:
            database = self._database
            try:
                if self._write and self._commit is COMMIT:
                    database.check_files()
                if self._commit:
                    database.execute(self._commit)
            except BaseException as refused:
                self._leave(refused)
                raise
            self._lock.__exit__(None, None, None)
        else:
            self._leave(error)

    def _leave(self, error: BaseException) -> None:
        """Undo what was done, and raise the error to show for one of the driver's."""
        try:
            if self._mine:
                self._database.roll_back()
        except self._database.error as refused:
            error = refused
        finally:
            self._lock.__exit__(None, None, None)
        if isinstance(error, self._database.error):
            raise self._database.refusal(error) from error


def read_only_uri(name: str) -> str:
    """Return the URI with which SQLite opens a file without changing it or anything beside it. If
    nobody writes to the file (its log is empty), no lock is needed, so that files and folders
    without write permission can be read too."""
    path = os.path.abspath(name)
    try:
        still = os.stat(f"{path}-wal").st_size == 0
    except OSError:
        still = True
    return f"file:{quote(path)}?mode=ro" + ("&immutable=1" if still else "")


def open_error(target: Target, error: Exception) -> StorageError:
    """Return the error to raise when a file cannot be opened."""
    name = redact_address(str(target))  # it may be the URL of another database
    return StorageError(f"{name!r} cannot be opened as an SQLite database: {error}")


def identity_of(path: str) -> tuple[int, int] | None:
    """Return the identity of a file, the same for every path to it; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_busy(error: Exception) -> bool:
    """Return whether others have the file locked: SQLITE_BUSY or SQLITE_LOCKED, the low byte of an
    extended code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6)


def is_duplicate(error: Exception) -> bool:
    """Return whether a row was refused because another one has the same key:
    SQLITE_CONSTRAINT_UNIQUE or ..._PRIMARYKEY."""
    return getattr(error, "sqlite_errorcode", 0) in (2067, 1555)


def is_unknown_name(error: Exception) -> bool:
    """Return whether a statement names a table or column that does not exist: SQLITE_ERROR."""
    return getattr(error, "sqlite_errorcode", 0) == 1
