"""The routes of sessions with a thread, over HTTP or over a WebSocket: events as they happen, and
commands, which begin a run, or answer questions so that a run continues.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from ...bodies import CommandRequest, RunBody, SubscriptionBody
from ...encode import encode
from ...errors import LOG, TOO_MANY, Refused
from ...events import sse, stream
from ...handlers import Handlers, User, route
from ...records import Record, may_see
from ...runs.new_runs import begin_run
from ...runs.thread_runs import Begin, Ended, ThreadRuns, begin_of
from ...service import BODY, Service, validate
from .translate import MODES, Event, Translator

COMMANDS: Final = "/threads/{thread_id}/commands"
"""The route of commands: what auth allows there, it allows over a WebSocket."""

MOST_SUBSCRIPTIONS: Final = 32
_NORMAL: Final = 1000
_NOT_TEXT: Final = 1003
_TOO_LARGE: Final = 1009
_FAILED: Final = 1011


class Sessions(Handlers):
    """The handlers of `/threads/{thread_id}/commands` and `/threads/{thread_id}/stream/events`."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        socket = WebSocketRoute("/threads/{thread_id}/stream/events", self.connect)
        return [*super().routes(), socket]

    @route("POST /threads/{thread_id}/commands")
    async def command(self, thread_id: str, owner: User, body: CommandRequest) -> Record:
        """Execute one command. If it fails, the response holds the error, as the protocol
        defines."""
        return await Commands(self._service, thread_id, owner).answer(body)

    @route("POST /threads/{thread_id}/stream/events")
    async def subscribe(self, thread_id: str, owner: User, body: SubscriptionBody) -> Response:
        """Stream the events of some channels, including those of later runs. The thread need not
        exist yet: a later run may create it."""
        await self._service.thread(thread_id, owner)
        events = Subscription(self._service, thread_id, owner, body).read()
        return stream(encode_session(events))

    async def connect(self, socket: WebSocket) -> None:
        """Serve a session over a WebSocket. It counts as a request for as long as it is open."""
        service, thread_id = self._service, socket.path_params["thread_id"]
        request = Request({**socket.scope, "type": "http", "method": "POST"})
        try:
            service.requests.enter()
        except Refused:
            await socket.close()
            return
        try:
            await service.authorize(request, COMMANDS, reads_body=False)
            owner = await service.user(request)
            await service.thread(thread_id, owner)
            await Socket(service, socket, request, owner).serve()
        except Refused:
            await socket.close()  # not accepted yet, so the handshake is answered with 403
        finally:
            service.requests.leave(request.scope)


class Socket:
    """One connection to a thread.

    Args:
        request: the connection as a request to `COMMANDS`.
        owner: the user; None if there are no users.
    """

    def __init__(
        self, service: Service, socket: WebSocket, request: Request, owner: str | None
    ) -> None:
        self._service, self._socket, self._request = service, socket, request
        self._thread_id, self._owner = socket.path_params["thread_id"], owner
        self._commands = Commands(service, self._thread_id, owner)
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._close_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Answer commands until the client disconnects, the server stops, or something fails."""
        await self._socket.accept()
        stop = asyncio.ensure_future(self._service.runs.stopping.wait())
        read = asyncio.create_task(self._guard(self._read()))
        ends: list[asyncio.Future[Any]] = [stop, self._close_code]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = [stop, read, *self._subscriptions.values()]
            for each in left:
                each.cancel()
            await asyncio.wait(left)
        code = self._close_code.result() if self._close_code.done() else _NORMAL
        with suppress(WebSocketDisconnect, RuntimeError):  # the client has closed it
            await self._socket.close(code)

    async def _guard(self, work: Awaitable[int | None]) -> None:
        """Do a part of the work. If it returns a close code, or fails, the connection is closed; a
        client connects again after a failure."""
        code = None
        try:
            code = await work
        except WebSocketDisconnect:
            code = _NORMAL
        except Exception:
            LOG.exception("a session with the thread %s has failed", self._thread_id)
            code = _FAILED
        if code is not None and not self._close_code.done():
            self._close_code.set_result(code)

    async def _read(self) -> int:
        """Answer commands. Return the close code if the client breaks a rule."""
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if text is None:
                return _NOT_TEXT
            command = text.encode()
            if len(command) > self._service.limits.body_bytes:
                return _TOO_LARGE
            await self._send(encode(await self._answer(command)))
        return _NORMAL

    async def _answer(self, text: bytes) -> Record:
        id = None
        try:
            request = await self._service.parse(CommandRequest, text)
            id = request.id
            # Auth may write something into it.
            scope = {**self._request.scope, BODY: text}
            await self._service.authorize(Request(scope), COMMANDS)
            if scope[BODY] != text:
                request = await self._service.parse(CommandRequest, scope[BODY])
            if request.method == "subscription.subscribe":
                return {"type": "success", "id": id, "result": self._subscribe(request.params)}
            if request.method == "subscription.unsubscribe":
                named = request.params.get("subscription_id")
                if (task := self._subscriptions.pop(str(named), None)) is None:
                    raise CommandError("no_such_subscription", "there is no such subscription")
                task.cancel()
                return {"type": "success", "id": id, "result": {}}
            return await self._commands.answer(request)
        except Refused as error:
            return describe_refusal(id, error)

    def _subscribe(self, params: Any) -> Record:
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            why = f"a connection has at most {MOST_SUBSCRIPTIONS} subscriptions: open another one"
            raise CommandError("invalid_argument", why)
        asked = validate(SubscriptionBody, params)
        subscription = Subscription(self._service, self._thread_id, self._owner, asked)
        id = str(uuid4())
        pump = self._guard(self._pump(subscription))
        self._subscriptions[id] = asyncio.create_task(pump)
        return {"subscription_id": id, "replayed_events": 0}

    async def _pump(self, subscription: Subscription) -> None:
        async for some in subscription.read():
            for each in some:
                await self._send(each.encode())

    async def _send(self, text: bytes) -> None:
        await self._socket.send_text(text.decode())


class CommandError(Refused):
    """Answers a command with an error.

    Args:
        code: an error code of the protocol.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(422, message)
        self.code: str = code


