"""Limits on the requests and runs in progress, per user and in total. A stream counts as a request
until its reader leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

from starlette.types import Scope

from .errors import Refused

MOST_HEADERS: Final = 100
"""How many headers a request may have."""
MOST_HEAD: Final = 64 * 1024
"""The maximum size of a request's first line and headers, in bytes."""
_USER = "stategraph.user"
MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a server accepts; what is beyond gets 413 or 429.

    Args:
        body_bytes: the maximum size of a request's body. It may hold one value or key for every 20
            bytes of this size.
        runs: how many runs may be running or waiting. With a queue, the runs of all servers count,
            with a delay of up to a second.
        runs_per_user: how many of them one user may have. Without `auth` it has no effect.
        requests: how many requests may be open. A stream counts for as long as it is read, a wait
            until its run ends.
        requests_per_user: how many of them one user may have. Without `auth` it has no effect.
        threads_per_user, schedules_per_user: how many of them one user may have; None for any
            number, as below. Requests that come at the same time may exceed these by their number.
        stored_bytes_per_user: how many bytes the checkpoints of a user's threads may take before no
            more runs begin. They are measured every ten seconds.
        runs_per_minute: how many runs one user may begin in a minute, also by schedules. Each
            server counts its own.

    Raises:
        ValueError: one of them is not an integer >= 1, or None where that is allowed.
    """

    body_bytes: int = 4 * MEGABYTE
    runs: int = 10_000
    runs_per_user: int = 1_000
    requests: int = 5_000
    requests_per_user: int = 500
    threads_per_user: int | None = None
    schedules_per_user: int | None = None
    stored_bytes_per_user: int | None = None
    runs_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_free = value is None and getattr(type(self), name) is None
            if not is_free and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}")


class OpenRequests:
    """Counts the requests in progress. Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._most, self._most_of_one = limits.requests, limits.requests_per_user
        self._open = 0
        self._of_user: Counter[str] = Counter()

    def enter(self) -> None:
        """Count a request that has arrived.

        Raises:
            Refused: there are too many.
        """
        if self._open >= self._most:
            raise Refused(429, f"{self._most} requests are under way: try again later")
        self._open += 1

    def name(self, scope: Scope, user: str) -> None:
        """Record which user a request belongs to.

        Raises:
            Refused: the user has too many.
        """
        if _USER in scope:
            return
        if self._of_user[user] >= self._most_of_one:
            why = f"{self._most_of_one} of your requests are under way: close some, or try later"
            raise Refused(429, why)
        self._of_user[user] += 1
        scope[_USER] = user

    def count(self) -> int:
        """Return how many requests are in progress."""
        return self._open

    def leave(self, scope: Scope) -> None:
        """Stop counting a request that was answered or whose client has disconnected."""
        self._open -= 1
        user = scope.get(_USER)
        if user is not None:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]


def user_of(scope: Scope) -> str | None:
    """Return the user of a request; None as long as nobody has asked, or without `auth`."""
    user: str | None = scope.get(_USER)
    return user


class OpenRuns:
    """Counts the runs that wait or run, by owner; those without one only in the total. Belongs to
    one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._most, self._most_of_one = limits.runs, limits.runs_per_user
        self._most_begun = limits.runs_per_minute
        self._owners: dict[str, str] = {}
        self._of_user: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()  # in this minute
        self._minute = 0.0

    def set(self, owners: Mapping[str, str]) -> None:
        """Replace the counted runs by these, given with their owners."""
        self._owners = {**owners}
        self._of_user = Counter(self._owners.values())

    def add(self, run_id: str, owner: str) -> None:
        """Count a run that waits or runs, unless it is already counted."""
        if run_id not in self._owners:
            self._owners[run_id] = owner
            self._of_user[owner] += 1
            self._begun[owner] += 1

    def remove(self, run_id: str, *, begun: bool = True) -> None:
        """Stop counting a run that has ended, or was refused and so has not `begun`."""
        owner = self._owners.pop(run_id, None)
        if owner is not None:
            self._begun[owner] -= not begun
            self._of_user[owner] -= 1
            if not self._of_user[owner]:
                del self._of_user[owner]

    def count(self) -> int:
        """Return how many runs wait or run."""
        return len(self._owners)

    def check(self, owner: str) -> None:
        """Check that one more run may begin.

        Raises:
            Refused: there are too many.
        """
        if len(self._owners) >= self._most:
            raise Refused(429, f"{self._most} runs wait or are at work already: try again later")
        if owner and self._of_user[owner] >= self._most_of_one:
            why = f"{self._most_of_one} of your runs wait or are at work: cancel some, or try later"
            raise Refused(429, why)
        if (minute := monotonic() // 60) != self._minute:
            self._minute = minute
            self._begun.clear()
        if owner and self._most_begun is not None and self._begun[owner] >= self._most_begun:
            most = f"{self._most_begun} of your runs have begun in this minute"
            raise Refused(429, f"{most}: try again in the next")
