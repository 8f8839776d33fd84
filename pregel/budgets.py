"""What a thread or a call may spend: `Budget`. Values only; `drivers.spending` counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final, Literal

from .errors import InvalidGraphError, nearest, warn

UNITS: Final = ("usd", "tokens", "calls", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of what is spent: by models that `call_model` and `create_agent` call, and by
    `runtime.spend`. Nested graphs and `@task` calls draw on it, too.

    A call begins only while less than the limit is spent. What other calls under way will spend is
    estimated by the largest one since the run began or was resumed, so parallel branches overshoot
    by at most one call each. What is spent is stored before and after each call: a call whose
    outcome is unknown after a crash counts with that estimate.

    Args:
        usd: dollars, by `prices`, or as `runtime.spend(usd=...)` says.
        tokens: of input and output.
        calls: of models.
        seconds: that calls of models take, one after another or side by side.
        per: "thread" limits what the thread has spent in all its calls, a fork's until the fork
            included; "call" what one `invoke` spends; another name what all threads with the same
            value of `config["configurable"][name]` spend, of which the graph's store keeps the
            total. On a server with users "user" is who has signed in.
        node: limits only what tasks of this node spend.
        prices: dollars per million tokens of input and of output, by the name of the model. A model
            that is not in the table costs as much as its most expensive one, with a warning.
        on_empty: "stop" raises `BudgetExceededError`: the thread can be resumed with more. "ask"
            asks a question, whose answer is how much more of the unit may be spent. A function is
            given the model and returns the one to call instead, or None to stop.

    Raises:
        ValueError: no limit is given, one is negative, or `per` or `on_empty` is something else;
            `node`, or a function, with a name in `per`.

    >>> Budget(usd=2.0, calls=100).usd
    2.0
    """

    usd: float | None = None
    tokens: float | None = None
    calls: float | None = None
    seconds: float | None = None
    per: str = "thread"
    node: str | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    on_empty: Literal["stop", "ask"] | Callable[[Any], Any] = "stop"

    def __post_init__(self) -> None:
        if not self.limits:
            raise ValueError(f"a Budget must limit one of {', '.join(UNITS)}, got none of them")
        for unit, limit in self.limits.items():
            if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
                raise ValueError(f"Budget({unit}=...) must be a number >= 0, got {limit!r}")
        if not isinstance(self.per, str) or not self.per:
            raise ValueError(
                "Budget(per=...) must be 'thread', 'call', or the name of a value in "
                f"config['configurable'], got {self.per!r}"
            )
        if self.on_empty not in ("stop", "ask") and not callable(self.on_empty):
            raise ValueError(
                f"Budget(on_empty=...) must be 'stop', 'ask' or a function, got {self.on_empty!r}"
            )

        if not isinstance(self.prices, Mapping):
            raise ValueError(
                "Budget(prices=...) must be a dict of a pair of dollars for each model, got "
                f"{self.prices!r}"
            )
        for model, price in self.prices.items():
            if (
                not isinstance(price, Sequence)
                or len(price) != 2
                or not all(isinstance(each, (int, float)) for each in price)
            ):
                raise ValueError(
                    "Budget(prices=...) must be a pair of dollars for each model, got "
                    f"{price!r} for {model!r}"
                )
        if self.is_shared and (self.node is not None or callable(self.on_empty)):
            raise ValueError(
                f"Budget(per={self.per!r}) counts across threads, so it takes no node= and no "
                "function as on_empty="
            )

    @property
    def is_shared(self) -> bool:
        """Whether threads share it."""
        return self.per not in ("thread", "call")

    def unit_of(self, unit: str) -> str:
        """Return the name in a total of what counts for this budget."""
        return unit if self.node is None else f"{unit} of {self.node}"

    @property
    def limits(self) -> dict[str, float]:
        """What is limited, by unit."""
        given = {unit: getattr(self, unit) for unit in UNITS}
        return {unit: limit for unit, limit in given.items() if limit is not None}

    def price(self, model: str, tokens: tuple[float, float]) -> float:
        """Return the dollars that a call costs; 0 without a table.

        Args:
            tokens: of input and of output.
        """
        if not self.prices and self.usd is not None and any(tokens):
            warn(
                f"Budget(usd={self.usd!r}) has no prices, so model {model!r} costs no dollars: "
                "Budget(usd=..., prices={name: (input, output)})"
            )
        if self.prices and model not in self.prices:
            warn(
                f"model {model!r} has no price in Budget(prices=...): it counts as the most "
                f"expensive of {', '.join(map(repr, self.prices))}"
            )
        return find_price(self.prices, model, tokens)


