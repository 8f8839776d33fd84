"""What an attempt leaves on its task, whichever driver ran it; and what of it may be reused."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Final

from ...checkpoint.base import RETURN
from ...checkpoint.keys import canonical_key
from ..clock import CLOCK
from ..errors import (
    DrainSignal,
    GraphBubbleUp,
    GraphDrained,
    GraphInterrupt,
    InPlaceEditError,
    InvalidUpdateError,
    NodeCancelledError,
    ParentCommand,
    StepTimeoutError,
    likely,
    warn,
)
from ..names import TASKS
from ..program.program import NodeCache
from ..program.writes import Pair, check_send, list_sends
from ..types import Command, Interrupt, RetryPolicy, TimeoutPolicy
from .attempt_state import Pause, earliest
from .deadline import Deadline
from .interrupts import (
    TASK,
    at_place,
    has_place,
    is_cancellation,
    place_of,
    questions_of,
    task_digits,
)
from .task import Task, in_path_order

FullKey = tuple[tuple[str, ...], str]


def accept_command(task: Task, signal: ParentCommand) -> Command[Any]:
    """The command that a nested graph sent to its parent, which this task's graph is; a mid-task
    call hands it on to its caller."""
    if task.path[-1] is True:
        raise signal
    return Command(update=signal.command.update, goto=signal.command.goto)


def failure_of(task: Task, error: BaseException) -> BaseException:
    """An asyncio.CancelledError that nobody asked for is the node's own failure."""
    if isinstance(error, Exception) or not is_cancellation(error):
        return error
    mine = NodeCancelledError(task.name)
    mine.__cause__ = error
    return mine


def end_with_signal(task: Task, signal: GraphBubbleUp) -> None:
    """Note that a task pauses, or hands over to the graph around it."""
    # A pause is no result: the node runs again from its start, and its writes with it.
    task.discard()
    if isinstance(signal, GraphDrained):  # raised by hand, or in another run that the node made
        signal = DrainSignal(signal.reason)
    if not isinstance(signal, GraphInterrupt):
        task.fail(signal)
        return
    current = task.current
    # By the order of their calls: side by side they are noted in the order in which threads come to
    # them.
    noted = sorted(current.questions, key=lambda note: note[0])
    asked = (*(question for _, question in noted), *questions_of(task, signal))
    once = {question.id: question for question in asked}
    if task.run.ledger:  # it may have asked before
        _keep_unreached(task, once)
    rejected = signal.error or current.rejected_inside
    wake_at = earliest((current.wake_at, signal.wake_at))
    task.pause_with(Pause(tuple(once.values()), signal.by_hand, rejected, wake_at))


def _keep_unreached(task: Task, asked: dict[str, Interrupt]) -> None:
    """Keep what is known of questions that a task had asked before and that its attempt, which
    pauses, has not reached: their answers, and those that are open.

    Args:
        asked: the questions with which the attempt ends; those that are open are added.
    """
    stored = task.run.ledger.of(task.id)
    if not (stored.interrupts or stored.answers):
        return
    task.run.ledger.keep(task, asked)
    answers, current, own = task.known_answers(), task.current, task_digits(task.ns)
    shown = {question.id: question for question in stored.interrupts}
    new = [id for id in asked if id not in shown and has_place(id)]
    renamed = {id[TASK.stop :] for id in asked}  # a node with a new name asks in other digits
    unreached = [id for id in dict.fromkeys((*answers, *shown)) if id not in current.reached]
    for id in unreached:
        replaced = at_place(new, id)
        if id in answers:
            if replaced and not stored.edited:
                _tell_changed(task, shown.get(id), asked[replaced[0]])
        # After an edit only what the node asks now is open. Calls and graphs inside say themselves
        # what they ask.
        elif not (id in asked or replaced or stored.edited or stored.raised) and (
            id[TASK] == own or not (current.calls or current.graphs or id[TASK.stop :] in renamed)
        ):
            asked[id] = shown[id]


def _tell_changed(task: Task, before: Interrupt | None, now: Interrupt) -> None:
    """Warn of an answer that is not delivered, since the node asks something else at its place."""
    change = "" if before is None else f"from {before.value!r:.200} "
    warn(
        f"node {task.name!r}: question {place_of(now.id) + 1} of the task has changed since it was "
        f"answered, {change}to {now.value!r:.200}. The answer is kept for the question that was "
        "answered; the one that is asked now is open. If the text of a question may change from "
        "run to run, give it a name: interrupt(value, key=...)"
    )


