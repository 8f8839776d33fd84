"""What a run hands to its checkpointer: finished tasks and supersteps, encoded the moment they are
done.

Encoding happens here, before anything is applied or goes on running, so that nothing that later
changes a live value can reach the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...channels.base import MISSING, EmptyChannelError
from ...channels.last_value import LastValue
from ...checkpoint.base import (
    CLAIM,
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    MADE_BY,
    NO_WRITES,
    NULL_TASK_ID,
    RESUME,
    RETURN,
    TRACEBACK,
    Checkpoint,
    CheckpointTuple,
    Commit,
    TaskWrites,
)
from ...checkpoint.overrides import stores_at_once
from ...checkpoint.records import iso
from ...checkpoint.serde import Blob
from ...checkpoint.serde.delta import LEAST_ITEMS
from ..clock import CLOCK
from ..names import BY_COMMAND, TASKS, has_task_ids
from ..program.writes import Pair
from ..schedule.machine import Machine
from ..schedule.state import copy_slots
from ..task.ids import new_checkpoint_id, successor_id
from ..task.outcome import traceback_of
from ..task.task import Task
from ..types import Command, without_keys
from .config import scalars
from .ledger import Ledger
from .position import Position
from .settings import Settings, Thread

if TYPE_CHECKING:
    from ...checkpoint.serde.list_encoder import ListEncoder
    from .inbox import Inbox

_MARKS = {
    ERROR: "the error",
    ERROR_SOURCE: "the error",
    INTERRUPT: "what interrupt() asks",
    RESUME: "the answers",
}


class CommitBuilder:
    """Builds the commits and records of one run.

    Attributes:
        metadata: what each checkpoint of the run says of itself; see `build`.
        parents: namespace → the checkpoint from which each graph around this one runs.
        last: the last checkpoint built by this run, or the one from which it goes on, until readers
            have seen it.
        holds_input: the first checkpoint of a new thread is stored with the next one, in one
            transaction (benchmark P23). Only the hidden START lies between them.
        holds_start: that of START waits for the first step, too, but only a moment.
        repeats_input: if the first checkpoints are lost, the same input comes again, and both come
            about again with the same ids.
        made_new: the last checkpoint of this run got a random id: nothing can have been stored
            beside or under it before.
        exit_records: with durability "exit": records of `@task` calls and failures, stored at the
            end of the call.
        inner: with durability "exit": namespace → task and commit of nested graphs that have run to
            their end. It is stored if that task is to go on later.
        inbox: the posts that the run takes; None if the graph takes none.
    """

    __slots__ = (
        "_applying", "_blobs", "_exit_source", "_ledger", "_lists", "_may_repeat", "_position",
        "_settings", "_thread", "exit_records", "holds_input", "holds_start", "inbox", "inner",
        "last", "made_new", "metadata", "parents", "repeats_input",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        thread: Thread,
        position: Position,
        ledger: Ledger,
        inbox: Inbox | None,
    ) -> None:
        self._settings = settings
        self._thread = thread
        self._position = position
        self._ledger = ledger
        # Key → what a task of this superstep wrote last, and encoded.
        self._blobs: dict[str, tuple[Any, Blob]] = {}
        # The next checkpoint may be one that an earlier call has made and lost.
        self._may_repeat = True
        # A superstep is half applied that is not stored at once: no state counts.
        self._applying = False
        self._exit_source = "loop"
        self._lists: dict[str, ListEncoder | None] = {}
        self.metadata: dict[str, Any] = {}
        if thread.saver is not None:
            self.metadata = scalars(settings.config, thread.run_id)
            by_command = isinstance(settings.given, Command) and not thread.parents  # not nested
            if thread.run_id is not None and by_command:
                self.metadata[BY_COMMAND] = True
        self.parents: Mapping[str, str] = thread.parents
        self.last: Commit | CheckpointTuple | None = None
        self.holds_input: bool = False
        self.holds_start: bool = False
        self.made_new: bool = False
        self.repeats_input: bool = False
        self.exit_records: list[TaskWrites] = []
        self.inner: dict[str, tuple[Task, Commit]] = {}
        self.inbox: Final = inbox

    # -- tasks -------------------------------------------------------------------------------------

    def encode_writes(self, task: Task) -> TaskWrites:
        """A finished task's writes as a checkpointer takes them.

        Raises:
            UnserializableError: it wrote what cannot be stored; its notes name key, task and
                thread.
        """
        dumps = self._thread.saver.serde.dumps  # type: ignore[union-attr]
        skip, blobs = self._settings.program.kinds.untracked, self._blobs
        writes = []
        for name, value in task.writes:
            # Untracked channels are never stored, so what is written to them need not be encodable.
            if name not in skip:
                try:
                    if skip and name == TASKS:
                        value = without_keys(value, skip)
                    blob = dumps(value)
                    writes.append((name, blob))
                    blobs[name] = (value, blob)
                except Exception as error:
                    error.add_note(
                        f"while storing key {name!r}, written by task {task.name!r} of "
                        f"{self._thread}"
                    )
                    raise
        ledger = self._ledger
        # Records are replaced by name; without this the old error would stay beside the writes, and
        # the task would count as failed.
        if ledger and ledger.of(task.id).error is not None:
            writes.append((ERROR, dumps(None)))
        # Else a task that wrote nothing could not be told from one that never ran.
        writes = writes or [(NO_WRITES, dumps(None))]
        if task.answers or task.passed_on:
            writes.append((RESUME, dumps({**(task.answers or {}), **task.passed_on})))
        # Beside a checkpoint of another version, `migrate` must not convert what this one wrote.
        stands: Any = task.run.position  # type: ignore[attr-defined]
        if stands.found is not None and stands.is_converted:
            writes.append((MADE_BY, dumps(dict(self._settings.program.fingerprint))))
        return task.to_record(writes)

    def encode_marks(self, task: Task, marks: Mapping[str, Any]) -> TaskWrites:
        """Control writes of a task that failed or paused. Where an error was raised stands beside
        it, so that the error itself comes back as it was.

        Raises:
            UnserializableError: its question, result or answers cannot be stored; the notes name
                the task.
        """
        where = f"of task {task.name!r} of {self._thread}"
        if (error := marks.get(ERROR)) is not None:
            marks = {**marks, TRACEBACK: traceback_of(error)}
        return task.to_record(self._encode(marks.items(), _MARKS, where))

    def encode_failure(self, task: Task) -> TaskWrites:
        """That the error handler of a task has taken over."""
        return self.encode_marks(task, {ERROR: task.error, ERROR_SOURCE: task.name})

    def encode_effect(self, id: str, call: str, result: Any, where: str) -> TaskWrites:
        """What an effect has returned that a task has once.

        Args:
            call: the effect, and what has become of it.

        Raises:
            UnserializableError: it cannot be stored; the notes say where and what to do.
        """
        what = f"the result of {call}: let it return what can be stored, such as an id,"
        return TaskWrites(id, "", self._encode([(RETURN, result)], {RETURN: what}, where))

    def encode_command(self, pairs: Sequence[Pair]) -> TaskWrites:
        """What a `Command` brings beside a checkpoint, as the writes of no task.

        Raises:
            UnserializableError: part of it cannot be stored; its notes say which.
        """
        what = {name: f"key {name!r} of the Command" for name, _ in pairs}
        what[CLAIM] = "the answer in Command(resume=...)"
        return TaskWrites(NULL_TASK_ID, "", self._encode(pairs, what, f"to {self._thread}"))

    def _encode(
        self, pairs: Iterable[Pair], what: Mapping[str, str], where: str
    ) -> list[tuple[str, Blob]]:
        dumps = self._thread.saver.serde.dumps  # type: ignore[union-attr]
        encoded = []
        for name, value in pairs:
            try:
                encoded.append((name, dumps(value)))
            except Exception as error:
                error.add_note(f"while storing {what.get(name, 'the result')} {where}")
                raise
        return encoded

    # -- supersteps --------------------------------------------------------------------------------

    def build(
        self,
        machine: Machine,
        source: str,
        writes: list[TaskWrites],
        checkpoint_id: str | None = None,
    ) -> Commit:
        """The checkpoint of the superstep just applied, ready to be stored.

        Args:
            checkpoint_id: None makes one.

        Raises:
            UnserializableError: a channel holds what cannot be stored; its notes name key, step and
                thread.
        """
        thread, position = self._thread, self._position
        assert thread.saver is not None and thread.thread_id is not None
        values, changed, seen = self._encode_changes(machine)
        self.made_new = False
        if checkpoint_id is None:
            if self._may_repeat:
                checkpoint_id = self._make_id(machine, source, values)
            else:
                checkpoint_id, self.made_new = new_checkpoint_id(position.saved_id), True
        updated = None if machine.changed is None else sorted(machine.changed)
        # Before the saver has it: with async durability the next superstep runs from it at once,
        # and after a failure the journal refuses all that follows.
        machine.mark_saved(checkpoint_id)
        now = CLOCK.time()
        self.last = commit = Commit(
            thread.thread_id,
            thread.ns,
            checkpoint_id,
            position.head,
            position.saved_id,
            now,
            {**self.metadata, "source": source, "step": machine.step - 1, "parents": self.parents},
            values,
            changed,
            seen,
            updated,
            writes,
            lambda: machine.checkpoint(iso(now)),
        )
        if self.inbox is not None:
            self.inbox.hand_over(commit)
        branches = commit.head != commit.parent_id
        late = self._settings.durability == "async"
        if late and not thread.saver.in_memory and (branches or not stores_at_once(thread.saver)):
            self.freeze(commit)  # it may be asked for the whole state when the run has gone on
        self._blobs.clear()
        position.advance(checkpoint_id)
        return commit

    def _make_id(self, machine: Machine, source: str, values: Mapping[str, Blob | None]) -> str:
        """The id of the next checkpoint: the one that an earlier call may have given it. A call may
        have died when tasks had started from a checkpoint that was not stored. Their ids, and so
        the keys of their effects, derive from its id; so whatever the durability of that call was
        and of this one is, the checkpoint gets the same id when it comes about again."""
        thread, position = self._thread, self._position
        saved_id, found = position.saved_id, position.found
        late = self._settings.durability == "async"
        held = self.repeats_input and machine.step <= 1
        # Not looked at again once that is ruled out (P4, P5).
        self._may_repeat = late or held
        # Made of the checkpoint's place alone: that names the task, or the run of the whole graph,
        # so nothing else can come to stand there.
        if held:
            place = thread.ns or f"{thread.thread_id}\0{thread.run_id}"
            return successor_id(f"{saved_id}\0{place}", {})
        # Done again from the same checkpoint with the same outcome, it is the same superstep. That
        # can happen where this call stores late, or an earlier one did: then it is the first that
        # is built on what was loaded.
        if source == "loop" and (late or (found and saved_id == found.checkpoint["id"])):
            return successor_id(saved_id or "", values)
        # The same input is a new one in each unnamed call, and for a memory in each fork around it.
        if source == "input" and late and (thread.ns or thread.run_id):
            parents = "\0".join(self.parents.values())
            return successor_id(f"{saved_id}\0{thread.ns}\0{thread.run_id}\0{parents}", values)
        self.made_new = True
        return new_checkpoint_id(saved_id)

    def _encode_changes(
        self, machine: Machine
    ) -> tuple[dict[str, Blob | None], dict[str, int], dict[str, dict[str, int]]]:
        """What has changed since the last checkpoint: values, their versions, and what nodes have
        seen.

        Loops where comprehensions would do: until Python 3.12 each of those is a call (benchmarks
        P4, P5).
        """
        dumps = self._thread.saver.serde.dumps  # type: ignore[union-attr]
        channels, versions, blobs = machine.channels, machine.versions, self._blobs
        untracked = self._settings.program.kinds.untracked
        values: dict[str, Blob | None] = {}
        changed: dict[str, int] = {}
        seen: dict[str, dict[str, int]] = {}
        for name in machine.unsaved_seen:
            seen[name] = machine.seen[name]
        for name in machine.unsaved:
            changed[name] = versions[name]
            # None: `forget` has dropped a channel that this version of the graph lacks.
            channel = channels.get(name)
            try:
                stored = channel.checkpoint() if channel is not None else MISSING
            except EmptyChannelError:
                stored = MISSING
            known = blobs.get(name)
            if untracked and name == TASKS:
                stored = without_keys(stored, untracked)
            try:
                # Only a LastValue stores what was written as it is; of others the write is not the
                # value.
                if known is not None and stored is known[0] and channel.__class__ is LastValue:
                    # Just encoded as a task's write; no reducer has touched it since.
                    values[name] = known[1]
                elif stored.__class__ is list and len(stored) >= LEAST_ITEMS:
                    values[name] = self._encode_list(name, stored)
                else:
                    values[name] = None if stored is MISSING else dumps(stored)
            except Exception as error:
                error.add_note(
                    f"while storing key {name!r} after step {machine.step - 1} of {self._thread}"
                )
                raise
        return values, changed, seen

    def _encode_list(self, name: str, value: list[Any]) -> Blob:
        """A long list, of which only what has changed is encoded anew (benchmark P21)."""
        serde: Any = self._thread.saver.serde  # type: ignore[union-attr]
        # One encoder per channel and run: it holds what it has encoded last. A serializer of a
        # user's may have none.
        if name not in self._lists:
            make: Any = getattr(serde, "make_list_encoder", None)
            self._lists[name] = make() if make is not None else None
        encoder = self._lists[name]
        blob: Blob = serde.dumps(value) if encoder is None else encoder.dumps(value)
        return blob

    def freeze(self, commit: Commit) -> None:
        """Make the whole checkpoint of a commit now, sharing nothing with the live state: it is
        stored later."""
        serde, checkpoint = self._settings.serde, commit.whole()
        values = {
            name: serde.loads(serde.dumps(value))
            for name, value in checkpoint["channel_values"].items()
        }
        copied = Checkpoint(**{**checkpoint, "channel_values": values})
        commit.whole = lambda: copied

    def describe(self, key: str, value: Any) -> None:
        """Let checkpoints say this in their metadata from now on; None: no longer."""
        if value is None:
            self.metadata.pop(key, None)
        else:
            self.metadata[key] = value

    def allow_holding(self, *, repeats: bool, now: bool) -> None:
        """Let the first commits of a call wait to be stored together.

        Args:
            repeats: if they are lost, the same input comes again.
            now: in this call; an earlier one may have let them wait all the same.
        """
        self.repeats_input, self.holds_input = repeats, now

    def hold_start(self) -> bool:
        """Let the checkpoint of START wait for the first step, if the input is sure to come again:
        whether it does."""
        self.holds_start = self.repeats_input
        return self.holds_start

    def stay_inside(self, found: CheckpointTuple) -> None:
        """Let what is built on this checkpoint of a nested graph name the same checkpoints of the
        graphs around it, so that these find it."""
        self.parents = found.metadata.get("parents", {})

    def go_on_from(self, found: CheckpointTuple | None) -> None:
        """Show readers this checkpoint, from which the run goes on, if none was built before."""
        self.last = self.last or found

    def take_last(self) -> None:
        """Forget the last checkpoint: readers have seen it."""
        self.last = None

    # -- durability "exit" -------------------------------------------------------------------------

    def stand_apart(self) -> CommitBuilder:
        """The same, with records to put off of its own."""
        other: CommitBuilder = copy_slots(self)
        other.exit_records, other.inner = [], {}
        return other

    def put_off(self, records: Iterable[TaskWrites]) -> None:
        """Store these records at the end of the call."""
        self.exit_records.extend(records)

    def postpone(self, machine: Machine, source: str) -> None:
        """Leave a checkpoint that is due to the end of the call."""
        machine.identify()
        self._exit_source = source

    def apply_unstored(self, machine: Machine, tasks: Sequence[Task]) -> None:
        """Apply a superstep that is not stored at once. Ctrl-C may come in between: half of it must
        not be stored."""
        self.inner.clear()  # the tasks that ran those graphs are done
        self._applying = True
        try:
            machine.apply(tasks)
        except Exception:
            self._applying = False  # nothing has happened
            raise
        self.postpone(machine, "loop")
        self.exit_records.clear()
        self._applying = False

    def build_at_exit(self, machine: Machine) -> Commit | None:
        """The one checkpoint of this call, if it changed anything and is whole."""
        changed = machine.unsaved or machine.unsaved_seen or self._exit_source == "fork"
        whole = not machine.open and not self._applying
        # Not what is applied by half, nor what came before a first superstep (a `Command`, posts).
        if not whole or not changed or machine.checkpoint_id == self._position.saved_id:
            return None
        source, self._exit_source = self._exit_source, "loop"
        return self.build(machine, source, [], machine.checkpoint_id)

    def leave_to(self, around: CommitBuilder, task: Task, commit: Commit) -> bool:
        """Leave the checkpoint of a nested graph that has finished to the run around it, if only
        the task that ran it needs it: that run stores there at its own end, and no later task goes
        on from there, as from a history."""
        at_exit = around._settings.durability == "exit"
        same_end = at_exit and around._thread.saver is self._thread.saver
        if not same_end or not has_task_ids(self._thread.ns):
            return False
        around.inner[self._thread.ns] = task, commit
        return True

    def take_left(self, ns: str) -> Commit | None:
        """What the nested graph of this namespace has left here, when its task runs it again."""
        _, commit = self.inner.pop(ns, (None, None))
        return commit

    def left_by_unfinished(self) -> list[Commit]:
        """What nested graphs have left here whose tasks are to go on later."""
        return [commit for task, commit in self.inner.values() if not task.finished]
