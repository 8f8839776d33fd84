"""LangGraph's compiled graphs: ours, as Runnables, with configs like LangGraph's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from types import MappingProxyType
from typing import Any

from ...graph.arguments import read_policies
from ...pregel.app import Pregel as _Pregel
from ...pregel.names import TASKS
from ...pregel.policies import NodePolicies
from ...pregel.program.node import PregelNode as _PregelNode
from ...pregel.program.writes import (
    PASSTHROUGH,
    SKIP_WRITE,
    ChannelWriteEntry,
    ChannelWriteTupleEntry,
)
from ...pregel.program.writes import ChannelWrite as _ChannelWrite
from ...pregel.run.config import Call
from ...pregel.run.run import Run
from ...pregel.types import ContextT, InputT, OutputT, Send, StateT
from ..langchain.runnable import RunnableGraph, RunnableParts
from .constants import CONF, CONFIG_KEY_READ, CONFIG_KEY_SEND
from .ignored import take_ignored
from .listening import PeerListener, name_messages
from .runnable import RunnableCallable

__all__ = [
    "PASSTHROUGH", "SKIP_WRITE", "ChannelRead", "ChannelWrite", "ChannelWriteEntry",
    "ChannelWriteTupleEntry", "Pregel", "PregelNode",
]  # fmt: skip


class PregelNode(_PregelNode):
    """A node that can be called by itself, as tests of programs do, and is declared with
    LangGraph's parameters."""

    def __init__(
        self,
        *,
        retry_policy: Any = None,
        cache_policy: Any = None,
        timeout: Any = None,
        policies: NodePolicies | None = None,
        **declared: Any,
    ) -> None:
        own = read_policies("PregelNode", retry_policy, cache_policy, timeout)
        super().__init__(policies=own.fill_from(policies or NodePolicies()), **declared)

    @property
    def retry_policy(self) -> Sequence[Any]:
        """When to try again."""
        return self.policies.retry

    @property
    def cache_policy(self) -> Any:
        """When to reuse results; None for never."""
        return self.policies.cache

    @property
    def timeout(self) -> Any:
        """The limits of one attempt; None for none."""
        return self.policies.timeout

    def invoke(self, input: Any, config: Any = None) -> Any:
        """What the node returns for a state."""
        for body in self.bodies("node"):
            input = _as_runnable(body.source).invoke(input, config)
        return input

    async def ainvoke(self, input: Any, config: Any = None) -> Any:
        """`invoke` for coroutines."""
        for body in self.bodies("node"):
            input = await _as_runnable(body.source).ainvoke(input, config)
        return input


def _as_runnable(source: Any) -> Any:
    return source if hasattr(type(source), "invoke") else RunnableCallable(source, trace=False)


def _as_list(found: Any) -> Any:
    return found if isinstance(found, str) else list(found)


