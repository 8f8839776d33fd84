"""The methods of a graph that change stored threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..checkpoint.base import BaseCheckpointSaver, address, coordinates
from .drivers import threads
from .program.program import Program
from .run.config import Call, merge_configs, normalize
from .run.nested import ns_of, saver_of
from .run.run import Run
from .types import RunnableConfig, StateUpdate


class EditableThreads:
    """The methods of a graph with a saver that change its threads without running nodes."""

    program: Program
    checkpointer: BaseCheckpointSaver | bool | None
    config: RunnableConfig

    def nested(self, ns: str) -> Any:
        """The graph that runs under a namespace."""
        raise NotImplementedError

    def update_state(
        self,
        config: RunnableConfig,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
    ) -> RunnableConfig:
        """Write to a thread as if a node had returned `values`: its edges and routers are followed,
        but its function does not run.

        Args:
            config: the thread; with a `checkpoint_id`, the update forks from that checkpoint.
            values: what to write, like a node's return value.
            as_node: the node; by default the one that ran last. END (with `values=None`) drops the
                pending work, "__input__" takes the values as input, "__copy__" copies the
                checkpoint.
            task_id: the id under which the values are stored as the result of a task.

        Returns:
            A config that identifies the new checkpoint.

        Raises:
            InvalidUpdateError: the node is unknown or ambiguous, or it cannot write these values.
        """
        return self.bulk_update_state(config, [[StateUpdate(values, as_node, task_id)]])

    async def aupdate_state(
        self,
        config: RunnableConfig,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
    ) -> RunnableConfig:
        """`update_state` for coroutines."""
        return await self.abulk_update_state(config, [[StateUpdate(values, as_node, task_id)]])

    def bulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
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
        threads.drive(run, edits(run, steps))
        return run.thread.config_of(run.position.saved_id)

    async def abulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """`bulk_update_state` for coroutines."""
        from .drivers import aio
        from .run.update_state import edits, read_supersteps

        steps = read_supersteps(supersteps)
        run = self._editing(config)
        await aio.drive(run, edits(run, steps))
        return run.thread.config_of(run.position.saved_id)

    def _editing(self, config: RunnableConfig) -> Run:
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

    def _thread(self, config: RunnableConfig) -> tuple[BaseCheckpointSaver, RunnableConfig]:
        if not isinstance(self.checkpointer, BaseCheckpointSaver):
            raise ValueError(
                "no checkpointer set: compile(checkpointer=...) to store and inspect threads"
            )
        where = address(*coordinates(merge_configs(self.config, normalize(config))))
        return self._saver_at(self.checkpointer, where), where

    def _saver_at(self, saver: BaseCheckpointSaver, where: RunnableConfig) -> BaseCheckpointSaver:
        """The saver of the graph that a namespace belongs to; `saver` if it has none of its own."""
        return saver_of(self.program, saver, ns_of(where))
