"""A2A, by which agents give each other tasks (https://a2a-protocol.org, version 0.3, JSON-RPC).

Each assistant is an agent. A context is a thread; a task is a run, with the later runs that answer
its questions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response

from ..bodies import Few, Many, RunBody
from ..encode import decode, encode
from ..errors import TOO_MANY, Refused
from ..events import stream
from ..handlers import Handlers, User, route
from ..json_messages import prompt_of, role_of, text_of
from ..records import Record
from ..runs.new_runs import begin_run
from ..runs.thread_runs import UNFINISHED
from ..service import config_of, validate, version

TASK: Final = "a2a_task"
"""In the metadata of a run that goes on with a task: the run with which the task began."""
_KINDS: Final = ["text/plain", "application/json"]
_STATES: Final = {
    "pending": "submitted",
    "running": "working",
    "success": "completed",
    "error": "failed",
    "interrupted": "canceled",
}
_CODES: Final = {404: -32001, 405: -32002, 501: -32601}
"""The codes of errors by statuses of HTTP; others become "invalid params"."""
_STREAMED: Final = ("message/stream", "tasks/resubscribe")
_INVALID: Final = -32602


class _Params(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel, defer_build=True)


class Part(_Params):
    """A part of a message."""

    kind: Literal["text", "data"]
    text: str = ""
    data: Many = {}


class A2aMessage(_Params):
    """A message of another agent."""

    message_id: str
    parts: Few[Part] = Field(min_length=1)
    context_id: str | None = None
    task_id: str | None = None

    @property
    def text(self) -> str:
        """The text in its parts."""
        return "\n".join(part.text for part in self.parts if part.kind == "text")

    @property
    def data(self) -> Many:
        """The data in its parts."""
        return {key: each for part in self.parts for key, each in part.data.items()}


class _Configuration(_Params):
    blocking: bool = True


class SendParams(_Params):
    """The parameters of `message/send` and `message/stream`."""

    message: A2aMessage
    configuration: _Configuration = _Configuration()


class RpcBody(_Params):
    """A call of JSON-RPC."""

    id: str | int | None = None
    method: str
    params: Many = {}


class A2a(Handlers):
    """The handlers of `/a2a`."""

    @route(
        "GET /a2a/{assistant_id}/.well-known/agent-card.json",
        "GET /.well-known/agent-card.json",
    )
    async def card(self, request: Request, assistant_id: str | None, owner: User) -> Record:
        """Send the card of an agent; without an assistant, that of the first graph."""
        first = next(iter(self._service.graphs))
        asked = assistant_id or request.query_params.get("assistant_id") or first
        assistant = await self._service.assistant(asked, owner)
        name = assistant["name"]
        about = assistant["description"] or f"Runs the graph {assistant['graph_id']}."
        skill = {"id": assistant["graph_id"], "name": name, "description": about, "tags": []}
        return {
            "protocolVersion": "0.3.0",
            "name": name,
            "description": about,
            "url": f"{request.base_url}a2a/{assistant['assistant_id']}",
            "preferredTransport": "JSONRPC",
            "version": version(),
            "capabilities": {"streaming": True, "pushNotifications": False},
            "defaultInputModes": _KINDS,
            "defaultOutputModes": _KINDS,
            "skills": [skill],
        }

    @route("POST /a2a/{assistant_id}")
    async def call(self, assistant_id: str, owner: User, body: RpcBody) -> Response | Record:
        """Send a message to an agent, or ask about a task."""
        head = {"jsonrpc": "2.0", "id": body.id}
        try:
            found = await self._call(assistant_id, body, owner)
        except Refused as refused:
            if refused.status >= TOO_MANY and refused.status not in _CODES:
                raise
            error = {"code": _CODES.get(refused.status, _INVALID), "message": refused.detail}
            told = {**head, "error": error}
            return stream([_sse(told)]) if body.method in _STREAMED else told
        if isinstance(found, dict):
            return {**head, "result": found}
        return stream(_sse({**head, "result": each}) async for each in found)

    async def _call(
        self, assistant_id: str, body: RpcBody, owner: User
    ) -> Record | AsyncIterator[Record]:
        """Return the result of a call, or the events that it streams."""
        method = body.method
        if method in ("message/send", "message/stream"):
            asked = validate(SendParams, body.params)
            run = await self._begin(assistant_id, asked.message, owner)
            if method == "message/send" and asked.configuration.blocking:
                await self._runs.answer(run)
        elif method in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
            if not isinstance(id := body.params.get("id"), str):
                raise Refused(422, f"id: must be a string, got {id!r}")
            run = await self._find(id, owner)
            stops = method == "tasks/cancel"
            if stops and not await self._runs.cancel(run, "interrupt", wait=True):
                raise Refused(405, f"the task {_id_of(run)!r} has ended")
        else:
            raise Refused(501, f"the method {method!r} is not offered")
        return self._follow(run) if method in _STREAMED else await self._task(run)

    async def _begin(self, assistant_id: str, message: A2aMessage, owner: User) -> Record:
        """Begin a run with a message, or with the answer in it."""
        metadata = {}
        place = message.context_id or str(uuid4())
        if message.task_id is not None:
            run = await self._find(message.task_id, owner)
            place, metadata = run["thread_id"], {TASK: run["metadata"].get(TASK, run["run_id"])}
        asked = await self._service.questions(await self._service.thread(place, owner))
        if message.task_id is not None and not asked:
            raise Refused(422, f"the task {message.task_id!r} asks nothing: leave taskId out")
        if asked:
            given: Record = {"command": {"resume": _answers(message, [*asked])}}
        else:
            app, _ = await self._service.graph_of(assistant_id, owner)
            given = {"input": _read_input(message, app.get_input_jsonschema())}
        how: Any = {"stream_mode": ["messages-tuple"], "if_not_exists": "create"}
        body = RunBody(assistant_id=assistant_id, metadata=metadata, **how, **given)
        return await begin_run(self._service, body, place, owner)

    async def _find(self, id: str, owner: User) -> Record:
        """Return the latest run of a task."""
        thread_id, _, run_id = id.rpartition(":")
        await self._records.get("threads", thread_id, owner=owner)
        later = await self._records.search(
            "runs", thread_id, filter={"metadata": {TASK: run_id}}, limit=1
        )
        run = later[0] if later else await self._runs.find(run_id, thread_id)
        if run is None:
            raise Refused(404, f"there is no task {id!r}")
        return run

    async def _task(self, run: Record) -> Record:
        """Return the task of a run, with its output if it has ended."""
        thread_id, run_id = run["thread_id"], run["run_id"]
        run = await self._runs.find(run_id, thread_id) or run
        status = await self._runs.status(run)
        state, said, artifacts = _STATES.get(status, "unknown"), [], []
        if status not in UNFINISHED:
            app = self._service.graph(run["graph_id"])
            steps = app.aget_state_history(config_of(thread_id), filter={"run_id": run_id}, limit=1)
            found = [step async for step in steps] or [await app.aget_state(config_of(thread_id))]
            values, asked = decode(encode([found[0].values, found[0].interrupts]))
            if status == "success" and asked:
                texts = [prompt_of(each["value"]) for each in asked]
                said = [*(_text(each) for each in texts if each), _data({"interrupts": asked})]
                state = "input-required"
            artifacts = [*_artifacts(values, run_id)]
        if status == "error":
            thread = await self._records.find("threads", thread_id)
            said = [_text(str(((thread or {}).get("error") or {}).get("message")))]
        message = {"kind": "message", "role": "agent", "messageId": f"{run_id}-{state}"}
        more = {"message": {**message, "parts": said}} if said else {}
        told = {"state": state, "timestamp": run["updated_at"], **more}
        named = {"kind": "task", "id": _id_of(run), "contextId": thread_id}
        return {**named, "status": told, "artifacts": artifacts}

    async def _follow(self, run: Record) -> AsyncIterator[Record]:
        """Yield the events of a task until it ends or asks."""
        yield await self._task(run)
        sent: set[str] = set()
        place = {"taskId": _id_of(run), "contextId": run["thread_id"]}
        update = {"kind": "artifact-update", **place}
        async for some in self._runs.events(run, 0):
            for event in some:
                message = event.value[0] if event.kind == "messages" else {"role": "none"}
                text = text_of(message.get("content"))
                if role_of(message) == "assistant" and text:
                    id = str(message.get("id"))
                    artifact = {"artifactId": id, "parts": [_text(text)]}
                    yield {**update, "artifact": artifact, "append": id in sent}
                    sent.add(id)
        task = await self._task(run)
        for artifact in task["artifacts"]:
            if artifact["artifactId"] not in sent:
                yield {**update, "artifact": artifact, "lastChunk": True}
        if task["status"]["state"] not in ("submitted", "working"):  # or this server stops
            yield {"kind": "status-update", **place, "status": task["status"], "final": True}


def _sse(told: Record) -> bytes:
    return b"data: %s\n\n" % encode(told)


def _id_of(run: Record) -> str:
    """Return the id of a run's task, which names the thread as well."""
    return f"{run['thread_id']}:{run['metadata'].get(TASK, run['run_id'])}"


