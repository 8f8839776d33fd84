"""Each public method of the official client's classes works, or is refused with an error.

The methods and their parameters are those of the installed package, so a new one fails here until it is looked at.
"""

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kit.graphs import EMPTY
from langgraph_sdk import get_client, get_sync_client
from serving import flow_app, serving

GUIDE = (Path(__file__).resolve().parents[2] / "docs/reference/server.md").read_text()
GENERAL = {"headers", "params", "on_run_created"}
"""What a method passes on, and no server sees."""


class Scene:
    """A server with a thread on which a run has ended, and what else a method needs."""

    def __init__(self, client):
        self.client = client
        self.thread = client.threads.create(metadata={"m": 1})["thread_id"]
        client.runs.wait(self.thread, "flow", input={"log": ["x"]})
        self.run = client.runs.list(self.thread)[0]["run_id"]
        self.at = client.threads.get_state(self.thread)["checkpoint"]
        self.assistant = client.assistants.create("flow", name="mine")["assistant_id"]
        self.cron = client.crons.create("flow", schedule="0 7 * * *")["cron_id"]
        client.store.put_item(["notes"], "k", {"a": 1})


@pytest.fixture
def scene():
    with serving(flow_app()) as url, get_sync_client(url=url) as client:
        yield Scene(client)


Call = Callable[[Scene], Any]
BODY = {"input": {"log": []}, "metadata": {"m": 1}, "config": {"tags": ["t"]}, "context": {}}
STOPS = {"interrupt_before": ["b"], "interrupt_after": ["b"], "durability": "sync"}
STREAM = {"stream_mode": ["values"], "stream_subgraphs": True, "stream_resumable": True}
RUN = BODY | STOPS | {"multitask_strategy": "enqueue", "if_not_exists": "create"}
FUTURE = datetime(2090, 1, 1, tzinfo=UTC)
PAGE = {"limit": 5, "offset": 0}
SORTED = PAGE | {"sort_by": "created_at", "sort_order": "asc"}

