"""Bugs on purpose below the engine: files, rows, deltas, values, names."""

from __future__ import annotations

import pickle
import time
from contextlib import ExitStack

import stategraph.checkpoint.sql.postgres_wire as wire
import stategraph.checkpoint.sql.pruning as pruning
import stategraph.checkpoint.sql.reader as reader
import stategraph.checkpoint.sql.rows as rows
import stategraph.checkpoint.sql.sqlite_database as database
import stategraph.checkpoint.sql.write_rows as write_rows
import stategraph.checkpoint.sqlite as sqlite
import stategraph.workers.runner as runner
import stategraph.workers.scheduler as scheduler
import stategraph.workers.session as session
import stategraph.workers.tables as queue
from stategraph.checkpoint.base import CheckpointConflictError
from stategraph.checkpoint.errors import DamagedError
from stategraph.checkpoint.integrity import DIGEST_SIZE, Integrity
from stategraph.checkpoint.memory import InMemorySaver
from stategraph.checkpoint.serde import Serializer

from .planted import bug, swap


def statement(stack, name, text, module=sqlite):
    """Another text for an SQL statement."""
    swap(stack, module, "STATEMENTS", {**module.STATEMENTS, name: text})


# -- storage ----------------------------------------------------------------------------------------------------


@bug("power_lost_full")
def lost_fsync(stack: ExitStack):
    """synchronous="full" does not wait for the disk."""
    swap(stack, database, "_SYNCHRONOUS", {**database._SYNCHRONOUS, "full": "PRAGMA synchronous=OFF"})


@bug("power_lost_normal", 6)
def no_journal(stack: ExitStack):
    """The file is written in place, without a journal."""
    swap(stack, database, "_WAL", "PRAGMA journal_mode=OFF")


@bug("failing_statements", 8)
def commit_in_finally(stack: ExitStack):
    """What was done before an error is committed."""
    swap(stack, database.Database, "roll_back", lambda self: self.connection.in_transaction and self.execute("COMMIT"))


@bug("failing_statements", 8)
def forgotten_rollback(stack: ExitStack):
    """After an error the transaction stays open."""
    swap(stack, database.Database, "roll_back", lambda self: None)


@bug("failing_statements", 8)
def raw_errors(stack: ExitStack):
    """The database's own errors reach the caller."""
    swap(stack, database.Database, "refusal", lambda self, error: error)


@bug("full_databases", 12)
def swallowed_error(stack: ExitStack):
    """A step that could not be stored is told as stored."""
    real = sqlite.SqliteSaver.commit

    def commit(self, commits):
        try:
            real(self, commits)
        except CheckpointConflictError:
            raise
        except Exception:
            pass

    swap(stack, sqlite.SqliteSaver, "commit", commit)


@bug("racing_processes_on_sqlite")
def head_moved_without_compare(stack: ExitStack):
    """The head is moved on wherever it is."""
    old = sqlite.STATEMENTS["move_head"]
    marks = old.split("WHERE id = ?")[1].count("?")
    statement(stack, "move_head", old.split(" AND")[0] + " AND coalesce(?, '') IS NOT NULL" * marks)


@bug("racing_processes_on_sqlite")
def conflict_told_as_ok(stack: ExitStack):
    """The loser of a race is told ok."""
    real = sqlite.SqliteSaver.commit

    def commit(self, commits):
        try:
            real(self, commits)
        except CheckpointConflictError:
            pass

    swap(stack, sqlite.SqliteSaver, "commit", commit)


@bug("clocks_that_jump")
def clock_order(stack: ExitStack):
    """The newest checkpoint is the one with the highest time."""
    real = reader.SqlReader.get_tuple

    def get_tuple(self, config):
        if config["configurable"].get("checkpoint_id") is not None:
            return real(self, config)
        return max(self.list(config), key=lambda found: found.checkpoint["ts"], default=None)

    swap(stack, reader.SqlReader, "get_tuple", get_tuple)


