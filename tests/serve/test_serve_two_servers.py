"""Two servers on one Postgres, each with workers: clients go to either of them by turns, and find one service. One that
is killed under load takes nothing with it."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, cycle

import httpx
import psycopg
import pytest
from kit.cluster import as_url, free_port
from served_agents import make_desk
from served_processes import process
from serving import RUN, Gates, make_flow, opened, serving

from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.serve import create_app
from stategraph.serve.records import ROOT
from stategraph.serve.runs.fleet import FleetRuns
from stategraph.store.postgres import PostgresStore
from stategraph.workers import Queue


def open_server(stack, db, gates, workers=2):
    """The address of a server with connections of its own."""
    graphs = {"flow": make_flow(gates), "desk": make_desk(gates)}
    place = stack.enter_context(opened("postgres", db))
    return stack.enter_context(serving(create_app(graphs, workers=workers, **place)))


@pytest.fixture
def gates():
    return Gates()


@pytest.fixture
def urls(postgres, gates):
    with ExitStack() as stack:
        yield [open_server(stack, postgres, gates) for _ in range(2)]


@pytest.fixture
def clients(urls):
    with ExitStack() as stack:
        yield [stack.enter_context(httpx.Client(base_url=url, timeout=60)) for url in urls]


def test_no_change_is_lost_while_runs_start_and_end(clients):
    place = f"/threads/{clients[0].post('/threads', json={}).json()['thread_id']}"

    def change(n):
        return clients[n % 2].patch(place, json={"metadata": {str(n): n}}).status_code

    def run(n):
        return clients[n % 2].post(f"{place}/runs/wait", json=RUN).status_code

    with ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(run, n) for n in range(6)]
        changes = [pool.submit(change, n) for n in range(40)]
        assert {each.result(60) for each in [*runs, *changes]} == {200}
    told = [client.get(place).json() for client in clients]
    assert told[0] == told[1] and told[0]["status"] == "idle"
    assert {str(n) for n in range(40)} <= {*told[0]["metadata"]}
    assert told[0]["values"]["log"] == ["a", "b"] * 6
    assert [each["status"] for each in clients[1].get(f"{place}/runs").json()] == ["success"] * 6


@pytest.mark.trial
def test_a_run_is_started_read_joined_and_cancelled_at_either_server(clients, gates):
    one, other = clients
    place = f"/threads/{one.post('/threads', json={}).json()['thread_id']}"
    gates.close("slow")
    slow = {**RUN, "input": {"log": [], "topic": "slow"}, "stream_mode": ["updates"]}
    run = one.post(f"{place}/runs", json=slow).json()["run_id"]
    with ThreadPoolExecutor() as pool:
        joined = [pool.submit(client.get, f"{place}/runs/{run}/join") for client in clients]
        first = {"last-event-id": "-1"}
        streams = [pool.submit(client.get, f"{place}/runs/{run}/stream", headers=first) for client in clients]
        assert gates.reached["slow"].wait(20)
        gates.open("slow")
        assert [each.result(60).json()["log"] for each in joined] == [["a", "b"]] * 2
        told = [each.result(60).text for each in streams]
    assert told[0] == told[1] and '"b"' in told[0]
    gates.close("slow")
    run = other.post(f"{place}/runs", json=slow).json()["run_id"]
    assert gates.reached["slow"].wait(20)
    assert one.post(f"{place}/runs/{run}/cancel?wait=true").status_code == 200
    assert {client.get(f"{place}/runs/{run}").json()["status"] for client in clients} == {"interrupted"}
    assert {client.get(place).json()["status"] for client in clients} == {"interrupted"}


def idle_thread(client):
    """The place of a thread on which a run has ended."""
    place = f"/threads/{client.post('/threads', json={}).json()['thread_id']}"
    client.post(f"{place}/runs/wait", json=RUN).raise_for_status()
    return place


@pytest.mark.trial
@pytest.mark.parametrize(("more", "said"), [({}, "under way"), ({"after_seconds": 3600}, "meanwhile")])
def test_a_thread_is_not_deleted_at_one_server_while_a_run_begins_at_the_other(clients, monkeypatch, more, said):
    one, other = clients
    place = idle_thread(one)
    is_busy, looks, begun = FleetRuns.is_busy, count(), []

    async def begin_meanwhile(runs, thread_id):
        found = await is_busy(runs, thread_id)
        if next(looks) == 1:  # the server has looked twice, and has deleted nothing yet
            begun.append(one.post(f"{place}/runs", json={**RUN, **more}))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(FleetRuns, "is_busy", begin_meanwhile)
        deleted = other.delete(place)
    run = begun[0].json()["run_id"]
    assert deleted.status_code == 409 and said in deleted.json()["detail"]
    if not more:
        assert one.get(f"{place}/runs/{run}/join").json()["log"] == ["a", "b"] * 2
    assert other.get(place).json()["status"] == "idle" and "is_deleted" not in other.get(place).json()
    assert other.delete(place).status_code == 204 and one.get(place).status_code == 404


@pytest.mark.trial
def test_a_run_does_not_begin_at_one_server_on_a_thread_that_the_other_deletes(clients, monkeypatch, postgres):
    one, other = clients
    place = idle_thread(one)
    submit, deleted = FleetRuns.submit, []

    async def delete_meanwhile(runs, *args):
        if not deleted:  # the other server has read the thread, and has written nothing yet
            deleted.append(other.delete(place))
        await submit(runs, *args)

    monkeypatch.setattr(FleetRuns, "submit", delete_meanwhile)
    refused = one.post(f"{place}/runs", json=RUN)
    assert deleted[0].status_code == 204
    assert refused.status_code == 404 and "there is no thread" in refused.json()["detail"]
    with PostgresStore.from_conn_string(postgres) as store:
        left = [item.namespace[1] for item in store.search((ROOT,), limit=100)]
    assert not {"threads", "runs", "unfinished"} & {*left}


@pytest.mark.trial
def test_a_deletion_that_a_server_could_not_finish_is_finished_by_the_next_one(clients, monkeypatch):
    one, other = clients
    place = idle_thread(one)

    async def die(*_):
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSaver, "adelete_thread", die)
        assert one.delete(place).status_code == 500
    refused = other.post(f"{place}/runs", json=RUN)
    assert refused.status_code == 409 and "is being deleted: delete it again" in refused.json()["detail"]
    assert other.delete(place).status_code == 204 and one.get(place).status_code == 404


@pytest.mark.trial
@pytest.mark.parametrize("deletes", ["run", "thread"])
def test_a_run_that_is_deleted_where_its_graph_is_not_served_never_begins(postgres, gates, deletes):
    with ExitStack() as stack:
        url = open_server(stack, postgres, gates)
        one = stack.enter_context(httpx.Client(base_url=url, timeout=60))
        bound = stack.enter_context(opened("postgres", postgres))
        app = create_app({"else": make_flow(gates)}, workers=0, **bound)
        other = stack.enter_context(httpx.Client(base_url=stack.enter_context(serving(app)), timeout=60))
        place = idle_thread(one)
        run = one.post(f"{place}/runs", json={**RUN, "after_seconds": 3600}).json()["run_id"]
        assert other.delete(f"{place}/runs/{run}" if deletes == "run" else place).status_code == 204
        with Queue.from_conn_string(postgres, "flow") as queue:
            # With its thread the job goes, too.
            assert [job.status for job in queue.named(run)] == (["cancelled"] if deletes == "run" else [])
        assert bound["store"].search((ROOT, "unfinished")) == []


@pytest.mark.trial
def test_a_thread_is_idle_if_the_record_of_its_run_is_missing(clients, postgres):
    """Servers of before could leave a pointer to such a run."""
    one, _ = clients
    place = idle_thread(one)
    id = place.rpartition("/")[2]
    created = "2026-01-01T00:00:00+00:00"
    pointer = {"run_id": "gone", "thread_id": id, "graph_id": "flow", "owner": "", "stopped": None}
    with PostgresStore.from_conn_string(postgres) as store:
        space = (ROOT, "unfinished", id)
        store.put(space, "gone", {**pointer, "created_at": created, "begins_at": created})
        until = time.monotonic() + 20
        while store.get(space, "gone") is not None:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert one.get(place).json()["status"] == "idle" and one.delete(place).status_code == 204


@pytest.mark.trial
def test_a_waiting_client_gets_the_end_of_a_run_whose_server_died_before_submitting_its_job(postgres, gates):
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=open_server(stack, postgres, gates, 0), timeout=60))
        place = f"/threads/{client.post('/threads', json={}).json()['thread_id']}"
        sent = {**RUN, "stream_mode": ["updates"]}
        run = f"{place}/runs/{client.post(f'{place}/runs', json=sent).json()['run_id']}"
        with psycopg.connect(postgres, autocommit=True) as direct:
            direct.execute("DELETE FROM stategraph_jobs")  # as if it had never got so far
        with ThreadPoolExecutor() as pool:
            joined = pool.submit(client.get, f"{run}/join")
            stream = pool.submit(client.get, f"{run}/stream", headers={"last-event-id": "-1"})
            open_server(stack, postgres, gates)
            assert joined.result(60).json()["log"] == ["a", "b"]
            told = stream.result(60).text
        assert told.count("event: metadata") == 1 and '"b"' in told


class Caller:
    """A client that is done with a run only when it knows its end, whatever happens to the servers meanwhile.

    httpx would load all root certificates for each request; these are without TLS.
    """

    def __init__(self, places):
        self._places = cycle(places)

    def ask(self, method, path, body=None):
        """What some server answers."""
        while True:
            try:
                answer = httpx.request(method, next(self._places) + path, json=body, timeout=60, verify=False)
                if answer.status_code < 500:
                    return answer.raise_for_status().json()
            except httpx.TransportError:
                pass
            time.sleep(0.5)  # what the dead server had sent to the database is done by then, or never

    def run(self, thread, name, body):
        """One run to its end. A request whose answer was lost may have begun it."""
        runs = f"/threads/{thread}/runs"
        while True:
            mine = [each for each in self.ask("GET", f"{runs}?limit=100") if each["metadata"].get("name") == name]
            if mine:
                self.ask("GET", f"{runs}/{mine[0]['run_id']}/join")
                assert len(mine) == 1 and self.ask("GET", f"{runs}/{mine[0]['run_id']}")["status"] == "success"
                return
            try:
                sent = {"assistant_id": "flow", "metadata": {"name": name}, **body}
                httpx.post(next(self._places) + runs, json=sent, timeout=60, verify=False)
            except httpx.TransportError:
                time.sleep(0.5)


@pytest.mark.trial
@pytest.mark.parametrize("seed", range(int(os.environ.get("STATEGRAPH_EXAMPLES", "1"))))
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_servers_that_are_killed_under_load_lose_nothing(request, tmp_path, kind, seed):
    """Each thread has two questions, and has both answers, once each. On SQLite there is one server at a time."""
    db, ports = str(tmp_path / "served.db"), [free_port()]
    if kind == "postgres":
        db, ports = as_url(request.getfixturevalue("postgres")), [free_port(), free_port()]
    places = [f"http://127.0.0.1:{port}" for port in ports]
    chance = random.Random(seed)

    def converse(thread):
        caller = Caller(places if int(thread) % 2 else places[::-1])
        caller.ask("POST", "/threads", {"thread_id": thread, "if_exists": "do_nothing"})
        for n in range(2):
            caller.run(thread, f"ask-{n}", {"input": {"log": [f"in-{n}"], "asks": True, "pace": 0.05}})
            caller.run(thread, f"answer-{n}", {"command": {"resume": f"answer-{n}"}})
        told = caller.ask("GET", f"/threads/{thread}")
        assert told["status"] == "idle", told
        return list(told["values"]["log"])

    with ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        running = [stack.enter_context(process(tmp_path, db, port)) for port in ports]
        talks = [pool.submit(converse, str(n)) for n in range(8)]
        for _ in range(4):
            time.sleep(chance.uniform(0.3, 1.5))
            which = chance.randrange(len(ports))
            running[which].send_signal(signal.SIGKILL)
            running[which].wait(20)
            running[which] = stack.enter_context(process(tmp_path, db, ports[which]))
        logs = [each.result(240) for each in talks]
    wanted = [part for n in range(2) for part in (f"in-{n}", "a", "b", f"answer-{n}", "d")]
    assert logs == [wanted] * 8
