"""Bugs on purpose in what a saver promises beside storing."""

from __future__ import annotations

from contextlib import ExitStack

import stategraph.checkpoint.overrides as overrides
import stategraph.checkpoint.sql.database as database

from .planted import bug, swap


@bug("overridden_methods", 6)
def overrides_bypassed(stack: ExitStack) -> None:
    """A superstep is stored in one transaction, whatever a subclass has made of `put`."""
    swap(stack, overrides, "_overridden", lambda cls, owner, parts: False)


@bug("vanished_files")
def files_not_watched(stack: ExitStack) -> None:
    """Steps are written into a file that was deleted."""
    swap(stack, database.Database, "check_files", lambda self: None)
