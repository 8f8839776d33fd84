"""LangChain's runs around the work of a graph: around a whole run, an attempt and a router. A
`listener` is that of `callbacks`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.runnables.config import _set_config_context, var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from ...pregel.errors import GraphInterrupt
from ...pregel.run.run import Run
from ...pregel.task.spans import Span
from ...pregel.task.task import Task
from .pauses import tell_pause
from .remote import RemoteCallbacks, replay
from .tokens import TokenSender

NO_CONFIG: Final[dict[str, Any]] = {}


def callbacks_around(run: Run) -> Any:
    """The handlers of a run: those of its config, below the Runnable or task around it."""
    given, outer = run.settings.config.get("callbacks"), around().get("callbacks")
    if given is None or outer is None or isinstance(outer, list):
        return given or outer
    if isinstance(given, list):
        given = outer.__class__(given, given)
    return outer.merge(given)


def around() -> Any:
    """The config of the Runnable or task that runs in this context; empty if there is none."""
    return var_child_runnable_config.get() or NO_CONFIG


class CallbackSpan(Span):
    """One of LangChain's runs: begun by a manager, ended by the manager of that run.

    Attributes:
        manager: that of the run, once it has begun.
        callbacks: the manager for what it calls; None before it has begun.
        result: its output.
    """

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.manager: Any = None
        self.callbacks: Any = None
        self.result: Any = None

    def configure(self, manager: Any) -> Any:
        """The manager that begins the run.

        Args:
            manager: the class of managers: for threads or for asyncio.
        """
        raise NotImplementedError

    def start(self) -> dict[str, Any]:
        """What `on_chain_start` is given: `inputs`, `name`, `run_id`."""
        raise NotImplementedError

    def entered(self) -> None:
        """The run has begun."""

    def output(self) -> Any:
        """What the run ends with."""
        return self.result

    def returned(self, result: Any) -> None:
        """The user's function has returned this."""
        self.result = result

    def enter(self) -> None:
        """The run begins."""
        manager = self.configure(CallbackManager)
        self.manager = manager.on_chain_start(None, **self.start())
        self.entered()

    async def aenter(self) -> None:
        """The run begins, on an event loop."""
        manager = self.configure(AsyncCallbackManager)
        self.manager = await manager.on_chain_start(None, **self.start())
        self.entered()

    def leave(self, error: BaseException | None) -> None:
        """The run ends."""
        if error is not None:
            self.manager.on_chain_error(error)
            return
        output = self.output()
        for handler in self.taps():
            for _ in handler.tap_output_iter(self.manager.run_id, iter((output,))):
                pass
        self.manager.on_chain_end(output)

    async def aleave(self, error: BaseException | None) -> None:
        """The run ends, on an event loop."""
        if error is not None:
            await self.manager.on_chain_error(error)
            return
        output = self.output()
        for handler in self.taps():
            async for _ in handler.tap_output_aiter(self.manager.run_id, _as_stream(output)):
                pass
        await self.manager.on_chain_end(output)

    def taps(self) -> list[Any]:
        """The handlers that want to see the output as a stream, such as those of
        `astream_events`."""
        return []

    def lend(self, place: int, config: Any) -> None:
        """Let what runs in this context find the handlers.

        Args:
            place: the number of what is called now, for the tags of what it calls.
            config: the task's.
        """
        self.callbacks = self.manager.get_child(f"seq:step:{place}")
        _set_config_context({**config, "callbacks": self.callbacks})


class RunSpan(CallbackSpan):
    """A run of a graph."""

    def configure(self, manager: Any) -> Any:
        run = self.listener.run
        return manager.configure(
            inheritable_callbacks=callbacks_around(run),
            inheritable_tags=run.settings.config.get("tags"),
            inheritable_metadata=self.listener.run_metadata(),
        )

    def start(self) -> dict[str, Any]:
        run = self.listener.run
        given = run.settings.config.get("run_id")
        run_id = UUID(given) if isinstance(given, str) and _is_uuid(given) else given
        if not isinstance(run_id, UUID) or run.parent is not None:
            run_id = None
        return {"inputs": run.settings.given, "name": self.listener.name, "run_id": run_id}

    def entered(self) -> None:
        self.listener.manager = self.manager

    def output(self) -> Any:
        run = self.listener.run
        return None if run.machine is None else run.output.result(run.machine)

    def _end(self, error: BaseException | None) -> BaseException | None:
        """A nested run that has paused raises a signal in the task around it."""
        run = self.listener.run
        if error is None and run.parent is not None and run.output.questions is not None:
            return GraphInterrupt(run.output.questions)
        return error

    def leave(self, error: BaseException | None) -> None:
        if error is None:
            self.listener.tell_resume()  # nothing was left to run
            tell_pause(self.listener.run, self.manager)
        super().leave(self._end(error))

    async def aleave(self, error: BaseException | None) -> None:
        if error is None:
            await _await_all(self.listener.tell_resume())
            await _await_all(tell_pause(self.listener.run, self.manager))
        await super().aleave(self._end(error))


