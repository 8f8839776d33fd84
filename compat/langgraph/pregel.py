"""The peer's compiled graphs: ours, as Runnables, with configs like the peer's."""

from __future__ import annotations

from typing import Any

from ...pregel.app import Pregel as _Pregel
from ...pregel.run.config import Call
from ...pregel.run.run import Run
from ...pregel.types import ContextT, InputT, OutputT, StateT
from ..langchain.runnable import RunnableGraph, RunnableParts
from .drawing import GraphDrawing, draw
from .listening import PeerListener


class Pregel(RunnableParts, _Pregel[StateT, ContextT, InputT, OutputT], RunnableGraph):
    """A compiled graph that is also a LangChain Runnable."""

    def _run(self, input: Any, config: Any, call: Call) -> Run:
        run: Run = super()._run(input, config, call)
        run.hook = PeerListener(run)
        return run

    def get_graph(
        self, config: Any = None, *, xray: bool | int = False
    ) -> GraphDrawing:
        """A drawing of the graph as LangChain's `Graph`.

        Args:
            config: ignored; the drawing is the same for all.
            xray: whether graphs inside nodes are drawn: True for all, a number for that many
                levels.
        """
        return draw(self, lambda levels: _Pregel.get_graph(self, xray=levels), xray)

    async def aget_graph(
        self, config: Any = None, *, xray: bool | int = False
    ) -> GraphDrawing:
        """`get_graph` for coroutines."""
        return self.get_graph(config, xray=xray)