class Commands:
    """Executes commands of a user on a thread."""

    def __init__(self, service: Service, thread_id: str, owner: str | None) -> None:
        self._service, self._thread_id, self._owner = service, thread_id, owner

    async def answer(self, request: CommandRequest) -> Record:
        """Execute a command; return its answer, which may be an error.

        Raises:
            Refused: the client may try again.
        """
        offered = {"run.start": self._start, "input.respond": self._respond}
        try:
            if request.method not in offered:
                why = f"the command {request.method!r} is not offered; offered are: "
                raise CommandError("unknown_command", why + ", ".join(offered))
            answer = await offered[request.method](request.params)
        except Refused as refused:
            if refused.status >= TOO_MANY:
                raise
            return describe_refusal(request.id, refused)
        return {"type": "success", "id": request.id, **answer}

    async def _start(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run. If the thread waits for an answer, the input is the answer."""
        if not isinstance(params.get("assistant_id"), str):
            raise CommandError("invalid_argument", "run.start needs an assistant_id")
        given: dict[str, Any] = {"input": params.get("input")}
        thread = await self._service.thread(self._thread_id, self._owner)
        if given["input"] is not None and await self._service.questions(thread):
            given = {"command": {"resume": given["input"]}}
        return await self._begin({**given, "assistant_id": params["assistant_id"]}, params)

    async def _respond(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one question, or several at once."""
        answers = _read_answers(params)
        thread = await self._service.thread(self._thread_id, self._owner)
        asked = await self._service.questions(thread)
        unknown = [id for id in answers if id not in asked]
        if thread is None or unknown:
            why = f"the thread asks no question {unknown[0]!r}, or it was answered"
            raise CommandError("no_such_interrupt", why)
        command = {name: params[name] for name in ("update", "goto") if name in params}
        given = {"command": {**command, "resume": answers}, "multitask_strategy": "reject"}
        known = thread["metadata"]  # it has `graph_id`, since a graph has asked
        assistant = known.get("assistant_id") or known["graph_id"]
        return await self._begin({**given, "assistant_id": assistant}, params)

    async def _begin(
        self, given: Mapping[str, Any], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        how = {"stream_mode": [*MODES], "stream_subgraphs": True, "if_not_exists": "create"}
        known = RunBody.model_fields.keys() - {"command"}
        options = {name: params[name] for name in known & params.keys()}
        body = validate(RunBody, {**options, **given, **how})
        record = await begin_run(self._service, body, self._thread_id, self._owner)
        # A reader that starts there gets the events of this run, and none of earlier runs.
        meta = {"applied_through_seq": seq_before(record)}
        return {"result": {"run_id": record["run_id"]}, "meta": meta}


def _read_answers(params: Mapping[str, Any]) -> dict[str, Any]:
    """Read the answers of a command, by the ids of their questions.

    Raises:
        CommandError: there are none.
    """
    given: Any = params.get("responses", [params])
    entries: Sequence[Any] = given if isinstance(given, list) else []
    answers = {}
    for each in entries:
        if not isinstance(each, dict) or not isinstance(each.get("interrupt_id"), str):
            raise CommandError("invalid_argument", "an answer needs an interrupt_id")
        answers[each["interrupt_id"]] = each.get("response")
    if not answers:
        raise CommandError("invalid_argument", "input.respond needs at least one answer")
    return answers


def describe_refusal(id: int | None, error: Refused) -> Record:
    """Return the answer to a command that failed."""
    code = error.code if isinstance(error, CommandError) else "invalid_argument"
    return {"type": "error", "id": id, "error": code, "message": str(error)}


# -- events ----------------------------------------------------------------------------------------
# The events that a session receives from its thread: those of the channels that it subscribed to,
# run by run, as long as it is open. Each event has a number, `seq`, which grows across events and
# runs and is the same on every server, so a reader can say where to continue. It is computed from
# the moment at which the run began and the position in the run's log; nothing else is stored.

_EPOCH: Final = 1_767_225_600_000_000
"""The beginning of 2026 in microseconds: `seq` must be a safe integer in JavaScript."""
_A_MICROSECOND: Final = 8
"""How many numbers a microsecond has. A run may write an event to its log every 32 microseconds
without reaching the numbers of a later run; writing one takes longer."""
_AN_EVENT: Final = 256
"""How many numbers an event of a run's log has. Protocol events beyond that share the last one, so
a reader who reconnects amid them misses some. The end of a run, which has the questions of all
tasks, takes as many numbers as it needs: no event follows it."""
_RESTARTED: Final = 1_000_000_000_000
"""Ids of log events from here on are milliseconds since 1970: another process of the server has
continued the run."""


def first_seq(moment: int) -> int:
    """Return the number before the first one of a run that begins at this moment."""
    return max(0, (moment - _EPOCH) * _A_MICROSECOND)


def moment_of_seq(seq: int) -> int:
    """Return the latest moment at which a run with this number can have begun."""
    return seq // _A_MICROSECOND + _EPOCH


def wants(asked: SubscriptionBody, event: Event) -> bool:
    """Return whether a subscription asks for an event."""
    if not any(each in asked.channels for each in event.channels):
        return False
    prefixes = [[]] if asked.namespaces is None else asked.namespaces
    return any(_is_below(event.namespace, prefix, asked.depth) for prefix in prefixes)


def _is_below(ns: Sequence[str], prefix: Sequence[str], most: int | None) -> bool:
    depth = len(ns) - len(prefix)
    if depth < 0 or (most is not None and depth > most):
        return False
    return all(
        part in (found, found.partition(":")[0]) for part, found in zip(prefix, ns, strict=False)
    )


class Numbered(NamedTuple):
    """An event with its number and its id."""

    seq: int
    id: str
    event: Event

    def encode(self) -> bytes:
        """Return its JSON form."""
        method, namespace, data = self.event
        at = int(time.time() * 1000)
        params = {"namespace": namespace, "timestamp": at, "data": data}
        named = {"type": "event", "event_id": self.id, "seq": self.seq}
        return encode({**named, "method": method, "params": params})


class Subscription:
    """The events of a thread for one reader.

    Args:
        owner: the user who reads; None if there are no users.
    """

    def __init__(
        self, service: Service, thread_id: str, owner: str | None, asked: SubscriptionBody
    ) -> None:
        self._service, self._thread_id, self._owner = service, thread_id, owner
        self._asked = asked
        self._runs = ThreadRuns(service.records, service.runs, thread_id)

    async def read(self) -> AsyncIterator[list[Numbered]]:
        """Yield the events, in the portions in which they come, until the server stops. A reader
        that has no event yet gets all events of the current run, or of the last one."""
        since = self._asked.since
        if since is None:
            known, after = await self._runs.newest(), Begin(-1, "")
        else:
            moment = moment_of_seq(since)
            known, after = await self._runs.since(moment), Begin(moment, "")
        if known:
            after = known[0]._replace(run_id="")
        async for begin in self._runs.follow(after):
            async for some in self._run(begin, since or 0):
                yield some

    async def _run(self, begin: Begin, since: int) -> AsyncIterator[list[Numbered]]:
        """Yield the events of one run. Its whole log is read, since a protocol event depends on the
        log events before it."""
        record = await self._service.runs.find(begin.run_id, self._thread_id)
        if record is None or not may_see(record, self._owner):
            return
        translator = Translator(begin.run_id, record["graph_id"], self._asked.channels)
        place = first_seq(begin.moment)
        async for some in self._runs.read(record, 0):
            if isinstance(some, Ended):
                end = translator.end(some.status, await self._is_paused())
                id = f"{begin.run_id}:end"
                yield [*self._number(place + _AN_EVENT, sys.maxsize, since, id, end)]
                return
            told: list[Numbered] = []
            for each in some:
                if each.id is not None:
                    place = _place_of(begin, each.id)
                    last, id = place + _AN_EVENT - 1, f"{begin.run_id}:{each.id}"
                    told += self._number(place, last, since, id, translator.of(each))
            if told:
                yield told

    def _number(
        self, place: int, last: int, since: int, id: str, events: Iterator[Event]
    ) -> Iterator[Numbered]:
        for number, event in enumerate(events):
            seq = min(place + number + 1, last)
            if seq > since and wants(self._asked, event):
                yield Numbered(seq, f"{id}.{number}", event)

    async def _is_paused(self) -> bool:
        thread = await self._service.records.find("threads", self._thread_id)
        return thread is not None and thread["status"] == "interrupted"


def seq_before(record: Record) -> int:
    """Return the number after which the events of a run come."""
    return first_seq(begin_of(record).moment)


def _place_of(begin: Begin, number: int) -> int:
    if number >= _RESTARTED:
        return first_seq(number * 1000)
    return first_seq(begin.moment) + number * _AN_EVENT


async def encode_session(events: AsyncIterator[list[Numbered]]) -> AsyncIterator[bytes]:
    """Yield the events of a session as parts of a `text/event-stream`."""
    async for some in events:
        yield b"".join([sse(each.seq, each.event.method, each.encode()) for each in some])
