"""What a run spends of its budgets: reserved before a call, settled after it.

Each reservation has a record beside the checkpoint of its superstep, which is stored before the
call, and another of what it has spent, stored after it. The channel `__spent__` gets the total when
a task ends. So the total is that of the channel and of the records beside its checkpoint, whatever
is killed. Runs around a run count what it spends in the same way, each for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, NamedTuple

from ...checkpoint.base import RETURN
from ..budgets import EVENTS, UNITS, Budget, add
from ..errors import BudgetExceededError
from ..names import SPENT
from ..run.run import Run, run_of
from ..running import ONCE
from ..task.ids import effect_id
from ..task.interrupts import interrupt
from ..task.task import Task
from .side_effects import EffectRecord, record_of

Amounts = Mapping[str, float]
_MORE = "more "
"""Before a unit: what answers have added to its limits."""


class _Place(NamedTuple):
    """Stands for the task of a record that belongs to a checkpoint."""

    id: str
    name: str = "budget"


def _record_keys(number: int) -> tuple[str, str]:
    """The keys of the records of what a call has reserved, and of what it has spent. Records are
    not replaced: the first counts."""
    return f"\0budget\0{number}", f"\0budget\0{number} settled"


def read_spent(found: Any) -> dict[str, float]:
    """Return what a thread has spent, by unit.

    Args:
        found: its checkpoint, with what is recorded beside it; None for a new thread.
    """
    if found is None:
        return {}
    total = [found.checkpoint["channel_values"].get(SPENT) or {}]
    records = {id: value for id, name, value in found.pending_writes or () if name == RETURN}
    for number in count(1):
        keys = _record_keys(number)
        reserved, settled = (effect_id(found.checkpoint["id"], ONCE, key) for key in keys)
        if reserved not in records:
            break
        total.append(records.get(settled, records[reserved]))
    return {unit: amount for unit, amount in add(total).items() if unit in UNITS}


class Meter:
    """What one run has spent of its budgets.

    Attributes:
        total: what the thread has spent, reservations included, by unit.
    """

    def __init__(self, run: Run, results: dict[str, Any]) -> None:
        self._run, self._results = run, results
        self.budgets: tuple[Budget, ...] = run.settings.graph.budgets
        self._lock = threading.Lock()
        self._largest: dict[str, float] = {}
        self._numbers, self._place = count(1), run.position.saved_id
        stored = run.machine.channels[SPENT].get()
        self.total: dict[str, float] = add((stored, *self._find_recorded()))
        self._base = dict(self.total)

    def _find_recorded(self) -> Iterable[Amounts]:
        """What is recorded beside the checkpoint from which the run goes on. A fork does not count
        what the other branch spends."""
        position = self._run.position
        while position.at_head:
            number = next(self._numbers)
            reserved, settled = self._records(number)
            if not reserved.known:
                self._numbers = count(number)
                return
            yield {**(settled.known or reserved.known)[0], EVENTS: 2}

    def _records(self, number: int) -> tuple[EffectRecord, EffectRecord]:
        place: Any = _Place(self._run.position.saved_id or "")
        reserved, settled = (
            record_of(self._run, self._results, place, ONCE, key) for key in _record_keys(number)
        )
        return reserved, settled

    def reserve(self, task: Task, amounts: Amounts | None, *, swaps: bool) -> Reservation:
        """Count a call that is to begin.

        Args:
            amounts: what it will spend, if that is known; else it is estimated.
            swaps: `choose` has been asked, so budgets that name another model are not empty.

        Raises:
            BudgetExceededError: a budget is empty.
            GraphInterrupt: a person is asked for more.
        """
        waited: list[Any] = []
        while True:
            with self._lock:
                empty = self._find_empty(lambda each: not (swaps and callable(each.on_empty)))
                if empty is None:
                    given = {**self._largest, "calls": 1} if amounts is None else amounts
                    return self._note(given, waited)
            waited += self._ask_for_more(task, *empty)._waited

    def _note(self, amounts: Amounts, waited: list[Any]) -> Reservation:
        self.total = add((self.total, amounts, {EVENTS: 1}))
        if self._place != self._run.position.saved_id:
            self._numbers, self._place = count(1), self._run.position.saved_id
        return Reservation(self, self._records(next(self._numbers)), amounts, waited)

    def _ask_for_more(self, task: Task, budget: Budget, unit: str) -> Reservation:
        with self._lock:
            spent = self.spent(budget, unit)
            limit = self.limit(budget, unit)
            key = f"budget {unit} {limit:g}"
        if budget.on_empty != "ask" or task.find_answers() is None:
            raise BudgetExceededError(task.name, unit, spent, limit)
        question = {
            "budget": unit,
            "spent": spent,
            "limit": limit,
            "question": f"{spent:g} of {limit:g} {unit} are spent: how much more?",
        }
        more = interrupt(question, key=key, response_schema=float)
        if not more > 0:
            raise BudgetExceededError(task.name, unit, spent, limit)
        with self._lock:
            granted = self._note({_MORE + unit: more}, [])
        granted.save()
        return granted

    def spent(self, budget: Budget, unit: str) -> float:
        """Return what counts for a budget."""
        before = self._base.get(unit, 0) if budget.per == "call" else 0
        return self.total.get(unit, 0) - before

    def limit(self, budget: Budget, unit: str) -> float:
        """Return the limit of a budget, with what answers have added."""
        return budget.limits[unit] + self.total.get(_MORE + unit, 0)

    def _find_empty(self, counts: Callable[[Budget], bool]) -> tuple[Budget, str] | None:
        for budget in filter(counts, self.budgets):
            for unit in budget.limits:
                if self.spent(budget, unit) >= self.limit(budget, unit):
                    return budget, unit
        return None

    def choose(self, task: Task, model: Any) -> Any:
        """Return the model to call: another one if a budget is empty that names one."""
        for budget in self.budgets:
            with self._lock:
                empty = self._find_empty(lambda each, own=budget: each is own)  # type: ignore[misc]
            if empty is not None and callable(budget.on_empty):
                model = budget.on_empty(model)
                if model is None:
                    unit = empty[1]
                    raise BudgetExceededError(
                        task.name, unit, self.spent(budget, unit), self.limit(budget, unit)
                    )
        return model

    def settle(self, reserved: Amounts, amounts: Amounts) -> None:
        """Replace what was reserved by what was spent."""
        with self._lock:
            back = {unit: -amount for unit, amount in reserved.items()}
            self.total = add((self.total, amounts, back, {EVENTS: 1}))
            largest = self._largest
            self._largest = {
                unit: max(amounts.get(unit, 0), largest.get(unit, 0)) for unit in UNITS
            }


class Reservation:
    """What one call has reserved of the budgets of one run."""

    def __init__(
        self,
        meter: Meter,
        records: tuple[EffectRecord, EffectRecord],
        amounts: Amounts,
        waited: list[Any],
    ) -> None:
        self.meter = meter
        self._amounts, self._waited = amounts, waited
        self._reserved, self._settled = records

    def save(self) -> list[Any]:
        """Record it; return what is to be awaited."""
        self._waited.append(self._reserved.save(dict(self._amounts)))
        return [each for each in self._waited if each is not None]

    def settle(self, amounts: Amounts) -> Any:
        """Record what was spent; on an event loop, what is to be awaited."""
        self.meter.settle(self._amounts, amounts)
        return self._settled.save(dict(amounts))


class Spend:
    """One call that spends, by all the runs around it that have a budget."""

    def __init__(self, task: Task, meters: list[Meter]) -> None:
        self._task, self._meters = task, meters
        self._reserved: list[Reservation] = []

    def choose(self, model: Any) -> Any:
        """Return the model to call: see `Budget`.

        Raises:
            BudgetExceededError: a budget is empty.
        """
        for meter in self._meters:
            model = meter.choose(self._task, model)
        return model

    def reserve(self, amounts: Amounts | None = None, *, swaps: bool = True) -> Any:
        """Count the call before it begins; on an event loop, return what is to be awaited.

        Args:
            amounts, swaps: as in `Meter.reserve`.

        Raises:
            BudgetExceededError: a budget is empty.
        """
        try:
            for meter in self._meters:
                self._reserved.append(meter.reserve(self._task, amounts, swaps=swaps))
        except BaseException:
            for done in self._reserved:
                done.meter.settle(done._amounts, {})
            raise
        return _gather([waited for each in self._reserved for waited in each.save()])

    def settle(
        self, model: str = "", tokens: tuple[float, float] = (0, 0), seconds: float = 0.0
    ) -> Any:
        """Count what a call of a model has spent; on an event loop, return what is to be awaited.

        Args:
            tokens: of input and of output.
        """
        waited = []
        for each in self._reserved:
            usd = max((budget.price(model, tokens) for budget in each.meter.budgets), default=0.0)
            spent = {"usd": usd, "tokens": sum(tokens), "calls": 1, "seconds": seconds}
            waited.append(each.settle(spent))
        return _gather([each for each in waited if each is not None])


def _gather(waited: list[Any]) -> Any:
    """None, or what awaits each of them."""

    async def wait() -> None:
        for each in waited:
            await each

    return wait() if waited else None


def begin_spend(task: Task, *, awaits: bool) -> Spend | None:
    """A call of a task that spends; None if no budget counts it.

    Args:
        awaits: the caller can await that it is recorded.

    Raises:
        RuntimeError: it would hold up an event loop.
    """
    meters = []
    around: Task | None = task
    while around is not None:
        run = run_of(around)
        if run.settings.graph.budgets:
            meters.append(run.calls.find_meter())
        around = run.parent
    if not meters:
        return None
    if not awaits and not run_of(task).calls.can_wait():
        raise RuntimeError(
            f"node {task.name!r} spends of a budget in a coroutine: await runtime.aspend(...) or "
            "acall_model(...) there"
        )
    return Spend(task, meters)


