"""The error that refuses a request: a status and a sentence."""

from __future__ import annotations


class Refused(Exception):
    """A request that is answered with an error.

    Args:
        status: the HTTP status code.
        detail: what is wrong, and the way out; clients show it.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status: int = status
        self.detail: str = detail
