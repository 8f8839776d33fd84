"""Where a run gets its hook, and how its supersteps are surrounded by it."""

from __future__ import annotations

from collections.abc import Callable
from sys import modules
from typing import Final

from ..superstep.hooks import Guard, GuardedHook, Hook, Span, compose
from .effects import Effects, Notify
from .run import Run

LANGCHAIN: Final = "langchain_core.callbacks"
"""As long as nobody has loaded this module, nobody can listen by way of it."""
FINDERS: Final[list[Callable[[Run], Hook | None]]] = []
"""What is asked for a hook at the start of each run of this process; see `add_hook`."""
_ask_langchain: Callable[[Run], Hook | None] | None = None


def add_hook(find: Callable[[Run], Hook | None]) -> Callable[[], None]:
    """Have all runs of this process surrounded by hooks, nested runs included.

    What was added first is the outermost. LangChain's callbacks, and a hook that a graph brings
    along, are inside of all others: what they call finds the context that the others have set. An
    error that such a hook raises is logged (`stategraph.hooks`) and does not change the run.

    Args:
        find: asked at the start of each run; None for a run without this hook.

    Returns:
        A function that removes it again; runs that have begun keep it.
    """
    FINDERS.append(find)
    return lambda: FINDERS.remove(find)


def surround(run: Run, effects: Effects) -> Effects:
    """The effects of a run; with a hook, surrounded by what that puts around the whole run."""
    observing = run.settings.observing
    if observing is not None:
        run.use_observers(observing)
        effects = observing.watch(run, effects)
    hook = run.hook
    if hook is None and LANGCHAIN in modules:
        hook = (_ask_langchain or _load_langchain())(run)
    if FINDERS:
        found = [*(_ask(find, run) for find in FINDERS), hook]
        hook = compose([each for each in found if each is not None])
    if hook is None:
        return effects
    run.use_hook(hook)
    return _in_span(hook.around_run(), effects)


def _ask(find: Callable[[Run], Hook | None], run: Run) -> Hook | None:
    with Guard(find, "__call__"):
        found = find(run)
        return None if found is None else GuardedHook(found)
    return None


def _load_langchain() -> Callable[[Run], Hook | None]:
    """What tells who listens to a run by LangChain's means. Kept: an import takes a while, even of
    what is loaded (benchmark P30)."""
    global _ask_langchain
    from ...compat.langchain.callbacks import find_hook

    _ask_langchain = find_hook
    return find_hook


def _in_span(span: Span, effects: Effects) -> Effects:
    yield Notify(span, begins=True)
    try:
        yield from effects
    except GeneratorExit:
        raise  # closed by hand: nobody is there to be told
    except BaseException as error:
        yield Notify(span, error=error)
        raise
    yield Notify(span)
