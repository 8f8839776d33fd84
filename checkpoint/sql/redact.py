"""Removes passwords from errors: whatever a connection string contains of them, however malformed
it is. Also distinguishes a connection string from a file name, without a driver."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
_NAMED = re.compile(r"(?i)pass(?:word|wd|phrase)?\s*=\s*(.*?)(?=\s+\w+\s*=|&|$)", re.DOTALL)
_KEYWORD = re.compile(
    r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|options|ssl\w+|connect_timeout"
    r"|application_name|target_session_attrs)\s*="
)
_SCHEME = re.compile(r"^\s*\w+:/*")
_APART = re.compile(r"[\s:/@?#&=%'\"\\,\[\]]+")


def redact(text: str, conninfo: str) -> str:
    """Return a text without anything that may be part of a password in a connection string or URL.

    >>> redact('invalid port: "ru"', "postgresql://me:tru/ru@host/db")
    'invalid port: "***"'
    """
    for secret in sorted(_secrets(conninfo), key=len, reverse=True):
        edges = ("", "") if len(secret) > 3 else (r"(?<!\w)", r"(?!\w)")
        text = re.sub(edges[0] + re.escape(secret) + edges[1], HIDDEN, text)
    return text


def is_conninfo(db: str) -> bool:
    """Return whether the name of a database on a command line means a Postgres server rather than a
    file.

    >>> is_conninfo("postgresql://db/orders"), is_conninfo("host=db dbname=orders")
    (True, True)
    >>> is_conninfo("orders.db"), is_conninfo("./host=db"), is_conninfo("file:///orders.db")
    (False, False, False)
    """
    if db.startswith("file:"):
        return False
    return "://" in db or _KEYWORD.match(db) is not None


def redact_address(conninfo: str) -> str:
    """Return a connection string or file name as it may be shown."""
    return redact(conninfo, conninfo)


def _secrets(conninfo: str) -> set[str]:
    """Return everything that may be a password, whole and in the parts that a parser may take for
    one."""
    found = [match.group(1) for match in _NAMED.finditer(conninfo)]
    if "@" in conninfo:
        user = _SCHEME.sub("", conninfo.rpartition("@")[0])
        found.append(user.partition(":")[2])
    whole = {each for secret in found for each in (secret, secret.strip("'\""), unquote(secret))}
    return {each for secret in whole for each in (secret, *_APART.split(secret)) if each}
