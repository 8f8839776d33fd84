"""stategraph: typed-state graphs, compiled to Pregel supersteps.

channels/    what holds the state between supersteps
checkpoint/  storing threads: checkpointers and the serializer
store/       data that outlives threads, and cached task results
pregel/      the engine: program -> tasks -> writes -> channels -> checkpoint -> events
executors/   where the functions of nodes run: processes, pools, Dask, Ray
graph/       building graphs: StateGraph, entrypoint, task
visualize/   drawing graphs and runs
prebuilt/    agents with tools, for programs without LangChain
workers/     many processes that run jobs from a queue on Postgres
testing/     a kit to test graphs; conformance suites for checkpointers and channels of your own
"""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import InMemorySaver
    from .checkpoint import MemorySaver as MemorySaver
    from .checkpoint import Retention as Retention
    from .checkpoint.encryption import Encryption as Encryption
    from .checkpoint.postgres import PostgresSaver as PostgresSaver
    from .checkpoint.sqlite import SqliteSaver as SqliteSaver
    from .executors import ProcessExecutor as ProcessExecutor
    from .graph import (
        END,
        START,
        CompiledStateGraph,
        GraphWarning,
        MessagesState,
        RemoveMessage,
        StateGraph,
        add_messages,
    )
    from .graph.effects import effect
    from .graph.functional import entrypoint, task
    from .pregel.app import Pregel
    from .pregel.budgets import Budget
    from .pregel.control import RunControl
    from .pregel.drivers.limit import Limit
    from .pregel.errors import (
        BudgetExceededError,
        CheckpointConflictError,
        EmptyChannelError,
        EmptyInputError,
        GraphBubbleUp,
        GraphChangedError,
        GraphDrained,
        GraphInterrupt,
        GraphRecursionError,
        InPlaceEditError,
        InvalidGraphError,
        InvalidRouteError,
        InvalidUpdateError,
        NodeCancelledError,
        NodeTimeoutError,
        ParentCommand,
        StateGraphError,
        ThreadBusyError,
        ThreadUndoingError,
        Undo,
        UnknownInterruptError,
        UnknownOutcomeError,
    )
    from .pregel.errors import (
        WorkerLostError as WorkerLostError,
    )
    from .pregel.observer import Observer, Operation, RunInfo, TaskInfo
    from .pregel.program.node import NodeBuilder
    from .pregel.runtime import (
        IsLastStep,
        NodeError,
        RemainingSteps,
        Runtime,
        get_config,
        get_runtime,
        get_store,
        get_stream_writer,
    )
    from .pregel.task.interrupts import interrupt
    from .pregel.task.observers import add_observer
    from .pregel.types import (
        CachePolicy,
        Command,
        Interrupt,
        Overwrite,
        PregelTask,
        RetryPolicy,
        RunnableConfig,
        Send,
        StateSnapshot,
        StateUpdate,
        StreamWriter,
        TimeoutPolicy,
    )
    from .store import InMemoryCache, InMemoryStore
    from .store.postgres import PostgresStore as PostgresStore
    from .store.sqlite import SqliteStore as SqliteStore
    from .visualize import Drawing as Drawing
    from .visualize import awatch as awatch
    from .visualize import changes as changes
    from .visualize import report as report
    from .visualize import timeline as timeline
    from .visualize import watch as watch

__version__ = "0.2.0"

