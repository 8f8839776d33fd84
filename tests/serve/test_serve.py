"""The server, as the official client sees it: over a real socket, with each saver."""

import time
from contextlib import ExitStack, asynccontextmanager

import httpx
import pytest
from kit.graphs import EMPTY
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError
from serving import DATABASES, Gates, flow_app, new_thread, opened, serving
from starlette.applications import Starlette
from starlette.routing import Mount

from stategraph.serve.records import ROOT
from stategraph.store import InMemoryStore

GONE = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def gates():
    return Gates()


@pytest.fixture(params=["memory", *DATABASES, "postgres without queue"])
def url(request, gates, tmp_path):
    kind = request.param
    with ExitStack() as stack:
        options = {}
        if kind != "memory":
            place = tmp_path / "served.db" if kind.startswith("sqlite") else request.getfixturevalue("postgres")
            options = stack.enter_context(opened(kind, place))
        if kind == "postgres without queue":
            del options["queue"]
        yield stack.enter_context(serving(flow_app(gates, **options)))


@pytest.fixture
def client(url):
    with get_sync_client(url=url) as client:
        yield client


@pytest.fixture
def memory_url(gates):
    with serving(flow_app(gates)) as url:
        yield url


def events(parts):
    return [(part.event, part.data) for part in parts]


def test_a_run_is_waited_for(client):
    thread = new_thread(client)
    assert client.runs.wait(thread, "flow", input={"log": ["x"]}) == {"log": ["x", "a", "b"]}
    assert client.threads.get(thread)["values"] == {"log": ["x", "a", "b"]}
    assert client.threads.get(thread)["status"] == "idle"
    [run] = client.runs.list(thread)
    assert run["status"] == "success"


def test_a_run_is_streamed(client):
    modes = ["updates", "custom", "values"]
    found = events(client.runs.stream(new_thread(client), "flow", input={"log": ["x"]}, stream_mode=modes))
    assert found[0][0] == "metadata" and found[0][1]["attempt"] == 1
    assert found[1:] == [
        ("values", {"log": ["x"]}),
        ("custom", {"from": "a"}),
        ("updates", {"a": {"log": ["a"]}}),
        ("values", {"log": ["x", "a"]}),
        ("updates", {"b": {"log": ["b"]}}),
        ("values", {"log": ["x", "a", "b"]}),
    ]


def test_a_question_is_asked_and_answered(client):
    thread = new_thread(client)
    asked = client.runs.wait(thread, "flow", input={"topic": "ask"})
    [question] = asked["__interrupt__"]
    assert question["value"] == {"question": "name?"}
    shown = client.threads.get(thread)
    assert shown["status"] == "interrupted" and [*shown["interrupts"].values()] == [[question]]
    assert client.threads.get_state(thread)["next"] == ["b"]
    resumed = client.runs.wait(thread, "flow", command={"resume": "Ann"})
    assert resumed["log"] == ["a", "Ann"]
    assert client.threads.get(thread)["status"] == "idle"


def test_a_failure_is_reported(client):
    thread = new_thread(client)
    found = events(client.runs.stream(thread, "flow", input={"topic": "fail"}, stream_mode="updates"))
    assert found[1:] == [("updates", {"a": {"log": ["a"]}}), ("error", {"error": "ValueError", "message": "boom"})]
    shown = client.threads.get(thread)
    assert shown["status"] == "error" and shown["error"] == {"error": "ValueError", "message": "boom"}
    with pytest.raises(Exception, match="boom"):
        client.runs.wait(thread, "flow", input={"topic": "fail"})


def test_a_state_is_edited_and_the_run_resumed(client):
    thread = new_thread(client)
    client.runs.wait(thread, "flow", input=EMPTY)
    client.threads.update_state(thread, {"log": ["edited"]}, as_node="a")
    assert client.threads.get(thread)["status"] == "interrupted"
    assert client.runs.wait(thread, "flow", input=None) == {"log": ["a", "b", "edited", "b"]}