WORKS = {
    "assistants.count": [lambda s: s.client.assistants.count(metadata={}, graph_id="flow", name="mine")],
    "assistants.create": [
        lambda s: s.client.assistants.create(
            "flow", config={"tags": ["t"]}, context={"a": 1}, metadata={"m": 1}, assistant_id="a", if_exists="raise",
            name="n", description="d",
        )
    ],
    "assistants.delete": [lambda s: s.client.assistants.delete(s.assistant)],
    "assistants.get": [lambda s: s.client.assistants.get(s.assistant)],
    "assistants.get_graph": [lambda s: s.client.assistants.get_graph(s.assistant, xray=1)],
    "assistants.get_schemas": [lambda s: s.client.assistants.get_schemas(s.assistant)],
    "assistants.get_subgraphs": [
        lambda s: s.client.assistants.get_subgraphs(s.assistant, recurse=True),
    ],
    "assistants.get_versions": [lambda s: s.client.assistants.get_versions(s.assistant, metadata={}, **PAGE)],
    "assistants.search": [
        lambda s: s.client.assistants.search(metadata={}, graph_id="flow", name="mine", select=["name"], **SORTED),
        lambda s: s.client.assistants.search(response_format="object")["assistants"],
    ],
    "assistants.set_latest": [lambda s: s.client.assistants.set_latest(s.assistant, 1)],
    "assistants.update": [
        lambda s: s.client.assistants.update(
            s.assistant, graph_id="flow", config={}, context={}, metadata={"m": 2}, name="n", description="d"
        )
    ],
    "threads.copy": [
        lambda s: s.client.threads.copy(s.thread),
        lambda s: s.client.threads.copy(s.client.threads.create()["thread_id"]),
    ],
    "threads.count": [lambda s: s.client.threads.count(metadata={"m": 1}, values={}, status="idle")],
    "threads.create": [
        lambda s: s.client.threads.create(metadata={}, thread_id="t", if_exists="raise", graph_id="flow", ttl=5),
        lambda s: s.client.threads.create(
            graph_id="flow", supersteps=[{"updates": [{"values": {"log": ["x"]}, "as_node": "__input__"}]}]
        ),
    ],
    "threads.delete": [lambda s: s.client.threads.delete(s.thread)],
    "threads.get": [lambda s: s.client.threads.get(s.thread)],
    "threads.get_history": [
        lambda s: s.client.threads.get_history(s.thread, limit=1, before=s.at, metadata={}, checkpoint=s.at),
        lambda s: s.client.threads.get_history(s.thread, select=["next"]),
    ],
    "threads.get_state": [
        lambda s: s.client.threads.get_state(s.thread, subgraphs=True),
        lambda s: s.client.threads.get_state(s.thread, checkpoint=s.at, select=["values.log"]),
        lambda s: s.client.threads.get_state(s.thread, checkpoint_id=s.at["checkpoint_id"]),
    ],
    "threads.stream": [lambda s: use(s.client.threads.stream(s.thread, assistant_id="flow"))],
    "threads.join_stream": [
        lambda s: next(s.client.threads.join_stream(s.thread, last_event_id="-1")),
        lambda s: next(s.client.threads.join_stream(s.thread, last_event_id="-1", stream_mode=["state_update"])),
    ],
    "threads.prune": [lambda s: s.client.threads.prune([s.thread], strategy="keep_latest")],
    "threads.search": [
        lambda s: s.client.threads.search(
            metadata={"m": 1}, values={}, ids=[s.thread], status="idle", select=["thread_id"],
            extract={"last": "values.log[-1]"}, **SORTED,
        )
    ],
    "threads.update": [
        lambda s: s.client.threads.update(s.thread, metadata={"n": 1}),
        lambda s: s.client.threads.update(s.thread, metadata={"n": 1}, return_minimal=True),
        lambda s: s.client.threads.update(s.thread, metadata={}, ttl=5),
    ],
    "threads.update_state": [
        lambda s: s.client.threads.update_state(s.thread, {"log": ["y"]}, as_node="b", checkpoint=s.at),
        lambda s: s.client.threads.update_state(s.thread, None, checkpoint_id=s.at["checkpoint_id"]),
    ],
    "runs.cancel": [lambda s: s.client.runs.cancel(s.thread, s.run, wait=True, action="interrupt")],
    "runs.cancel_many": [
        lambda s: s.client.runs.cancel_many(thread_id=s.thread, run_ids=[s.run], action="interrupt"),
        lambda s: s.client.runs.cancel_many(status="all"),
    ],
    "runs.create": [
        lambda s: s.client.runs.create(s.thread, "flow", **RUN, **STREAM, checkpoint=s.at),
        lambda s: s.client.runs.create(s.thread, "flow", command={"goto": "b"}),
        lambda s: s.client.runs.create(s.thread, "flow", checkpoint_id=s.at["checkpoint_id"]),
        lambda s: s.client.runs.create(None, "flow", input=EMPTY, on_completion="keep"),
        lambda s: s.client.runs.create(s.thread, "flow", after_seconds=9),
    ],
    "runs.create_batch": [lambda s: s.client.runs.create_batch([{"assistant_id": "flow"}])],
    "runs.delete": [lambda s: s.client.runs.delete(s.thread, s.run)],
    "runs.get": [lambda s: s.client.runs.get(s.thread, s.run)],
    "runs.join": [lambda s: s.client.runs.join(s.thread, s.run)],
    "runs.join_stream": [
        lambda s: [*s.client.runs.join_stream(s.thread, s.run, stream_mode="values", last_event_id="-1")],
        lambda s: [*s.client.runs.join_stream(s.thread, s.run, cancel_on_disconnect=True)],
    ],
    "runs.list": [lambda s: s.client.runs.list(s.thread, status="success", select=["run_id"], **PAGE)],
    "runs.stream": [
        lambda s: [*s.client.runs.stream(s.thread, "flow", **RUN, **STREAM, on_disconnect="cancel", checkpoint=s.at)],
        lambda s: [*s.client.runs.stream(s.thread, "flow", command={"goto": "b"}, version="v2")],
        lambda s: [*s.client.runs.stream(None, "flow", input=EMPTY, on_completion="delete")],
    ],
    "runs.wait": [
        lambda s: s.client.runs.wait(s.thread, "flow", **RUN, checkpoint=s.at, on_disconnect="continue"),
        lambda s: s.client.runs.wait(s.thread, "flow", command={"goto": "b"}, raise_error=False),
        lambda s: s.client.runs.wait(None, "flow", input=EMPTY, on_completion="delete"),
    ],
    "crons.count": [lambda s: s.client.crons.count(assistant_id="flow", thread_id=s.thread, metadata={})],
    "crons.create": [
        lambda s: s.client.crons.create(
            "flow", schedule="0 7 * * *", end_time=FUTURE, enabled=False, timezone="UTC", on_run_completed="keep",
            multitask_strategy="enqueue", **BODY, **STOPS, **STREAM,
        )
    ],
    "crons.create_for_thread": [
        lambda s: s.client.crons.create_for_thread(
            s.thread, "flow", schedule="0 7 * * *", end_time=FUTURE, enabled=True, timezone="UTC",
            multitask_strategy="enqueue", **BODY, **STOPS, **STREAM,
        )
    ],
    "crons.delete": [lambda s: s.client.crons.delete(s.cron)],
    "crons.search": [
        lambda s: s.client.crons.search(
            assistant_id=None, thread_id=None, enabled=True, metadata={}, select=["cron_id"], **SORTED
        )
    ],
    "crons.update": [
        lambda s: s.client.crons.update(
            s.cron, schedule="0 8 * * *", end_time=FUTURE, enabled=True, timezone="UTC", on_run_completed="keep",
            **BODY, **STOPS, **STREAM,
        )
    ],
    "store.delete_item": [lambda s: s.client.store.delete_item(["notes"], "k")],
    "store.get_item": [lambda s: s.client.store.get_item(["notes"], "k", refresh_ttl=True)],
    "store.list_namespaces": [
        lambda s: s.client.store.list_namespaces(prefix=["notes"], suffix=["notes"], max_depth=1, **PAGE)
    ],
    "store.put_item": [lambda s: s.client.store.put_item(["notes"], "k", {"a": 2}, index=False, ttl=60)],
    "store.search_items": [
        lambda s: s.client.store.search_items(["notes"], filter={"a": 1}, refresh_ttl=False, **PAGE)
    ],
}  # fmt: skip

