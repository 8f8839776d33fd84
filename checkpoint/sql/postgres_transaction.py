"""`PostgresSaver.transact`, with retries after conflicts and lost connections."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Connection, OperationalError, errors

from ..errors import StorageError
from ..records import TaskWrites, Transacted, TransactionPlace
from .postgres_server import ConnectionLostError, is_clash
from .postgres_session import PostgresSession, decode_names
from .postgres_wire import BEGIN_ISOLATED, transaction
from .transaction import Undone, UserFunction, check_methods, transact_in

AGAIN = 5
"""How often a function is called again whose transaction Postgres has rolled back."""

PAUSE = 0.02
"""Seconds to wait at most before the first retry; doubled each time. The actual pause is random, so
that transactions in conflict do not meet again."""


def check_isolation(isolation: str | None) -> None:
    """Check that an isolation level exists.

    Raises:
        ValueError: it does not.
    """
    if isolation is not None and isolation not in BEGIN_ISOLATED:
        names = ", ".join(map(repr, BEGIN_ISOLATED))
        raise ValueError(f"isolation must be one of {names} on Postgres, got {isolation!r}")


class Tries:
    """Counts how often a transaction may be retried."""

    def __init__(self) -> None:
        self._left, self._seconds, self._lost = AGAIN, PAUSE, False

    def note(self, error: BaseException) -> None:
        """Record a failure of the transaction, and wait a moment before the retry.

        Raises:
            BaseException: the error, if the transaction must not be retried.
        """
        if isinstance(error, ConnectionLostError):
            # The next attempt finds out whether it was recorded.
            if error.late or self._lost:
                raise error
            self._lost = True
            return
        if not is_clash(error) or not self._left:
            raise error
        self._left -= 1
        time.sleep(random.uniform(0, self._seconds))
        self._seconds *= 2


def transact_on_postgres(
    saver: Any, place: TransactionPlace, function: Callable[[Any], TaskWrites]
) -> Transacted:
    """Implement `PostgresSaver.transact`."""
    check_methods(saver)
    check_isolation(place.isolation)
    tries, lost = Tries(), None
    while True:
        try:
            return _transact_once(saver, place, UserFunction(saver, function))
        except StorageError as error:
            if lost is not None and not is_clash(error):
                raise lost from error  # whether it was recorded is unknown
            if isinstance(error, ConnectionLostError):
                lost = error
            tries.note(error)
        except Exception as error:
            tries.note(error)


def _transact_once(saver: Any, place: TransactionPlace, user: UserFunction) -> Transacted:
    connection = None
    try:
        with (
            saver._server.statements(decode_names) as wire,
            transaction(wire, write=True, isolation=place.isolation),
        ):
            connection = wire.connection

            def call() -> TaskWrites:
                with unended(wire.connection):
                    return user.call(wire.connection)

            return transact_in(saver, PostgresSession(wire), place, call)
    except Undone:
        pass
    error = user.error
    assert error is not None
    if isinstance(error, OperationalError) and connection is not None and connection.closed:
        raise saver._server.translate(error, connection) from error
    raise error


@contextmanager
def unended(connection: Connection[Any]) -> Iterator[None]:
    """In this context, psycopg refuses `commit()` and `rollback()`. A statement that ends the
    transaction is noticed at the end, since its savepoint is gone.

    Raises:
        RuntimeError: the transaction was ended.
    """
    factories = connection.row_factory, connection.cursor_factory
    try:
        with connection.transaction():
            yield
    except (errors.NoActiveSqlTransaction, errors.InvalidSavepointSpecification) as error:
        raise RuntimeError(
            "the function of a transaction has ended it: what it had written by then is stored, "
            "without a record. The transaction ends when the function returns, and is undone when "
            "it raises"
        ) from error
    finally:
        connection.row_factory, connection.cursor_factory = factories


@contextmanager
def losing(connection: Connection[Any], user: UserFunction) -> Iterator[None]:
    """In this context, an error caused by a broken connection becomes a `ConnectionLostError`.

    Args:
        user: the function, whose error is examined if it has raised one.
    """
    try:
        yield
    except (OperationalError, Undone) as raised:
        error = user.error if isinstance(raised, Undone) else raised
        if not connection.closed or not isinstance(error, OperationalError):
            raise
        raise ConnectionLostError(
            f"the connection to the Postgres server broke: {error}. It is not known whether the "
            "transaction was committed; the next try finds out"
        ) from error
