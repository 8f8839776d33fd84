"""The exceptions of storing and reading values, and the form in which foreign errors are stored.

Only exceptions live here.
"""

from __future__ import annotations

from ..channels.base import StateGraphError


class UnserializableError(StateGraphError, TypeError):
    """A value that would not come back equal and of the same type, so it was not stored.

    Attributes:
        path: the place inside the value, such as `['a'][3].lock`; empty for the value itself.
        reason: what is wrong there, and what to do about it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def inside(self, label: str) -> UnserializableError:
        """Return the same error for an enclosing value, which holds this one at `label`.

        >>> print(UnserializableError("[3]", "cannot store _thread.lock").inside("['jobs']"))
        at ['jobs'][3]: cannot store _thread.lock
        """
        return UnserializableError(label + self.path, self.reason)

    def __str__(self) -> str:
        return f"at {self.path}: {self.reason}" if self.path else self.reason


class UnknownTypeError(StateGraphError, LookupError):
    """Stored bytes name a type that is not registered here. Types are never imported on demand.

    Attributes:
        key: the name under which the type was stored.
    """

    def __init__(self, key: str, advice: str = "") -> None:
        super().__init__(
            f"no type is registered as {key!r}; "
            + (
                advice
                or "import its module and call stategraph.checkpoint.register(...) before loading"
            )
        )
        self.key = key


class DamagedError(StateGraphError, ValueError):
    """Stored bytes that cannot be read, or that do not fit the type they name."""


class UnknownKeyError(DamagedError):
    """A row was encrypted with a key that is not among those given here, or not encrypted at
    all."""


class StorageError(StateGraphError):
    """The database could not execute the operation: it is full, locked, gone or read-only. Nothing
    was done, not even in part; the cause has the database's own message."""


class StoredError(StateGraphError):
    """Stands for a stored exception whose own type is not registered, or whose content could not be
    stored.

    Attributes:
        type_name: the full name of the type it had.
        message: the result of `str()` on it.

    >>> StoredError("app.PaymentError", "card refused")
    StoredError('app.PaymentError', 'card refused')
    """

    def __init__(self, type_name: str, message: str = "") -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class CheckpointConflictError(StateGraphError):
    """Another run has advanced the thread since this run read it, or has begun to. Nothing of this
    step was stored.

    Attributes:
        thread_id: the thread that both runs wanted to advance.
        expected: the head this run had seen, None for an empty thread.
        actual: the head that won.
    """

    def __init__(
        self, thread_id: str, checkpoint_ns: str, expected: str | None, actual: str | None
    ) -> None:
        where = f"thread {thread_id!r}"
        if checkpoint_ns:
            where += f", namespace {checkpoint_ns!r}"
        if expected == actual:
            what = f"another run has answered checkpoint {expected} or gone on from it"
        else:
            what = (
                f"another run committed checkpoint {actual} while this one was working from "
                f"{expected}"
            )
        what += ". Nothing of this step was stored"
        super().__init__(f"{where}: {what}; read the thread again and repeat the call.")
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.expected = expected
        self.actual = actual
