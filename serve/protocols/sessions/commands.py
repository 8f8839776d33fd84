"""The commands of a session: begin a run, or answer questions so that a run continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...bodies import CommandRequest, RunBody
from ...errors import TOO_MANY, Refused
from ...records import Record
from ...runs.new_runs import begin_run
from ...service import Service, validate
from .events import seq_before
from .translate import MODES

_OF_A_RUN: Final = (
    "config",
    "context",
    "metadata",
    "checkpoint",
    "checkpoint_id",
    "durability",
    "interrupt_before",
    "interrupt_after",
    "multitask_strategy",
    "webhook",
)
"""Options of a run that a command may set, in addition to its input."""


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
        asks = await self._service.questions(self._thread_id, self._owner)
        if given["input"] is not None and asks:
            given = {"command": {"resume": given["input"]}}
        return await self._begin({**given, "assistant_id": params["assistant_id"]}, params)

    async def _respond(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one question, or several at once."""
        answers = _read_answers(params)
        asked = await self._service.questions(self._thread_id, self._owner)
        for id in answers:
            if id not in asked:
                why = f"the thread asks no question {id!r}, or it was answered"
                raise CommandError("no_such_interrupt", why)
        thread = await self._service.records.get("threads", self._thread_id, owner=self._owner)
        command = {name: params[name] for name in ("update", "goto") if name in params}
        given = {"command": {**command, "resume": answers}, "multitask_strategy": "reject"}
        known = thread["metadata"]  # it has `graph_id`, since a graph has asked
        assistant = known.get("assistant_id") or known["graph_id"]
        return await self._begin({**given, "assistant_id": assistant}, params)

    async def _begin(
        self, given: Mapping[str, Any], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        more = {name: params[name] for name in _OF_A_RUN if params.get(name) is not None}
        how = {"stream_mode": [*MODES], "stream_subgraphs": True, "if_not_exists": "create"}
        body = validate(RunBody, {**more, **given, **how})
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