def test_a_run_starts_from_an_earlier_checkpoint(client):
    thread = new_thread(client)
    client.runs.wait(thread, "flow", input={"log": ["x"]})
    steps = client.threads.get_history(thread)
    assert [step["next"] for step in steps] == [[], ["b"], ["a"], ["__start__"]]
    middle = steps[1]["checkpoint"]
    assert client.threads.get_state(thread, checkpoint=middle)["values"] == {"log": ["x", "a"]}
    forked = client.threads.update_state(thread, {"log": ["fork"]}, checkpoint=middle)
    result = client.runs.wait(thread, "flow", input=None, checkpoint=forked["checkpoint"])
    assert result == {"log": ["x", "a", "fork", "b"]}


def test_a_fork_that_asks_again_is_open_until_it_is_answered(client):
    thread = new_thread(client)
    client.runs.wait(thread, "flow", input={"topic": "ask"})
    client.runs.wait(thread, "flow", command={"resume": "Ann"})
    before = next(each for each in client.threads.get_history(thread) if each["next"] == ["a"])
    found = events(client.runs.stream(thread, "flow", input=None, checkpoint=before["checkpoint"], stream_mode="updates"))
    assert [each for _, part in found[1:] for each in part] == ["a", "__interrupt__"]
    shown = client.threads.get(thread)
    assert shown["status"] == "interrupted" and len(shown["interrupts"]) == 1
    assert client.threads.search(status="interrupted", limit=100)[0]["thread_id"] == thread
    assert client.runs.wait(thread, "flow", command={"resume": "Bob"})["log"] == ["a", "Bob"]
    assert client.threads.get(thread)["status"] == "idle"


def test_threads_are_searched(client):
    ann = client.threads.create(metadata={"user": {"name": "ann.b", "age": 3}})["thread_id"]
    client.threads.create(metadata={"user": {"name": "bob"}})
    client.runs.wait(ann, "flow", input={"topic": "ask"})
    found = client.threads.search(metadata={"user": {"name": "ann.b"}})
    assert [each["thread_id"] for each in found] == [ann]
    assert client.threads.count(status="interrupted") == 1
    assert client.threads.search(values={"topic": "ask"})[0]["thread_id"] == ann
    oldest = client.threads.search(sort_by="created_at", sort_order="asc", select=["thread_id"])
    assert oldest[0] == {"thread_id": ann}


def test_a_client_selects_fields_of_a_thread(client):
    thread = client.threads.create()["thread_id"]
    client.runs.wait(thread, "flow", input={"log": ["x"], "topic": "t"})
    at = client.threads.get_state(thread)["checkpoint"]
    assert client.threads.get_state(thread, select=["values.log", "next"]) == {"values": {"log": ["x", "a", "b"]}, "next": []}
    assert client.threads.get_state(thread, checkpoint=at, select=["checkpoint"]) == {"checkpoint": at}
    assert client.threads.get_state(thread, checkpoint_id=at["checkpoint_id"], select=["values.none"]) == {"values": {}}
    assert client.threads.get_history(thread, select=["next"]) == [{"next": next} for next in ([], ["b"], ["a"], ["__start__"])]
    empty = client.threads.create()["thread_id"]
    assert client.threads.get_state(empty, select=["values"]) == {"values": {}}

    paths = {"last": "values.log[-1]", "topic": "values.topic", "graph": "metadata.graph_id", "none": "values.log[7].x"}
    [found] = client.threads.search(ids=[thread], select=["thread_id"], extract=paths)
    extracted = {"last": "b", "topic": "t", "graph": "flow", "none": None}
    assert found == {"thread_id": thread, "extracted": extracted}


