"""A setting without effect warns or raises, and the message says the way out."""

import os
import subprocess
import sys

import pytest
from side_by_side import ROOT

sys.path[:0] = [str(ROOT / ".types")]

from stategraph.compat.langgraph.table import ABSENT  # noqa: E402


def in_the_drop_in(code):
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
    ("ann_index_config", "from langgraph.store.postgres import *\nPostgresStore(None, index={'dims': 1, 'embed': print, 'ann_index_config': {'kind': 'hnsw'}})"),
    ("pipeline", "from langgraph.checkpoint.postgres import *\nPostgresSaver.from_conn_string('x', pipeline=True).__enter__()"),
    ("print_mode", GRAPH + "b.add_node('a', print).add_edge(START, 'a').compile().invoke({'messages': []}, print_mode='values')"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code"), IGNORED, ids=[name for name, _ in IGNORED])
def test_what_sets_nothing_says_so(name, code):
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
def test_what_cannot_work_is_refused(code, text):
    assert text in in_the_drop_in(code)


def test_the_advice_about_encryption_works_as_it_is_written():
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


def test_a_finished_run_leaves_no_tasks_to_the_garbage_collector():
    told = in_the_drop_in(
        f"import gc\n{GRAPH}app = b.add_node('a', lambda s: None).add_edge(START, 'a').compile()\n"
        "app.invoke({'messages': []})\ngc.collect()\ngc.set_debug(gc.DEBUG_SAVEALL)\n"
        "app.invoke({'messages': []})\ngc.collect()\n"
        "print([each for each in map(type, gc.garbage) if each.__name__ == 'Task'])"
    )
    assert told == "[]\n"


def test_a_node_is_declared_with_its_policies():
    """By LangGraph's parameters, and read by its attributes."""
    told = in_the_drop_in(
        "from langgraph.pregel._read import PregelNode\nfrom langgraph.types import RetryPolicy\n"
        "node = PregelNode(channels='a', triggers=['a'], retry_policy=[RetryPolicy(max_attempts=2)], timeout=3)\n"
        "print(node.retry_policy[0].max_attempts, node.cache_policy, node.timeout.run_timeout)\n"
        + GRAPH + "app = b.add_node('a', print, retry_policy=RetryPolicy(max_attempts=5)).add_edge(START, 'a').compile()\n"
        "print(app.nodes['a'].retry_policy[0].max_attempts)"
    )  # fmt: skip
    assert told.splitlines() == ["2 None 3", "5"]


def test_what_a_cache_cannot_identify_counts_by_its_name():
    """As there: lambdas, closures and objects are cached without a `key_func`."""
    told = in_the_drop_in(
        "from langgraph.cache.memory import InMemoryCache\nfrom langgraph.types import CachePolicy\n"
        "from langgraph.graph import *\nfrom typing import TypedDict\nclass S(TypedDict): n: int\nran = []\n"
        "def make(k):\n    def f(state): ran.append(k)\n    return f\n"
        "cache = InMemoryCache()\n"
        "for node in (lambda state: ran.append('lambda'), make('closure')):\n"
        "    b = StateGraph(S).add_node('a', node, cache_policy=CachePolicy()).add_edge(START, 'a')\n"
        "    for _ in 'twice':\n        b.compile(cache=cache).invoke({'n': 1})\n"
        "print(*ran)"
    )  # fmt: skip
    assert told.splitlines() == ["lambda closure"]
