"""One number from one fresh process: which interpreter runs which script, with which environment,
for how long at most.

Only the standard library is needed here. Nothing is judged or shown.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OTHERS = {
    "pydantic_graph": "pydantic-graph",
    "burr": "burr",
    "llama_index": "llama-index-workflows",
}
QUEUES = {"dbos": "dbos", "procrastinate": "procrastinate", "pgqueuer": "pgqueuer"}
PACKAGES = {"peer": "langgraph", **OTHERS, **QUEUES}
"""Where an engine's version is found."""
QUIET = {
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LOGFIRE_IGNORE_NO_CONFIG": "1",
}
"""Nobody reports to anybody. Burr has no telemetry any more; LlamaIndex Workflows and
pydantic-graph have none."""


LANGCHAIN = (
    "P30", "P31", "P31-agent", "P31-prebuilt", "P31-prebuilt-async",
    "P35", "P35-first", "P35-file", "P37",
)  # fmt: skip
"""Cases that need LangChain, which is installed where the peer is: ours runs there, too."""


class Failed(Exception):
    """A process that gave no number; says why in a few words."""


def pythons() -> dict[str, Path]:
    """Which interpreter runs which engine; the others only if they are installed."""
    mine = ROOT / ".venv" / "bin" / "python"
    ours = mine if mine.exists() else Path(sys.executable)
    peer = Path(os.environ.get("STATEGRAPH_PEER_PYTHON") or ROOT / ".bench" / "bin" / "python")
    others = ROOT / ".bench-others" / "bin" / "python"
    queues = ROOT / ".bench-fleets" / "bin" / "python"
    found = {"ours": ours, "floor": ours, "peer": peer}
    found |= {**dict.fromkeys(OTHERS, others), **dict.fromkeys(QUEUES, queues)}
    return {engine: python for engine, python in found.items() if python.exists()}


def script(engine: str) -> Path:
    """What runs one case of an engine."""
    return HERE / (f"{engine}.py" if engine in ("ours", "peer", "floor") else f"with_{engine}.py")


def measure(
    engine: str, case: str, *, quick: bool = False, seconds: float = 60, **env: str
) -> float:
    """One number from one fresh process, in the unit of the case.

    Args:
        seconds: after so many it is stopped and counts as failed.
        env: further environment variables.

    Raises:
        Failed: the process failed, or was stopped; with its last words.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" or engine == "ours"
    }
    kept.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # an installed package has its bytecode; a checkout makes it once
    kept |= QUIET | env | {"BENCH_QUICK": "1" if quick else ""}
    there = pythons()
    if engine == "ours" and case in LANGCHAIN and "peer" in there:
        (ROOT / ".bench" / "ours").mkdir(parents=True, exist_ok=True)
        package = ROOT / ".bench" / "ours" / "stategraph"
        if not package.is_symlink():
            package.symlink_to(ROOT)
        there["ours"] = there["peer"]
        kept["PYTHONPATH"] = str(package.parent)
    command = [str(there[engine]), str(script(engine)), case]
    try:
        done = subprocess.run(
            command, env=kept, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"took longer than {seconds:g} s") from None
    try:
        return float(done.stdout.split()[-1])
    except (IndexError, ValueError):
        words = done.stderr.strip().splitlines() or [
            f"ended with {done.returncode} and said nothing"
        ]
        raise Failed(words[-1][:200]) from None


def tell(text: str) -> None:
    """Rewrite the progress line of a terminal."""
    if sys.stderr.isatty():
        print("\r" + text.ljust(60) + "\r", end="", file=sys.stderr, flush=True)


def about(**more: object) -> dict[str, object]:
    """When, on what and against which versions it was measured."""
    facts: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "system": platform.system(),
    }
    for engine, python in pythons().items():
        if engine in PACKAGES:
            facts[engine] = version(python, PACKAGES[engine])
    return facts | more


def version(python: Path, package: str) -> str | None:
    """The installed version of a package; None if it is missing."""
    code = (
        "import json, sys\n"
        "from importlib.metadata import version\n"
        "print(json.dumps(version(sys.argv[1])))"
    )
    done = subprocess.run(
        [str(python), "-c", code, package], capture_output=True, text=True, check=False
    )
    return str(json.loads(done.stdout)) if done.returncode == 0 else None
