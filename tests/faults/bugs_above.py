"""Bugs on purpose in the engine: who records what, who takes answers, keys, order, changes, whose answer it is."""

from __future__ import annotations

import os
from contextlib import ExitStack
from hashlib import blake2b
from itertools import count, takewhile

import stategraph.checkpoint.sql.saver as sql
import stategraph.checkpoint.sql.transaction as transactions
import stategraph.executors.frames as frames
import stategraph.executors.processes as processes
import stategraph.pregel.drivers.ajournal as ajournal
import stategraph.pregel.drivers.futures as calls
import stategraph.pregel.drivers.journal as journal
import stategraph.pregel.drivers.side_effects as side_effects
import stategraph.pregel.drivers.sleeping as sleeping
import stategraph.pregel.drivers.spending as spending
import stategraph.pregel.drivers.threads as threads
import stategraph.pregel.drivers.timeslice as timeslice
import stategraph.pregel.drivers.undoing as undoing
import stategraph.pregel.run.ledger as ledgers
import stategraph.pregel.run.load as load
import stategraph.pregel.run.loop as loop
import stategraph.pregel.run.start as start
import stategraph.pregel.run.stream as stream
import stategraph.pregel.schedule.machine as machine
import stategraph.pregel.task.ids as ids
import stategraph.pregel.task.interrupts as interrupts
import stategraph.pregel.task.task as task
from stategraph.pregel.budgets import EVENTS
from stategraph.pregel.run.ledger import Ledger
from stategraph.pregel.run.recording import Recording

from .planted import bug, swap


@bug("failed_siblings", 12)
def finisher_not_recorded(stack: ExitStack):
    """Who ends first in a superstep is marked as recorded and is not."""

    def record(self, tasks):
        for each in tasks if self._run.records_early else ():
            each.recorded = True
        return
        yield

    swap(stack, Recording, "record_early", record)


@bug("failed_siblings", 12)
def recorded_work_repeated(stack: ExitStack):
    """What a run had recorded before it failed is not taken up."""
    swap(stack, loop, "restore", lambda run, tasks: None)


@bug("calls_inside", 6)
def nested_replay_starts_over(stack: ExitStack):
    """A graph inside does not go on from the checkpoint that was named, but takes its input anew."""

    def load_seed(run):
        return None
        yield

    swap(stack, load, "load_seed", load_seed)


@bug("answers_in_sqlite", 4)
def double_resume(stack: ExitStack):
    """Several answers to one question are all taken."""

    store = sql.SqlSaver._store_records

    swap(stack, sql.SqlSaver, "_store_records", lambda self, where, expected, writes: store(self, where, None, writes))


@bug("calls_on_threads", 6)
def answers_kept_for_later(stack: ExitStack):
    """An answer that was taken is given to the next question too."""
    real = Ledger.take

    def take(self, question, by, inside=()):
        taken = real(self, question, by, inside)
        if taken:
            self.brought.setdefault(ledgers.FIRST, taken[0])
        return taken

    swap(stack, Ledger, "take", take)


@bug("delivered_again", 6)
def run_ids_ignored(stack: ExitStack):
    """A call that is delivered twice is applied twice."""
    swap(stack, start, "_was_delivered", lambda run, given: False)
    swap(stack, load, "_may_have_followed", lambda run, head: False)


@bug("delivered_again", 12)
def late_deliveries_applied(stack: ExitStack):
    """A call that comes again after others is applied again."""
    swap(stack, load, "_may_have_followed", lambda run, head: False)


@bug("failing_saves", 4)
def unawaited_writes(stack: ExitStack):
    """Nobody looks what became of a save in the background."""
    swap(stack, journal.Journal, "_fail", lambda self, entry, error: None)


@bug("hanging_saves", 6)
def saves_pile_up(stack: ExitStack):
    """The run goes on while saves wait in a queue."""

    async def aflush(self):
        return

    swap(stack, journal.Journal, "flush", lambda self: None)
    swap(stack, ajournal.AsyncJournal, "flush", aflush)


@bug("keys_are_stable", 10)
def key_of_an_attempt(stack: ExitStack):
    """The idempotency key changes with every attempt."""
    real = task.Task.begin_attempt

    def begin_attempt(self):
        real(self)
        self._id = f"{self.id}-{self.attempt}"

    swap(stack, task.Task, "begin_attempt", begin_attempt)


