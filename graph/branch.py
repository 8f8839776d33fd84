"""A conditional edge: a router reads the state with its own node's fresh writes and says where to
go.

It runs inside its node's task, as the last of the node's writers.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..pregel.drivers.waits import WAITS
from ..pregel.errors import InvalidGraphError, InvalidRouteError, likely, nearest
from ..pregel.names import END, ROOT, START, TASKS
from ..pregel.program.callables import NodeBody
from ..pregel.program.program import Reader, ReaderPool
from ..pregel.program.results import advice
from ..pregel.program.writes import StateWriter, Writer, WriteScope
from ..pregel.steps import Steps, Waits, arun_steps, run_steps
from ..pregel.task.spans import Span
from ..pregel.task.task import Task
from ..pregel.types import Command, Send

Ends = dict[Any, str]


class BranchSpec(typing.NamedTuple):
    """A conditional edge as declared.

    Attributes:
        ends: router result → node name; None if the router may go anywhere.
        schema: the schema that the router's first parameter names, or None for its source's.
    """

    body: NodeBody
    ends: Ends | None
    schema: Any


def read_ends(
    path_map: Mapping[Any, str] | Iterable[str] | None, body: NodeBody, what: str
) -> Ends | None:
    """Where a router may go: as mapped, else as its `Literal` return annotation says, else
    anywhere. `what` names the map in errors.

    Raises:
        InvalidGraphError: the map is neither a dict nor names.
    """
    if path_map is None:
        return {name: name for name in literals(body.returns)} or None
    if isinstance(path_map, str) or not isinstance(path_map, Iterable):
        raise InvalidGraphError(
            f"{what} must be a dict or a collection of node names, got {path_map!r}"
        )
    ends: Ends = {}
    pairs = path_map.items() if isinstance(path_map, Mapping) else [(n, n) for n in path_map]
    for answer, name in pairs:
        if not isinstance(name, str):
            raise InvalidGraphError(
                f"{what} leads to {name!r}, but the name of a node must be a string"
            )
        ends[answer] = str.__str__(name)
    return ends or None


def literals(hint: Any) -> list[str]:
    """All strings of the Literals in an annotation: alone, in unions, in lists; [] if something
    else is possible."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return [arg for arg in args if isinstance(arg, str)]
    if origin not in _CONTAINERS:
        return []
    found: dict[str, None] = {}
    for arg in args:
        if arg is Ellipsis or arg is Send or typing.get_args(arg) == (Send,):
            continue
        names = literals(arg)
        if not names:
            return []
        found.update(dict.fromkeys(names))
    return list(found)


_CONTAINERS = (list, tuple, Sequence, typing.Union, types.UnionType)
"""Annotations that may hold the Literals of a router."""


def sends(hint: Any) -> typing.Literal["no", "some", "only"]:
    """Whether a router's return annotation speaks of `Send`s, and of nothing else."""
    if hint is Send:
        return "only"
    parts = [
        arg for arg in typing.get_args(hint) if arg is not Ellipsis and not isinstance(arg, str)
    ]
    if typing.get_origin(hint) is typing.Literal or not parts:
        return "no"
    found = {sends(part) for part in parts}
    return "some" if len(found) > 1 else found.pop()


def sends_anywhere(ends: Ends | None, hint: Any) -> bool:
    """Whether a router's `Send`s may go anywhere: all its declared ends are those that its
    `Literal` names."""
    return ends is not None and sends(hint) == "some" and set(ends) <= set(literals(hint))