def _read_input(message: A2aMessage, schema: Mapping[str, Any]) -> Record:
    """Return a message as a graph's input: its data, and its text as a message of the user.

    Raises:
        Refused: the graph takes no messages, and there is nothing but text.
    """
    if not message.text:
        return message.data
    if "messages" not in schema.get("properties", ()):
        keys = ", ".join(schema.get("properties", ())) or "a value"
        raise Refused(422, f"the graph takes no messages: send a data part with {keys}")
    said = {"role": "user", "content": message.text, "id": message.message_id}
    return {**message.data, "messages": [said]}


def _answers(message: A2aMessage, asked: list[str]) -> Record:
    """Return the answers to open questions: data by their ids, or one answer to the only one."""
    data = message.data
    if data and data.keys() <= {*asked}:
        return data
    if len(asked) > 1:
        raise Refused(422, f"several questions are open: send a data part by {', '.join(asked)}")
    return {asked[0]: data or message.text}


def _artifacts(values: Any, run_id: str) -> Iterator[Record]:
    """Yield a state as artifacts: the model's last message, and the rest as data."""
    rest = dict(values) if isinstance(values, dict) else {"result": values}
    messages = rest.pop("messages", None)
    last = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(last, dict) and role_of(last) == "assistant":
        parts = [_text(text_of(last.get("content")))]
        yield {"artifactId": str(last.get("id") or f"{run_id}-answer"), "parts": parts}
    if rest:
        yield {"artifactId": f"{run_id}-state", "parts": [_data(rest)]}


def _text(text: str) -> Record:
    return {"kind": "text", "text": text}


def _data(data: Record) -> Record:
    return {"kind": "data", "data": data}