@bug("keys_are_stable", 10)
def fork_reuses_keys(stack: ExitStack):
    """The key does not know the checkpoint, so a fork has the keys of its past."""
    real = task.task_id

    def reuse(checkpoint_id, ns, step, each):
        # Of a task that holds a graph the id names the place of its checkpoints, too: those of a fork stay apart.
        if getattr(each.node.source, "is_stategraph", False):
            return real(checkpoint_id, ns, step, each)
        return real("", ns.split(":")[0], 0, each)

    swap(stack, task, "task_id", reuse)


@bug("swapped_calls_and_questions", 30)
def retry_repeats_children(stack: ExitStack):
    """A retried function does not find the tasks that it had called."""
    swap(stack, calls.Calls, "_made_before", lambda self, child: None)
    swap(stack, calls.Calls, "_find_recorded", lambda self, child: None)


@bug("any_order_of_ends", 6)
def order_of_arrival(stack: ExitStack):
    """Writes are applied as tasks end, not in path order."""
    ended = []
    real = threads.run_task

    def run_task(each):
        real(each)
        ended.append(id(each))

    def in_path_order(tasks):
        return sorted(tasks, key=lambda each: ended.index(id(each)) if id(each) in ended else -1)

    swap(stack, threads.ThreadDriver, "executes", (run_task, run_task))
    swap(stack, machine, "in_path_order", in_path_order)


@bug("shared_loops", 12)
def loop_never_given_away(stack: ExitStack):
    """An async run that never waits holds its event loop to the end."""
    swap(stack, timeslice.TimeSlices, "end", lambda self: float("inf"))


@bug("forking_nodes", 6)
def answers_by_order(stack: ExitStack):
    """The first answer that comes is the call's: nobody looks whose it is."""
    real = frames.Frames.receive
    swap(stack, frames.Frames, "receive", lambda self, call=None, due=None: real(self, None, due))
    swap(stack, processes._Worker, "is_ready", lambda self: True)


@bug("forking_nodes", 6)
def children_write(stack: ExitStack):
    """What a node has forked comes back to the loop that serves calls, and has its parent's pipe."""
    bug = "import os, contextlib; import stategraph.executors.worker as w; w._end_forked_child = contextlib.nullcontext; "
    bug += "os.register_at_fork = lambda **_: None; "
    swap(stack, processes, "BOOT", processes.BOOT.replace("from ", bug + "from ", 1))


@bug("forking_nodes", 3)
def only_the_pipe_is_waited_for(stack: ExitStack):
    """A worker has died when its pipe ends, which a child of its may hold."""
    swap(stack, processes, "open_sentinel", lambda process: os.pidfd_open(os.getpid()))


@bug("messages_shown_once", 12)
def messages_repeated(stack: ExitStack):
    """After a resume a message that a nested graph had shown is shown again by the node around it."""
    swap(stack, stream.Stream, "known", lambda self, values: None)


@bug("swapped_calls_and_questions", 30)
def calls_by_place(stack: ExitStack):
    """A call is known by its name and its place among its caller's calls, whatever it was called with."""

    def call_id(parent, node, digest):
        return ids.uuid_text(blake2b(f"{parent.id} {node.name} {len(parent.current.calls)}".encode(), digest_size=16).hexdigest())

    swap(stack, calls, "call_id", call_id)


@bug("swapped_calls_and_questions", 30)
def questions_by_place(stack: ExitStack):
    """A question is known by its place among its task's questions, whatever it asks."""
    real = interrupts.identify
    swap(stack, interrupts, "identify", lambda ns, place, content, equal: real(ns, place, "", place))


@bug("reordered_questions", 30)
def places_tell_questions_apart(stack: ExitStack):
    """A question is known by its value and its place among its task's questions."""
    real = interrupts.identify

    def identify(ns, place, content, equal):
        return interrupts.Question(real(ns, place, content, equal).earlier[0])

    swap(stack, interrupts, "identify", identify)


@bug("reordered_questions", 30)
def unreached_answers_dropped(stack: ExitStack):
    """An answer is dropped if its task, running again, comes to another question first."""
    swap(stack, Ledger, "keep", lambda self, task, asked: None)