class BranchWriter(Writer):
    """A conditional edge as it runs.

    Args:
        name: of the router, for error texts.
        spec: as declared.
        reads: the keys its router reads, and how they become what it gets.
        scope: the graph's nodes.
        passthrough: show the router what the node returned under keys the state doesn't have, below
            the state's own.
    """

    routes = True
    of_run = True  # it reads more than its node may

    def __init__(
        self,
        name: str,
        spec: BranchSpec,
        reads: tuple[Sequence[str], Callable[[dict[str, Any]], Any] | None],
        scope: WriteScope,
        passthrough: bool = False,
    ) -> None:
        self.name = name
        self.ends: Ends | None = spec.ends
        self.body: NodeBody = spec.body
        self.keys: Sequence[str] = reads[0]
        self.coerce: Callable[[dict[str, Any]], Any] | None = reads[1]
        self.passthrough: bool = passthrough and self.coerce is None and not scope.root
        self.root: bool = scope.root
        self.is_async: bool = spec.body.coro is not None
        self._goto = StateWriter(scope)
        self._direct = self._plain_answers(scope)
        self._inject = spec.body.inject or None
        self._reader: Reader | None = None

    def _plain_answers(self, scope: WriteScope) -> dict[str, str | None]:
        """The plain names a router may answer with → the trigger to write; None for END."""
        ends = self.ends
        if ends is None:
            ends = {**{node: node for node in scope.triggers}, END: END}
        known = {**scope.triggers, END: None}
        return {
            answer: known[node]
            for answer, node in ends.items()
            if isinstance(answer, str) and node in known
        }

    def bind(self, pool: ReaderPool) -> None:
        """Share the read of these keys with whoever else reads them."""
        self._reader = pool.reader(self.keys)

    def write(self, result: Any, task: Task) -> None:
        """Ask the router, and write what makes its choice run."""
        observing = task.run.observing
        if observing is None or not observing.sees_routers:
            self.follow(self.ask(self.state_of(result, task), task), task)
        else:
            run_steps(self._follow_observed(result, task, WAITS))

    async def awrite(self, result: Any, task: Task) -> None:
        """`write` for coroutines."""
        observing = task.run.observing
        if observing is None or not observing.sees_routers:
            self.follow(await self.aask(self.state_of(result, task), task), task)
        else:
            from ..pregel.drivers.awaits import AWAITS

            await arun_steps(self._follow_observed(result, task, AWAITS))

    def _follow_observed(self, result: Any, task: Task, waits: Waits) -> Steps[None]:
        """Ask the router inside the span of a listener, and tell observers its answer."""
        node, observing = task.node, task.run.observing
        state, span = self.state_of(result, task), Span()
        if observing.listener is not None:
            # Its number among what the task calls: the node itself is number 1.
            place = node.writers.index(self) + (1 if node.call.inline else 2)
            span = observing.listener.router_span(task, place, self.body.source, state)
        yield waits.ask(span, "enter")
        try:
            choice = yield waits.ask(self, "ask", state, task)
        except GeneratorExit:
            raise  # closed: nobody waits for the task
        except BaseException as error:
            yield waits.ask(span, "leave", error)
            raise
        span.returned(choice)
        yield waits.ask(span, "leave", None)
        before = len(task.writes)
        self.follow(choice, task)
        observing.see_route(task, self.body.source, choice, task.writes[before:])

    def ask(self, state: Any, task: Task) -> Any:
        """The router's answer, in a sync run.

        Raises:
            TypeError: the router is async.
        """
        call = self.body.sync
        if call is None:
            raise TypeError(
                f"router {self.name!r} is async: run the graph with ainvoke, astream or abatch"
            )
        if self._inject is None:
            return call(state)
        return call(state, **{name: get(task) for name, get in self._inject})

    async def aask(self, state: Any, task: Task) -> Any:
        """The router's answer, in an async run."""
        if self.body.coro is None:
            return self.ask(state, task)
        return await self.body.coro(state, **{n: get(task) for n, get in self._inject or ()})

    def state_of(self, result: Any, task: Task) -> Any:
        """What the router sees: the frozen state with this task's own writes applied."""
        if task.node.cache is not None:
            task.end_result(result)
        values = task.preview(self._reader)  # type: ignore[arg-type]
        if self.root:
            return values.get(ROOT)
        if self.passthrough and isinstance(result, dict):
            values = {**result, **values}
        return values if self.coerce is None else self.coerce(values)

    def follow(self, choice: Any, task: Task) -> None:
        """Write each destination of a router's answer.

        Raises:
            InvalidRouteError: it names none, or one that does not exist.
        """
        if choice.__class__ is str and choice in self._direct:  # by far the most answers
            trigger = self._direct[choice]
            if trigger is not None:
                task.writes.append((trigger, None))
            return
        sends: list[Send] = []
        for step in choice if isinstance(choice, (list, tuple)) else (choice,):
            if isinstance(step, Send):
                sends.append(self._goto.check_send(step, task))
                continue
            step = self._map_answer(step, task)
            if step != END:
                self._goto.goto(step, task)
        if sends:
            task.writes.append((TASKS, sends))  # one write, however many there are

    def _map_answer(self, step: Any, task: Task) -> str:
        if self.ends is not None:
            try:
                step = self.ends[step]
            except (KeyError, TypeError):  # TypeError: it cannot be a key at all, such as a list
                allowed = ", ".join(repr(key) for key in self.ends)
                close = likely(step, self.ends)
                raise InvalidRouteError(
                    f"node {task.name!r}: the result of its router {self.name!r} must be a key of "
                    f"its path map ({allowed}), got {step!r}{close or _advice(step)}"
                ) from None
        if step is None or step == START or not isinstance(step, str):
            raise InvalidRouteError(
                f"node {task.name!r}: its router {self.name!r} must return a node name, END, "
                f"a Send or a list of these, got {step!r}; "
                f"{nearest(step, self._goto.scope.triggers)}{_advice(step)}"
            )
        return step


def _advice(answer: Any) -> str:
    """What a router probably meant by a result that is not a destination."""
    if isinstance(answer, Command):
        return "; return a Command from the node, not from its router"
    if isinstance(answer, str):
        return ""
    if answer is None:
        return "; is a return missing? END ends the run"
    return advice(answer)
