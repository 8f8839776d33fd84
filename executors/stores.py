"""The graph's store on the other side: how it is opened there, packed by the driver, and what a worker has opened.

What opens a store is the store's own affair (`BaseStore.elsewhere`); no kind of store is known here.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from .call import Executor
from .parcel import Kept
from .pickling import culprit, dump_function, has_cloudpickle, loads

MOST_OPEN = 8
"""So many stores stay open in a worker, besides those in use."""

# -- the driver's side --------------------------------------------------------------------------------------------


def recipe_of(store: Any, executor: Executor) -> bytes | Kept | None:
    """What opens a store in a worker, pickled; or why it cannot be opened there; None if there is no store."""
    if store is None:
        return None
    name = f"the store ({type(store).__name__})"
    try:
        opens = store.elsewhere() if hasattr(store, "elsewhere") else None
    except Exception as error:
        return Kept(f"{name} cannot be opened elsewhere: {type(error).__name__}: {error}")
    if opens is None:
        return Kept(
            f"{name} stays with the driver, for it lives in that process. A SqliteStore in a file (for workers on the "
            f"driver's machine) or a PostgresStore can be used there; {_WAY_OUT}"
        )
    try:
        data = dump_function(opens, shares_main=executor.shares_main)
    except Exception:
        path, why = culprit(opens, "store", shares_main=executor.shares_main)
        return Kept(f"{path}: {why}. {name} cannot travel with it; {_WAY_OUT}")
    if b"__main__" in data and not executor.shares_main and not has_cloudpickle():
        return Kept(f"{name} needs what the script defines, which workers do not import: install cloudpickle")
    return data


_WAY_OUT = 'or give the node executor="threads"'


def store_parameter(inject: Iterable[tuple[str, str]]) -> str | None:
    """The name of the parameter that takes the store, among those that a function wants filled."""
    return next((name for name, kind in inject if kind == "store"), None)


# -- the other side -----------------------------------------------------------------------------------------------


class OpenStores:
    """The stores that a process has opened, by what opened them. Safe to use from several threads.

    Args:
        most: how many stay open; those in use come on top.
    """

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._left: list[Any] = []

    def take(self, recipe: bytes, user: object) -> Any:
        """The store that this opens, for a user who will give it back; opened if it is not.

        Raises:
            Exception: it cannot be opened; the next who asks tries again.
        """
        with self._lock:
            held = self._held.setdefault(recipe, _Held())
            self._held.move_to_end(recipe)
            held.users.add(user)
        with held.lock:  # of several threads that ask at once, one opens it
            if held.store is None:
                held.store = loads(recipe)()
            return held.store

    def give_back(self, user: object) -> None:
        """A user has no use for any of them any more."""
        if not self._held:
            return
        with self._lock:
            for held in self._held.values():
                held.users.discard(user)
            free = [recipe for recipe, held in self._held.items() if not held.users]
            dropped = [self._held.pop(recipe) for recipe in free[: max(0, len(self._held) - self._most)]]
        for held in dropped:
            held.close()

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            dropped, self._held = list(self._held.values()), OrderedDict()
        for held in dropped:
            held.close()

    def leave(self) -> None:
        """In the child of a fork: they are its parent's. Kept, for what is forgotten may be closed."""
        self._left.append(self._held)
        self._held = OrderedDict()
        self._lock = threading.Lock()


class _Held:
    """A store and the calls that use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.store: Any = None
        self.users: set[object] = set()

    def close(self) -> None:
        """Close it, if that can be done: an error of one must not keep the others open."""
        try:
            getattr(self.store, "close", _nothing)()
        except Exception:
            pass


def _nothing() -> None:
    """A store without an end."""


OPEN = OpenStores()
atexit.register(OPEN.close)
os.register_at_fork(after_in_child=OPEN.leave)
