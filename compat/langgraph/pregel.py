"""The peer's compiled graphs: ours, as Runnables, with configs like the peer's."""

from __future__ import annotations

from typing import Any

from ...pregel.app import Pregel as _Pregel
from ...pregel.run.config import Call
from ...pregel.run.run import Run
from ...pregel.types import ContextT, InputT, OutputT, StateT
from ..langchain.runnable import RunnableGraph, RunnableParts
from .listening import PeerListener


class Pregel(RunnableParts, _Pregel[StateT, ContextT, InputT, OutputT], RunnableGraph):
    """A compiled graph that is also a LangChain Runnable."""

    def _run(self, input: Any, config: Any, call: Call) -> Run:
        run: Run = super()._run(input, config, call)
        run.hook = PeerListener(run, self.name)
        return run
