"""A server that is killed or stopped loses no run: the next one on the same database continues each."""

import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from kit.cluster import as_url, free_port
from langgraph_sdk import get_sync_client
from served_processes import GRAPH, command, process


@pytest.fixture(params=["sqlite", "postgres"])
def db(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "served.db")
    return as_url(request.getfixturevalue("postgres"))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_runs_continue_in_the_next_server(db, tmp_path, end):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    begun = []
    with process(tmp_path, db, port) as first, get_sync_client(url=url) as client:
        asks = client.threads.create()["thread_id"]
        client.runs.wait(asks, "flow", input={"log": ["in"], "asks": True})
        for _ in range(10):
            thread = client.threads.create()["thread_id"]
            for run in range(2):  # the second waits for the first
                sent = {"log": [f"in{run}"]}
                begun.append((thread, client.runs.create(thread, "flow", input=sent)["run_id"]))
        begun.append((asks, client.runs.create(asks, "flow", command={"resume": "Ann"})["run_id"]))
        time.sleep(0.25)
        first.send_signal(end)
        first.wait(30)
    with process(tmp_path, db, port), get_sync_client(url=url) as client:
        for thread, run in begun:
            client.runs.join(thread, run)
            assert client.runs.get(thread, run)["status"] == "success"
        for thread, _ in begun[:-1]:
            logged = client.threads.get_state(thread)["values"]["log"]
            assert logged == ["in0", "a", "b", "c", "d", "in1", "a", "b", "c", "d"]
        assert client.threads.get_state(asks)["values"]["log"] == ["in", "a", "b", "Ann", "d"]


OBSERVER = """
from pathlib import Path
from stategraph import Observer

class Noting(Observer):
    def task_ended(self, task, status, seconds, error):
        with Path("noted").open("a") as file:
            print(task.node, status, file=file)
"""


def test_an_observer_of_the_command_line_gets_all_runs(tmp_path):
    (tmp_path / "watching.py").write_text(OBSERVER)
    port = free_port()
    more = ["--observer", "watching:Noting"]
    with process(tmp_path, str(tmp_path / "served.db"), port, *more), get_sync_client(url=f"http://127.0.0.1:{port}") as client:
        client.runs.wait(None, "flow", input={"log": ["in"]})
    assert (tmp_path / "noted").read_text().split("\n") == ["a finished", "b finished", "c finished", "d finished", ""]


@pytest.mark.parametrize("how", ["interrupt", "rollback", "cancel", "cancel and roll back"])
def test_a_cancelled_run_does_not_continue_after_a_crash(tmp_path, how):
    db, port = str(tmp_path / "served.db"), free_port()
    with process(tmp_path, db, port) as first, get_sync_client(url=f"http://127.0.0.1:{port}") as client:
        thread = client.threads.create()["thread_id"]
        client.runs.wait(thread, "flow", input={"log": ["in0"]})
        old = client.runs.create(thread, "flow", input={"log": ["in1"], "hangs": True})["run_id"]
        while client.threads.get_state(thread)["next"] != ["b"]:
            time.sleep(0.02)
        calm = {"log": ["in2"], "hangs": False}
        if how in ("interrupt", "rollback"):
            client.runs.create(thread, "flow", input=calm, multitask_strategy=how)
        elif how == "cancel":
            client.runs.cancel(thread, old)
        else:
            httpx.post(f"http://127.0.0.1:{port}/runs/cancel?action=rollback", json={"run_ids": [old]})
        first.send_signal(signal.SIGKILL)
        first.wait(30)
    with process(tmp_path, db, port), get_sync_client(url=f"http://127.0.0.1:{port}") as client:
        if not how.startswith("cancel"):
            client.runs.join(thread, client.runs.list(thread)[0]["run_id"])
        steps = ["a", "b", "c", "d"]
        logged = ["in0", *steps]
        logged += ["in1", "a"] if how in ("interrupt", "cancel") else []
        logged += ["in2", *steps] if not how.startswith("cancel") else []
        while client.threads.get(thread)["status"] == "busy":
            time.sleep(0.02)
        assert client.threads.get_state(thread)["values"]["log"] == logged
        statuses = {run["run_id"]: run["status"] for run in client.runs.list(thread)}
        assert statuses.get(old) == (None if "roll" in how else "interrupted")


def test_sigterm_ends_open_streams_and_their_runs_continue_later(tmp_path):
    db, port = str(tmp_path / "served.db"), free_port()
    url = f"http://127.0.0.1:{port}"
    with process(tmp_path, db, port) as first, get_sync_client(url=url) as client:
        thread = client.threads.create()["thread_id"]
        runs = [
            client.runs.create(thread, "flow", input={"log": [name], "pace": pace})["run_id"]
            for name, pace in (("in1", 1.5), ("in2", 0.1))
        ]
        # Not by the official client, which would wait for the next server.
        with ThreadPoolExecutor() as pool, httpx.Client(timeout=30) as plain:
            places = [f"{url}/threads/{thread}/runs/{run}" for run in runs]
            streams = [pool.submit(plain.get, f"{place}/stream") for place in places]
            joined = [pool.submit(plain.get, f"{place}/join") for place in places]
            while client.threads.get_state(thread)["next"] != ["b"]:
                time.sleep(0.02)
            first.send_signal(signal.SIGTERM)
            first.wait(30)
            answers = [each.result(30) for each in joined]
            assert [each.status_code for each in answers] == [503, 503]
            assert "next one goes on with the run" in answers[0].text
            assert all(each.result(30).status_code == 200 for each in streams)
    with process(tmp_path, db, port), get_sync_client(url=url) as client:
        for run in runs:
            client.runs.join(thread, run)
        steps = ["a", "b", "c", "d"]
        assert client.threads.get_state(thread)["values"]["log"] == ["in1", *steps, "in2", *steps]


def test_the_command_says_what_it_serves_and_where(tmp_path):
    (tmp_path / "flows.py").write_text(GRAPH)
    running = subprocess.Popen(command("served.db", 0), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert running.stdout is not None
        line = running.stdout.readline().decode()
        assert line.startswith("stategraph serves flow at http://127.0.0.1:")
        assert httpx.get(f"{line.split()[-1]}/ok").status_code == 200
    finally:
        running.kill()
        running.communicate()
