"""The benchmark keeps running: every case works with our engine, has a row in the table, and is evaluated correctly."""

import importlib
import json
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stategraph import END, START, CachePolicy, InMemorySaver, Send, StateGraph, add_messages
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.graph import call_model
from stategraph.store import InMemoryCache

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(FOLDER))
curves, everything, floors, goals, grow, plot, processes, run, sizes, table = (
    importlib.import_module(name)
    for name in ("curves", "everything", "floors", "goals", "grow", "plot", "processes", "run", "sizes", "table")
)
for later in ("fleet_ours", "executor_inputs"):
    importlib.import_module(later)  # else loaded when its cases run
sys.path.remove(str(FOLDER))

SMALL = {
    "SECONDS": 0, "FEWEST": 2, "MOST": 2, "STEPS": 8, "SENDS": 3, "FEW": 3, "MANY": 6, "KEYS": 4, "NODES": 3,
    "INVOKES": 2, "SHORT": 2, "LONG": 4, "APPENDS": 4, "PEER_APPENDS": 2, "STRETCH": 2, "STRETCHES": 3, "COMMITS": 2,
    "TOGETHER": 3, "HELD": 5, "PENDING": 5, "CHAT": 5, "LONG_CHAT": 9, "TURNS": 3, "FINISHED": 2, "CHUNKS": 3, "JOBS": 20,
    "PEER_TURNS": 2, "LIVE": 8, "LIVE_SERVER": 8, "LIVE_TURNS": 3, "GROWTH_TURNS": 3, "ENDED": 2,
    "NESTED": 2, "INPUTS": 3, "GROWN": 8, "TEXT": 100, "THREADS": 4, "PRUNED": 4, "CALLS": 3,
}  # fmt: skip

FRESH = ("P13", "P26")
"""Cases of a process that has loaded nothing: `fresh.py` measures them."""

WHOLE = ("P28-", "P36-", "P38-")
"""How the names of cases begin that are the time of one whole run, in other processes: no difference of two times."""

SAME = ("P28-3", "P36-1", "P36-3")
"""Cases that are P28-1 but for one number."""

CLUSTERS = ("P38-dask", "P38-ray")
"""Cases that leave a cluster's threads behind: in a process of their own."""


def sqlite(file, synchronous):
    return SqliteSaver.from_conn_string(file, synchronous=synchronous)


@pytest.fixture
def tiny(monkeypatch):
    """The cases with so little work that each is done at once."""
    monkeypatch.syspath_prepend(FOLDER)  # the processes of executors import from there
    for name, value in SMALL.items():
        monkeypatch.setattr(sizes, name, value)
    names = {"add_messages": add_messages, "call_model": call_model, "CachePolicy": CachePolicy, "InMemoryCache": InMemoryCache}
    yield everything.Engine(StateGraph, START, END, Send, InMemorySaver, sqlite, PostgresSaver.from_conn_string, **names)
    sys.modules["tracemalloc"].stop()


@pytest.mark.trial
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.clock] * (not name.startswith(WHOLE))) for name in everything.CASES if name not in SAME],
)
def test_a_case_gives_a_number(name, tiny):
    if name in processes.LANGCHAIN:
        pytest.importorskip("langchain_core")
    if name in CLUSTERS:
        value = processes.measure("ours", name, quick=True, seconds=120)
    else:
        value = everything.CASES[name](tiny)
    assert math.isfinite(value)
    # These are the difference of two runs, which at this size may come out at nothing, or below it.
    rest = ("P10", "P15-memory", "P21", "P29-cache", "P34", "P21-long", "P21-file", "P24", "P24-chats", "P40-input", "P40-nodes", "P40-writes")
    assert value > 0 or name in rest or name.startswith(("M-", "E-"))


def test_commits_are_counted_in_any_process(tiny):
    """Three tasks may end apart on a busy machine; then a superstep takes two commits (PERFORMANCE P16)."""
    few, many = (everything.stored.commits(tiny, steps, 1) for steps in (2, 5))
    assert many - few == 3 * 2  # one for the task, one for `again`
    assert many <= everything.stored.commits(tiny, 5, 3) <= many + 5


def test_every_case_has_a_row_and_every_row_a_case():
    assert {name for name in goals.CASES if not name.startswith(FRESH)} == set(everything.CASES)


def test_every_floor_that_a_row_names_is_there():
    named = {name for name, case in goals.CASES.items() if "floor" in case.engines and not name.startswith(FRESH)}
    assert named == set(floors.FLOORS)


