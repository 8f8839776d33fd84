"""Servers and workers as processes, which can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from kit.cluster import free_port

GRAPH = """
import asyncio, operator
from typing import Annotated, TypedDict
from stategraph import StateGraph, START, interrupt

class State(TypedDict, total=False):
    log: Annotated[list, operator.add]
    asks: bool
    hangs: bool
    pace: float

def step(name):
    async def run(state: State) -> State:
        await asyncio.sleep(state.get("pace") or 0.1)
        while name == "b" and state.get("hangs"):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:  # it takes its time to end
                pass
        if name == "c" and state.get("asks"):
            return {"log": [interrupt("name?")]}
        return {"log": [name]}
    return run

graph = StateGraph(State)
names = ["a", "b", "c", "d"]
for name in names:
    graph.add_node(name, step(name))
for one, two in zip([START, *names], names):
    graph.add_edge(one, two)
flow = graph.compile(name="flow")
"""


@contextmanager
def process(tmp_path: Path, db: str, port: int, *more: str):
    """`stategraph serve` in a process of its own, killed at the end of the `with` block."""
    (tmp_path / "flows.py").write_text(GRAPH)
    with (tmp_path / "log").open("ab") as log:
        running = subprocess.Popen([*command(db, port), *more], cwd=tmp_path, stdout=log, stderr=log, env={**os.environ})
    try:
        wait_for(port, running, tmp_path / "log")
        yield running
    finally:
        running.kill()
        running.wait(20)


def command(db: str, port: int):
    return [sys.executable, "-P", "-m", "stategraph", "serve", "flows.py:flow", "--db", db, "--port", str(port)]


def wait_for(port, running, log):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert running.poll() is None, log.read_text()
        try:
            if httpx.get(f"http://127.0.0.1:{port}/ok").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError(log.read_text())


@contextmanager
def served(tmp_path, db):
    """The process of a server, a client of it, and its log."""
    get_sync_client = pytest.importorskip("langgraph_sdk", reason="needs langgraph_sdk: make compat").get_sync_client

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


@contextmanager
def worker(tmp_path: Path, db: str):
    """`stategraph work` in a process of its own, killed at the end of the `with` block."""
    (tmp_path / "flows.py").write_text(GRAPH)
    command = [sys.executable, "-P", "-m", "stategraph", "work", "flows.py:flow", "--db", db, "--poll", "0.2"]
    with (tmp_path / "worker.log").open("ab") as log:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ})
    try:
        yield running
    finally:
        running.kill()
        running.wait(20)


@contextmanager
def server(tmp_path: Path, db: str, port: int | None = None):
    """A server without workers, and a client of it."""
    get_sync_client = pytest.importorskip("langgraph_sdk", reason="needs langgraph_sdk: make compat").get_sync_client

    port = port or free_port()
    place = f"http://127.0.0.1:{port}"
    with process(tmp_path, db, port, "--no-workers") as running, get_sync_client(url=place) as client:
        yield running, client
