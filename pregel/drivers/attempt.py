"""What surrounds the call of a node: retries, cache, time limit, the check of edited inputs, its
signals.

Written once, as procedures for threads and for asyncio. Outcomes are noted on the task.

Theory of operation, from the inside out: the call of the node, its deadline, the check of its
input, the cache, the retries. So every attempt has the whole time, what was cached has passed the
check, and what failed is never cached. The first attempt is made by the drivers themselves, without
any of these where a node has no policies; `recover` comes in only once it has raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from sys import modules
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..control import TimedControl
from ..errors import (
    DrainSignal,
    GraphBubbleUp,
    GraphInterrupt,
    GraphWarning,
    InvalidUpdateError,
    NodeTimeoutError,
    ParentCommand,
)
from ..program.writes import explain_keyless
from ..steps import Steps, Waits
from ..task.deadline import Deadline
from ..task.interrupts import is_cancellation, merge_questions, pausing, unwrap_signals
from ..task.outcome import (
    NOT_CACHED,
    accept_command,
    cache_key,
    check_untouched,
    decode_result,
    encode_result,
    end_with_error,
    end_with_signal,
    snapshot_input,
    timeout_of,
    wait_before_retry,
    warn_of_cache,
)
from ..task.task import Task, outwards

if TYPE_CHECKING:
    from ..task.observers import EngineObserver


def refuse_late(task: Task) -> None:
    """Let no further task of a run start whose deadline has come.

    Raises:
        DrainSignal: it has.
    """
    control = task.run.settings.control
    if isinstance(control, TimedControl) and control.is_late:
        raise DrainSignal(control.drain_reason or "deadline")


def recover(task: Task, error: BaseException, waits: Waits) -> Steps[None]:
    """Go on after the first attempt of a task has raised: note its signal, or try again until its
    policies give up. Does not raise what attempts raise."""
    observing = task.run.observing
    failures: dict[int, int] = {}
    earlier: tuple[Any, ...] = ()  # the calls of attempts that failed
    while True:
        # Before retries: a pause or a command is an outcome, however often the policy would try
        # again.
        if isinstance(error, GraphBubbleUp):
            try:
                end_with_signal(task, error)
                break
            except GraphWarning as told:  # warnings are errors here
                error = told
        error = waits.failure_of(task, error)
        task.discard()
        pause = wait_before_retry(task.node.policies.retry, failures, error)
        earlier += tuple(task.current.calls or ())
        if observing is not None:
            observing.fail_attempt(task, error, pause)
        if isinstance(error, Exception):
            _log_failure(task, error, pause)
        if pause is None:
            end_with_error(task, error)
            break
        try:
            yield from _wait_for_retry(task, pause, waits)
        except GeneratorExit:
            raise  # closed: nobody waits for the task
        except BaseException as interruption:
            end_with_error(task, interruption)
            break
        task.begin_attempt()
        began = perf_counter()
        try:
            yield from attempt_with_policies(task, waits)
            break
        except GeneratorExit:
            raise
        except BaseException as again:
            error = again
        finally:
            if task.run.thread.saver is not None:
                task.note_span(began)
    if observing is not None:
        observing.end_task(task)
    # Only now: the next attempt finds the calls of the last one again and goes on with them.
    yield from abandon_calls(earlier, task.error, waits)


def _wait_for_retry(task: Task, pause: float, waits: Waits) -> Steps[None]:
    """Wait as the retry policy says, and then until the limits of the node let it start again."""
    yield waits.sleep(pause)
    for limit in task.node.policies.limits:
        while longer := limit.start_again():
            yield waits.sleep(longer)


def _log_failure(task: Task, error: Exception, pause: float | None) -> None:
    """Log a retry, if anybody can see it; and that a task is given up which was tried again or had
    a time limit. Other failures are only raised."""
    if pause is not None:
        if "logging" in modules:
            from ..log import log_retry

            log_retry(task, error, pause)
    elif task.attempt > 1 or isinstance(error, NodeTimeoutError):
        from ..log import log_giving_up

        log_giving_up(task, error)


def attempt_with_policies(task: Task, waits: Waits) -> Steps[None]:
    """Make an attempt under its node's policies: observed, cached, under a time limit, its input
    watched."""
    observing = task.run.observing
    is_told = observing is not None and observing.tells
    if is_told:
        observing.begin_attempt(task)
    # Made inside the attempt: a node whose key cannot be made fails, and its policies apply.
    key = cache_key(task)
    if key is None:
        yield from _attempt_and_check(task, waits)
    else:
        yield from _attempt_or_cached(task, key, waits)
    if is_told:
        observing.end_task(task)


def _attempt_or_cached(task: Task, key: Any, waits: Waits) -> Steps[None]:
    cache = task.run.settings.cache
    place, around = (id(cache), key), _ASKED.get()
    if place in around:  # that task waits for this one, with a `key_func` that makes them equal
        yield from _attempt_and_check(task, waits)
        return
    # One at a time: equal tasks wait for the first to finish, and then find its result.
    with waits.lock(place) as lock:
        taken = yield waits.acquire(lock, task)
        _ASKED.set((*around, place))
        try:
            known = yield from _ask_cache(task, "get", [key], waits)
            if known and key in known and (yield from _restore(task, known[key], waits)):
                if task.run.observing is not None:
                    task.run.observing.find_cached(task)
                return
            yield from _attempt_and_check(task, waits)
            if not _is_answered(task):
                yield from _ask_cache(task, "set", encode_result(task, key), waits)
        finally:
            _ASKED.set(around)
            if taken:
                lock.release()


_ASKED: ContextVar[tuple[Any, ...]] = ContextVar("stategraph_asked_of_caches", default=())
"""What the tasks in which this one runs have asked of caches."""


def _is_answered(task: Task) -> bool:
    """Whether somebody was asked for the result, who has answered for this thread alone; or may
    have been, as a `@task` call or a graph inside may have ended in an earlier run."""
    if task.known_answers() or task.passed_on:
        return True
    started = task.current.calls or task.current.graphs
    return bool(started) and any(each.run.ledger for each in outwards(task))


def _ask_cache(task: Task, method: str, about: Any, waits: Waits) -> Steps[Any]:
    """Call a method of the cache. None if it fails: its results can be computed again, and those
    that are there already must not be lost."""
    try:
        return (yield waits.ask(task.run.settings.cache, method, about))
    except Exception as error:
        what = NOT_CACHED if method == "set" else "the cache was not asked"
        warn_of_cache(task, what, error)
        return None


def _restore(task: Task, blob: Any, waits: Waits) -> Steps[bool]:
    """Take a cached result as the task's own, unless it does not fit this graph."""
    found = decode_result(task, blob)
    if found is None:
        return False
    writes, others = found
    task.restore(writes)
    for writer in task.node.writers:
        if writer.of_run:
            yield waits.ask(writer, "write", others, task)
    return True


