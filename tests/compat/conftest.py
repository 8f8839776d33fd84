"""The same program run by the peer and by stategraph, in two processes: what it prints must be the same.

Needs the packages of the dependency group `compat` (`make compat`); elsewhere nothing here is collected.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("langgraph", "langchain", "langgraph_supervisor", "langgraph_swarm", "trustcall", "langmem", "deepagents")

collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]

# Ids are random, or made of what differs between the two; they are not compared.
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|0x[0-9a-f]+")


@cache
def run_by(engine: str, program: str) -> dict[str, list[str]]:
    """What each case of a program has printed, by its name."""
    command = [sys.executable, str(PROGRAMS / program)]
    if engine == "stategraph":
        command[1:1] = ["-m", "stategraph", "langgraph"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LANGSMITH_", "LANGCHAIN_"))}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / ".types"), str(PROGRAMS)])
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    cases: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return {name: [IDS.sub("ID", line) for line in lines] for name, lines in cases.items()}