__all__ = [
    # build
    "StateGraph", "START", "END", "NodeBuilder", "Pregel", "CompiledStateGraph", "GraphWarning",
    "MessagesState", "add_messages", "RemoveMessage",
    "entrypoint", "task", "effect",
    # say in a node
    "Send", "Command", "interrupt", "Interrupt", "Overwrite", "IsLastStep", "RemainingSteps",
    # ask in a node
    "Runtime", "RunControl", "Limit", "NodeError", "StreamWriter",
    "get_config", "get_runtime", "get_store", "get_stream_writer",
    # set
    "RunnableConfig", "RetryPolicy", "CachePolicy", "TimeoutPolicy", "Budget",
    "InMemorySaver", "InMemoryStore", "InMemoryCache",
    # see
    "StateSnapshot", "StateUpdate", "PregelTask",
    # observe
    "Observer", "Operation", "RunInfo", "TaskInfo", "add_observer",
    # errors and signals
    "StateGraphError", "InvalidGraphError", "InvalidUpdateError", "InvalidRouteError",
    "ConcurrentUpdateError",
    "EmptyInputError", "EmptyChannelError",
    "GraphRecursionError", "CheckpointConflictError", "UnknownInterruptError",
    "UnknownOutcomeError", "BudgetExceededError",
    "NodeTimeoutError", "NodeCancelledError", "InPlaceEditError", "GraphChangedError",
    "GraphBubbleUp", "GraphInterrupt", "GraphDrained", "ParentCommand", "ThreadBusyError",
    "ThreadUndoingError", "Undo",
]  # fmt: skip

_NAMES = {
    ".graph": "StateGraph START END CompiledStateGraph GraphWarning MessagesState RemoveMessage "
    "add_messages",
    ".graph.effects": "effect",
    ".graph.functional": "entrypoint task",
    ".pregel.app": "Pregel",
    ".pregel.program.node": "NodeBuilder",
    ".pregel.task.interrupts": "interrupt",
    ".pregel.types": "CachePolicy Command Interrupt Overwrite PregelTask RetryPolicy "
    "RunnableConfig Send StateSnapshot StateUpdate StreamWriter TimeoutPolicy",
    ".pregel.budgets": "Budget",
    ".pregel.control": "RunControl",
    ".pregel.observer": "Observer Operation RunInfo TaskInfo",
    ".pregel.task.observers": "add_observer",
    ".pregel.drivers.limit": "Limit",
    ".pregel.runtime": "IsLastStep NodeError RemainingSteps Runtime get_config "
    "get_runtime get_store get_stream_writer",
    ".pregel.errors": "CheckpointConflictError ConcurrentUpdateError EmptyChannelError "
    "EmptyInputError GraphBubbleUp GraphChangedError GraphDrained GraphInterrupt "
    "GraphRecursionError InPlaceEditError "
    "InvalidGraphError InvalidRouteError InvalidUpdateError NodeCancelledError NodeTimeoutError "
    "ParentCommand StateGraphError ThreadBusyError ThreadUndoingError Undo UnknownInterruptError "
    "UnknownOutcomeError WorkerLostError BudgetExceededError",
    ".checkpoint": "InMemorySaver MemorySaver Retention",
    ".checkpoint.encryption": "Encryption",
    ".checkpoint.postgres": "PostgresSaver",
    ".checkpoint.sqlite": "SqliteSaver",
    ".store": "InMemoryCache InMemoryStore",
    ".store.postgres": "PostgresStore",
    ".store.sqlite": "SqliteStore",
    ".executors": "ProcessExecutor",
    ".visualize": "Drawing awatch changes report timeline watch",
}
_LAZY = {name: __name__ + home for home, names in _NAMES.items() for name in names.split()}
_PACKAGES = (
    "channels", "checkpoint", "compat", "examples", "executors", "graph", "prebuilt",
    "pregel", "store", "testing", "visualize", "workers",
)  # fmt: skip


if not TYPE_CHECKING:  # or type checkers would take any name

    def __getattr__(name: str) -> Any:
        """Load a name from its own place when it is first asked for: a command line that prints its
        help, or a program that only draws, does not wait for the engine."""
        if name in _LAZY:
            value = getattr(_load(_LAZY[name]), name)
        elif name in _PACKAGES:
            value = _load(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted((*_LAZY, *_PACKAGES, "__all__", "__doc__", "__file__", "__path__", "__version__"))
