"""Bugs on purpose, by name, and the trial that is meant to catch each. Patches of this process; never product code.

Each is a bug that programs like this have had. Where one is planted, its trial must fail; where none is, all pass.
The bugs themselves are in `bugs_below` (storage, values), `bugs_savers`, `bugs_protocol` and `bugs_above` (the engine).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from .campaign import patched


class Bug(NamedTuple):
    """A planted bug.

    Attributes:
        caught_by: the trial that is meant to catch it.
        rounds: within how many of its rounds.
        about: what it does.
    """

    caught_by: str
    rounds: int
    about: str
    plant: Callable[[ExitStack], None]


BUGS = {}


def bug(caught_by, rounds=3):
    """Make a function a bug: it is given a stack on which it enters its patches; its docstring says what it does."""

    def add(plant):
        assert plant.__doc__
        BUGS[plant.__name__] = Bug(caught_by, rounds, plant.__doc__, plant)
        return plant

    return add


@contextmanager
def planted(name):
    """Inside, the product has this bug; None: it has none."""
    from . import bugs_above, bugs_below, bugs_protocol, bugs_savers  # noqa: F401  # fills BUGS

    with ExitStack() as stack:
        if name is not None:
            BUGS[name].plant(stack)
        yield


def swap(stack, owner, name, value):
    """Put another value in place until the stack is closed."""
    stack.enter_context(patched(owner, name, value))
