"""Request bodies, validated by pydantic. An unknown field is ignored, since newer clients send
more, unless its name is close to that of a missing field; a known field that the server does not
support is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..checkpoint.records import RunnableConfig
from ..pregel.errors import closest
from .parts import check_number, check_paths, check_state_fields
from .protocols.sessions.translate import CHANNELS, CUSTOM
from .records import containing

# -- fields that need a special rule ---------------------------------------------------------------

Strategy = Literal["reject", "interrupt", "rollback", "enqueue"]
Mode = Literal[
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "tasks",
    "checkpoints",
    "debug",
    "events",
]
Order = Literal["asc", "desc"]
IfExists = Literal["raise", "do_nothing"] | None
Many = dict[str, Any]
Each = TypeVar("Each")
Few = Annotated[list[Each], Field(max_length=10_000, fail_fast=True)]
"""A list of which the first wrong element is told: there may be hundreds of thousands."""
_MOST_COMPARED: Final = 100
"""How many unknown names of one request are compared with the known ones."""
_SETTINGS: Final = (*RunnableConfig.__annotations__,)
MOST_SETTINGS = 128 * 1024
"""The greatest length of metadata, and of a config, as JSON."""
LATEST_SECONDS = 100 * 365 * 24 * 3600.0
"""The longest delay of a run: a hundred years, which every clock and database can represent."""


def _check_modes(asked: Any) -> Any:
    """Check the stream modes before pydantic does, which would report one error for each member of
    the union."""
    for mode in asked if isinstance(asked, list) else [asked]:
        if mode not in get_args(Mode):
            offered = ", ".join(get_args(Mode))
            raise ValueError(f"the stream mode {mode!r} is not offered; offered are: {offered}")
    return asked


def _check_channel(channel: str) -> str:
    if channel not in CHANNELS and not (channel.startswith(CUSTOM) and channel != CUSTOM):
        offered = ", ".join([*CHANNELS, f"{CUSTOM}NAME"])
        raise ValueError(f"the channel {channel!r} is not offered; offered are: {offered}")
    return channel


def _check_size(settings: Many) -> Many:
    """Refuse metadata or a config that takes long to look at: most of that is done on the loop."""
    size = len(json.dumps(settings))
    if size > MOST_SETTINGS:
        raise ValueError(f"must have at most {MOST_SETTINGS} characters as JSON, got {size}")
    return settings


def _check_graph_id(metadata: Many) -> Many:
    if not isinstance(metadata.get("graph_id", ""), str):
        raise ValueError("graph_id must be the name of a graph")
    return metadata


class Spelling:
    """Finds the misspelt names in one request. Comparing is slow, so only some are compared."""

    def __init__(self) -> None:
        self._left = _MOST_COMPARED

    @classmethod
    def of(cls, info: ValidationInfo) -> Spelling:
        """Return that of the request which is being validated."""
        return info.context if isinstance(info.context, cls) else cls()

    def find(self, name: str, known: Iterable[str]) -> str | None:
        """Return the known name that was probably meant."""
        if not self._left:
            return None
        self._left -= 1
        for each in known:
            if len(each) == len(name) and sorted(each) == sorted(name):  # "inptu" for "input"
                return each
        return closest(name, known, cutoff=0.85)


def _check_config(config: Many, info: ValidationInfo) -> Many:
    """Check the names of the settings in a config, and the types of those that a run reads. A name
    in the form of JavaScript (`recursionLimit`) is translated, and null means the default. Other
    keys are ignored, since newer clients may send more."""
    _check_size(config)
    spelling = Spelling.of(info)
    named = {_name_setting(name, config, spelling): value for name, value in config.items()}
    config = {name: value for name, value in named.items() if value is not None}
    for name in ("configurable", "metadata"):
        if not isinstance(config.get(name, {}), dict):
            raise ValueError(f"{name} must be an object, got {config[name]!r}")
    tags = config.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(t, str) for t in tags)):
        raise ValueError(f"tags must be a list of strings, got {tags!r}")
    for name in ("recursion_limit", "max_concurrency"):
        number = config.get(name)
        if number is not None and (type(number) is not int or number < 1):
            raise ValueError(f"{name} must be an integer >= 1, got {number!r}")
    return config


def _name_setting(name: str, config: Many, spelling: Spelling) -> str:
    """Return the name of a setting as Python writes it.

    Raises:
        ValueError: it is almost, but not quite, the name of a setting.
    """
    if name in _SETTINGS:
        return name
    plain = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
    if plain in _SETTINGS:
        return name if plain in config else plain
    meant = spelling.find(plain, _SETTINGS)
    if meant is not None:
        raise ValueError(f"{name!r} is not a setting; did you mean {meant!r}?")
    return name


def _check_place(place: Many) -> Many:
    for name in ("checkpoint_id", "checkpoint_ns"):
        if not isinstance(place.get(name), str | None):
            raise ValueError(f"{name} must be a string, got {place[name]!r}")
    return place


def check_segment(id: str) -> str:
    """Refuse an id that cannot be one segment of a URL path: nobody could reach such a thread."""
    if "/" in id or id in (".", ".."):
        raise ValueError("must not be '.' or '..', nor hold a slash")
    return id


def check_update(update: Any) -> Any:
    """Check the update of a command: state keys with values, as an object or as pairs."""
    pairs = update if isinstance(update, list) else []
    are_pairs = all(isinstance(e, list) and len(e) == 2 and isinstance(e[0], str) for e in pairs)
    if isinstance(update, dict | list | None) and are_pairs:
        return update
    raise ValueError(f"update must be an object or a list of [key, value] pairs, got {update!r}")


def check_goto(goto: Any) -> Any:
    """Check the nodes that a command goes to."""
    for end in goto if isinstance(goto, list) else [goto]:
        name = end.get("node") if isinstance(end, dict) else end
        if goto is not None and not (isinstance(name, str) and name):
            wanted = 'the name of a node, {"node": name, "input": ...} or a list of these'
            raise ValueError(f"goto must be {wanted}, got {end!r}")
    return goto


def list_ends(goto: Any) -> list[Any]:
    """Return the targets in a `goto`, which may be one, a list, or none."""
    if isinstance(goto, list):
        return goto
    return [goto] if goto else []


Channel = Annotated[str, AfterValidator(_check_channel)]
Modes = Annotated[Mode | Few[Mode], BeforeValidator(_check_modes)]
Config = Annotated[Many, AfterValidator(_check_config)]
Paths = Annotated[dict[str, str], BeforeValidator(check_number), AfterValidator(check_paths)]
StateFields = Annotated[Few[str], AfterValidator(check_state_fields)]
Place = Annotated[Many, AfterValidator(_check_place)]
"""Names a checkpoint of the thread."""
Metadata = Annotated[Many, AfterValidator(_check_size)]
ThreadMetadata = Annotated[Metadata, AfterValidator(_check_graph_id)]
"""Metadata of a thread; `graph_id` names the graph whose state the thread has."""


# -- bodies --------------------------------------------------------------------------------------


class Body(BaseModel):
    """The base class of all bodies."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", defer_build=True)

    names: ClassVar[set[str]] = set()
    """The fields of all bodies: clients also send some of them where they have no meaning."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Record the fields of a new body class."""
        cls.names.update(cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt(cls, given: Any, info: ValidationInfo) -> Any:
        spelling, left = Spelling.of(info), None
        for name in given if isinstance(given, dict) else ():
            if name in cls.names:
                continue
            left = left or [field for field in cls.model_fields if field not in given]
            meant = spelling.find(name, left)
            if meant is not None:
                raise ValueError(f"there is no field {name!r}; did you mean {meant!r}?")
        return given


class Slice(Body):
    """Selects a part of a list."""

    limit: int = Field(10, ge=0, le=1000)
    offset: int = Field(0, ge=0)


class Page(Slice):
    """One page of a list."""

    sort_by: str | None = None
    sort_order: Order | None = None
    select: Few[str] | None = None

    @property
    def page(self) -> Many:
        """What it says of the page, as `Records.search` takes it."""
        return self.model_dump(include={"limit", "offset", "sort_by", "sort_order"})


class Search(Page):
    """Searches records."""

    matched: ClassVar[set[str]] = set()
    """The fields whose values the records must have."""

    metadata: Metadata | None = None

    @property
    def filter(self) -> Many:
        """The condition that it states: values of some fields, and a part of the metadata."""
        wanted = self.model_dump(include=self.matched, exclude_none=True)
        return wanted | ({"metadata": containing(self.metadata)} if self.metadata else {})


class AssistantBody(Body):
    """Creates an assistant."""

    graph_id: str
    assistant_id: str | None = None
    config: Config = {}
    context: Many = {}
    metadata: Metadata = {}
    if_exists: IfExists = None
    name: str | None = None
    description: str | None = None


class AssistantChange(Body):
    """Changes an assistant."""

    graph_id: str | None = None
    config: Config | None = None
    context: Many | None = None
    metadata: Metadata | None = None
    name: str | None = None
    description: str | None = None


class AssistantSearch(Search):
    """Searches assistants."""

    matched: ClassVar[set[str]] = {"graph_id", "name"}

    graph_id: str | None = None
    name: str | None = None


class VersionBody(Body):
    """Selects a version of an assistant."""

    version: int


class DrawingQuery(Body):
    """Says how many levels of nested graphs a drawing shows; True for all."""

    xray: int | bool = Field(False, ge=0)


class LogQuery(Body):
    """Says after which line to begin."""

    after: int = Field(0, ge=0)


class SubgraphsQuery(Body):
    """Says whether to include nested graphs at every depth."""

    recurse: bool = False


class StateQuery(Body):
    """Says which fields of a state to return, and whether to include the states of nested
    graphs."""

    subgraphs: bool = False
    select: StateFields | None = None


class StateBody(Body):
    """Edits a thread's state."""

    values: Any = None
    as_node: str | None = None
    checkpoint: Many | None = None
    checkpoint_id: str | None = None


class Ttl(Body):
    """Says after how many minutes without a change a thread is deleted, or its history pruned."""

    ttl: float = Field(gt=0, le=LATEST_SECONDS / 60)
    strategy: Literal["delete", "keep_latest"] = "delete"

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, given: Any) -> Any:
        return {"ttl": given} if isinstance(given, int | float) else given


