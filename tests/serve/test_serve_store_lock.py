"""Without a queue one server at a time serves a store: a second one is refused at its start, with a sentence."""

import asyncio
import signal
import subprocess

import pytest
from kit.cluster import free_port
from langgraph_sdk import get_sync_client
from served_processes import command, process
from serving import flow_app

from stategraph.checkpoint.errors import StorageError
from stategraph.store import InMemoryStore
from stategraph.store.sqlite import SqliteStore

TOLD = "another server already serves '.*served.db'; stop it first, or use Postgres with a queue"


async def serve_twice(one, other):
    apps = [flow_app(store=each) for each in (one, other)]
    async with apps[0].router.lifespan_context(apps[0]), apps[1].router.lifespan_context(apps[1]):
        pass


def test_a_second_server_on_a_store_in_memory_is_refused():
    store = InMemoryStore()
    with pytest.raises(StorageError, match="already serves this store; stop it first"):
        asyncio.run(serve_twice(store, store))
    asyncio.run(serve_twice(store, InMemoryStore()))  # the first one has let it go


def test_a_second_server_on_a_file_is_refused_also_under_another_name(tmp_path):
    place = str(tmp_path / "served.db")
    (tmp_path / "link").symlink_to(tmp_path)
    with SqliteStore.from_conn_string(place) as one:
        for name in (place, str(tmp_path / "link" / "served.db")):
            with (
                SqliteStore.from_conn_string(name) as other,
                pytest.raises(StorageError, match=TOLD),
            ):
                asyncio.run(serve_twice(one, other))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_second_process_is_refused_until_the_first_has_ended_however_it_ends(tmp_path, end):
    port = free_port()
    with process(tmp_path, "served.db", port) as first:
        second = subprocess.run(command("served.db", 0), cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert second.returncode == 2 and "Traceback" not in second.stderr
        assert "another server already serves" in second.stderr and "served.db" in second.stderr
        first.send_signal(end)
        first.wait(20)
    with process(tmp_path, "served.db", port), get_sync_client(url=f"http://127.0.0.1:{port}") as client:
        assert client.runs.wait(None, "flow", input={"log": []})["log"][0] == "a"
