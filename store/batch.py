"""How one batch runs, the same for every store in this process: check, embed, read, write.

`LocalStore` owns this order, the time and the lock; where rows are kept is left to its subclasses,
who answer a few plain calls. All checks come before all reads, all reads before all writes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from ..channels.base import MISSING, check_kind
from ..checkpoint.serde.codec import is_text
from .base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ItemChangedError,
    ListNamespacesOp,
    MatchCondition,
    Namespace,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    UnchangedOp,
    Value,
)
from .filters import compile_filter
from .lookups import Lookup, cut, finish, pick
from .namespaces import check_namespace, pick_namespaces, window
from .paths import Path
from .values import check_value, copy_value
from .vectors import NO_VECTORS, Index, Vector, Vectors, parse_fields

# -- sweeper ---------------------------------------------------------------------------------------
# A thread that removes what has expired from a store, again and again.

_log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps until it is stopped. One thread at most.

    Args:
        sweep: removes what has expired.
    """

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._future: Future[None] = Future()

    def start(self, seconds: float) -> Future[None]:
        """Sweep every so many seconds. If it does already, it goes on as it is."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stop, self._future = threading.Event(), Future()
                self._future.set_running_or_notify_cancel()
                args = (self._stop, self._future, seconds)
                self._thread = threading.Thread(
                    target=self._run, args=args, name="stategraph-sweeper", daemon=True
                )
                self._thread.start()
            return self._future

    def stop(self, seconds: float | None) -> bool:
        """Stop, and wait so long for it; whether it has stopped."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        if thread.is_alive():
            self._thread = thread
        return not thread.is_alive()

    def _run(self, stop: threading.Event, future: Future[None], seconds: float) -> None:
        while not stop.wait(seconds):
            try:
                self._sweep()
            except Exception as error:  # a database that is away now may be there the next time
                _log.warning(
                    "expired items could not be removed, trying again in %g s: %s", seconds, error
                )
        future.set_result(None)



MINUTE = 60.0
SWEEP_INTERVAL = 5.0
"""Minutes between two sweeps, unless the store is configured otherwise."""

MAX_MINUTES = 1e12
"""The longest time to live, two million years; so that no sum overflows."""


@dataclass(slots=True)
class ItemRow:
    """An item as a store keeps it. Times are seconds since 1970; `ttl` is minutes."""

    namespace: Namespace
    key: str
    value: Value
    created: float
    updated: float
    ttl: float | None
    expires: float | None
    vectors: Vector | None = None
    """All its vectors in one string; None if it has none that fits the index."""


@dataclass(slots=True)
class Put:
    """A checked write. `value` None deletes; `texts` are to be embedded."""

    namespace: Namespace
    key: str
    value: Value | None
    ttl: float | None = None
    texts: list[str] = field(default_factory=list)
    vectors: Vector | None = None


@dataclass(slots=True)
class Plan:
    """A checked batch. `puts` holds, per place, the last write to it, in the order these came;
    `unchanged` what must be at a place for them to be done."""

    reads: list[tuple[int, GetOp | SearchOp | ListNamespacesOp]]
    puts: dict[tuple[Namespace, str], Put]
    size: int
    unchanged: dict[tuple[Namespace, str], Mapping[str, Any] | None] = field(default_factory=dict)

    def documents(self) -> list[str]:
        """The texts that its writes bring."""
        return [text for put in self.puts.values() for text in put.texts]

    def queries(self) -> list[str]:
        """The texts that its searches ask for."""
        return [op.query for _, op in self.reads if isinstance(op, SearchOp) and op.query]


