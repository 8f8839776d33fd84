"""Every parameter of the peer's public callables is taken here; what sets nothing says so, and names the way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from side_by_side import ROOT

sys.path[:0] = [str(ROOT / ".types")]

from stategraph.compat.langgraph.table import ABSENT, MODULES, public_names  # noqa: E402

SCRIPT = Path(__file__).parent / "signatures.py"

# Pattern of a callable, or of a callable and its parameter -> why it may lack it.
POSITIONAL = "always given by position"
INSIDE = "made or called by the engine alone"
ANOTHER = "a contract of the engine, which differs"
EXCUSED = {
    "*.PregelExecutableTask*": INSIDE,
    "*.RunnableSeq*": INSIDE,
    "langgraph.errors.Node*Error*": INSIDE,
    "langgraph.errors.UnknownInterruptError*": INSIDE,
    "*.CompiledStateGraph(builder)": INSIDE,
    "*.CompiledStateGraph(schema_to_mapper)": INSIDE,
    "*.CompiledStateGraph.attach_*": INSIDE,
    "langgraph.pregel*.Pregel*(auto_validate)": INSIDE,
    "langgraph.pregel*.Pregel*(config)": "with_config() sets it",
    "langgraph.pregel*.Pregel*(trigger_to_nodes)": INSIDE,
    "langgraph.pregel*.Pregel*(node_error_handler_map)": INSIDE,
    "langgraph.pregel*.Pregel*(stream_transformers)": "event streams of version v3 are not served",
    "*.PregelProtocol*": "a protocol of the peer's engine",
    "*.ExecutionInfo.patch": INSIDE,
    "*.Runtime.merge": INSIDE,
    "*.Runtime.patch_execution_info": INSIDE,
    "*.Interrupt.from_ns": INSIDE,
    "*.DeltaChannel.replay_writes": ANOTHER,
    "*.get_delta_channel_history": ANOTHER,
    "*.aget_delta_channel_history": ANOTHER,
    "*.get_next_version": ANOTHER,
    "langgraph.managed.*.get(scratchpad)": ANOTHER,
    "langgraph.checkpoint.base.BaseCheckpointSaver.*": "what a saver of the user defines for itself",
    "langgraph.checkpoint.sqlite.SqliteSaver.cursor": INSIDE,
    "*Cache.*set(*)": POSITIONAL,
    "*.from_checkpoint(checkpoint)": POSITIONAL,
    "*.TimeoutPolicy.coerce(value)": POSITIONAL,
    "*.default_retry_on(exc)": POSITIONAL,
    "langgraph.func.task(__func_or_none__)": POSITIONAL,
    "langgraph.types.DebugPayload*": "a type, not called",
}  # fmt: skip


@cache
def signatures(engine: str) -> dict[str, list[str] | None]:
    names = {
        module: sorted(set(public_names(module)) - set(ABSENT.get(module, ())))
        for module in MODULES
        if module != "langgraph.prebuilt"
    }
    command = [sys.executable, str(SCRIPT)]
    if engine == "stategraph":
        command[1:1] = ["-m", "stategraph", "langgraph"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".types")}
    done = subprocess.run(command, env=env, input=json.dumps(names), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str] | None] = json.loads(done.stdout)
    return found


def excused(what: str) -> bool:
    return any(fnmatch(what.replace("[", "("), pattern) for pattern in EXCUSED)


def test_every_parameter_is_taken() -> None:
    ours = signatures("stategraph")
    missing = []
    for path, wanted in signatures("peer").items():
        if wanted is None:
            continue
        if path not in ours:
            missing.append(path)
            continue
        taken = ours[path]
        if taken is None or "**" in taken:
            continue
        missing += [f"{path}({name})" for name in wanted if name != "**" and name not in taken]
    assert len(ours) > 500
    assert [each for each in missing if not excused(each)] == []


def in_the_drop_in(code: str) -> str:
    """What a program of these lines prints, warnings included."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".types")}
    lines = f"import warnings\nwarnings.simplefilter('always')\nimport stategraph.compat.langgraph\n{code}"
    done = subprocess.run([sys.executable, "-c", lines], env=env, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


GRAPH = "from langgraph.graph import *\nb = StateGraph(MessagesState)\n"
IGNORED = [
    ("pickle_fallback", "from langgraph.checkpoint.serde.jsonplus import *\nJsonPlusSerializer(pickle_fallback=True)"),
    ("allowed_json_modules", "from langgraph.checkpoint.serde.jsonplus import *\nJsonPlusSerializer(allowed_json_modules=[('a', 'B')])"),
    ("allowed_msgpack_modules", "from langgraph.checkpoint.serde.jsonplus import *\nJsonPlusSerializer(allowed_msgpack_modules=True)"),
    ("extra_allowlist", "from langgraph.checkpoint.memory import *\nInMemorySaver().with_allowlist([('a', 'B')])"),
    ("factory", "from langgraph.checkpoint.memory import *\nInMemorySaver(factory=dict)"),
    ("deserializer", "from langgraph.store.sqlite import *\nSqliteStore(':memory:', deserializer=print)"),
    ("pipeline", "from langgraph.checkpoint.postgres import *\nPostgresSaver.from_conn_string('x', pipeline=True).__enter__()"),
    ("transformers", GRAPH + "b.add_node('a', print).add_edge(START, 'a').compile(transformers=[print])"),
    ("trace_policy", GRAPH + "from langgraph.types import TracePolicy\nb.add_node('a', print, trace_policy=TracePolicy())"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code"), IGNORED, ids=[name for name, _ in IGNORED])
def test_what_sets_nothing_says_so(name: str, code: str) -> None:
    told = in_the_drop_in(code)
    assert f"GraphWarning: " in told and f"{name}= sets nothing here: " in told  # noqa: F541


REFUSED = [
    ("from langgraph.checkpoint.memory import *\nInMemorySaver(serde=object())", "serde must be a JsonPlusSerializer, got object"),
    ("from langgraph.cache.memory import *\nInMemoryCache(serde=object())", "serde must be a JsonPlusSerializer, got object"),
    (
        "import aiosqlite, asyncio\nfrom langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver\n"
        "AsyncSqliteSaver(aiosqlite.connect(':memory:'))",
        "must be given a path or a sqlite3.Connection, got a connection of aiosqlite",
    ),
    (
        "from langgraph.checkpoint.serde.encrypted import EncryptedSerializer\nEncryptedSerializer()",
        "integrity=stategraph.Encryption(key)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text"), REFUSED)
def test_what_cannot_work_is_refused(code: str, text: str) -> None:
    assert text in in_the_drop_in(code)


def test_the_advice_about_encryption_works_as_it_is_written() -> None:
    pytest.importorskip("cryptography")
    advice = ABSENT["langgraph.checkpoint.serde.encrypted"]["EncryptedSerializer"].partition(": ")[2]
    told = in_the_drop_in(
        "import stategraph\nfrom langgraph.checkpoint.sqlite import SqliteSaver\n"
        f"path, key = ':memory:', bytes(16)\nsaver = {advice}\n"
        f"{GRAPH}app = b.add_node('a', lambda s: {{'messages': 'secret'}}).add_edge(START, 'a').compile(saver)\n"
        "c = {'configurable': {'thread_id': '1'}}\napp.invoke({'messages': []}, c)\n"
        "print(app.get_state(c).values['messages'][0].content)"
    )
    assert told == "secret\n"


def test_a_finished_run_leaves_no_tasks_to_the_garbage_collector() -> None:
    told = in_the_drop_in(
        f"import gc\n{GRAPH}app = b.add_node('a', lambda s: None).add_edge(START, 'a').compile()\n"
        "app.invoke({'messages': []})\ngc.collect()\ngc.set_debug(gc.DEBUG_SAVEALL)\n"
        "app.invoke({'messages': []})\ngc.collect()\n"
        "print([each for each in map(type, gc.garbage) if each.__name__ == 'Task'])"
    )
    assert told == "[]\n"
