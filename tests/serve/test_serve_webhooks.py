"""Webhooks: the end of a run is sent to addresses that the operator has allowed, and to no others."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress

import httpx
import pytest
from in_process import asking, new_thread
from kit.cluster import as_url, free_port
from kit.fleet import until
from kit.graphs import chain_of
from receiver import Receiver
from receiver import receiver as receiver
from served_processes import process
from serving import Log, flow_app

from stategraph.serve import create_app, webhooks
from stategraph.serve.webhooks import Allowed
from stategraph.store import InMemoryStore


def app_of(receiver: Receiver, store=None):
    return flow_app(webhooks=[receiver.place], store=store)


async def run(client, url, **options):
    """A run that has ended, once it is known what became of its webhook."""
    thread = await new_thread(client)
    body = {"assistant_id": "flow", "input": {"log": ["x"]}, "webhook": url, **options}
    answered = await client.post(f"/threads/{thread}/runs", json=body)
    assert answered.status_code == 200, answered.text
    place = f"/threads/{thread}/runs/{answered.json()['run_id']}"
    while "webhook" not in (found := (await client.get(place)).json()):
        await asyncio.sleep(0.01)
    return found


async def test_the_end_of_a_run_is_sent_with_its_values(receiver):
    async with asking(app_of(receiver)) as client:
        ended = await run(client, f"{receiver.place}/done?token=t")
    [(path, sent)] = receiver.got
    assert path == "/hooks/done?token=t" and sent.pop("webhook_sent_at")
    assert (sent["status"], sent["error"], sent["values"]) == ("success", None, {"log": ["x", "a", "b"]})
    assert sent["run_id"] == ended["run_id"] and sent["kwargs"]["input"] == {"log": ["x"]} and "owner" not in sent
    assert ended["webhook"] == {"status": "delivered", "tries": 1}


async def test_a_state_that_cannot_be_encoded_is_sent_in_part(receiver):
    def node(state):
        return {"log": [10**400, "\ud800"]}  # type: ignore[list-item]

    graph = chain_of(Log, node=node).compile(name="flow")
    async with asking(create_app({"flow": graph}, webhooks=[receiver.place])) as client:
        assert (await run(client, receiver.place))["status"] == "success"
    [(_, sent)] = receiver.got
    assert sent["values"] == {"log": ["x", 10**400, "?"]}


async def test_a_failed_run_is_sent_with_its_error(receiver):
    async with asking(app_of(receiver)) as client:
        await run(client, receiver.place, input={"topic": "fail"})
    [(_, sent)] = receiver.got
    told = (sent["status"], sent["error"], sent["values"])
    assert told == ("error", {"error": "ValueError", "message": "boom"}, None)


@pytest.mark.parametrize(
    ("statuses", "became"),
    [
        ([500, 503], {"status": "delivered", "tries": 3}),
        ([500, 500, 500], {"status": "failed", "tries": 3, "error": "it answered 500"}),
        ([404], {"status": "failed", "tries": 1, "error": "it answered 404"}),
        ([302], {"status": "failed", "tries": 1, "error": "it answered 302"}),
    ],
)
async def test_a_failure_is_tried_again_and_noted_on_the_run(receiver, statuses, became):
    receiver.statuses = statuses[:]
    async with asking(app_of(receiver)) as client:
        assert (await run(client, receiver.place))["webhook"] == became
    assert [path for path, _ in receiver.got] == ["/hooks"] * became["tries"]  # never where it was sent to


async def test_what_is_written_while_the_same_run_is_sent_is_sent_as_well(receiver, monkeypatch):
    """As when a run that was parked ends meanwhile."""
    store, post, is_first = InMemoryStore(), webhooks._post, [True]

    def write_and_post(address, body):
        if is_first and is_first.pop():
            [item] = store.search(("stategraph_serve", "webhooks"))
            told = {**item.value["told"], "status": "newer"}
            store.put(item.namespace, item.key, {**item.value, "told": told, "tries": 0, "next_at": webhooks.now()})
        return post(address, body)

    monkeypatch.setattr(webhooks, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(webhooks, "_post", write_and_post)
    async with asking(app_of(receiver, store)) as client:
        body = {"assistant_id": "flow", "input": {"log": []}, "webhook": receiver.place}
        await client.post("/runs/wait", json=body)
        while store.search(("stategraph_serve", "webhooks")):
            await asyncio.sleep(0.01)
    sent = [each["status"] for _, each in receiver.got]
    assert sent in (["success", "newer"], ["newer", "success"])


class ForgetfulStore(InMemoryStore):
    forgets = False

    async def aget(self, namespace, key, **options):
        found = await super().aget(namespace, key, **options)
        if self.forgets and namespace[1] == "runs":
            self.forgets = False
            await self.adelete(namespace, key)
        return found


async def test_a_run_that_is_deleted_while_its_end_is_sent_stays_deleted(receiver, monkeypatch):
    store, post = ForgetfulStore(), webhooks._post

    async def post_and_forget(address, body):
        status = await post(address, body)
        store.forgets = True
        return status

    monkeypatch.setattr(webhooks, "_post", post_and_forget)
    async with asking(app_of(receiver, store)) as client:
        thread = await new_thread(client)
        body = {"assistant_id": "flow", "input": {"log": []}, "webhook": receiver.place}
        await client.post(f"/threads/{thread}/runs/wait", json=body)
        while store.search(("stategraph_serve", "webhooks")):
            await asyncio.sleep(0.01)
    assert len(receiver.got) == 1 and not store.search(("stategraph_serve", "runs"))


async def test_what_is_no_url_for_the_client_is_given_up_at_once(receiver):
    async with asking(app_of(receiver)) as client:
        told = (await run(client, f"{receiver.place}/{'x' * 70_000}"))["webhook"]
    assert told["status"] == "failed" and told["tries"] == 1 and "InvalidURL" in told["error"]


async def never(_):
    await asyncio.sleep(60)
    return 0


class CountingStore(InMemoryStore):
    looks = 0

    async def asearch(self, namespace, *args, **options):
        self.looks += namespace[-1] == "webhooks"
        return await super().asearch(namespace, *args, **options)


async def test_a_server_polls_often_only_if_webhooks_are_due(receiver, monkeypatch):
    monkeypatch.setattr(webhooks, "SECONDS_BETWEEN_LOOKS", 60)
    store = CountingStore()
    async with asking(app_of(receiver, store)) as client:
        await asyncio.sleep(0.05)
        assert store.looks == 1
        body = {"assistant_id": "flow", "input": {"log": []}, "webhook": receiver.place}
        await client.post("/runs/wait", json=body)
        while store.search(("stategraph_serve", "webhooks")):
            await asyncio.sleep(0.01)
    assert len(receiver.got) == 1 and store.looks <= 4


def test_the_next_server_sends_what_one_has_left(receiver, monkeypatch):
    store = InMemoryStore()

    async def leave():
        monkeypatch.setattr(webhooks.Webhooks, "_send_due", never)  # it is stopped before it has sent
        async with asking(app_of(receiver, store)) as client:
            body = {"assistant_id": "flow", "input": {"log": []}, "webhook": receiver.place}
            await client.post("/runs/wait", json=body)

    async def send():
        monkeypatch.undo()
        async with asking(app_of(receiver, store)):
            while not receiver.got or store.search(("stategraph_serve", "webhooks")):
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(leave(), 20))
    assert receiver.got == []
    asyncio.run(asyncio.wait_for(send(), 20))
    assert [sent["values"]["log"] for _, sent in receiver.got] == [["a", "b"]]


class Dripping(threading.Thread):
    """A receiver that sends the head of an interim answer, a byte at a time, for as long as anybody reads."""

    def __init__(self):
        super().__init__(daemon=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.place = f"http://127.0.0.1:{self._listening.getsockname()[1]}/hooks"
        self.reached, self.left = threading.Event(), threading.Event()

    def run(self):
        while True:
            connection, _ = self._listening.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 100 Continue\r\nX: ")
                self.reached.set()
                while True:
                    connection.sendall(b"a")
                    time.sleep(0.01)
            self.left.set()


async def test_a_receiver_that_drips_is_given_up(receiver, monkeypatch):
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.2)
    dripping = Dripping()
    dripping.start()
    async with asking(flow_app(webhooks=[dripping.place])) as client:
        became = (await run(client, dripping.place))["webhook"]
    assert became == {"status": "failed", "tries": 3, "error": "it took longer than 0.2 s"}


async def test_a_silent_receiver_delays_no_other(receiver):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"http://127.0.0.1:{silent.getsockname()[1]}/hooks"
        async with asking(flow_app(webhooks=[place, receiver.place])) as client:
            for _ in range(4 * webhooks.MOST_AT_ONCE):
                body = {"assistant_id": "flow", "input": {"log": []}, "webhook": place}
                await client.post("/runs/wait", json=body)
            async with asyncio.timeout(webhooks.TIMEOUT / 2):
                told = await run(client, receiver.place)
    assert told["webhook"] == {"status": "delivered", "tries": 1}


def test_a_delivery_does_not_outlive_the_server():
    dripping = Dripping()
    dripping.start()

    async def ask():
        async with asking(flow_app(webhooks=[dripping.place])) as client:
            body = {"assistant_id": "flow", "input": {"log": []}, "webhook": dripping.place}
            await client.post("/runs/wait", json=body)
            await asyncio.to_thread(dripping.reached.wait, 10)

    asyncio.run(asyncio.wait_for(ask(), 20))
    assert dripping.left.wait(10)


async def test_an_answer_is_read_as_http_has_it(monkeypatch):
    answers = {
        b"HTTP/1.1 204\r\n\r\n": 204,
        b"HTTP/1.0 200 OK\n\n": 200,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 503 No\r\n\r\n": 503,
        b"": None,
        b"HTTP/1.1 200": None,
        b"HTTP/1.1 100 Continue\r\n": None,
        b"SSH-2.0-x\r\n": None,
        b"HTTP/1.1 2000 OK\r\n": None,
        b"\r\n": None,
        b"x" * 100_000: None,
    }
    heads, given = [], [b""]
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        heads.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2))
        writer.write(given[0])
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x?y=z"
        for given[0], expected in answers.items():
            if expected:
                assert await webhooks._post(address, b"{}") == expected
            else:
                with pytest.raises(httpx.HTTPError):
                    await webhooks._post(address, b"{}")
    first, *lines = heads[0].decode().split("\r\n")
    assert first == "POST /x?y=z HTTP/1.1" and lines[-2:] == ["", "{}"] and "Content-Length: 2" in lines


@pytest.mark.trial
def test_a_receiver_with_tls_has_to_be_known(tmp_path, receiver, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *named], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
    address = f"https://127.0.0.1:{receiver.server_port}/hooks"
    for written in (address, address.replace("https", "HTTPS")):
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            asyncio.run(webhooks._post(written, b"{}"))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert asyncio.run(webhooks._post(address, b'{"run": 1}')) == 200
    assert receiver.got == [("/hooks", {"run": 1})]


OFFERED = Allowed(["https://hooks.example/run", "http://127.0.0.1:8000/"])


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/run",
        "https://hooks.example/run/",
        "https://hooks.example:443/run/x?token=t",
        "HTTPS://HOOKS.example/run/x",
        "http://127.0.0.1:8000/any/thing",
    ],
)
def test_an_address_below_an_allowed_one_is_allowed(url):
    OFFERED.check(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example@evil.example/run",
        "https://user:word@hooks.example/run",
        "https://evil.example\\@hooks.example/run",
        "https://hooks.example\\.evil.example/run",
        "https://hooks.example.evil.example/run",
        "https://evil.example/https://hooks.example/run",
        "https://evil.example#@hooks.example/run",
        "https://hooks.example/run#x",
        "http://hooks.example/run",
        "https://hooks.example:8443/run",
        "https://hooks.example:99999/run",
        "https://hooks.example:x/run",
        "https://hooks.example./run",
        "https://hooks.example/RUN",
        "https://hooks.example/running",
        "https://hooks.example/",
        "https://hooks.example/run/../admin",
        "https://hooks.example/run/%2e%2e/admin",
        "https://hooks.example/run/..%2fadmin",
        "https://hooks.example/run//x",
        "https://hooks.example/run?a b",
        "https://hooks.example/run\r\nX: y",
        "https://hooks.example\t/run",
        "https://h\u00f6oks.example/run",
        "https://hooks\u3002example/run",
        "https://\uff48ooks.example/run",
        "http://127.1:8000/",
        "http://2130706433:8000/",
        "http://[::ffff:127.0.0.1]:8000/",
        "http://localhost:8000/",
        "http://127.0.0.1:8001/",
        "http://127.0.0.1/",
        "//hooks.example/run",
        "file:///etc/passwd",
        "gopher://hooks.example/run",
        "https:///run",
        "https://[::1/run",
        "x",
        "",
    ],
)
def test_any_other_address_is_refused(url):
    with pytest.raises(webhooks.Refused) as refused:
        OFFERED.check(url)
    assert refused.value.status == 422 and refused.value.detail.startswith("webhook: ")


@pytest.mark.parametrize("prefix", ["x", "ftp://a/", "https://u@a/", "https://a/?q", "https://a/../b", "https://\u00e4/"])
def test_a_prefix_that_is_no_plain_address_is_refused_at_the_start(prefix):
    with pytest.raises(ValueError, match="webhooks: must"):
        flow_app(webhooks=[prefix])


async def test_an_address_that_is_not_allowed_begins_no_run_and_no_schedule(receiver):
    async with asking(app_of(receiver)) as client:
        thread = await new_thread(client)
        body = {"assistant_id": "flow", "webhook": "http://169.254.169.254/", "schedule": "* * * * *"}
        for place in (f"/threads/{thread}/runs", "/runs", "/runs/wait", "/runs/stream", "/runs/crons"):
            answered = await client.post(place, json=body)
            assert answered.status_code == 422 and "does not allow" in answered.json()["detail"]
        assert (await client.get(f"/threads/{thread}/runs")).json() == []


@pytest.mark.trial
def test_the_end_of_a_run_of_a_fleet_is_sent(postgres, receiver, tmp_path):
    receiver.statuses = [503]
    port = free_port()
    body = {"assistant_id": "flow", "input": {"log": [], "pace": 0.01}, "webhook": receiver.place, "if_not_exists": "create"}
    with (
        process(tmp_path, as_url(postgres), port, "--webhooks", receiver.place),
        httpx.Client(timeout=20, base_url=f"http://127.0.0.1:{port}") as client,
    ):
        run = client.post("/threads/t/runs", json=body).json()
        told = until(lambda: client.get(f"/threads/t/runs/{run['run_id']}").json().get("webhook"))
        refused = client.post("/threads/t/runs", json=body | {"webhook": "http://127.0.0.1:9/hooks"})
    assert told == {"status": "delivered", "tries": 2}
    assert [sent["values"]["log"] for _, sent in receiver.got] == [["a", "b", "c", "d"]] * 2
    assert refused.status_code == 422 and "does not allow the address" in refused.text
