"""The errors that a run raises: when tasks have failed, and when it has reached its limit."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DrainSignal, GraphRecursionError, ParentCommand, repr_of
from ..task.task import Task
from .run import Run


def choose_error(failed: Sequence[Task]) -> BaseException:
    """The error to raise for several tasks that have failed; its notes name the others.

    Ctrl-C comes first, then the first failure in path order, then the other signals.

    Args:
        failed: the tasks, in path order.
    """
    errors = [t for t in failed if isinstance(t.error, Exception)]
    signals = [
        t for t in failed if not isinstance(t.error, (Exception, ParentCommand, DrainSignal))
    ]
    # A cancellation is most often the consequence of a failure beside it.
    first, *others = [*(t for t in signals if not _is_cancelled(t)), *errors, *failed]
    assert first.error is not None
    for task in dict.fromkeys(others):
        if task in errors and task is not first:
            first.error.add_note(f"Task {task.name!r} failed as well: {repr_of(task.error)}")
    return first.error


def keep_cause(handler: Task) -> None:
    """Let the error of an error handler keep what it was called for, which it would hide."""
    error, cause = handler.error, handler.cause
    if error is not None and cause is not None and error is not cause.error:
        error.__cause__ = error.__cause__ or cause.error


def _is_cancelled(task: Task) -> bool:
    return type(task.error).__name__ in ("CancelledError", "GraphAbandoned")


def limit_reached(run: Run, tasks: Sequence[Task]) -> GraphRecursionError:
    """The error of a run that has taken all the steps that it may take."""
    unit = "generations" if run.program.starts_ready else "supersteps"
    names = ", ".join(sorted({t.name for t in tasks}))
    return GraphRecursionError(
        f"{run.program.name}: the recursion limit of {run.settings.limit} {unit} was reached "
        f'with work left: {names}. Raise it with config={{"recursion_limit": ...}}, or go on with '
        "invoke(None, config) (GRAPH_RECURSION_LIMIT)"
    )
