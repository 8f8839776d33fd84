"""Bugs on purpose in what a saver promises beside storing, and in stores."""

from __future__ import annotations

from contextlib import ExitStack

import stategraph.checkpoint.overrides as overrides
import stategraph.checkpoint.sql.sqlite_database as database
import stategraph.checkpoint.sqlite as sqlite
import stategraph.store.postgres as postgres_store

from .planted import bug, swap


@bug("overridden_methods", 6)
def overrides_bypassed(stack: ExitStack) -> None:
    """A superstep is stored in one transaction, whatever a subclass has made of `put`."""
    swap(stack, overrides, "_overrides", lambda cls, owner, parts: False)


@bug("vanished_files")
def files_not_watched(stack: ExitStack) -> None:
    """Steps are written into a file that was deleted."""
    swap(stack, database.Database, "check_files", lambda self: None)


@bug("racing_batches", 1)
def places_not_locked(stack: ExitStack) -> None:
    """Batches on Postgres rely on the locks of rows, which what is not there yet has not."""
    swap(stack, postgres_store, "_LOCK", "SELECT unnest($1::bigint[])")


@bug("opened_at_once")
def impatient_opening(stack: ExitStack) -> None:
    """A file that others are opening is given up at once."""
    swap(stack, database, "_is_busy", lambda error: False)


@bug("losers", 1)
def duplicates_are_errors(stack: ExitStack) -> None:
    """Two runs that make the same of the same have broken the database."""
    swap(stack, sqlite, "is_duplicate", lambda error: False)