@pytest.mark.parametrize("engine", list(goals.OTHERS))
def test_every_case_of_another_engine_is_in_its_script(engine):
    text = processes.script(engine).read_text()
    named = [n for n, case in goals.CASES.items() if engine in case.engines and not n.startswith(FRESH)]
    assert named and [name for name in named if f'"{name}": ' not in text] == []


# -- judging ------------------------------------------------------------------------------------------------------


def verdict(name, **mine):
    return str(goals.reached(name, {"P1": {"ours": 10.0}, name: mine})[1])


def test_how_a_case_is_judged():
    assert verdict("P2", ours=10, peer=200, floor=1) == "aim"
    assert verdict("P2", ours=10, peer=199, floor=1) == "must"
    assert verdict("P2", ours=10, peer=119, floor=1) == "no"
    assert verdict("P2", ours=10, floor=1) == ""  # no peer, nothing to judge
    assert verdict("P2", peer=10) == ""  # we failed
    assert verdict("P10", ours=20, peer=1, floor=1) == "aim"
    assert verdict("P10", ours=31, peer=1, floor=1) == "no"
    assert verdict("P8-linear", ours=12) == "aim"
    assert verdict("P13-memory", ours=26, peer=1, floor=1) == "no"
    assert (verdict("P15-speed", ours=0.9), verdict("P15-speed", ours=0.89)) == ("must", "no")


def test_a_value_is_judged_in_the_unit_of_its_goal():
    """Seconds are measured, and the goal is in microseconds."""
    assert (verdict("P33-postgres", ours=37e-3), verdict("P33-postgres", ours=900e-6)) == ("no", "aim")
    assert (verdict("P34", ours=51), verdict("P34", ours=49)) == ("no", "must")  # milliseconds are measured as such


def test_a_goal_may_be_a_multiple_of_the_floor_or_of_another_row():
    assert [verdict("P18", ours=ours, floor=100) for ours in (200, 340, 341)] == ["aim", "must", "no"]
    assert [verdict("P41", ours=ours, peer=1) for ours in (1500, 1501)] == ["must", "no"]
    assert goals.goal_text(goals.CASES["P18"].goal) == "≤ 3.4x floor / ≤ 2x floor"
    assert goals.goal_text(goals.CASES["P36-exit"].goal) == "≤ 0.56x P36-3 / -"


def test_what_a_case_is_judged_beside_is_measured_with_it():
    assert run.asked_for(["P36-exit", "P41"]).names == ["P1", "P36-3", "P36-exit", "P41"]


def test_a_close_floor_is_part_of_some_goals():
    assert (verdict("P5", ours=14, peer=140, floor=10), verdict("P5", ours=15, peer=150, floor=10)) == ("aim", "must")
    assert verdict("P5", ours=18, peer=180, floor=10) == "no"


# -- showing ------------------------------------------------------------------------------------------------------


def test_the_table_is_complete_without_a_peer_and_names_failures():
    samples = {"P1": {"ours": [8e-6, 9e-6, 1e-5], "floor": [2e-6]}}
    text = table.markdown(table.rows(samples, {"P1": {"peer": "took longer than 60 s"}}))
    cells = [cell.strip() for cell in text.splitlines()[2].split("|")]
    assert cells[4:11] == ["9.00", "11%", "failed", "-", "2.00", "-", "4.5x"]
    assert table.told({"P1": {"peer": "took longer than 60 s"}}) == "- P1, peer: took longer than 60 s\n"


def test_a_case_won_by_another_engine_is_reported():
    lines = list(table.lost({"P1": {"ours": [9e-6], "peer": [200e-6], "burr": [8e-6]}}))
    assert lines[0] == "- **P1** (superstep: self-loop with a router): Burr needs 8.00 µs, we 9.00.\n"
    assert lines[1].startswith("- **P1**") and "reaches the must, not the aim" in lines[1] and len(lines) == 2


def test_where_we_lose_stands_above_the_goals_that_are_missed():
    case = {"ours": [9e-6], "peer": [8e-6]}
    heads = [line.partition(" (")[0] for line in table.lost({"P2": case, "P3": case})]
    assert heads == ["- **P2**", "- **P3**", "- **P2**", "- **P3**"]


def test_only_text_between_the_marks_is_replaced():
    text = "before\n<!-- a -->\nold\n<!-- /a -->\nafter\n"
    assert table.put(text, "a", "new\n") == "before\n<!-- a -->\nnew\n<!-- /a -->\nafter\n"