class AttemptSpan(CallbackSpan):
    """One attempt of a task: of a node, or of a call of a `@task` function."""

    def __init__(self, listener: Any, task: Task) -> None:
        super().__init__(listener)
        self.task = task
        self.config: Any = None

    def configure(self, manager: Any) -> Any:
        listener, task = self.listener, self.task
        config = self.config = task.config
        if task.path[-1] is True:  # a call: what it is called by has lent its handlers
            callbacks = around().get("callbacks")
        else:
            callbacks = listener.manager.get_child(f"graph:step:{task.step}")
        callbacks = self._with_tokens(callbacks)
        return manager.configure(
            inheritable_callbacks=callbacks,
            inheritable_tags=config.get("tags"),
            inheritable_metadata={**config["metadata"], **listener.metadata},
        )

    def _with_tokens(self, callbacks: Any) -> Any:
        """With what sends the tokens of the models that this task calls, in place of that of a task
        around it."""
        known = [each for each in callbacks.handlers if isinstance(each, TokenSender)]
        for each in known:
            callbacks.remove_handler(each)
        if known or self.task.listens("messages"):
            make = type(known[0]) if known else TokenSender
            callbacks.add_handler(make(self.task), inherit=True)
        return callbacks

    def enter(self) -> None:
        self.listener.tell_resume()
        super().enter()

    async def aenter(self) -> None:
        await _await_all(self.listener.tell_resume())
        await super().aenter()

    def start(self) -> dict[str, Any]:
        task = self.task
        given = task.input
        if task.path[-1] is True:
            given = named_arguments(task.node.source, *given)
        return {"inputs": given, "name": task.name}

    def entered(self) -> None:
        self.lend(1, self.config)

    def remote(self) -> Any:
        """What tells of the models and tools that the node calls in another process."""
        return RemoteCallbacks(self.callbacks, streams=bool(self.taps()))

    def receive(self, data: Any) -> None:
        """Tell the handlers what they would have been told there."""
        replay(self.callbacks, data)

    def taps(self) -> list[Any]:
        handlers = self.manager.handlers
        return [each for each in handlers if isinstance(each, _StreamingCallbackHandler)]

    def output(self) -> Any:
        return self.task.input if self.task.node.hidden else self.result


def attempt_span(task: Task) -> AttemptSpan:
    """The span of the attempt that is under way."""
    found = task.current.span
    assert isinstance(found, AttemptSpan)
    return found


class LendingSpan(Span):
    """A router that is a Runnable: its own run is a child of the task's."""

    def __init__(self, task: Task, place: int) -> None:
        self._span = attempt_span(task)
        self._place = place

    def enter(self) -> None:
        """Let the router find the handlers."""
        self._span.lend(self._place, self._span.config)


class RouterSpan(CallbackSpan):
    """A call of a router."""

    def __init__(self, listener: Any, task: Task, place: int, name: str, state: Any) -> None:
        super().__init__(listener)
        self.outer: AttemptSpan = attempt_span(task)
        self.place = place
        self.name = name
        self.state = state

    def configure(self, manager: Any) -> Any:
        self.config: Any = self.outer.config
        parent = self.outer.manager.get_child(f"seq:step:{self.place}")
        return manager.configure(
            inheritable_callbacks=parent,
            inheritable_tags=self.config.get("tags"),
        )

    def start(self) -> dict[str, Any]:
        return {"inputs": self.state, "name": self.name}

    def entered(self) -> None:
        self.callbacks: Any = self.manager.get_child()
        self.outer.callbacks = self.callbacks
        _set_config_context({**self.config, "callbacks": self.callbacks})


def named_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call by the names of its parameters."""
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {"args": args, "kwargs": kwargs}


async def _as_stream(value: Any) -> AsyncIterator[Any]:
    yield value


async def _await_all(returned: list[Any]) -> None:
    """Wait for those handlers that are coroutines."""
    for each in returned:
        if inspect.isawaitable(each):
            await each


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