@bug("clocks_that_jump")
def id_order(stack: ExitStack):
    """Lists are ordered by the ids of checkpoints."""
    real = reader.SqlReader.list

    def listed(self, config, **options):
        return iter(sorted(real(self, config, **options), key=lambda each: each.checkpoint["id"], reverse=True))

    swap(stack, reader.SqlReader, "list", listed)


@bug("damaged_rows", 4)
def no_checksum(stack: ExitStack):
    """Rows are believed as they are."""
    swap(stack, Integrity, "unprotect", lambda self, data, place: data[:-DIGEST_SIZE])


@bug("flipped_bits")
def flipped_bits_believed(stack: ExitStack):
    """A row with a flipped bit is read as it is."""
    no_checksum(stack)


@bug("damaged_rows", 8)
def swapped_rows(stack: ExitStack):
    """A row's checksum does not know where the row belongs."""
    protect, unprotect = Integrity.protect, Integrity.unprotect
    swap(stack, Integrity, "protect", lambda self, payload, place: protect(self, payload, b""))
    swap(stack, Integrity, "unprotect", lambda self, data, place: unprotect(self, data, b""))


@bug("sql_texts_are_constants", 1)
def formatted_sql(stack: ExitStack):
    """A thread's name becomes part of a statement."""

    def head(self, config):
        thread_id, ns = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")
        where = " AND ".join(f"{k} = '{v.replace(chr(39), chr(39) * 2)}'" for k, v in (("thread_id", thread_id), ("checkpoint_ns", ns)))
        row = self._database.execute(f"SELECT head_id FROM spaces WHERE {where}").fetchone()
        return row and row[0]

    swap(stack, sqlite.SqliteSaver, "head", head)


@bug("hostile_texts", 4)
def names_cut(stack: ExitStack):
    """Of a thread's name only the first letters count."""
    for name in ("namespace", "lock_namespace", "namespaces", "lock_namespaces"):
        text = sqlite.STATEMENTS[name].replace("thread_id = ?", "substr(thread_id, 1, 4) = substr(?, 1, 4)")
        statement(stack, name, text)


# -- deltas, keyframes, pruning, copying ------------------------------------------------------------------------


@bug("calls_on_savers")
def delta_on_the_wrong_base(stack: ExitStack):
    """A change is stored against a value that is one older than it says."""
    real = write_rows.find_delta
    last = []

    def find_delta(old, new):
        base = last[-1] if last else old
        last[:] = [old]
        return real(base, new)

    swap(stack, write_rows, "find_delta", find_delta)


@bug("calls_on_savers")
def keyframe_misses_a_key(stack: ExitStack):
    """A complete row lacks one channel."""
    real = rows.pack_body

    def pack_body(key, id, parent_id, body, complete, *more):
        if complete and len(body.values) > 1:
            body = body._replace(values=dict([*body.values.items()][1:]))
        return real(key, id, parent_id, body, complete, *more)

    swap(stack, write_rows, "pack_body", pack_body)


@bug("calls_on_savers")
def prune_drops_bases(stack: ExitStack):
    """Pruning drops values on which others build."""
    real = pruning.Pruning.drop

    class Blind:
        def __init__(self, session):
            self.session = session

        def rows(self, name, *values):
            return values[1] if name == "value_chains" else self.session.rows(name, *values)

        def __getattr__(self, name):
            return getattr(self.session, name)

    swap(stack, pruning.Pruning, "drop", lambda self, session, *args: real(self, Blind(session), *args))


@bug("calls_on_savers")
def copy_shares(stack: ExitStack):
    """A copied thread is the same thread under two names."""

    def copy_thread(self, source, target):
        self._threads[target] = self._threads[source]

    swap(stack, InMemorySaver, "copy_thread", copy_thread)


# -- values and names -------------------------------------------------------------------------------------------


