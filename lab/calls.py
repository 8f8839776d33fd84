"""Answers the calls of nodes that run in a trial from the record: `@task`s, tools, effects, models,
and sleeps. Nothing here runs a graph.

Theory of operation: `CallTape` stands between the tasks of a run and what starts their calls. The
record has results by the ids of calls, and an id is a hash of the task that made the call, the
function and its arguments. So a call is known if one of the recorded tasks has made it: those of
the same node and input are tried first. A request to a model has no record of its own. It is known
if its node is the same and was given the same; then the answer is among what the node wrote.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import takewhile
from sys import modules
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeAlias

from ..checkpoint.serde import Serializer
from ..checkpoint.serde.json_form import from_json, to_json
from ..pregel.drivers.futures import arguments_digest
from ..pregel.names import NS_END, NS_SEP, without_ids
from ..pregel.observer import Operation, TaskInfo
from ..pregel.policies import NodePolicies
from ..pregel.program.program import CompiledNode, NodeCall
from ..pregel.running import RUNNING, TRANSACTION, Transaction
from ..pregel.task.ids import call_kind, effect_id, numbered_call_id
from ..pregel.task.interrupts import interrupt
from ..pregel.task.observers import EngineObserver
from ..pregel.task.task import Task
from ..testing.comparing import hide_ids, rename_ids
from ..testing.recorder import error_of
from ..testing.recording import RecordedTask, Recording
from ..visualize.render.step_data import count_usage as count_told


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a node has made in a trial.

    Attributes:
        kind: "task": a `@task`; "tool": a tool of a `ToolNode`; "once", "transaction": an effect;
            "chat": a request to a model.
        name: of the `@task`, the tool or the model; the key of an effect.
        node: the path of the node.
        given: the arguments, as (args, kwargs); of "chat" the messages; None for "once".
        came: where its result came from: "record"; "again", if the record has the call less often;
            "live", "simulated", or "refused".
    """

    kind: Literal["task", "tool", "once", "transaction", "chat"]
    name: str
    node: str
    given: Any = field(repr=False)
    came: str = "record"


Policy: TypeAlias = Literal["refuse", "live"] | Callable[[Call], Any]
Policies: TypeAlias = Policy | Mapping[str, Policy]


def check_policies(given: Policies) -> None:
    """Refuse what is no policy.

    Raises:
        ValueError: it is none.
    """
    for policy in given.values() if isinstance(given, Mapping) else [given]:
        if policy not in ("refuse", "live") and not callable(policy):
            text = f'calls must be "refuse", "live", a function, or a dict of these, got {policy!r}'
            raise ValueError(text)


class Unrecorded(BaseException):
    """Something that does not run has no record. No error handler of a graph and no `except
    Exception` may take it for an error of a node.

    Args:
        text: what was asked for.
        node: the path of the node.
        what: "input" of a node that does not run; "call" of one that runs.
    """

    def __init__(self, text: str, node: str, what: str) -> None:
        super().__init__(text)
        self.node: str = node
        self.what: str = what


