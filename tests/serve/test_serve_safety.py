"""Denial of service and abuse: requests that try to take more of the server than they may."""

import asyncio
import difflib
import json
import random
import threading
import time

import pytest
from in_process import asking, new_thread, routes_of
from serving import RUN, Gates, flow_app, make_flow

from stategraph.checkpoint.errors import StorageError
from stategraph.serve import Limits, create_app, guards, service
from stategraph.serve.bodies import Body, RunBody
from stategraph.serve.events import PIECE_BYTES, EventLog, stream
from stategraph.store import GetOp, InMemoryStore, PutOp


@pytest.fixture
def gates():
    made = Gates()
    made.close("slow")
    return made


def app_of(**options):
    return flow_app(**options)


ROUTES = [*routes_of(app_of().routes)]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:2024"}, 200),
        ({"Host": "127.0.0.1:80"}, 200),
        ({"Host": "[::1]:2024"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Host": "localhost.evil.example:2024"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ],
)
async def test_pages_of_other_sites_reach_nothing(headers, status):
    async with asking(app_of()) as client:
        assert (await client.get("/info", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        (
            {"Host": "10.0.0.7:2118"},
            "this server does not answer under the name '10.0.0.7'; its operator can add the name by --name or hosts=",
        ),
        (
            {"Host": "localhost:2024", "Origin": "https://chat.example"},
            "requests from https://chat.example are not allowed: this is 'localhost:2024'; "
            "a proxy before the server must pass the Host header on, or its operator allows the origin by --origin or origins=",
        ),
    ],
)
async def test_a_refusal_says_the_way_out(headers, detail):
    async with asking(app_of()) as client:
        assert (await client.get("/info", headers=headers)).json()["detail"] == detail


@pytest.mark.parametrize("headers", [[(b"host", b"evil.example")], [(b"host", b"localhost"), (b"origin", b"http://x")]])
async def test_websockets_of_other_sites_are_closed(headers):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/info", "headers": headers}
    await app_of()(scope, None, send)  # type: ignore[arg-type]
    [closed] = sent
    assert closed["type"] == "websocket.close" and closed["code"] == 1008


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_what_a_form_can_send_is_no_request(kind):
    async with asking(app_of()) as client:
        answered = await client.post("/threads", content=b"{}", headers={"Content-Type": kind})
        assert answered.status_code == 415


async def test_a_user_has_so_many_open_requests_and_all_together_have_so_many(gates):
    app = create_app(
        {"flow": make_flow(gates)},
        auth=lambda request: request.headers.get("x-user"),
        hosts=None,
        limits=Limits(requests=3, requests_per_user=2),
    )
    run = {"assistant_id": "flow", "input": {"topic": "slow"}}
    async with asking(app) as client:

        def begin(user):
            return asyncio.create_task(client.post("/runs/wait", json=run, headers={"x-user": user}))

        async def status(user):
            return (await client.post("/threads/search", json={}, headers={"x-user": user})).status_code

        waits = [begin("ann"), begin("ann")]
        await gates.are_reached("slow", 2)
        assert (await status("ann"), await status("bob")) == (429, 200)
        waits.append(begin("bob"))
        await gates.are_reached("slow", 3)
        assert (await status("bob"), await status("eve")) == (429, 429)
        gates.open("slow")
        await asyncio.gather(*waits)
        assert [await status(user) for user in ("ann", "bob", "eve")] == [200] * 3


async def call(app, parts, path="/threads"):
    """What an app sends to a client that sends these messages and then nothing more."""
    sent = []

    async def receive():
        return parts.pop(0) if parts else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "scheme": "http",
        "root_path": "", "server": ("localhost", 80),
    }  # fmt: skip
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
    return sent


def test_a_body_that_never_arrives_times_out(monkeypatch):
    monkeypatch.setattr(service, "BODY_SECONDS", 0.01)
    begun = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent = asyncio.run(asyncio.wait_for(call(app_of(), begun), 20))
    assert sent[0]["status"] == 408


def test_a_client_that_disconnects_before_its_body_is_complete_is_no_server_error():
    begun = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    assert asyncio.run(call(app_of(), begun))[0]["status"] == 400


