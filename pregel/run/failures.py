"""What a run raises that has come to its limit, or whose superstep has failed."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import GraphDrained, GraphRecursionError, ParentCommand
from ..superstep.task import Task
from .run import Run


def find_loudest(failed: Sequence[Task]) -> BaseException:
    """The error to raise: the first in path order that is a failure, with the others named in its
    notes."""
    errors = [t for t in failed if isinstance(t.error, Exception)]
    signals = [
        t for t in failed if not isinstance(t.error, (Exception, ParentCommand, GraphDrained))
    ]
    # Ctrl-C first. A cancellation is most often the consequence of a failure beside it.
    first, *others = [*(t for t in signals if not _is_cancelled(t)), *errors, *failed]
    assert first.error is not None
    named = {t.path: t for t in others if t in errors and t is not first}
    for task in named.values():
        first.error.add_note(
            f"Task {task.name!r} of the same superstep failed as well: {_shown(task.error)}"
        )
    return first.error


def _shown(error: BaseException | None) -> str:
    try:
        return repr(error)
    except Exception:  # no mistake of an error's own may hide another
        return type(error).__name__


def _is_cancelled(task: Task) -> bool:
    return type(task.error).__name__ in ("CancelledError", "GraphAbandoned")


def limit_reached(run: Run, tasks: Sequence[Task]) -> GraphRecursionError:
    """The error of a run that has taken all its supersteps."""
    names = ", ".join(sorted({t.name for t in tasks}))
    return GraphRecursionError(
        f"{run.program.name}: the recursion limit of {run.settings.limit} supersteps was reached "
        f'with work left: {names}. Raise it with config={{"recursion_limit": ...}}, or go on with '
        "invoke(None, config) (GRAPH_RECURSION_LIMIT)"
    )
