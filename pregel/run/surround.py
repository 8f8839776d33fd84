"""Adds the observers of a run, and LangChain's handlers by a hook."""

from __future__ import annotations

from collections.abc import Callable
from sys import modules
from typing import Final

from ..task.spans import Hook, Span
from .effects import Effects, Notify
from .run import Run

LANGCHAIN: Final = "langchain_core.callbacks"
"""As long as nobody has loaded this module, nobody can listen by way of it."""
_ask_langchain: Callable[[Run], Hook | None] | None = None


def surround(run: Run, effects: Effects) -> Effects:
    """The effects of a run, of which its observers are told; with a hook, inside the span that the
    hook puts around the whole run."""
    observing, hook = run.settings.observing, run.hook
    if hook is None and LANGCHAIN in modules:
        hook = (_ask_langchain or _load_langchain())(run)
    if observing is None and hook is None:
        return effects
    run.be_watched(hook)
    if observing is not None:
        effects = observing.watch(run, effects)
    return effects if hook is None else _in_span(hook.around_run(), effects)


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
