"""Runs every case on our engine, on LangGraph and as bare Python, in turn, and prints who needs how long.

    python benchmarks/run.py [CASE ...] [--quick] [--repeat N] [--readme]

Every number comes from a process of its own. Rounds are interleaved, so that a slow minute of the machine hits all
alike; the median of the rounds counts. A whole run writes results.json. Only the standard library is needed here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MARKS = ("<!-- measured -->\n", "<!-- /measured -->\n")

# -- the cases and their goals --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """What a case must reach and aims at.

    Attributes:
        against: "peer": so many times faster than the peer; "P1": at most so many times our own P1; "value": the
            measured value itself, at most.
        must, aim: None if there is none.
        floor: an aim too: at most so many times the floor.
    """

    against: str
    must: float | None
    aim: float | None = None
    floor: float | None = None


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    text: str
    goal: Goal
    unit: str = "µs"
    engines: tuple[str, ...] = ("ours", "peer", "floor")


ALONE = ("ours",)
PAIR = ("ours", "peer")
CASES = {
    "P1": Case("superstep: self-loop with a router", Goal("peer", 15, 25, 3)),
    "P2": Case("invoke of a 3-node chain", Goal("peer", 12, 20)),
    "P3": Case("superstep, async node", Goal("peer", 15, 25)),
    "P4": Case("superstep with InMemorySaver", Goal("peer", 12, 20)),
    "P5": Case("superstep with SQLite, synchronous=NORMAL", Goal("peer", 6, 9, 1.4)),
    "P6": Case("superstep with SQLite, synchronous=FULL", Goal("peer", 4, None, 1.3)),
    "P7": Case("fan-out of 5 sync nodes + join", Goal("peer", 10, 15)),
    "P7-wait": Case("the same, the 5 wait for each other", Goal("peer", None)),
    "P8": Case("5,000 Sends, sync node (per task)", Goal("peer", 25, 50)),
    "P8-linear": Case("time of 100,000 Sends ÷ of 10,000", Goal("value", 12), "x", ("ours", "floor")),
    "P9": Case("5,000 Sends, async node (per task)", Goal("peer", 25, 50)),
    "P10": Case("superstep, 2,000 state keys", Goal("P1", 3, 2)),
    "P11-build": Case("build + compile, 1,000 nodes (per node)", Goal("peer", 3, 6), "µs", PAIR),
    "P11-step": Case("superstep in a graph of 1,000 nodes", Goal("P1", 1.2), "µs", PAIR),
    "P12": Case("bytes stored per byte appended to a list", Goal("value", 12, 5), "x", PAIR),
    "P14": Case("one step on 10,000 checkpoints ÷ on 10", Goal("value", 2, 1.2), "x", ALONE),
    "P13-time": Case("import", Goal("value", 0.12, 0.07), "s"),
    "P13-memory": Case("resident memory after import", Goal("value", None, 25), "MB"),
}
Samples = dict[str, dict[str, list[float]]]

# -- measuring ------------------------------------------------------------------------------------------------


def pythons() -> dict[str, Path]:
    """Which interpreter runs which script; the peer only if it is installed."""
    mine = ROOT / ".venv" / "bin" / "python"
    ours = mine if mine.exists() else Path(sys.executable)
    found = {"ours": ours, "floor": ours}
    peer = Path(os.environ.get("STATEGRAPH_PEER_PYTHON") or ROOT / ".bench" / "bin" / "python")
    if peer.exists():
        found["peer"] = peer
    else:
        print("the peer is not installed (make peer): its columns stay empty", file=sys.stderr)
    return found


def measure(python: Path, engine: str, case: str, quick: bool) -> float:
    """One number from one fresh process, in seconds, MB or times.

    Raises:
        RuntimeError: the process failed; with what it said.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or engine == "ours"}
    env["BENCH_QUICK"] = "1" if quick else ""
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode; a checkout makes it once
    command = [str(python), str(HERE / f"{engine}.py"), case]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{engine}, {case}:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def sample(names: list[str], repeat: int, quick: bool) -> Samples:
    """`repeat` numbers of each case and engine, round after round."""
    found: Samples = {name: {} for name in names}
    python = pythons()
    for turn in range(repeat):
        for name in names:
            for engine in CASES[name].engines:
                if engine in python:
                    tell(f"round {turn + 1} of {repeat}: {name} {engine}")
                    value = measure(python[engine], engine, name, quick)
                    found[name].setdefault(engine, []).append(value)
    tell("")
    return found


def tell(text: str) -> None:
    """Rewrite the progress line of a terminal."""
    if sys.stderr.isatty():
        print("\r" + text.ljust(50) + "\r", end="", file=sys.stderr, flush=True)


