"""The Compose file of docs/deploy: its commands run as processes here, and in Docker where there is one."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from kit.cluster import free_port
from kit.programs import ROOT

FOLDER = ROOT / "docs" / "deploy" / "compose"
COMMANDS = [json.loads(found) for found in re.findall(r"^    command: (\[.*\])$", (FOLDER / "compose.yaml").read_text(), re.MULTILINE)]


@contextmanager
def running(words, folder):
    environment = {**os.environ, "API_TOKEN": "s3cret"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "stategraph", *words], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.trial
def test_the_commands_of_the_compose_file_serve_a_run_and_survive_a_killed_worker(postgres, tmp_path):
    for name in ("graphs.py", "users.py"):
        shutil.copy(FOLDER / name, tmp_path)
    [serve], [work] = ([words for words in COMMANDS if words[0] == kind] for kind in ("serve", "work"))
    ports = [free_port(), free_port()]
    local = {"postgresql://graphs@db/graphs": postgres, "0.0.0.0": "127.0.0.1"}
    serve, work = ([local.get(word, word) for word in words] for words in (serve, work))
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(running([*serve, "--port", str(port)], tmp_path))
        workers = [stack.enter_context(running(work, tmp_path)) for _ in range(2)]
        first, second = (stack.enter_context(client_of(port)) for port in ports)
        for client in (first, second):
            wait_until_ready(client)
        thread = first.post("/threads", json={}).json()["thread_id"]
        asked = first.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "orders", "input": {"item": "tea"}}).json()
        assert asked["__interrupt__"][0]["value"] == "Order tea?"
        workers[0].kill()
        done = second.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "orders", "command": {"resume": "yes"}}).json()
        assert done["log"] == ["approved: yes"]
        assert httpx.get(f"http://127.0.0.1:{ports[0]}/threads/{thread}").status_code == 401


def client_of(port):
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"authorization": "Bearer s3cret"}, timeout=60)


def wait_until_ready(client):
    while True:
        try:
            if client.get("/ok", params={"check_db": 1}).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)


def docker_works():
    return bool(shutil.which("docker")) and subprocess.run(["docker", "info"], capture_output=True).returncode == 0


@pytest.mark.trial
@pytest.mark.skipif(not docker_works(), reason="no Docker daemon")
def test_the_compose_file_starts_in_docker():
    secrets = {**os.environ, "POSTGRES_PASSWORD": "none", "API_TOKEN": "none"}
    compose = ["docker", "compose", "--project-name", "stategraph-docs"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(FOLDER / "dist"), str(ROOT)], check=True)
    try:
        subprocess.run([*compose, "up", "--build", "--detach", "--wait"], cwd=FOLDER, env=secrets, check=True)
    finally:
        subprocess.run([*compose, "down", "--volumes"], cwd=FOLDER, env=secrets, check=True)
        shutil.rmtree(FOLDER / "dist")
