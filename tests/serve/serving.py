"""A server on loopback for tests: a real one, in a thread of its own, spoken to by the official client."""

from __future__ import annotations

import asyncio
import operator
import threading
from contextlib import ExitStack, contextmanager
from typing import Annotated

import uvicorn
from kit.cluster import free_port
from kit.graphs import graph_of
from typing_extensions import TypedDict

from stategraph import get_stream_writer, interrupt
from stategraph.checkpoint.encryption import Encryption
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.serve import create_app
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

DATABASES = ("sqlite", "sqlite with keys", "postgres", "postgres with keys")
KEY = bytes(range(32))


@contextmanager
def opened(kind, place, *keys):
    """The arguments of `create_app` for one of the `DATABASES`, as the command line gives them."""
    integrity = Encryption(*(keys or [KEY])) if kind.endswith("keys") else None
    with ExitStack() as stack:
        if kind.startswith("sqlite"):
            saver = stack.enter_context(SqliteSaver.from_conn_string(str(place), integrity=integrity))
            store = stack.enter_context(SqliteStore.from_conn_string(str(place), saver=saver))
            yield {"checkpointer": saver, "store": store, "integrity": integrity}
        else:
            saver = stack.enter_context(PostgresSaver.from_conn_string(str(place), integrity=integrity))
            store = stack.enter_context(PostgresStore.from_conn_string(str(place)))
            yield {"checkpointer": saver, "store": store, "integrity": integrity, "queue": place}


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    topic: str


class Gates:
    """What nodes wait for, by topic, so that a test decides when a run goes on."""

    def __init__(self):
        self._gates = {}
        self.reached = {}
        self._passing = {}

    def close(self, topic):
        self._gates[topic], self.reached[topic] = threading.Event(), threading.Event()

    def open(self, topic):
        self._gates[topic].set()

    async def are_reached(self, topic, number):
        """Wait until so many nodes are at a gate."""
        while self._passing.get(topic, 0) < number:
            await asyncio.sleep(0.005)

    async def pass_through(self, topic):
        if topic in self._gates:
            self._passing[topic] = self._passing.get(topic, 0) + 1
            self.reached[topic].set()
            while not self._gates[topic].is_set():
                await asyncio.sleep(0.005)


def make_flow(gates, name="flow"):
    """a → b: b asks, fails or waits, as the topic says."""

    def a(state):
        get_stream_writer()({"from": "a"})
        return {"log": ["a"]}

    async def b(state):
        topic = state.get("topic", "")
        await gates.pass_through(topic)
        if topic == "ask":
            return {"log": [interrupt({"question": "name?"})]}
        if topic == "fail":
            raise ValueError("boom")
        return {"log": ["b"]}

    graph = graph_of(Log, "S>a>b>E", a=a, b=b)
    return graph.compile(name=name)


RUN = {"assistant_id": "flow", "input": {"log": []}}


def new_thread(client):
    return str(client.threads.create()["thread_id"])


def flow_app(gates=None, **options):
    """The app that serves `make_flow`, by the name flow."""
    return create_app({"flow": make_flow(gates or Gates())}, **options)


@contextmanager
def serving(app):
    """The address of an ASGI app on loopback, for the length of a `with` block."""
    port = free_port()
    config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="stategraph-test-server", daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        threading.Event().wait(0.005)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


LONG_AGO = "2026-01-01T07:00:00+00:00"
