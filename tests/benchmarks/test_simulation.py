"""The simulated fleet: benchmarks/simulation.py reads measured values, and its tables are plausible."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(FOLDER))
simulation = importlib.import_module("simulation")
sys.path.remove(str(FOLDER))

FOUND = json.loads(simulation.KEPT.read_text())
COSTS, SERVER = simulation.Costs.measured(FOUND), simulation.Server()


def test_a_larger_fleet_asks_for_more_of_everything():
    small, large = (simulation.demands(simulation.Load(workers), COSTS, SERVER, "named") for workers in (100, 1000))
    assert all(large[name] > small[name] for name in small)


def test_a_transaction_open_for_each_job_needs_the_most_connections():
    load = simulation.Load(1000)
    asked = {way: simulation.demands(load, COSTS, SERVER, way)["connections"] for way in ("held", "locked", "named")}
    assert asked["held"] > 4 * asked["named"] == 4 * asked["locked"]


def test_shards_are_as_many_as_keep_each_below_its_bend():
    for workers in simulation.FLEETS:
        count = simulation.shards(simulation.Load(workers), COSTS, SERVER, "named")
        most = max(simulation.demands(simulation.Load(workers), COSTS, SERVER, "named").values())
        assert most / count <= simulation.FULL
        assert count == 1 or most / (count - 1) > simulation.FULL


def test_commits_wait_for_each_other_only_where_cores_are_short():
    load = simulation.Load(200)
    floor = COSTS.per_commit + simulation.FLUSH
    alone = simulation.played(load, COSTS, SERVER)
    busy = simulation.played(load, COSTS._replace(per_commit=0.9 * SERVER.cores / load.commits), SERVER)
    assert alone[len(alone) // 2] == pytest.approx(floor, rel=0.5)
    assert busy[len(busy) * 99 // 100] > busy[len(busy) // 2]
    assert len(alone) == pytest.approx(3 * load.commits, rel=0.2)


def test_every_table_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["simulation.py"])
    monkeypatch.setattr(simulation, "FLEETS", (10, 100))
    simulation.main()
    assert capsys.readouterr().out.count("|---") > 20
