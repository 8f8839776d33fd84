"""What a node's policies say: how long an attempt may take, when it is tried again, whether its
result is used again. Values only; nothing here runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import GenericAlias
from typing import Any, ClassVar, Literal, NamedTuple

from .clock import read_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutPolicy:
    """How long one attempt of a node may take.

    Args:
        run_timeout: seconds (or a timedelta) for the whole attempt.
        idle_timeout: seconds (or a timedelta) without a sign of life: a custom event, a token of
            a model that is streamed, a `@task` call, a nested graph, or `runtime.heartbeat()`.
        refresh_on: "auto" if all of these count as signs of life, "heartbeat" if only the last
            does.

    Raises:
        TypeError: a limit is neither a number nor a timedelta.
        ValueError: a limit is not greater than 0, or `refresh_on` is something else.
    """

    run_timeout: float | None = None
    idle_timeout: float | None = None
    refresh_on: Literal["auto", "heartbeat"] = "auto"

    def __post_init__(self) -> None:
        for name in ("run_timeout", "idle_timeout"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_seconds(name, value))
        if self.refresh_on not in ("auto", "heartbeat"):
            raise ValueError(f"refresh_on must be 'auto' or 'heartbeat', got {self.refresh_on!r}")

    @classmethod
    def coerce(cls, value: float | timedelta | TimeoutPolicy | None) -> TimeoutPolicy | None:
        """A policy from seconds or a timedelta, which set `run_timeout`; None for one without
        limits."""
        if value is None:
            return None
        if not isinstance(value, TimeoutPolicy):
            return cls(run_timeout=value)  # type: ignore[arg-type]
        limited = value.run_timeout is not None or value.idle_timeout is not None
        return value if limited else None


_NOT_RETRIED = (
    ValueError, TypeError, ArithmeticError, ImportError, LookupError, NameError, SyntaxError,
    RuntimeError, ReferenceError, StopIteration, StopAsyncIteration, OSError,
)  # fmt: skip


def default_retry_on(exc: Exception) -> bool:
    """Whether another attempt may help: after lost connections, HTTP 5xx and unknown errors, but
    not after errors that programming mistakes raise."""
    if isinstance(exc, ConnectionError):
        return True
    response = getattr(exc, "response", None)
    status = getattr(response, "status_code", None)  # httpx and requests agree on this name
    if isinstance(status, int):
        return status >= 500
    return not isinstance(exc, _NOT_RETRIED)


class RetryPolicy(NamedTuple):
    """When a failed node runs again, and after how long.

    Attributes:
        initial_interval: seconds before the first retry.
        backoff_factor: each wait is this many times as long as the one before.
        max_interval: the longest wait in seconds.
        max_attempts: how many attempts there are in all, including the first.
        jitter: whether each wait is shortened at random, by up to half.
        retry_on: which errors are retried: an exception class, several, or a function that takes
            the exception and returns a bool.
    """

    initial_interval: float = 0.5
    backoff_factor: float = 2.0
    max_interval: float = 128.0
    max_attempts: int = 3
    jitter: bool = True
    retry_on: type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool] = (
        default_retry_on
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """Reuse a node's result for equal inputs. Needs a cache on the graph.

    A function or class is identified by its name and source. A lambda, a function with a closure, a
    bound method or an object needs a `key_func`. If a node's key differs in every run, a
    `RuntimeWarning` says so once.

    Args:
        key_func: makes the key (str or bytes) from the input; None for a canonical hash of the
            input.
        ttl: for how many seconds (or which timedelta) a result is used; None for ever.

    Raises:
        TypeError: `ttl` is neither a number nor a timedelta, or `key_func` is no function.
        ValueError: `ttl` is negative or endless.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    by_name: ClassVar[bool] = False
    """Whether what needs a `key_func` and has none counts by its name alone."""

    key_func: Callable[..., str | bytes] | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None:
            object.__setattr__(self, "ttl", read_seconds("CachePolicy: ttl", self.ttl, zero=True))
        if self.key_func is not None and not callable(self.key_func):
            raise TypeError(
                f"CachePolicy: key_func must be a function of the input, got {self.key_func!r}"
            )


class NodePolicies(NamedTuple):
    """The policies of a node, from its declaration to its attempts. None, or an empty tuple, leaves
    it to the defaults.

    Attributes:
        retry: when to try again; the first whose `retry_on` fits the error counts.
        cache: when to reuse results.
        timeout: the limits of one attempt.
        limits: the `Limit`s in which its tasks need a place.
    """

    retry: tuple[RetryPolicy, ...] = ()
    cache: CachePolicy | None = None
    timeout: TimeoutPolicy | None = None
    limits: tuple[Any, ...] = ()

    def fill_from(self, default: NodePolicies) -> NodePolicies:
        """Return these, completed with the defaults."""
        return NodePolicies._make(own or other for own, other in zip(self, default, strict=True))
