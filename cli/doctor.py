"""`stategraph doctor`: what is installed, and whether a database can be used. It changes nothing,
and prints no password and no key."""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from .. import __version__
from ..checkpoint.errors import StorageError
from ..checkpoint.printable import printable
from ..checkpoint.sql.redact import is_conninfo, redact, redact_address
from ..checkpoint.sql.sqlite_tables import SCHEMA

BROKEN = 1
"""The exit code where something is missing or does not work."""

EXTRAS: Final = {
    "postgres": "threads, stores and queues on Postgres",
    "encryption": "encrypted rows",
    "graphviz": "drawings by Graphviz, PNG files",
    "notebook": "watching runs in notebooks",
    "rich": "watching runs in a terminal",
    "processes": "lambdas and closures on worker processes",
    "openai": "models behind OpenAI-like endpoints",
    "dask": "nodes on a Dask cluster",
    "ray": "nodes on a Ray cluster",
    "cron": "schedules of a queue",
    "completion": "completion in shells",
    "otel": "spans and metrics by OpenTelemetry",
    "serve": "graphs over HTTP",
    "ag-ui": "graphs behind chat pages that speak AG-UI",
    "mcp": "graphs as tools of assistants that speak MCP",
    "metrics": "a page with the metrics of a server, for Prometheus",
}
"""The extras of this package, and what each is for."""

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?(?:>=([\d.]+))?")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
Row = tuple[str, str, str, bool]
"""A name, what was found, what it is for, and whether it is as it must be."""


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = "The exit code is 1 if something required is missing or does not work."
    db = "check this database as well: an SQLite file, or postgresql://..."
    parser.add_argument("--db", metavar="FILE-OR-URL", help=db)
    parser.set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Print what was found; the exit code."""
    parts: dict[str, Sequence[Row]] = {
        "versions": [*describe_versions()],
        "required packages": [*describe_requirements()],
        "extras": [*describe_extras()],
        "programs": [describe_graphviz()],
    }
    if asked.db is not None:
        parts[f"database {redact_address(asked.db)}"] = [*describe_database(asked.db)]
    print("\n\n".join(map(format_part, parts, parts.values())))
    good = all(row[3] for rows in parts.values() for row in rows)
    return 0 if good else BROKEN


def format_part(title: str, rows: Sequence[Row]) -> str:
    """A title, and its rows in columns."""
    lines = [printable(title)]
    width = max(len(printable(found)) for _, found, _, _ in rows)
    for name, found, purpose, good in rows:
        mark = " " if good else "!"
        line = f"{mark} {printable(name):<17}  {printable(found):<{width}}  {printable(purpose)}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def describe_versions() -> Iterator[Row]:
    """This package, Python and SQLite."""
    yield "stategraph", __version__, str(Path(__file__).parents[1]), True
    threading = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", free-threaded"
    python = f"{platform.python_version()} ({platform.python_implementation()}{threading})"
    yield "Python", python, sys.executable, sys.version_info >= (3, 11)
    yield "SQLite", sqlite3.sqlite_version, "", True


def describe_requirements() -> Iterator[Row]:
    """The packages that are always needed."""
    for name, lowest in _requirements(""):
        version = _version(name)
        bound = f"must be {lowest} or newer" if lowest else ""
        good = version is not None and _numbers(version) >= _numbers(lowest)
        yield name, version or "missing", bound, good


def describe_extras() -> Iterator[Row]:
    """Each extra, whether it is there, and what it is for."""
    for extra, purpose in EXTRAS.items():
        versions = {name: _version(name) for name, _ in _requirements(extra)}
        missing = [name for name, version in versions.items() if version is None]
        found = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield extra, f"missing: {', '.join(missing)}" if missing else found, purpose, True


def _requirements(extra: str) -> Iterator[tuple[str, str]]:
    """The packages of an extra, or of none, and the lowest version of each."""
    for line in metadata.requires("stategraph") or ():
        of = _EXTRA.search(line)
        match = _REQUIREMENT.match(line)
        if match is not None and (of[1] if of else "") == extra:
            yield match[1], match[2] or ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def describe_graphviz() -> Row:
    """Graphviz's program."""
    purpose = 'draw_png'
    dot = shutil.which("dot")
    if dot is None:
        return "dot", "missing", purpose, True
    try:
        done = subprocess.run([dot, "-V"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return "dot", f"does not run: {error}", purpose, False
    version = re.search(r"version (\S+)", done.stderr)
    return "dot", version[1] if version else "of an unknown version", f"{purpose}; {dot}", True


def describe_database(db: str) -> Iterator[Row]:
    """Whether a database can be reached, and of which version its tables are."""
    try:
        yield from _describe_postgres(db) if is_conninfo(db) else _describe_sqlite(db)
    except ImportError:
        yield "cannot be looked at", "psycopg is missing", "it comes with the extra postgres", False
    except (OSError, StorageError, sqlite3.Error) as error:
        yield "not reachable", redact(str(error), db), "", False


def _describe_sqlite(db: str) -> Iterator[Row]:
    path = Path(db)
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as connection:
        there = _columns(connection)
        [mode] = connection.execute("PRAGMA journal_mode").fetchone()
        yield "reachable", f"SQLite, journal mode {mode}", "", True
        if "spaces" not in there:
            yield "threads", "no tables", "the first use makes them", True
            return
        with sqlite3.connect(":memory:") as newest:
            for statement in SCHEMA:
                newest.execute(statement if isinstance(statement, str) else statement.statement)
            lacking = {
                table
                for table, columns in _columns(newest).items()
                if not columns <= there.get(table, set())
            }
        threads = "SELECT count(DISTINCT thread_id) FROM spaces"
        [count] = connection.execute(threads).fetchone()
        state = "up to date"
        if lacking:
            state = f"of an earlier version; the next use adds to {', '.join(sorted(lacking))}"
        yield "threads", f"tables are {state}", f"{count:,} thread{'' if count == 1 else 's'}", True


def _columns(connection: sqlite3.Connection) -> dict[str, set[str]]:
    """The tables of a database, and the columns of each."""
    rows = connection.execute(
        "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c "
        "WHERE t.type = 'table'"
    )
    found: dict[str, set[str]] = {}
    for table, column in rows:
        found.setdefault(table, set()).add(column)
    return found


def _describe_postgres(db: str) -> Iterator[Row]:
    import psycopg

    from ..checkpoint.sql.postgres_address import without_secrets
    from ..checkpoint.sql.postgres_tables import MIGRATIONS as THREADS
    from ..store.postgres import MIGRATIONS as STORE
    from ..workers.tables import MIGRATIONS as WORKERS

    versions: dict[str, int] = {}
    with (
        without_secrets("the server cannot be reached", db),
        psycopg.connect(db, connect_timeout=10, autocommit=True) as connection,
    ):
        number = connection.info.server_version
        yield "reachable", f"PostgreSQL {number // 10_000}.{number % 10_000}", "", True
        made = connection.execute("SELECT to_regclass('stategraph_migrations')").fetchone()
        if made is not None and made[0] is not None:
            known = "SELECT part, max(version) FROM stategraph_migrations GROUP BY part"
            versions = dict(connection.execute(known).fetchall())
    for part, migrations in {"threads": THREADS, "store": STORE, "workers": WORKERS}.items():
        yield _describe_part(part, versions.get(part, 0), len(migrations))


def _describe_part(part: str, version: int, newest: int) -> Row:
    if not version:
        return part, "no tables", "the first use makes them", True
    found = f"tables are of version {version}"
    if version > newest:
        return part, found, f"made by a newer stategraph: this one knows {newest}", False
    return part, found, "up to date" if version == newest else f"the next use makes {newest}", True
