"""`make chaos`, or `python -m faults` in tests/: reads the command line, runs trials, prints the table."""

from __future__ import annotations

import argparse
import signal
import sys
import textwrap
import time
from pathlib import Path

from . import rooms  # noqa: F401  # fills TRIALS
from .campaign import FULL, Bench, Record, Round, chosen, run_round, run_trial
from .planted import planted

KEPT = Path(__file__).resolve().parents[2] / ".chaos"


def main(given=None):
    """Run what was asked for; the exit code: 0 all well, 1 a promise was broken."""
    parser = argparse.ArgumentParser(prog="make chaos", description="Hold the promises of docs/explanation/reliability.md.")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="promises such as R6, or trials")
    parser.add_argument("--size", default=FULL, metavar="quick|full|N", help="rounds of each trial")
    parser.add_argument("--seed", type=int, default=0, help="where chance begins")
    parser.add_argument("--round", type=int, help="only this round, to see a failure again")
    parser.add_argument("--fresh", action="store_true", help="begin anew; else a campaign goes on where it was stopped")
    parser.add_argument("--planted", metavar="NAME", help="with this bug in the product")
    parser.add_argument("--list", action="store_true", help="tell all trials")
    asked = parser.parse_args(given)
    try:
        trials = [*chosen(asked.only)]
    except ValueError as error:
        parser.error(str(error))
    if asked.list:
        for each in trials:
            print(f"{each.promise:<4} {each.name}  ({each.quick:,} / {each.full:,} rounds)")
            print(textwrap.fill(each.about, 110, initial_indent=" " * 8, subsequent_indent=" " * 8))
        return 0
    if asked.round is not None:
        return again(trials, asked)
    folder = KEPT / f"{asked.size}-{asked.seed}"
    records = [carried(each, asked, folder) for each in trials]
    failed = sum(len(record.failures) for record in records)
    print(f"\n{len(trials)} trials in {sum(r.seconds for r in records):,.0f} s, {failed} failures (seed {asked.seed})")
    return 1 if failed else 0


def carried(trial, asked, folder):
    """Do the rounds of a trial that are left, and print its line."""
    path = folder / f"{trial.name}.json"
    if asked.fresh or asked.planted:
        path.unlink(missing_ok=True)
    rounds = range(trial.rounds(asked.size))
    record = run_trial(trial, rounds, seed=asked.seed, bug=asked.planted, path=path)
    print(line(trial, record), flush=True)
    return record


def line(trial, record: Record):
    """A line of the table, with what failed below it."""
    mark = "skip" if record.skipped else "FAIL" if record.failures else "ok"
    told = record.skipped or ", ".join(f"{number:,} {what}" for what, number in record.tally.items())
    head = f"{mark:<4}  {trial.promise:<4} {trial.name:<28} {record.rounds:>7,} rounds {record.seconds:>8.1f} s  {told}"
    return "\n".join([head, *(f"  {each}" for each in record.failures)])


def again(trials, asked):
    """Do one round once more."""
    failures = 0
    for each in trials:
        began = time.perf_counter()
        with Bench(asked.planted) as bench, planted(asked.planted):
            round, record = Round(bench, each.name, asked.seed, asked.round), Record(rounds=1)
            failure = run_round(each, round, record)
        record.failures += [failure] if failure else []
        record.seconds = time.perf_counter() - began
        failures += len(record.failures)
        print(line(each, record))
    return 1 if failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers that were started end as well
    sys.exit(main())
