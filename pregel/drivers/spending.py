"""What a run spends of its budgets: reserved before a call, settled after it.

Each change of the total is an event, and events are numbered. A reservation has a record beside the
checkpoint at which its task has started, which is stored before the call, and after it another of
how much more or less it has spent. Both are also beside the newest checkpoint: code that a task has
left behind may spend after the task has ended. The channel `__spent__` gets the total, and the
number of the last event, when a task ends. So the total is that of the channel and of the records
of later events, whatever is killed. Runs around a run count what it spends in the same way, each
for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...checkpoint.base import RETURN
from ...store.base import GetOp, ItemChangedError, PutOp, UnchangedOp
from ..budgets import EVENTS, UNITS, Budget, add, is_record
from ..errors import BudgetExceededError, format_spent
from ..names import SPENT, depth_of
from ..run.run import Run, run_of
from ..running import ONCE
from ..runtime import find_server_info
from ..steps import Steps, arun_steps, run_steps
from ..task.ids import effect_id
from ..task.interrupts import interrupt
from ..task.task import Task, outwards
from .side_effects import record_of

Amounts = Mapping[str, float]
BUDGETS = "stategraph budgets"
"""Begins the namespace in a store of what threads spend together."""
MOST_SHOWN: Final = 1_000
"""How many keys, such as users, are shown at most."""
_MORE = "more "
"""Before a unit: what answers have added to its limits, of those budgets that ask."""


class _Place(NamedTuple):
    """Stands for the task of records that belong to a run."""

    id: str = ""
    name: str = "budget"


_PLACE: Any = _Place()


def _record_key(event: float) -> str:
    return f"\0budget\0{event:.0f}"


def _find_records(total: Amounts, records: Iterable[tuple[str, Any]]) -> list[Amounts]:
    """Return what records add to a total: those of events that it does not count yet.

    Args:
        records: what effects have returned, by the ids of their records.
    """
    found = {}
    for id, value in records:
        if is_record(value) and id == effect_id(_PLACE.id, ONCE, _record_key(value[EVENTS])):
            found[id] = value
    counted = total.get(EVENTS, 0)
    return [value for value in found.values() if value[EVENTS] > counted]


def read_spent(found: Any) -> dict[str, float]:
    """Return what a thread has spent, by unit.

    Args:
        found: its checkpoint, with what is recorded beside it and where the tasks under way in it
            have started; None for a new thread.
    """
    if found is None:
        return {}
    records = ((id, value) for id, name, value in found.pending_writes or () if name == RETURN)
    total = found.checkpoint["channel_values"].get(SPENT) or {}
    total = add((total, *_find_records(total, records)))
    return {unit: amount for unit, amount in total.items() if unit in UNITS}


class Meter:
    """What one run has spent of its budgets.

    Args:
        results: see `EffectRecord`.

    Attributes:
        total: what the thread has spent, reservations included, by unit.
    """

    def __init__(self, run: Run, results: dict[str, Any]) -> None:
        self.run: Run = run
        self.results: dict[str, Any] = results
        given: tuple[Budget, ...] = run.settings.graph.budgets
        self.prices = given
        self.budgets: list[Budget] = [each for each in given if not each.is_shared]
        self._nodes = {each.node for each in given}
        self._lock = threading.Lock()
        self._largest: dict[str, float] = {}
        channel = run.machine.channels.get(SPENT)  # None: it is a budget of this call
        stored = {} if channel is None else channel.get()
        records = self._find_recorded(stored)
        self.total: dict[str, float] = add((stored, *records))
        # It is later than all that is recorded, and what tasks beside the checkpoint have written.
        written = [dict(each.writes).get(SPENT) for each in run.ledger.values()]
        later = [*records, *filter(None, written)]
        if later:
            self.total[EVENTS] = 1 + max(each.get(EVENTS, 0) for each in (stored, *later))
        self._base = dict(self.total)

    @cached_property
    def accounts(self) -> list[Account]:
        """What threads share."""
        return [find_account(self.run, each) for each in self.prices if each.is_shared]

    def _find_recorded(self, total: Amounts) -> list[Amounts]:
        """What is recorded where the run goes on. A fork does not count what the other branch
        spends."""
        if self.run.position.loaded_head is None:
            return []
        ledger = self.run.ledger.items()
        records = ((id, dict(each.writes).get(RETURN)) for id, each in ledger)
        return _find_records(total, records)

    def reserve(
        self, task: Task, place: tuple[Run, str], amounts: Amounts | None, *, swaps: bool
    ) -> Steps[Reservation]:
        """Count a call that is to begin.

        Args:
            place: this run as the task around the call sees it, and its node.
            amounts: what it will spend, if that is known; else it is estimated.
            swaps: `choose` has been asked, so budgets that name another model are not empty.

        Raises:
            BudgetExceededError: a budget is empty.
            GraphInterrupt: a person is asked for more.
        """
        run, node = place
        while True:
            with self._lock:
                budgets = (b for b in self.budgets if not (swaps and callable(b.on_empty)))
                empty = self._find_empty(budgets, node)
                if empty is None:
                    return self._note(run, self.estimate(amounts), node)
            # At once: the next budget may stop the task.
            yield from self._ask_for_more(run, task, *empty).save()

    def estimate(self, amounts: Amounts | None) -> Amounts:
        """Return what a call reserves: `amounts`, if they are known."""
        return {**self._largest, "calls": 1} if amounts is None else amounts

    def _by_node(self, amounts: Amounts, node: str) -> dict[str, float]:
        """Amounts, and those of the node, if it has a budget."""
        if node not in self._nodes:
            return dict(amounts)
        return {**amounts, **{f"{unit} of {node}": amounts[unit] for unit in amounts}}

    def _note(self, run: Run, amounts: Amounts, node: str = "") -> Reservation:
        amounts = self._by_node(amounts, node)
        return Reservation(self, run, self._count(amounts), amounts, node)

    def _count(self, amounts: Amounts) -> Amounts:
        """Add amounts to the total. Returns them as they are recorded."""
        self.total = add((self.total, amounts, {EVENTS: 1}))
        return {**amounts, EVENTS: self.total[EVENTS]}

    def _ask_for_more(self, run: Run, task: Task, budget: Budget, unit: str) -> Reservation:
        with self._lock:
            spent = self.spent(budget, unit)
            limit = self.limit(budget, unit)
        state, name = (budget.unit_of(unit), spent, limit), _more_name(budget, unit)
        # A graph inside may have a budget like this one, and the same task asks for both.
        place = f" {depth}" if (depth := depth_of(run.ns)) else ""
        more = _ask_for_more(task, budget, state, f"budget {name} {_exact(limit)}{place}")
        with self._lock:
            return self._note(run, {_MORE + name: more})

    def spent(self, budget: Budget, unit: str) -> float:
        """Return what counts for a budget."""
        return self._counted(budget, budget.unit_of(unit))

    def limit(self, budget: Budget, unit: str) -> float:
        """Return the limit of a budget, with what answers have added."""
        more = self._counted(budget, _MORE + _more_name(budget, unit))
        return budget.limits[unit] + (more if budget.on_empty == "ask" else 0)

    def _counted(self, budget: Budget, name: str) -> float:
        before = self._base.get(name, 0) if budget.per == "call" else 0
        return self.total.get(name, 0) - before

    def _find_empty(self, budgets: Iterable[Budget], node: str) -> tuple[Budget, str] | None:
        for budget in budgets:
            for unit in budget.limits if budget.node in (None, node) else ():
                if self.spent(budget, unit) >= self.limit(budget, unit):
                    return budget, unit
        return None

    def choose(self, task: Task, node: str, model: Any) -> Any:
        """Return the model to call: another one if a budget is empty that names one."""
        for budget in self.budgets:
            with self._lock:
                empty = self._find_empty((budget,), node)
            if empty is not None and callable(budget.on_empty):
                model = budget.on_empty(model)
                if model is None:
                    unit = empty[1]
                    raise BudgetExceededError(
                        task.name, unit, self.spent(budget, unit), self.limit(budget, unit)
                    )
        return model

    def settle(self, reserved: Amounts, amounts: Amounts, node: str) -> Amounts:
        """Replace what was reserved by what was spent; return the difference, as it is recorded."""
        amounts = self._by_node(amounts, node)
        with self._lock:
            largest = self._largest
            self._largest = {
                unit: max(amounts.get(unit, 0), largest.get(unit, 0)) for unit in UNITS
            }
            return self._count(add((amounts, {unit: -reserved[unit] for unit in reserved})))


def _more_name(budget: Budget, unit: str) -> str:
    """The name in a total, after `_MORE`, of what answers have added for this budget."""
    return budget.unit_of(unit) + (" per call" if budget.per == "call" else "")


def _exact(limit: float) -> str:
    """A limit as it stands in the key of a question: each has its own."""
    text = f"{limit:g}"
    return text if float(text) == limit else repr(limit)


def _ask_for_more(
    task: Task,
    budget: Budget,
    state: tuple[str, float, float],
    key: str,
    whose: Mapping[str, str] = MappingProxyType({}),
) -> float:
    """Return how much more of a unit a person allows.

    Args:
        state: the unit, what is spent of it, and the limit.
        key: of the question.
        whose: whose budget it is, if threads share it.
    """
    unit, spent, limit = state
    if budget.on_empty == "ask" and task.find_answers() is not None:
        from pydantic import FiniteFloat  # a store of totals has no other numbers

        of = "".join(f" of {name} {value}" for name, value in whose.items())
        question = {
            "budget": unit,
            **whose,
            "spent": spent,
            "limit": limit,
            "question": f"{format_spent(spent, limit, unit)}{of} are spent: how much more?",
        }
        more: float = interrupt(question, key=key, response_schema=FiniteFloat)
        if more > 0:
            return more
    raise BudgetExceededError(task.name, unit, spent, limit)


class Reservation:
    """What one call has reserved of the budgets of one run."""

    def __init__(
        self, meter: Meter, run: Run, record: Amounts, amounts: Amounts, node: str
    ) -> None:
        self.meter: Meter = meter
        self.node: str = node
        self._run, self._record, self._amounts = run, record, amounts

    def save(self) -> Steps[None]:
        """Record it."""
        yield from self._save(self._record)

    def settle(self, amounts: Amounts) -> Steps[None]:
        """Record what was spent."""
        yield from self._save(self.meter.settle(self._amounts, amounts, self.node))

    def _save(self, record: Amounts) -> Steps[None]:
        key = _record_key(record[EVENTS])
        effect = record_of(self._run, self.meter.results, _PLACE, ONCE, key)
        waited = effect.save(record, outlasts=True)
        if waited is not None:
            yield waited


def find_account(run: Run, budget: Budget) -> Account:
    """What is spent of a budget that threads share.

    Raises:
        ValueError: there is no store, or the config does not say whose it is.
    """
    store, config = run.settings.store, run.settings.config
    key = config.get("configurable", {}).get(budget.per)
    server = find_server_info(config)
    if budget.per == "user" and server is not None and server.user is not None:
        key = server.user.identity  # whatever the request says
    if key is None:
        raise ValueError(
            f"Budget(per={budget.per!r}) needs a value of {budget.per!r} in "
            "config['configurable'], got none"
        )
    if store is None:
        raise ValueError(
            f"Budget(per={budget.per!r}) needs a store, which keeps the total: "
            "compile(store=...)"
        )
    return Account(store, ((BUDGETS, budget.per), str(key)), (budget,))


class Account(NamedTuple):
    """What is spent across threads: an item of the store, which each change replaces only as it was
    read.

    Attributes:
        place: of the item: its namespace and its key.
        budgets: those that it counts for, of a graph and of those around it.
    """

    store: Any
    place: tuple[tuple[str, ...], str]
    budgets: tuple[Budget, ...]

    def reserve(self, task: Task, amounts: Amounts, *, awaits: bool) -> Steps[Any]:
        """Count a call that is to begin.

        Raises:
            BudgetExceededError: a budget is empty.
            GraphInterrupt: a person is asked for more.
        """
        while True:
            total = yield from self._change(
                awaits, lambda total: None if self._find_empty(total) else add((total, amounts))
            )
            empty = self._find_empty(total) if total is not None else None
            if empty is None:
                return
            budget, unit = empty
            spent, limit = total.get(unit, 0), _shared_limit(budget, total, unit)
            (_, per), key = self.place
            key_of_question = f"{per} {key} {unit} {_exact(limit)}"
            more = _ask_for_more(task, budget, (unit, spent, limit), key_of_question, {per: key})
            name, raised = _MORE + unit, limit - budget.limits[unit] + more
            yield from self._change(
                awaits,
                lambda total, name=name, raised=raised: {  # type: ignore[misc]
                    **total,
                    name: max(raised, total.get(name, 0)),
                },
            )

    def settle(self, reserved: Amounts, amounts: Amounts, *, awaits: bool) -> Steps[Any]:
        """Replace what was reserved by what was spent."""
        back = {unit: -amount for unit, amount in reserved.items()}
        yield from self._change(awaits, lambda total: add((total, amounts, back)))

    def price(self, model: str, tokens: tuple[float, float]) -> float:
        """Return the dollars that a call costs."""
        return max(budget.price(model, tokens) for budget in self.budgets)

    def _find_empty(self, total: Amounts) -> tuple[Budget, str] | None:
        """The first budget and unit of which nothing is left."""
        for budget in self.budgets:
            for unit in budget.limits:
                if total.get(unit, 0) >= _shared_limit(budget, total, unit):
                    return budget, unit
        return None

    def _change(self, awaits: bool, change: Callable[[Amounts], Amounts | None]) -> Steps[Any]:
        """Replace the total by what `change` makes of it. Returns the total if that is None."""
        batch = self.store.abatch if awaits else self.store.batch
        while True:
            [item] = yield batch([GetOp(*self.place)])
            old = None if item is None else item.value
            new = change(old or {})
            if new is None:
                return old or {}
            try:
                yield batch([UnchangedOp(*self.place, old), PutOp(*self.place, dict(new))])
            except ItemChangedError:  # another thread was faster
                continue
            return None


def _shared_limit(budget: Budget, total: Amounts, unit: str) -> float:
    """The limit of a budget that threads share, with what answers have added."""
    more = total.get(_MORE + unit, 0) if budget.on_empty == "ask" else 0
    return budget.limits[unit] + more


async def read_shared(
    graphs: Mapping[str, Any], store: Any, user: str | None = None
) -> list[dict[str, Any]]:
    """Return what is spent of the budgets that threads share: one row per graph, key and unit.

    Args:
        graphs: by name.
        user: only this user's rows.
    """
    budgets = [
        (name, each) for name, graph in graphs.items() for each in graph.budgets if each.is_shared
    ]
    if not budgets:
        return []
    if user is None:
        items = await store.asearch((BUDGETS,), limit=MOST_SHOWN)
    else:
        items = await store.abatch([GetOp((BUDGETS, "user"), user)])
    return [
        {
            "graph": name,
            "per": budget.per,
            "key": item.key,
            "unit": unit,
            "spent": item.value.get(unit, 0),
            "limit": _shared_limit(budget, item.value, unit),
        }
        for item in items
        for name, budget in budgets
        if item is not None and item.namespace == (BUDGETS, budget.per)
        for unit in budget.limits
    ]


class Spend:
    """One call that spends, by all the runs around it that have a budget.

    Args:
        meters: those of the runs, each with the place of the call; see `Meter.reserve`.
    """

    def __init__(
        self, task: Task, meters: list[tuple[Meter, tuple[Run, str]]], *, awaits: bool
    ) -> None:
        self._task, self._meters, self._awaits = task, meters, awaits
        self._drive: Any = arun_steps if awaits else run_steps
        self._reserved: list[Reservation] = []
        self._shared: list[tuple[Account, Amounts]] = []

    def choose(self, model: Any) -> Any:
        """Return the model to call: see `Budget`.

        Raises:
            BudgetExceededError: a budget is empty.
        """
        for meter, (_, node) in self._meters:
            model = meter.choose(self._task, node, model)
        return model

    def reserve(self, amounts: Amounts | None = None, *, swaps: bool = True) -> Any:
        """Count the call before it begins; on an event loop, return what is to be awaited.

        Args:
            amounts, swaps: as in `Meter.reserve`.

        Raises:
            BudgetExceededError: a budget is empty.
        """
        return self._drive(self._reserve(amounts, swaps))

    def _reserve(self, amounts: Amounts | None, swaps: bool) -> Steps[Any]:
        try:
            for meter, place in self._meters:
                reserved = yield from meter.reserve(self._task, place, amounts, swaps=swaps)
                self._reserved.append(reserved)
            for account, given in self._find_accounts(amounts):
                yield from account.reserve(self._task, given, awaits=self._awaits)
                self._shared.append((account, given))
        except BaseException:
            for done in self._reserved:
                done.meter.settle(done._amounts, {}, done.node)
            for account, given in self._shared:
                yield from account.settle(given, {}, awaits=self._awaits)
            raise
        for each in self._reserved:
            yield from each.save()

    def _find_accounts(self, amounts: Amounts | None) -> list[tuple[Account, Amounts]]:
        """Each with what the call reserves there: once, however many budgets it counts for."""
        found: dict[Any, tuple[Account, Amounts]] = {}
        for meter, _ in self._meters:
            for account in meter.accounts:
                item = id(account.store), account.place
                others = found[item][0].budgets if item in found else ()
                whole = account._replace(budgets=(*others, *account.budgets))
                found[item] = whole, meter.estimate(amounts)
        return [*found.values()]

    def settle(
        self, model: str = "", tokens: tuple[float, float] = (0, 0), seconds: float = 0.0
    ) -> Any:
        """Count what a call of a model has spent; on an event loop, return what is to be awaited.

        Args:
            tokens: of input and of output.
        """
        return self._drive(self._settle(model, tokens, seconds))

    def _settle(self, model: str, tokens: tuple[float, float], seconds: float) -> Steps[Any]:
        spent: dict[str, float] = {"tokens": sum(tokens), "calls": 1, "seconds": seconds}
        for each in self._reserved:
            prices = (budget.price(model, tokens) for budget in each.meter.prices)
            yield from each.settle({**spent, "usd": max(prices, default=0.0)})
        for account, given in self._shared:
            usd = account.price(model, tokens)
            yield from account.settle(given, {**spent, "usd": usd}, awaits=self._awaits)


def begin_spend(task: Task, *, awaits: bool) -> Spend | None:
    """A call of a task that spends; None if no budget counts it.

    Args:
        awaits: the caller can await that it is recorded.

    Raises:
        RuntimeError: it would hold up an event loop.
    """
    meters = []
    for each in outwards(task):
        run = run_of(each)
        if run.settings.graph.budgets:
            meters.append((run.calls.find_meter(), (run, each.of_node or each.name)))
    if not meters:
        return None
    if not awaits and not run_of(task).calls.can_wait():
        raise RuntimeError(
            f"node {task.name!r} spends of a budget in a coroutine: await runtime.aspend(...) or "
            "acall_model(...) there"
        )
    return Spend(task, meters, awaits=awaits)


