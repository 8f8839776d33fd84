"""`stategraph serve` as a process: what it takes as a database, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cluster
import pytest
from cluster import free_port
from langgraph_sdk import get_sync_client

from stategraph.serve.command import _load, _name_of

from .serving import as_url
from .test_serve_restarts import GRAPH, wait_for

postgres = cluster.postgres


@pytest.fixture(params=["memory", "sqlite", "url", "conninfo"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """How the command line names a database."""
    if request.param == "memory":
        return []
    if request.param == "sqlite":
        return ["--db", str(tmp_path / "served.db")]
    conninfo = request.getfixturevalue("postgres")
    return ["--db", as_url(conninfo) if request.param == "url" else conninfo]


@contextmanager
def served(tmp_path: Path, db: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], Any, Path]]:
    """The process of a server, a client of it, and its log."""
    (tmp_path / "flows.py").write_text(GRAPH)
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-P", "-X", "dev", "-m", "stategraph", "serve", "flows.py:flow", *db, "--port", str(port)]
    with log.open("ab") as file:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file, env={**os.environ})
    try:
        wait_for(port, running, log)
        with get_sync_client(url=f"http://127.0.0.1:{port}") as client:
            yield running, client, log
    finally:
        running.kill()
        running.wait(20)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_ends_well(db: list[str], tmp_path: Path, end: signal.Signals) -> None:
    """Its status is 0, and it leaves nothing open: Python's development mode would say so."""
    with served(tmp_path, db) as (running, client, log):
        client.runs.wait(None, "flow", input={"log": [], "pace": 0.01})
        thread = client.threads.create()["thread_id"]
        run = client.runs.create(thread, "flow", input={"log": [], "pace": 0.3})["run_id"]
        while client.runs.get(thread, run)["status"] != "running":
            time.sleep(0.02)
        running.send_signal(end)
        assert running.wait(30) == 0, log.read_text()
    told = log.read_text()
    assert "Warning" not in told and "Traceback" not in told and "ERROR" not in told, told
    if db and "=" in db[1]:
        assert {each.name for each in tmp_path.iterdir()} <= {"flows.py", "log", "__pycache__"}


def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    with served(tmp_path, []) as (running, client, log):
        thread = client.threads.create()["thread_id"]
        client.runs.create(thread, "flow", input={"log": [], "hangs": True})
        while client.threads.get_state(thread)["next"] != ["b"]:
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        while "Shutting down" not in log.read_text():
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("target", "name"),
    [("orders.py:flow", "flow"), ("shop.orders:flow", "flow"), ("shop/orders.py", "orders"), ("shop.orders", "orders")],
)
def test_a_graph_without_a_name_has_that_of_its_variable_or_module(target: str, name: str) -> None:
    assert _name_of(target) == name


def test_a_misspelt_function_of_auth_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doors.py").write_text("def auth(request): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="got 'doors.py:aut'; did you mean 'auth'"):
        _load("doors.py:aut")
