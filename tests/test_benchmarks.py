"""The benchmark keeps running: every case works with our engine, has a row in the table, and is judged rightly."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stategraph import END, START, InMemorySaver, Send, StateGraph
from stategraph.checkpoint.sqlite import SqliteSaver

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


cases, run = load("cases"), load("run")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The cases with so little work that each is done at once."""
    small = {"SECONDS": 0, "FEWEST": 2, "STEPS": 3, "SENDS": 3, "FEW": 3, "MANY": 6, "NODES": 3, "INVOKES": 2}
    small |= {"SHORT": 2, "LONG": 4}
    for name, value in small.items():
        monkeypatch.setattr(cases, name, value)
    return cases.Engine(StateGraph, START, END, Send, InMemorySaver, sqlite, appends=4)


def sqlite(file: str, synchronous: Any) -> Any:
    return SqliteSaver.from_conn_string(file, synchronous=synchronous)


@pytest.mark.parametrize("name", list(cases.CASES))
def test_a_case_gives_a_number(name: str, tiny: Any) -> None:
    value = cases.CASES[name](tiny)
    # P10 is the difference of two runs, which at this size may come out below zero.
    assert value > 0 or name == "P10"
    assert math.isfinite(value)


def test_every_case_has_a_row_and_every_row_a_case() -> None:
    assert {name for name in run.CASES if not name.startswith("P13")} == set(cases.CASES)


def verdict(name: str, **mine: float) -> str:
    return str(run.reached(name, {"P1": {"ours": 10.0}, name: mine})[1])


def test_how_a_case_is_judged() -> None:
    assert verdict("P2", ours=10, peer=200, floor=1) == "aim"
    assert verdict("P2", ours=10, peer=199, floor=1) == "must"
    assert verdict("P2", ours=10, peer=119, floor=1) == "no"
    assert verdict("P2", ours=10, floor=1) == ""  # no peer, nothing to judge
    assert verdict("P10", ours=20, peer=1, floor=1) == "aim"
    assert verdict("P10", ours=31, peer=1, floor=1) == "no"
    assert verdict("P8-linear", ours=12) == "must"
    assert verdict("P13-memory", ours=26, peer=1, floor=1) == "no"


def test_a_close_floor_is_part_of_the_first_aim() -> None:
    def first(floor: float) -> str:
        return str(run.reached("P1", {"P1": {"ours": 6.0, "peer": 180.0, "floor": floor}})[1])

    assert (first(2.0), first(1.9)) == ("aim", "must")


def test_the_table_stands_without_a_peer() -> None:
    text = run.markdown(run.table({"P1": {"ours": [8e-6, 9e-6, 1e-5], "floor": [2e-6]}}))
    assert text.splitlines()[2].split("|")[4:10] == [" 9.00 ", " 11% ", " -    ", " 2.00  ", " -           ", " 4.5x         "]
