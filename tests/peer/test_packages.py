"""Packages of others below `langgraph.*`, and names without a counterpart."""

import json
import os
import subprocess
import sys
from importlib.metadata import Distribution

import pytest
from side_by_side import ROOT


def run(folder, *arguments):
    """Run Python with the drop-in at hand and a folder on its path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / ".types"), str(folder)])}
    return subprocess.run([sys.executable, *arguments], env=env, cwd=folder, capture_output=True, text=True, timeout=60)


def in_the_drop_in(folder, code):
    done = run(folder, "-c", f"import stategraph.compat.langgraph\n{code}")
    return done.stdout + done.stderr.strip().rpartition("\n")[2]


@pytest.fixture
def published(tmp_path):
    """A saver that somebody publishes below `langgraph.checkpoint`."""
    package = tmp_path / "langgraph" / "checkpoint" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .saver import Saver\n")
    (package / "saver.py").write_text("from langgraph.checkpoint.base import BaseCheckpointSaver\nclass Saver(BaseCheckpointSaver[int]): pass\n")
    return tmp_path


def test_packages_of_others_are_found(published):
    said = in_the_drop_in(published, "from langgraph.checkpoint.mine import Saver\nimport langgraph.checkpoint.mine.saver\nprint(Saver.__mro__[2])")
    assert said == "<class 'stategraph.compat.langgraph.savers.PeerMethods'>\n"


def test_modules_of_the_engine_itself_are_not(published):
    assert in_the_drop_in(published, "import langgraph.pregel._loop") == "ModuleNotFoundError: No module named 'langgraph.pregel._loop'"
    assert in_the_drop_in(published, "import langgraph.checkpoint.none") == "ModuleNotFoundError: No module named 'langgraph.checkpoint.none'"


def test_the_check_leaves_packages_of_others_alone(published):
    program = published / "program.py"
    program.write_text("from langgraph.checkpoint.mine import Saver\nfrom langgraph.graph import StateGraph, Nothing\n")
    done = run(published, "-m", "stategraph", "langgraph", "--check", str(program))
    assert done.stdout == f"{program}:2: langgraph.graph.Nothing: langgraph.graph has no such name here\n"


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("langgraph.checkpoint.postgres.base import BasePostgresSaver as it", "langgraph.checkpoint.postgres.base.BasePostgresSaver"),
        ("langgraph.checkpoint.sqlite.utils import search_where as it", "it belongs to LangGraph's own tables"),
        ("langgraph.checkpoint.postgres.shallow import ShallowPostgresSaver as it", "Retention(keep_last=1)"),
    ],
)
def test_a_name_without_a_counterpart_says_so_when_it_is_used(tmp_path, use, said):
    assert in_the_drop_in(tmp_path, f"from {use}\nclass Mine(it): pass\nprint('imported')") == "imported\n"
    assert said in in_the_drop_in(tmp_path, f"from {use}\nit()")


def test_modules_pass_on_the_names_of_others(tmp_path):
    names = "BaseCheckpointSaver, Checkpoint, EmptyChannelError, WRITES_IDX_MAP"
    assert in_the_drop_in(tmp_path, f"from langgraph.checkpoint.memory import {names}\nprint(sorted(WRITES_IDX_MAP)[:1])") == "['__claim__']\n"
    assert "has no name 'Nothing'" in in_the_drop_in(tmp_path, "import langgraph.types\nlanggraph.types.Nothing")


CONFORMANCE = """
import asyncio, json
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

@checkpointer_test(name="ours")
async def factory():
    async with {opened} as saver:
        yield saver

report = asyncio.run(validate(factory))
print(json.dumps({{name: [each.tests_passed, each.failures or []] for name, each in report.results.items()}}))
"""
PASSED = {
    "put": 17, "put_writes": 10, "get_tuple": 10, "list": 16,
    "delete_thread": 5, "delete_for_runs": 7, "copy_thread": 8, "prune": 8,
}  # fmt: skip


# `find_spec` would import LangGraph itself.
@pytest.mark.skipif(not [*Distribution.discover(name="langgraph-checkpoint-conformance")], reason="needs langgraph-checkpoint-conformance: make newest")
@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres"])
def test_the_published_conformance_suite_passes(tmp_path, request, name):
    opened = {"memory": "InMemorySaver()", "sqlite": "AsyncSqliteSaver.from_conn_string(':memory:')"}
    if name == "postgres":
        opened[name] = f"AsyncPostgresSaver.from_conn_string({request.getfixturevalue('postgres')!r})"
    report = json.loads(in_the_drop_in(tmp_path, CONFORMANCE.format(opened=opened[name])).splitlines()[0])
    assert [failure for _, failures in report.values() for failure in failures] == []
    assert all(report[capability][0] >= least for capability, least in PASSED.items())


WRAPPED = """
from functools import wraps
from typing import TypedDict
from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langgraph.graph import START, StateGraph

class Listener(BaseCallbackHandler):
    seen = []
    def on_chain_start(self, serialized, inputs, *, name=None, **more): self.seen.append(name)

class State(TypedDict):
    n: int

app = StateGraph(State).add_node("n", lambda state: {"n": 1}).add_edge(START, "n").compile()
listener, made = Listener(), BaseCallbackManager.__init__

def init(self, *args, **kwargs):
    made(self, *args, **kwargs)
    self.add_handler(listener, True)

BaseCallbackManager.__init__ = DECORATE(init)
app.invoke({"n": 0})
print(listener.seen)
"""


@pytest.mark.parametrize("decorate", ["wraps(made)", ""])
def test_who_replaces_the_constructor_of_managers_hears_graph_and_node(tmp_path, decorate):
    """So do OpenInference and Traceloop."""
    assert in_the_drop_in(tmp_path, WRAPPED.replace("DECORATE", decorate)) == "['LangGraph', 'n']\n"
