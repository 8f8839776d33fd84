"""Runs every case on our engine, on LangGraph, on others and as bare Python, in turn, and shows who
needs how much.

    python benchmarks/run.py [CASE ...] [--quick] [--repeat N] [--resume]

Every number comes from a process of its own. Rounds are interleaved, so that a slow minute of the
machine hits all alike; the median of the rounds counts. A case that fails is told and the rest goes
on. A whole run writes results.json, results.svg and the tables in README.md; each number is kept as
it comes, so that `--resume` goes on where a run was cut. Only the standard library is needed here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plot
import table
from goals import CASES, OTHERS, Samples
from processes import HERE, ROOT, Failed, about, measure, pythons, tell

PART = ROOT / ".bench" / "unfinished.json"
"""The numbers so far, of a run that is not over."""
SECONDS, QUICK_SECONDS = 60, 20
"""What one process may take; one that takes longer is not asked again."""


class Record:
    """The numbers so far, and who failed; every one is written down as it comes.

    Args:
        file: where to; None keeps them in memory only.
        resume: begin with what the file has.
    """

    def __init__(self, names: list[str], file: Path | None = None, resume: bool = False) -> None:
        self.samples: Samples = {name: {} for name in names}
        self.failed: table.Failures = {}
        self._file = file
        if resume and file is not None and file.exists():
            kept = json.loads(file.read_text())
            self.samples |= {
                name: found for name, found in kept["samples"].items() if name in self.samples
            }
            self.failed = kept["failed"]

    def has(self, name: str, engine: str, turn: int) -> bool:
        """Whether there is nothing to do for this turn: it was done, or the case fails."""
        return engine in self.failed.get(name, {}) or len(self.samples[name].get(engine, ())) > turn

    def take(self, name: str, engine: str, quick: bool) -> None:
        """Measure once."""
        try:
            value = measure(engine, name, quick=quick, seconds=QUICK_SECONDS if quick else SECONDS)
            self.samples[name].setdefault(engine, []).append(value)
        except Failed as failure:
            self.failed.setdefault(name, {})[engine] = str(failure)
            print(f"{name}, {engine}: failed: {failure}", file=sys.stderr)
        if self._file is not None:
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_text(json.dumps({"samples": self.samples, "failed": self.failed}))

    def done(self) -> None:
        """The run is over."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def turns(names: list[str], repeat: int) -> Iterator[tuple[int, str, str]]:
    """(turn, case, engine) of all that can be measured here."""
    there = pythons()
    for turn in range(repeat):
        for name in names:
            for engine in CASES[name].engines:
                if engine in there:
                    yield turn, name, engine


def asked_for(arguments: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description="Time our engine beside LangGraph, others and bare Python."
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)} (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="short rounds: good for a first look, not for a claim"
    )
    parser.add_argument(
        "--repeat", type=int, help="processes per case and engine (default: 3; 1 if quick)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with a whole run that was cut")
    asked = parser.parse_args(arguments)
    unknown = set(asked.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    asked.repeat = asked.repeat or (1 if asked.quick else 3)
    asked.names = [name for name in CASES if not asked.cases or name in asked.cases]
    beside = {CASES[name].goal.against for name in asked.names}
    asked.names = [name for name in CASES if name in beside.union(asked.names)]
    asked.whole = asked.names == list(CASES) and not asked.quick
    return asked


def publish(record: Record, facts: dict[str, object]) -> None:
    """results.json, results.svg and the tables of README.md."""
    cases = {name: {"unit": CASES[name].unit, **found} for name, found in record.samples.items()}
    results = {"about": facts, "cases": cases, "failed": record.failed}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "results.svg").write_text(plot.bars(record.samples))
    readme = HERE / "README.md"
    measured = (
        "Measured {date} on {cores} shared cores, {system}, Python {python}, {rounds} rounds."
    )
    when = measured.format(**facts)
    versions = ", ".join(
        f"{who} {facts.get(engine)}" for engine, who in {"peer": "LangGraph", **OTHERS}.items()
    )
    main = table.markdown(table.rows(record.samples, record.failed))
    others = table.markdown(table.other_rows(record.samples, record.failed))
    text = table.put(readme.read_text(), "measured", f"{when} {versions}.\n\n{main}")
    text = table.put(text, "others", others)
    lost = "".join(table.lost(record.samples)) + table.told(record.failed)
    readme.write_text(table.put(text, "lost", lost))


def main(arguments: list[str] | None = None) -> int:
    asked = asked_for(arguments)
    for engine, command in {"peer": "make peer", **dict.fromkeys(OTHERS, "make others")}.items():
        if engine not in pythons():
            print(f"{engine} is not installed ({command}): its column stays empty", file=sys.stderr)
    began, load = time.perf_counter(), os.getloadavg()[0]
    if load > 1:
        print(
            f"this machine is busy (load {load:.1f}): the times will be too long", file=sys.stderr
        )
    record = Record(asked.names, PART if asked.whole else None, asked.resume)
    try:
        for turn, name, engine in turns(asked.names, asked.repeat):
            if not record.has(name, engine, turn):
                tell(f"round {turn + 1} of {asked.repeat}: {name} {engine}")
                record.take(name, engine, asked.quick)
    except KeyboardInterrupt:
        print(
            "stopped; this is what there is" + (", --resume goes on" if asked.whole else ""),
            file=sys.stderr,
        )
        asked.whole = False
    tell("")
    spent = round(time.perf_counter() - began)
    facts = about(rounds=asked.repeat, quick=asked.quick, seconds=spent, load_before=round(load, 2))
    print(table.markdown(table.rows(record.samples, record.failed)))
    others = table.other_rows(record.samples, record.failed)
    print(table.markdown(others) if len(others) > 1 else "")
    print("".join(table.lost(record.samples)) + table.told(record.failed), end="")
    print(
        f"{facts}\na quick look: the sizes are smaller than the texts say" if asked.quick else facts
    )
    if asked.whole:
        publish(record, facts)
        record.done()
    return 1 if record.failed else 0


if __name__ == "__main__":
    sys.exit(main())