def warn_of_unasked(task: Task) -> None:
    """Warn of questions that a task had shown, and of which it has not spoken again when it
    ends."""
    stored = task.run.ledger.of(task.id)
    if not (stored.interrupts or stored.answers) or stored.edited or stored.raised:
        return
    if task.node.call.inline:  # an update stands for the node: its body has not run
        return
    reached, own = task.current.reached, task_digits(task.ns)
    shown = {question.id: repr(question.value) for question in stored.interrupts}
    for id in dict.fromkeys((*shown, *stored.answers)):
        if id[TASK] == own and id not in reached and not at_place(reached, id):
            what = shown.get(id, f"the question with id {id!r}")
            warn(
                f"node {task.name!r} has ended without asking {what:.200} again: that question is "
                "closed, and an answer to it is not used"
            )


def warn_of_lost_questions(task: Task) -> None:
    """Warn of a node that has asked, and returned all the same: it caught the signal that was to
    pause it."""
    questions = task.current.questions
    if questions:
        warn(
            f"node {task.name!r} asked {questions[0][1].value!r:.200} but returned normally, so "
            "the question is dropped: something in it catches BaseException (a bare `except:`, "
            "gather(return_exceptions=True)); catch Exception, or raise GraphInterrupt again"
        )


def refuse_unawaited(task: Task) -> None:
    """Refuse that a node has ended without awaiting what it called.

    Raises:
        RuntimeError: it has.
    """
    for name, coroutine in task.current.coroutines:
        if getcoroutinestate(coroutine) == CORO_CREATED:
            coroutine.close()  # or Python would warn as well
            raise RuntimeError(
                f"node {task.name!r} called runtime.{name}(...) without await, so it was not done"
            )


def end_with_error(task: Task, error: BaseException) -> None:
    """Note that a task failed, and where."""
    if isinstance(error, StopIteration):  # the loop is a generator, and none may raise this
        stop, error = error, RuntimeError(f"node {task.name!r} raised StopIteration")
        error.__cause__ = stop
    run = task.run
    if isinstance(error, (KeyboardInterrupt, SystemExit)):  # the caller wants to leave
        run.cancel()
    thread = "" if run.thread.thread_id is None else f" of thread {run.thread.thread_id!r}"
    step = run.machine.step
    where = f"task with name {task.name!r} and id {task.id!r}, in step {step}{thread}"
    # A foreign `__str__` or `__notes__` that fails must not replace the error.
    with suppress(Exception):
        for advice in _find_advice(task, error):
            error.add_note(advice)
    with suppress(Exception):
        error.add_note(f"During {where}")
    task.fail(error)


MOST_FRAMES: Final = 20
"""How many lines of a traceback are kept, the last ones."""


def traceback_of(error: BaseException) -> str:
    """Where an error was raised, as Python prints it: file, line, function and source text of the
    user's frames, and of the last one. Empty if it was raised nowhere."""
    import traceback  # deferred: few tasks fail

    mine = __name__.partition(".")[0]
    frames = [*traceback.walk_tb(error.__traceback__)]
    kept = []
    for frame, line in frames:
        module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
        top = module.partition(".")[0]
        foreign = top == mine or top in sys.stdlib_module_names or "site-packages" in file
        if not foreign or (frame is frames[-1][0] and top != mine):
            kept.append((frame, line))
    shown = traceback.StackSummary.extract(iter(kept[-MOST_FRAMES:]))
    return "".join(shown.format())


