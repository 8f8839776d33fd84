"""Pregel: the public API of a compiled graph. Its methods are a few lines each; the work is done
elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, get_origin

from typing_extensions import Unpack

from ..channels.base import BaseChannel, check_kind
from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.serde import Serializer
from ..extras import load_part
from .budgets import Budget
from .clock import read_seconds
from .drivers import threads
from .errors import nearest
from .policies import NodePolicies
from .program.node import NodeBuilder, PregelNode, with_defaults
from .program.program import Program, freeze, with_debug, without_variants
from .program.results import refuse_lookalike
from .run.checks import (
    check_breakpoints,
    check_checkpointer,
    check_choice,
    check_context_schema,
    check_lent,
    read_observers,
    resolve_executor,
)
from .run.config import Options, concurrency, merge_configs, normalize, spread
from .run_api import Invocable
from .runtime import ManagedValue
from .thread_api import StoredThreads
from .types import (
    LOCAL,
    All,
    AnyConfig,
    CachePolicy,
    ContextT,
    InputT,
    OnFailure,
    OutputT,
    RetryPolicy,
    RunnableConfig,
    StateT,
    StreamMode,
    names_of,
)

if TYPE_CHECKING:
    from ..visualize.drawing import Drawing
    from .observer import AnyObserver

Channels = Mapping[str, BaseChannel[Any, Any, Any] | type[ManagedValue]]


LENT = ("checkpointer", "store", "cache", "executor", "observers")
"""What a graph only uses: copies share it."""

_FUNCTIONS = "define functions and classes at the top of a module, or use cloudpickle"
_LENT = (
    "compile the graph without it, or pickle app.copy({%r: None}), and set it again after loading"
)


class Pregel(
    Invocable[ContextT, InputT, OutputT],
    StoredThreads[StateT],
    Generic[StateT, ContextT, InputT, OutputT],
):
    """A graph of nodes that communicate through channels and run in supersteps.

    `StateGraph.compile` usually makes it; constructing one directly is the low-level way to
    describe a graph. It holds no state of runs: any number of threads and event loops may use it at
    once.

    Args:
        nodes: the nodes by name.
        channels: the channels by name, as templates; a `ManagedValue` class declares a computed
            key.
        input_channels: what `invoke` takes: one name for a bare value, several for a dict.
        output_channels: what `invoke` returns, in the same way.
        stream_channels: what streams and `get_state` show; None for all.
        interrupt_before_nodes, interrupt_after_nodes: the names of nodes to stop at, or "*".
        stream_mode: the default of `stream`.
        checkpointer: a checkpointer; None for that of the graph that contains this one; True for
            the same with a history of its own; False to save nothing.
        store, cache: for the nodes, and for the results of nodes with a cache policy.
        retry_policy, cache_policy: for nodes without one of their own.
        context_schema: the class of `context`.
        name: its name in drawings and errors.
        step_timeout: how many seconds (or which timedelta) a superstep may run, sync nodes
            included, before it fails with `StepTimeoutError`.
        on_failure: what the failure of a task does to the others of its superstep; None uses the
            setting of the enclosing graph, else "stop". See `StateGraph.compile`.
        debug: whether to refuse nodes that change their input in place. This is slower: each input
            is compared before and after.
        stream_eager: whether the reader's thread stays free while a node runs, so that chunks reach
            the reader at once.
        executor: where the functions of nodes without an executor of their own run; see
            `StateGraph.compile`.
        inbox: whether runs take the posts of their thread; see `post`.
        observer: an `Observer` of all its runs, the name of one ("module:name"), or several.

    Raises:
        InvalidGraphError: the graph has mistakes; the error names all of them.
        TypeError: `checkpointer`, `store`, `cache` or `step_timeout` is of none of the kinds above.
        ValueError: `step_timeout` is not greater than 0, `on_failure` is unknown, or the
            checkpointer keeps no posts.

    >>> from stategraph.channels import EphemeralValue, LastValue
    >>> app = Pregel(
    ...     nodes={"double": NodeBuilder().subscribe_only("a").do(lambda x: x + x).write_to("b")},
    ...     channels={"a": EphemeralValue(str), "b": LastValue(str)},
    ...     input_channels="a",
    ...     output_channels="b",
    ... )
    >>> app.invoke("foo")
    'foofoo'
    """

    is_stategraph = True
    spec: Any = None  # what a `StateGraph` was compiled from
    budgets: tuple[Budget, ...] = ()
    serde: Serializer
    types: tuple[Any, ...] = ()  # the annotations whose types its threads may store

    def __init__(
        self,
        *,
        nodes: Mapping[str, PregelNode | NodeBuilder],
        channels: Channels,
        input_channels: str | Sequence[str],
        output_channels: str | Sequence[str],
        stream_channels: str | Sequence[str] | None = None,
        interrupt_before_nodes: All | Sequence[str] = (),
        interrupt_after_nodes: All | Sequence[str] = (),
        stream_mode: StreamMode = "values",
        checkpointer: BaseCheckpointSaver | bool | None = None,
        store: Any = None,
        cache: Any = None,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] = (),
        cache_policy: CachePolicy | None = None,
        context_schema: Any = None,
        name: str = "Pregel",
        step_timeout: float | timedelta | None = None,
        on_failure: OnFailure | None = None,
        debug: bool = False,
        stream_eager: bool = False,
        executor: Any = None,
        inbox: bool = False,
        observer: AnyObserver | Sequence[AnyObserver] | None = None,
    ) -> None:
        self.nodes: dict[str, PregelNode] = _build_nodes(nodes, retry_policy, cache_policy)
        selections = (input_channels, output_channels, stream_channels)
        for which, given in zip(("input", "output", "stream"), selections, strict=True):
            kinds = Sequence if which != "stream" else Sequence | None
            check_kind(f"{which}_channels", given, kinds, "a name or a list of names")
        program = freeze(name, self.nodes, channels, selections, stream_eager)
        if debug:
            program = with_debug(program, True)
        self.executor: Any = resolve_executor(executor)
        self.program: Program = _place_nodes(program, self.executor, store)
        self.channels: dict[str, Any] = {**program.channels, **program.managed}
        self.input_channels = input_channels
        self.output_channels = output_channels
        self.stream_channels = stream_channels
        self.interrupt_before = check_breakpoints(interrupt_before_nodes, program)
        self.interrupt_after = check_breakpoints(interrupt_after_nodes, program)
        self.stream_mode: StreamMode = stream_mode
        self.checkpointer: Any = check_checkpointer(checkpointer)
        self.inbox: bool = inbox
        if inbox and isinstance(checkpointer, BaseCheckpointSaver):
            from .run.inbox import check_keeps_posts

            check_keeps_posts(checkpointer)
        self.store: Any = check_lent("store", store, "put")
        self.cache: Any = check_lent("cache", cache, "set")
        self.set_serializer()
        self.context_schema: Any = check_context_schema(context_schema)
        self.name = name
        self.step_timeout: float | None = (
            None if step_timeout is None else read_seconds("step_timeout", step_timeout)
        )
        self.limited: bool = any(node.policies.limits for node in program.nodes.values())
        if on_failure is not None:
            check_choice("on_failure", on_failure, OnFailure)
        self.on_failure: OnFailure | None = on_failure
        self.observers: Sequence[Any] = read_observers(observer)
        self.check_input: Callable[[Any], None] = refuse_lookalike
        self.migrate: Any = None
        self.config: RunnableConfig = {}

    # -- several inputs ----------------------------------------------------------------------------

    def batch(
        self,
        inputs: Sequence[Any],
        config: AnyConfig | Sequence[AnyConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **options: Unpack[Options[Any]],
    ) -> list[Any]:
        """Run several inputs side by side, independently of each other.

        Args:
            inputs: one input for each run.
            config: one for all, or one per input. The first one's `max_concurrency` limits how many
                run at once.
            return_exceptions: whether an exception is returned in place of the result.

        Returns:
            The results in the order of the inputs.

        Raises:
            ValueError: there are not as many configs as inputs.
            Exception: what the first failed run, in the order of the inputs, raised; all have ended
                by then.
        """
        if options.get("progress"):
            given = {"return_exceptions": return_exceptions, **options}
            shown: list[Any] = load_part("progress").batch(self, inputs, config, given)
            return shown
        configs = spread(config, len(inputs))
        return threads.side_by_side(
            [partial(self.invoke, i, c, **options) for i, c in zip(inputs, configs, strict=True)],
            concurrency(configs),
            return_exceptions,
        )

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: AnyConfig | Sequence[AnyConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **options: Unpack[Options[Any]],
    ) -> list[Any]:
        """`batch` for coroutines."""
        from .drivers import aio

        if options.get("progress"):
            given = {"return_exceptions": return_exceptions, **options}
            shown: list[Any] = await load_part("progress").abatch(self, inputs, config, given)
            return shown
        configs = spread(config, len(inputs))
        return await aio.side_by_side(
            [partial(self.ainvoke, i, c, **options) for i, c in zip(inputs, configs, strict=True)],
            concurrency(configs),
            return_exceptions,
        )

    # -- posts -------------------------------------------------------------------------------------

    def post(self, config: AnyConfig, values: Any) -> None:
        """Post an update to a thread, which may be running, here or elsewhere. It neither
        interrupts a run nor conflicts with one: the thread's run takes it at its next barrier
        after which something runs, after the writes of the tasks, and the nodes that follow see it;
        a run that continues takes it at its start. Until then `get_state(config).posts` shows it.
        It is in exactly one step of the thread, as a write of `__post__`, whatever is killed.

        Args:
            config: the thread, which need not exist yet.
            values: an update as a node returns it; only of keys with reducers.

        Raises:
            ValueError: the graph is not compiled with `inbox=True`, it has no checkpointer, the
                checkpointer keeps no posts, or `config` names no thread or more than the thread.
            InvalidUpdateError: a key is unknown or has no reducer, or its reducer cannot take it.
            UnserializableError: a value cannot be stored.
        """
        from .run.inbox import encode_post

        saver, where = self._thread(config)
        saver.store_post(*encode_post(self, saver, where, values))

    async def apost(self, config: AnyConfig, values: Any) -> None:
        """`post` for coroutines."""
        from .run.inbox import encode_post

        saver, where = self._thread(config)
        await saver.astore_post(*encode_post(self, saver, where, values))

    # -- context -----------------------------------------------------------------------------------

    def coerce_context(self, context: Any) -> Any:
        """Return the context; a dict becomes an instance of the context schema if that is a
        dataclass or a pydantic model."""
        schema = self.context_schema
        cls = get_origin(schema) or schema
        if isinstance(context, dict) and cls is not None and not issubclass(cls, dict):
            try:
                return schema(**context)
            except Exception as error:
                error.add_note(
                    f"while making the context of {self.name!r}, a {cls.__name__}, "
                    f"from {context!r}"
                )
                raise
        return context

    # -- cache -------------------------------------------------------------------------------------

    def clear_cache(self, nodes: Iterable[str] | None = None) -> None:
        """Delete the cached results of these nodes, or of all; those of `@task`s and of nested
        graphs stay.

        Raises:
            ValueError: the graph has no cache, or no node with such a name.
        """
        self._cache().clear(self._cached(nodes))

    async def aclear_cache(self, nodes: Iterable[str] | None = None) -> None:
        """`clear_cache` for coroutines."""
        await self._cache().aclear(self._cached(nodes))

    def _cache(self) -> Any:
        if self.cache is None:
            raise ValueError(
                f"graph {self.name!r} has no cache: give it one by compile(cache=InMemoryCache())"
            )
        return self.cache

    def _cached(self, names: Iterable[str] | None) -> list[tuple[str, ...]]:
        """Where the results of these nodes lie; those without a cache policy have none."""
        known = self.program.nodes
        for name in (names := list(known if names is None else names)):
            if name not in known:
                raise ValueError(f"clear_cache: there is no node {name!r}; {nearest(name, known)}")
        return [cache.namespace for name in names if (cache := known[name].cache) is not None]

    # -- pickled and copied: what it was lent stays where it is ------------------------------------

    def set_serializer(self) -> None:
        """Take the checkpointer's serializer, or one of its own, which knows no types yet."""
        saver = self.checkpointer
        if isinstance(saver, BaseCheckpointSaver):
            self.serde = saver.for_call({}).serde
        else:
            self.serde = Serializer()
        self.types = ()

    def register_types(self, *hints: Any) -> None:
        """Let its threads store the types that these annotations name, and those that its nested
        graphs store."""
        self.types = (*self.types, *hints)
        for hint in hints:
            self.serde.register_schema(hint)
        for nested in self.program.nested.values():
            self.serde.learn(nested.serde)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: what it was lent included. Its serializer is made anew where it is
        loaded.

        Raises:
            pickle.PicklingError: naming what cannot be pickled. Not to cloudpickle, which can do
                more than is tried here.
        """
        import pickle

        # Frame 1 is the caller; a pickler in C has no frame.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if "cloudpickle" not in caller and "dill" not in caller:
            for what, part, advice in _parts(self):
                try:
                    pickle.dumps(part)
                except Exception as error:
                    raise pickle.PicklingError(
                        f"graph {self.name!r} cannot be pickled: {what}: {error}; {advice}"
                    ) from error
        state = {**self.__dict__, "program": without_variants(self.program)}
        del state["serde"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.set_serializer()
        self.register_types(*state["types"])

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A graph of its own, which shares what the other was lent."""
        twin = memo[id(self)] = object.__new__(type(self))
        for name in (*LENT, "serde"):
            memo[id(getattr(self, name))] = getattr(self, name)
        state = {**self.__dict__, "program": without_variants(self.program)}
        twin.__dict__.update({name: deepcopy(value, memo) for name, value in state.items()})
        return twin

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """The same graph, with other values for some attributes."""
        check_kind("update", update, Mapping | None, "a dict of attributes")
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        for name, value in (update or {}).items():
            if name not in self.__dict__:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            setattr(twin, name, value)
        if "checkpointer" in (update or {}):
            twin.set_serializer()
            twin.register_types(*self.types)
        return twin

    # -- look --------------------------------------------------------------------------------------

    def get_graph(
        self, config: RunnableConfig | None = None, *, xray: bool | int = False
    ) -> Drawing:
        """Return a drawing of the graph, made from the program that runs; calls no user code.

        Args:
            config: ignored; the drawing is the same for all.
            xray: whether graphs inside nodes are drawn: True for all, a number for that many
                levels.
        """
        drawing: Drawing = load_part("drawing").draw(self, xray)
        return drawing

    async def aget_graph(
        self, config: RunnableConfig | None = None, *, xray: bool | int = False
    ) -> Drawing:
        """`get_graph` for coroutines."""
        return self.get_graph(config, xray=xray)

    def get_input_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of what `invoke` takes. `config` is ignored."""
        from .program.json_schema import selection_schema

        keys, channels = self.program.inputs, self.program.channels
        hints = {key: channels[key].UpdateType for key in names_of(keys)}
        return selection_schema(f"{self.name}Input", keys, hints)

    def get_output_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of what `invoke` returns."""
        from .program.json_schema import selection_schema

        keys, channels = self.program.outputs, self.program.channels
        hints = {key: channels[key].ValueType for key in names_of(keys)}
        return selection_schema(f"{self.name}Output", keys, hints)

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """The JSON schema of `context=`; None if the graph has no context schema."""
        from .program.json_schema import type_schema

        return None if self.context_schema is None else type_schema(self.context_schema)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What Jupyter shows: the drawing."""
        shown: dict[str, str] = load_part("drawing").bundle(self.get_graph, include, exclude)
        return shown

    def _mime_(self) -> tuple[str, str]:
        """Return what marimo shows."""
        return "text/html", self._repr_mimebundle_()["text/html"]

    # -- derive ------------------------------------------------------------------------------------

    def with_config(self, config: RunnableConfig | None = None, **settings: Any) -> Self:
        """Return a copy of the graph with these settings as defaults; the config of a call is
        merged into them."""
        copied = self.copy()
        own = normalize(settings)  # any keys: normalize tells of typos
        copied.config = merge_configs(self.config, normalize(config), own)
        return copied

    def validate(self) -> Self:
        """Return the graph: it was checked when it was compiled."""
        return self

    def get_name(self) -> str:
        """The graph's name."""
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, nodes={list(self.nodes)})"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]


