"""What a program written for LangGraph finds in the config of its nodes, and what handlers are told
of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID, uuid4

from langchain_core.callbacks import CallbackManager
from langchain_core.callbacks.manager import logger
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.base import BaseTracer

from ...pregel.errors import ParentCommand
from ...pregel.names import METADATA_PREFIX, TASKS
from ...pregel.names import TAG_HIDDEN as HIDDEN
from ...pregel.run.run import Run
from ...pregel.schedule.state import group_by_channel
from ...pregel.task.spans import Span
from ...pregel.task.task import Task
from ...pregel.types import Command, Selection
from ..langchain.callbacks import Listener, has_handlers, sends_tokens
from ..langchain.messages import add_messages
from ..langchain.remote import RemoteCallbacks, replay
from ..langchain.spans import AttemptSpan
from ..langchain.tokens import TokenSender
from .constants import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_READ,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    TAG_HIDDEN,
)

PREFIX: Final = "langgraph_"
NOBODY: Final = UUID(int=0)
"""The id of the run around what a node calls while no handler is told of runs."""


def is_unheard(config: Any) -> bool:
    """Whether this is the config of a node whose run is told to nobody."""
    callbacks: Any = config.get("callbacks") if config and "run_id" not in config else None
    if getattr(callbacks, "parent_run_id", None) is not NOBODY:
        return False
    return all(isinstance(each, TokenSender) for each in callbacks.handlers)


class PeerListener(Listener):
    """Tells handlers what LangGraph tells them, and makes configs like LangGraph's.

    Args:
        policies: by node, what tracers record of it.

    Attributes:
        heard: whether handlers are told of the run.
        sends: they are not, but the tokens of models have a reader.
    """

    metadata = MappingProxyType({"ls_integration": "langgraph"})

    def __init__(self, run: Any, name: str, policies: Mapping[str, Any]) -> None:
        super().__init__(run)
        self.policies = policies
        self.heard: bool = False
        self.sends: bool = False
        self._name = name

    @property
    def name(self) -> str:
        """The name of the whole run."""
        name: str = self.run.settings.config.get("run_name") or self._name
        return "LangGraph" if name in self.run.program.nodes else name

    def run_span(self, run: Run) -> Span:
        """Surrounds the whole run, if handlers are told of it. Whoever reads tokens alone needs no
        runs of LangChain's (benchmark P44)."""
        self.heard = has_handlers(self.run)
        self.sends = not self.heard and sends_tokens(self.run)
        return super().run_span(run) if self.heard else Span()

    def attempt_span(self, task: Task) -> Any:
        """Surrounds an attempt. If no handler is told, what the node calls finds its config."""
        if not self.heard:
            return ConfigSpan(task)
        span = super().attempt_span(task)
        return PeerSpan(self, task) if isinstance(span, AttemptSpan) else span

    def router_span(self, task: Task, place: int, router: Any, state: Any) -> Any:
        """Surrounds a router. One that is a Runnable tells of itself."""
        return super().router_span(task, place, router, state) if self.heard else Span()

    def name_of(self, router: Any) -> str:
        """The name of a router's run."""
        name = getattr(router, "__name__", "<lambda>")
        return "RunnableCallable" if name == "<lambda>" else str(name)

    def run_metadata(self) -> dict[str, Any]:
        """The metadata of the whole run; that of a nested one says where it is."""
        found = super().run_metadata()
        return {**found, "checkpoint_ns": self.run.ns} if self.run.ns else found

    def config_of(self, task: Task) -> Any:
        """The config of a task. If nobody listens, node, routers and what they call share it."""
        span = task.current.span
        return span.config_of(task, self) if type(span) is ConfigSpan else self.make_config(task)

    def make_config(self, task: Task) -> Any:
        """The config of a task with LangGraph's names, and with the parts of the run that programs
        look up in it."""
        config = super().config_of(task)
        if config["callbacks"] is None:
            config["callbacks"] = CallbackManager(handlers=[], parent_run_id=NOBODY)
        if task.run.settings.graph.budgets:
            from ..langchain.budgets import HANDLER

            config["callbacks"] = config["callbacks"].copy()
            config["callbacks"].add_handler(HANDLER)
        metadata = {
            key.replace(METADATA_PREFIX, PREFIX, 1) if key.startswith(METADATA_PREFIX) else key: v
            for key, v in config["metadata"].items()
        }
        if task.run.ns:
            metadata["checkpoint_ns"] = task.run.ns
        config["metadata"] = metadata
        if task.node.hidden:
            config["tags"] = [TAG_HIDDEN if tag == HIDDEN else tag for tag in config["tags"]]
        if self.sends:
            callbacks = config["callbacks"]
            callbacks.add_handler(TokenSender(task), inherit=True)
            callbacks.add_tags(config["tags"])
            callbacks.add_metadata({**metadata, **self.metadata})
        if not config["tags"]:
            del config["tags"]
        machine: Any = task.run.machine
        config[CONF] |= {
            # Tool nodes take the channels out of the arguments of this partial.
            CONFIG_KEY_READ: partial(
                read_state, None, state_channels(machine), task.run.program.managed, task
            ),
            CONFIG_KEY_SEND: partial(send_writes, task),
            CONFIG_KEY_CALL: task.call,
            CONFIG_KEY_TASK_ID: task.id,
            CONFIG_KEY_RUNTIME: task.runtime,
            CONFIG_KEY_CHECKPOINTER: task.run.thread.saver,
        }
        return config