def _attempt_and_check(task: Task, waits: Waits) -> Steps[None]:
    """Make an attempt; with `debug` it fails if it edits its input, before anything is cached."""
    before = snapshot_input(task) if task.node.debug else None
    try:
        observing = task.run.observing
        if observing is None or observing.listener is None:
            yield from _attempt(task, waits)
        else:
            yield from _attempt_in_span(task, observing.listener, waits)
    except StopIteration as stop:  # no generator may raise one
        raise RuntimeError(f"node {task.name!r} raised StopIteration") from stop
    send = task.send
    if send is not None and send.key is not None and not task.current.uses_memory:
        raise InvalidUpdateError(explain_keyless(task.name, send.key))
    if before is not None:
        check_untouched(task, before)


def _attempt_in_span(task: Task, listener: EngineObserver, waits: Waits) -> Steps[None]:
    """Make an attempt inside the span that a listener puts around it. The span is entered here,
    once for both worlds, in the context in which node and writers run."""
    span = task.current.span = listener.attempt_span(task)
    yield waits.ask(span, "enter")
    try:
        yield from _attempt(task, waits)
    except GeneratorExit:
        raise  # closed: nobody waits for the task
    except BaseException as error:
        yield waits.ask(span, "leave", error)
        raise
    yield waits.ask(span, "leave", task.current.signal)


