"""Bugs on purpose in the storing protocol: what is stored when, and which answer is whose."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import stategraph.checkpoint.sql.saver as sql
import stategraph.pregel.drivers.ajournal as ajournal
import stategraph.pregel.drivers.journal as journal
import stategraph.pregel.drivers.turns as turns
import stategraph.pregel.run.snapshots as snapshots
import stategraph.pregel.run.start as start
import stategraph.pregel.run.update_state as update_state
from stategraph.checkpoint.base import BaseCheckpointSaver
from stategraph.pregel.run.commits import CommitBuilder
from stategraph.pregel.run.effects import Claim
from stategraph.pregel.run.ledger import Ledger
from stategraph.pregel.schedule.machine import Machine
from stategraph.pregel.schedule.state import LiveState
from stategraph.pregel.task.ids import new_checkpoint_id
from stategraph.pregel.task.task import in_path_order

from .planted import bug, swap


@bug("exhaustive", 5)
def records_before_their_checkpoint(stack: ExitStack):
    """What a `@task` call leaves is stored at once, while the checkpoint beside which it stands is under way."""

    swap(stack, journal.Journal, "record", _record_at_once)
    swap(stack, ajournal.AsyncJournal, "record", _record_at_once_in_either_world)


@bug("slow_commits", 16)
def records_past_the_journal(stack: ExitStack):
    """The record of a `@task` call goes to the saver at once, past all that waits to be stored."""
    records_before_their_checkpoint(stack)


def _record_at_once(self, entry, *, wait):
    self._thread.saver.record(self._where, None, entry.records())


def _record_at_once_in_either_world(self, entry, *, wait):
    on_loop = asyncio._get_running_loop() is self._loop
    return (_arecord_at_once if on_loop else _record_at_once)(self, entry, wait=wait)


async def _arecord_at_once(self, entry, *, wait):
    await self._thread.saver.arecord(self._where, None, entry.records())


@bug("exhaustive", 5)
def failures_of_calls_not_told(stack: ExitStack):
    """Whether the result of a `@task` call could be stored is told to its caller only, who may not look."""

    def fail(self, entry, error: BaseException):
        seen = self.unreported
        real(self, entry, error)
        if not entry.posted:
            self.unreported = seen

    real = journal.Journal._fail
    swap(stack, journal.Journal, "_fail", fail)


@bug("exhaustive", 6)
def answers_by_position_only(stack: ExitStack):
    """An answer goes to whichever question is asked first."""
    real = Ledger._take

    def take(self, question, by):
        if self.brought:
            return (self.brought.popitem()[1],)
        return real(self, question, by)

    swap(stack, Ledger, "_take", take)


@bug("exhaustive", 5)
def claim_outlives_its_question(stack: ExitStack):
    """A claim holds until its superstep is over, also once its answers are recorded."""

    swap(stack, Ledger, "undelivered", lambda self: dict(self.claim["answers"]) if self.claim is not None else {})
    swap(stack, Ledger, "has_live_claim", property(lambda self: self.claim is not None))


@bug("exhaustive", 5)
def answers_not_stored_first(stack: ExitStack):
    """A run goes on with its answers without having stored them: whoever comes next knows nothing of them."""
    real = journal.Journal._store_records

    def store_records(self, entries):
        if not isinstance(entries[0], Claim):
            yield from real(self, entries)

    swap(stack, journal.Journal, "_store_records", store_records)


@bug("exhaustive", 5)
def deliveries_forgotten(stack: ExitStack):
    """A call that brought an answer is taken for a new one when it is delivered again."""
    swap(stack, start, "was_taken", lambda run: False)


@bug("edits_while_paused", 20)
def siblings_run_again(stack: ExitStack):
    """Finished siblings to which an edit leads again are run again."""
    real = update_state.OpenWork.__init__

    def init(self, run, pending, again):
        real(self, run, pending, again)
        self.tasks = [(task, known) for task, known in self.tasks if not known.finished]

    swap(stack, update_state.OpenWork, "__init__", init)


@bug("edits_while_paused", 20)
def questions_dropped(stack: ExitStack):
    """An edit of a paused thread drops the questions that are open, and what their tasks had done."""
    swap(stack, update_state.OpenWork, "carry", lambda self, run: [])


@bug("pending_twice", 3)
def two_updates_speak_for_one_task(stack: ExitStack):
    """Updates for two tasks of one node both stand for the first of them: the other stays pending, and runs."""
    real = update_state._task

    def task(run, update, place, pending):
        open_ = [each for each in pending if pending.count(each) > 1]
        return real(run, update, place, [*in_path_order(open_), *pending])

    swap(stack, update_state, "_task", task)


@bug("edits_beside_sends", 20)
def sends_leave_no_trace(stack: ExitStack):
    """A node to which only Sends lead is noted as one that has run, but not when."""
    swap(stack, LiveState, "_note_send", lambda self, node, tick: self.seen.setdefault(node, {}))


@bug("edits_beside_sends", 20)
def gotos_dropped_by_edits(stack: ExitStack):
    """An edit without `as_node` keeps only that to which the edges and routers of its node lead."""
    swap(stack, update_state, "says_where", lambda values: True)


@bug("slow_commits", 12)
def claims_never_end(stack: ExitStack):
    """Who has claimed answers is at work for ever."""
    claim_outlives_its_question(stack)


@bug("posts_to_killed_runs", 6)
def posts_taken_at_the_last_barrier(stack: ExitStack):
    """A run takes what was posted although nothing runs after the step: no node sees it, and no call waits for it."""

    swap(stack, Machine, "has_more", lambda self: True)


@bug("posts_to_killed_runs", 6)
def posts_deleted_when_they_are_read(stack: ExitStack):
    """What was posted is deleted as a run reads it, not in the transaction of the step: a kill between loses it."""

    def read_posts(self, thread_id):
        found = read(self, thread_id)
        if found:
            with self._session(write=True) as session:
                session.run("take_posts", thread_id, [post.id for post in found])
        return found

    read = sql.SqlSaver.read_posts
    swap(stack, sql.SqlSaver, "read_posts", read_posts)
    swap(stack, sql, "take_posts", lambda *_: None)


@bug("posts_to_killed_runs", 3)
def posts_left_in_the_table(stack: ExitStack):
    """A commit does not delete what it has taken: the next run takes it again."""
    swap(stack, sql, "take_posts", lambda *_: None)


@bug("calls_that_take_turns", 4)
def turns_not_waited_for(stack: ExitStack):
    """A call that would wait for the live run of its thread starts at once."""
    swap(stack, turns.Turn, "_may_start", lambda self: True)


@bug("deaths_amid_races", 40)
def finished_supersteps_are_over(stack: ExitStack):
    """A superstep whose tasks have all finished counts as over, though it was not applied."""
    swap(stack, snapshots, "_find_following", lambda seen, ns: [])


@bug("run_ids_together_on_sqlite")
def named_calls_store_late(stack: ExitStack):
    """The input of a call with a run id is stored as late as that of any other."""
    swap(stack, BaseCheckpointSaver, "keeps_input", lambda self, thread_id, run_id: True)


@bug("keys_of_mixed_durabilities", 20)
def ids_by_durability(stack: ExitStack):
    """A call with durability "sync" gives each checkpoint a new id, though a call with "async" may have made and lost it."""
    real = CommitBuilder._make_id

    def make_id(self, *given):
        return real(self, *given) if self._settings.durability == "async" else new_checkpoint_id(self._position.saved_id)

    swap(stack, CommitBuilder, "_make_id", make_id)