@pytest.mark.parametrize("mark", ["measured", "others", "lost", "curves"])
def test_the_readme_has_a_place_for_each_table(mark):
    text = (FOLDER / "README.md").read_text()
    assert text.count(f"<!-- {mark} -->\n") == text.count(f"<!-- /{mark} -->\n") == 1


def test_the_readme_says_what_each_case_and_curve_is():
    text = (FOLDER / "README.md").read_text()
    assert [name for name in goals.CASES if f"| {name} " not in text] == []
    assert [name for name in grow.CURVES if f"`{name}`" not in text] == []


def test_pictures_are_svg_with_a_place_for_each_number():
    bars = ET.fromstring(plot.bars({"P1": {"ours": [7e-6], "peer": [2e-4]}, "P16": {"ours": [1.0]}}))
    lines = ET.fromstring(plot.curves({"sends": ("Sends", {"ours": {10: 3e-6, 100: 2e-6}, "peer": {10: 3e-4}})}))
    svg = "{http://www.w3.org/2000/svg}"
    assert len(bars.findall(f"{svg}rect[@class='ours']")) == 2  # the legend's, and P1's: commits are no time
    assert len(lines.findall(f"{svg}circle")) == 3


def test_a_difference_below_zero_has_no_bar():
    bars = ET.fromstring(plot.bars({"P29-cache": {"ours": [7e-6], "peer": [-2e-7]}}))
    drawn = [each.get("class") for each in bars.iter("{http://www.w3.org/2000/svg}rect")]
    assert "ours" in drawn and "peer" not in drawn


# -- measuring ----------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch):
    """Who was asked for what, in order; every process gives 1, but the peer fails in P2."""
    asked = []

    def measure(engine, case, **options):
        asked.append((case, engine))
        if (engine, case) == ("peer", "P2"):
            raise processes.Failed("no such luck")
        return 1.0

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "pythons", lambda: dict.fromkeys(("ours", "peer"), Path(sys.executable)))
    return asked


def go(record, names, repeat):
    for turn, name, engine in run.turns(names, repeat):
        if not record.has(name, engine, turn):
            record.take(name, engine, quick=True)


def test_a_failing_case_runs_once_and_the_others_continue(told, capsys):
    record = run.Record(["P1", "P2"])
    go(record, ["P1", "P2"], 2)
    once = [("P1", "ours"), ("P1", "peer"), ("P2", "ours")]
    assert told == [*once, ("P2", "peer"), *once]
    assert record.failed == {"P2": {"peer": "no such luck"}}
    assert "P2, peer: failed: no such luck" in capsys.readouterr().err


def test_an_interrupted_benchmark_resumes(told, tmp_path):
    file = tmp_path / "unfinished.json"
    go(run.Record(["P1", "P2"], file), ["P1"], 1)
    told.clear()
    go(run.Record(["P1", "P2"], file, resume=True), ["P1", "P2"], 1)
    assert told == [("P2", "ours"), ("P2", "peer")]
    assert json.loads(file.read_text())["samples"]["P1"] == {"ours": [1.0], "peer": [1.0]}


@pytest.mark.trial
def test_a_process_gives_a_number_or_says_why_not():
    assert processes.measure("floor", "P13-time", seconds=30) > 0
    with pytest.raises(processes.Failed, match="KeyError: 'P99'"):
        processes.measure("floor", "P99", seconds=30)
    with pytest.raises(processes.Failed, match=r"took longer than 0\.001 s"):
        processes.measure("floor", "P1", seconds=0.001)


# -- curves -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in grow.CURVES if not name.endswith("postgres")])
def test_a_curve_gives_a_number(name, tiny):
    assert math.isfinite(curves.point(f"{name}@3", tiny))


def test_every_curve_that_is_run_can_be_measured():
    assert set(grow.CURVES) == set(curves.CURVES)


def test_a_curve_goes_up_by_powers_of_ten_to_its_end():
    assert grow.CURVES["nodes-build"].sizes(quick=False) == [1, 10, 100, 1_000, 5_000]
    assert grow.CURVES["supersteps"].sizes(quick=True) == [10, 100, 1_000]


def test_when_a_curve_is_flat():
    line = {10: 9e-6, 100: 2e-6, 1_000: 2e-6, 10_000: 3.2e-6}
    assert grow.growth(grow.CURVES["supersteps"], line) == pytest.approx(1.6)
    said = grow.rows({"supersteps": {"ours": line}, "keys": {"ours": line}, "sends": {"ours": {10: 1e-6, 100: 1e-6}}})
    assert [row[-1].split(":")[0] for row in said] == ["so", "NOT FLAT", "not flat", "-"]
