"""Hostile requests, and a clock beside them: how long others wait for an answer meanwhile."""

import json
import multiprocessing
import random
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from kit.cluster import free_port
from served_processes import process

SECONDS = 10.0
PROCESSES = multiprocessing.get_context("forkserver")
LONGEST = 0.65
"""How long a request of another client may take, as a part of the time in which this machine parses each of `TEXTS` once:
0.1 s where that takes 0.15 s."""
MOST_MEMORY = 512 * 1024 * 1024

STRANGE = {f"metadat{n}": 1 for n in range(90_000)}
BODIES = [
    ("/runs", {"assistant_id": "flow", **STRANGE}),
    ("/runs", {"assistant_id": "flow", "config": STRANGE}),
    ("/runs", {"assistant_id": "flow", "config": {"configurable": STRANGE}}),
    ("/runs", {"assistant_id": "flow", "interrupt_before": [1] * 150_000}),
    ("/runs/cancel", {"run_ids": [1] * 1_000_000}),
    ("/threads", {"supersteps": [{"updates": [1]}] * 60_000}),
    ("/threads", {"metadata": {"deep": [json.loads("[" * 40 + "]" * 40)] * 4_000}}),
    ("/threads", {"metadata": {"x" * 3_000_000: "x"}}),
    ("/threads/search", {"metadata": STRANGE}),
    ("/threads/search", {"extract": STRANGE}),
    ("/mcp", STRANGE),
]
TEXTS = [(path, json.dumps(body).encode()) for path, body in BODIES]


def attack(port, seed, until):
    """Send requests that cost much, and requests without end."""
    rng, left = random.Random(seed), []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while time.monotonic() < until:
            path, text = rng.choice(TEXTS)
            headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            client.post(path, content=text, headers=headers)
            half = socket.create_connection(("127.0.0.1", port))
            half.sendall(b"POST /threads HTTP/1.1\r\nHost: localhost\r\n" + rng.choice([b"x: y", b"\r\n{", b""]))
            left.append(half)
    for each in left:
        each.close()


def seconds_to_parse():
    """How long this machine takes to parse each of `TEXTS` once: the floor, measured in the same run."""
    seconds = []
    for _ in range(5):
        begun = time.monotonic()
        for _, text in TEXTS:
            json.loads(text)
        seconds.append(time.monotonic() - begun)
    return min(seconds)


def memory_of(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.trial
@pytest.mark.clock
def test_others_are_answered_during_a_fuzz(tmp_path):
    port, most = free_port(), LONGEST * seconds_to_parse()
    with process(tmp_path, str(tmp_path / "served.db"), port) as running:
        until = time.monotonic() + SECONDS
        # Processes of their own: they would keep the clock's thread waiting.
        attackers = [PROCESSES.Process(target=attack, args=(port, seed, until)) for seed in range(2)]
        for each in attackers:
            each.start()
        waits = []
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as other:
            while time.monotonic() < until:
                begun = time.monotonic()
                assert other.get("/ok").status_code == 200
                waits.append(time.monotonic() - begun)
                threading.Event().wait(0.01)
        for each in attackers:
            each.join()
            assert each.exitcode == 0
        assert memory_of(running.pid) < MOST_MEMORY
        assert max(waits) <= most, f"the longest of {len(waits)} requests took {max(waits):.3f} s, not {most:.3f}"