@bug("swapped_calls_and_questions", 30)
def unanswered_calls_run(stack: ExitStack):
    """A call runs again though nobody has answered what it asks."""
    real = calls.Calls._find_recorded

    def find_recorded(self, child):
        record = self.run.ledger.get(child.id)
        return real(self, child) if record is not None and record.finished else None

    swap(stack, calls.Calls, "_find_recorded", find_recorded)


@bug("swapped_calls_and_questions", 30)
def answers_lost_with_their_attempt(stack: ExitStack):
    """What a call was answered is forgotten when its caller is tried again."""
    real = calls.Calls._made_before

    def made_before(self, child):
        future = real(self, child)
        if future is None:
            child.answers = None
        return future

    swap(stack, calls.Calls, "_made_before", made_before)


@bug("killed_effects", 8)
def effect_kept_in_memory(stack: ExitStack):
    """What an effect returned is remembered by its run, and recorded nowhere else."""

    def save(record, result):
        record._results[record._id] = record._encode(result)

    swap(stack, side_effects.StoredEffect, "save", save)


@bug("killed_effects", 8)
def effect_record_under_another_id(stack: ExitStack):
    """The record of an effect is found in the process that made it, and in no other."""

    def effect_id(task_id, kind, key):
        return f"{task_id}{key}{os.getpid()}"

    swap(stack, side_effects, "effect_id", effect_id)


@bug("killed_transactions", 8)
def transaction_recorded_in_a_second_one(stack: ExitStack):
    """What the function of a transaction has written is committed before its record is made."""

    def transact(saver, place, function):
        connection = saver._database.connection
        with saver._session(write=True) as session:
            record = transactions.UserFunction(saver, function).call(connection, transactions.OWN_TABLES)
        with saver._session(write=True) as session:
            return transactions.transact_in(saver, session, place, lambda: record)

    swap(stack, transactions, "transact_on_sqlite", transact)


@bug("killed_transactions", 8)
def transaction_recorded_as_its_task(stack: ExitStack):
    """The record of a transaction has the id of its task, and so counts as its output."""

    def effect_id(task_id, kind, key):
        return task_id

    swap(stack, side_effects, "effect_id", effect_id)


@bug("killed_sagas", 12)
def undo_functions_not_recorded(stack: ExitStack):
    """An undo function is called as it is, and nothing is recorded of the call."""
    swap(stack, undoing, "_call", lambda function, arguments: getattr(function, "__wrapped__", function)(**arguments))


@bug("killed_sagas", 4)
def first_done_first_undone(stack: ExitStack):
    """Calls are undone in the order in which they were made."""
    as_input = undoing._Plan.as_input

    def turned(self, reason):
        found = as_input(self, reason)
        return {**found, "effects": found["effects"][::-1]}

    swap(stack, undoing._Plan, "as_input", turned)


@bug("killed_sleeps", 8)
def wake_time_kept_in_memory(stack: ExitStack):
    """Until when a task sleeps is remembered by its run, and recorded nowhere else."""
    swap(stack, sleeping, "record_of", side_effects.EffectRecord)


@bug("killed_sleeps", 8)
def sleepers_are_run_too_early(stack: ExitStack):
    """Each call runs the tasks that sleep, though their time has not come."""
    swap(stack, ledgers.TaskRecord, "asleep", property(lambda record: False))


@bug("killed_budgets", 4)
def gaps_end_the_count_of_a_budget(stack: ExitStack):
    """What calls have spent is not counted behind one that was refused, or killed before it was recorded."""
    find = spending._find_records

    def find_in_a_row(total, records):
        found = {each[EVENTS]: each for each in find(total, records)}
        return [found[event] for event in takewhile(found.__contains__, count(total.get(EVENTS, 0) + 1))]

    swap(stack, spending, "_find_records", find_in_a_row)


@bug("killed_budgets", 4)
def reservations_kept_in_memory(stack: ExitStack):
    """What a call reserves of a budget is not recorded before the call."""
    swap(stack, spending.Reservation, "save", lambda self: [])


@bug("budgets_of_killed_workers")
def user_totals_replaced_blindly(stack: ExitStack):
    """The total of a user is replaced whatever other threads have made of it."""
    swap(stack, spending, "UnchangedOp", lambda namespace, key, old: spending.GetOp(namespace, key))
