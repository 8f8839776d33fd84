"""Executes the prepared statements of one connection without a cursor.

For each statement psycopg creates a cursor, a query and a row maker; for statements that are always
the same, that is most of the client's time (P28, P36). Waiting, notices, types and errors are
psycopg's own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from psycopg import Connection, generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

RowMaker = Callable[[Sequence[str]], Callable[[Sequence[Any]], Any]]
"""Takes column names; returns a function that makes a row from its values."""

AFTER = 2
"""How often a statement is executed before it is prepared: many are executed only once, when a
program starts."""

MOST = 200
"""How many statements are counted. Ours are constants, except searches by many keys."""

_GOOD = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})


class PreparedStatements:
    """The prepared statements of one connection, which one thread uses at a time."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._transformer = Transformer(connection)
        self._uses: dict[str, int] = {}
        # By text and parameter types: None has no type.
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._makers: dict[tuple[str, RowMaker], Callable[[Sequence[Any]], Any]] = {}

    def is_due(self, statement: str) -> bool:
        """Count the use of a statement, and return whether it is worth preparing."""
        uses = self._uses.get(statement, 0)
        if uses >= AFTER:
            return True
        if uses or len(self._uses) < MOST:
            self._uses[statement] = uses + 1
        return False

    def rows(self, statement: str, values: Sequence[Any], make_rows: RowMaker | None) -> list[Any]:
        """Execute a query, and return its rows."""
        return self._load(statement, self._execute(statement, values), make_rows)

    def _load(
        self, statement: str, result: PGresult, make_rows: RowMaker | None = None
    ) -> list[Any]:
        make_row: Callable[[Sequence[Any]], Any] = tuple
        if make_rows is not None:
            known = self._makers.get((statement, make_rows))
            make_row = known or self._name_columns(statement, make_rows, result)
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, make_row)

    def run(self, statement: str, values: Sequence[Any]) -> int:
        """Execute a statement, and return how many rows it affected."""
        return self._execute(statement, values).command_tuples or 0

    def _name_columns(
        self, statement: str, make_rows: RowMaker, result: PGresult
    ) -> Callable[[Sequence[Any]], Any]:
        names = [(result.fname(number) or b"").decode() for number in range(result.nfields)]
        made = self._makers[statement, make_rows] = make_rows(names)
        return made

    def rows_together(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[list[Any]]:
        """Execute several queries as one transaction in one round trip, and return the rows of
        each. Each sees the effects of those before it."""
        pgconn = self._connection.pgconn
        bound = [self._bind(*call) for call in calls]
        pgconn.enter_pipeline_mode()
        try:
            for each in bound:
                pgconn.send_query_prepared(*each, Format.BINARY)
            pgconn.pipeline_sync()
            results = self._connection.wait(_fetch_all(pgconn, len(calls)))
            pgconn.exit_pipeline_mode()
        except BaseException:
            self._connection.close()  # pending results would be taken for later answers
            raise
        for result in results:
            _check(result)
        return [self._load(text, result) for (text, _), result in zip(calls, results, strict=True)]

    def _execute(self, statement: str, values: Sequence[Any]) -> PGresult:
        bound = self._bind(statement, values)
        self._connection.pgconn.send_query_prepared(*bound, Format.BINARY)
        return self._fetch()

    def _bind(self, statement: str, values: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return the name of a statement for values of these types, the values in wire format, and
        their formats."""
        transformer = self._transformer
        params = transformer.dump_sequence(values, [PyFormat.BINARY] * len(values))
        types, formats = transformer.types or (), transformer.formats
        name = self._names.get((statement, types)) or self._prepare(statement, types)
        return name, params, formats

    def _prepare(self, statement: str, types: tuple[int, ...]) -> bytes:
        name = b"stategraph_%d" % len(self._names)
        self._connection.pgconn.send_prepare(name, statement.encode(), types)
        self._fetch()
        self._names[statement, types] = name
        return name

    def _fetch(self) -> PGresult:
        connection = self._connection
        results = connection.wait(generators.execute(connection.pgconn))
        result: PGresult = results[-1]
        _check(result)
        return result


def _fetch_all(pgconn: PGconn, count: int) -> Generator[Any, Any, list[PGresult]]:
    """Return the results of this many statements that were sent together."""
    yield from generators.send(pgconn)
    results = []
    for _ in range(count):
        results.append((yield from generators.fetch_many(pgconn))[-1])
    yield from generators.fetch_many(pgconn)  # the end of the pipeline
    return results


def _check(result: PGresult) -> None:
    if result.status not in _GOOD:
        raise error_from_result(result, encoding="utf-8")
