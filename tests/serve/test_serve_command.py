"""`stategraph serve` as a process: what it takes as a database, and how it ends."""

import argparse
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from kit.cluster import as_url, free_port
from kit.graphs import chain_of
from served_processes import GRAPH, process, served

from stategraph import GraphWarning, InMemorySaver
from stategraph.__main__ import main
from stategraph.graph.loader import find_graph
from stategraph.serve import create_app
from stategraph.serve.command import _load, _name_of, _read_deployment, _targets
from stategraph.store import InMemoryStore


@pytest.fixture(params=["memory", "sqlite", "url", "conninfo"])
def db(request, tmp_path):
    """How the command line names a database."""
    if request.param == "memory":
        return []
    if request.param == "sqlite":
        return ["--db", str(tmp_path / "served.db")]
    conninfo = request.getfixturevalue("postgres")
    return ["--db", as_url(conninfo) if request.param == "url" else conninfo]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_server_stops_gracefully_on_a_signal(db, tmp_path, end):
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


def test_a_second_signal_ends_the_server_at_once(tmp_path):
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
def test_a_graph_without_a_name_has_that_of_its_variable_or_module(target, name):
    assert _name_of(target) == name


def test_a_deployment_file_names_graphs_auth_and_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SET_BEFORE", "kept")
    monkeypatch.delenv("FROM_FILE", raising=False)
    (tmp_path / "src").mkdir()
    (tmp_path / ".env").write_text("# a comment\nFROM_FILE='a=b'\nSET_BEFORE=replaced\n")
    told = {"dependencies": [".", "httpx"], "env": ".env", "auth": {"path": "./src/doors.py:auth"}}
    graphs = {"one": "./src/flows.py:flow", "two": {"path": "package.flows:flow"}}
    file = tmp_path / "langgraph.json"
    file.write_text(json.dumps({**told, "graphs": graphs}))
    asked = argparse.Namespace(graphs=[str(file), "three=x.py:y"], auth=None)
    _read_deployment(asked)
    folder = str(tmp_path)
    assert asked.graphs == [f"one={folder}/src/flows.py:flow", "two=package.flows:flow", "three=x.py:y"]
    assert asked.auth == f"{folder}/src/doors.py:auth" and sys.path[0] == folder
    assert (os.environ["FROM_FILE"], os.environ["SET_BEFORE"]) == ("a=b", "kept")
    monkeypatch.delenv("FROM_FILE")


def test_a_deployment_file_that_is_none_is_named(tmp_path, capsys):
    (tmp_path / "langgraph.json").write_text("{")
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path / "langgraph.json")])
    assert "the deployment file cannot be read" in capsys.readouterr().err