@pytest.mark.parametrize("id", ["", "x" * 256, "x" * 1_000_000, "a\nb", "a\x00b"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/threads", lambda id: {"thread_id": id}),
        ("/assistants", lambda id: {"graph_id": "flow", "assistant_id": id}),
    ],
    ids=["threads", "assistants"],
)
async def test_an_id_that_cannot_be_stored_is_refused(path, body, id):
    async with asking(app_of()) as client:
        answered = await client.post(path, json=body(id))
    if id:
        assert answered.status_code == 422 and len(answered.text) < 1000
    else:
        assert answered.status_code == 200  # as if none were named


FIELDS = sorted({name for kind in Body.__subclasses__() for name in kind.model_fields} | {*RunBody.model_fields})
LIKELY = {
    "assistant_id": "flow", "graph_id": "flow", "schedule": "0 7 * * *", "key": "k", "namespace": ["a"], "text": "x",
    "value": {}, "thread_ids": [], "version": 1, "if_not_exists": "create", "checkpoint": {},
}  # fmt: skip
JUNK = [
    None, True, 0, -1, 1.5, 2**70, "", "x", "*", "\x00", "²", "__start__", [], [[]], ["x", 3], {}, {"x": {"y": []}},
    {"checkpoint_id": "x", "checkpoint_ns": "y:z|"}, {"goto": [{"node": 1}]}, {"resume": {}}, {"configurable": [3]},
]  # fmt: skip


@pytest.mark.trial
@pytest.mark.parametrize(("method", "path"), [each for each in ROUTES if each[0] != "GET"])
async def test_no_body_makes_the_server_fail(method, path):
    """Whatever is in a body, the answer is the asked one or says what is wrong."""
    dice = random.Random(f"{method} {path}")

    def junk():
        return LIKELY | {name: dice.choice(JUNK) for name in dice.sample(FIELDS, dice.randint(1, 8))}

    async with asking(app_of()) as client:
        thread = await new_thread(client)
        run = RUN
        await client.post(f"/threads/{thread}/runs/wait", json=run)
        place = path.replace("{thread_id}", thread).replace("{assistant_id}", "flow")
        for _ in range(100):
            body = junk()
            answered = await client.request(method, place, json=body)
            assert answered.status_code < 500, body


def nested(levels, kind):
    value = 1
    for _ in range(levels):
        value = {"a": value} if kind == "object" else [value]
    return value if kind == "object" else {"a": value}


SHAPES = {
    "deep objects": nested(900, "object"),
    "deep lists": nested(900, "list"),
    "as deep as may be": nested(60, "object"),
    "a large integer": {"a": 2**70},
    "half of a pair": {"a": "\ud800"},
    "zeros": {"a\x00": "\x00"},
    "operators": {"$gt": 1, "a.b": {"$in": 3}},
    "an empty key": {"": 1},
    "a long key": {"a" * 100_000: 1},
    "a graph that is no name": {"graph_id": {}},
    "an owner": {"owner": "eve", "thread_id": "x", "__class__": "y"},
}
ANYTHING = ("metadata", "input", "config", "context", "value", "values", "filter", "checkpoint", "resume", "update")


@pytest.mark.trial
@pytest.mark.parametrize("shape", SHAPES)
async def test_unexpected_json_shapes_are_stored_or_refused(shape):
    async with asking(app_of()) as client:
        thread = await new_thread(client)
        for method, path in ROUTES:
            place = path.replace("{thread_id}", thread).replace("{assistant_id}", "flow")
            for field in ANYTHING:
                body = {**LIKELY, field: SHAPES[shape], "command": {field: SHAPES[shape]}}
                if method != "GET":
                    answered = await client.request(method, place, content=json.dumps(body))
                    assert answered.status_code < 500, (place, field)
        for path in ("/threads/search", "/threads/count", "/assistants/search", "/runs/crons/search"):
            assert (await client.post(path, json={"values": {"log": []}})).status_code == 200