@bug("hostile_payloads", 2)
def pickle_fallback(stack: ExitStack):
    """What cannot be read otherwise is given to pickle."""
    real = Serializer.loads

    def loads(self, blob):
        try:
            return real(self, blob)
        except Exception:
            try:
                return pickle.loads(blob[1][blob[1].index(b"cposix") :])
            except Exception:
                raise DamagedError("nor as a pickle") from None

    swap(stack, Serializer, "loads", loads)


@bug("round_trips", 2)
def tuples_become_lists(stack: ExitStack):
    """As with JSON."""
    real = Serializer.loads

    def listed(value):
        if type(value) in (list, tuple):
            return [listed(each) for each in value]
        return {key: listed(each) for key, each in value.items()} if type(value) is dict else value

    swap(stack, Serializer, "loads", lambda self, blob: listed(real(self, blob)))


# -- the queue --------------------------------------------------------------------------------------------------


def queued(stack, name, old, new):
    """Another text in a statement of the queue."""
    text = queue.STATEMENTS[name]
    assert old in text
    queue.STATEMENTS[name] = text.replace(old, new)
    stack.callback(queue.STATEMENTS.__setitem__, name, text)


@bug("poisoned_jobs")
def deaths_not_counted(stack: ExitStack):
    """A job whose worker died goes back to the queue as if nothing had been."""
    queued(stack, "bury", "job.deaths + 1", "job.deaths")


@bug("poisoned_jobs")
def innocents_pay(stack: ExitStack):
    """A suspected job runs beside others, which are then suspected as well."""
    for name in ("claim", "claim_with_ends"):
        queued(stack, name, "begun = deaths < $4", "begun = ($4 > 0)")


@bug("killed_workers")
def dead_workers_not_noticed(stack: ExitStack):
    """What a dead worker had claimed stays claimed."""
    queued(stack, "watch", "SELECT id, ", "SELECT id, true OR ")


@bug("versions_under_kills")
def versions_ignored(stack: ExitStack):
    """A worker claims the jobs of each version of its graph."""
    real = session.WorkerSession._claim_values
    swap(stack, session.WorkerSession, "_claim_values", lambda self, room: (*real(self, room)[:-1], ["1", "2"]))


@bug("killed_workers")
def stored_at_the_end_only(stack: ExitStack):
    """Jobs run as if their durability were "exit": nothing is left of a job whose worker was killed."""
    real = runner.JobRunner._invoke
    swap(stack, runner.JobRunner, "_invoke", lambda self, *args, **options: real(self, *args, **{**options, "durability": "exit"}))


@bug("workers_that_fail", 6)
def claims_of_the_unknown(stack: ExitStack):
    """A worker that ends with an error takes its name off the list, and leaves its jobs as they are."""
    queued(stack, "give_back", "WHERE graph = $1", "WHERE false AND graph = $1")
    queued(stack, "sweep", "WHERE graph = $1", "WHERE false AND graph = $1")


@bug("killed_schedulers", 6)
def schedules_moved_first(stack: ExitStack):
    """A schedule moves on in a transaction, and its jobs are stored in another one."""
    real = scheduler.Scheduler._store

    def store(self, wire, due, moments, after):
        moved = real(self, wire, due, [], after)
        time.sleep(0.3)  # as long as a busy database takes
        if moved and moments:
            again = due._replace(first=after)
            real(self, wire, again, moments, after)
        return moved

    swap(stack, scheduler.Scheduler, "_store", store)


@bug("killed_schedulers", 3)
def missed_times_forgotten(stack: ExitStack):
    """A schedule whose time has passed goes on with the next one."""
    swap(stack, scheduler, "find_moments", lambda due, now: ([], due.cron.next(now)))


@bug("given_up")
def sent_for_ever(stack: ExitStack):
    """A statement that is given up stays with the system, which sends it when the network is back."""
    swap(stack, wire.Patient, "_abort", wire.Patient.close)
