"""The MCP server: each graph is a tool. A question becomes an elicitation if the client supports
it.

Needs the extra `mcp`; loaded on the first request. A client that speaks protocol version 2026-07-28
gets the question as the result and calls again with the answer; an older one is asked during its
call.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
)
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from ....checkpoint.base import INTERRUPT
from ....pregel.app import Pregel
from ...bodies import RunBody
from ...encode import decode, encode
from ...errors import Refused
from ...runs.new_runs import begin_run
from ...service import Service, config_of, read_json, version
from .tools import (
    ANSWER,
    Form,
    make_answer_tool,
    make_form,
    make_tools,
    show_error,
    show_questions,
    show_result,
)

MOST_SESSIONS: Final = 100
"""How many sessions one user may have. A client that leaves without closing its session opens a
new one each time, so it is the one used least recently that is closed."""
MOST_BYTES: Final = 1024 * 1024
"""The maximum size of a message: the package parses it in the event loop."""
_SESSION: Final = "mcp-session-id"
LOG: Final = logging.getLogger("stategraph.serve")
Context = ServerRequestContext[Any, Any]
Questions = dict[str, dict[str, Any]]


@dataclass
class _Outcome:
    """The outcome of a run.

    Attributes:
        values: the graph's output, as JSON.
        questions: the open questions, by id.
        error: the message of the error, if any.
    """

    values: Any = None
    questions: Questions = field(default_factory=dict)
    error: str | None = None


@dataclass
class _Call:
    """A tool call.

    Attributes:
        owner: the user who calls; None if there are no users.
        steps: how many supersteps were reported to it, over all its runs.
    """

    context: Context
    owner: str | None
    steps: int = 0

    async def tell(self, nodes: list[str]) -> None:
        """Report a superstep, by the nodes that have run in it."""
        self.steps += 1
        await self.context.session.report_progress(self.steps, None, ", ".join(nodes))


class McpServer:
    """The MCP server, as an ASGI app. Its sessions end with `close`, or after half an hour
    without use."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tools = make_tools(service.graphs)
        server: Any = Server(
            "stategraph",
            version=version(),
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )
        self._sessions = StreamableHTTPSessionManager(
            server, max_request_body_size=min(service.body_bytes, MOST_BYTES)
        )
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
        user = owner or ""
        used, opened = Headers(scope=scope).get(_SESSION), None
        mine = self._of_user.setdefault(user, {})
        is_over = scope["method"] == "DELETE"

        async def watch(message: Message) -> None:
            nonlocal opened, is_over
            if message["type"] == "http.response.start":
                opened = Headers(raw=message["headers"]).get(_SESSION) if used is None else None
                is_over = is_over or message["status"] == 404
            await send(message)

        if used in mine:
            mine[used] = mine.pop(used) + 1
        try:
            await self._sessions.handle_request(scope, receive, watch)
        finally:
            if used in mine:
                mine[used] -= 1
                if is_over:
                    del mine[used]
            if opened is not None:
                mine[opened] = 0
                await self._close_unused(scope, mine)
            if not mine:
                self._of_user.pop(user, None)

    async def _close_unused(self, scope: Scope, mine: dict[str, int]) -> None:
        """Close the sessions of a user beyond the limit, those used least recently first."""
        unused = [id for id, requests in mine.items() if not requests]
        for id in unused[: max(0, len(mine) - MOST_SESSIONS)]:
            del mine[id]
            headers = [(_SESSION.encode(), id.encode())]
            await self._sessions.handle_request(
                {**scope, "method": "DELETE", "headers": headers}, _receive_nothing, _send_nothing
            )

    # -- tools -------------------------------------------------------------------------------------

    async def list_tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        """List the graphs, and the tool that answers questions."""
        tools = [each.tool for each in self._tools.values()]
        if ANSWER not in self._tools:
            tools.append(make_answer_tool())
        return ListToolsResult(tools=tools)

    async def call_tool(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Run a graph, or answer a question that it has asked."""
        if params.name not in self._tools and params.name != ANSWER:
            known = ", ".join([*self._tools, ANSWER])
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}; there are: {known}")
        try:
            read_json(json.dumps(params.model_dump(exclude={"meta"})).encode())
            return await self._call(context, params)
        except Refused as refused:
            return show_error(refused.detail)
        except Exception:
            LOG.exception("a call of the tool %r has failed", params.name)
            return show_error("the server has failed; its log says why")

    async def _call(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        request: Any = context.request
        owner = await self._service.user(request)
        call, given = _Call(context, owner), params.arguments or {}
        tool = self._tools.get(params.name)
        if tool is None:
            thread_id, graph_id, answers = await self._read_answer(given, owner)
            return await self._converse(call, graph_id, thread_id, _resume(answers))
        if params.request_state is not None:
            thread_id = params.request_state  # the client's word: `_go_on` checks it
            return await self._go_on(call, tool.graph_id, thread_id, params.input_responses or {})
        try:
            wanted, value = tool.read(given)
        except ValueError as error:
            return show_error(f"wrong arguments: {error}")
        if wanted is not None and await self._questions(tool.graph_id, wanted, owner):
            raise Refused(409, f"the thread {wanted!r} waits for an answer: call {ANSWER}")
        return await self._converse(call, tool.graph_id, wanted or str(uuid4()), {"input": value})

    async def _read_answer(
        self, given: Mapping[str, Any], owner: str | None
    ) -> tuple[str, str, dict[str, Any]]:
        """Return the thread that an answer is for, its graph, and the answer by the question's id.

        Raises:
            Refused: there is no such thread, or no such question.
        """
        thread_id = str(given.get("thread_id"))
        thread = await self._service.records.get("threads", thread_id, owner=owner)
        graph_id = str(thread["metadata"].get("graph_id"))
        asked = await self._questions(graph_id, thread_id, owner)
        ids = ", ".join(asked) or "none"
        id = given.get("question") or (next(iter(asked)) if len(asked) == 1 else None)
        if id not in asked or "answer" not in given:
            raise Refused(409, f"the answer must name an open question of the thread; open: {ids}")
        return thread_id, graph_id, {id: given["answer"]}

    async def _questions(self, graph_id: str, thread_id: str, owner: str | None) -> Questions:
        """Return the open questions of a thread; none if the thread does not exist yet.

        Raises:
            Refused: it is another user's, or another graph's.
        """
        if await self._service.records.find("threads", thread_id) is None:
            return {}
        thread = await self._service.records.get("threads", thread_id, owner=owner)
        its_graph = thread["metadata"].get("graph_id")
        if its_graph not in (None, graph_id):
            raise Refused(409, f"the thread {thread_id!r} is one of the graph {its_graph!r}")
        return await self._service.questions(thread_id, owner)

    def _app(self, graph_id: str) -> Pregel:
        if graph_id not in self._service.graphs:
            raise Refused(404, f"there is no graph {graph_id!r}")
        return self._service.graphs[graph_id]

    # -- questions ---------------------------------------------------------------------------------

    async def _converse(
        self, call: _Call, graph_id: str, thread_id: str, given: Mapping[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Run a graph until it ends, or until it asks something that the client cannot show.

        Args:
            given: the input or the command of the run.
        """
        while True:
            outcome = await self._run(call, graph_id, thread_id, given)
            if outcome.error is not None:
                return show_error(outcome.error, thread_id)
            if not outcome.questions:
                return show_result(outcome.values, thread_id)
            asked = await self._ask(call.context, outcome.questions, thread_id)
            if not isinstance(asked, dict):
                return asked
            given = _resume(asked)

    async def _ask(
        self, context: Context, questions: Questions, thread_id: str
    ) -> dict[str, Any] | CallToolResult | InputRequiredResult:
        """Return the answers to some questions, or what to send to a client that cannot be asked
        now."""
        forms = {id: make_form(each) for id, each in questions.items()}
        shown = {id: form for id, form in forms.items() if form is not None}
        if len(shown) < len(forms) or not _can_show(context):
            return show_questions(questions.values(), thread_id)
        if not context.session.can_send_request:
            requests: Any = {id: ElicitRequest(params=_params(form)) for id, form in shown.items()}
            return InputRequiredResult(input_requests=requests, request_state=thread_id)
        answers = {}
        for id, form in shown.items():
            reply = await context.session.elicit_form(
                form.message, form.schema, related_request_id=context.request_id
            )
            if reply.action != "accept":  # no answer: the question stays open
                return show_questions(questions.values(), thread_id)
            answers[id] = form.read(reply.content)
        return answers

    async def _go_on(
        self, call: _Call, graph_id: str, thread_id: str, replies: Mapping[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Take the answers of a client that was sent questions as a result."""
        if await self._service.records.find("threads", thread_id) is None:
            raise Refused(404, f"there is no thread {thread_id!r}")
        questions = await self._questions(graph_id, thread_id, call.owner)
        answers = {
            id: form.read(reply.content)
            for id, question in questions.items()
            if isinstance(reply := replies.get(id), ElicitResult)
            and reply.action == "accept"
            and (form := make_form(question)) is not None
        }
        if answers:
            return await self._converse(call, graph_id, thread_id, _resume(answers))
        if questions:
            return show_questions(questions.values(), thread_id)
        state = await self._app(graph_id).aget_state(config_of(thread_id))  # already answered
        return show_result(decode(encode(state.values)), thread_id)

    # -- runs --------------------------------------------------------------------------------------

    async def _run(
        self, call: _Call, graph_id: str, thread_id: str, given: Mapping[str, Any]
    ) -> _Outcome:
        """Run a graph to its end and report its supersteps. The run stops if the client cancels the
        call."""
        body = RunBody(
            assistant_id=graph_id,
            stream_mode=["values", "tasks"],
            if_not_exists="create",
            multitask_strategy="reject",
            **given,
        )
        run = await begin_run(self._service, body, thread_id, call.owner)
        outcome, nodes = _Outcome(), []
        try:
            async for some in self._service.runs.events(run, 0):
                for event in some:
                    data = event.value
                    if event.kind == "error":
                        outcome.error = f"{data['error']}: {data['message']}"
                    elif event.kind == "tasks" and "result" in data and not data["interrupts"]:
                        nodes.append(data["name"])
                    elif event.kind == "values":
                        outcome.values, outcome.questions = _read_values(data)
                        if nodes:
                            await call.tell(nodes)
                            nodes = []
        finally:
            self._service.runs.cancel_soon(run)
        record = await self._service.records.find("runs", run["run_id"], thread_id)
        status = record["status"] if record is not None else "interrupted"
        if status == "interrupted":
            outcome.error = "the run was cancelled"
        elif self._service.runs.is_left(run):
            outcome.error = f"the server stops; the next one goes on with the thread {thread_id!r}"
        return outcome


async def _receive_nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send_nothing(_: Message) -> None:
    pass


def _resume(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {"command": {"resume": answers}}


def _read_values(data: Any) -> tuple[Any, Questions]:
    if not isinstance(data, dict):
        return data, {}
    asked = {each["id"]: each for each in data.get(INTERRUPT, ())}
    return {key: value for key, value in data.items() if key != INTERRUPT}, asked


def _can_show(context: Context) -> bool:
    """Return whether the client can show forms to a person."""
    capabilities = context.session.client_capabilities
    found = capabilities.elicitation if capabilities is not None else None
    return found is not None and (found.form is not None or found.url is None)


def _params(form: Form) -> ElicitRequestFormParams:
    return ElicitRequestFormParams(message=form.message, requested_schema=form.schema)