class Superstep(Body):
    """Edits that form one superstep."""

    updates: Few[Many]


class ThreadChange(Body):
    """Changes a thread."""

    metadata: ThreadMetadata = {}
    ttl: Ttl | None = None


class ThreadBody(ThreadChange):
    """Creates a thread."""

    thread_id: str | None = None
    if_exists: IfExists = None
    supersteps: Few[Superstep] | None = None

    @field_validator("thread_id")
    @classmethod
    def _fits_an_address(cls, value: str | None) -> str | None:
        return value if value is None else check_segment(value)


class ThreadSearch(Search):
    """Searches threads."""

    ids: Few[str] | None = None
    values: Many | None = None
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    extract: Paths | None = None


class ThreadStreamQuery(Body):
    """Says what to stream of a thread."""

    stream_mode: Few[Literal["run_modes", "lifecycle", "state_update"]]


class CommandRequest(Body):
    """A command sent to a session."""

    id: int = Field(ge=0)
    method: str
    params: Many = {}


class SubscriptionBody(Body):
    """Says which events a subscription asks for."""

    channels: Few[Channel] = Field(min_length=1)
    namespaces: Few[Few[str]] | None = None
    depth: int | None = Field(None, ge=0)
    since: int | None = Field(None, ge=0)


class PruneBody(Body):
    """Names the threads to prune, and how."""

    thread_ids: Few[str]
    strategy: Literal["delete", "keep_latest"] = "delete"


