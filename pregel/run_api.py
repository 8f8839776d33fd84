"""The methods of a graph that run it: `invoke`, `stream`, `batch` and their async twins.

The overloads tell a type checker what comes back: one for each shape that the options choose. Those
of `version="v2"` come first, for checkers that take any further option as fitting any overload.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, Self, overload

from typing_extensions import TypeVar, Unpack

from ..extras import load_part
from .budgets import read_call_budgets
from .drivers import threads
from .drivers.waits import WAITS
from .errors import GraphBubbleUp
from .program.program import Program, with_debug
from .run.config import Call, CallOptions, Options, read_options
from .run.nested import is_graph_node, leaving, may_undo, pause_parent
from .run.run import Run
from .run.stream import Form, rename, show_pause
from .steps import Waits, arun_steps, run_steps
from .types import (
    AnyConfig,
    Command,
    ContextT,
    GraphOutput,
    IsDataclass,
    IsModel,
    StreamMode,
    StreamPart,
)

GivenT = TypeVar("GivenT", default=Any, contravariant=True)
ResultT = TypeVar("ResultT", default=Any, covariant=True)


class Invocable(Generic[ContextT, GivenT, ResultT]):
    """The methods of a compiled graph that run it.

    A graph whose output is a dataclass or a model returns a dict of its keys, or, as an
    `entrypoint`, the value itself; only `version="v2"` always returns an instance.

    Attributes:
        output_names: keys that have another name in a dict that a call returns, or shows in the
            mode "values" → that name.
    """

    program: Program
    stream_mode: StreamMode
    output_names: Mapping[str, str] = MappingProxyType({})

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """The same graph, with other values for some attributes."""
        raise NotImplementedError

    @overload
    def invoke(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        version: Literal["v2"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> GraphOutput[ResultT]: ...
    @overload
    def invoke(
        self: Invocable[ContextT, GivenT, IsDataclass | IsModel],
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[CallOptions[ContextT]],
    ) -> Any: ...
    @overload
    def invoke(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[CallOptions[ContextT]],
    ) -> ResultT: ...
    @overload
    def invoke(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[Options[ContextT]],
    ) -> Any: ...
    def invoke(
        self, input: Any, config: AnyConfig | None = None, **options: Unpack[Options[Any]]
    ) -> Any:
        """Run until the graph ends or pauses.

        Args:
            input: new input for the thread; None to continue from the last checkpoint; a `Command`
                to answer, to update the state or to choose the next node.
            config: see `RunnableConfig`.
            options: `budget`, `context`, `control`, `debug`, `durability`, `executor`,
                `interrupt_after`, `interrupt_before`, `multitask`, `observer`, `on_failure`,
                `output_keys`, `progress`, `stream_mode`, `subgraphs`, `version`: see `Options`.

        Returns:
            The values of the output channels, as this call last showed them in the mode "values",
            or else as they are now; None if none of them holds a value. If the run paused, its
            questions are added under "__interrupt__". With another `stream_mode`, a list of the
            chunks.

        Raises:
            EmptyInputError: there is nothing to do.
            GraphRecursionError: the call reached `recursion_limit` with work left.
            InvalidUpdateError: the writes of a superstep cannot be applied.
            CheckpointConflictError: another run has continued the thread in the meantime.
            Exception: whatever a node raised, with a note that names its task.
        """
        call = read_options(options)
        if call.multitask is not None or call.progress:
            return find_detour(call).invoke(self, input, config, options)
        if call.stream_mode is not None and call.stream_mode != "values":
            return list(self.stream(input, config, **options))
        run = self._run(input, config, call)
        try:
            threads.drive(run)
        except BaseException as error:
            if may_undo(run, error):
                return run_steps(undoing(self, run, call, error))
            if not isinstance(error, GraphBubbleUp):
                raise
            raise leaving(run, error) from None
        return self._result(run, call)

    @overload
    async def ainvoke(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        version: Literal["v2"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> GraphOutput[ResultT]: ...
    @overload
    async def ainvoke(
        self: Invocable[ContextT, GivenT, IsDataclass | IsModel],
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[CallOptions[ContextT]],
    ) -> Any: ...
    @overload
    async def ainvoke(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[CallOptions[ContextT]],
    ) -> ResultT: ...
    @overload
    async def ainvoke(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[Options[ContextT]],
    ) -> Any: ...
    async def ainvoke(
        self, input: Any, config: AnyConfig | None = None, **options: Unpack[Options[Any]]
    ) -> Any:
        """`invoke` for coroutines."""
        from .drivers import aio

        call = read_options(options)
        if call.multitask is not None or call.progress:
            return await find_detour(call).ainvoke(self, input, config, options)
        if call.stream_mode is not None and call.stream_mode != "values":
            return [chunk async for chunk in self.astream(input, config, **options)]
        run = self._run(input, config, call)
        try:
            await aio.drive(run)
        except BaseException as error:
            if may_undo(run, error):
                return await arun_steps(undoing(self, run, call, error, aio.AWAITS))
            if not isinstance(error, GraphBubbleUp):
                raise
            raise leaving(run, error) from None
        return self._result(run, call)

    @overload
    def stream(
        self: Invocable[ContextT, GivenT, IsDataclass | IsModel],
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        version: Literal["v2"],
        stream_mode: StreamMode | Sequence[StreamMode] | None = None,
        subgraphs: bool = False,
        **options: Unpack[CallOptions[ContextT]],
    ) -> Generator[StreamPart[Any, Any], None, None]: ...
    @overload
    def stream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        version: Literal["v2"],
        stream_mode: StreamMode | Sequence[StreamMode] | None = None,
        subgraphs: bool = False,
        **options: Unpack[CallOptions[ContextT]],
    ) -> Generator[StreamPart[ResultT, Any], None, None]: ...
    @overload
    def stream(
        self: Invocable[ContextT, GivenT, IsDataclass | IsModel],
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["values"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> Generator[Any, None, None]: ...
    @overload
    def stream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["values"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> Generator[ResultT, None, None]: ...
    @overload
    def stream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["updates", "tasks", "checkpoints", "debug"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> Generator[dict[str, Any], None, None]: ...
    @overload
    def stream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["messages"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> Generator[tuple[Any, dict[str, Any]], None, None]: ...
    @overload
    def stream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: list[StreamMode] | tuple[StreamMode, ...],
        **options: Unpack[CallOptions[ContextT]],
    ) -> Generator[tuple[StreamMode, Any], None, None]: ...
    @overload
    def stream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[Options[ContextT]],
    ) -> Generator[Any, None, None]: ...
    def stream(
        self, input: Any, config: AnyConfig | None = None, **options: Unpack[Options[Any]]
    ) -> Generator[Any, None, None]:
        """Run superstep by superstep and yield chunks of the kinds that `stream_mode` names. A
        superstep starts when the reader asks for more.

        Takes and raises what `invoke` does. With a list of modes each chunk is a (mode, data) pair;
        `subgraphs=True` puts the namespace first.
        """
        call = read_options(options)
        if call.multitask is not None or call.progress:
            yield from find_detour(call).stream(self, input, config, options)
            return
        run = self._open(input, config, call)
        try:
            yield from threads.stream(run)
        except GeneratorExit:
            raise  # closed by the reader
        except BaseException as error:
            if may_undo(run, error):
                run_steps(undoing(self, run, call, error))
                return
            if not isinstance(error, GraphBubbleUp):
                raise
            raise leaving(run, error) from None
        pause_parent(run)

    @overload
    def astream(
        self: Invocable[ContextT, GivenT, IsDataclass | IsModel],
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        version: Literal["v2"],
        stream_mode: StreamMode | Sequence[StreamMode] | None = None,
        subgraphs: bool = False,
        **options: Unpack[CallOptions[ContextT]],
    ) -> AsyncGenerator[StreamPart[Any, Any], None]: ...
    @overload
    def astream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        version: Literal["v2"],
        stream_mode: StreamMode | Sequence[StreamMode] | None = None,
        subgraphs: bool = False,
        **options: Unpack[CallOptions[ContextT]],
    ) -> AsyncGenerator[StreamPart[ResultT, Any], None]: ...
    @overload
    def astream(
        self: Invocable[ContextT, GivenT, IsDataclass | IsModel],
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["values"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> AsyncGenerator[Any, None]: ...
    @overload
    def astream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["values"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> AsyncGenerator[ResultT, None]: ...
    @overload
    def astream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["updates", "tasks", "checkpoints", "debug"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> AsyncGenerator[dict[str, Any], None]: ...
    @overload
    def astream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: Literal["messages"],
        **options: Unpack[CallOptions[ContextT]],
    ) -> AsyncGenerator[tuple[Any, dict[str, Any]], None]: ...
    @overload
    def astream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        *,
        stream_mode: list[StreamMode] | tuple[StreamMode, ...],
        **options: Unpack[CallOptions[ContextT]],
    ) -> AsyncGenerator[tuple[StreamMode, Any], None]: ...
    @overload
    def astream(
        self,
        input: GivenT | Command | None,
        config: AnyConfig | None = None,
        **options: Unpack[Options[ContextT]],
    ) -> AsyncGenerator[Any, None]: ...
    def astream(
        self, input: Any, config: AnyConfig | None = None, **options: Unpack[Options[Any]]
    ) -> AsyncGenerator[Any, None]:
        """`stream` for coroutines. A stream is read in one event loop."""
        from .drivers.aio import Chunks

        return Chunks(partial(self._astream, input, config, options))

    async def _astream(
        self, input: Any, config: AnyConfig | None, options: Any, end: Callable[[], None]
    ) -> AsyncGenerator[Any, None]:
        """The chunks of `astream`; calls `end` when there are no more."""
        from .drivers import aio

        call = read_options(options)
        run: Run | None = None
        if call.multitask is not None or call.progress:
            chunks = find_detour(call).astream(self, input, config, options)
        else:
            run = self._open(input, config, call)
            chunks = aio.stream(run)
        try:
            async for chunk in aio.Unregistered(chunks):
                yield chunk
        except GeneratorExit:
            raise  # closed by the reader, or by its event loop
        except BaseException as error:
            end()
            if run is not None and may_undo(run, error):
                await arun_steps(undoing(self, run, call, error, aio.AWAITS))
                return
            if run is None or not isinstance(error, GraphBubbleUp):
                raise
            raise leaving(run, error) from None
        finally:
            await chunks.aclose()
        end()
        if run is not None:
            pause_parent(run)

    def _run(self, input: Any, config: AnyConfig | None, call: Call) -> Run:
        """One call of this graph, with the `debug` that the call sets."""
        graph: Any = self
        if call.debug is not None:
            graph = self.copy({"program": with_debug(self.program, call.debug)})
        if call.budget is not None:
            budgets = read_call_budgets(call.budget, graph.program.nodes)
            graph = graph.copy({"budgets": (*graph.budgets, *budgets)})
        return Run(graph, input, config, call)

    def _open(self, input: Any, config: AnyConfig | None, call: Call) -> Run:
        """A run with a reader."""
        run = self._run(input, config, call)
        shown = self.program.stream
        if call.output_keys is None and shown != self.program.outputs:
            run.output.select(shown)
        modes = call.stream_mode
        if modes is None:
            modes = "values" if run.parent is not None else self.stream_mode
        run.output.attach_reader(call, modes, self.output_form(call.version == "v2"))
        return run

    def _result(self, run: Run, call: Call) -> Any:
        """What `invoke` returns."""
        pause_parent(run)
        value, questions = run.output.result(run.machine), run.output.questions or ()
        wake_at = run.output.wake_at
        if call.version == "v2":
            whole = not questions and wake_at is None and call.output_keys is None
            return GraphOutput(self.coerce_output(value, whole=whole), questions, wake_at)
        if self.output_names and not is_graph_node(run.parent):
            value = rename(self.output_names, value)
        if questions or wake_at is not None:
            shown = show_pause(questions and list(questions), wake_at)
            return {**(value if isinstance(value, dict) else {}), **shown}
        return value

    def coerce_output(self, value: Any, *, whole: bool = True) -> Any:
        """The output as an instance of the output schema, if that is a class. What is not the whole
        output may stay a dict."""
        return value

    def output_form(self, typed: bool) -> Form:
        """What a reader of the mode "values" is shown.

        Args:
            typed: with `version="v2"`.
        """
        if typed:
            return partial(self.coerce_output, whole=False)
        return partial(rename, self.output_names) if self.output_names else None


def undoing(app: Any, run: Run, call: Call, error: BaseException, waits: Waits = WAITS) -> Any:
    """The steps that undo what a call has done, because of the error that has ended it."""
    from .drivers.undoing import undo_after

    return undo_after(app, run, call, error, waits)


def find_detour(call: Call) -> Any:
    """What makes a call that waits for its turn or is shown: a module with the methods' twins."""
    if call.progress:
        return load_part("progress")
    from .drivers import turns

    return turns