def _attempt(task: Task, waits: Waits) -> Steps[None]:
    """Make an attempt. One with a time limit is abandoned at its deadline even if it does not stop
    then: it works on a detached copy of the task, so that nothing it does later can reach the task.
    """
    policy = timeout_of(task)
    if policy is None:
        yield waits.attempt(task)
        return
    deadline = Deadline(policy, task.nearest_deadline)
    copy = task.detach(deadline)
    running = waits.start(copy)
    try:
        while not running.done and (left := deadline.remaining()) > 0:
            yield running.wait(left)
    except GeneratorExit:
        raise
    except BaseException:  # Ctrl-C, or the task itself is cancelled
        yield running.stop()
        deadline.abandon()
        task.current.calls = cancel_calls(copy)
        raise
    if not running.done:
        deadline.abandon()
        running.cancel()
        task.current.calls = cancel_calls(copy)
        raise deadline.error(task.name)
    task.take_attempt(copy)
    if running.error is not None:
        raise running.error


def receive_signal(task: Task, raised: BaseException, waits: Waits) -> Steps[Any]:
    """What a body that ended with a signal leads to.

    Returns:
        The command that a graph inside sent to this one: it counts as the body's result.

    Raises:
        GraphInterrupt: the body pauses: with its questions and those of all its calls.
        BaseException: any other signal, or the failures of a group that holds some.
    """
    signal = unwrap_signals(task, raised)
    if isinstance(signal, ParentCommand):
        task.current.signal = signal
        return accept_command(task, signal)
    # A call that is still at work may have a question, too: it is asked along with the others.
    if isinstance(signal, GraphBubbleUp) and task.current.calls:
        yield from collect_questions(task, signal, waits)
    if isinstance(signal, GraphInterrupt) and task.current.inside:
        # What graphs beside the one that paused ask, or have done with an answer, is recorded with
        # it.
        yield waits.nested_runs(task)
    raise signal


# -- the `@task` calls of a body that has ended ---------------------------------------------------


def join_calls(task: Task, waits: Waits) -> Steps[None]:
    """Wait for all calls of a task whose body has returned.

    Raises:
        GraphInterrupt: some of them pause.
        BaseException: one failed and nobody has looked at how it ended.
    """
    ends = []
    for call in task.current.calls or ():
        if not call.done():
            yield waits.call(call)
        # Before `failure` looks: asyncio notes on its futures, too, whether anybody has.
        seen = call.retrieved if is_call_future(call) else not call._log_traceback
        ends.append((failure(call), seen))
    pauses = [error for error, _ in ends if isinstance(error, GraphInterrupt)]
    if pauses:
        signal = pausing((), None)
        merge_questions(signal, pauses)
        raise signal
    for error, seen in ends:
        # A body that has caught the failure of a call has dealt with it. One that nobody looked at
        # must not vanish.
        if error is not None and not seen:
            raise error


def collect_questions(task: Task, signal: GraphBubbleUp, waits: Waits) -> Steps[None]:
    """Let the calls of a body end that stops with a signal. If it pauses, ask all their questions
    at once."""
    ends = []
    for call in task.current.calls or ():
        if not call.done():
            yield waits.call(call)
        ends.append(failure(call))
    if isinstance(signal, GraphInterrupt):
        merge_questions(signal, ends)


def abandon_calls(calls: Sequence[Any], error: BaseException | None, waits: Waits) -> Steps[None]:
    """Cancel what can be cancelled of calls that nobody will ask for any more, and let none outlive
    the task.

    Args:
        error: how the task ended.
    """
    for call in calls:
        call.cancel()
        if is_call_future(call) and call.coroutine is not None:
            call.coroutine.cancel()
    cancelled = error is not None and is_cancellation(error)
    for call in calls:
        # A thread cannot be cancelled. Who is cancelled in an event loop must not wait for one.
        on_thread = is_call_future(call) and call.coroutine is None
        if not (cancelled and on_thread):
            if not call.done():
                yield waits.call(call)
            failure(call)


def cancel_calls(copy: Task) -> list[Any]:
    """Cancel those calls of an abandoned attempt that wait for a thread.

    Returns:
        The others: they are cancelled when their task ends, unless the next attempt finds them.
    """
    calls = copy.current.calls or ()
    for call in calls:
        if is_call_future(call):
            call.cancel()
    return [call for call in calls if not is_call_future(call)]


def failure(call: Any) -> BaseException | None:
    """What a call that has ended raised; None if it was cancelled. For a `CallFuture` this does not
    count as having looked."""
    if call.cancelled():
        return None
    error: BaseException | None = call.peek() if is_call_future(call) else call.exception()
    return error


def is_call_future(call: Any) -> bool:
    """Whether this is a `CallFuture`, by its attributes: where no call is made, its class is not
    loaded."""
    return hasattr(call, "retrieved")

