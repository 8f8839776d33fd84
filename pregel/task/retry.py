"""Pure decisions about a failed attempt: wait how long, or give up. Nothing here sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from random import uniform
from typing import Any

from ..types import RetryPolicy


def wait_before_retry(
    policies: Sequence[RetryPolicy], failures: dict[int, int], error: BaseException
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    The first policy whose `retry_on` fits the error decides, and counts only the failures it was
    asked about.

    Args:
        failures: how often each policy (by position) was asked so far; updated.

    Raises:
        TypeError: a policy's `retry_on` is neither an exception class, nor several, nor a function.
    """
    if not isinstance(error, Exception):
        return None
    for position, policy in enumerate(policies):
        if not _fits(policy, error):
            continue
        count = failures[position] = failures.get(position, 0) + 1
        if count >= policy.max_attempts:
            return None
        return interval(policy, count)
    return None


def interval(policy: RetryPolicy, failures: int) -> float:
    """Seconds to wait after so many failures: grows by the factor up to the maximum; jitter only
    shortens it."""
    wait = min(
        policy.max_interval, policy.initial_interval * policy.backoff_factor ** (failures - 1)
    )
    if not policy.jitter:
        return wait
    return wait * uniform(0.5, 1.0)


def _fits(policy: RetryPolicy, error: Exception) -> bool:
    rule: Any = policy.retry_on
    if isinstance(rule, type) and issubclass(rule, BaseException):
        return isinstance(error, rule)
    if isinstance(rule, Sequence):
        return isinstance(error, tuple(rule))
    if callable(rule):
        return bool(rule(error))
    raise TypeError(
        "RetryPolicy(retry_on=...) must be an exception class, a sequence of them, or a function "
        f"of the error, got {type(rule).__name__}: {rule!r}"
    ) from error
