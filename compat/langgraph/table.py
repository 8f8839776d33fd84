"""Which name of LangGraph is what of ours: one table, read by the finder, the check and the docs.

A module of LangGraph has a line for each module of ours that serves it: names in one string, and
`theirs=ours` where the two differ. A source that begins with a dot lies in this package, others in
`stategraph`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

_PACKAGE: Final = __name__.rpartition(".")[0]
_OURS: Final = _PACKAGE.partition(".")[0]

_CHANNELS: Final = (
    "AnyValue BaseChannel BinaryOperatorAggregate EphemeralValue LastValue "
    "LastValueAfterFinish NamedBarrierValue NamedBarrierValueAfterFinish Topic UntrackedValue"
)
_CONSTANTS: Final = (
    "CONF CONFIG_KEY_CACHE CONFIG_KEY_CALL CONFIG_KEY_CHECKPOINTER CONFIG_KEY_CHECKPOINT_ID "
    "CONFIG_KEY_CHECKPOINT_MAP CONFIG_KEY_CHECKPOINT_NS CONFIG_KEY_DURABILITY CONFIG_KEY_READ "
    "CONFIG_KEY_RESUMING CONFIG_KEY_RUNTIME CONFIG_KEY_SCRATCHPAD CONFIG_KEY_SEND "
    "CONFIG_KEY_STREAM CONFIG_KEY_TASK_ID CONFIG_KEY_THREAD_ID TAG_HIDDEN TAG_NOSTREAM"
)
_RECORD_NAMES: Final = "ERROR INTERRUPT NO_WRITES NULL_TASK_ID RESUME RETURN"
_TYPES: Final = (
    "All Command Durability GraphOutput Interrupt Overwrite PregelTask RetryPolicy "
    "Send StateSnapshot StateUpdate StreamMode StreamWriter TimeoutPolicy default_retry_on"
)
_STREAM_PARTS: Final = (
    "CheckpointPayload CheckpointStreamPart CheckpointTask CustomStreamPart DebugPayload "
    "DebugStreamPart MessagesStreamPart StreamPart TaskPayload TaskResultPayload TasksStreamPart "
    "UpdatesStreamPart ValuesStreamPart"
)
_RUN_STREAMS: Final = "AsyncGraphRunStream AsyncSubgraphRunStream GraphRunStream SubgraphRunStream"
_TRANSFORMERS: Final = (
    "CheckpointsTransformer CustomTransformer DebugTransformer LifecyclePayload "
    "LifecycleTransformer ProtocolEvent StreamChannel StreamTransformer SubgraphStatus "
    "SubgraphTransformer TasksTransformer UpdatesTransformer"
)

MODULES: Final[dict[str, dict[str, str]]] = {
    "langgraph": {},
    "langgraph.version": {".version": "__version__"},
    "langgraph.warnings": {
        ".warnings": "LangGraphDeprecationWarning LangGraphDeprecatedSinceV05 "
        "LangGraphDeprecatedSinceV10 LangGraphDeprecatedSinceV11"
    },
    "langgraph.types": {
        "pregel.types": f"{_TYPES} {_STREAM_PARTS}",
        ".typing": "KeyFuncT N ResponseT",
        ".types": "CacheKey CachePolicy Checkpointer PregelExecutableTask StreamChunk TracePolicy "
        "ensure_valid_checkpointer interrupt omit_payload",
    },
    "langgraph.typing": {
        ".typing": "ContextT ContextT_contra InputT NodeInputT NodeInputT_contra OutputT "
        "StateLike StateT StateT_co StateT_contra"
    },
    "langgraph.constants": {
        "pregel.names": "START END TASKS",
        "pregel.types": "Send Interrupt",
        "checkpoint.records": _RECORD_NAMES,
        ".constants": _CONSTANTS,
    },
    "langgraph._internal": {},
    "langgraph._internal._constants": {
        "pregel.names": "TASKS PULL PUSH PREVIOUS NS_SEP INPUT",
        "checkpoint.records": f"{_RECORD_NAMES} NS_END",
        ".constants": f"{_CONSTANTS} CACHE_NS_WRITES OVERWRITE",
    },
    "langgraph._internal._config": {
        ".config": "ensure_config merge_configs patch_config patch_configurable"
    },
    "langgraph._internal._runnable": {".runnable": "RunnableCallable RunnableLike RunnableSeq"},
    "langgraph._internal._typing": {".typing": "MISSING DeprecatedKwargs"},
    "langgraph.errors": {
        "pregel.errors": "EmptyChannelError EmptyInputError GraphBubbleUp GraphDrained "
        "GraphInterrupt GraphRecursionError InvalidUpdateError NodeCancelledError "
        "NodeTimeoutError ParentCommand UnknownInterruptError",
        "pregel.runtime": "NodeError",
        ".errors": "ErrorCode NodeInterrupt TaskNotFound create_error_message is_invalid_resume",
    },
    "langgraph.config": {
        "pregel.runtime": "get_config get_store get_stream_writer",
        ".config": "RunnableConfig",
        ".constants": "CONF CONFIG_KEY_RUNTIME",
    },
    "langgraph.utils": {},
    "langgraph.utils.config": {
        "pregel.runtime": "get_config get_store get_stream_writer",
        ".config": "ensure_config merge_configs patch_config patch_configurable",
    },
    "langgraph.utils.runnable": {".runnable": "RunnableCallable RunnableLike RunnableSeq"},
    "langgraph.runtime": {
        "pregel.control": "RunControl",
        "pregel.runtime": "ExecutionInfo Runtime ServerInfo get_runtime",
        ".runtime": "BaseUser DEFAULT_RUNTIME",
    },
    "langgraph.managed": {".managed": "IsLastStep RemainingSteps"},
    "langgraph.managed.base": {
        ".managed": "ManagedValueMapping ManagedValueSpec ManagedValue is_managed_value"
    },
    "langgraph.managed.is_last_step": {
        ".managed": "IsLastStep RemainingSteps IsLastStepManager RemainingStepsManager"
    },
    "langgraph.channels": {"channels": _CHANNELS, ".channels": "DeltaChannel"},
    "langgraph.channels.any_value": {"channels": "AnyValue"},
    "langgraph.channels.base": {
        "channels": "BaseChannel MISSING",
        ".typing": "Update Value",
    },
    "langgraph.channels.binop": {"channels": "BinaryOperatorAggregate"},
    "langgraph.channels.delta": {".channels": "DeltaChannel"},
    "langgraph.channels.ephemeral_value": {"channels": "EphemeralValue"},
    "langgraph.channels.last_value": {"channels": "LastValue LastValueAfterFinish"},
    "langgraph.channels.named_barrier_value": {
        "channels": "NamedBarrierValue NamedBarrierValueAfterFinish"
    },
    "langgraph.channels.topic": {"channels": "Topic"},
    "langgraph.channels.untracked_value": {"channels": "UntrackedValue"},
    "langgraph.func": {".functional": "entrypoint task"},
    "langgraph.graph": {
        "pregel.names": "START END",
        ".graph": "StateGraph MessageGraph",
        ".messages": "MessagesState add_messages",
    },
    "langgraph.graph.state": {
        ".graph": "StateGraph CompiledStateGraph",
        "pregel.names": "START END",
        ".runnable": "StateNode=RunnableLike",
    },
    "langgraph.graph.message": {
        ".graph": "MessageGraph",
        ".messages": "MessagesState Messages REMOVE_ALL_MESSAGES AnyMessage add_messages "
        "push_message",
    },
    "langgraph.graph.ui": {
        ".ui": "AnyUIMessage RemoveUIMessage UIMessage delete_ui_message push_ui_message "
        "ui_message_reducer"
    },
    "langgraph.pregel": {".pregel": "Pregel", "pregel.program.node": "NodeBuilder"},
    "langgraph.pregel.main": {".pregel": "Pregel", "pregel.program.node": "NodeBuilder"},
    "langgraph.pregel.protocol": {".pregel": "PregelProtocol=Pregel"},
    "langgraph.pregel.types": {
        "pregel.types": "All PregelTask RetryPolicy StateSnapshot StateUpdate "
        "StreamMode StreamWriter default_retry_on",
        ".types": "CachePolicy PregelExecutableTask",
    },
    "langgraph.pregel.remote": {".remote": "RemoteGraph RemoteException"},
    "langgraph.pregel.debug": {},
    "langgraph.pregel._read": {".pregel": "ChannelRead PregelNode"},
    "langgraph.pregel._write": {
        ".pregel": "ChannelWrite ChannelWriteEntry ChannelWriteTupleEntry PASSTHROUGH SKIP_WRITE"
    },
    "langgraph.pregel._tools": {".tools": "_tool_call_writer"},
    "langgraph.checkpoint": {},
    "langgraph.checkpoint.base": {
        ".savers": "BaseCheckpointSaver",
        ".typing": "V",
        "checkpoint": "Checkpoint CheckpointMetadata CheckpointTuple",
        "checkpoint.records": "PendingWrite",
        "pregel.errors": "EmptyChannelError",
        ".checkpoints": "ChannelVersions EXCLUDED_METADATA_KEYS LATEST_VERSION SCHEDULED "
        "WRITES_IDX_MAP copy_checkpoint create_checkpoint empty_checkpoint get_checkpoint_id "
        "get_checkpoint_metadata get_serializable_checkpoint_metadata writes_sort_key",
    },
    "langgraph.checkpoint.base.id": {".checkpoints": "uuid6"},
    "langgraph.checkpoint.memory": {".savers": "InMemorySaver MemorySaver"},
    "langgraph.checkpoint.sqlite": {".sqlite": "SqliteSaver"},
    "langgraph.checkpoint.sqlite.aio": {".sqlite": "AsyncSqliteSaver"},
    "langgraph.checkpoint.sqlite.utils": {},
    "langgraph.checkpoint.postgres": {".postgres": "PostgresSaver"},
    "langgraph.checkpoint.postgres.aio": {".postgres": "AsyncPostgresSaver"},
    "langgraph.checkpoint.postgres.base": {},
    "langgraph.checkpoint.postgres.shallow": {},
    "langgraph.checkpoint.serde": {},
    "langgraph.checkpoint.serde.base": {
        ".savers": "CipherProtocol SerializerCompat SerializerProtocol UntypedSerializerProtocol "
        "maybe_add_typed_methods"
    },
    "langgraph.checkpoint.serde.jsonplus": {
        ".savers": "JsonPlusSerializer",
        "checkpoint": "InvalidModuleError=UnknownTypeError",
    },
    "langgraph.checkpoint.serde.encrypted": {},
    "langgraph.checkpoint.serde.event_hooks": {},
    "langgraph.checkpoint.serde.types": {
        "channels": "ChannelProtocol=BaseChannel",
        "pregel.types": "SendProtocol=Send",
    },
    "langgraph.cache": {},
    "langgraph.cache.base": {".savers": "BaseCache FullKey Namespace", ".typing": "ValueT"},
    "langgraph.cache.memory": {".savers": "InMemoryCache"},
    "langgraph.cache.sqlite": {".savers": "SqliteCache"},
    "langgraph.cache.redis": {},
    "langgraph.store": {},
    "langgraph.store.base": {
        "store": "BaseStore GetOp IndexConfig Item ListNamespacesOp MatchCondition Op PutOp "
        "Result SearchItem SearchOp TTLConfig InvalidNamespaceError",
        ".savers": "NOT_PROVIDED NotProvided NamespaceMatchType NamespacePath "
        "validate_op_namespace",
    },
    "langgraph.store.base.batch": {".savers": "AsyncBatchedBaseStore"},
    "langgraph.store.base.embed": {
        ".savers": "AEmbeddingsFunc Embeddings EmbeddingsFunc EmbeddingsLambda ensure_embeddings "
        "get_text_at_path tokenize_path"
    },
    "langgraph.store.memory": {".savers": "InMemoryStore"},
    "langgraph.store.sqlite": {".sqlite": "SqliteStore AsyncSqliteStore"},
    "langgraph.store.sqlite.aio": {".sqlite": "AsyncSqliteStore"},
    "langgraph.store.sqlite.base": {"store": "SqliteIndexConfig=IndexConfig"},
    "langgraph.store.postgres": {".postgres": "PostgresStore AsyncPostgresStore"},
    "langgraph.store.postgres.aio": {".postgres": "AsyncPostgresStore"},
    "langgraph.store.postgres.base": {
        "store": "PostgresIndexConfig=IndexConfig",
        ".postgres": "PoolConfig",
    },
    "langgraph.callbacks": {
        "compat.langchain.pauses": "GraphCallbackHandler GraphInterruptEvent GraphLifecycleEvent "
        "GraphLifecycleStatus GraphResumeEvent",
        ".typing": "GraphCallbacks=StateLike",
    },
    "langgraph.stream": {".run_stream": f"{_RUN_STREAMS} {_TRANSFORMERS}"},
    "langgraph.stream._mux": {".run_stream": "StreamMux"},
    "langgraph.stream._types": {".run_stream": "ProtocolEvent StreamTransformer"},
    "langgraph.stream.run_stream": {".run_stream": _RUN_STREAMS},
    "langgraph.stream.stream_channel": {".run_stream": "StreamChannel"},
    "langgraph.stream.transformers": {
        ".run_stream": f"{_TRANSFORMERS} MessagesTransformer ValuesTransformer _TasksLifecycleBase"
    },
    "langgraph.prebuilt": {},
}

_TABLES: Final = "it belongs to LangGraph's own tables; stategraph has its own"
_INTERNAL: Final = "it is internal to LangGraph's engine"

_REASONS: Final[dict[str, dict[str, str]]] = {
    "langgraph.checkpoint.base": {
        "values that grow are stored as deltas anyway": "DeltaChannelHistory _DeltaSnapshot"
    },
    "langgraph.checkpoint.memory": {
        "give a checkpointer a file: SqliteSaver.from_conn_string(path)": "PersistentDict"
    },
    "langgraph.checkpoint.serde.encrypted": {
        "give a checkpointer on a database an Encryption of the key: "
        "SqliteSaver(path, integrity=stategraph.Encryption(key))": "EncryptedSerializer"
    },
    "langgraph.checkpoint.serde.event_hooks": {
        "the serializer has no events: it refuses a value that it does not know": "*"
    },
    "langgraph.checkpoint.sqlite.utils": {_TABLES: "*"},
    "langgraph.checkpoint.postgres": {_TABLES: "Conn"},
    "langgraph.checkpoint.postgres.base": {_TABLES: "* BasePostgresSaver"},
    "langgraph.checkpoint.postgres.shallow": {
        "give PostgresSaver a retention=stategraph.checkpoint.Retention(keep_last=1)": (
            "AsyncShallowPostgresSaver ShallowPostgresSaver"
        )
    },
    "langgraph.cache.redis": {"use SqliteCache, or inherit from BaseCache": "RedisCache"},
    "langgraph.store.sqlite.base": {_TABLES: "* BaseSqliteStore"},
    "langgraph.store.postgres.base": {_TABLES: "* BasePostgresStore Row"},
    "langgraph.pregel.debug": {_INTERNAL: "* get_bolded_text get_colored_text tasks_w_writes"},
    "langgraph.pregel.protocol": {_INTERNAL: "StreamProtocol"},
    "langgraph.callbacks": {
        "handlers in config['callbacks'] are called without it": (
            "get_async_graph_callback_manager_for_config get_sync_graph_callback_manager_for_config"
        )
    },
    "langgraph.prebuilt": {
        "langgraph.prebuilt is a distribution of its own that works with stategraph: "
        "pip install langgraph-prebuilt": "InjectedState InjectedStore ToolNode ToolRuntime "
        "ValidationNode create_react_agent tools_condition"
    },
}

ABSENT: Final[dict[str, dict[str, str]]] = {
    module: {name: why for why, names in reasons.items() for name in names.split()}
    for module, reasons in _REASONS.items()
}
"""Names that can be imported but have no counterpart, by module: why, and what to use. A `*` stands
for all names that the table does not have."""


@cache
def _sources(module: str) -> dict[str, tuple[str, str]]:
    """Name of LangGraph -> (module of ours, name there)."""
    found: dict[str, tuple[str, str]] = {}
    for source, names in MODULES[module].items():
        path = _PACKAGE + source if source.startswith(".") else f"{_OURS}.{source}"
        for item in names.split():
            theirs, _, ours = item.partition("=")
            found[theirs] = (path, ours or theirs)
    return found


@cache
def _homes(name: str) -> list[str]:
    """The modules that have a name: others pass it on, as LangGraph's modules do."""
    return [module for module in MODULES if name in public_names(module)]


