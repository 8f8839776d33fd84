"""What both drivers do: they perform what the loop of a run asks for, and hand over its chunks.

Written once, as procedures (see `steps`). `threads` and `aio` say how it is waited.

Theory of operation: `advance` takes one effect after the other from the loop and performs it. It
pauses where the reader is to get its chunks, always after what is due is stored. A single task runs
in place. Several run in a batch, which the loop asks for again and again until all have ended. If
the reader leaves or the driver fails, `abort` throws that into the loop, which may still ask for
things to be stored; no further task starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from sys import modules
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from ...extras import LISTENERS
from ..errors import CheckpointConflictError, GraphBubbleUp, repr_of
from ..run.effects import Effects, Entry, GiveWay, Load, Notify, ReadPosts, Save, Stop, Work
from ..run.loop import carry_out
from ..run.run import Run
from ..steps import PAUSE, Steps, Waits
from ..task.outcome import StepLimit
from ..task.task import Task
from .batch import Batch, wants_out
from .journal import Journal
from .loading import load, read_posts

if TYPE_CHECKING:
    from .limit import AdmissionQueue
    from .racing import Racers


LIVE: dict[Driver, None] = {}
"""The drivers of the live runs of this process, of whole graphs with a checkpointer, in the order
in which they have begun."""

WATCHERS: dict[str, list[Callable[[], None]]] = {}
"""Thread id → what is called when a run of it begins or ends; see `turns`."""


class ReaderLeft(BaseException):
    """Thrown into the loop when the reader of a stream stops early."""


class Driver:
    """Answers the effects of one loop.

    Attributes:
        run: the run that it carries out.
        waits: how this driver waits.
        make_journal: makes the journal of a run.
        make_calls: makes what starts the `@task` calls of a run, on any thread.
        executes: what runs a task, and what does in a run with a deadline.
        slices: how runs share the event loop; None on threads.
        slice_end: until when (`monotonic`) this one may hold it.
    """

    waits: Waits
    make_journal: Callable[[Run], Journal]
    make_calls: Callable[[Run], Any]
    executes: tuple[Callable[[Task], Any], Callable[[Task], Any]]
    slices: Any = None
    slice_end: float = 0.0
    sees_cancels: bool = False
    """Whether the driver can tell that a node has caught the cancellation of its caller."""
    lost_cancel: bool = False
    """A node has caught the cancellation of the task that carries the run."""

    def __init__(self, run: Run, effects: Effects | None = None) -> None:
        self.run: Run = run
        if effects is None:
            effects = carry_out(run)
            # Libraries that are not loaded have no listeners.
            heard = run.listener is not None or any(name in modules for name in LISTENERS)
            if heard or run.settings.observers:
                effects = run.observe(effects)
        self._effects = effects
        self._execute = self.executes[run.settings.deadline is not None]
        self._batch: Batch[Task] | None = None
        self._admission: AdmissionQueue | None = None
        self._racers: Racers | None = None
        self._journal = None if run.thread.saver is None else self.make_journal(run)
        make_calls = self.make_calls
        if run.observing is not None:
            make_calls = run.observing.around_calls(make_calls)
        run.use_driver(self._journal, make_calls)
        seconds = run.settings.step_timeout
        self._limit = None if seconds is None else StepLimit(seconds)
        if self._journal is not None and run.parent is None:
            LIVE[self] = None
            if WATCHERS:
                self._tell_watchers()

    # -- how threads and asyncio differ ------------------------------------------------------------

    def run_alone(self, task: Task) -> Any:
        """Run the only task of a superstep; None if it has ended."""
        raise NotImplementedError

    def make_batch(self, tasks: Sequence[Task]) -> Batch[Task]:
        """Tasks that are to run side by side; tells `end` of each. With schedule="ready" all tasks
        of the call, which come as they start."""
        raise NotImplementedError

    def look_for_cancel(self) -> None:
        """See whether the only task of a superstep has kept the cancellation of its caller to
        itself."""
        raise NotImplementedError

    def raise_cancel(self) -> NoReturn:
        """End the run as the caller's cancellation would have."""
        raise NotImplementedError

    # -- what they have in common ------------------------------------------------------------------

    def advance(self) -> Steps[Any]:
        """Carry the run through to its end; pause where chunks are to be handed over."""
        journal, output = self._journal, self.run.output
        chunks, live, run_alone = output.chunks, output.live, self.run_alone
        for effect in self._effects:
            if effect.__class__ is not Work:  # no isinstance: once a superstep (P1)
                if chunks and effect.__class__ is Notify:  # listeners hear of the end after readers
                    if journal is not None and journal.holds:
                        yield journal.flush()
                    yield PAUSE
                waited = self._perform(effect)
                if waited is not None:
                    yield waited
                continue
            if self.lost_cancel:
                self.raise_cancel()
            if self.slices is not None and monotonic() > self.slice_end:
                # Here all is stored and nothing runs: a good place to be cancelled.
                self.slice_end = yield self.slices.give_way()
            # All that is due has been stored by now, so what the reader sees is safe (durability
            # "sync"), but for an input that is held until START has run.
            if chunks and not (journal is not None and journal.holds):
                yield PAUSE
            # A superstep that could not be stored in the background: no further node may run.
            if journal is not None and journal.unreported is not None:
                journal.check()
            tasks = effect.tasks
            if len(tasks) == 1 and not live and not effect.open:
                # One task needs no batch, no worker, no queue and no asyncio task (P1, P2, P3).
                waited = run_alone(tasks[0])
                if waited is not None:
                    yield waited
                    if self.sees_cancels:
                        self.look_for_cancel()
                effect.finished = tasks
                continue
            yield from self._run_batch(effect)
            while effect.open and not effect.finished:  # woken by a chunk
                yield PAUSE
                yield from self._run_batch(effect)
        if self.lost_cancel:
            self.raise_cancel()
        if journal is not None:
            yield journal.flush()
            self.run.settings.control.end(paused=output.questions is not None)
            self._leave()

    # -- as other calls of the thread see it -------------------------------------------------------

    def works_on(self, saver: Any, thread_id: str, run_id: str | None = None) -> bool:
        """Whether this is a run of that thread; and, if it is named, that very run."""
        thread = self.run.thread
        named = run_id is None or thread.run_id == run_id
        return thread.thread_id == thread_id and thread.saver is saver and named

    def drain(self, reason: str) -> None:
        """Let the run end before its next superstep."""
        self.run.settings.ending.request(reason)

    def cut(self, reason: str) -> None:
        """Let the run end as soon as it can be: functions on threads come to their ends."""
        self.drain(reason)

    def _leave(self) -> None:
        """Drop out of the live runs: the run has ended, and all is stored."""
        LIVE.pop(self, None)
        if WATCHERS:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for wake in tuple(WATCHERS.get(self.run.thread.thread_id or "", ())):
            wake()

    def _perform(self, effect: Any) -> Any:
        """Store, load, or give way: what is to be waited for; None if there is nothing."""
        run, journal = self.run, self._journal
        if isinstance(effect, Entry):  # first, for it comes with each superstep (P4, P5)
            assert journal is not None  # without one the loop stores and loads nothing
            if run.saves_in_background and effect.__class__ is Save:
                return self.waits.run(self._save_in_background(journal, effect))
            return journal.store(effect)  # no generator of its own
        if isinstance(effect, GiveWay):
            late = self.slices is not None and monotonic() > self.slice_end
            if not late:
                return None
            return self.waits.run(self._give_way())
        if isinstance(effect, Notify):
            if effect.begins:
                return self.waits.ask(effect.span, "enter")
            return self.waits.ask(effect.span, "leave", effect.error)
        if isinstance(effect, Stop):
            if self._batch is not None and self._racers is not None:
                self._racers.stop(effect.tasks, self._batch)
                effect.work.open = self._batch.open
                if not self._batch.open:
                    self._batch = None
            return None
        if isinstance(effect, ReadPosts):
            return self.waits.run(read_posts(run, effect, self.waits))
        if run.may_come_twice:
            return self.waits.run(self._load(effect))
        return self.waits.run(load(run, effect, self.waits))

    def _load(self, effect: Load) -> Steps[None]:
        """Load what a call starts from that may come twice, and say whether its first delivery is
        live: else it must be dead, as far as this process knows, and the call goes on for it."""
        yield from load(self.run, effect, self.waits)
        thread = self.run.thread
        effect.delivered_live = any(
            driver.works_on(thread.saver, thread.thread_id or "", thread.run_id)
            for driver in takewhile(lambda driver: driver is not self, tuple(LIVE))
        )

    def _give_way(self) -> Steps[None]:
        self.slice_end = yield self.slices.give_way()

    def _save_in_background(self, journal: Journal, save: Save) -> Steps[None]:
        """Store while the next superstep runs: so one at most is unsaved."""
        try:
            yield journal.flush()
        except BaseException:
            self.run.output.drop_chunks()
            raise
        journal.post(save)

    def _run_batch(self, effect: Work) -> Steps[None]:
        """Start tasks beside those at work, and wait for one of all, or for all if nobody waits for
        single ones. Take along what else has ended.

        Raises:
            StepTimeoutError: no task has ended until the superstep's limit. Nobody waits for them
                any longer.
        """
        run, limit = self.run, self._limit
        # A race is decided as soon as one of it has ended.
        watched, chunks = run.watched or effect.races is not None, run.output.chunks
        keeps_batch = run.program.starts_ready
        batch = self._add_to_batch(effect, watched=watched, keeps_batch=keeps_batch)
        watched = watched or keeps_batch
        while batch.open > len(batch.ended) and not (watched and (batch.ended or chunks)):
            yield batch.wait(None if limit is None else limit.remaining())
            if limit is not None and not batch.ended and limit.remaining() <= 0:
                self._batch = None
                batch.cancel()
                raise limit.expire()
        # Tasks that end together are recorded in one transaction instead of one each. Where they
        # run one after the other, which ends are seen together is chance.
        together = limit is None and not run.settings.one_at_a_time
        if batch.ended and together and (run.records_early or effect.races is not None):
            batch.gather()
        effect.finished = self._take_ended(batch)
        effect.open = batch.open
        if not batch.open and not keeps_batch:
            self._batch = None

    def _add_to_batch(self, effect: Work, *, watched: bool, keeps_batch: bool) -> Batch[Task]:
        """Start tasks side by side: with schedule="ready" in the one batch of the call, else those
        of a superstep in one of their own."""
        tasks, effect.tasks = effect.tasks, ()
        run, batch = self.run, self._batch
        if tasks and self._limit is not None:
            tasks = self._limit.detach(tasks)
        if batch is None:
            self._racers = None
        if tasks and effect.races is not None:
            if self._racers is None:
                from .racing import Racers

                self._racers = Racers(effect.races)
            self._racers.add(tasks)
        if batch is None:
            first = () if keeps_batch else tasks
            batch = self._batch = self.make_batch(first)
            if run.settings.graph.limited:  # those that have a `Limit` start when they have a place
                from .limit import AdmissionQueue

                self._admission = batch.admit_by(AdmissionQueue(first, batch.call_worker))
            if first:
                # If nobody waits for single tasks, this thread is the first worker: quick tasks are
                # done before another thread has woken (P7, P8).
                batch.start(here=not watched)
                return batch
        if tasks:  # error handlers, or with schedule="ready"
            batch.add(tasks)
        return batch

    def _take_ended(self, batch: Batch[Task]) -> Sequence[Task]:
        ended = batch.take()
        return ended if self._limit is None else [self._limit.admit(copy) for copy in ended]

    def end(self, task: Task, error: BaseException | None) -> None:
        """Take note that a task has ended. After a failure (a signal is none) no further task is
        started, but for those that could have been started with it, and coroutines are cancelled. A
        function on a worker thread cannot be cancelled: it is waited for and its result kept. With
        on_failure="finish" all go on."""
        if error is not None and task.error is None:
            task.fail(error)  # it must not raise; if it does, no wait may hang
        if self._admission is not None:
            self._admission.release(task)
        fatal = not (task.error is None or task.is_handled or isinstance(task.error, GraphBubbleUp))
        if fatal and self._batch is not None:
            out = wants_out(task.error)
            if not out and self._racers is not None and not self._racers.fails(task):
                return
            if out or self.run.settings.on_failure == "stop":
                self._batch.stop(at_once=out or self._admission is not None)

    def wake(self) -> None:
        """Wake the driver, as a chunk waits for the reader. May be called from any thread."""
        batch = self._batch
        if batch is not None:
            batch.wake()

    def abort(self, error: BaseException) -> Steps[None]:
        """Cut the run short: cancel what is under way, and return the procedure by which it
        ends."""
        self.run.cancel()
        self.run.output.close()
        if self._batch is not None:
            self._batch.cancel()
        return self._end_by(error)

    def _end_by(self, error: BaseException) -> Steps[None]:
        """Let running tasks end, then let the loop keep what was done. Its own end is not our
        concern."""
        writer = None if self._journal is None else self._journal.own_writer
        if writer and isinstance(error, CheckpointConflictError):
            error.add_note(
                f"The other run was made by node {writer!r} of this one: it has "
                "called update_state or run a graph on the thread of its own run. Return the "
                "update from the node; give a graph that the node runs the node's own config, or "
                "another thread_id"
            )
        if self._batch is not None:
            # A function on a thread cannot be stopped. What it returns is still kept, so it is
            # waited for.
            try:
                yield self._batch.join()
            except BaseException:  # Ctrl-C again
                self.run.give_up()
                self._leave()
                raise
            self._take_ended(self._batch)
            self._batch = None
        try:
            effect = self._effects.throw(error)
            while True:
                # Whatever the loop still asks for, nothing starts any more.
                if not isinstance(effect, Work):
                    waited = self._perform(effect)
                    if waited is not None:
                        yield waited
                effect = next(self._effects)
        except BaseException as end:
            _note_loss(error, end)
        finally:
            self._effects.close()
        try:
            if self._journal is not None:
                yield self._journal.flush()
        except BaseException as end:
            _note_loss(error, end)
        self._leave()
        if not isinstance(error, (Exception, GraphBubbleUp)):
            self.run.output.drop_chunks()  # Ctrl-C and cancellation do not wait for the reader


def _note_loss(error: BaseException, end: BaseException) -> None:
    """Note on an error that storing the work done by then has failed as well.

    Args:
        error: was thrown into the loop; the caller raises it.
        end: with what the loop ended.
    """
    if end is not error and isinstance(end, Exception) and not isinstance(end, StopIteration):
        error.add_note(f"Storing the work that was done by then failed as well: {repr_of(end)}")
