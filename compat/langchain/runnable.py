"""A compiled graph as a LangChain Runnable."""

from __future__ import annotations

from functools import cache
from types import new_class
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from pydantic import create_model

from ...pregel.program.program import Program
from ...pregel.run.config import COORDINATES
from ...pregel.running import RUNNING
from .drawing import GraphDrawing, draw

_INHERITED = ("tags", "metadata", "configurable", "max_concurrency")
_RESERVED = "__pregel_"


class RunnableGraph(Runnable[Any, Any]):
    """Mixed into a compiled graph, it makes it a Runnable: `|`, `bind`, `with_retry`, ..."""

    program: Program
    spec: Any
    context_schema: Any

    @property
    def InputType(self) -> Any:  # the name is LangChain's
        """The input schema; the type of the input if that is one value."""
        return self._type(self.program.inputs, "input_schema")

    @property
    def OutputType(self) -> Any:
        """The output schema; the type of the output if that is one value."""
        return self._type(self.program.outputs, "output_schema")

    def _type(self, keys: Any, schema: str) -> Any:
        if self.spec is not None:
            return getattr(self.spec, schema)
        return self.program.channels[keys].ValueType if isinstance(keys, str) else Any

    def get_output_schema(self, config: Any = None) -> Any:
        """A model of what `invoke` returns; any of its keys may be missing."""
        outputs, channels = self.program.outputs, self.program.channels
        if isinstance(outputs, str):
            return super().get_output_schema(config)
        fields: Any = {key: (channels[key].ValueType, None) for key in outputs}
        return create_model(self.get_name("Output"), **fields)

    def config_schema(self, *, include: Any = None) -> Any:
        """A model of the config; `configurable` has the keys of the context schema."""
        found = super().config_schema(include=include)
        if self.context_schema is None:
            return found
        fields: Any = {"configurable": (self.context_schema, None)}
        fields |= {name: (field.annotation, field) for name, field in found.model_fields.items()}
        return create_model(found.__name__, **fields)


class RunnableParts:
    """Laid over a compiled graph: what a Runnable's methods expect of it."""

    name: str
    config: Any

    def _run(self, input: Any, config: Any, call: Any) -> Any:
        own, given = (part and part.get("callbacks") for part in (self.config, config))
        if own and given:
            both = merge_configs({"callbacks": own}, {"callbacks": given})
            config = {**config, "callbacks": both["callbacks"]}
        return super()._run(input, inherit_config(config), call)  # type: ignore[misc]

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """The graph's name, or the one given, with a suffix in LangChain's spelling."""
        return str(Runnable.get_name(self, suffix, name=name))

    def get_graph(self, config: Any = None, *, xray: bool | int = False) -> GraphDrawing:
        """A drawing of the graph as LangChain's `Graph`, so that chains can be drawn.

        Args:
            config: ignored; the drawing is the same for all.
            xray: whether graphs inside nodes are drawn: True for all, a number for that many
                levels.
        """
        return draw(self, xray)

    async def aget_graph(self, config: Any = None, *, xray: bool | int = False) -> GraphDrawing:
        """`get_graph` for coroutines."""
        return self.get_graph(config, xray=xray)


def as_runnable(graph: Any) -> Any:
    """A copy of a compiled graph that is a LangChain Runnable: it can stand in a chain, and be a
    node of another engine's graph. What a Runnable around it lends (handlers, tags, metadata,
    `configurable`) it takes over."""
    cls: Any = type(graph)
    twin: Any = object.__new__(_runnable_class(cls))
    twin.__dict__.update(vars(graph.copy()))
    return twin


@cache
def _runnable_class(cls: type) -> type:
    if issubclass(cls, RunnableGraph):
        return cls
    return new_class(f"Runnable{cls.__name__}", (RunnableParts, cls, RunnableGraph))


def inherit_config(config: Any) -> Any:
    """The config of a call with what it takes over from the Runnable around it.

    Inside a node of ours the run around it says the rest. A node of another engine lends its own
    thread; of that only the name counts here.
    """
    outer = var_child_runnable_config.get()
    given = dict(config or {})
    if RUNNING.get() is not None:
        return given
    if outer:
        for key in _INHERITED:
            value = outer.get(key)
            if not value:
                continue
            if isinstance(value, dict):
                given[key] = {**value, **(given.get(key) or {})}
            elif key == "tags":
                own = given.get("tags") or []
                given["tags"] = [*value, *(tag for tag in own if tag not in value)]
            else:
                given.setdefault(key, value)
    configurable = given.get("configurable")
    if configurable and any(key.startswith(_RESERVED) for key in configurable):
        given["configurable"] = {
            key: value
            for key, value in configurable.items()
            if not key.startswith(_RESERVED) and (key not in COORDINATES or key == "thread_id")
        }
    return given