class CallTape(EngineObserver):
    """The calls of one trial.

    Args:
        policies: what becomes of calls that the record does not know: one for all, or by name, by
            kind, or for "*".
        changed: the paths of nodes that are not those that were recorded.
        free: the paths of nodes whose requests to models are not answered.
    """

    def __init__(
        self,
        recording: Recording,
        serde: Serializer,
        policies: Policies,
        changed: frozenset[str],
        free: frozenset[str],
    ) -> None:
        self._serde, self._changed, self._free = serde, changed, free
        self._policies = policies if isinstance(policies, Mapping) else {"*": policies}
        self._tasks = [each for run in recording.runs for each in run.tasks(left=True)]
        self._known = dict(recording.calls)
        for _, task in self._tasks:
            for number, answer in enumerate(find_answers(task.writes)):
                self._known[f"{task.id} chat {number}"] = {"result": answer}
        self._lock = Lock()
        self._used: set[str] = set()
        self._made: dict[str, tuple[Call, Mapping[str, Any] | None]] = {}
        self.calls: list[Call] = []

    def around_calls(self, open_calls: Callable[[Any], Any], run: Any) -> Any:
        """The calls of a run, answered."""
        return _AnsweredCalls(open_calls(run), self)

    def choose(
        self, known_as: str, call: Call, look: Callable[[], Iterator[str]]
    ) -> tuple[Call, Mapping[str, Any] | None]:
        """A call with its record, if there is one; the same each time that its task makes it.

        Args:
            look: gives the ids that the call can have in the record, the likeliest first.
        """
        with self._lock:
            if known_as in self._made:
                return self._made[known_as]
            ids = [id for id in look() if id in self._known]
            fresh = [id for id in ids if id not in self._used]
            policy = {"refuse": "refused", "live": "live"}.get(self._policy(call), "simulated")
            came = "record" if fresh else "again" if ids else policy
            found = (fresh or ids[-1:] or [""])[0]
            self._used.add(found)
            self._made[known_as] = replace(call, came=came), self._known.get(found)
            self.calls.append(self._made[known_as][0])
            return self._made[known_as]

    def _policy(self, call: Call) -> Any:
        names = (call.name, call.kind, "*")
        return next((self._policies[name] for name in names if name in self._policies), "refuse")

    def answer(self, call: Call, known: Mapping[str, Any] | None, call_id: str = "") -> Any:
        """What a call returns that is not made; in its task.

        Raises:
            Unrecorded: it is refused.
            Exception: what the call has raised.
        """
        if known is None:
            if call.came == "refused":
                given = "" if call.given is None else f" with {call.given!r:.200}"
                raise Unrecorded(f"{call.kind} {call.name!r}{given}", call.node, "call")
            return self._policy(call)(call)
        for question in known.get("asks", ()):
            interrupt(from_json(question, self._serde))
        if "error" in known:
            raise error_of(known["error"])
        text = json.dumps(known["result"])
        if call_id:  # the model has given the call another id than then
            for then in _ids_of_calls(known["result"]):
                text = text.replace(json.dumps(then), json.dumps(call_id))
        return from_json(json.loads(text), self._serde)

    def form(self, value: Any) -> Any:
        """A value in its form of JSON; None if it has none."""
        try:
            return to_json(value, self._serde)
        except Exception:
            return None

    def path_of(self, task: Task) -> str:
        """The path of a task's node, as in a recording."""
        levels = [*without_ids(task.run.ns).split(NS_SEP), task.name]
        return NS_END.join(level.split(NS_END)[0] for level in levels if level)

    def recorded(self, task: Task) -> tuple[list[RecordedTask], list[RecordedTask]]:
        """The recorded tasks of the same node: those with the same input, and the others."""
        path, given = self.path_of(task), hide_ids(self.form(task.input))
        same: list[RecordedTask] = []
        others: list[RecordedTask] = []
        for name, each in self._tasks:
            if name == path:
                (same if hide_ids(each.input) == given else others).append(each)
        return same, others

    # -- models ------------------------------------------------------------------------------------

    def around_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Any]
    ) -> Any:
        """Answer a request to a model."""
        answer = self._chat(task, operation)
        return call() if answer is None else answer[0]

    async def aaround_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """`around_operation` for coroutines."""
        answer = self._chat(task, operation)
        return await call() if answer is None else answer[0]

    def _chat(self, info: TaskInfo, operation: Operation) -> tuple[Any] | None:
        """The answer to a request; None if the model is asked.

        Raises:
            Unrecorded: there is none. After an `Exception` of an observer the engine would ask the
                model.
        """
        task: Task = RUNNING.get()
        path = self.path_of(task)
        if operation.kind != "chat" or path in self._free:
            return None
        call = Call("chat", operation.name or "chat", path, operation.request)
        try:
            number = task.current.count("stategraph.lab: chat")

            def look() -> Iterator[str]:
                same = () if path in self._changed else self.recorded(task)[0]
                yield from (f"{each.id} chat {number}" for each in same)

            call, known = self.choose(f"{task.id} chat {number}", call, look)
            return None if call.came == "live" else (self.answer(call, known),)
        except Exception as error:
            raise Unrecorded(f"chat {call.name!r}: {error!r}", path, "call") from error


