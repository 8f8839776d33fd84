"""The graph's store in a worker: what opens it there, pickled by the driver, and what a worker has
opened.

How a store is opened again is its own affair (`BaseStore.reopen`); no kind of store is known here.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from .base import Executor
from .pickling import dump_function, find_culprit, loads, needs_script
from .protocol import Unsendable

MOST_OPEN = 8
"""How many stores stay open in a worker, besides those in use."""

# -- the driver's side -----------------------------------------------------------------------------


def dump_opener(store: Any, executor: Executor) -> bytes | Unsendable | None:
    """What opens a store in a worker, pickled; or why it cannot be opened there; None if there is
    no store."""
    if store is None:
        return None
    name = f"the store ({type(store).__name__})"
    try:
        opener = store.reopen() if hasattr(store, "reopen") else None
    except Exception as error:
        return Unsendable(f"{name} cannot be opened elsewhere: {type(error).__name__}: {error}")
    if opener is None:
        return Unsendable(
            f"{name} stays with the driver, because it lives in that process. A SqliteStore in a "
            "file "
            "(for workers on the driver's machine) or a PostgresStore can be used there; "
            f"{_WAY_OUT}"
        )
    try:
        data = dump_function(opener, shares_main=executor.shares_main)
    except Exception:
        path, why = find_culprit(opener, "store", shares_main=executor.shares_main)
        return Unsendable(f"{path}: {why}. {name} cannot be sent to a worker; {_WAY_OUT}")
    if needs_script(data, executor.shares_main):
        return Unsendable(
            f"{name} needs objects that the script defines, which workers cannot import: "
            "install cloudpickle"
        )
    return data


_WAY_OUT = 'or give the node executor="threads"'


def store_parameter(inject: Iterable[tuple[str, str]]) -> str | None:
    """The name of the parameter that takes the store, among those to be injected; None if there is
    none."""
    return next((name for name, kind in inject if kind == "store"), None)


# -- the worker's side -----------------------------------------------------------------------------


class OpenStores:
    """The stores that a process has opened, by what opened them. Safe to use from several threads.

    Args:
        most: how many stay open; those in use come on top.
    """

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, _OpenStore] = OrderedDict()  # the one used last at the end
        self._inherited: list[Any] = []

    def take(self, opener: bytes, user: object) -> Any:
        """The store that this opens, for a user who will give it back; opened if it is not.

        Raises:
            Exception: it cannot be opened; the next who asks tries again.
        """
        with self._lock:
            found = self._open.setdefault(opener, _OpenStore())
            self._open.move_to_end(opener)
            found.users.add(user)
        with found.lock:  # of several threads that ask at once, one opens it
            if found.store is None:
                found.store = loads(opener)()
            return found.store

    def give_back(self, user: object) -> None:
        """A user needs none of them any more. Closes those beyond `most` that nobody uses, the
        oldest first."""
        if not self._open:
            return
        with self._lock:
            for each in self._open.values():
                each.users.discard(user)
            unused = [opener for opener, each in self._open.items() if not each.users]
            surplus = max(0, len(self._open) - self._most)
            dropped = [self._open.pop(opener) for opener in unused[:surplus]]
        for each in dropped:
            each.close()

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            dropped, self._open = list(self._open.values()), OrderedDict()
        for each in dropped:
            each.close()

    def reset_after_fork(self) -> None:
        """In the child of a fork: the stores are its parent's. They are held all the same, because
        a store that is garbage-collected may close the connection that both share."""
        self._inherited.append(self._open)
        self._open = OrderedDict()
        self._lock = threading.Lock()  # another thread of the parent may have held the old one


class _OpenStore:
    """A store and the calls that use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.store: Any = None
        self.users: set[object] = set()

    def close(self) -> None:
        """Close it, if that can be done: an error of one must not keep the others open."""
        close = getattr(self.store, "close", None)
        try:
            if close is not None:
                close()
        except Exception:
            pass


OPEN = OpenStores()
atexit.register(OPEN.close)
os.register_at_fork(after_in_child=OPEN.reset_after_fork)
