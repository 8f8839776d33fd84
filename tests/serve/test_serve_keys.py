"""A server with keys: what users and nodes say stands nowhere in clear, but for what docs/explanation/security.md names."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from canaries import CLEAR, HIDDEN, HOOK, make_teller, session, texts_of
from in_process import OwnStore, YieldingStore, asking
from langgraph_sdk import get_sync_client
from serving import DATABASES, KEY, RUN, flow_app, opened, serving

from stategraph.checkpoint import DamagedError, StorageError
from stategraph.checkpoint.encryption import Encryption
from stategraph.serve import create_app
from stategraph.serve.records import Records, Seals
from stategraph.store import InMemoryStore

OLD = bytes(32)

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


async def test_a_server_with_keys_refuses_records_that_are_not_encrypted():
    store = InMemoryStore()
    async with asking(flow_app(store=store)):
        pass
    with pytest.raises(StorageError, match="records here are not encrypted: start it without keys"):
        async with asking(flow_app(store=store, integrity=Encryption(KEY))):
            pass
    async with asking(flow_app(store=store)):
        pass


async def test_servers_with_keys_may_open_a_new_database_at_once():
    seals, store = Seals(Encryption(KEY)), InMemoryStore()

    async def store_a_record_of_another_server():
        space = ("stategraph_serve", "runs")
        await store.aput(space, "run", seals.close(space, "run", {"metadata": {}}), False)

    await seals.check(store, "stategraph_serve", store_a_record_of_another_server)


@pytest.mark.parametrize("kind", DATABASES)
def test_a_server_with_other_keys_than_its_database_does_not_start(kind, tmp_path, postgres):
    place = tmp_path / "served.db" if kind.startswith("sqlite") else postgres

    def wait(kind, *keys: bytes):
        with opened(kind, place, *keys) as options:
            app = flow_app(**options)

            async def ask():
                async with asking(app) as client:
                    body = {**RUN, "if_not_exists": "create"}
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

    async def serve(*keys: bytes):
        app = flow_app(store=store, integrity=Encryption(*keys))
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
