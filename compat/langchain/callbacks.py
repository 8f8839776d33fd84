"""LangChain's callbacks: graph, nodes, routers and tasks are runs of their own, with the right
parents.

Somebody listens if the config or a Runnable around us has handlers, if a tracer is configured for
the process or the context, or if somebody reads the messages of a stream.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.globals import get_debug
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import _configure_hooks, tracing_v2_callback_var
from langsmith._internal import _context
from langsmith.utils import get_env_var, tracing_is_enabled

from ...pregel.program.callables import infer_name
from ...pregel.run.run import Run
from ...pregel.task.observers import EngineObserver
from ...pregel.task.spans import Span
from ...pregel.task.task import Task
from .pauses import tell_resume
from .spans import AttemptSpan, LendingSpan, RouterSpan, RunSpan
from .tokens import TokenSender


def find_listener(run: Run) -> Listener | None:
    """What listens to a run; None if nobody does."""
    return Listener(run) if is_heard(run) else None


def is_heard(run: Run) -> bool:
    """Whether anybody listens to a run by LangChain's means."""
    return sends_tokens(run) or has_handlers(run)


def sends_tokens(run: Run) -> bool:
    """Whether the tokens of models have a reader: of this run, or of one around it."""
    if any("messages" in stream.modes for stream in run.output.streams):
        return True
    callbacks = _callbacks_of(run)
    return isinstance(callbacks, BaseCallbackManager) and any(map(_is_sender, callbacks.handlers))


def has_handlers(run: Run) -> bool:
    """Whether handlers are to be told of a run. What merely sends tokens is none."""
    callbacks = _callbacks_of(run)
    if callbacks and (isinstance(callbacks, list) or not all(map(_is_sender, callbacks.handlers))):
        return True
    if tracing_v2_callback_var.get() is not None or _is_traced() or get_debug():
        return True
    made = BaseCallbackManager.__init__  # replaced, it adds a handler: OpenInference, Traceloop
    if hasattr(made, "__wrapped__") or made.__module__ != BaseCallbackManager.__module__:
        return True
    for variable, _, handler, name in _configure_hooks:
        if variable.get() is not None or (handler and name and os.environ.get(name)):
            return True
    return False


def _callbacks_of(run: Run) -> Any:
    """The handlers of its config, or of the Runnable or task around it."""
    config = run.settings.config
    callbacks = config.get("callbacks") if config else None
    if callbacks is None and (outer := var_child_runnable_config.get()):
        callbacks = outer.get("callbacks")
    return callbacks


def _is_sender(handler: Any) -> bool:
    return type(handler) is TokenSender


def _is_traced() -> bool:
    """What `tracing_is_enabled` says. It takes long, and this is asked at each call of a graph
    (benchmark P30): as long as nothing has been set since the process began, the environment
    says it alone."""
    if _SETTINGS is None or _context._GLOBAL_TRACING_ENABLED is not None:
        return bool(tracing_is_enabled())
    for variable in _SETTINGS:
        if variable.get() is not None:
            return bool(tracing_is_enabled())
    return bool(get_env_var("TRACING_V2", get_env_var("TRACING", "")) == "true")


def _find_settings() -> tuple[ContextVar[Any], ...] | None:
    """Where langsmith keeps what a context has set; None if this version keeps it elsewhere."""
    try:
        return _context._TRACING_ENABLED, _context._PARENT_RUN_TREE_REF
    except AttributeError:
        return None


_SETTINGS: Final = _find_settings()


class Listener(EngineObserver):
    """Tells LangChain's handlers of one run.

    Attributes:
        run: the run.
        manager: what tells of the run as a whole, and makes those of its tasks; None before it has
            begun.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.manager: Any = None
        self._running = False

    @property
    def name(self) -> str:
        """The name of the whole run."""
        return self.run.settings.config.get("run_name") or self.run.program.name

    def run_span(self, run: Run) -> Span:
        """Surrounds the whole run."""
        return RunSpan(self)

    def attempt_span(self, task: Task) -> Span:
        """Surrounds an attempt; that of a hidden node is one of its routers, if it has any."""
        if task.node.hidden and not any(writer.routes for writer in task.node.writers):
            return Span()
        return AttemptSpan(self, task)

    def router_span(self, task: Task, place: int, router: Any, state: Any) -> Any:
        """Surrounds a router. One that is a Runnable tells of itself."""
        if isinstance(router, Runnable):
            return LendingSpan(task, place)
        return RouterSpan(self, task, place, self.name_of(router), state)

    def name_of(self, router: Any) -> str:
        """The name of a router's run."""
        return infer_name(router)

    def config_of(self, task: Task) -> Any:
        """The config of a task with the handlers of what it calls. The name and the id are those of
        the run alone: what it calls has its own."""
        config: Any = task.own_config()
        config.pop("run_name", None)
        config.pop("run_id", None)
        span = task.current.span
        callbacks = span.callbacks if isinstance(span, AttemptSpan) else None
        if callbacks is None and self.manager is not None:
            callbacks = self.manager.get_child()
        config["callbacks"] = callbacks
        return config

    def tell_resume(self) -> list[Any]:
        """Before its first task: tell handlers if the run goes on from where it had stopped."""
        if self._running:
            return []
        self._running = True
        return tell_resume(self.run, self.manager)

    def run_metadata(self) -> dict[str, Any]:
        """The metadata of the whole run."""
        config = self.run.settings.config
        found = {**(config.get("metadata") or {}), **self.metadata}
        thread_id = self.run.thread.thread_id
        return found if thread_id is None else {**found, "thread_id": thread_id}