_INTERNAL = frozenset((
    "aedit", "check_input", "coerce_context", "coerce_output", "coerce_state", "edit",
    "is_stategraph", "limited",
    "nested", "output_form", "output_names", "program", "register_types", "set_serializer", "spec",
    "types",
))  # fmt: skip
"""What other parts of the package use of a graph, and users need not see."""


def check_compiled(app: object) -> None:
    """Check that this is a compiled graph.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(app, Pregel):
        hint = ": compile() it first" if hasattr(app, "compile") else ""
        raise TypeError(f"app must be a compiled graph, got {type(app).__name__}{hint}")


def _parts(app: Any) -> Iterator[tuple[str, Any, str]]:
    """What a graph is made of, with its name and what to do if it cannot be pickled."""
    for name in LENT:
        yield f"{name} {type(getattr(app, name)).__name__}", getattr(app, name), _LENT % name
    for key, channel in app.channels.items():
        yield f"key {key!r}", channel, _FUNCTIONS
    for name, node in app.nodes.items():
        yield f"node {name!r}", (node.bound, node.mapper), _FUNCTIONS
        yield f"what follows node {name!r}", node.writers, _FUNCTIONS


def _build_nodes(
    nodes: Mapping[str, PregelNode | NodeBuilder],
    retry_policy: RetryPolicy | Sequence[RetryPolicy],
    cache_policy: CachePolicy | None,
) -> dict[str, PregelNode]:
    """The nodes, with the graph's policies where they have none of their own."""
    check_kind("nodes", nodes, Mapping, "a dict of nodes")
    check_kind("retry_policy", retry_policy, RetryPolicy | Sequence, "a RetryPolicy or several")
    retry = (retry_policy,) if isinstance(retry_policy, RetryPolicy) else tuple(retry_policy)
    defaults = NodePolicies(retry, cache_policy)
    return {
        name: with_defaults(given.build() if isinstance(given, NodeBuilder) else given, defaults)
        for name, given in nodes.items()
    }


def _place_nodes(program: Program, executor: Any, store: Any) -> Program:
    """The program with each node where its own executor says. What cannot run on the graph's
    executor is refused now, though that is chosen anew in each call."""
    if any(node.executor not in (None, LOCAL) for node in program.nodes.values()):
        program = load_part("placement").place_program(program, None, store)
    if executor not in (None, LOCAL):
        load_part("placement").place_program(program, executor, store)
    return program
