"""The peer's compiled graphs: ours, as Runnables, with configs like the peer's."""

from __future__ import annotations

from typing import Any

from ...pregel.app import Pregel as _Pregel
from ...pregel.run.config import Call
from ...pregel.run.run import Run
from ...pregel.runtime import ContextT
from ...pregel.types import InputT, OutputT, StateT
from ..langchain.runnable import RunnableGraph, inherit_config
from .listening import PeerListener


class Pregel(_Pregel[StateT, ContextT, InputT, OutputT], RunnableGraph):
    """A compiled graph that is also a LangChain Runnable."""

    def _run(self, input: Any, config: Any, call: Call) -> Run:
        run = super()._run(input, inherit_config(config), call)
        run.hook = PeerListener(run)
        return run

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """The graph's name, or the one given, with a suffix."""
        found = name or self.name
        return found if not suffix else f"{found}{suffix}"
