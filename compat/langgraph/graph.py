"""LangGraph's graph builder: ours with LangGraph's defaults."""

from __future__ import annotations

import warnings as _warnings
from typing import Annotated, Any, ClassVar, Self

from langchain_core.runnables import Runnable

from ...graph import CompiledStateGraph as _CompiledStateGraph
from ...graph import StateGraph as _StateGraph
from ...graph.arguments import read_breakpoints
from ...graph.validate import check_graph
from ...pregel.types import ContextT, InputT, OutputT, StateT
from .deprecated import rename
from .ignored import take_ignored
from .messages import add_messages
from .pregel import Pregel
from .warnings import LangGraphDeprecatedSinceV10


class CompiledStateGraph(
    _CompiledStateGraph[StateT, ContextT, InputT, OutputT],
    Pregel[StateT, ContextT, InputT, OutputT],
):
    """A compiled graph that is also a LangChain Runnable."""


class StateGraph(_StateGraph[StateT, ContextT, InputT, OutputT]):
    """A graph whose nodes may write keys that the state does not have; they are dropped.

    Args:
        deprecated: the spellings `config_schema`, `input` and `output`.
    """

    compiled_class: ClassVar[type[_CompiledStateGraph[Any, Any, Any, Any]]] = CompiledStateGraph
    first_values = False
    unset_fields = True

    def __init__(
        self,
        state_schema: Any,
        context_schema: Any = None,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
        **deprecated: Any,
    ) -> None:
        new = {"input_schema": input_schema, "output_schema": output_schema}
        renamed = rename(deprecated)
        context_schema = renamed.pop("context_schema", context_schema)
        super().__init__(state_schema, context_schema, extra_keys="ignore", **{**new, **renamed})
        self.trace_policies: dict[str, Any] = {}

    @property
    def schemas(self) -> dict[Any, dict[str, Any]]:
        """The keys of each schema: their channels, and the classes of managed values."""
        return {
            schema: {**read.channels, **read.managed}
            for schema, read in self._state.schemas.items()
        }

    def add_node(self, node: Any, action: Any = None, **options: Any) -> Self:
        """Add a node; `retry` and `input` are taken with a warning.

        Args:
            options: `trace_policy`, a `TracePolicy`, and those of `stategraph.StateGraph.add_node`.
        """
        policy = options.pop("trace_policy", None)
        old: dict[str, Any] = {n: options.pop(n) for n in ("retry", "input") if n in options}
        super().add_node(node, action, **{**options, **rename(old)})
        if policy is not None:
            self.trace_policies[next(reversed(self.nodes))] = policy
        return self

    def add_sequence(self, nodes: Any) -> Self:
        """Add nodes one after the other. A Runnable without a name of its own here is called as its
        class is."""
        named = [(type(n).__name__, n) if isinstance(n, Runnable) else n for n in nodes]
        return super().add_sequence(named)

    def validate(self, interrupt: Any = None) -> Self:
        """Check the graph as a whole. What merely looks wrong is not told: LangGraph does not.

        Raises:
            InvalidGraphError: with a sentence for every mistake.
        """
        check_graph(self.snapshot(), read_breakpoints("interrupt", interrupt), advise=False)
        return self

    def compile(self, checkpointer: Any = None, **options: Any) -> Any:
        """Compile the graph; `transformers` are those of its event streams."""
        transformers = options.pop("transformers", None)
        options = take_ignored("compile()", options)
        options["name"] = options.get("name") or "LangGraph"
        app: Any = super().compile(checkpointer, **options)
        app.trace_policies = dict(self.trace_policies)
        app.stream_transformers = tuple(transformers or ())
        return app


class MessageGraph(StateGraph):
    """A graph whose whole state is a list of messages. Deprecated."""

    def __init__(self) -> None:
        _warnings.warn(
            LangGraphDeprecatedSinceV10(
                "MessageGraph is deprecated. Please use StateGraph with a `messages` key instead"
            ),
            stacklevel=2,
        )
        super().__init__(Annotated[list[Any], add_messages])
