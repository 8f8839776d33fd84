"""Undoing what a thread has done: `undo` of a graph, `raise Undo`, `on_failure="undo"`.

The records of what can be undone (see `pregel.undo`) are found on the way from the head of the
thread back to a checkpoint, and put in the order of supersteps and of what each task has started
(`TaskPlace`): clocks step back. An edit on top of the head then makes one hidden node due,
`__undo__`, with the list of them. It runs as any node does, in a variant of the graph that has it:
each undo function is an effect of its task, so a crash, a retry or a question repeats none. In the
end a copy of the checkpoint becomes the head. Until then all other calls find `UNDOING` in the
head's metadata.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from ...channels.base import MISSING, check_kind
from ...checkpoint.base import (
    OF_TASK,
    RETURN,
    UNDER_WAY,
    UNDOING,
    UNDONE,
    CheckpointTuple,
    address,
    coordinates,
)
from ...checkpoint.errors import CheckpointConflictError
from ..errors import ThreadUndoingError, Undo, UndoneSignal
from ..names import TASKS, UNDO
from ..policies import RetryPolicy
from ..program.node import PregelNode
from ..program.program import CompiledNode, Program, ReaderPool
from ..run.effects import Effects
from ..run.run import Run
from ..run.stream import show_pause
from ..run.update_state import copy_cleared, cut, keep_spent, load_to_edit
from ..running import ONCE, RUNNING
from ..schedule.slots import find_origin, find_under_way
from ..steps import Waits, arun_steps, run_steps
from ..task.ids import effect_id
from ..task.interrupts import decision_model, interrupt
from ..task.outcome import wait_before_retry
from ..types import GraphOutput, Send
from ..undo import DECLARED, record_keys
from .waits import WAITS

Steps = Generator[Any, Any, Any]
Entry = dict[str, Any]
_PAGE: Final = 16
"""How many checkpoints are read at first; then twice as many each time."""
_RETRY: Final = (RetryPolicy(),)
"""Where neither the `@task` nor the node whose call is undone has a policy."""


# -- the whole of it -------------------------------------------------------------------------------


def undo(
    app: Any,
    config: Any,
    to: Any,
    reason: str,
    waits: Waits,
    given: Any = None,
    refused: ThreadUndoingError | None = None,
) -> Steps:
    """Undo, or continue to; return the thread's state. See `undo` of a graph.

    Args:
        given: an answer to what the undo asks.
        refused: a call that may only continue was refused with this error.
    """
    saver, where = app._thread(config)
    thread_id, _, checkpoint_id = coordinates(where)
    thread = address(thread_id, "")
    head = yield waits.ask(saver, "get_tuple", thread)
    if head is None:
        raise ValueError(f"thread {thread_id!r} has no checkpoint, so there is nothing to undo")
    # The graph with the node that undoes.
    mine = app.copy({
        "program": program_with_undo(app.program),
        "executor": None,
        "on_failure": None,
        "interrupt_before": (),
        "interrupt_after": (),
    })  # fmt: skip
    newest, done = head.checkpoint["id"], head.metadata.get(UNDONE)
    # Else it would undo what has come since, or not what it names.
    if refused is not None and not (UNDOING in head.metadata and checkpoint_id in (None, newest)):
        raise refused
    target = _id_of(to)
    if UNDOING not in head.metadata:
        if done is not None and checkpoint_id is None and target in (None, done["to"]):
            return (yield waits.ask(app, "get_state", thread))  # it was undone before a crash
        tip = checkpoint_id or newest
        plan = yield from _make_plan(saver, thread_id, (tip, target), waits, _PAGE)
        run = mine._editing(thread)
        begin = _begin(run, plan.as_input(reason), newest)
        yield waits.ask(mine, "edit", run, begin)
    try:
        yield waits.ask(mine, "invoke", given, thread)
    except UndoneSignal as signal:
        back = address(thread_id, "", signal.plan["to"])
        run = mine._editing(back)
        yield waits.ask(mine, "edit", run, _end(run, signal))
    return (yield waits.ask(app, "get_state", thread))


def undo_after(app: Any, run: Run, call: Any, error: BaseException, waits: Waits) -> Steps:
    """Undo because of the error that ended a call; return what the call returns.

    Raises:
        BaseException: the error, if nothing is to be undone for it, or if it was a failure.
    """
    settings, given = run.settings, None
    around = settings.config.get("configurable", {})
    config = {"configurable": {k: v for k, v in around.items() if k != "checkpoint_id"}}
    reason = error.reason if isinstance(error, Undo) else repr(error)
    refused = error if isinstance(error, ThreadUndoingError) else None
    if refused is not None:
        config, given = {"configurable": around}, settings.given
        if given is not None and getattr(given, "resume", MISSING) is MISSING:
            raise error
    elif not isinstance(error, Undo):
        state = yield waits.ask(app, "get_state", config)
        if not any(task.error is not None for task in state.tasks):
            raise error  # no node has failed
    state = yield from undo(app, config, None, reason, waits, given, refused)
    if not isinstance(error, Undo | ThreadUndoingError):
        raise error
    values = state.values
    if isinstance(app.program.outputs, tuple) and isinstance(values, dict):
        values = {key: each for key, each in values.items() if key in app.program.output_set}
    if call.version == "v2":
        return GraphOutput(app.coerce_output(values, whole=False), state.interrupts)
    if state.interrupts:
        return {**values, **show_pause(list(state.interrupts), None)}
    return values


def _id_of(to: Any) -> str | None:
    """The id of a checkpoint that is named by a config, a snapshot or itself."""
    config = getattr(to, "config", to)
    if config is None or isinstance(config, str):
        return config
    check_kind("undo(to=...)", config, Mapping, "a config, a snapshot or the id of a checkpoint")
    found = config.get("configurable", {}).get("checkpoint_id")
    if found is None:
        raise ValueError(f"undo(to=...) must name a checkpoint, got a config without one: {to!r}")
    return str(found)


# -- what is to be undone --------------------------------------------------------------------------


def _add_late(plan: dict[str, Any], waits: Waits) -> Steps:
    """The plan, with what tasks at work have recorded after it was made, until the edit that began
    the undo stopped their run."""
    tip = plan["tip"]
    thread = RUNNING.get().run.thread
    # With schedule="ready" it stands beside the checkpoints at which they have started.
    back = plan["to"] if RUNNING.get().run.program.starts_ready else tip
    late = yield from _make_plan(thread.saver, thread.thread_id, (tip, back), waits, 2)
    beside = late.as_input("")["effects"]
    results = {entry["id"]: entry["result"] for entry in beside}
    known = {*plan["before"], *(entry["id"] for entry in plan["effects"])}
    return {
        **plan,
        "effects": [
            *(entry for entry in beside if entry["id"] not in known),
            *(
                {**entry, "result": entry["result"] or results.get(entry["id"], [])}
                for entry in plan["effects"]
            ),
        ],
    }


def _read_back(
    saver: Any, thread_id: str, way: tuple[str, str | None], waits: Waits, size: int
) -> Steps:
    """The checkpoints of the whole graph and of those inside, from the newest back to where an undo
    ends. What it undoes, has been undone before, or belongs to another branch lies there: whatever
    follows a checkpoint is stored after it."""
    found: dict[str, CheckpointTuple] = {}
    inside: list[CheckpointTuple] = []
    at: str | None = way[0]
    target = way[1]
    before = None
    while True:
        where = {"configurable": {"thread_id": thread_id}}
        page = yield waits.list(saver, where, before=before, limit=size)
        for each in page:
            if coordinates(each.config)[1]:
                inside.append(each)
            else:
                found[each.checkpoint["id"]] = each
        while at in found and not _ends_at(found[at], target):
            at = _parent_of(found[at])
        whole = at in found and found.keys() >= _find_begun(found[at]).keys()
        if whole or at is None or len(page) < size:
            return [*found.values()], inside
        before, size = page[-1].config, 2 * size


def _ends_at(found: CheckpointTuple, target: str | None) -> bool:
    if target is None:
        return found.metadata.get("source") == "input"
    return found.checkpoint["id"] == target


def _find_begun(found: CheckpointTuple) -> dict[str, dict[str, str]]:
    """By the checkpoint at which they have started the tasks that are under way in this one
    (schedule="ready"), each with its node. When the thread goes back to it they start anew."""
    begun: dict[str, dict[str, str]] = {}
    if UNDER_WAY in found.metadata:
        for slot, task in find_under_way(found.checkpoint).items():
            known = begun.setdefault(find_origin(found.checkpoint, slot), {})
            known |= dict.fromkeys(filter(None, (task["id"], task["handler"])), task["node"])
    return begun


def _make_plan(
    saver: Any, thread_id: str, way: tuple[str, str | None], waits: Waits, page: int
) -> Generator[Any, Any, _Plan]:
    """What is undone on a way back: where that begins, and where it ends."""
    tip, target = way
    found, inside = yield from _read_back(saver, thread_id, way, waits, page)
    plan = _Plan(thread_id, found, tip, target)
    plan.add_nested(inside)
    return plan


class _Plan:
    """What is undone between a checkpoint and one before it.

    Args:
        found: the checkpoints of the whole graph back to the target, the newest first.
        tip: where the way back begins.
        target: where it ends; None for the newest input on the way.
    """

    def __init__(
        self, thread_id: str, found: Sequence[CheckpointTuple], tip: str, target: str | None
    ) -> None:
        self._thread_id = thread_id
        self._tip = tip
        self._all = {each.checkpoint["id"]: each for each in reversed(found)}
        self._first: dict[str | None, str] = {}
        """The oldest child of each checkpoint."""
        for id, each in self._all.items():
            self._first.setdefault(_parent_of(each), id)
        ends: list[Any] = [each.metadata.get(UNDONE) or {} for each in found]
        self._before = {entry["id"] for each in ends for entry in each.get("effects", ())}
        self._way: dict[str, int] = {}
        """The ids of the checkpoints on the way, the oldest with the highest number."""
        self._owner: dict[str, str] = {}
        """Those of another branch, which this one shares → the tip of that branch."""
        self.entries: dict[str, tuple[Entry, int]] = {}
        self.clears = target is None
        self.to = self._walk(tip, target)
        self._begun = _find_begun(self._all[self.to])
        for id in {**self._way, **self._begun}:
            if id in self._all:
                self._add(self._all[id], id)

    def _walk(self, tip: str, target: str | None) -> str:
        at: str | None = tip
        owner = ""
        while at is not None and at in self._all:
            found = self._all[at]
            self._way[at] = len(self._way)
            if owner:
                self._owner[at] = owner
            if _ends_at(found, target):
                return at
            before = _parent_of(found)
            if before is not None and UNDONE not in found.metadata:
                owner = owner or self._find_owner(before, at)
            at = before
        if target is None:
            raise ValueError(
                f"the input of thread {self._thread_id!r} is not stored any more: name a "
                "checkpoint, undo(to=...)"
            )
        raise ValueError(
            f"checkpoint {target!r} of thread {self._thread_id!r} does not lie before checkpoint "
            f"{tip!r}: it is deleted, or of another branch. Name the end of that branch in the "
            "config, as its checkpoint_id"
        )

    def _find_owner(self, parent: str, child: str) -> str:
        """The end of the branch to which a checkpoint belongs, if not to that of its child."""
        end = self._first[parent]
        if end == child:
            return ""
        while end in self._first:
            end = self._first[end]
        return end

    def add_nested(self, found: Sequence[CheckpointTuple]) -> None:
        """Add what graphs inside have done."""
        for each in reversed(found):
            self._add(each, each.metadata.get("parents", {}).get("", ""))

    def _add(self, found: CheckpointTuple, id: str) -> None:
        tasks = {} if id in self._way else self._begun.get(id)
        if tasks is None:
            return
        pending = found.pending_writes or ()
        results = {record: value for record, name, value in pending if name == RETURN}
        for record, entry in results.items():
            if not isinstance(entry, dict) or not entry.get(UNDO) or record in self._before:
                continue
            if tasks and not _is_of(tasks, found, entry):
                continue
            task, key = entry.get("task", ""), entry.get("key", "")
            begun, not_done = record_keys(key, entry.get("number", 0))
            # Only what `UndoNote` has recorded: a result may hold anything.
            if record != effect_id(task, ONCE, begun):
                continue
            if effect_id(task, ONCE, not_done) in results:
                continue
            result = effect_id(task, ONCE, key)
            known = [results[result]] if result in results else []
            place = self._way.get(id, len(self._way))
            before = self.entries.get(record)
            if before is not None:  # an edit of the thread has taken it along
                known, place = known or before[0]["result"], max(place, before[1])
            self.entries[record] = {**entry, "id": record, "result": known}, place
            if id in self._owner:
                raise ValueError(
                    f"{entry['call']} was done before the fork that leads here, on the branch that "
                    f"ends with checkpoint {self._owner[id]!r}, which owns it: undo that branch, "
                    "with this checkpoint_id in the config, or go back only to the fork"
                )

    def as_input(self, reason: str) -> dict[str, Any]:
        """What the node that undoes is given.

        Raises:
            LookupError: a function is not there.
        """
        found = sorted(self.entries.values(), key=lambda each: (-each[1], each[0]["at"]))
        ordered = [entry for entry, _ in reversed(found)]
        for entry in ordered:
            find_undo(entry)
        return {
            "to": self.to,
            "clears": self.clears,
            "reason": reason,
            "effects": ordered,
            "tip": self._tip,
            "before": sorted(self._before),
        }


def _is_of(tasks: Mapping[str, str], found: CheckpointTuple, entry: Entry) -> bool:
    """Whether one of these tasks has made a call, which is recorded beside this checkpoint."""
    ns, made_by = coordinates(found.config)[1], found.metadata.get(OF_TASK, ())
    if ns:
        return any(id in ns or id in made_by for id in tasks)  # type: ignore[operator]
    in_a_call = len(entry["at"][0]) > 2
    return entry["task"] in tasks or (in_a_call and entry["node"][0] in tasks.values())


def find_undo(entry: Entry) -> Any:
    """The function that undoes a call.

    Raises:
        LookupError: it is not there.
    """
    function = DECLARED.get(entry[UNDO])
    if function is None:
        raise LookupError(
            f"{entry['call']} is undone by {entry[UNDO]!r}, which this process does not have: "
            "import the module that declares it with @effect"
        )
    return function


def _parent_of(found: CheckpointTuple) -> str | None:
    parent = found.parent_config
    return None if parent is None else str(parent["configurable"]["checkpoint_id"])


# -- the two edits ---------------------------------------------------------------------------------


def _begin(run: Run, plan: dict[str, Any], head: str) -> Effects:
    """Drop what is pending, and let the undo be due.

    Args:
        head: of the thread, when the plan was made.

    Raises:
        CheckpointConflictError: a run has moved the thread on, and may have done more.
    """
    found: Any = yield from load_to_edit(run)
    if (id := found.checkpoint["id"]) != head:
        raise CheckpointConflictError(run.thread.thread_id or "", "", head, id)
    machine = run.machine
    machine.apply_input([(TASKS, [Send(UNDO, plan)])], machine.plan(coerce=False))
    run.commits.describe(UNDOING, plan["reason"])
    yield from cut(run, "update", [])


def _end(run: Run, signal: UndoneSignal) -> Effects:
    """Go back to where the plan says, unless another process has: the thread may have gone on."""
    yield from load_to_edit(run)
    if run.position.head != signal.head:
        return
    keep_spent(run, signal.spent)
    plan = signal.plan
    run.commits.describe(
        UNDONE, {"to": plan["to"], "reason": plan["reason"], "effects": signal.effects}
    )
    yield from copy_cleared(run, clears=plan["clears"])


# -- the node --------------------------------------------------------------------------------------


def program_with_undo(program: Program) -> Program:
    """The program with the node that undoes."""
    known = program.variants.get(UNDO)
    if known is None:
        declared = PregelNode(channels=(), triggers=(), bound=(_UndoNode(program),))
        node = CompiledNode(UNDO, declared, ReaderPool({}).reader(()), ())
        known = replace(program, nodes={**program.nodes, UNDO: node}, variants={})
        program.variants[UNDO] = known
    return known


class _UndoNode:
    """The body of the node."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def invoke(self, plan: dict[str, Any], config: Any = None) -> Any:
        """Undo all, and end with `UndoneSignal`."""
        return run_steps(self._undo_all(plan, _call, WAITS))

    async def ainvoke(self, plan: dict[str, Any], config: Any = None) -> Any:
        """`invoke` for coroutines."""
        from .awaits import AWAITS

        return await arun_steps(self._undo_all(plan, _acall, AWAITS))

    def _undo_all(self, plan: dict[str, Any], call: Callable[..., Any], waits: Waits) -> Steps:
        effects = []
        if "tip" in plan:  # an earlier version stored none
            plan = yield from _add_late(plan, waits)
        for entry in plan["effects"]:
            retry = _find_retry(self._program, entry)
            outcome = yield from _undo_one(RUNNING.get(), entry, retry, call, waits)
            effects.append({
                "id": entry["id"], "call": entry["call"], "undo": entry[UNDO], "outcome": outcome,
            })  # fmt: skip
        run = RUNNING.get().run
        raise UndoneSignal(plan, effects, run.calls.find_meter().total, run.position.saved_id)


