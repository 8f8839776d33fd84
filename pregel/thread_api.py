"""The methods of a graph that read and change stored threads: state, history, graphs inside, why a
node did not run, updates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from typing_extensions import TypedDict, TypeVar, Unpack

from ..channels.base import check_kind
from ..checkpoint.base import (
    UNDER_WAY,
    UNDOING,
    BaseCheckpointSaver,
    CheckpointTuple,
    address,
    coordinates,
)
from ..checkpoint.serde import Serializer
from .drivers import threads
from .drivers.waits import WAITS
from .errors import GraphBubbleUp, nearest
from .names import graph_keys, join_ns, memory_below, memory_ns, split_number
from .program.program import Program
from .program.version import Migrate, apply_migration
from .run.config import Call, check_version, merge_configs, normalize
from .run.effects import Effects
from .run.nested import leaving, ns_of, saver_of
from .run.run import Run
from .run.snapshots import Origins, complete, empty_snapshot, find_whole, snapshot_of
from .steps import Steps, Waits, arun_steps, run_steps
from .types import (
    AnyConfig,
    IsDataclass,
    IsModel,
    RunnableConfig,
    StateSnapshot,
    StateUpdate,
    Subgraph,
    Version,
)

if TYPE_CHECKING:
    from .run.explain import NodeStatus

ValuesT = TypeVar("ValuesT", default=Any, covariant=True)
Found = TypeVar("Found", CheckpointTuple, CheckpointTuple | None)


class StateOptions(TypedDict, total=False):
    """The keyword options of `get_state`."""

    subgraphs: bool
    subgraph: Subgraph | None
    version: Version


class HistoryOptions(TypedDict, total=False):
    """The keyword options of `get_state_history`."""

    filter: Mapping[str, Any] | None
    before: AnyConfig | None
    limit: int | None
    subgraph: Subgraph | None
    version: Version


class StoredThreads(Generic[ValuesT]):
    """The methods of a graph with a checkpointer that read and change its threads."""

    program: Program
    checkpointer: BaseCheckpointSaver | bool | None
    config: RunnableConfig
    serde: Serializer
    inbox: bool
    migrate: Migrate | None

    @overload
    def get_state(
        self: StoredThreads[IsDataclass | IsModel],
        config: AnyConfig,
        **options: Unpack[StateOptions],
    ) -> StateSnapshot[Any]: ...
    @overload
    def get_state(
        self, config: AnyConfig, **options: Unpack[StateOptions]
    ) -> StateSnapshot[ValuesT]: ...
    def get_state(
        self,
        config: AnyConfig,
        *,
        subgraphs: bool = False,
        subgraph: Subgraph | None = None,
        version: Version = "v1",
    ) -> StateSnapshot[Any]:
        """Return the state of a thread at its newest checkpoint, or at the one that `config` names.

        Args:
            config: the thread; with a `checkpoint_ns`, a nested graph's part of it.
            subgraphs: whether `tasks[...].state` holds the snapshots of nested graphs instead of
                their configs. They show the nested graphs as they are now, even at an old
                checkpoint.
            subgraph: instead of the whole graph's, the memory that a graph inside it keeps
                (`checkpointer=True`): the name of its node, or (name, key) for that of a
                `Send(..., key=...)`; a list of these for a graph inside such a graph.
            version: with "v2" `values` are an instance of the state's class, if that is a dataclass
                or a model. A dict as in "v1" if no instance can be made of them, such as before all
                required keys are written.

        Raises:
            ValueError: the graph has no checkpointer, or the config names no thread, or an unknown
                checkpoint or nested graph; or `subgraph` is unknown, or keeps no memory.
        """
        return run_steps(self._get_state(config, subgraphs, subgraph, version, WAITS))

    @overload
    async def aget_state(
        self: StoredThreads[IsDataclass | IsModel],
        config: AnyConfig,
        **options: Unpack[StateOptions],
    ) -> StateSnapshot[Any]: ...
    @overload
    async def aget_state(
        self, config: AnyConfig, **options: Unpack[StateOptions]
    ) -> StateSnapshot[ValuesT]: ...
    async def aget_state(
        self,
        config: AnyConfig,
        *,
        subgraphs: bool = False,
        subgraph: Subgraph | None = None,
        version: Version = "v1",
    ) -> StateSnapshot[Any]:
        """`get_state` for coroutines."""
        from .drivers.awaits import AWAITS

        return await arun_steps(self._get_state(config, subgraphs, subgraph, version, AWAITS))

    def _get_state(
        self,
        config: AnyConfig,
        subgraphs: bool,
        subgraph: Subgraph | None,
        version: Version,
        waits: Waits,
    ) -> Steps[StateSnapshot]:
        saver, where = self._memory(config, subgraph)
        snapshot = yield from self._state(saver, where, subgraphs, check_version(version), waits)
        if self.inbox:
            from .run.inbox import show_posts

            thread_id, ns, checkpoint_id = coordinates(where)
            if not ns and checkpoint_id is None:  # the thread as it is now
                posts = yield waits.ask(saver, "read_posts", thread_id)
                snapshot = snapshot._replace(posts=show_posts(saver, posts, self.program.stream))
        return snapshot

    @overload
    def get_state_history(
        self: StoredThreads[IsDataclass | IsModel],
        config: AnyConfig,
        **options: Unpack[HistoryOptions],
    ) -> Iterator[StateSnapshot[Any]]: ...
    @overload
    def get_state_history(
        self, config: AnyConfig, **options: Unpack[HistoryOptions]
    ) -> Iterator[StateSnapshot[ValuesT]]: ...
    def get_state_history(
        self,
        config: AnyConfig,
        *,
        filter: Mapping[str, Any] | None = None,
        before: AnyConfig | None = None,
        limit: int | None = None,
        subgraph: Subgraph | None = None,
        version: Version = "v1",
    ) -> Iterator[StateSnapshot[Any]]:
        """Yield the checkpoints of a thread, newest first, each as it was when its superstep began.

        Args:
            config: the thread; with a `checkpoint_ns`, a nested graph's part of it. With a
                `checkpoint_id`, only that checkpoint.
            filter: metadata keys and the values that they must have.
            before: only checkpoints that are older than the one that this config names.
            limit: the maximum number of checkpoints.
            subgraph, version: as in `get_state`.

        Raises:
            ValueError: as `get_state`.
        """
        typed = check_version(version)
        saver, where = self._memory(config, subgraph)
        known, older = Origins(), cast(Any, before)
        graph = self.nested(ns_of(where))
        for found in saver.list(where, filter=filter, before=older, limit=limit):
            if UNDER_WAY in found.metadata:
                found = run_steps(complete(saver, found, known, WAITS))
            yield graph._snapshot(found, typed, live=False)

    @overload
    def aget_state_history(
        self: StoredThreads[IsDataclass | IsModel],
        config: AnyConfig,
        **options: Unpack[HistoryOptions],
    ) -> AsyncIterator[StateSnapshot[Any]]: ...
    @overload
    def aget_state_history(
        self, config: AnyConfig, **options: Unpack[HistoryOptions]
    ) -> AsyncIterator[StateSnapshot[ValuesT]]: ...
    async def aget_state_history(
        self,
        config: AnyConfig,
        *,
        filter: Mapping[str, Any] | None = None,
        before: AnyConfig | None = None,
        limit: int | None = None,
        subgraph: Subgraph | None = None,
        version: Version = "v1",
    ) -> AsyncIterator[StateSnapshot[Any]]:
        """`get_state_history` for coroutines."""
        from .drivers.awaits import AWAITS
        from .drivers.timeslice import time_slices

        typed = check_version(version)
        saver, where = self._memory(config, subgraph)
        slices = time_slices()
        slice_end = slices.end()
        known, older = Origins(), cast(Any, before)
        graph = self.nested(ns_of(where))
        async for found in saver.alist(where, filter=filter, before=older, limit=limit):
            if UNDER_WAY in found.metadata:
                found = await arun_steps(complete(saver, found, known, AWAITS))
            yield graph._snapshot(found, typed, live=False)
            if monotonic() > slice_end:
                slice_end = await slices.give_way()

    @overload
    def get_subgraphs(
        self, config: None = None, *, namespace: str | None = None, recurse: bool = False
    ) -> Iterator[tuple[str, StoredThreads[Any]]]: ...
    @overload
    def get_subgraphs(
        self, config: AnyConfig, *, namespace: str | None = None, recurse: bool = False
    ) -> Iterator[tuple[Subgraph, StoredThreads[Any] | None]]: ...
    def get_subgraphs(
        self,
        config: AnyConfig | None = None,
        *,
        namespace: str | None = None,
        recurse: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """The nested graphs: those that nodes are made of, and those that nodes have run in this
        process. Graphs with `checkpointer=False` are left out. With a `config`, the memories that
        nested graphs (`checkpointer=True`) keep on its thread, at work or idle.

        Args:
            config: a thread.
            namespace: only the graph with this name, such as "research" or "research|search"; with
                a `config`, its memories.
            recurse: whether the graphs inside them are included.

        Yields:
            (name, graph); the name of a graph inside another follows that one's name and a `|`.
            With a `config`, (subgraph, graph) with what `get_state(config, subgraph=...)` takes;
            the graph is None if it is not known before its node has run in this process.

        Raises:
            ValueError: no graph with that name is known; the config names no thread.
        """
        if config is not None:
            saver, where = self._thread(config)
            found = saver.namespaces(where["configurable"]["thread_id"])
            yield from self._list_memories(found, ns_of(where), namespace, recurse)
        elif namespace is not None:
            yield namespace, self.nested(namespace)
        else:
            yield from _below(self, "", recurse, (self,))

    @overload
    def aget_subgraphs(
        self, config: None = None, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, StoredThreads[Any]]]: ...
    @overload
    def aget_subgraphs(
        self, config: AnyConfig, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[Subgraph, StoredThreads[Any] | None]]: ...
    async def aget_subgraphs(
        self,
        config: AnyConfig | None = None,
        *,
        namespace: str | None = None,
        recurse: bool = False,
    ) -> AsyncIterator[tuple[Any, Any]]:
        """`get_subgraphs` for coroutines."""
        if config is None:
            for known in self.get_subgraphs(namespace=namespace, recurse=recurse):
                yield known
            return
        saver, where = self._thread(config)
        found = await saver.anamespaces(where["configurable"]["thread_id"])
        for memory in self._list_memories(found, ns_of(where), namespace, recurse):
            yield memory

    def _list_memories(
        self, found: Collection[str], around: str, namespace: str | None, recurse: bool
    ) -> Iterator[tuple[Subgraph, StoredThreads[Any] | None]]:
        """The memories among stored namespaces, by name."""
        check_kind("namespace", namespace, str | None, 'names of nodes, such as "outer|inner"')
        wanted = graph_keys(namespace) if namespace is not None else None
        for ns in sorted(found):
            path = memory_below(ns, around)
            if path is None or (len(path) > 1 and not recurse and wanted is None):
                continue
            if wanted is not None and [name for name, _ in path] != wanted:
                continue
            try:
                graph = self.nested(ns)
            except ValueError:  # a function runs it, and has not in this process
                graph = None
            levels = [name if key is None else (name, key) for name, key in path]
            yield levels[0] if len(levels) == 1 else levels, graph

    def explain(self, config: AnyConfig) -> dict[str, NodeStatus]:
        """Explain why each node would or would not run now, from what is stored: what a run that is
        at work has started since the last checkpoint is not known.

        Returns:
            node name → `NodeStatus`, with a sentence that names triggers and open joins.
        """
        return run_steps(self._explain(config, WAITS))

    async def aexplain(self, config: AnyConfig) -> dict[str, NodeStatus]:
        """`explain` for coroutines."""
        from .drivers.awaits import AWAITS

        return await arun_steps(self._explain(config, AWAITS))

    def _explain(self, config: AnyConfig, waits: Waits) -> Steps[dict[str, NodeStatus]]:
        from .run.explain import explain

        saver, where = self._thread(config)
        graph, found = self.nested(ns_of(where)), (yield from find_whole(saver, where, waits))
        return explain(graph.program, graph._as_mine(_existing(where, found)))

    def _state(
        self,
        saver: BaseCheckpointSaver,
        where: RunnableConfig,
        subgraphs: bool,
        typed: bool,
        waits: Waits,
    ) -> Steps[StateSnapshot]:
        """A snapshot and, below it, those of the nested graphs its tasks have run."""
        ns = ns_of(where)
        mine = saver_of(self.program, saver, ns) if ns else saver
        found = _existing(where, (yield from find_whole(mine, where, waits)))
        graph = self.nested(ns) if ns else self
        if found is None:
            return empty_snapshot(where)
        checkpoint_id = where["configurable"].get("checkpoint_id")
        snapshot = graph._snapshot(found, typed, live=checkpoint_id is None)
        if not subgraphs:
            return snapshot
        tasks = []
        for task in snapshot.tasks:
            if task.state is not None:
                below = yield from self._state(saver, task.state, subgraphs, typed, waits)
                task = task._replace(state=below if below.metadata is not None else None)
            tasks.append(task)
        return snapshot._replace(tasks=tuple(tasks))

    def _snapshot(self, found: CheckpointTuple, typed: bool, *, live: bool) -> StateSnapshot:
        program = self.program
        if UNDOING in found.metadata:
            from .drivers.undoing import program_with_undo

            program = program_with_undo(program)
        snapshot = snapshot_of(program, self._as_mine(found), live=live)
        return snapshot._replace(values=self.coerce_state(snapshot.values)) if typed else snapshot

    def coerce_state(self, values: Any) -> Any:
        """The values of a state as an instance of the state's class, if one can be made of them."""
        return values

    def _as_mine(self, found: Found) -> Found:
        """A checkpoint as this version of the graph would go on with it."""
        if found is None:
            return found
        return apply_migration(found, self.program, self.migrate)

    def nested(self, ns: str) -> StoredThreads[Any]:
        """The graph that runs under a namespace: this one, or one that it has run, or holds as a
        node.

        Raises:
            ValueError: no graph with that name is known.
        """
        check_kind("namespace", ns, str, 'names of nodes, such as "outer|inner"')
        graph: StoredThreads[Any] = self
        for name in graph_keys(ns) or filter(None, [ns]):
            known = graph.program.nested
            if name not in known:
                level, _ = split_number(name)
                raise ValueError(
                    f"namespace {ns!r} names the unknown subgraph {level!r}; "
                    f"{nearest(level, known)}"
                )
            graph = known[name]
        return graph

    def get_spent(self, config: AnyConfig) -> dict[str, float]:
        """Return what a thread of a graph with a `Budget` has spent: "usd", "tokens", "calls",
        "seconds". Calls under way count with what is reserved for them.

        Raises:
            ValueError: the graph has no checkpointer, or the config names no thread.
        """
        from .drivers.spending import read_spent

        saver, where = self._thread(config)
        return read_spent(run_steps(find_whole(saver, where, WAITS)))

    async def aget_spent(self, config: AnyConfig) -> dict[str, float]:
        """`get_spent` for coroutines."""
        from .drivers.awaits import AWAITS
        from .drivers.spending import read_spent

        saver, where = self._thread(config)
        return read_spent(await arun_steps(find_whole(saver, where, AWAITS)))

    def _thread(self, config: AnyConfig) -> tuple[BaseCheckpointSaver, RunnableConfig]:
        if not isinstance(self.checkpointer, BaseCheckpointSaver):
            raise ValueError(
                "no checkpointer set: compile(checkpointer=...) to store and inspect threads"
            )
        merged = normalize(config)
        if self.config:
            merged = merge_configs(self.config, merged)
        thread_id, ns, checkpoint_id = coordinates(merged)
        saver = saver_of(self.program, self.checkpointer, ns) if ns else self.checkpointer
        return saver.for_call(merged), address(thread_id, ns, checkpoint_id)

    def _memory(
        self, config: AnyConfig, subgraph: Subgraph | None
    ) -> tuple[BaseCheckpointSaver, RunnableConfig]:
        """`_thread`, of the memory that a graph inside keeps, if one is named."""
        saver, where = self._thread(config)
        if subgraph is None:
            return saver, where
        thread_id, ns, checkpoint_id = coordinates(where)
        if checkpoint_id is not None:
            raise ValueError(
                f"subgraph={subgraph!r} names the newest checkpoint of a memory, but the config "
                f"names checkpoint {checkpoint_id!r}: leave out its checkpoint_id"
            )
        path = subgraph if isinstance(subgraph, list) else [subgraph]
        levels = [(each, None) if isinstance(each, str) else each for each in path]
        for level in levels:
            pair = isinstance(level, tuple) and len(level) == 2
            words = "the name of a node, (name, key), or a list of these"
            check_kind("subgraph", level[0] if pair else subgraph, str, words)
        ns = memory_ns(ns, levels)
        if self.nested(ns).checkpointer is not True:
            raise ValueError(
                f"subgraph={subgraph!r} keeps no memory of its own on the thread: compile it with "
                "checkpointer=True; what a task's graph has stored is in tasks[...].state"
            )
        return saver, address(thread_id, ns)

    # -- what changes a thread ---------------------------------------------------------------------

    def update_state(
        self,
        config: AnyConfig,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
        *,
        subgraph: Subgraph | None = None,
    ) -> RunnableConfig:
        """Write to a thread as if a node had returned `values`: its edges and routers are followed,
        but its function does not run.

        Args:
            config: the thread; with a `checkpoint_id`, the update forks from that checkpoint.
            values: what to write, like a node's return value.
            as_node: the node; by default the one that ran last, which keeps what it has gone to by
                a `Command`. END (with `values=None`) drops the
                pending work, "__input__" takes the values as input, "__copy__" copies the
                checkpoint.
            task_id: the id under which the values are stored as the result of a task.
            subgraph: the memory of a graph inside, as in `get_state`; `as_node` is a node of that.

        Returns:
            A config that identifies the new checkpoint.

        Raises:
            InvalidUpdateError: the node is unknown or ambiguous, or it cannot write these values.
            ValueError: `subgraph` is unknown, or keeps no memory.
        """
        if subgraph is not None:
            config = self._memory(config, subgraph)[1]
        return self.bulk_update_state(config, [[StateUpdate(values, as_node, task_id)]])

    async def aupdate_state(
        self,
        config: AnyConfig,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
        *,
        subgraph: Subgraph | None = None,
    ) -> RunnableConfig:
        """`update_state` for coroutines."""
        if subgraph is not None:
            config = self._memory(config, subgraph)[1]
        return await self.abulk_update_state(config, [[StateUpdate(values, as_node, task_id)]])

    def bulk_update_state(
        self, config: AnyConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Apply several updates. Those of one inner list are applied together and make one
        checkpoint.

        Raises:
            ValueError: there are no updates.
            InvalidUpdateError: as `update_state`; or one of several updates has no `as_node`.
        """
        from .run.update_state import edits, read_supersteps

        steps = read_supersteps(supersteps)
        run = self._editing(config)
        return self.edit(run, edits(run, steps))

    async def abulk_update_state(
        self, config: AnyConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """`bulk_update_state` for coroutines."""
        from .run.update_state import edits, read_supersteps

        steps = read_supersteps(supersteps)
        run = self._editing(config)
        return await self.aedit(run, edits(run, steps))

    def edit(self, run: Run, effects: Effects) -> RunnableConfig:
        """Change the thread by a run of `_editing`; return the config of the new checkpoint."""
        try:
            threads.drive(run, effects)
        except GraphBubbleUp as signal:
            raise leaving(run, signal) from None
        return run.thread.config_of(run.position.saved_id)

    async def aedit(self, run: Run, effects: Effects) -> RunnableConfig:
        """`edit` for coroutines."""
        from .drivers import aio

        try:
            await aio.drive(run, effects)
        except GraphBubbleUp as signal:
            raise leaving(run, signal) from None
        return run.thread.config_of(run.position.saved_id)

    def undo(
        self, config: AnyConfig, *, to: Any = None, reason: str = ""
    ) -> StateSnapshot[ValuesT]:
        """Undo what a thread has done, the last first, and let it go back to an earlier state.

        Undone is each call of a function with `undo=` (`@effect`, `@task`, tools, `runtime.once`),
        also in nested graphs and in tasks that have failed. Each undo is made once, whatever is
        killed; one that fails is retried by the policy of the `@task` or node whose call it undoes,
        else by `RetryPolicy()`, and then becomes a question: answer `{"decision": "again"}`, or
        `{"decision": "done"}` once it is undone by hand. Of a call that may have happened (the
        process died in it) the probe tells the result; a keyed one is made again with its key; else
        a question asks: `{"decision": "done", "result": ...}` or `{"decision": "not done"}`.

        Until it has ended, `next` is `("__undo__",)`. Then this method, `invoke(None)` or an
        answer continues it; other calls raise `ThreadUndoingError`.

        Args:
            config: the thread; with a `checkpoint_id`, the branch that ends there.
            to: the checkpoint to go back to, as a config, a snapshot or an id. None goes back to
                before the last input, with nothing pending.
            reason: is part of the record of it.

        Returns:
            The state of the thread. What was undone is in its metadata, as `stategraph_undone`.

        Raises:
            LookupError: this process lacks an undo function.
            ThreadUndoingError: the graph's thread is being undone otherwise.
            ValueError: the graph has no checkpointer, the thread does not exist, `to` does not lie
                before its head, or a call was made before a fork, by another branch.
        """
        from .drivers.undoing import undo

        state: StateSnapshot[ValuesT] = run_steps(undo(self, config, to, reason, WAITS))
        return state

    async def aundo(
        self, config: AnyConfig, *, to: Any = None, reason: str = ""
    ) -> StateSnapshot[ValuesT]:
        """`undo` for coroutines."""
        from .drivers.awaits import AWAITS
        from .drivers.undoing import undo

        state: StateSnapshot[ValuesT]
        state = await arun_steps(undo(self, config, to, reason, AWAITS))
        return state

    def _editing(self, config: AnyConfig) -> Run:
        """A run that changes the thread without running nodes."""
        saver, where = self._thread(config)
        ns = ns_of(where)
        graph: Any = self.nested(ns)
        if not ns:
            return Run(graph, None, config, Call())
        graph = graph.copy({"checkpointer": saver, "serde": saver.serde})
        return Run(
            graph,
            None,
            {"configurable": {**where["configurable"], "checkpoint_ns": ""}},
            Call(),
            ns,
        )



def _below(
    graph: StoredThreads[Any], place: str, recurse: bool, around: tuple[StoredThreads[Any], ...]
) -> Iterator[tuple[str, StoredThreads[Any]]]:
    for name, child in list(graph.program.nested.items()):
        if child.checkpointer is False:
            continue
        ns = join_ns(place, name)
        yield ns, child
        if recurse and child not in around:  # a graph may run itself
            yield from _below(child, ns, recurse, (*around, child))


def _existing(where: RunnableConfig, found: CheckpointTuple | None) -> CheckpointTuple | None:
    """What was found; nothing only if no checkpoint was named.

    Raises:
        ValueError: one was named.
    """
    wanted = where["configurable"].get("checkpoint_id")
    if found is None and wanted is not None:
        raise ValueError(
            f"thread {where['configurable']['thread_id']!r} has no checkpoint {wanted!r}"
        )
    return found
