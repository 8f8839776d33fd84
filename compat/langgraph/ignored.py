"""Options of LangGraph that set nothing here: taken, and told with the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...pregel.errors import warn

_FEW_ROUND_TRIPS: Final = "statements are sent in few round trips anyway"
_JSON: Final = "values are stored as JSON, and read by the json module"

IGNORED: Final[Mapping[str, str]] = {
    "pipe": _FEW_ROUND_TRIPS,
    "pipeline": _FEW_ROUND_TRIPS,
    "pool_config": "give pool_size= instead",
    "deserializer": _JSON,
    "ann_index_config": "a search compares the query with all vectors",
    "factory": "to store checkpoints elsewhere, inherit from BaseCheckpointSaver",
    "print_mode": "print what stream() or astream() yields",
    "pickle_fallback": "no value is pickled; stategraph.register(YourClass) makes a class storable",
    "allowed_json_modules": "stategraph.register(YourClass) makes a class storable",
    "allowed_msgpack_modules": "stategraph.register(YourClass) makes a class storable",
    "__unpack_ext_hook__": "stategraph.register(YourClass) makes a class storable",
    "extra_allowlist": "stategraph.register(YourClass) makes a class storable",
}
"""Why an option sets nothing, and what to do instead."""


def take_ignored(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that set nothing; each of these is told once it is given.

    Args:
        where: the call that was given them.
    """
    for name in options.keys() & IGNORED.keys():
        if options[name] not in (None, False):
            warn(f"{where}: {name}= sets nothing here: {IGNORED[name]}")
    return {name: value for name, value in options.items() if name not in IGNORED}