def public_names(module: str) -> list[str]:
    """The names that a module of LangGraph has here, those without a counterpart included."""
    return [name for name in (*_sources(module), *ABSENT.get(module, ())) if name != "*"]


def look_up(module: str, name: str) -> tuple[str, str] | str | None:
    """Where a name of LangGraph's module lies here: (module, name). If it has no counterpart, why,
    as a text; None if there is no such name."""
    for place in (module, *_homes(name)):
        if name in _sources(place):
            return _sources(place)[name]
        if name in ABSENT.get(place, ()):
            return ABSENT[place][name]
    return ABSENT.get(module, {}).get("*")


def find_name(module: str, name: str) -> Any:
    """What a name of LangGraph's module is here.

    Raises:
        AttributeError: LangGraph's module has no such public name, or it is not known here.
    """
    found = look_up(module, name)
    if found is None:
        raise AttributeError(f"module {module!r}, as stategraph serves it, has no name {name!r}")
    if isinstance(found, str):
        return absent(module, name, found)
    path, ours = found
    return getattr(import_module(path), ours)


# -- absent ----------------------------------------------------------------------------------------
# What stands for a name of LangGraph that has no counterpart here: it can be imported, named in an
# annotation and inherited from, and says so when it is used.

class AbsentError(NotImplementedError):
    """A program uses something of LangGraph that has no counterpart here."""


class _Absent(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AbsentError(cls.sentence)  # type: ignore[attr-defined]

    def __repr__(cls) -> str:
        return f"<absent {cls.__qualname__}>"


def absent(module: str, name: str, why: str) -> type:
    """A class that stands for `module.name`.

    Args:
        why: a sentence: why it is not there and what to use.
    """
    sentence = f"{module}.{name} has no counterpart in stategraph: {why}"
    body = {
        "__module__": module,
        "__doc__": sentence,
        "sentence": sentence,
        "__class_getitem__": classmethod(lambda cls, item: cls),
    }
    return _Absent(name, (), body)