class CheckpointBody(StateQuery):
    """Names a checkpoint of a thread."""

    checkpoint: Many


class HistoryBody(Body):
    """Says which part of a thread's history to return."""

    limit: int = Field(10, ge=1, le=1000)
    before: str | Many | None = None
    metadata: Metadata | None = None
    select: StateFields | None = None
    checkpoint: Many | None = None


class CommandBody(Body):
    """A command, sent instead of an input."""

    resume: Any = None
    update: Annotated[Any, AfterValidator(check_update)] = None
    goto: Annotated[Any, AfterValidator(check_goto)] = None

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes in `goto`."""
        return [end["node"] if isinstance(end, dict) else end for end in list_ends(self.goto)]

    @model_validator(mode="after")
    def _is_something(self) -> Self:
        if self.resume is None and self.update is None and not self.nodes:
            raise ValueError("must have an update, a goto or a resume")
        return self


class RunOptions(Body):
    """What a schedule may change of its runs."""

    input: Any = None
    stream_mode: Modes = ["values"]
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    metadata: Metadata | None = None
    config: Config | None = None
    context: Many | None = None
    interrupt_before: Literal["*"] | Few[str] | None = None
    interrupt_after: Literal["*"] | Few[str] | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    webhook: str | None = None


class RunBody(RunOptions):
    """Begins a run."""

    assistant_id: str
    command: CommandBody | None = None
    checkpoint: Place | None = None
    checkpoint_id: str | None = None
    multitask_strategy: Strategy | None = None
    if_not_exists: Literal["create", "reject"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    after_seconds: float | None = Field(None, ge=0, le=LATEST_SECONDS)

    @model_validator(mode="before")
    @classmethod
    def _read_old_durability(cls, given: Any) -> Any:
        """Translate `checkpoint_during`, which older clients send instead of `durability`."""
        if isinstance(given, dict) and given.get("durability") is None:
            during = given.get("checkpoint_during")
            if isinstance(during, bool):
                return {**given, "durability": "async" if during else "exit"}
        return given

    @property
    def modes(self) -> list[str]:
        """The stream modes, as a list."""
        return [self.stream_mode] if isinstance(self.stream_mode, str) else [*self.stream_mode]


class BatchRun(RunBody):
    """A run in a batch."""

    thread_id: str | None = None


class BatchBody(Body):
    """Begins several runs; clients send them as a list."""

    runs: list[BatchRun] = Field(max_length=1000)

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, given: Any) -> Any:
        return {"runs": given} if isinstance(given, list) else given


def check_time(text: str | None) -> str | None:
    """Parse a time and return it with a zone; a time without one is in UTC."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


