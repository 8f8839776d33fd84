"""A child that a node forks, and that comes back from the node's function, ends there.

Else it would go on with the run beside its parent: run the next nodes, and store what they return.
"""

from __future__ import annotations

import os
import sys
from types import NoneType
from typing import NoReturn


class _Forks:
    """How often this process, and those it was forked from, have forked."""

    def __init__(self) -> None:
        self.count: int = 0

    def add(self) -> None:
        """Count a fork; called in the child."""
        self.count += 1


FORKS = _Forks()
os.register_at_fork(after_in_child=FORKS.add)


def end_child(error: BaseException | None) -> NoReturn:
    """End this process, a forked child, as a script ends that returns or raises `error`. Nothing
    that its parent has begun is finished here: no buffer is written, no handler called."""
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = _exit_code(error)
        elif error is not None:
            import traceback

            code = 1
            traceback.print_exception(error)
    finally:  # even if nothing can be printed any more
        os._exit(code)


def _exit_code(error: SystemExit) -> int:
    if isinstance(error.code, int | NoneType):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1
