"""What all routes share: the graphs, the records, the runs, and the user of a request."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from time import monotonic
from types import NoneType
from typing import Any, Final, Literal, TypeVar, cast
from uuid import UUID, uuid5

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.errors import DamagedError, StorageError, StoredError, UnknownTypeError
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError
from ..pregel.types import StateSnapshot
from ..store.base import BaseStore
from .authorize import LangGraphAuth, known_user
from .bodies import Spelling
from .encode import decode, encode, with_questions
from .errors import Refused
from .json_messages import for_clients
from .limits import MEGABYTE, Limits, OpenRequests, user_of
from .page.logs import NodeLogs
from .records import Record, Records, may_see, now
from .runs.runner import Runner
from .webhooks import Allowed

Auth = Callable[[Request], Awaitable[str | None] | str | None]
"""Returns the id of the user who sends a request, or None to refuse it. Users see only their own
threads."""

AUTH: Final = "langgraph_auth_"
"""The prefix of the keys of a config that only the server sets; LangGraph's server has the same."""
BODY_SECONDS: float = 30.0
"""How many seconds the body of a request may take to arrive."""
MOST_LEVELS: Final = 64
"""How deep lists and objects may be nested in the body of a request."""
BYTES_PER_VALUE: Final = 20
"""How many bytes of `body_bytes` each value and each key of a body counts for: parsing many small
values takes long, and all other requests wait for it."""
SHORT: Final = 32 * 1024
"""Up to how many bytes a body is parsed at once."""
SECONDS_TO_MEASURE: Final = 10.0
"""How old the number of bytes may be that a user has stored."""
MOST_TOLD: Final = 10
"""How many mistakes in a request are told."""
Priority = Callable[[str | None, Mapping[str, Any]], int]
"""Returns the priority of a run in the queue, given its user and the body of its request: higher
ones go first."""
Found = TypeVar("Found")
Asked = TypeVar("Asked", bound=BaseModel)
_KINDS: Final[Mapping[type, str]] = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    NoneType: "null",
}
BODY: Final = "stategraph.body"
"""In the scope of a request: its body, if auth has read it."""
# The namespace for the ids of the graphs' own assistants: LangGraph's server makes the same ids.
_NAMES: Final = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