def test_a_misspelt_function_of_auth_is_named(tmp_path, monkeypatch):
    (tmp_path / "doors.py").write_text("def auth(request): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="got 'doors.py:aut'; did you mean 'auth'"):
        _load("doors.py:aut", "--auth")


@pytest.fixture
def flows(tmp_path, monkeypatch):
    """The current folder, with a graph in it."""
    (tmp_path / "flows.py").write_text(GRAPH)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, *arguments):
    """The exit code of a server that does not start, and its last word."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return ended.value.code, told.splitlines()[-1].partition("error: ")[2]


@pytest.mark.parametrize("port", ["99999999", "65536", "-5", "x", "²", ""])
def test_a_port_that_is_none_is_refused(port, capsys):
    code, told = refused(capsys, "flows.py:flow", "--port", port)
    assert (code, told) == (2, f"argument --port: must be a port from 0 to 65535, got {port!r}")


@pytest.mark.parametrize(
    ("host", "why"), [("192.0.2.1", "Cannot assign requested address"), ("no-such-host.invalid", "")]
)
def test_a_host_that_is_not_of_this_machine_is_refused(flows, capsys, host, why):
    (flows / "doors.py").write_text("def auth(request): ...\n")
    code, told = refused(capsys, "flows.py:flow", "--host", host, "--port", "2024", "--auth", "doors.py:auth")
    assert code == 2 and told.startswith(f"port 2024 of {host!r} cannot be used: {why}")


def test_a_port_in_use_is_found_out_before_the_database_is_touched(flows, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, told = refused(capsys, "flows.py:flow", "--db", "q.db", "--port", str(port))
    way_out = "stop the program that listens there, or choose another port with --port"
    assert (code, told) == (1, f"port {port} of 127.0.0.1 is in use: {way_out}")
    assert not [*flows.glob("q.db*")]


def test_a_database_that_cannot_be_reached_is_one_line(flows, capsys):
    code, told = refused(capsys, "flows.py:flow", "--db", "postgresql://127.0.0.1:1/x", "--port", "0")
    assert code == 1 and told.startswith("the Postgres server cannot be reached: connection failed")
    assert len(told) < 300


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("flows.py:flow --workers -1", "argument --workers: must be an integer >= 0, got '-1'"),
        ("flows.py:flow --workers 2 --db q.db", "--workers needs --db postgresql://...: without Postgres the server does"),
        ("flows.py:flow --no-workers", "--no-workers needs --db postgresql://...: without Postgres the server does"),
        ("flows.py:flow --keys none", "--keys needs --db: without it nothing is stored that could be encrypted"),
        ("flows.py:flow --keys none --db q.db", "the file of keys 'none' cannot be read: No such file or directory"),
        ("flows.py:flow --observer nope:x", "observer 'nope:x' cannot be loaded: No module named 'nope'"),
        ("flows.py:flow --observer flows:x", "observer 'flows:x' cannot be loaded: module 'flows' has no attribute 'x'"),
        ("flows.py:flow --observer nope-x", "observer must be \"module:name\", got 'nope-x'"),
        ("a/b=flows.py:flow --db q.db", "the name of a graph must not be empty, '.' or '..', nor hold a slash, got 'a/b'"),
        ("flows.py:flow --db q.db --webhooks ftp://x/y", "webhooks: must be http:// or https://, with a host"),
        ("..=flows.py:flow", "the name of a graph must not be empty, '.' or '..', nor hold a slash, got '..'"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(flows, capsys, arguments, why):
    code, told = refused(capsys, *arguments.split(), "--port", "0")
    assert code == 2 and told.startswith(why)
    assert not [*flows.glob("q.db*")]


@pytest.mark.trial
def test_a_server_with_reload_runs_the_code_as_it_is_now(tmp_path):
    """A file that cannot be imported keeps the server waiting for the next change, and clients for the server."""
    flow, port = tmp_path / "flows.py", free_port()
    db = str(tmp_path / "q.db")
    with process(tmp_path, db, port, "--reload") as running, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        thread = client.post("/threads", json={}).json()["thread_id"]

        def run():
            done = client.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "flow", "input": {"log": []}})
            return done.json()["log"][-1]

        assert run() == "d"
        log, end = tmp_path / "log", time.monotonic() + 60
        flow.write_text("graph = (")
        while "flows.py cannot be imported: SyntaxError" not in log.read_text():
            assert running.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        flow.write_text(GRAPH.replace('{"log": [name]}', '{"log": [name + "!"]}'))
        assert run() == "d!"  # asked while no server was there
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0, log.read_text()


def test_the_only_compiled_graph_is_served(flows):
    assert _targets(["flows.py"]) == {"flows": "flows.py"} and find_graph("flows.py").name == "flow"


@pytest.mark.parametrize("name", ["app", "builder"])
def test_a_graph_of_langgraph_gets_an_error(flows, name):
    """In a process of its own, where nothing has put this engine in LangGraph's place."""
    if not [*importlib.metadata.Distribution.discover(name="langgraph")]:
        pytest.skip("needs langgraph: make compat")
    theirs = GRAPH.replace("from stategraph import", "from langgraph.graph import").replace(", interrupt", "")
    (flows / "theirs.py").write_text(theirs + "app, builder = flow, graph")
    command = [sys.executable, "-P", "-m", "stategraph", "serve", f"theirs.py:{name}", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "StateGraph of LangGraph; put `langgraph -m stategraph` before the command" in ended.stderr


def test_a_graph_with_a_saver_or_a_store_of_its_own_is_warned_of():
    class Indexed(InMemoryStore):
        pass

    builder = chain_of(dict, a=lambda _: None)
    saver, store = InMemorySaver(), InMemoryStore()
    with pytest.warns(GraphWarning) as told:
        create_app({"trips": builder.compile(saver, store=Indexed())}, store=store)
    assert [str(each.message).partition(":")[0] for each in told] == [
        "the graph 'trips' was compiled with checkpointer=InMemorySaver, but is served with the server's InMemorySaver",
        "the graph 'trips' was compiled with store=Indexed, but is served with the server's InMemoryStore",
    ]
    assert all(each.filename == __file__ for each in told)
    create_app({"trips": builder.compile(saver, store=store)}, checkpointer=saver, store=store)
    create_app({"trips": builder.compile(checkpointer=False)}, checkpointer=saver)