def _find_retry(program: Program, entry: Entry) -> Sequence[RetryPolicy]:
    """The retry policies of the `@task` or node whose call is undone."""
    declared = getattr(DECLARED.get(entry.get("effect") or ""), "__stategraph_effect__", None)
    if declared is not None and declared.retry:
        return tuple(declared.retry)
    *around, name = entry["node"]
    for key in around:
        child = program.nested.get(key)
        if child is None:  # a function runs that graph, and has not in this process
            return _RETRY
        program = child.program
    node = program.nodes.get(name)
    return _RETRY if node is None else node.policies.retry or _RETRY


def _call(function: Any, arguments: dict[str, Any]) -> Any:
    result = function(**arguments)
    if hasattr(result, "__await__"):
        result.close()
        raise TypeError(f"{function.__qualname__} is a coroutine function: await aundo(...)")
    return result


def _acall(function: Any, arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return function(**arguments)
    return asyncio.to_thread(function, **arguments)


def _undo_one(
    task: Any, entry: Entry, retry: Sequence[RetryPolicy], call: Callable[..., Any], waits: Waits
) -> Steps:
    """Undo one call: "undone", "not done" if it had not happened, or "done by hand"."""
    function = find_undo(entry)
    result: list[Any] | None = None
    for number in count(1):
        failed = task.begin_effect(ONCE, f"{entry['id']} failed {number}", awaits=True)
        failures: dict[int, int] = {}
        while not failed.known:
            try:
                if result is None:  # once: a question is asked once in an attempt
                    result = yield from _find_result(entry, call)
                if not result:
                    return "not done"
                arguments = {**entry["arguments"], "result": result[0]}
                yield call(function, _choose(function, arguments))
            except Exception as error:
                pause = wait_before_retry(retry, failures, error)
                yield failed.save(f"{error!r:.300}") if pause is None else waits.sleep(pause)
            else:
                return "undone"
        question = {
            "undo": entry[UNDO],
            "call": entry["call"],
            "question": f"undoing {entry['call']} failed: {failed.known[0]}. Call "
            f"{entry[UNDO]} again, or take it as undone?",
        }
        schema = decision_model("UndoDecision", "again", "done")
        answer = interrupt(question, key=f"{entry['id']} {number}", response_schema=schema)
        if answer.decision == "done":
            return "done by hand"
    raise AssertionError("unreachable")


def _find_result(entry: Entry, call: Callable[..., Any]) -> Steps:
    """What a call has returned, as a one-item list; empty if it has not happened."""
    if entry["result"]:
        return entry["result"]
    function = DECLARED.get(entry.get("effect") or "")
    declared = getattr(function, "__stategraph_effect__", None)
    if declared is not None and declared.probe is not None:
        happened = yield call(declared.probe, entry["arguments"])
        return [] if happened is None else [happened]
    keyed = declared is not None and declared.kind == "keyed"
    if keyed and entry.get("idempotency_key") is not None:
        # The same key: whether it had happened or not, it has happened once then.
        key = {"idempotency_key": entry["idempotency_key"]}
        return [(yield call(function, {**entry["arguments"], **key}))]
    question = {
        "effect": entry["call"],
        "question": f"{entry['call']} may have happened. If so, say what it returned and it is "
        "undone; else it is left",
    }
    schema = decision_model("UndoDecision", "done", "not done")
    answer = interrupt(question, key=f"{entry['id']} happened", response_schema=schema)
    return [answer.result] if answer.decision == "done" else []


def _choose(function: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for which a function has parameters."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}
