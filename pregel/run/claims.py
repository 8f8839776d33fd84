"""Claims: the answers that a call has brought, stored beside the checkpoint whose tasks asked.

A claim is stored before any node runs, so that of several calls one goes on, and what a person has
said outlives the process. It stays open until each of its answers has reached the record of the
task that asked, or that task has finished. It is live as long as the run that stored it may be at
work.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypedDict

FIRST = ""
"""In a claim, in place of a question's id: the first question that is asked."""


class ClaimRecord(TypedDict):
    """A claim as it is stored.

    Keys:
        answers: by question; the answer without a question is for the first that is asked.
        run_id: the run that brought them, if it has a name.
        taken: the named runs whose commands were taken beside this checkpoint.
        before: the questions whose answers were recorded by then.
        live: the run may be at work, or dead; it has not recorded its end.
    """

    answers: dict[str, Any]
    run_id: str | None
    taken: list[str]
    before: list[str]
    live: bool


def find_undelivered(
    claim: ClaimRecord | None, open_ids: Collection[str], given: Collection[str]
) -> dict[str, Any]:
    """The answers of a claim that have not reached the record of a task.

    Args:
        open_ids: the questions that are recorded and wait.
        given: the questions whose answers are recorded beside this checkpoint.
    """
    if claim is None:
        return {}
    left = {q: answer for q, answer in claim["answers"].items() if q in open_ids and q not in given}
    # Any answer that was recorded since the claim may be this one, taken by a question that was
    # asked later. To give it again could answer two questions.
    if FIRST in claim["answers"] and set(given) <= set(claim.get("before", ())):
        left[FIRST] = claim["answers"][FIRST]
    return left


def is_live(claim: ClaimRecord | None) -> bool:
    """Whether the run that brought these answers has not ended, as far as is recorded."""
    return claim is not None and bool(claim.get("live", True))
