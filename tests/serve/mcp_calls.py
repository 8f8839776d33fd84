"""Calls by the official MCP client."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx2
from mcp import types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

ERAS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


class Person:
    """Answers elicitations with what was laid ready."""

    def __init__(self, *replies):
        self.replies = [*replies]
        self.asked = []

    async def __call__(self, _, params):
        self.asked.append(params)
        reply = self.replies.pop(0)
        if isinstance(reply, str):
            return types.ElicitResult(action=reply)
        return types.ElicitResult(action="accept", content=reply)


@asynccontextmanager
async def connect(url, mode, person: Person | None = None, token=""):
    headers = {"authorization": token} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=mode, elicitation_callback=person) as client:
            assert client.session.protocol_version == ERAS[mode]
            yield client


def talk(
    url, mode, session, person: Person | None = None, token=""
):
    """What a session with the server brings."""

    async def run():
        async with connect(url, mode, person, token) as client:
            return await session(client)

    return asyncio.run(run())


def call(url, mode, name, given, person: Person | None = None, token=""):
    return talk(url, mode, lambda client: client.call_tool(name, given), person, token)
