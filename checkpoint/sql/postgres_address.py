"""The address of a Postgres database: connection strings, and errors without a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict

from ..errors import StorageError
from .redact import redact


def read_surroundings() -> dict[str, str]:
    """What the environment, a service file and the user's name give, where a connection string does
    not."""
    found = (
        (option.keyword, option.val)
        for option in pq.Conninfo.get_defaults()
        if option.val != option.compiled
    )
    return {name.decode(): value.decode() for name, value in found if value and name != b"service"}


def is_local(host: str) -> bool:
    """Whether a host leads to this machine only."""
    return host in ("", "localhost", "::1") or host.startswith(("/", "@", "127."))


def escape_option(value: str) -> str:
    """A value as it stands in the `options` of a connection string."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


@contextmanager
def without_secrets(
    what: str, conninfo: str, kind: type[StorageError] = StorageError
) -> Iterator[None]:
    """Put an error of psycopg's in our words. It may quote a part of a password that is not escaped
    as it should be, so neither its text nor the error itself goes on as it is.

    Raises:
        StorageError: `what`, and the driver's words without what may be secret.
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
            ours.__context__ = None  # else the driver's error would still hang on it


def parse_address(conninfo: str) -> dict[str, Any]:
    """The parts of a connection string or URL.

    Raises:
        StorageError: it is none.
    """
    with without_secrets(f"this is not a Postgres connection string{_FORMS}", conninfo):
        return conninfo_to_dict(conninfo)


_FORMS = (
    " (postgresql://user:password@host:5432/name, in a password %40 for @, %2F for /, %3A for :; "
    "or key=value)"
)
