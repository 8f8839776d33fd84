"""Runs the curves: the cost of a unit of work as something grows, by powers of ten, ours beside
LangGraph.

    python benchmarks/grow.py [CURVE ...] [--quick]

Every point comes from a process of its own. A whole run writes curves.json, curves.svg and the
table in README.md; each point is written down as it comes. Where a point fails or takes too long,
that line ends and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import plot
import server
import table
from processes import HERE, Failed, about, measure, pythons, tell

SECONDS, PEER_SECONDS = 150, 20
"""What one point may take."""


@dataclass(frozen=True)
class Curve:
    """One line of the table.

    Attributes:
        what: what grows, and what is timed.
        most: how far it grows; by powers of ten from `least`.
        steady: from which size on the cost should stay the same.
        work: why it may grow after all; empty if it must stay flat.
        peer: whether the peer is asked too.
    """

    what: str
    most: int
    least: int = 10
    steady: int = 100
    work: str = ""
    peer: bool = True

    def sizes(self, quick: bool) -> list[int]:
        """Powers of ten, and the end."""
        most = min(self.most, 1_000) if quick else self.most
        size, found = self.least, []
        while size < most:
            found.append(size)
            size *= 10
        return [*found, most]


LIST = "the reducer `operator.add` makes a new list each time"
KEPT = f"{LIST}, and the whole of it is encoded and compared"
COPY = "a call begins with a copy of the dict of channels"
KEYS = "the node and its router are given dicts of that many keys"
CURVES = {
    "supersteps": Curve("supersteps of one call; per superstep", 1_000_000),
    "sends": Curve(
        "Sends of one superstep; per Send", 1_000_000, work="the garbage collector, see below"
    ),
    "keys": Curve("state keys nobody touches; per superstep", 10_000, least=1, work=KEYS),
    "nodes-build": Curve("nodes; declare and compile, per node", 5_000, least=1),
    "nodes-step": Curve("nodes that do not run; per superstep", 5_000, least=1, steady=1),
    "nodes-call": Curve(
        "nodes that do not run; per call of one superstep", 5_000, least=1, steady=1, work=COPY
    ),
    "list-none": Curve("items of a list; per append, no saver", 100_000, work=LIST),
    "list-memory": Curve("items of a list; per append, InMemorySaver", 100_000, work=KEPT),
    "list-sqlite": Curve("items of a list; per append, SQLite", 100_000, work=KEPT),
    "list-postgres": Curve("items of a list; per append, Postgres", 100_000, work=KEPT, peer=False),
    "thread-memory": Curve("checkpoints; per call of one superstep, memory", 100_000, steady=10),
    "thread-sqlite": Curve("checkpoints; per call of one superstep, SQLite", 100_000, steady=10),
    "thread-postgres": Curve(
        "checkpoints; per call of one superstep, Postgres", 100_000, steady=10, peer=False
    ),
}
FLAT = 1.5
"""A curve is flat if no size from `steady` on costs so many times more than that one."""

Found = dict[str, dict[str, dict[int, float]]]
"""curve → engine → size → seconds per unit"""


def growth(curve: Curve, line: dict[int, float]) -> float | None:
    """The largest cost, from the steady size on, by that at the steady size."""
    costs = [cost for size, cost in sorted(line.items()) if size >= curve.steady]
    return max(costs) / costs[0] if len(costs) > 1 and costs[0] > 0 else None


def verdict(curve: Curve, times: float | None) -> str:
    """Whether the cost stays, and why not."""
    if times is None:
        return "-"
    return "flat" if times <= FLAT else f"not flat: {curve.work}" if curve.work else "NOT FLAT"


def rows(found: Found) -> list[list[str]]:
    """The table, the head first: the cost at each size, ours and the peer's, and whether it
    stays."""
    sizes = sorted({size for lines in found.values() for line in lines.values() for size in line})
    result = [["what grows", "engine", *(f"{size:,}" for size in sizes), "grows", "so"]]
    for name, lines in found.items():
        for engine, line in lines.items():
            times, curve = growth(CURVES[name], line), CURVES[name]
            costs = [table.shown(line.get(size), "µs") for size in sizes]
            end = [
                "-" if times is None else f"{times:.2f}x",
                verdict(curve, times) if engine == "ours" else "",
            ]
            result.append([f"{name}: {curve.what}", plot.NAMES[engine], *costs, *end])
    return result


def points(
    name: str, engine: str, sizes: list[int], schema: Callable[[], str] | None
) -> Iterator[tuple[int, float | Failed]]:
    """The points of one line, until one fails. Ours twice: the quicker of two is the less
    disturbed."""
    for size in sizes * 2 if engine == "ours" else sizes:
        tell(f"{name} {engine} {size:,}")
        env = {} if schema is None else {"BENCH_POSTGRES": schema()}
        seconds = PEER_SECONDS if engine == "peer" else SECONDS
        try:
            yield size, measure(engine, f"{name}@{size}", quick=True, seconds=seconds, **env)
        except Failed as failure:
            yield size, failure
            return


def run(names: list[str], quick: bool, keep: Any) -> tuple[Found, list[str]]:
    """All points, and what failed.

    Args:
        keep: called with what there is after each point.
    """
    found: Found = {}
    failed: list[str] = []
    with server.postgres() as schema:
        for name in names:
            curve = CURVES[name]
            if name.endswith("postgres") and schema is None:
                failed.append(f"- {name}: the programs of the Postgres server are not installed\n")
                continue
            for engine in ("ours", "peer") if curve.peer and "peer" in pythons() else ("ours",):
                line = found.setdefault(name, {}).setdefault(engine, {})
                for size, cost in points(name, engine, curve.sizes(quick), schema):
                    if isinstance(cost, Failed):
                        failed.append(f"- {name}, {plot.NAMES[engine]}, {size:,}: {cost}\n")
                    else:
                        line[size] = min(cost, line.get(size, cost))
                    keep(found, failed)
    tell("")
    return found, failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a unit of work costs as something grows.")
    parser.add_argument(
        "curves", nargs="*", metavar="CURVE", help=f"some of {', '.join(CURVES)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="up to 1,000 only")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.curves) - set(CURVES):
        parser.error(f"no such curve: {', '.join(sorted(unknown))}; there are {', '.join(CURVES)}")
    names = [name for name in CURVES if not asked.curves or name in asked.curves]
    whole, began = names == list(CURVES) and not asked.quick, time.perf_counter()

    def keep(found: Found, failed: list[str]) -> None:
        if whole:
            facts = about(seconds=round(time.perf_counter() - began))
            (HERE / "curves.json").write_text(
                json.dumps({"about": facts, "curves": found, "failed": failed}, indent=1)
            )

    found, failed = run(names, asked.quick, keep)
    text = table.markdown(rows(found)) + "\n" + "".join(failed)
    print(f"microseconds\n\n{text}{time.perf_counter() - began:.0f} s")
    if whole:
        labels = {name: (f"{name}: {CURVES[name].what}", lines) for name, lines in found.items()}
        (HERE / "curves.svg").write_text(plot.curves(labels))
        readme = HERE / "README.md"
        readme.write_text(table.put(readme.read_text(), "curves", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
