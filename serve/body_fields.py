"""The types of fields in request bodies that need a special rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from ..checkpoint.records import RunnableConfig
from ..pregel.errors import closest
from .parts import check_number, check_paths, check_state_fields
from .protocols.sessions.translate import CHANNELS, CUSTOM

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
