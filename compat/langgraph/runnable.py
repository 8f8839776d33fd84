"""Functions as LangChain Runnables that are given what a node may ask for."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.config import ensure_config, merge_configs

from ...pregel.running import RUNNING
from ...pregel.runtime import Runtime
from .constants import CONF, CONFIG_KEY_RUNTIME
from .listening import is_unheard

RunnableLike: TypeAlias = Any
"""A Runnable, a function, a coroutine function or a mapping of them."""

_INJECTED = ("config", "runtime", "store", "writer", "previous")


class RunnableCallable(Runnable[Any, Any]):
    """A function as a Runnable. Parameters called config, runtime, store, writer and previous are
    filled from the running node.

    Args:
        func, afunc: what `invoke` and `ainvoke` call; without `afunc`, both call the function.
        recurse: a Runnable that the function returns is invoked in turn.
        explode_args: the input is a tuple (args, kwargs).
        trace: whether callbacks see a run of its own.
        kwargs: passed to the function.
    """

    def __init__(
        self,
        func: Callable[..., Any] | None,
        afunc: Callable[..., Awaitable[Any]] | None = None,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        trace: bool = True,
        recurse: bool = True,
        explode_args: bool = False,
        **kwargs: Any,
    ) -> None:
        if func is None and afunc is None:
            raise ValueError("RunnableCallable needs a function: give func, afunc or both")
        if func is not None and inspect.iscoroutinefunction(func) and afunc is None:
            func, afunc = None, func
        self.func = func
        self.afunc = afunc
        self.name: str | Any = name or getattr(func or afunc, "__name__", type(self).__name__)
        self.tags = tags
        self.trace = trace
        self.recurse = recurse
        self.explode_args = explode_args
        self.kwargs = kwargs
        signature = inspect.signature(func or afunc)  # type: ignore[arg-type]
        self._wanted = [
            (name, parameter.default)
            for name, parameter in signature.parameters.items()
            if name in _INJECTED and parameter.kind is not parameter.POSITIONAL_ONLY
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """The function's result.

        Raises:
            TypeError: there is only a coroutine function.
        """
        if self.func is None:
            raise TypeError(f"{self.name!r} is async only: call ainvoke() or astream()")
        config = self._config(config)
        if self._is_traced(config):
            # What it calls finds this run; the config that it may ask for is its caller's.
            call = partial(self._call, around=config, **kwargs)
            return self._call_with_config(call, input, config)
        return self._call(input, around=config, **kwargs)

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """The coroutine function's result, or the function's."""
        config = self._config(config)
        if self._is_traced(config):
            call = partial(self._acall, around=config, **kwargs)
            return await self._acall_with_config(call, input, config)
        return await self._acall(input, around=config, **kwargs)

    def __or__(self, other: Any) -> Any:
        return RunnableSeq(self, other)

    def _config(self, given: Any) -> Any:
        # That of a node is whole already (benchmark P31-prebuilt).
        config = given if given and "callbacks" in given and CONF in given else ensure_config(given)
        return merge_configs(config, {"tags": list(self.tags)}) if self.tags else config

    def _is_traced(self, config: Any) -> bool:
        """Whether a run of its own is told to anybody."""
        callbacks = config.get("callbacks")
        told = bool(getattr(callbacks, "handlers", callbacks))
        return self.trace and told and not is_unheard(config)

    def _call(self, input: Any, *, around: Any, **kwargs: Any) -> Any:
        args, named = self._arguments(input, around, kwargs)
        result = self.func(*args, **named)  # type: ignore[misc]
        if self.recurse and isinstance(result, Runnable):
            return result.invoke(input, around)
        return result

    async def _acall(self, input: Any, *, around: Any, **kwargs: Any) -> Any:
        args, named = self._arguments(input, around, kwargs)
        if self.afunc is not None:
            result = await self.afunc(*args, **named)
        else:
            result = self.func(*args, **named)  # type: ignore[misc]
        if self.recurse and isinstance(result, Runnable):
            return await result.ainvoke(input, around)
        return result

    def _arguments(
        self, input: Any, config: Any, given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: tuple[Any, ...] = (input,)
        named = {**self.kwargs, **given}
        if self.explode_args:
            args, exploded = input
            named.update(exploded)
        task = RUNNING.get()
        for name, default in self._wanted:
            if name not in named:
                named[name] = self._value_of(name, default, config, task)
        return args, named

    def _value_of(self, name: str, default: Any, config: Any, task: Any) -> Any:
        if name == "config":
            return config
        if task is not None:
            return getattr(task, name)
        runtime: Runtime[Any] | None = config.get(CONF, {}).get(CONFIG_KEY_RUNTIME)
        if name == "runtime" and runtime is not None:
            return runtime
        if runtime is not None:
            return getattr(runtime, {"writer": "stream_writer"}.get(name, name))
        if default is not inspect.Parameter.empty:
            return default
        raise ValueError(
            f"{self.name!r} takes {name!r}, which only a running graph has: call it in a node, or "
            f"pass {CONFIG_KEY_RUNTIME!r} in config[{CONF!r}]"
        )


class RunnableSeq(RunnableSequence[Any, Any]):
    """Runnables one after the other. Inside a node whose run is told to nobody they are called as
    they are: LangChain begins a run and two asyncio tasks around them (benchmark P31-prebuilt)."""

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """The name of its run, which is that of LangChain's sequences."""
        return str(super().get_name(suffix, name=name or self.name or "RunnableSequence"))

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """The result of the last."""
        if not is_unheard(config):
            return super().invoke(input, config, **kwargs)
        for place, step in enumerate(self.steps, 1):
            input = step.invoke(input, _config_of_step(config, place), **kwargs)
            kwargs = {}
        return input

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        """`invoke` for coroutines."""
        if not is_unheard(config):
            return await super().ainvoke(input, config, **kwargs)
        for place, step in enumerate(self.steps, 1):
            input = await step.ainvoke(input, _config_of_step(config, place), **kwargs)
            kwargs = {}
        return input


def _config_of_step(config: Any, place: int) -> Any:
    """The config of a step: the handlers that a model has of its own are told its place."""
    callbacks = config["callbacks"].copy()
    callbacks.add_tags([f"seq:step:{place}"], False)
    return {**config, "callbacks": callbacks}