@pytest.mark.filterwarnings("ignore:`checkpoint_during` is deprecated")
def test_an_older_client_says_when_steps_are_stored(client):
    numbers = {}
    for during in (True, False):
        thread = client.threads.create()["thread_id"]
        client.runs.wait(thread, "flow", input=EMPTY, checkpoint_during=during)
        numbers[during] = len(client.threads.get_history(thread))
    assert numbers == {True: 4, False: 2}  # the input of a run with an id, and its end


def test_a_thread_is_copied_and_deleted(client):
    thread = new_thread(client)
    client.runs.wait(thread, "flow", input={"log": ["x"]})
    client.threads.copy(thread)
    [copied] = [each for each in client.threads.search() if each["thread_id"] != thread]
    assert copied["values"] == {"log": ["x", "a", "b"]}
    client.threads.delete(thread)
    with pytest.raises(NotFoundError):
        client.threads.get(thread)
    assert client.threads.get_state(copied["thread_id"])["values"] == {"log": ["x", "a", "b"]}


def test_a_thread_that_is_deleted_takes_its_later_runs_along(client, url):
    thread = new_thread(client)
    client.runs.create(thread, "flow", input=EMPTY, after_seconds=3600)

    def open_runs():
        told = httpx.get(f"{url}/page/queue").json()
        return len(told["jobs"] if told["fleet"] else told["runs"])

    assert open_runs() == 1
    client.threads.delete(thread)
    assert open_runs() == 0


def test_a_run_without_a_thread_leaves_nothing(client):
    assert client.runs.wait(None, "flow", input=EMPTY) == {"log": ["a", "b"]}
    assert client.threads.search() == []


def test_assistants_are_graphs_with_settings(client):
    made = client.assistants.create("flow", context={"tone": "dry"}, name="dry", metadata={"of": "ann"})
    id = made["assistant_id"]
    assert client.assistants.update(id, name="drier")["version"] == 2
    assert [each["name"] for each in client.assistants.get_versions(id)] == ["drier", "dry"]
    assert client.assistants.set_latest(id, 1)["name"] == "dry"
    assert [each["assistant_id"] for each in client.assistants.search(metadata={"of": "ann"})] == [id]
    assert client.assistants.count() == 2
    drawn = client.assistants.get_graph(id)
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "a", "b", "__end__"]
    assert "log" in client.assistants.get_schemas(id)["input_schema"]["properties"]
    client.assistants.delete(id)
    assert client.assistants.count() == 1


def test_the_store_is_the_one_of_the_nodes(client):
    client.store.put_item(["notes"], "n", {"text": "hi"})
    assert client.store.get_item(["notes"], "n")["value"] == {"text": "hi"}
    assert [each["key"] for each in client.store.search_items([])["items"]] == ["n"]
    assert client.store.list_namespaces()["namespaces"] == [["notes"]]
    client.runs.wait(new_thread(client), "flow", input=EMPTY)  # its records are newer, and not among the items
    assert [each["key"] for each in client.store.search_items([], limit=1)["items"]] == ["n"]
    assert client.store.list_namespaces(limit=1)["namespaces"] == [["notes"]]
    client.store.delete_item(["notes"], "n")
    assert client.store.get_item(["notes"], "n") is None


def test_a_busy_thread_refuses_lets_wait_or_drains(client, gates):
    thread = new_thread(client)
    gates.close("slow")
    slow = client.runs.create(thread, "flow", input={"log": ["1"], "topic": "slow"})
    assert gates.reached["slow"].wait(10)
    assert client.runs.get(thread, slow["run_id"])["status"] == "running"
    assert client.threads.get(thread)["status"] == "busy"
    assert [each["thread_id"] for each in client.threads.search(status="busy")] == [thread]
    with pytest.raises(ConflictError, match="busy"):
        client.runs.create(thread, "flow", input={}, multitask_strategy="reject")
    with pytest.raises(ConflictError, match="under way"):
        client.threads.delete(thread)
    waits = client.runs.create(thread, "flow", input={"log": ["2"], "topic": ""})
    assert client.runs.get(thread, waits["run_id"])["status"] == "pending"
    gates.open("slow")
    assert client.runs.join(thread, waits["run_id"])["log"] == ["1", "a", "b", "2", "a", "b"]


