"""The same program run by the peer and by stategraph, in two processes: what it prints must be the same.

Needs the packages of the dependency group `compat`; elsewhere the tests that import this are skipped.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from kit.programs import ROOT, output_of

from stategraph import Observer

PROGRAMS = Path(__file__).parent / "programs"
NEEDED = (
    "langgraph", "langchain", "langchain_openai", "langgraph_supervisor", "langgraph_swarm", "trustcall", "langmem",
    "deepagents",
)  # fmt: skip

if missing := [name for name in NEEDED if find_spec(name) is None]:
    pytest.skip(f"needs {missing[0]}: make compat", allow_module_level=True)

# Ids are random, or made of what differs between the two; they are not compared.
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|0x[0-9a-f]+")


@cache
def runners():
    """A process for each engine that runs programs: programs/run.py."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LANGSMITH_", "LANGCHAIN_"))}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / ".types"), str(PROGRAMS)])
    options = {"env": env, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    own, path = ["-m", "stategraph", "langgraph"], str(PROGRAMS / "run.py")
    return {
        engine: subprocess.Popen([sys.executable, *arguments, path], **options)
        for engine, arguments in (("peer", []), ("stategraph", own))
    }


@cache
def run_by_both(program):
    """How a program has ended and what it has printed, by engine: both run at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        for engine, runner in runners().items():
            print(PROGRAMS / program, Path(folder, engine), file=runner.stdin, flush=True)
        return {engine: (runner.stdout.readline().strip(), Path(folder, engine).read_text()) for engine, runner in runners().items()}


@cache
def run_natively(program):
    """The same for a program that can use the names of stategraph, too."""
    env = {**os.environ, "NATIVE": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / ".types"), str(PROGRAMS)])}
    return read_cases(output_of(sys.executable, PROGRAMS / program, env=env))


@cache
def run_by(engine, program):
    """What each case of a program has printed, by its name."""
    status, output = run_by_both(program)[engine]
    assert status == "0", output[-3000:]
    return read_cases(output)


def read_cases(output):
    """What each case has printed, without ids."""
    cases = json.loads(output.splitlines()[-1])
    return {name: [IDS.sub("ID", line) for line in lines] for name, lines in cases.items()}


class Quiet(Observer):
    """An observer that only notes what it surrounds."""

    def __init__(self):
        self.seen = []

    def run_started(self, run):
        self.seen.append("run")

    def around(self, task, call):
        self.seen.append(task.node)
        return call()

    async def aaround(self, task, call):
        self.seen.append(task.node)
        return await call()