class Pregel(RunnableParts, _Pregel[StateT, ContextT, InputT, OutputT], RunnableGraph):
    """A compiled graph that is also a LangChain Runnable."""

    debug = False
    stream_eager = False
    retry_policy: Sequence[Any] = ()
    cache_policy: Any = None
    trace_policies: Mapping[str, Any] = MappingProxyType({})
    stream_transformers: Sequence[Any] = ()

    @property  # type: ignore[override]
    def nodes(self) -> dict[str, PregelNode]:
        """The nodes by name; `app.nodes["name"].invoke(state)` calls one by itself."""
        return self._nodes

    @nodes.setter
    def nodes(self, given: dict[str, _PregelNode]) -> None:
        names = [field.name for field in fields(_PregelNode)]
        self._nodes = {
            key: PregelNode(**{name: getattr(node, name) for name in names})
            for key, node in given.items()
        }

    @property
    def interrupt_before_nodes(self) -> Any:
        """The nodes before which it pauses, or "*"."""
        return _as_list(self.interrupt_before)

    @property
    def interrupt_after_nodes(self) -> Any:
        """The nodes after which it pauses, or "*"."""
        return _as_list(self.interrupt_after)

    @property
    def stream_channels_asis(self) -> str | list[str]:
        """The channels that a reader of `values` sees."""
        every = (key for key, channel in self.channels.items() if not isinstance(channel, type))
        found: str | list[str] = _as_list(self.stream_channels or every)
        return found

    @property
    def stream_channels_list(self) -> list[str]:
        """Those channels, as a list."""
        found = self.stream_channels_asis
        return [found] if isinstance(found, str) else found

    @property
    def trigger_to_nodes(self) -> dict[str, list[str]]:
        """The nodes that each channel makes run."""
        found: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            for trigger in node.triggers:
                found.setdefault(trigger, []).append(name)
        return found

    def stream_events(
        self, input: Any, config: Any = None, *, version: str = "v2", **options: Any
    ) -> Any:
        """Open a run whose projections are read; see `run_stream`.

        Raises:
            NotImplementedError: the version is not "v3".
        """
        if version != "v3":
            raise NotImplementedError(f"version {version!r} is that of astream_events()")
        from .run_stream import GraphRunStream, open_run  # needs a recent langchain-core

        return open_run(self.stream, GraphRunStream, input, config, options)

    def astream_events(
        self, input: Any, config: Any = None, *, version: Any = "v2", **options: Any
    ) -> Any:
        """Yield events; of version "v3", return a coroutine that opens a run."""
        if version != "v3":
            return super().astream_events(input, config, version=version, **options)
        return self._aopen(input, config, options)

    async def _aopen(self, input: Any, config: Any, options: dict[str, Any]) -> Any:
        from .run_stream import AsyncGraphRunStream, open_run

        return open_run(self.astream, AsyncGraphRunStream, input, config, options)

    def _run(self, input: Any, config: Any, call: Call) -> Run:
        run: Run = super()._run(input, config, call)
        run.listener = PeerListener(run, self.name, self.trace_policies)
        name_messages(run, input)
        return run


def _without_print_mode(method: Any) -> Any:
    @wraps(method)
    def call(self: Any, *args: Any, print_mode: Any = (), **options: Any) -> Any:
        take_ignored(f"{method.__name__}()", {"print_mode": print_mode or None})
        return method(self, *args, **options)

    return call


for _name in ("invoke", "ainvoke", "stream", "astream"):
    setattr(Pregel, _name, _without_print_mode(getattr(_Pregel, _name)))


class ChannelRead(RunnableCallable):
    """Reads channels of the running node's graph.

    Args:
        fresh: with what the node has written so far.
        mapper: applied to what is read.
    """

    def __init__(
        self,
        channel: str | list[str],
        *,
        fresh: bool = False,
        mapper: Callable[[Any], Any] | None = None,
        tags: list[str] | None = None,
    ) -> None:
        super().__init__(self._read, tags=tags, name="ChannelRead", trace=False)
        self.channel, self.fresh, self.mapper = channel, fresh, mapper

    def _read(self, _: Any, config: Any) -> Any:
        return self.do_read(config, select=self.channel, fresh=self.fresh, mapper=self.mapper)

    @staticmethod
    def do_read(
        config: Any,
        *,
        select: str | list[str],
        fresh: bool = False,
        mapper: Callable[[Any], Any] | None = None,
    ) -> Any:
        """What the channels hold: one value, or a dict of several."""
        found = config[CONF][CONFIG_KEY_READ](select, fresh)
        return mapper(found) if mapper is not None else found


class ChannelWrite(RunnableCallable, _ChannelWrite):
    """Writes what it is called with to channels of the running node's graph, and returns it."""

    def __init__(self, writes: Sequence[Any], *, tags: Sequence[str] | None = None) -> None:
        _ChannelWrite.__init__(self, writes)
        RunnableCallable.__init__(self, self._send, tags=tags, name="ChannelWrite", trace=False)

    def _send(self, value: Any, config: Any) -> Any:
        send = config[CONF][CONFIG_KEY_SEND]
        for entry in self.writes:
            send([(TASKS, entry)] if isinstance(entry, Send) else entry.pairs(value))
        return value

    @staticmethod
    def do_write(config: Any, writes: Sequence[Any], allow_passthrough: bool = True) -> None:
        """Write entries whose values are given."""
        ChannelWrite(writes)._send(None, config)