def test_a_cancelled_run_ends_at_once_and_keeps_its_steps(client, gates):
    thread = new_thread(client)
    gates.close("slow")
    run = client.runs.create(thread, "flow", input={"log": ["1"], "topic": "slow"})["run_id"]
    assert gates.reached["slow"].wait(10)
    client.runs.cancel(thread, run, wait=True)
    assert client.runs.get(thread, run)["status"] == "interrupted"
    assert client.threads.get_state(thread)["values"]["log"] == ["1", "a"]


@pytest.mark.parametrize("first", [True, False])
def test_a_rolled_back_run_leaves_the_thread_as_it_was(client, gates, first):
    thread = new_thread(client)
    before = [] if first else client.runs.wait(thread, "flow", input={"log": ["0"]})["log"]
    gates.close("slow")
    client.runs.create(thread, "flow", input={"log": ["1"], "topic": "slow"})
    assert gates.reached["slow"].wait(10)
    again = client.runs.wait(
        thread, "flow", input={"log": ["2"], "topic": ""}, multitask_strategy="rollback"
    )
    assert again["log"] == [*before, "2", "a", "b"]


def test_a_reconnected_reader_continues_after_its_last_event(client, gates):
    thread = new_thread(client)
    gates.close("slow")
    run = client.runs.create(thread, "flow", input={"topic": "slow"}, stream_mode="updates")["run_id"]
    assert gates.reached["slow"].wait(10)
    gates.open("slow")
    whole = [*client.runs.join_stream(thread, run, last_event_id="-1")]
    assert [part.event for part in whole] == ["metadata", "updates", "updates"]
    rest = [*client.runs.join_stream(thread, run, last_event_id=whole[1].id)]
    assert [(part.id, part.data) for part in rest] == [(whole[2].id, {"b": {"log": ["b"]}})]


def test_a_schedule_begins_runs(client, gates):
    thread = new_thread(client)
    cron = client.crons.create_for_thread(thread, "flow", schedule="* * * * *", input={"log": ["x"]})
    assert cron["next_run_date"] and cron["enabled"]
    assert [each["cron_id"] for each in client.crons.search(thread_id=thread)] == [cron["cron_id"]]
    changed = client.crons.update(cron["cron_id"], schedule="0 7 * * 1-5", timezone="Europe/Vienna")
    assert changed["next_run_date"] != cron["next_run_date"]
    client.crons.delete(cron["cron_id"])
    assert client.crons.count() == 0
    with pytest.raises(UnprocessableEntityError, match="cron must have 5 fields"):
        client.crons.create("flow", schedule="now and then")


