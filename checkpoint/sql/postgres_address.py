"""The address of a Postgres database: connection strings, and errors that show no password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict

from ..errors import StorageError
from .redact import redact


def read_surroundings() -> dict[str, str]:
    """Return the parameters that the environment, a service file and the user's name provide where
    a connection string does not."""
    found = (
        (option.keyword, option.val)
        for option in pq.Conninfo.get_defaults()
        if option.val != option.compiled
    )
    return {name.decode(): value.decode() for name, value in found if value and name != b"service"}


def is_local(host: str) -> bool:
    """Return whether a host name always means this machine."""
    return host in ("", "localhost", "::1") or host.startswith(("/", "@", "127."))


def escape_option(value: str) -> str:
    """Escape a value for the `options` of a connection string."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


@contextmanager
def without_secrets(
    what: str, conninfo: str, kind: type[StorageError] = StorageError
) -> Iterator[None]:
    """Translate psycopg's errors. They may quote parts of a password that is not escaped correctly,
    so secrets are removed, and the original error is then not chained.

    Raises:
        StorageError: `what`, followed by the driver's message without possible secrets.
    """
    try:
        yield
    except Error as error:
        text = str(error).strip()
        ours = kind(f"{what}: {redact(text, conninfo)}")
        if redact(text, conninfo) == text:
            raise ours from error
        try:
            raise ours from None
        finally:
            ours.__context__ = None  # or it would still refer to the driver's error


def parse_address(conninfo: str) -> dict[str, Any]:
    """Parse a connection string or URL.

    Raises:
        StorageError: it is not a connection string.
    """
    with without_secrets(f"this is not a Postgres connection string{_FORMS}", conninfo):
        return conninfo_to_dict(conninfo)


_FORMS = (
    " (postgresql://user:password@host:5432/name, in a password %40 for @, %2F for /, %3A for :; "
    "or key=value)"
)