@dataclass
class Service:
    """The state of one server.

    Attributes:
        graphs: the graphs by name, bound to the server's checkpointer and store.
        store: nodes find it as `runtime.store`; it also holds the records.
        webhooks: the addresses that runs may name as webhooks.
        targets: where the graphs are found, for tests that replay threads.
        priority: decides which runs of a queue go first; None if all are alike.
        logs: what nodes have logged, for the page.
        is_open: whether `open` has completed.
        auth: None if there are no users.
    """

    graphs: Mapping[str, Pregel]
    store: BaseStore
    records: Records
    runs: Runner
    auth: Auth | None
    limits: Limits
    requests: OpenRequests
    targets: Mapping[str, str]
    webhooks: Allowed
    logs: NodeLogs
    priority: Priority | None
    is_open: bool = False
    _own: dict[str, Record] = field(default_factory=dict)
    _parsing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stored: dict[str, int] = field(default_factory=dict)  # bytes by user, a while ago
    _measured: float = 0.0

    @property
    def saver(self) -> BaseCheckpointSaver:
        """The checkpointer of all graphs."""
        saver: Any = next(iter(self.graphs.values())).checkpointer
        return cast("BaseCheckpointSaver", saver)

    async def having_status(
        self, status: str | None, ids: Collection[str] | None = None
    ) -> Record:
        """Return the condition of `Records.search` for threads with a status, as clients see it.

        Args:
            ids: those of the threads; None for all.
        """
        among = {} if ids is None else {"$in": [*ids]}
        if status is None:
            return {"thread_id": among} if among else {}
        busy = await self.runs.busy_threads()
        if status == "busy":
            return {"thread_id": {"$in": [*({*busy} if ids is None else {*busy} & {*ids})]}}
        return {"status": status, "thread_id": {**among, "$nin": busy}}

    async def user(self, request: Request) -> str | None:
        """Return the user who sends a request; None without `auth`.

        Raises:
            Refused: the user is unknown or has too many requests, or the server is not open, since
                the app around it did not run its lifespan.
            TypeError: `auth` has returned neither a str nor None.
        """
        if not self.is_open:
            raise Refused(503, "the server is not open: an app around it must run its lifespan")
        if self.auth is None:
            return None
        if (known := user_of(request.scope)) is not None:
            return known
        found = self.auth(request)
        user = await found if inspect.isawaitable(found) else found
        if not isinstance(user, str | None):  # its text might be the same for several users
            wanted = "the user's id as a str, or None to refuse the request"
            raise TypeError(f"auth must return {wanted}, got {type(user).__name__}")
        if not user:
            raise Refused(401, "auth does not know the sender of this request")
        self.requests.name(request.scope, user)
        return str(user)

    async def check_quota(self, kind: Literal["threads", "crons"], owner: str | None) -> None:
        """Check that a user may have one more thread or schedule.

        Raises:
            Refused: the user has as many as the limits allow.
        """
        limits = self.limits
        most, what = limits.threads_per_user, "threads"
        if kind == "crons":
            most, what = limits.schedules_per_user, "schedules"
        if owner and most is not None and await self.records.count(kind, {"owner": owner}) >= most:
            raise Refused(429, f"you have as many {what} as you may, {most}: delete some")

    async def check_room(self, owner: str | None) -> None:
        """Check that a user has not stored too much to begin a run.

        Raises:
            Refused: the user has.
        """
        most = self.limits.stored_bytes_per_user
        if not owner or most is None:
            return
        if monotonic() - self._measured > SECONDS_TO_MEASURE:
            self._measured = monotonic()
            self._stored.clear()
        if owner not in self._stored:
            found = await self.records.search("threads", filter={"owner": owner})
            ids = [each["thread_id"] for each in found]
            self._stored[owner] = await self.saver.astored_bytes(ids)
        if self._stored[owner] >= most:
            why = f"your threads take {most} bytes or more, which is all you may store: delete some"
            raise Refused(429, why)

    def say_who(self, user: str | None) -> dict[str, Any]:
        """Return the keys of a config that tell a graph who its user is. They replace what a client
        has sent; without `auth` there are no users, so a client may set `user_id`."""
        if self.auth is None:
            return {}
        shown = known_user(user) if user else None
        return {"user_id": user, f"{AUTH}user_id": user, f"{AUTH}user": shown}

    async def thread(self, thread_id: str, owner: str | None) -> Record | None:
        """Return a thread; None if it does not exist yet.

        Raises:
            Refused: the thread is another user's.
        """
        thread = await self.records.find("threads", thread_id)
        if thread is not None and not may_see(thread, owner):
            raise Refused(404, f"there is no thread {thread_id!r}")
        return thread

    async def questions(self, thread: Record | None) -> dict[str, Record]:
        """Return the open questions of a thread, by id; none of one that does not exist yet."""
        state = None if thread is None else await self.state(thread)
        return {each["id"]: each for each in decode(encode(state.interrupts if state else ()))}

    async def state(
        self, thread: Record, at: Mapping[str, Any] | None = None, *, subgraphs: bool = False
    ) -> StateSnapshot | None:
        """Return the state of a thread, now or at a checkpoint; None before its first run."""
        app = self.graph_of_thread(thread)
        if app is None:
            return None
        return await app.aget_state(config_of(thread["thread_id"], at), subgraphs=subgraphs)

    async def status_of(self, run: Record) -> str:
        """Return the current status of a run, given by its record when it was begun; "interrupted"
        if it was deleted since."""
        found = await self.runs.find(run["run_id"], run["thread_id"])
        return "interrupted" if found is None else await self.runs.status(found)

    async def result_of(self, run: Record) -> bytes:
        """Wait for the end of a run, and return the state at its end with its questions, as JSON;
        the thread's present state if the former is not kept any more.

        Raises:
            Refused: its thread was deleted meanwhile, and another user has made one with the same
                id; or the server stops, or does not serve the graph.
        """
        body = await self.runs.answer(run)
        if body is not None:
            return body
        state = await self.graph(run["graph_id"]).aget_state(config_of(run["thread_id"]))
        # Looked for last, so that the state cannot be that of another user's thread.
        thread = await self.records.find("threads", run["thread_id"])
        if thread is not None and not may_see(thread, run["owner"]):
            raise Refused(404, f"the run {run['run_id']!r} was deleted with its thread")
        return encode(for_clients(with_questions(state.values, state.interrupts)))

    async def body(self, request: Request, kind: type[Asked]) -> Asked:
        """Read and validate the body of a request.

        Raises:
            Refused: it is not JSON, too long, or not what is expected.
        """
        sent = request.headers.get("content-type", "").partition(";")[0].strip()
        if sent not in ("application/json", ""):
            raise Refused(415, f"the body must be application/json, got {sent}")
        return await self.parse(kind, await self._read(request))

    async def parse(self, kind: type[Asked], text: bytes) -> Asked:
        """Parse and validate JSON: a long one in a thread, one at a time, so that other requests
        are answered meanwhile.

        Raises:
            Refused: it is not JSON, or not what is expected.
        """

        def parse() -> Asked:
            return validate(kind, read_json(text, self.limits.body_bytes))

        if len(text) <= SHORT:
            return parse()
        async with self._parsing:
            return await asyncio.to_thread(parse)

    async def authorize(self, request: Request, path: str, *, reads_body: bool = True) -> None:
        """Ask LangGraph's `Auth`, if it is the server's, whether a request is allowed. What its
        handler writes into the body is written there.

        Args:
            path: the path of the route.

        Raises:
            Refused: it is not.
        """
        if not isinstance(self.auth, LangGraphAuth):
            return
        user = await self.user(request)
        place, text = request.path_params, b""
        if reads_body and request.method != "GET":
            text = request.scope[BODY] = await self._read(request)
        given = read_json(text, self.limits.body_bytes)
        body = given if isinstance(given, dict) else {}
        value = {**deepcopy(body), **place}
        await self.auth.check(str(user), request.method, path, value)
        if body is given and value != {**body, **place}:
            changed = {key: each for key, each in value.items() if key not in place}
            request.scope[BODY] = encode({**body, **changed})

    async def _read(self, request: Request) -> bytes:
        """Read the body of a request.

        Raises:
            Refused: it is too long, or does not come in time, or not to its end.
        """
        if BODY in request.scope:
            return bytes(request.scope[BODY])
        parts, size, most = [], 0, self.limits.body_bytes
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise Refused(413, f"the body must have at most {most} bytes")
                    parts.append(part)
        except TimeoutError:
            raise Refused(408, f"the body must come within {BODY_SECONDS:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "the client has gone before the end of the body") from None
        return b"".join(parts)

    def query(self, request: Request, kind: type[Asked]) -> Asked:
        """Validate the query parameters of a request that are fields of a model; others are
        ignored.

        Raises:
            Refused: they are invalid.
        """
        asked = request.query_params
        given: dict[str, Any] = {key: asked[key] for key in kind.model_fields if key in asked}
        if "select" in given:
            given["select"] = asked.getlist("select")
        return validate(kind, given)

    async def graph_of(self, id: str, owner: str | None) -> tuple[Pregel, Record]:
        """Return a graph and its assistant, by the id of an assistant or the name of a graph.

        Raises:
            Refused: there is none, or the assistant's graph is no longer served.
        """
        assistant = await self.assistant(id, owner)
        return self.graph(assistant["graph_id"]), assistant

    def graph(self, name: str) -> Pregel:
        """Return a graph that an assistant, a thread or a run names.

        Raises:
            Refused: it is not served.
        """
        if name not in self.graphs:
            known = ", ".join(self.graphs)
            raise Refused(409, f"the graph {name!r} is not served any more; served are: {known}")
        return self.graphs[name]

    def graph_of_thread(self, thread: Record) -> Pregel | None:
        """Return the graph that ran last on a thread; None before its first run."""
        return self.graphs.get(thread["metadata"].get("graph_id", ""))

    async def assistant(self, id: str, owner: str | None) -> Record:
        """Return an assistant, by its id or the name of a graph.

        Raises:
            Refused: there is none.
        """
        if id in self.graphs:
            id = graph_assistant(id)
        if id in self._own:  # nobody can change it
            return self._own[id]
        assistant = await self.records.find("assistants", id)
        if assistant is None or not may_see(assistant, owner):
            known = ", ".join(self.graphs)
            raise Refused(404, f"there is no assistant or graph {id!r}; the graphs are: {known}")
        return assistant

    async def open(self) -> None:
        """Create the assistants of the graphs, and continue the runs that an earlier server has
        left.

        Raises:
            StorageError: the database was written with other keys, or without.
        """
        await self.records.open(self._check_threads)
        for name in self.graphs:
            id = graph_assistant(name)
            record = await self.records.find("assistants", id)
            if record is None or record["owner"] is not None:
                made = {"name": name, "metadata": {"created_by": "system"}}
                record = new_assistant(id, None, graph_id=name, **made)
                await self.records.put(("assistants", id, record), ("versions", "1", record, id))
            self._own[id] = record
        await self.runs.open()
        self.is_open = True

    async def _check_threads(self) -> None:
        """Read the newest checkpoint: it shows whether the threads have the server's keys.

        Raises:
            StorageError: they do not.
        """
        try:
            with suppress(UnknownTypeError):
                [_ async for _ in self.saver.alist(None, limit=1)]
        except DamagedError as error:
            raise StorageError(
                f"the threads in this database were not stored with the server's keys ({error}): "
                "start it with theirs, or on a new database"
            ) from error


def config_of(thread_id: str, at: Mapping[str, Any] | None = None) -> Any:
    """Return the config that names a thread, or one of its checkpoints."""
    place = {"thread_id": thread_id}
    for name in ("checkpoint_ns", "checkpoint_id"):
        if at and at.get(name):
            place[name] = str(at[name])
    return {"configurable": place}


def version() -> str:
    """Return the version of the server."""
    from .. import __version__

    return __version__


@cache
def graph_assistant(name: str) -> str:
    """Return the id of a graph's own assistant."""
    return str(uuid5(_NAMES, name))


def new_assistant(id: str, owner: str | None, **given: Any) -> Record:
    """Return a new assistant: a graph with settings. Everybody sees one whose owner is None."""
    at = now()
    return {
        "assistant_id": id,
        "config": {},
        "context": {},
        "description": None,
        **given,
        "created_at": at,
        "updated_at": at,
        "version": 1,
        "owner": owner,
    }


def validate(kind: type[Asked], given: Any) -> Asked:
    """Validate what a client has sent.

    Raises:
        Refused: it is not what is expected.
    """
    try:
        return kind.model_validate(given, context=Spelling())
    except ValidationError as wrong:
        raise Refused(422, _describe(wrong)) from None


async def refusing(call: Awaitable[Found]) -> Found:
    """Await a call, and refuse the request if the call rejects its arguments.

    Raises:
        Refused: the call has refused its arguments.
    """
    try:
        return await call
    except (StorageError, StoredError, DamagedError):
        raise  # a fault of the server, whatever else these errors are
    except (StateGraphError, ValueError, TypeError) as error:
        raise Refused(422, str(error)) from error


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a value as JSON."""
    body = encode(value)
    return Response(body, status, headers, media_type="application/json")


def read_json(text: bytes, most_bytes: int = MEGABYTE) -> Any:
    """Parse JSON that a client has sent.

    Args:
        most_bytes: the maximum size of a body, which also limits the number of values.

    Raises:
        Refused: it is not JSON, it holds too many values, or it cannot be stored.
    """
    most = most_bytes // BYTES_PER_VALUE
    if len(text) > most and _count_values(text) > most:
        raise Refused(413, f"the body must hold at most {most} values and keys")
    try:
        given = json.loads(text or b"{}", parse_constant=_refuse_constant, parse_float=_read_float)
        if b"\\u" in text:
            json.dumps(given, ensure_ascii=False).encode()
        if text.count(b"[") + text.count(b"{") > MOST_LEVELS and not _is_flat(given):
            raise ValueError(f"it must not be nested deeper than {MOST_LEVELS} levels")
    except UnicodeEncodeError:
        raise Refused(422, "the body holds half of a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the body is not JSON that can be taken: {error}") from None
    return given


def _count_values(text: bytes) -> int:
    """Return about how many values and keys there are in JSON, without parsing it."""
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(text.split(b'"')[::2])
    return sum(map(outside.count, (b",", b":", b"[", b"{")))


def _is_flat(value: Any) -> bool:
    """Return whether a JSON value has at most `MOST_LEVELS` levels."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return not any(isinstance(each, list | dict) for each in level)


def _read_float(text: str) -> float:
    found = float(text)
    if not isfinite(found):
        raise ValueError(f"the number {text} is too large")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _describe(wrong: ValidationError) -> str:
    errors = wrong.errors(include_url=False)[:MOST_TOLD]
    told = []
    for error in errors:  # without pydantic's prefix and without the names of classes
        place, text = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
        if error["type"] in ("model_type", "dict_type"):
            subject = "" if place else "the body "
            text = f"{subject}must be an object, got {_KINDS[type(error['input'])]}"
        told.append(f"{place}: {text}" if place else text)
    return "; ".join(told)