def test_a_missed_time_is_made_up_for_once(gates):
    store = InMemoryStore()
    with serving(flow_app(gates, store=store)) as url, get_sync_client(url=url) as client:
        thread = new_thread(client)
        cron = client.crons.create_for_thread(thread, "flow", schedule="0 7 * * *", input={"log": ["x"]})
    [item] = store.search((ROOT, "crons"))
    store.put(item.namespace, item.key, {**item.value, "next_run_date": "2026-01-01T07:00:00+00:00"})
    for _ in range(2):  # the second server finds nothing to make up for
        with serving(flow_app(gates, store=store)) as url, get_sync_client(url=url) as client:
            until = time.monotonic() + 20
            while not (runs := client.runs.list(thread)) and time.monotonic() < until:
                time.sleep(0.01)
            [run] = runs
            assert run["run_id"].startswith(cron["cron_id"] + "@") and run["run_id"].endswith("T07:00:00Z")
            client.runs.join(thread, run["run_id"])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda c: c.threads.get(GONE), NotFoundError, GONE),
        (lambda c: c.runs.wait(GONE, "flow", input={}), httpx.HTTPStatusError, "no thread"),
        (lambda c: c.runs.wait(None, "flaw", input={}), httpx.HTTPStatusError, "flow"),
        (lambda c: c.assistants.create("flaw"), NotFoundError, "flow"),
        (lambda c: c.assistants.update("flow", name="x"), Exception, "itself"),
        (lambda c: c.threads.search(limit=-1), UnprocessableEntityError, "limit"),
        (lambda c: c.threads.search(extract={"a": "values.[0]"}), UnprocessableEntityError, "must be like"),
        (lambda c: c.threads.search(extract={str(n): "status" for n in range(11)}), UnprocessableEntityError, "10 paths"),
        (lambda c: c.threads.get_state(GONE, select=["value"]), NotFoundError, GONE),
        (lambda c: c.threads.get_state(c.threads.create()["thread_id"], select=["value"]), Exception, "no field 'value'"),
        (lambda c: c.http.post("/nowhere", json={}), NotFoundError, "Not Found"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_a_sentence(memory_url, call, error, says):
    with get_sync_client(url=memory_url) as client, pytest.raises(error) as raised:
        call(client)
    shown = str(raised.value) + getattr(getattr(raised.value, "response", None), "text", "")
    assert says in shown


def test_a_bad_edit_is_refused(client):
    thread = new_thread(client)
    client.runs.wait(thread, "flow", input=EMPTY)
    with pytest.raises(UnprocessableEntityError, match="nowhere"):
        client.threads.update_state(thread, EMPTY, as_node="nowhere")


def test_a_server_error_reveals_no_secrets(gates, capfd):
    class Broken(InMemoryStore):
        async def alook_up(self, lookup):
            if lookup.filter == {"metadata": {"break": "it"}}:
                raise RuntimeError("password=hunter2")
            return await super().alook_up(lookup)

    with serving(flow_app(gates, store=Broken())) as url:
        found = httpx.post(f"{url}/threads/search", json={"metadata": {"break": "it"}})
    assert found.status_code == 500 and "hunter2" not in found.text
    assert "hunter2" in capfd.readouterr().err


def test_it_is_mounted_in_another_app(gates):
    app = flow_app(gates)

    @asynccontextmanager
    async def lifespan(_):
        async with app.router.lifespan_context(app):
            yield

    with serving(Starlette(routes=[Mount("/graphs", app)])) as url:
        found = httpx.post(f"{url}/graphs/threads", json={})
        assert found.status_code == 503 and "lifespan" in found.text
    with (
        serving(Starlette(routes=[Mount("/graphs", app)], lifespan=lifespan)) as url,
        get_sync_client(url=f"{url}/graphs") as client,
    ):
        assert client.runs.wait(new_thread(client), "flow", input=EMPTY)["log"] == ["a", "b"]


def test_a_delayed_run_blocks_no_other_run(client):
    thread = new_thread(client)
    late = client.runs.create(thread, "flow", input={"log": ["late"]}, after_seconds=3)["run_id"]
    never = client.runs.create(thread, "flow", input={"log": ["never"]}, after_seconds=60)["run_id"]
    assert client.threads.get(thread)["status"] == "idle"
    assert client.runs.wait(thread, "flow", input={"log": ["now"]})["log"] == ["now", "a", "b"]
    client.runs.cancel(thread, never, wait=True)
    assert client.runs.get(thread, never)["status"] == "interrupted"
    assert client.runs.join(thread, late)["log"] == ["now", "a", "b", "late", "a", "b"]


def test_runs_are_created_in_a_batch(client):
    one, two = new_thread(client), new_thread(client)
    made = client.runs.create_batch(
        [{"assistant_id": "flow", "thread_id": each, "input": {"log": ["x"]}} for each in (one, two)]
    )
    assert [run["thread_id"] for run in made] == [one, two]
    for run in made:
        assert client.runs.join(run["thread_id"], run["run_id"])["log"] == ["x", "a", "b"]