class LocalStore(BaseStore, ABC):
    """A store that does its work in this process.

    Args:
        index: how to find items by meaning; None for no such index.
        ttl: how long items live; None for ever, unless a put says otherwise.
        clock: seconds since 1970; asked once per batch.

    Raises:
        ValueError: a config has unknown keys or values without meaning.
    """

    def __init__(
        self,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options: dict[str, Any] = {"index": index, "ttl": ttl, "clock": clock}
        self.index_config: IndexConfig | None = index
        self.ttl_config: TTLConfig | None = ttl
        self._index = Index(index) if index else None
        self._ttl = _check_ttl_config(ttl or {})
        check_kind("clock", clock, Callable, "a function")
        self._clock = clock
        self._lock: AbstractContextManager[Any] = threading.Lock()
        self._swept = clock()
        self._sweeper = Sweeper(self.sweep_ttl)

    supports_ttl = True

    _keeps_rows = False
    """Whether the rows that a subclass answers are those that it keeps, so that callers get
    copies."""

    # -- what a subclass answers, always under the lock --------------------------------------------

    def _transaction(self, write: bool, alone: bool = False) -> AbstractContextManager[Any]:
        """Around the reads, then around the writes of a batch; `alone`: all of them are done by
        one `_find_all`, or there is only one write."""
        return nullcontext()

    @abstractmethod
    def _find(self, namespace: Namespace, key: str, now: float) -> ItemRow | None:
        """The live row at a place."""

    def _find_all(
        self, places: Sequence[tuple[Namespace, str]], now: float
    ) -> dict[tuple[Namespace, str], ItemRow | None]:
        """The live rows at several places, as they are at one moment."""
        return {place: self._find(*place, now) for place in places}

    @abstractmethod
    def _scan(self, prefix: Namespace, now: float, vectors: bool) -> Generator[ItemRow, None, None]:
        """The live rows below a prefix, the one put last first; their vectors only if asked for."""

    @abstractmethod
    def _namespaces(self, now: float) -> Iterable[Namespace]:
        """The namespaces with live rows."""

    @abstractmethod
    def _put(self, row: ItemRow, now: float) -> None:
        """Set a row in place of the one before, whose `created` stays if it is still live."""

    @abstractmethod
    def _delete(self, namespace: Namespace, key: str) -> None:
        """Remove a row, if there is one."""

    @abstractmethod
    def _touch(self, row: ItemRow, expires: float) -> None:
        """Let a row that was just read live until `expires`, if it would not live longer: others
        may have put or read it meanwhile, and their clocks may differ."""

    @abstractmethod
    def _sweep(self, now: float) -> int:
        """Remove the rows that have expired; how many."""

    # -- one batch ---------------------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """See `BaseStore.batch`."""
        plan = self._plan(ops)
        vectors = self._index.embed(plan.documents(), plan.queries()) if self._index else NO_VECTORS
        return self._execute(plan, vectors)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for coroutines."""
        plan = self._plan(ops)
        vectors = NO_VECTORS
        if self._index:
            vectors = await self._index.aembed(plan.documents(), plan.queries())
        return await self._aexecute(plan, vectors)

    async def _aexecute(self, plan: Plan, vectors: Vectors) -> list[Result]:
        return self._execute(plan, vectors)

    # -- look-ups ----------------------------------------------------------------------------------

    def index_fields(self, namespace: Namespace) -> None:
        """Let look-ups of a namespace be answered without reading all its items, if the database
        can. The namespace must be a constant of the program, and have no others below it."""

    async def alook_up(self, lookup: Lookup) -> list[Item]:
        """Return the items that a look-up selects."""
        return [Item(**self._parts(row)) for row in cut(lookup, await self._amatching(lookup))]

    async def alook_up_keys(self, lookup: Lookup) -> list[str]:
        """Return the keys of all items that match a look-up without a test, in its order, whatever
        its limit is."""
        return [row.key for row in await self._amatching(lookup._replace(limit=0))]

    async def acount(self, lookup: Lookup) -> int:
        """Return how many items match a look-up, whatever its limit is."""
        return len(await self._amatching(lookup._replace(limit=0)))

    async def _amatching(self, lookup: Lookup) -> list[ItemRow]:
        return await self._acall(self._matching, lookup)

    def _matching(self, lookup: Lookup) -> list[ItemRow]:
        """Find rows by reading all of the namespace, one by one: many at once would start garbage
        collections, which stop the event loop."""
        with (
            self._lock,
            self._transaction(write=False),
            closing(self._scan(lookup.namespace, self._clock(), False)) as rows,
        ):
            return finish(pick(lookup, rows))

    # -- sweeping ----------------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Remove what has expired; returns how many items. It could not be read any more in any
        case."""
        with self._lock, self._transaction(write=True):
            self._swept = self._clock()
            return self._sweep(self._swept)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Remove what has expired every so many minutes, on a thread, until `stop_ttl_sweeper` or
        `close`.

        Args:
            sweep_interval_minutes: None takes the one of the store's `ttl`, or 5.

        Returns:
            A future that is done when the sweeper has stopped. Without a `ttl` there is nothing to
                sweep: it is done.

        Raises:
            ValueError: the interval is not a number above 0.
        """
        minutes = _check_minutes("sweep_interval_minutes", sweep_interval_minutes)
        minutes = minutes or self._ttl.get("sweep_interval_minutes") or SWEEP_INTERVAL
        if not self._ttl:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._sweeper.start(minutes * MINUTE)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop it, and wait at most so many seconds for a sweep that is under way; whether none
        is."""
        return self._sweeper.stop(timeout)

    def _plan(self, ops: Iterable[Op]) -> Plan:
        plan = Plan([], {}, 0)
        for op in ops:
            if isinstance(op, PutOp):
                put = self._check_put(op)
                # Taken out first, so that the last write to a place also stands last in the order.
                plan.puts.pop((put.namespace, put.key), None)
                plan.puts[put.namespace, put.key] = put
            elif isinstance(op, UnchangedOp):
                plan.unchanged[check_namespace(op.namespace), _check_key(op.key)] = op.value
            else:
                plan.reads.append((plan.size, _check_read(op)))
            plan.size += 1
        return plan

    def _check_put(self, op: PutOp) -> Put:
        namespace, key = check_namespace(op.namespace), _check_key(op.key)
        if op.value is None:
            return Put(namespace, key, None)
        value = check_value(op.value)
        # MISSING, since None is a choice as well: this item never expires.
        ttl = self._ttl.get("default_ttl") if op.ttl is MISSING else _check_minutes("ttl", op.ttl)
        return Put(namespace, key, value, ttl, self._texts(value, op.index))

    def _texts(self, value: Value, index: object) -> list[str]:
        if index is False:
            return []
        # Checked also in a store without an index, so that a mistake is found before one is added.
        paths: list[Path] | None = None if index is None else parse_fields(index)
        if not self._index:
            return []
        return self._index.texts(value, paths)

    def _execute(self, plan: Plan, vectors: Vectors) -> list[Result]:
        for put in plan.puts.values():
            put.vectors = b"".join(vectors.documents[text] for text in put.texts) or None
        results: list[Result] = [None] * plan.size
        touched: list[ItemRow] = []
        with self._lock:
            now = self._clock()
            if plan.reads:
                places = [(op.namespace, op.key) for _, op in plan.reads if isinstance(op, GetOp)]
                alone = len(places) == len(plan.reads)
                with self._transaction(write=False, alone=alone):
                    rows = self._find_all(places, now)
                    for position, op in plan.reads:
                        results[position] = self._answer(op, now, vectors, rows, touched)
            # In a transaction of its own: reads that refresh nothing take no write lock.
            if touched or plan.puts or plan.unchanged:
                alone = len(touched) + len(plan.puts) + len(plan.unchanged) == 1
                with self._transaction(write=True, alone=alone):
                    self._write(plan, touched, now)
        return results

    def _write(self, plan: Plan, touched: list[ItemRow], now: float) -> None:
        for place, found in self._find_all([*plan.unchanged], now).items():
            if (None if found is None else found.value) != plan.unchanged[place]:
                raise ItemChangedError(*place)
        for row in touched:
            self._touch(row, now + cast(float, row.ttl) * MINUTE)
        for put in plan.puts.values():
            if put.value is None:
                self._delete(put.namespace, put.key)
            else:
                expires = None if put.ttl is None else now + put.ttl * MINUTE
                self._put(
                    ItemRow(
                        put.namespace, put.key, put.value, now, now, put.ttl, expires, put.vectors
                    ),
                    now,
                )
        interval = self._ttl.get("sweep_interval_minutes")
        if interval is not None and plan.puts and now - self._swept >= interval * MINUTE:
            self._swept = now
            self._sweep(now)

    # -- reads -------------------------------------------------------------------------------------

    def _answer(
        self,
        op: GetOp | SearchOp | ListNamespacesOp,
        now: float,
        vectors: Vectors,
        rows: Mapping[tuple[Namespace, str], ItemRow | None],
        touched: list[ItemRow],
    ) -> Result:
        if isinstance(op, ListNamespacesOp):
            return pick_namespaces(self._namespaces(now), op)
        found: list[tuple[ItemRow, float | None]] = []
        if isinstance(op, SearchOp):
            found = self._page(op, now, vectors.queries.get(op.query or ""))
        elif (row := rows[op.namespace, op.key]) is not None:
            found = [(row, None)]
        refresh = op.refresh_ttl
        if refresh is None:
            refresh = self._ttl.get("refresh_on_read", True)
        if refresh:
            touched.extend(row for row, _ in found if row.ttl is not None)
        if isinstance(op, SearchOp):
            return [SearchItem(**self._parts(row), score=score) for row, score in found]
        if not found:
            return None
        return Item(**self._parts(found[0][0]))

    def _parts(self, row: ItemRow) -> dict[str, Any]:
        return {
            "value": copy_value(row.value) if self._keeps_rows else row.value,
            "key": row.key,
            "namespace": row.namespace,
            "created_at": datetime.fromtimestamp(row.created, UTC),
            "updated_at": datetime.fromtimestamp(row.updated, UTC),
        }

    def _page(
        self, op: SearchOp, now: float, query: Vector | None
    ) -> list[tuple[ItemRow, float | None]]:
        wanted = compile_filter(op.filter)
        with closing(self._scan(op.namespace_prefix, now, query is not None)) as scan:
            rows = (row for row in scan if wanted(row.value))
            # Without scores the page can be cut while rows are read; with scores all must be seen.
            if query is None or self._index is None:
                return [(row, None) for row in window(rows, op.offset, op.limit)]
            found = list(rows)
        scores = self._index.scores(query, [row.vectors for row in found])
        # A stable sort: equal scores, and the items without one, keep the order of a plain listing.
        ranked = sorted(zip(found, scores, strict=True), key=_nearness, reverse=True)
        return window(ranked, op.offset, op.limit)


def _nearness(scored: tuple[ItemRow, float | None]) -> float:
    return -math.inf if scored[1] is None else scored[1]


# -- checks ----------------------------------------------------------------------------------------


def _check_read(op: Op) -> GetOp | SearchOp | ListNamespacesOp:
    if isinstance(op, GetOp):
        return op._replace(namespace=check_namespace(op.namespace), key=_check_key(op.key))
    if isinstance(op, SearchOp):
        _check_page(op.limit, op.offset)
        if op.query is not None and not isinstance(op.query, str):
            raise ValueError(f"query must be a string or None, got {op.query!r}")
        return op._replace(namespace_prefix=check_namespace(op.namespace_prefix, empty_ok=True))
    if isinstance(op, ListNamespacesOp):
        _check_page(op.limit, op.offset)
        if op.max_depth is not None and not _is_count(op.max_depth, 1):
            raise ValueError(f"max_depth must be an integer >= 1, got {op.max_depth!r}")
        return op._replace(match_conditions=tuple(map(_check_condition, op.match_conditions or ())))
    raise TypeError(
        "an operation must be a GetOp, SearchOp, PutOp, UnchangedOp or ListNamespacesOp, "
        f"got {op!r}"
    )


def _check_condition(condition: MatchCondition) -> MatchCondition:
    kind, path = condition
    if kind not in ("prefix", "suffix"):
        raise ValueError(f'a namespace must be matched by "prefix" or "suffix", got {kind!r}')
    return MatchCondition(kind, check_namespace(path, empty_ok=True))


def _check_key(key: object) -> str:
    text = str(key)
    if not is_text(text):
        raise ValueError(f"the key {text!r} has a lone surrogate")
    return text


def _check_page(limit: object, offset: object) -> None:
    for name, number in (("limit", limit), ("offset", offset)):
        if not _is_count(number, 0):
            raise ValueError(f"{name} must be an integer >= 0, got {number!r}")


def _is_count(number: object, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


def _check_minutes(name: str, minutes: object) -> float | None:
    if minutes is None:
        return None
    if (
        isinstance(minutes, (int, float))
        and not isinstance(minutes, bool)
        and 0 < minutes <= MAX_MINUTES
    ):
        return float(minutes)
    raise ValueError(
        f"{name} must be above 0 and up to {MAX_MINUTES:g} minutes, or None for ever, "
        f"got {minutes!r}"
    )


def _check_ttl_config(config: TTLConfig) -> TTLConfig:
    check_kind("ttl", config, Mapping, "a dict")
    unknown = set(config) - set(TTLConfig.__annotations__)
    if unknown:
        raise ValueError(
            f"TTL settings must be among {sorted(TTLConfig.__annotations__)}, got {sorted(unknown)}"
        )
    for name in ("default_ttl", "sweep_interval_minutes"):
        _check_minutes(name, config.get(name))
    return config
