"""Connections whose requests are too long or never end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from in_process import asking
from serving import flow_app
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stategraph.serve import listening
from stategraph.serve.limits import MOST_HEAD, MOST_HEADERS

OK = b"GET /ok HTTP/1.1\r\nHost: localhost\r\n"


class Wire:
    """A transport in memory, and a clock: timers fire when a test says so."""

    def __init__(self, protocol):
        self.sent, self.is_open, self.timers = b"", True, {}  # type: tuple[bytes, bool, dict[Any, float]]
        config = uvicorn.Config(app, lifespan="off", h11_max_incomplete_event_size=MOST_HEAD, log_config=None)
        self.connection = listening.limit_requests(protocol)(config, ServerState(), {})
        self.connection.loop = self
        self.connection.connection_made(self)

    def call_later(self, seconds, work):
        timer = asyncio.TimerHandle(0, work, (), asyncio.get_running_loop())
        self.timers[timer] = seconds
        return timer

    def create_task(self, work, **options):
        return asyncio.get_running_loop().create_task(work)

    def pass_time(self, seconds):
        for timer, when in [*self.timers.items()]:
            self.timers[timer] = when - seconds
            if when <= seconds and not timer.cancelled():
                del self.timers[timer]
                timer._run()

    async def send(self, data):
        self.connection.data_received(data)
        for _ in range(20):
            await asyncio.sleep(0)

    def write(self, data):
        self.sent += data

    def close(self):
        self.is_open = False

    abort = close

    def is_closing(self):
        return not self.is_open

    def get_extra_info(self, _):
        return None

    def pause_reading(self): ...

    def resume_reading(self): ...

    def get_protocol(self):
        return self.connection


async def app(scope, receive, send):
    """Answers a POST when its body has come, others at once."""
    while scope["method"] == "POST" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(params=[HttpToolsProtocol, H11Protocol])
def talk(request):
    def run(session: Callable[[Wire], Awaitable[None]]):
        async def connected():
            await session(Wire(request.param))

        asyncio.run(asyncio.wait_for(connected(), 10))

    return run


def test_a_connection_without_a_request_is_closed(talk):
    async def session(wire: Wire):
        wire.pass_time(listening.HEAD_SECONDS - 1)
        assert wire.is_open
        wire.pass_time(1)
        assert not wire.is_open

    talk(session)


def test_headers_that_trickle_in_are_not_waited_for(talk):
    async def session(wire: Wire):
        for _ in range(9):
            await wire.send(b"GET" if wire.connection._size == 0 else b" ")
            wire.pass_time(1)
        assert wire.is_open
        wire.pass_time(1)
        assert not wire.is_open

    talk(session)


def test_a_second_request_must_arrive_in_time_as_well(talk):
    async def session(wire: Wire):
        await wire.send(OK + b"\r\n")
        assert wire.sent.endswith(b"ok") and wire.is_open
        await wire.send(b"GET /ok")
        wire.pass_time(listening.HEAD_SECONDS)
        assert not wire.is_open

    talk(session)


@pytest.mark.parametrize("method", [b"POST", b"GET"])
def test_a_body_that_never_ends_times_out(talk, method):
    async def session(wire: Wire):
        await wire.send(method + OK[3:] + b"Content-Length: 10\r\n\r\n123")
        wire.pass_time(listening.REQUEST_SECONDS - 1)
        await wire.send(b"4")
        if wire.is_open:  # h11 closes a connection that it has answered before the end
            wire.pass_time(1)
        assert not wire.is_open

    talk(session)


def test_a_complete_request_may_take_its_time(talk):
    async def session(wire: Wire):
        await wire.send(b"POST" + OK[3:] + b"Content-Length: 10\r\n\r\n123")
        await wire.send(b"4567890")
        assert wire.sent.endswith(b"ok")
        wire.pass_time(4)  # uvicorn itself closes a connection after 5 seconds without a request
        await wire.send(OK + b"\r\n")
        assert wire.sent.count(b"200 OK") == 2 and wire.is_open

    talk(session)


def test_headers_without_end_are_refused(talk):
    async def session(wire: Wire):
        await wire.send(OK)
        for number in range(2 * MOST_HEAD // 1000):
            if wire.is_open:
                await wire.send(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        assert not wire.is_open
        assert wire.sent.partition(b"\r\n")[0].split()[1] in (b"431", b"400")
        assert number * 1000 >= MOST_HEAD

    talk(session)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({f"x-{n}": "y" for n in range(MOST_HEADERS - 10)}, 200),
        ({f"x-{n}": "y" for n in range(MOST_HEADERS)}, 431),
        ({"x": "y" * MOST_HEAD}, 431),
    ],
)
async def test_headers_are_limited_in_number_and_size(headers, status):
    async with asking(flow_app()) as client:
        assert (await client.get("/ok", headers=headers)).status_code == status
