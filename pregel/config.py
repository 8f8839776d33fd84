"""What a caller may set, and how settings from several places become one. Pure functions of configs and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from typing_extensions import TypedDict

from ..channels.base import MISSING
from .errors import InvalidGraphError, nearest
from .program import Program
from .runtime import RunControl
from .types import DEFAULT_RECURSION_LIMIT, All, Durability, RunnableConfig, StreamMode

COORDINATES = ("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
_NOT_METADATA = frozenset((*COORDINATES, "run_id"))
_CONFIG_KEYS = frozenset(RunnableConfig.__annotations__)
NO_CONFIG: RunnableConfig = {}


class Options(TypedDict, total=False):
    """Keyword options of invoke, stream and their async twins.

    Keys:
        context: handed to nodes as `runtime.context`; a dict becomes the graph's context schema.
        stream_mode: one mode or several; see `StreamMode`.
        output_keys: the channels to show: a name for its bare value, or several for a dict.
        interrupt_before, interrupt_after: names of nodes to stop at, or "*"; None means those of `compile`,
            an empty list none.
        durability: "sync" (default), "async" or "exit": when each superstep is stored.
        control: a `RunControl`, to ask for a drain from outside.
        subgraphs: show the chunks of nested graphs too; each chunk then comes with its namespace.
        version: "v2" makes every chunk a dict of type, ns and data, and `invoke` return a `GraphOutput`.
    """

    context: Any
    stream_mode: StreamMode | Sequence[StreamMode] | None
    output_keys: str | Sequence[str] | None
    interrupt_before: All | Sequence[str] | None
    interrupt_after: All | Sequence[str] | None
    durability: Durability | None
    control: RunControl | None
    subgraphs: bool
    version: Literal["v1", "v2"]


@dataclass(slots=True, kw_only=True)
class Call:
    """`Options` with their defaults; an unknown option is a TypeError that names it."""

    context: Any = MISSING
    stream_mode: StreamMode | Sequence[StreamMode] | None = None
    output_keys: str | Sequence[str] | None = None
    interrupt_before: All | Sequence[str] | None = None
    interrupt_after: All | Sequence[str] | None = None
    durability: Durability | None = None
    control: RunControl | None = None
    subgraphs: bool = False
    version: Literal["v1", "v2"] = "v1"


def names_thread(config: RunnableConfig) -> bool:
    """Whether a config says where to store, and so starts a lineage of its own."""
    configurable = config.get("configurable")
    return bool(configurable) and any(key in configurable for key in COORDINATES)  # type: ignore[operator]


def normalize(config: RunnableConfig) -> RunnableConfig:
    """A config whose unknown top-level keys have moved into `configurable`."""
    if _CONFIG_KEYS.issuperset(config):
        return config
    known = {k: v for k, v in config.items() if k in _CONFIG_KEYS}
    rest = {k: v for k, v in config.items() if k not in _CONFIG_KEYS}
    known["configurable"] = {**rest, **config.get("configurable", {})}
    return known  # type: ignore[return-value]


def merge_configs(*configs: RunnableConfig | None) -> RunnableConfig:
    """Later configs win; tags add up, metadata and configurable merge key by key."""
    merged: dict[str, Any] = {}
    for config in configs:
        for key, value in (normalize(config) if config else NO_CONFIG).items():
            if key in ("metadata", "configurable"):
                merged[key] = {**merged.get(key, {}), **(value or {})}  # type: ignore[dict-item]
            elif key == "tags":
                old = merged.get(key, [])
                merged[key] = [*old, *(tag for tag in value or () if tag not in old)]  # type: ignore[attr-defined]
            elif value is not None:
                merged[key] = value
    return merged  # type: ignore[return-value]


def inheritable(config: RunnableConfig) -> RunnableConfig:
    """What a nested run takes over from the config of the run around it."""
    inherited = dict(config)
    inherited.pop("run_name", None)
    configurable = dict(config.get("configurable") or {})
    for key in ("checkpoint_id", "checkpoint_map", "checkpoint_ns"):
        configurable.pop(key, None)
    return {**inherited, "configurable": configurable}  # type: ignore[typeddict-item]


def recursion_limit(config: RunnableConfig) -> int:
    """The call's limit.

    Raises:
        ValueError: it is below 1.
    """
    limit = config.get("recursion_limit")
    if limit is None:
        return DEFAULT_RECURSION_LIMIT
    if limit < 1:
        raise ValueError(f"recursion_limit must be at least 1, not {limit!r}")
    return limit


def scalars(config: RunnableConfig, run_id: str | None) -> dict[str, Any]:
    """The part of a config that is kept in every checkpoint's metadata: plain values under plain names."""
    found: dict[str, Any] = {}
    for source in (config.get("configurable"), config.get("metadata")):
        for key, value in (source or {}).items():
            if isinstance(value, (str, int, float, bool)) and key not in _NOT_METADATA and not key.startswith("__"):
                found[key] = value.replace("\0", "") if isinstance(value, str) else value
    if run_id is not None:
        found["run_id"] = run_id
    return found


def check_durability(durability: Durability) -> Durability:
    """One of the three.

    Raises:
        ValueError: it is none of them.
    """
    if durability not in get_args(Durability):
        raise ValueError(f"unknown durability {durability!r}; there are {', '.join(get_args(Durability))}")
    return durability


def check_keys(program: Program, keys: str | Sequence[str]) -> str | tuple[str, ...]:
    """Output keys that exist.

    Raises:
        ValueError: naming one that does not.
    """
    for key in (keys,) if isinstance(keys, str) else keys:
        if key not in program.channels:
            raise ValueError(f"output key {key!r} does not exist; {nearest(key, program.channels)}")
    return keys if isinstance(keys, str) else tuple(keys)


def check_breakpoints(names: All | Sequence[str], program: Program) -> All | Sequence[str]:
    """Breakpoints that name nodes.

    Raises:
        InvalidGraphError: naming those that do not.
    """
    if names == "*":
        return "*"
    listed = (names,) if isinstance(names, str) else tuple(names)
    nodes = [n for n in program.nodes if not program.nodes[n].hidden]
    unknown = [n for n in listed if n not in nodes]
    if unknown:
        raise InvalidGraphError([f"interrupt at unknown node {n!r}; {nearest(n, nodes)}" for n in unknown])
    return listed
