"""Whatever the installed release makes public is here too: modules, names, parameters, members, fields. What differs is
in a table, with its reason."""

import json
import sys
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from kit.programs import OF_THE_PACKAGE, output_of

pytestmark = pytest.mark.skipif(not find_spec("langgraph"), reason="needs langgraph: make compat")

SCRIPT = Path(__file__).parent / "surface.py"

# Pattern of what differs -> why it may.
TABLES = "it belongs to the tables of LangGraph; stategraph has its own"
INSIDE = "made, called or read by the engine alone"
POSITIONAL = "always given by position"
ANOTHER = "a contract of the engine, which differs"
VARIABLE = "a type variable of the module's own"
OURS = "the items are the same; the order of keywords says nothing"
EXCUSED = {
    "*.PRUNE_*": TABLES, "*_SQL": TABLES, "*MIGRATIONS": TABLES, "*.DictRow": TABLES, "*.PLACEHOLDER": TABLES,
    "*.NS_MATCH_FUNCTION": TABLES, "*.pending_writes_sql": TABLES, "*.load_pending_writes": TABLES, "*.search_where": TABLES,
    "*SqliteSaver.cursor": TABLES, "*Store.lock": TABLES, "*Store.pipe": TABLES, "*Store.supports_pipeline": TABLES,
    "an object.InMemorySaver.blobs": TABLES, "an object.InMemorySaver.writes": TABLES, "an object.InMemorySaver.storage": TABLES,
    "an object.InMemorySaver.stack": TABLES,
    "*.serde.jsonplus.E*": "how LangGraph's serializer marks its bytes", "*.LC_REVIVER": "how LangGraph's serializer loads classes",
    "*.emit_serde_event": "the serializer has no events",
    "*.[CFPRSTU]": VARIABLE, "*JsonPlusSerializer[]": "it has no type parameter", "*.SerializerCompat[]": "it has no type parameter",
    "*.SendProtocol[]": "it has no type parameter", "*.ManagedValue[]": "it has no type parameter", "*Manager[]": "it has no type parameter",
    "*PostgresStore[]": "it has no type parameter",
    "*.UUID": "a name of the standard library", "*.MessageLikeRepresentation": "a name of LangChain", "*.StreamEvent": "a name of LangChain", "*.LifecycleCause": "a name of LangChain", "*.MessagesData": "a name of LangChain",
    "langgraph.pregel.remote.Context": "a name of the SDK", "*.QueryParamTypes": "a name of the SDK", "*.StreamModeSDK": "a name of the SDK",
    "*.CONFIG_KEY_*": INSIDE, "*.DEFAULT_BOUND": INSIDE, "*.EMPTY_SEQ": INSIDE,
    "*.PregelExecutableTask*": INSIDE,
    "*.Pregel(auto_validate)": INSIDE, "*.Pregel(trigger_to_nodes)": INSIDE, "*.Pregel(node_error_handler_map)": INSIDE,
    "*RunStream(*)": INSIDE,
    "*.Pregel(config)": "with_config() sets it", "*.Pregel(stream_transformers)": "compile() and stream_events() take transformers",
    "*.ValuesTransformer.error": INSIDE,
    "*.CompiledStateGraph(builder)": INSIDE, "*.CompiledStateGraph(schema_to_mapper)": INSIDE, "*.CompiledStateGraph.attach_*": INSIDE,
    "*.schema_to_mapper": INSIDE, "*.node_error_handler_map": INSIDE,
    "*Graph.c*": "an attribute of the object, not of its class", "*Graph.name": "an attribute of the object, not of its class",
    "*Graph.st*": "an attribute of the object, not of its class", "*.Pregel.*": "an attribute of the object, not of its class",
    "*Saver.serde": "an attribute of the object, not of its class", "*Cache.serde": "an attribute of the object, not of its class",
    "an object.serializer.*": "programs make a JsonPlusSerializer, which has it",
    "*.CheckpointMetadata.counters_since_delta_snapshot": ANOTHER,
    "*.PostgresIndexConfig.ann_index_config": "taken with a warning",
    "an object.PregelNode.*": INSIDE, "an object.task.*": INSIDE,
    "*.PregelProtocol*": "a protocol of the peer's engine",
    "*.Command: *": OURS, "*.Runtime: *": OURS, "*.GraphOutput: *": "one more, with a default",
    "*.DeltaChannel.replay_writes": ANOTHER, "*.ManagedValue.get(scratchpad)": ANOTHER, "*Manager.get(scratchpad)": ANOTHER,
    "*Cache.*set(*)": POSITIONAL,
    "*.InvalidModuleError(message)": INSIDE,
    "*.interrupt_id": "LangGraph has replaced it by id",
}  # fmt: skip


@cache
def surfaces():
    """Of the release, and of this engine for the same names."""
    theirs = run([sys.executable, str(SCRIPT)], "")
    names = {module: list(found) for module, found in theirs.items()}
    return theirs, run([sys.executable, "-m", "stategraph", "langgraph", str(SCRIPT)], json.dumps(names))


def run(command, given):
    return json.loads(output_of(*command, env=OF_THE_PACKAGE, input=given))


def differences():
    """`module`, `module.name`, `...name(parameter)`, `...name.member`, `...name[]`, `...name: fields`."""
    theirs, ours = surfaces()
    for module, names in theirs.items():
        if module.startswith("langgraph.prebuilt"):
            continue
        if ours[module] is None:
            yield module
            continue
        for name, wanted in names.items():
            path = f"{module}.{name}"
            if name not in ours[module]:
                yield path
            elif "absent" not in ours[module][name]:
                yield from missing(path, wanted, ours[module][name])


def missing(path, wanted, found):
    yield from lacking(path, wanted.get("parameters", ()), found.get("parameters", ()))
    if wanted.get("subscripted") and not found.get("subscripted"):
        yield f"{path}[]"
    if wanted.get("fields") and wanted["fields"] != found["fields"]:
        yield f"{path}: {' '.join(found['fields'])}"
    for member, parameters in wanted.get("members", {}).items():
        if member not in found.get("members", ()):
            yield f"{path}.{member}"
        elif parameters is not None:
            yield from lacking(f"{path}.{member}", parameters, found["members"][member] or ())


def lacking(path, wanted, taken):
    if "**" not in taken and "?" not in (*wanted, *taken):
        yield from (f"{path}({name})" for name in wanted if name not in taken and name != "**")


def matches(what, pattern):
    return fnmatch(what.replace("[]", "()"), pattern.replace("[]", "()"))


def test_what_is_public_there_is_public_here():
    theirs, _ = surfaces()
    assert len(theirs) > 60 and sum(map(len, theirs.values())) > 600
    assert [what for what in differences() if not any(matches(what, pattern) for pattern in EXCUSED)] == []


def test_every_excuse_is_needed():
    found = list(differences())
    assert [pattern for pattern in EXCUSED if not any(matches(what, pattern) for what in found)] == []
