"""What a call means: new input, an answer, an update, a fork, or simply going on.

Decided once, from what is given and what is stored, before anything is done. Pure functions.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ...channels.base import MISSING
from ..errors import EmptyInputError, InvalidUpdateError
from ..types import Command
from .nested import stopped_here
from .resume import was_taken
from .run import Run


class Given(Enum):
    """What the caller has given."""

    NOTHING = "None"
    INPUT = "an input"
    ANSWERS = "Command(resume=...)"
    COMMAND = "Command(update=..., goto=...)"


class Stored(Enum):
    """Where the thread stands."""

    NOTHING = "nothing is stored"
    NEWEST = "at its newest checkpoint"
    EARLIER = "at an earlier checkpoint, or one that the config names"


class Delivery(Enum):
    """Whether the call was made before: by a task that runs again, or under the same `run_id`."""

    FIRST = "first call"
    STOPPED = "nested graph that stopped here"
    TAKEN = "came before, nothing followed"
    FOLLOWED = "came before, others followed"


class Meaning(Enum):
    """What a call means."""

    NEW_INPUT = (
        "pending work is dropped; the input is stored as a checkpoint, and the graph starts from it"
    )
    GO_ON = "pending tasks run; they get the answers that an unfinished call has claimed"
    TAKE_COMMAND = (
        "answers are bound to open questions, updates are applied; then pending tasks run"
    )
    START_BY_COMMAND = (
        "update and goto are stored as the first checkpoint; the graph starts from it"
    )
    SHOW_AGAIN = "nothing runs; the call returns the result that it had"
    REFUSE = "an error: there is nothing to go on with"


class Start(NamedTuple):
    """What a call means, decided before anything is done.

    Attributes:
        branches: what follows the checkpoint is done anew, on a branch of its own. A question that
            was answered there can be answered otherwise.
    """

    meaning: Meaning
    branches: bool = False


def decide(given: Given, stored: Stored, delivery: Delivery) -> Start:
    """What a call means. docs/explanation/architecture.md has all of it as a table."""
    if delivery is Delivery.FOLLOWED:
        return Start(Meaning.SHOW_AGAIN)
    branches = stored is Stored.EARLIER
    if delivery is not Delivery.FIRST:
        return Start(Meaning.GO_ON, branches)
    if given is Given.INPUT:
        return Start(Meaning.NEW_INPUT, branches)
    if stored is not Stored.NOTHING:
        return Start(Meaning.GO_ON if given is Given.NOTHING else Meaning.TAKE_COMMAND, branches)
    return Start(Meaning.START_BY_COMMAND if given is Given.COMMAND else Meaning.REFUSE)


def classify_call(run: Run, *, followed: bool) -> Start:
    """What this call means, now that its checkpoint is loaded.

    Args:
        followed: it came before, and other calls have followed.
    """
    given = _given(run)
    if followed:
        delivery = Delivery.FOLLOWED
    elif run.thread.run_id is not None and _was_delivered(run, given):
        delivery = Delivery.TAKEN
    elif run.parent is not None and _stopped(run, given):
        delivery = Delivery.STOPPED
    else:
        delivery = Delivery.FIRST
    return decide(given, _stored(run, given), delivery)


def _given(run: Run) -> Given:
    """What the caller has given.

    Raises:
        InvalidUpdateError: a command that is for a graph around this one.
        EmptyInputError: a command that says nothing.
    """
    given = run.settings.given
    if given is None:
        return Given.NOTHING
    if not isinstance(given, Command):
        return Given.INPUT
    if given.graph is not None:
        raise InvalidUpdateError(
            "Command(graph=Command.PARENT) was given as input, but there is no parent graph"
        )
    if given.resume is not MISSING:
        return Given.ANSWERS
    if given.update is None and not given.steps():
        raise EmptyInputError(
            "the Command given as input is empty: it has no update, no goto and no resume"
        )
    return Given.COMMAND


def _stored(run: Run, given: Given) -> Stored:
    """Where the thread stands. A checkpoint that the caller names is done anew, but an answer to a
    question that waits is for the checkpoint that asks it."""
    thread, replay = run.thread, run.replay
    if run.position.found is None:
        return Stored.NOTHING
    if not run.position.at_head or replay.seeded:
        return Stored.EARLIER
    if not thread.names_checkpoint or thread.ns:
        return Stored.NEWEST
    route = replay.route
    # Inside a nested graph it is the nested checkpoint that asks; its question may have been
    # answered since, and then the answer makes a branch.
    answered_before = route is not None and not route.stored and not route.waits
    return Stored.NEWEST if given is Given.ANSWERS and not answered_before else Stored.EARLIER


def _was_delivered(run: Run, given: Given) -> bool:
    """Whether this very call was taken before: it has the run id of the checkpoint, or of a command
    beside it."""
    found = run.position.found
    if found is None or given is Given.NOTHING:
        return False
    if given is Given.INPUT:
        # A nested graph has the run id of the call around it in all its checkpoints, so there it
        # says nothing about this call.
        return not run.ns and found.metadata.get("run_id") == run.thread.run_id
    return was_taken(run)


def _stopped(run: Run, given: Given) -> bool:
    """Whether this is the call of a nested graph that stopped here when its task ran before."""
    if given not in (Given.NOTHING, Given.INPUT):
        return False
    return run.replay.seeded or stopped_here(run, run.position.found)
