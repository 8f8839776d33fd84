"""Bugs on purpose in what a saver promises beside storing, and in stores."""

from __future__ import annotations

from contextlib import ExitStack

import stategraph.checkpoint.overrides as overrides
import stategraph.checkpoint.sql.database as database
import stategraph.store.postgres as postgres_store

from .planted import bug, swap


@bug("overridden_methods", 6)
def overrides_bypassed(stack: ExitStack) -> None:
    """A superstep is stored in one transaction, whatever a subclass has made of `put`."""
    swap(stack, overrides, "_overridden", lambda cls, owner, parts: False)


@bug("vanished_files")
def files_not_watched(stack: ExitStack) -> None:
    """Steps are written into a file that was deleted."""
    swap(stack, database.Database, "check_files", lambda self: None)


@bug("racing_batches", 1)
def places_not_locked(stack: ExitStack) -> None:
    """Batches on Postgres rely on the locks of rows, which what is not there yet has not."""
    swap(stack, postgres_store, "_LOCK", "SELECT unnest($1::bigint[])")
