"""The server's log, and the error with which a request is refused."""

from __future__ import annotations

from logging import getLogger
from typing import Final

LOG: Final = getLogger("stategraph.serve")
TOO_MANY: Final = 429
"""A client may retry a request that is answered with this status or a higher one."""


class Refused(Exception):
    """Refuses a request with an HTTP status and a message.

    Args:
        status: the HTTP status code.
        detail: what is wrong and how to fix it; clients show it.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status: int = status
        self.detail: str = detail