def _find_advice(task: Task, error: BaseException) -> Iterator[str]:
    """What is probably missing where a node stumbles over a key or over None."""
    run, given = task.run, task.input
    keys = given if task.send is not None and isinstance(given, dict) else run.program.scope.keys
    name = f"{type(given).__name__!r}"
    if isinstance(error, TypeError) and str(error) == f"{name} object is not subscriptable":
        if found := [key for key in keys if hasattr(given, key)]:
            yield f"The node's input is of type {name}: read its attributes, such as .{found[0]}"
    elif isinstance(error, AttributeError) and error.obj is given and error.name in keys:
        yield f"The node's input is of type {name}: read [{error.name!r}]"
    # A node that reads a key without a value sees a plain KeyError, as from any dict.
    if isinstance(error, KeyError) and isinstance(given, dict) and error.args:
        key = error.args[0]
        if key in given:
            return
        if task.send is not None:
            sent = ", ".join(map(repr, given)) or "none"
            yield f"The input of this task is what its Send carries, which has the keys {sent}"
        elif key in run.program.channels:
            yield (
                f"State key {key!r} has no value yet: nothing has written it, and it has no reducer"
            )
        elif meant := likely(key, run.program.scope.keys):
            yield f"The state has no key {key!r}{meant}"
    if "NoneType" not in str(error):
        return
    schema, settings = run.settings.graph.context_schema, run.settings
    if schema is not None and settings.context is None:
        name = getattr(schema, "__name__", schema)
        yield f"runtime.context is None: the call passed no context= (context_schema: {name})"
    if settings.store is None and getattr(error, "name", None) in _STORE_METHODS:
        yield "The graph has no store: compile(store=...)"


_STORE_METHODS: Final = frozenset(
    prefix + name for name in ("get", "put", "search", "delete", "batch") for prefix in ("", "a")
)


# -- inputs that must not be changed ---------------------------------------------------------------


def snapshot_input(task: Task) -> dict[str, Any]:
    """What a task's input looks like, key by key; what cannot be encoded is left out."""
    value = task.input
    fields = value
    if not isinstance(value, dict):
        fields = getattr(value, "__dict__", None) or {"input": value}
    image = {}
    # Key by key, so that one value which cannot be encoded does not hide an edit of the others.
    for key, part in fields.items():
        try:
            image[str(key)] = task.run.settings.serde.dumps(part)
        except Exception:  # a client or a lock: no state to keep an eye on
            continue
    return image


def check_untouched(task: Task, before: dict[str, Any]) -> None:
    """Compare a task's input with what it looked like.

    Raises:
        InPlaceEditError: the node changed it; names the keys.
    """
    after = snapshot_input(task)
    changed = [key for key in before if key in after and after[key] != before[key]]
    if changed:
        raise InPlaceEditError(task.name, changed)


# -- attempts that may be abandoned ----------------------------------------------------------------


def timeout_of(task: Task) -> TimeoutPolicy | None:
    """The time limits of a task: its Send's, else its node's."""
    own = None if task.send is None else task.send.timeout
    return own or task.node.policies.timeout


class StepLimit:
    """The limit on a whole superstep: its tasks run as detached copies, and what a copy has done
    counts if it ends in time.

    Args:
        seconds: how long a superstep may take, error handlers included.
    """

    __slots__ = ("_deadline", "_due", "_open", "_seconds", "_step")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._step: int | None = None
        self._due = 0.0
        self._open: dict[Task, Task] = {}
        self._deadline = Deadline()

    def detach(self, tasks: Sequence[Task]) -> list[Task]:
        """Copies of these tasks, to run in their places."""
        run = tasks[0].run
        # Once for each superstep, so that error handlers have what is left of the same limit.
        if run.machine.step != self._step:
            self._step, self._due = run.machine.step, CLOCK.monotonic() + self._seconds
        self._deadline = Deadline(above=run.deadline)
        self._open = {task.detach(self._deadline): task for task in tasks}
        return list(self._open)

    def remaining(self) -> float:
        """Seconds until the limit, never below zero."""
        return max(self._due - CLOCK.monotonic(), 0.0)

    def admit(self, copy: Task) -> Task:
        """The task whose copy has ended, with what the copy has done."""
        task = self._open.pop(copy)
        task.take_outcome(copy)
        return task

    def expire(self) -> StepTimeoutError:
        """Abandon what has not ended; the error to raise."""
        self._deadline.abandon()
        late = in_path_order([*self._open.values()])
        return StepTimeoutError([task.name for task in late], self._seconds)


# -- results that may be reused --------------------------------------------------------------------


def cache_key(task: Task) -> FullKey | None:
    """Where the result of a task is cached; None if its node has no policy or its graph no cache.

    Raises:
        TypeError: the input has no canonical form; says to give a `key_func`.
    """
    cached = task.node.cache
    if cached is None:
        return None
    if task.run.settings.cache is None:
        warn(
            f"node {task.name!r} has a cache_policy, but the graph has no cache: "
            "compile(cache=InMemoryCache())"
        )
        return None
    # What a graph with a memory returns depends on that memory, too.
    memory = "" if task.send is None or task.send.key is None else f"\x1f{task.send.key}"
    if cached.policy.key_func is None:
        key: Any = canonical_key(task.input)
        _watch_keys(task, cached, key)
    else:
        key = cached.policy.key_func(task.input)
        if key is None:  # it would be the same for every input
            raise TypeError(
                f"node {task.name!r}: the key_func of its cache_policy must return a str or bytes, "
                "got None"
            )
    text = key.hex() if isinstance(key, bytes) else str(key)
    return cached.namespace, text + memory


