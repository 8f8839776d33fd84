"""`queue_clock`: test a queue's schedules, delays and sleeps without waiting for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..pregel.clock import CLOCK, read_seconds

if TYPE_CHECKING:
    from psycopg import Connection

# A queue asks its database what time it is, by `now()`. Connections whose search path has this
# schema before PostgreSQL's own call this one instead.
_SETUP = """
    CREATE SCHEMA stategraph_clock;
    CREATE TABLE stategraph_clock.ahead (seconds float8 NOT NULL);
    INSERT INTO stategraph_clock.ahead VALUES (0);
    CREATE FUNCTION stategraph_clock.now() RETURNS timestamptz STABLE LANGUAGE sql AS $$
        SELECT pg_catalog.now() + pg_catalog.make_interval(secs => seconds)
        FROM stategraph_clock.ahead
    $$
"""
_CLOSE = "DROP SCHEMA IF EXISTS stategraph_clock CASCADE"
_ADVANCE = "UPDATE stategraph_clock.ahead SET seconds = seconds + %s"
_GRAPHS = "SELECT graph FROM stategraph_schedules UNION SELECT graph FROM stategraph_jobs"


class QueueClock:
    """The clock of a database for connections opened with `url`, and of the runs in this process.

    Attributes:
        url: the address for the queue and the workers of the test.
    """

    def __init__(self, connection: Connection[Any], url: str) -> None:
        self._connection, self._ahead, self._time = connection, 0.0, CLOCK.time
        self.url: str = url

    def time(self) -> float:
        """`time.time`, as far ahead as the database."""
        return self._time() + self._ahead

    @property
    def now(self) -> datetime:
        """The current time, in UTC."""
        found: Any = self._connection.execute("SELECT stategraph_clock.now()").fetchone()
        return found[0].astimezone(UTC)  # type: ignore[no-any-return]

    def advance(self, by: float | timedelta) -> None:
        """Let time pass: seconds or a timedelta. Workers look at once what is due.

        Raises:
            TypeError: it is neither.
            ValueError: it is negative, or endless.
        """
        from ..workers.jobs import decode_name, hash_name
        from ..workers.tables import STATEMENTS

        seconds = read_seconds("advance", by, zero=True)
        self._connection.execute(_ADVANCE, [seconds])
        self._ahead += seconds
        notify = STATEMENTS["notify_delay"].replace("$1", "%s").replace("$2", "%s")
        for (graph,) in self._connection.execute(_GRAPHS).fetchall():
            self._connection.execute(
                notify.replace("$3", "%s"), [hash_name(decode_name(graph)), 0, None]
            )


@contextmanager
def queue_clock(url: str) -> Iterator[QueueClock]:
    """Control the clock of a database in a test: for schedules, submissions with `When`,
    sleeps and deadlines of jobs on a `Queue`.

    Workers must run in this process: in others, a run that sleeps looks at the real time. The
    queue's tables must exist. At the end the clock is removed; nothing else is touched.

    Args:
        url: the address of a PostgreSQL database for tests, whose role may create a schema. One
            clock at a time.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    with psycopg.connect(url, autocommit=True) as connection:
        found: Any = connection.execute("SHOW search_path").fetchone()
        path = f"{found[0].replace(' ', '')},stategraph_clock,pg_catalog"
        options = conninfo_to_dict(url).get("options") or ""
        address = make_conninfo(url, options=f"{options} -csearch_path={path}".strip())
        for statement in (_CLOSE, _SETUP):
            connection.execute(statement)
        clock, real = QueueClock(connection, address), CLOCK.time
        CLOCK.time = clock.time
        try:
            yield clock
        finally:
            CLOCK.time = real
            connection.execute(_CLOSE)
