"""Keeps passwords out of errors: what a connection string holds of them, in whatever way it is
malformed."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
_NAMED = re.compile(r"(?i)pass(?:word|wd|phrase)?\s*=\s*(.*?)(?=\s+\w+\s*=|&|$)", re.DOTALL)
_SCHEME = re.compile(r"^\s*\w+:/*")
_APART = re.compile(r"[\s:/@?#&=%'\"\\,\[\]]+")


def redact(text: str, conninfo: str) -> str:
    """A text without what may be a part of a password in a connection string or URL.

    >>> redact('invalid port: "ru"', "postgresql://me:tru/ru@host/db")
    'invalid port: "***"'
    """
    for secret in sorted(_secrets(conninfo), key=len, reverse=True):
        edges = ("", "") if len(secret) > 3 else (r"(?<!\w)", r"(?!\w)")
        text = re.sub(edges[0] + re.escape(secret) + edges[1], HIDDEN, text)
    return text


def redact_address(conninfo: str) -> str:
    """A connection string or file name as it may be shown."""
    return redact(conninfo, conninfo)


def _secrets(conninfo: str) -> set[str]:
    """All that may be a password, whole and in the parts that a parser may take it for."""
    found = [match.group(1) for match in _NAMED.finditer(conninfo)]
    if "@" in conninfo:
        user = _SCHEME.sub("", conninfo.rpartition("@")[0])
        found.append(user.partition(":")[2])
    whole = {each for secret in found for each in (secret, secret.strip("'\""), unquote(secret))}
    return {each for secret in whole for each in (secret, *_APART.split(secret)) if each}
