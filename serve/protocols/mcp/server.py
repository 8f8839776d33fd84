"""The MCP server: each graph is a tool. A question becomes an elicitation if the client supports
it.

Needs the extra `mcp`; loaded on the first request. A client that speaks protocol version 2026-07-28
gets the question as the result and calls again with the answer; an older one is asked during its
call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from uuid import uuid4

from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from ....checkpoint.base import ERROR, INTERRUPT
from ...bodies import RunBody
from ...encode import decode, encode
from ...errors import LOG, Refused
from ...runs.new_runs import begin_run
from ...service import Service, read_json, version
from . import tools

MOST_SESSIONS: Final = 100
"""How many sessions one user may have. A client that leaves without closing its session opens a
new one each time, so it is the one used least recently that is closed."""
MOST_BYTES: Final = 1024 * 1024
"""The maximum size of a message: the package parses it in the event loop."""
_SESSION: Final = "mcp-session-id"
Context = ServerRequestContext[Any, Any]
Questions = dict[str, dict[str, Any]]
Reply = types.CallToolResult | types.InputRequiredResult


@dataclass
class _Call:
    """A tool call.

    Attributes:
        owner: the user who calls; None if there are no users.
        thread_id: of the thread on which it runs the graph.
        steps: counts the supersteps that are reported to it, over all its runs.
    """

    context: Context
    owner: str | None
    graph_id: str
    thread_id: str
    steps: Iterator[int] = field(default_factory=lambda: count(1))


class McpServer:
    """The MCP server, as an ASGI app. Its sessions end with `close`, or after half an hour
    without use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tools = tools.make_tools(service.graphs)
        handlers: Any = {"on_list_tools": self.list_tools, "on_call_tool": self.call_tool}
        server = Server("stategraph", version=version(), **handlers)
        most = min(service.limits.body_bytes, MOST_BYTES)
        self._sessions = StreamableHTTPSessionManager(server, max_request_body_size=most)
        self._of_user: dict[str, dict[str, int]] = {}
        """Per user, the requests in progress of each session; the latest used session is last."""
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self._keep_sessions())

    async def _keep_sessions(self) -> None:
        async with self._sessions.run():
            self._ready.set()
            await asyncio.Event().wait()

    async def close(self) -> None:
        """End all sessions."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = await self._service.user(Request(scope))
        if owner is not None:  # the package checks that a session is used by its own user only
            token = AccessToken(token="", client_id=owner, scopes=[])
            scope = {**scope, "user": AuthenticatedUser(token)}
        await self._ready.wait()
        user, used = owner or "", Headers(scope=scope).get(_SESSION, "")
        mine = self._of_user.setdefault(user, {})

        async def note(message: Message) -> None:
            if id := Headers(raw=message.get("headers", ())).get(_SESSION):
                mine.setdefault(id, 0)
            await send(message)

        if used in mine:
            mine[used] = mine.pop(used) + 1
        try:
            await self._sessions.handle_request(scope, receive, note)
        finally:
            if used in mine:
                mine[used] -= 1
            if scope["method"] == "DELETE":
                mine.pop(used, None)
            await self._close_unused(scope, mine)
            if not mine:
                self._of_user.pop(user, None)

    async def _close_unused(self, scope: Scope, mine: dict[str, int]) -> None:
        """Close the sessions of a user beyond the limit, those used least recently first."""
        unused = [id for id, requests in mine.items() if not requests]
        for id in unused[: max(0, len(mine) - MOST_SESSIONS)]:
            del mine[id]
            closing = {**scope, "method": "DELETE", "headers": [(_SESSION.encode(), id.encode())]}
            await self._sessions.handle_request(closing, _nothing, _nothing)

    async def list_tools(self, *_: Any) -> types.ListToolsResult:
        """List the graphs, and the tool that answers questions."""
        answer = [] if tools.ANSWER in self._tools else [tools.make_answer_tool()]
        graphs = [each.tool for each in self._tools.values()]
        return types.ListToolsResult(tools=[*graphs, *answer])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> Reply:
        """Run a graph, or answer a question that it has asked."""
        if params.name not in self._tools and params.name != tools.ANSWER:
            known = f"there are: {', '.join([*self._tools, tools.ANSWER])}"
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; {known}")
        try:
            read_json(json.dumps(params.model_dump(exclude={"meta"})).encode())
            return await self._call(context, params)
        except Refused as refused:
            return tools.show_error(refused.detail)
        except Exception:
            LOG.exception("a call of the tool %r has failed", params.name)
            return tools.show_error("the server has failed; its log says why")

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> Reply:
        request: Any = context.request
        owner, given = await self._service.user(request), params.arguments or {}
        tool = self._tools.get(params.name)
        if tool is None:
            return await self._answer(context, owner, given)
        if (state := params.request_state) is not None:  # the client's word: `_go_on` checks it
            call = _Call(context, owner, tool.graph_id, state)
            return await self._go_on(call, params.input_responses or {})
        try:
            wanted, value = tool.read(given)
        except ValueError as error:
            return tools.show_error(f"wrong arguments: {error}")
        call = _Call(context, owner, tool.graph_id, wanted or str(uuid4()))
        if await self._questions(call):
            raise Refused(409, f"the thread {wanted!r} waits for an answer: call {tools.ANSWER}")
        return await self._converse(call, {"input": value})

    async def _answer(
        self, context: Context, owner: str | None, given: Mapping[str, Any]
    ) -> Reply:
        """Answer a question of a thread.

        Raises:
            Refused: there is no such thread, or no such question.
        """
        thread_id = str(given.get("thread_id"))
        thread = await self._service.records.get("threads", thread_id, owner=owner)
        call = _Call(context, owner, str(thread["metadata"].get("graph_id")), thread_id)
        asked = await self._service.questions(thread)
        ids = ", ".join(asked) or "none"
        id = given.get("question") or (next(iter(asked)) if len(asked) == 1 else None)
        if id not in [*asked] or "answer" not in given:
            raise Refused(409, f"the answer must name an open question of the thread; open: {ids}")
        return await self._converse(call, _resume({id: given["answer"]}))

    async def _questions(self, call: _Call) -> Questions:
        """Return the open questions of a thread; none if the thread does not exist yet.

        Raises:
            Refused: it is another user's, or another graph's.
        """
        id = call.thread_id
        thread = await self._service.thread(id, call.owner)
        graph_id = thread["metadata"].get("graph_id") if thread else None
        if graph_id not in (None, call.graph_id):
            raise Refused(409, f"the thread {id!r} is one of the graph {graph_id!r}")
        return await self._service.questions(thread)

    async def _converse(self, call: _Call, given: Mapping[str, Any]) -> Reply:
        """Run a graph until it ends, or until it asks something that the client cannot show.

        Args:
            given: the input or the command of the run.
        """
        while True:
            values = await self._run(call, given)
            if isinstance(values, types.CallToolResult):
                return values
            asked = values.pop(INTERRUPT, ()) if isinstance(values, dict) else ()
            if not asked:
                return tools.show_result(values, call.thread_id)
            answers = await self._ask(call, {each["id"]: each for each in asked})
            if not isinstance(answers, dict):
                return answers
            given = _resume(answers)

    async def _ask(self, call: _Call, questions: Questions) -> dict[str, Any] | Reply:
        """Return the answers to some questions, or what to send to a client that cannot be asked
        now."""
        session = call.context.session
        forms = {id: tools.make_form(each) for id, each in questions.items()}
        shown = {id: form for id, form in forms.items() if form is not None}
        capabilities = session.client_capabilities
        can = capabilities.elicitation if capabilities is not None else None
        can_show = can is not None and (can.form is not None or can.url is None)
        if len(shown) < len(forms) or not can_show:
            return tools.show_questions(questions.values(), call.thread_id)
        if not session.can_send_request:
            requests: Any = {id: form.request() for id, form in shown.items()}
            return types.InputRequiredResult(input_requests=requests, request_state=call.thread_id)
        answers = {}
        for id, form in shown.items():
            place = call.context.request_id
            reply = await session.elicit_form(form.message, form.schema, related_request_id=place)
            if reply.action != "accept":  # no answer: the question stays open
                return tools.show_questions(questions.values(), call.thread_id)
            answers[id] = form.read(reply.content)
        return answers

    async def _go_on(self, call: _Call, replies: Mapping[str, Any]) -> Reply:
        """Take the answers of a client that was sent questions as a result."""
        id = call.thread_id
        thread = await self._service.records.get("threads", id, owner=call.owner)
        questions = await self._questions(call)
        answers = {
            id: form.read(reply.content)
            for id, question in questions.items()
            if isinstance(reply := replies.get(id), types.ElicitResult)
            and reply.action == "accept"
            and (form := tools.make_form(question)) is not None
        }
        if answers:
            return await self._converse(call, _resume(answers))
        if questions:
            return tools.show_questions(questions.values(), id)
        state = await self._service.state(thread)  # it was answered already
        return tools.show_result(decode(encode(state and state.values)), id)

    async def _run(self, call: _Call, given: Mapping[str, Any]) -> Any:
        """Run a graph to its end and report its supersteps. Return its output with its questions,
        or its error as a tool result. The run stops if the client cancels the call."""
        how: Any = {"stream_mode": ["values", "tasks"], "multitask_strategy": "reject"}
        body = RunBody(assistant_id=call.graph_id, if_not_exists="create", **how, **given)
        runs, session, id = self._service.runs, call.context.session, call.thread_id
        run = await begin_run(self._service, body, id, call.owner)
        nodes: list[str] = []
        try:
            async for some in runs.events(run, 0):
                for event in some:
                    task = event.value if event.kind == "tasks" else {}
                    if "result" in task and not task["interrupts"]:
                        nodes.append(task["name"])
                    elif event.kind == "values" and nodes:
                        await session.report_progress(next(call.steps), None, ", ".join(nodes))
                        nodes = []
            values = decode(await self._service.result_of(run))
        except Refused:
            if not runs.stopping.is_set():
                raise
            why = f"the server stops; the next one goes on with the thread {id!r}"
            return tools.show_error(why, id)
        finally:
            runs.cancel_soon(run)
        status = await self._service.status_of(run)
        if status == "interrupted":
            return tools.show_error("the run was cancelled", id)
        if isinstance(values, dict) and (wrong := values.get(ERROR)):
            return tools.show_error(f"{wrong['error']}: {wrong['message']}", id)
        if status == "error":  # its error is not in memory any more
            return tools.show_error(f"the run has failed; the thread {id!r} has its error", id)
        return values


async def _nothing(*_: Message) -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


def _resume(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {"command": {"resume": answers}}