def state_channels(machine: Any) -> dict[str, Any]:
    """The channels without that of the `Send`s."""
    return {name: each for name, each in machine.channels.items() if name != TASKS}


def read_state(
    _scratchpad: None,
    channels: Mapping[str, Any],
    _managed: Mapping[str, Any],
    task: Task,
    select: Selection,
    fresh: bool = False,
) -> Any:
    """The state as a task sees it: one key's value, or a dict of several.

    Args:
        fresh: with what the task has written so far.
    """
    keys = (select,) if isinstance(select, str) else tuple(select)
    machine: Any = task.run.machine
    values = machine.select(keys)
    if fresh:
        for channel, updates in group_by_channel(task.writes).items():
            if channel in keys:
                values[channel] = channels[channel].preview(updates)
    return values.get(select) if isinstance(select, str) else values


def send_writes(task: Task, writes: Iterable[tuple[str, Any]]) -> None:
    """Write to channels beside what the node returns."""
    task.writes.extend(writes)


def name_messages(run: Any, result: Any) -> None:
    """Give messages of an input, or that a node has returned, their ids at once, in place like the
    peer, so that readers of updates see the ids that the state will have."""
    update = result.update if isinstance(result, Command) else result
    if not isinstance(update, dict):
        return
    for key, value in update.items():
        operator = getattr(run.program.channels.get(key), "operator", None)
        if getattr(operator, "func", operator) is not add_messages:
            continue
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, BaseMessage) and message.id is None:
                message.id = str(uuid4())


class PeerSpan(AttemptSpan):
    """An attempt that somebody listens to."""

    def configure(self, manager: Any) -> Any:
        """Have tracers record what the trace policy of the node makes of its input and output."""
        found = super().configure(manager)
        policy = self.listener.policies.get(self.task.name)
        if policy is not None:
            found.handlers = [
                RecordingTracer(each, policy) if isinstance(each, BaseTracer) else each
                for each in found.handlers
            ]
        return found

    def returned(self, result: Any) -> None:
        """Give messages their ids, and keep the result for the end of the run."""
        name_messages(self.task.run, result)
        super().returned(result)

    def leave(self, error: BaseException | None) -> None:
        """The run ends."""
        _pass_over(self.task, error)
        super().leave(error)

    async def aleave(self, error: BaseException | None) -> None:
        """The run ends, on an event loop."""
        _pass_over(self.task, error)
        await super().aleave(error)


def _pass_over(task: Task, error: BaseException | None) -> None:
    """What a graph inside sends along with a command to this one is not shown to readers of
    messages: LangGraph does not."""
    if not isinstance(error, ParentCommand):
        return
    name_messages(task.run, error.command)
    update = error.command.update
    for stream in task.run.output.streams:
        stream.known(update.values() if isinstance(update, dict) else ())


class RecordingTracer:
    """A tracer that is told of a node by a trace policy."""

    def __init__(self, tracer: Any, policy: Any) -> None:
        self._tracer = tracer
        self._processors = {
            "on_chain_start": policy.process_inputs,
            "on_chain_end": policy.process_outputs,
        }

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._tracer, name)
        process = self._processors.get(name)
        if process is None:
            return method

        def call(*given: Any, **options: Any) -> Any:
            *others, payload = given
            try:
                payload = process(payload)
            except Exception:
                logger.warning("a trace policy raised; the payload is recorded", exc_info=True)
            return method(*others, payload, **options)

        return call


class ConfigSpan(Span):
    """An attempt that no handler is told of: what it calls finds the task's config."""

    def __init__(self, task: Task) -> None:
        self._task: Task | None = task
        self._config: Any = None

    def config_of(self, task: Task, listener: PeerListener) -> Any:
        """The config of the task, made once. A copy of the task that may be abandoned has its
        own."""
        if task is not self._task:
            return listener.make_config(task)
        if self._config is None:
            self._config = listener.make_config(task)
        return {**self._config}

    def returned(self, result: Any) -> None:
        """Give messages their ids."""
        assert self._task is not None
        name_messages(self._task.run, result)

    def leave(self, error: BaseException | None) -> None:
        """Let go of the task, which holds this span: a finished run is no work for the garbage
        collector."""
        assert self._task is not None
        _pass_over(self._task, error)
        self._task = self._config = None

    def remote(self) -> Any:
        """What sends the tokens of the models that the node calls in another process."""
        assert self._task is not None
        callbacks = self._task.config["callbacks"]
        return RemoteCallbacks(callbacks, streams=True) if callbacks.handlers else None

    def receive(self, data: Any) -> None:
        """Send the tokens that have come from there."""
        if self._task is not None:
            replay(self._task.config["callbacks"], data)

    def enter(self) -> None:
        """Lend the config."""
        assert self._task is not None
        var_child_runnable_config.set(LazyConfig(self._task))


class LazyConfig(dict[str, Any]):
    """The config of a task, made when somebody looks into it."""

    def __init__(self, task: Task) -> None:
        self._task: Task | None = task

    def _filled(self) -> dict[str, Any]:
        task, self._task = self._task, None
        if task is not None:
            self.update(task.config)
        return self

    def __bool__(self) -> bool:
        return True


def _filling(name: str) -> Any:
    method = getattr(dict, name)
    return lambda self, *args: method(self._filled(), *args)


for _name in ("items", "keys", "get", "__getitem__", "__contains__", "__iter__", "__len__"):
    setattr(LazyConfig, _name, _filling(_name))