def _watch_keys(task: Task, cached: NodeCache, key: str) -> None:
    """Tell once if a node's key is another one at every call, so that its cache never helps."""
    watch = cached.key_watch
    if not watch.done:
        warning = watch.look(key, task.input, task.run.output.chunks)
        if warning is not None:
            warnings.warn(warning, RuntimeWarning, stacklevel=2)


def decode_result(task: Task, blob: Any) -> tuple[list[Pair], dict[str, Any]] | None:
    """What a cached result writes, and what it has besides; None if it cannot be read, or leads to
    what this graph lacks."""
    try:
        writes, dropped = task.run.settings.serde.loads(blob)
    except Exception as error:
        warn_of_cache(task, "what the cache has was not used", error)
        return None
    found: list[Pair] = []
    known = {*task.known_channels(), RETURN}
    for name, value in writes:
        if name not in known:
            return None
        if name == TASKS:
            try:  # a race is one of this task
                value = [check_send(send, task) for send in list_sends(value)]
            except InvalidUpdateError:
                return None
        found.append((name, value))
    return found, dropped


def encode_result(task: Task, key: FullKey) -> dict[FullKey, Any]:
    """A finished task's result as a cache takes it; nothing if it cannot be stored."""
    cached = task.node.cache
    assert cached is not None
    result, count = task.current.result or (None, len(task.writes))
    known = task.known_channels()
    others = {}
    if isinstance(result, dict) and any(writer.passthrough for writer in task.node.writers):
        others = {name: value for name, value in result.items() if name not in known}
    try:
        blob = task.run.settings.serde.dumps(([list(pair) for pair in task.writes[:count]], others))
    except Exception as error:
        warn_of_cache(task, NOT_CACHED, error)
        return {}
    return {key: (blob, cached.policy.ttl)}


NOT_CACHED: Final = "the result was not cached"


def warn_of_cache(task: Task, what: str, error: Exception) -> None:
    """Tell that a node goes on without its cache: what that holds can be computed again."""
    warnings.warn(f"node {task.name!r}: {what}: {type(error).__name__}: {error}", stacklevel=2)


# -- a failed attempt: wait how long, or give up ---------------------------------------------------

def wait_before_retry(
    policies: Sequence[RetryPolicy], failures: dict[int, int], error: BaseException
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    The first policy whose `retry_on` fits the error decides, and counts only the failures it was
    asked about.

    Args:
        failures: how often each policy (by position) was asked so far; updated.

    Raises:
        TypeError: a policy's `retry_on` is neither an exception class, nor several, nor a function.
    """
    if not isinstance(error, Exception):
        return None
    for position, policy in enumerate(policies):
        if not _fits(policy, error):
            continue
        count = failures[position] = failures.get(position, 0) + 1
        if count >= policy.max_attempts:
            return None
        return interval(policy, count)
    return None


def interval(policy: RetryPolicy, failures: int) -> float:
    """Seconds to wait after so many failures: grows by the factor up to the maximum; jitter only
    shortens it."""
    try:
        wait = policy.initial_interval * policy.backoff_factor ** (failures - 1)
    except OverflowError:  # after a thousand failures
        wait = policy.max_interval if policy.initial_interval else 0.0
    wait = min(policy.max_interval, wait)
    if not policy.jitter:
        return wait
    from random import uniform  # deferred: few runs wait (benchmark P26)

    return wait * uniform(0.5, 1.0)


def _fits(policy: RetryPolicy, error: Exception) -> bool:
    rule: Any = policy.retry_on
    if isinstance(rule, type) and issubclass(rule, BaseException):
        return isinstance(error, rule)
    if isinstance(rule, Sequence):
        return isinstance(error, tuple(rule))
    if callable(rule):
        return bool(rule(error))
    raise TypeError(
        "RetryPolicy(retry_on=...) must be an exception class, a sequence of them, or a function "
        f"of the error, got {type(rule).__name__}: {rule!r}"
    ) from error