async def test_a_slow_reader_buffers_one_chunk_and_is_disconnected_when_far_behind():
    log = EventLog(most_bytes=4 * PIECE_BYTES)
    reader = log.read()
    for _ in range(3 * PIECE_BYTES // 1000):
        log.add("custom", "x" * 1000)
    pieces = [await anext(reader), await anext(reader)]
    assert all(PIECE_BYTES <= sum(each.size for each in piece) < PIECE_BYTES + 2000 for piece in pieces)
    for _ in range(6 * PIECE_BYTES // 1000):
        log.add("custom", "x" * 1000)
    assert "TooSlow" in (await anext(reader))[0].value["error"]
    assert [piece async for piece in reader] == []
    assert log.size <= 4 * PIECE_BYTES


@pytest.mark.parametrize("start", [10**30, 7])
async def test_a_reader_that_names_a_future_event_reads_nothing(start):
    log = EventLog()
    log.add("custom", 1)
    log.close()
    assert [piece async for piece in log.read(start)] == []


async def test_a_reader_with_an_id_of_the_process_before_gets_all_that_is_new():
    log = EventLog(first=1000)
    log.add("custom", 1)
    log.close()
    [piece] = [piece async for piece in log.read(7)]
    assert [each.id for each in piece] == [1000]


STRANGE = {f"metadat{n}": 1 for n in range(300)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/runs", {"assistant_id": "flow", **STRANGE}),
        ("/runs", {"assistant_id": "flow", "config": STRANGE}),
        ("/runs", {"assistant_id": "flow", "config": {"configurable": STRANGE}}),
        ("/runs", {"assistant_id": "flow", "input": STRANGE}),
        ("/runs/batch", [{"assistant_id": "flow", "other": n, "config": {"other": n}} for n in range(300)]),
        ("/threads/search", {"x" * 3_000_000: 1}),
    ],
)
async def test_a_request_compares_a_limited_number_of_names(path, body, monkeypatch):
    compared = []

    def find(name, *_):
        compared.append(name)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", find)
    async with asking(app_of()) as client:
        assert (await client.post(path, json=body)).status_code < 500
    assert len(compared) <= 200 and all(len(name) <= 100 for name in compared)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/runs/cancel", {"run_ids": [1] * 9000}),
        ("/runs", {"assistant_id": "flow", "interrupt_before": [1] * 9000}),
        ("/threads", {"supersteps": [{"other": 1}] * 9000}),
        ("/threads/prune", {"thread_ids": [1] * 9000}),
        ("/threads/search", {"extract": {str(n): 1 for n in range(9000)}}),
    ],
)
async def test_a_refusal_lists_few_of_many_mistakes(path, body):
    async with asking(app_of()) as client:
        answered = await client.post(path, json=body)
        status, size = (answered.status_code, len(answered.content))
    assert status == 422 and size < 2000


@pytest.mark.parametrize("value", [[1] * 6000, {str(n): 1 for n in range(6000)}, [[]] * 6000, ["[,"] * 6000])
def test_a_body_may_contain_a_limited_number_of_values(value):
    async def send(body_bytes):
        async with asking(app_of(limits=Limits(body_bytes=body_bytes))) as client:
            return (await client.post("/threads", json={"metadata": {"v": value}})).status_code

    assert asyncio.run(send(100_000)) == 413
    assert asyncio.run(send(400_000)) == 200


def test_strings_count_once_whatever_they_contain():
    text = 'a,b:[{"\\' * 30_000
    assert service.read_json(json.dumps({"text": text}).encode()) == {"text": text}


async def test_a_long_body_is_parsed_in_a_thread(monkeypatch):
    threads = []
    parse = service.read_json

    def read(*args):
        threads.append(threading.current_thread())
        return parse(*args)

    monkeypatch.setattr(service, "read_json", read)
    async with asking(app_of()) as client:
        for size in (1, 100_000):
            assert (await client.post("/threads", json={"metadata": {"text": "x" * size}})).status_code == 200
    short, long = threads
    assert short is threading.main_thread() and long is not short


