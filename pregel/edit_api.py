"""The methods of a graph that change stored threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .drivers import threads
from .errors import GraphBubbleUp
from .run.config import Call
from .run.nested import leaving, ns_of
from .run.run import Run
from .thread_api import StoredThreads, ValuesT
from .types import AnyConfig, RunnableConfig, StateUpdate, Subgraph


class EditableThreads(StoredThreads[ValuesT]):
    """The methods of a graph with a checkpointer that read and change its threads."""

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
        try:
            threads.drive(run, edits(run, steps))
        except GraphBubbleUp as signal:
            raise leaving(run, signal) from None
        return run.thread.config_of(run.position.saved_id)

    async def abulk_update_state(
        self, config: AnyConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """`bulk_update_state` for coroutines."""
        from .drivers import aio
        from .run.update_state import edits, read_supersteps

        steps = read_supersteps(supersteps)
        run = self._editing(config)
        try:
            await aio.drive(run, edits(run, steps))
        except GraphBubbleUp as signal:
            raise leaving(run, signal) from None
        return run.thread.config_of(run.position.saved_id)

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
