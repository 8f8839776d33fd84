"""A server with keys: what users and nodes say stands nowhere in clear, but for what docs/explanation/security.md names."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from in_process import OwnStore, YieldingStore, asking
from kit import cluster
from kit.fleet import until
from kit.graphs import chain_of
from langgraph_sdk import get_sync_client
from serving import DATABASES, KEY, Gates, Log, make_flow, opened, serving

from stategraph import get_stream_writer, interrupt
from stategraph.checkpoint import DamagedError, StorageError
from stategraph.checkpoint.encryption import Encryption
from stategraph.serve import create_app
from stategraph.serve.records import Records
from stategraph.store import InMemoryStore

OLD = bytes(32)
HOOK = "http://127.0.0.1:9/hooks"
"""No server listens there, so deliveries stay in the database."""


def make_teller(words: dict[str, str]) -> Any:
    """a → b: a sends to the stream and writes; b asks, and fails if the answer is no."""
    def a(state: Log) -> Log:
        get_stream_writer()({"custom": words["custom"]})
        return {"log": [words["written"]]}

    async def b(state: Log) -> Log:
        answer = interrupt({"question": words["question"]})
        if answer == "no":
            raise ValueError(words["error"])
        return {"log": [answer]}

    return chain_of(Log, a=a, b=b).compile(name="teller")


HIDDEN = (
    "input", "custom", "written", "question", "answer", "error", "edit", "api_key", "context", "run_metadata",
    "config_metadata", "assistant_config", "assistant_context", "cron_input", "cron_config", "webhook_token",
)  # fmt: skip
CLEAR = ("thread_metadata", "assistant_metadata", "assistant_name", "assistant_description", "cron_metadata", "item")


def session(client: Any, words: dict[str, str], hook: str) -> None:
    """Says each of the words where it belongs."""
    mine = client.assistants.create(
        "teller",
        config={"configurable": {"key": words["assistant_config"]}},
        context={"key": words["assistant_context"]},
        metadata={"m": words["assistant_metadata"]},
        name=words["assistant_name"],
        description=words["assistant_description"],
    )["assistant_id"]
    thread = client.threads.create(metadata={"m": words["thread_metadata"]})["thread_id"]
    asked: dict[str, Any] = {
        "config": {"configurable": {"api_key": words["api_key"]}, "metadata": {"c": words["config_metadata"]}},
        "context": {"key": words["context"]},
        "metadata": {"m": words["run_metadata"]},
        "webhook": f"{hook}?token={words['webhook_token']}",
    }
    modes = ["updates", "custom", "values"]
    told = [*client.runs.stream(thread, mine, input={"log": [words["input"]]}, stream_mode=modes, **asked)]
    assert words["custom"] in str(told) and words["written"] in str(told)
    client.runs.wait(thread, mine, command={"resume": words["answer"]}, **asked)
    before = next(each for each in client.threads.get_history(thread) if each["next"] == ["b"])
    client.runs.wait(thread, mine, input=None, checkpoint=before["checkpoint"])
    failed = client.runs.create(thread, mine, command={"resume": "no"}, **asked)
    error = until(lambda: client.threads.get(thread)["error"])
    assert error["message"] == words["error"] and client.runs.get(thread, failed["run_id"])["status"] == "error"
    client.threads.update_state(thread, {"log": [words["edit"]]}, as_node="a")
    client.crons.create(
        "teller",
        schedule="0 0 1 1 *",
        input={"log": [words["cron_input"]]},
        config={"configurable": {"api_key": words["cron_config"]}},
        metadata={"m": words["cron_metadata"]},
    )
    client.store.put_item(["notes"], "k", {"text": words["item"]})
    [found] = client.threads.search(metadata={"m": words["thread_metadata"]})
    assert found["thread_id"] == thread and found["error"]["message"] == words["error"]
    runs = client.runs.list(thread)
    assert {run["metadata"]["m"] for run in runs if run["kwargs"]["webhook"]} == {words["run_metadata"]}
    assert not any("sealed" in each for each in (found, *runs, client.assistants.get(mine), *client.crons.search()))


def rows_of(place: Path) -> Iterator[bytes]:
    """Each value of each table of an SQLite file."""
    with closing(sqlite3.connect(place)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in db.execute(f'SELECT * FROM "{name}"'):
                yield from (each if isinstance(each, bytes) else str(each).encode() for each in row)


def tables_of(conninfo: str) -> Iterator[bytes]:
    """Each value of each table of a schema of Postgres."""
    with psycopg.connect(conninfo, autocommit=True) as admin:
        admin.execute("CHECKPOINT")
        names = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        for (name,) in admin.execute(names).fetchall():
            for row in admin.execute(f"SELECT * FROM {name}"):  # type: ignore[arg-type]
                yield from (each if isinstance(each, bytes) else str(each).encode() for each in row)


def texts_of(kind: str, place: Path, conninfo: str) -> Iterator[bytes]:
    """All that a database holds: each row of each table, and its files."""
    if kind.startswith("sqlite"):
        yield from rows_of(place)
        files: Iterable[Path] = place.parent.iterdir()
    else:
        yield from tables_of(conninfo)
        files = (cluster.shared().folder / "data").rglob("*")
    for file in files:
        if file.is_file():
            try:
                yield file.read_bytes()
            except PermissionError:
                continue


@pytest.mark.parametrize("kind", DATABASES)
def test_with_keys_no_text_of_users_or_nodes_is_stored_in_plaintext(kind, tmp_path, postgres):
    words = {name: f"canary{uuid4().hex}" for name in (*HIDDEN, *CLEAR)}
    place = tmp_path / "served.db"
    with opened(kind, place if kind.startswith("sqlite") else postgres) as options:
        app = create_app({"teller": make_teller(words)}, webhooks=[HOOK], **options)
        with serving(app) as url, get_sync_client(url=url) as client:
            session(client, words, HOOK)
            stored = b"\0".join(texts_of(kind, place, postgres))
    stored += b"\0".join(texts_of(kind, place, postgres))
    shown = {name for name, word in words.items() if word.encode() in stored}
    if kind.endswith("keys"):
        assert shown == {*CLEAR}
    else:
        assert shown | {"custom"} == {*HIDDEN, *CLEAR}  # a server without workers keeps streams in memory


@pytest.mark.parametrize("kind", [each for each in DATABASES if each.endswith("keys")])
def test_records_of_a_release_that_did_not_encrypt_them_are_read_and_encrypted(kind, tmp_path, postgres, monkeypatch):
    words = {name: f"canary{uuid4().hex}" for name in (*HIDDEN, *CLEAR)}
    place = tmp_path / "served.db"
    db = place if kind.startswith("sqlite") else postgres

    def read(client: Any) -> Any:
        threads = client.threads.search(limit=100)
        runs = [client.runs.list(each["thread_id"]) for each in threads]
        mine = client.assistants.search(limit=100)
        return threads, runs, mine, [client.assistants.get_versions(each["assistant_id"]) for each in mine], client.crons.search()

    with monkeypatch.context() as earlier, opened(kind, db) as options:
        earlier.setattr("stategraph.serve.app.Records", lambda store, integrity: Records(store))
        app = create_app({"teller": make_teller(words)}, **options, webhooks=[HOOK])
        with serving(app) as url, get_sync_client(url=url) as client:
            for _ in range(5):
                client.threads.create()
            session(client, words, HOOK)
            before = read(client)
    for _ in range(2):
        with opened(kind, db) as options:
            app = create_app({"teller": make_teller(words)}, **options)
            with serving(app) as url, get_sync_client(url=url) as client:
                assert read(client) == before
        rows = b"".join(rows_of(place) if kind.startswith("sqlite") else tables_of(postgres))
        assert {name for name, word in words.items() if word.encode() in rows} == {*CLEAR}


@pytest.mark.parametrize("kind", DATABASES)
def test_a_server_with_other_keys_than_its_database_does_not_start(kind, tmp_path, postgres):
    place = tmp_path / "served.db" if kind.startswith("sqlite") else postgres

    def wait(kind: str, *keys: bytes) -> Any:
        with opened(kind, place, *keys) as options:
            app = create_app({"flow": make_flow(Gates())}, **options)

            async def ask() -> Any:
                async with asking(app) as client:
                    body = {"assistant_id": "flow", "input": {"log": []}, "if_not_exists": "create"}
                    return (await client.post("/threads/t/runs/wait", json=body)).json()["log"]

            return asyncio.run(ask())

    assert wait(kind) == ["a", "b"]
    with pytest.raises(StorageError, match=r"--keys FILE" if kind.endswith("keys") else "threads in this database"):
        wait(kind.removesuffix(" with keys") if kind.endswith("keys") else f"{kind} with keys")
    if kind.endswith("keys"):
        with pytest.raises(StorageError, match="encrypted with another key"):
            wait(kind, OLD)
    assert wait(kind, KEY) == ["a", "b"] * 2  # nothing was changed


@pytest.mark.parametrize("make_store", [YieldingStore, OwnStore])
async def test_records_are_changed_while_keys_are_rotated(make_store):
    store = make_store()

    async def serve(*keys: bytes) -> None:
        app = create_app({"flow": make_flow(Gates())}, store=store, integrity=Encryption(*keys))
        async with asking(app) as client:
            body = {"assistant_id": "flow", "input": {"log": [], "topic": "fail"}, "if_not_exists": "create"}
            for _ in range(2):
                await client.post("/threads/t/runs/wait", json=body)
            thread = (await client.patch("/threads/t", json={"metadata": {"m": len(keys)}})).json()
            assert thread["error"]["message"] == "boom" and thread["metadata"]["m"] == len(keys)
            made = await client.put("/store/items", json={"namespace": ["n"], "key": "k", "value": {}})
            assert made.status_code == 204

    await serve(OLD)
    await serve(OLD, KEY)
    await serve(KEY, OLD)
    assert (await Records(store, Encryption(KEY)).get("threads", "t"))["error"]["message"] == "boom"


async def test_a_seal_opens_in_its_own_record_only():
    store = InMemoryStore()
    records = Records(store, Encryption(KEY))
    for id in ("r", "s"):
        await records.put(("runs", id, {"kwargs": {"input": id}, "status": "pending"}, "t"))
    space = ("stategraph_serve", "runs", "t")
    item = await store.aget(space, "r")
    assert item is not None
    await store.aput(space, "s", item.value)
    with pytest.raises(DamagedError, match="the record 's' of the server's runs: it cannot be decrypted"):
        await records.find("runs", "s", "t")
    await store.aput(space, "s", {"kwargs": {"input": "forged"}, "status": "pending"})
    with pytest.raises(DamagedError, match="it is not encrypted, though the server has keys"):
        await records.find("runs", "s", "t")
    assert await records.find("runs", "r", "t") is not None