class Ailing(InMemoryStore):
    """Is out of reach, full, or well."""

    state = "well"

    async def abatch(self, ops):
        ops = [*ops]
        if self.state == "hangs":
            await asyncio.Event().wait()
        if self.state == "is down" or (self.state == "is full" and any(isinstance(op, PutOp) for op in ops)):
            raise StorageError("No space left. Nothing was done")
        return await super().abatch(ops)


@pytest.mark.parametrize("state", ["hangs", "is down", "is full"])
async def test_requests_fail_within_three_seconds_while_the_database_cannot_be_used(state, caplog):
    guards_seconds = guards.SECONDS_TO_LOOK, guards.SECONDS_TO_ANSWER
    assert sum(guards_seconds) <= 3
    store = Ailing()
    async with asking(flow_app(store=store), timeout=20) as client:
        assert (await client.get("/ok?check_db=1")).status_code == 200
        store.state = state
        began = time.monotonic()
        create = client.post("/threads", json={})
        refused = await asyncio.gather(create, client.get("/ok?check_db=true"))
        assert time.monotonic() - began < 3.5
        for each in refused:
            assert each.status_code == 503 and int(each.headers["Retry-After"]) > 0, each.text
        assert "No space" not in refused[0].text and (state == "hangs" or "No space left" in caplog.text)
        assert (await client.get("/ok")).status_code == 200, "the process lives"
        store.state = "well"
        assert (await client.post("/threads", json={})).status_code == 200


async def test_a_run_that_takes_its_time_is_not_ended_by_the_look_at_the_database(monkeypatch):
    monkeypatch.setattr(guards, "SECONDS_TO_LOOK", 0.01)
    gates, looked = Gates(), asyncio.Event()
    gates.close("wait")

    class Watched(InMemoryStore):
        async def abatch(self, ops):
            ops = [*ops]
            if any(isinstance(op, GetOp) and op.key == "ok" for op in ops):
                looked.set()
            return await super().abatch(ops)

    async with asking(flow_app(gates, store=Watched()), timeout=20) as client:
        sent = {"assistant_id": "flow", "input": {"topic": "wait"}}
        waiting = asyncio.create_task(client.post("/runs/wait", json=sent))
        for _ in range(3):
            await looked.wait()
            looked.clear()
        gates.open("wait")
        assert (await waiting).json()["log"] == ["a", "b"]


PAGE = "https://chat.example.com"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}, 200),
        ({"Origin": "http://chat.example.com"}, 403),
        ({"Origin": f"{PAGE}:8443"}, 403),
        ({"Origin": "https://evil.chat.example.com"}, 403),
        ({"Origin": f"{PAGE}.evil.example"}, 403),
        ({"Origin": PAGE, "Host": "evil.example"}, 403),
    ],
)
async def test_pages_of_an_origin_that_is_named_may_use_the_server(headers, status):
    async with asking(flow_app(origins=[PAGE])) as client:
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        answered, asked = [
                    await client.post("/threads/search", json={}, headers=headers),
                    await client.options("/threads", headers={**headers, **preflight}),
                ]
    assert answered.status_code == status
    allowed = headers["Origin"] == PAGE
    for each in (answered, asked):
        assert each.headers.get("Access-Control-Allow-Origin") == (PAGE if allowed else None)
    assert asked.status_code == (200 if allowed else 400)


def test_one_string_as_the_names_of_a_server_is_refused():
    with pytest.raises(TypeError, match="hosts must be a collection of names, got 'example.org'"):
        flow_app(hosts="example.org")


@pytest.mark.parametrize("origin", ["chat.example.com", f"{PAGE}/", "*", "https://*.example.com", f"{PAGE}:443", "null"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(ValueError, match="an origin must be like https"):
        flow_app(origins=[origin])


async def test_an_idle_stream_ends_when_its_reader_leaves_also_under_asgi_2_4():
    closed = asyncio.Event()

    async def parts():
        try:
            yield b": first\n\n"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def receive():
        await sent.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.body":
            sent.set()

    sent = asyncio.Event()
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}}
    async with asyncio.timeout(5):
        await stream(parts())(scope, receive, send)
    assert closed.is_set()