class _AnsweredCalls:
    """What starts the calls of a run, answered by a tape.

    Args:
        calls: the driver's own.

    Attributes:
        total: what a trial has spent; see `find_meter`.
    """

    def __init__(self, calls: Any, tape: CallTape) -> None:
        self._calls, self._tape = calls, tape
        self.total: dict[str, float] = {}

    def can_wait(self) -> bool:
        """As the driver's."""
        return bool(self._calls.can_wait())

    def find_meter(self) -> Any:
        """As the driver's: what counts nothing."""
        return self

    def start(self, parent: Task, node: CompiledNode, arguments: Any) -> Any:
        """Start a call with a function that gives its answer."""
        tape = self._tape
        owner: Any = getattr(node.source, "__self__", None)
        is_tool = owner is not None and _is_tool_node(owner)
        # There is no such tool: nothing is called.
        if is_tool and node.source.__func__ is type(owner)._refuse:
            return self._calls.start(parent, node, arguments)
        kind = call_kind(node, arguments_digest(node, arguments))
        number = (parent.current.counts or {}).get(kind, -1) + 1
        path = tape.path_of(parent)
        call = Call("tool" if is_tool else "task", node.name, path, arguments)

        def look() -> Iterator[str]:
            same, others = tape.recorded(parent)
            for each in [*same, *others, *(task for _, task in tape._tasks)]:
                for given in self._arguments_then(parent, each, arguments, is_tool=is_tool):
                    then = call_kind(node, arguments_digest(node, given))
                    ids = (numbered_call_id(each.id, then, n) for n in range(1 + len(tape._made)))
                    yield from takewhile(tape._known.__contains__, ids)

        call, known = tape.choose(f"{parent.id} {kind} {number}", call, look)
        if call.came != "live":
            call_id_now = arguments[0][0].get("id") or "" if is_tool else ""
            node = _with_body(node, lambda: tape.answer(call, known, call_id_now))
        return self._calls.start(parent, node, arguments)

    def _arguments_then(
        self, parent: Task, then: RecordedTask, arguments: Any, *, is_tool: bool
    ) -> Iterator[Any]:
        """The arguments as they would have been in a recorded task: with the random ids of its
        input."""
        yield arguments
        args, kwargs = arguments
        if is_tool:
            for asked in _tool_calls(then.input):
                if asked["function"] == args[0]["function"]:
                    yield ({**args[0], "id": asked["id"]}, *args[1:]), kwargs
            return
        form = self._tape.form([list(args), kwargs])
        renamed = rename_ids(form, self._tape.form(parent.input), then.input)
        if form is not None and renamed != form:
            args, kwargs = from_json(renamed, self._tape._serde)
            yield tuple(args), kwargs

    def begin_effect(self, task: Task, kind: str, key: str, *, awaits: bool) -> Any:
        """The record of an effect: what it returned."""
        if kind == TRANSACTION:
            return _AnsweredTransaction(self, task, key)
        call = Call("once", key, self._tape.path_of(task), None)
        call, known = self.find_effect(task, kind, call)
        if call.came == "live":
            return self._calls.begin_effect(task, kind, key, awaits=awaits)
        return _Known(self._tape.answer(call, known))

    def find_effect(
        self, task: Task, kind: str, call: Call
    ) -> tuple[Call, Mapping[str, Any] | None]:
        """An effect with its record: it is known by its node and its key."""

        def look() -> Iterator[str]:
            for some in self._tape.recorded(task):
                yield from (effect_id(each.id, kind, call.name) for each in some)

        return self._tape.choose(f"{task.id} {kind} {call.name}", call, look)

    def begin_spend(self, task: Task, *, awaits: bool) -> None:
        """Trials spend nothing of the budget of a thread."""

    def sleep(self, task: Task, request: Any, *, awaits: bool) -> Any:
        """A sleep that is over."""
        return iter(())


def _is_tool_node(owner: Any) -> bool:
    # Not imported: it needs a newer pydantic than the engine. Who has such a node has loaded it.
    loaded = modules.get(f"{__name__.rpartition('.lab')[0]}.prebuilt.tool_node")
    return loaded is not None and isinstance(owner, loaded.ToolNode)


class _Known:
    """An effect that has returned."""

    def __init__(self, result: Any) -> None:
        self.known = (result,)


class _AnsweredTransaction:
    """A transaction, answered."""

    result: Any = None

    def __init__(self, calls: _AnsweredCalls, task: Task, key: str) -> None:
        self._calls, self._task, self._key = calls, task, key

    def run(self, asked: Transaction) -> None:
        """Take its result."""
        tape = self._calls._tape
        given = asked.args, asked.kwargs
        call = Call("transaction", self._key, tape.path_of(self._task), given)
        call, known = self._calls.find_effect(self._task, TRANSACTION, call)
        if call.came == "live":
            raise ValueError(
                f"calls: transaction {self._key!r} cannot be live, since trials run in memory; "
                "give a function"
            )
        self.result = tape.answer(call, known)


def _with_body(node: CompiledNode, body: Callable[[], Any]) -> CompiledNode:
    """The node of a call that does something else, once, and here."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return body()

    async def acall(*args: Any, **kwargs: Any) -> Any:
        return body()

    twin = copy(node)
    twin.call = NodeCall(call, acall if node.call.coro else None)
    twin.policies, twin.cache, twin.executor = NodePolicies(), None, None
    twin.debug = twin.guarded = False
    return twin


def _walk(form: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a form of JSON, the outer ones first."""
    if isinstance(form, Mapping):
        yield form
        form = list(form.values())
    if isinstance(form, (list, tuple)):
        for each in form:
            yield from _walk(each)


def find_answers(form: Any) -> Iterator[Any]:
    """The answers of models in what a node wrote, in their order."""
    for each in _walk(form):
        if each.get("role") == "assistant" or "AIMessage" in str(each.get("$type", "")):
            yield each


class Usage(NamedTuple):
    """What models have used.

    Attributes:
        calls: how often they answered.
        tokens: of input and output, as far as messages tell.
        usd: dollars.
    """

    calls: int
    tokens: int
    usd: float


def count_usage(recording: Recording, prices: Mapping[str, tuple[float, float]]) -> Usage:
    """Count what the models used whose answers are in a recording.

    Args:
        prices: as of a `Budget`.
    """
    tasks = (task for run in recording.runs for _, task in run.tasks() if not task.steps)
    answers = [each for task in tasks for each in find_answers(task.writes)]
    used = count_told((each.get("value", each) for each in answers), prices)
    given, made, usd = used or (0, 0, 0.0)
    return Usage(len(answers), int(given + made), usd)


def _tool_calls(form: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in _walk(form) if "function" in each and "id" in each)


def _ids_of_calls(form: Any) -> Iterator[str]:
    found = (each.get("tool_call_id") for each in _walk(form))
    return (each for each in found if each)
