"""What somebody tries who wants more of the server than is theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stategraph.serve import create_app

from .in_process import asking
from .serving import Gates, make_flow


def app_of(**options: Any) -> Any:
    return create_app({"flow": make_flow(Gates())}, **options)


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
def test_pages_of_other_sites_reach_nothing(headers: dict[str, str], status: int) -> None:
    async def get() -> int:
        async with asking(app_of()) as client:
            return (await client.get("/info", headers=headers)).status_code

    assert asyncio.run(get()) == status


@pytest.mark.parametrize("headers", [[(b"host", b"evil.example")], [(b"host", b"localhost"), (b"origin", b"http://x")]])
def test_websockets_of_other_sites_are_closed(headers: Any) -> None:
    async def connect() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/info", "headers": headers}
        await app_of()(scope, None, send)  # type: ignore[arg-type]
        return sent

    [closed] = asyncio.run(connect())
    assert closed["type"] == "websocket.close" and closed["code"] == 1008


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_what_a_form_can_send_is_no_request(kind: str) -> None:
    async def post() -> int:
        async with asking(app_of()) as client:
            answered = await client.post("/threads", content=b"{}", headers={"Content-Type": kind})
            return answered.status_code

    assert asyncio.run(post()) == 415