REFUSED = {
    "runs.create webhook": (lambda s: s.client.runs.create(s.thread, "flow", webhook="http://x"), "webhook"),
    "crons.create webhook": (lambda s: s.client.crons.create("flow", schedule="* * * * *", webhook="x"), "webhook"),
    "crons.update webhook": (lambda s: s.client.crons.update(s.cron, webhook="http://x"), "webhook"),
    "runs.create modes": (lambda s: s.client.runs.create(s.thread, "flow", stream_mode="nope"), "stream mode"),
    "assistants.delete delete_threads": (
        lambda s: s.client.assistants.delete(s.assistant, delete_threads=True),
        "delete_threads",
    ),
}
"""What is refused, and the word that the guide says it with."""


def use(stream):
    with stream as session:
        session.run.start(input=EMPTY)


@pytest.mark.parametrize("method", WORKS)
def test_it_works(scene, method):
    for call in WORKS[method]:
        call(scene)


@pytest.mark.parametrize("method", REFUSED)
def test_it_is_refused_with_a_sentence_that_the_guide_has(scene, method):
    call, word = REFUSED[method]
    with pytest.raises(Exception) as refused:
        call(scene)
    said = str(refused.value) + getattr(getattr(refused.value, "response", None), "text", "")
    assert "not offered" in said or "not found" in said.lower(), said
    assert word in GUIDE.partition("## What is not offered")[2]


def test_each_method_of_the_client_is_tested():
    client = get_client(url="http://localhost")
    found = {
        f"{name}.{method}"
        for name in ("assistants", "threads", "runs", "crons", "store")
        for method, _ in inspect.getmembers(getattr(client, name), callable)
        if not method.startswith("_")
    }
    assert found == {*WORKS} | {name for name in REFUSED if " " not in name}