def find_price(
    prices: Mapping[str, tuple[float, float]], model: str, tokens: tuple[float, float]
) -> float:
    """Return the dollars that a call costs, by `Budget.prices`: of a model that is not in the table
    as much as its most expensive one."""
    known = [prices[model]] if model in prices else prices.values()
    costs = (one * tokens[0] + other * tokens[1] for one, other in known)
    return max(costs, default=0.0) / 1_000_000


def read_budgets(
    given: Budget | Sequence[Budget] | None, nodes: Collection[str]
) -> tuple[Budget, ...]:
    """Return what was given as `budget=` as a tuple.

    Args:
        nodes: those of the graph.

    Raises:
        InvalidGraphError: it limits a node that does not exist.
        TypeError: it is no `Budget`, nor several.
    """
    found = () if given is None else (given,) if isinstance(given, Budget) else given
    if not isinstance(found, Sequence) or not all(isinstance(each, Budget) for each in found):
        raise TypeError(f"budget must be a Budget or a list of them, got {given!r}")
    for node in (each.node for each in found):
        if node is not None and node not in nodes:
            raise InvalidGraphError(
                f"a Budget names the unknown node {node!r}; {nearest(node, nodes)}"
            )
    return tuple(found)


def read_call_budgets(
    given: Budget | Sequence[Budget], nodes: Collection[str]
) -> tuple[Budget, ...]:
    """Return what a call was given as `budget=`: it limits what the call spends. Arguments and
    errors are those of `read_budgets`."""
    found = read_budgets(given, nodes)
    return tuple(each if each.is_shared else replace(each, per="call") for each in found)


def read_amounts(**given: Any) -> dict[str, float]:
    """Return what `runtime.spend` was given.

    Raises:
        ValueError: one is no number, or one that would leave a budget without a limit.
    """
    for unit, amount in given.items():
        if not hasattr(amount, "__float__") or not 0 <= amount < inf:
            raise ValueError(f"runtime.spend({unit}=...) must be a number >= 0, got {amount!r}")
    return {unit: each if isinstance(each, int) else float(each) for unit, each in given.items()}


EVENTS: Final = "events"
"""In a total, in place of a unit: how often something was reserved or settled."""


def later(old: Mapping[str, float], new: Mapping[str, float]) -> Mapping[str, float]:
    """Return the later of two totals of a thread. Tasks that end side by side each write one."""
    return new if new.get(EVENTS, 0) >= old.get(EVENTS, 0) else old


def is_record(value: Any) -> bool:
    """Whether a value is a record of what was reserved or settled."""
    return isinstance(value, dict) and isinstance(value.get(EVENTS), int)


def rename_node(total: Mapping[str, float], old: str, new: str) -> dict[str, float]:
    """Return a total after a node was renamed.

    >>> rename_node({"usd of ask": 2, "more usd of ask per call": 1, "usd of asked": 3}, "ask", "b")
    {'usd of b': 2, 'more usd of b per call': 1, 'usd of asked': 3}
    """

    def rename(name: str) -> str:
        unit, _, node = name.partition(" of ")
        is_old = node.removesuffix(" per call") == old
        return f"{unit} of {new}{node.removeprefix(old)}" if is_old else name

    return {rename(name): amount for name, amount in total.items()}


def add(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of amounts, by unit."""
    total: dict[str, float] = {}
    for each in amounts:
        for unit, amount in each.items():
            total[unit] = total.get(unit, 0) + amount
    return total