# -- judging --------------------------------------------------------------------------------------------------


def reached(name: str, middle: dict[str, dict[str, float]]) -> tuple[float | None, str]:
    """The ratio (or value) that the goal is about, and "aim", "must", "no", or "" if there is nothing to judge."""
    goal, mine = CASES[name].goal, middle[name]
    if goal.against == "peer":
        ratio = mine["peer"] / mine["ours"] if "peer" in mine else None
    elif goal.against == "P1":
        ratio = mine["ours"] / middle["P1"]["ours"]
    else:
        ratio = mine["ours"]
    if ratio is None or (goal.must is None and goal.aim is None):
        return ratio, ""

    def good(bound: float) -> bool:
        return ratio >= bound if goal.against == "peer" else ratio <= bound

    near = goal.floor is None or mine["ours"] <= goal.floor * mine["floor"]
    if goal.aim is not None and good(goal.aim) and near:
        return ratio, "aim"
    if goal.must is not None:
        return ratio, "must" if good(goal.must) else "no"
    return ratio, "no"


def goal_text(goal: Goal) -> str:
    """Must and aim in few words."""
    sign, tail = {"peer": ("≥ ", "x"), "P1": ("≤ ", "x P1"), "value": ("≤ ", "")}[goal.against]
    must, aim = (f"{sign}{bound:g}{tail}" if bound is not None else "-" for bound in (goal.must, goal.aim))
    return f"{must} / {aim}" + (f", ≤ {goal.floor:g}x floor" if goal.floor else "")


def shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    value *= 1e6 if unit == "µs" else 1
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def table(samples: Samples) -> list[list[str]]:
    """The rows, the head first."""
    middle = {name: {e: median(values) for e, values in engines.items()} for name, engines in samples.items()}
    head = "case,what,unit,ours,±,peer,floor,peer ÷ ours,ours ÷ floor,must / aim,reached"
    rows = [head.split(",")]
    for name, mine in middle.items():
        case, values = CASES[name], samples[name]["ours"]
        ratio, verdict = reached(name, middle)
        if verdict and case.goal.against == "P1":
            verdict += f" ({ratio:.2f}x)"
        rows.append(
            [
                name,
                case.text,
                case.unit,
                *(shown(mine.get("ours"), case.unit), f"{(max(values) - min(values)) / mine['ours'] / 2:.0%}"),
                *(shown(mine.get(engine), case.unit) for engine in ("peer", "floor")),
                f"{mine['peer'] / mine['ours']:.1f}x" if "peer" in mine else "-",
                f"{mine['ours'] / mine['floor']:.1f}x" if "floor" in mine else "-",
                goal_text(case.goal),
                verdict,
            ]
        )
    return rows


def markdown(rows: list[list[str]]) -> str:
    """The table as text that reads well as it is, too."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def about(repeat: int, quick: bool) -> dict[str, object]:
    """When and on what it was measured."""
    peer = pythons().get("peer")
    version = "from importlib.metadata import version; print(version('langgraph'))"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "peer": subprocess.check_output([str(peer), "-c", version], text=True).strip() if peer else None,
        "rounds": repeat,
        "quick": quick,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Time our engine beside LangGraph and bare Python.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="short rounds: good for a first look, not for a claim")
    parser.add_argument("--repeat", type=int, help="processes per case and engine (default: 5; 2 if quick)")
    parser.add_argument("--readme", action="store_true", help="put the table into benchmarks/README.md")
    asked = parser.parse_args()
    unknown = set(asked.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    repeat = asked.repeat or (2 if asked.quick else 5)
    names = [name for name in CASES if not asked.cases or name in asked.cases]
    if any(CASES[name].goal.against == "P1" for name in names) and "P1" not in names:
        names.insert(0, "P1")
    began = time.perf_counter()
    samples, facts = sample(names, repeat, asked.quick), about(repeat, asked.quick)
    text = markdown(table(samples))
    print(text, end="")
    print(f"{time.perf_counter() - began:.0f} s; {facts}")
    results = {"about": facts, "cases": {name: {"unit": CASES[name].unit, **samples[name]} for name in names}}
    if names == list(CASES) and not asked.quick:  # a look at some cases does not replace the record of all
        (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if asked.readme:
        readme = HERE / "README.md"
        before, rest = readme.read_text().split(MARKS[0])
        line = "Measured {date} on {cores} shared cores, {system}, Python {python}; LangGraph {peer}; {rounds} rounds."
        measured = f"{line.format(**facts)}\n\n{text}"
        readme.write_text(before + MARKS[0] + measured + MARKS[1] + rest.split(MARKS[1])[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