class CronOptions(Body):
    """What says when a schedule begins its runs."""

    timezone: str | None = None
    end_time: Annotated[str | None, AfterValidator(check_time)] = None
    on_run_completed: Literal["delete", "keep"] | None = None

    def _completed(self) -> Many:
        """Return the option that says what happens to the temporary thread of a run."""
        asked = self.on_run_completed
        return {} if asked is None else {"on_completion": asked}


class CronBody(CronOptions, RunBody):
    """Creates a schedule, with the body of its runs."""

    schedule: str
    enabled: bool = True

    def run(self) -> Many:
        """Return the part of the body that its runs are begun with."""
        given = self.model_dump(exclude_unset=True, include={*RunBody.model_fields})
        return given | self._completed()


class CronChange(CronOptions, RunOptions):
    """Changes a schedule and the body of its runs."""

    schedule: str | None = None
    enabled: bool | None = None

    def settings(self) -> Many:
        """Return the changes to the schedule itself."""
        given = self.model_dump(exclude_unset=True, include={*_SCHEDULE})
        return {key: each for key, each in given.items() if each is not None or key == "end_time"}

    def run(self) -> Many:
        """Return the changes to the body of its runs."""
        beside = {*_SCHEDULE, "on_run_completed"}
        given = self.model_dump(exclude_unset=True, exclude=beside)
        return given | self._completed()


_SCHEDULE = ("schedule", "timezone", "end_time", "enabled", "metadata")


class CronSearch(Search):
    """Searches schedules."""

    matched: ClassVar[set[str]] = {"assistant_id", "thread_id", "enabled"}

    sort_by: str | None = "created_at"
    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None


class CancelBody(Body):
    """Selects the runs to cancel."""

    thread_id: str | None = None
    run_ids: Few[str] | None = None
    status: Literal["pending", "running", "all"] | None = None


class CancelQuery(Body):
    """Says how to cancel runs."""

    action: Literal["interrupt", "rollback"] = "interrupt"
    wait: bool = False


class RunQuery(Slice):
    """Selects runs of a thread."""

    status: str | None = None
    select: Few[str] | None = None


class JoinQuery(Body):
    """Says how to join the stream of a run."""

    cancel_on_disconnect: bool = False
