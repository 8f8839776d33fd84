"""What a caller may set, and how settings from several places become one. Pure functions of configs
and options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal
from uuid import UUID

from typing_extensions import TypedDict

from ...channels.base import MISSING, check_kind
from ..budgets import Budget
from ..control import RunControl
from ..errors import closest, nearest, warn
from ..types import (
    DEFAULT_RECURSION_LIMIT,
    All,
    AnyConfig,
    ContextT,
    Durability,
    Multitask,
    OnFailure,
    RunnableConfig,
    Selection,
    StreamMode,
    Version,
)
from .checks import check_choice

if TYPE_CHECKING:
    from ..observer import AnyObserver

COORDINATES = ("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
_CONFIG_KEYS = frozenset(RunnableConfig.__annotations__)
_CONFIGURABLE = frozenset((*COORDINATES, "run_id"))
"""What the engine itself reads in `configurable`."""
_MOST_COMPARED = 100
"""How many unknown keys of a config are compared with the settings, and how long they may be: a
config may come from a client."""
_TELLING_OPTIONS = (
    "durability",
    "stream_mode",
    "output_keys",
    "interrupt_before",
    "interrupt_after",
    "subgraphs",
)
"""Options of a call whose names nobody gives to a key of their own in `configurable`."""
NO_CONFIG: RunnableConfig = {}
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "configurable": ((dict, Mapping), "a dict"),  # the usual first: the other is slow to tell
    "metadata": ((dict, Mapping), "a dict"),
    "tags": ((list, tuple, set, frozenset), "a list of strings"),
    "recursion_limit": (int, "an integer, the number of supersteps"),
    "max_concurrency": (int, "an integer, the number of tasks"),
    "deadline": (datetime, "a datetime with a time zone"),
    "run_name": (str, "a string"),
    "run_id": ((str, UUID), "a string or UUID"),
}
"""What each setting must be, where it is not None."""


class CallOptions(TypedDict, Generic[ContextT], total=False):
    """The keyword options of `invoke`, `stream` and their async twins that leave the result's type
    alone.

    Keys:
        context: handed to nodes as `runtime.context`; a dict becomes the graph's context schema.
        interrupt_before, interrupt_after: names of nodes to stop at, or "*"; None means those of
            `compile`, an empty list none.
        durability: "sync" (default), "async" or "exit": when each superstep is stored.
        control: a `RunControl`, to ask for a drain from outside.
        executor: where the functions of nodes run that have no executor of their own; see
            `StateGraph.compile`.
        observer: an `Observer` of this call, the name of one ("module:name"), or several; inside
            those that the graph has.
        debug: refuse nodes that change their input in place, or do not; None as `compile(debug=)`
            says.
        on_failure: what the failure of a task does to its siblings, "stop" or "finish"; None as
            `compile(on_failure=)` says, or the run around this one.
        budget: a `Budget`, or several, of what this call spends, besides those of the graph.
        multitask: what happens while a run of the thread is live in this process. "reject":
            `ThreadBusyError`. "enqueue": wait for its end. "interrupt": it ends at its next barrier
            with `GraphDrained`, then this input comes in. "rollback": it is cancelled, and this
            call starts from the checkpoint before its input; what it has stored stays in the
            history, what it has done outside is not undone. None: both run, and the one that
            stores second gets a `CheckpointConflictError`, as between processes.
        progress: show how far the call is while it runs: tasks done of those known, how fast, the
            time that is left, failures. True shows it where the program runs: below the cell of a
            notebook, in a terminal, or else as lines on stderr; "notebook", "table" or "lines"
            choose. `visualize.watch` can do more.
    """

    context: ContextT | None
    interrupt_before: All | Sequence[str] | None
    interrupt_after: All | Sequence[str] | None
    durability: Durability | None
    control: RunControl | None
    executor: Any
    observer: AnyObserver | Sequence[AnyObserver] | None
    debug: bool | None
    on_failure: OnFailure | None
    budget: Budget | Sequence[Budget] | None
    multitask: Multitask | None
    progress: bool | Literal["notebook", "table", "lines"] | None


class Options(CallOptions[ContextT], total=False):
    """All keyword options of `invoke`, `stream` and their async twins: those of `CallOptions` and
    those that choose what comes back.

    Keys:
        stream_mode: one mode or several; see `StreamMode`.
        output_keys: the channels to show: a name for its bare value, or several for a dict.
        subgraphs: show the chunks of nested graphs too; each chunk then comes with its namespace.
        version: "v2" makes every chunk a dict of type, ns and data, and `invoke` return a
            `GraphOutput`; both hold instances of the output schema, if that is a dataclass or a
            model.
    """

    stream_mode: StreamMode | Sequence[StreamMode] | None
    output_keys: Selection | None
    subgraphs: bool
    version: Version


def check_version(version: Version) -> bool:
    """Whether results are what the graph's schemas say.

    Raises:
        ValueError: there is no such version.
    """
    if version not in ("v1", "v2"):
        raise ValueError(f'version must be "v1" or "v2", got {version!r}')
    return version == "v2"


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """`Options` with their defaults; an unknown option is a TypeError that names it."""

    context: Any = MISSING
    stream_mode: StreamMode | Sequence[StreamMode] | None = None
    output_keys: Selection | None = None
    interrupt_before: All | Sequence[str] | None = None
    interrupt_after: All | Sequence[str] | None = None
    durability: Durability | None = None
    control: RunControl | None = None
    subgraphs: bool = False
    version: Version = "v1"
    executor: Any = None
    observer: Any = None
    debug: bool | None = None
    on_failure: OnFailure | None = None
    budget: Any = None
    multitask: Multitask | None = None
    progress: Any = None

    def __post_init__(self) -> None:
        if self.multitask is not None:
            check_choice("multitask", self.multitask, Multitask)
        if self.on_failure is not None:
            check_choice("on_failure", self.on_failure, OnFailure)
        check_version(self.version)
        if self.control is not None:
            check_kind("control", self.control, RunControl, "a RunControl")


_NO_OPTIONS = Call()


def read_options(options: Mapping[str, Any]) -> Call:
    """A call's keyword options with their defaults.

    Raises:
        TypeError: naming an option that does not exist.
    """
    if not options:
        return _NO_OPTIONS  # the same for all: nobody changes it (P2)
    try:
        return Call(**options)
    except TypeError:
        unknown = [name for name in options if name not in Options.__annotations__]
        if not unknown:
            raise
        name = unknown[0]
        meant = nearest(name, Options.__annotations__)
        if name in _CONFIG_KEYS:
            meant = f'set it in the config: {{"{name}": ...}}'
        elif name in COORDINATES:
            meant = f'set it in the config: {{"configurable": {{"{name}": ...}}}}'
        raise TypeError(f"unknown option {name!r} of invoke or stream; {meant}") from None


def names_thread(config: RunnableConfig) -> bool:
    """Whether a config says where to store, and so starts a lineage of its own."""
    configurable = config.get("configurable")
    return bool(configurable) and any(key in configurable for key in COORDINATES)  # type: ignore[operator]


def normalize(config: Any) -> RunnableConfig:
    """What a caller gave as a config, once it is known to be of the right kinds. Unknown top-level
    keys have moved into `configurable`, settings of None are gone. Warns of settings that would set
    nothing.

    Raises:
        TypeError: it is no dict, or a setting is of a kind that it cannot be.
        ValueError: it allows no task to run, or names a thread twice.
    """
    if not config:
        return NO_CONFIG
    plain = _check_kinds(config)
    configurable = config.get("configurable")
    if configurable and not _CONFIGURABLE.issuperset(configurable):
        _warn_of_slips(configurable, configurable)
    if plain:
        return config  # type: ignore[no-any-return]
    known = {k: v for k, v in config.items() if k in _CONFIG_KEYS and v is not None}
    rest = {k: v for k, v in config.items() if k not in _CONFIG_KEYS}
    if rest:
        inside: Mapping[str, Any] = known.get("configurable", {})
        for key in rest:
            # Neither can be preferred: two threads would be named, and one silently lost.
            if key in COORDINATES and inside.get(key, rest[key]) != rest[key]:
                raise ValueError(
                    f"config: {key} must be given once, got {rest[key]!r} and, inside "
                    f"`configurable`, {inside[key]!r}"
                )
        both = {**rest, **inside}
        known["configurable"] = both
        _warn_of_slips(rest, both, flat=True)
    return known  # type: ignore[return-value]


def _check_kinds(config: Any) -> bool:
    """Whether a config holds nothing but settings, none of them None.

    Raises:
        TypeError, ValueError: see `normalize`.
    """
    if not isinstance(config, (dict, Mapping)):
        raise TypeError(
            'config must be a dict such as {"configurable": {"thread_id": "1"}}, '
            f"got {config!r}"
        )
    plain = _CONFIG_KEYS.issuperset(config)
    for key, value in config.items():
        if value is None:
            plain = False
        elif key in _KINDS and not isinstance(value, _KINDS[key][0]):
            raise TypeError(f"config: {key} must be {_KINDS[key][1]}, got {value!r}")
        elif key == "max_concurrency" and value < 1:
            raise ValueError(f"config: max_concurrency must be an integer >= 1, got {value!r}")
        elif key == "deadline" and value.tzinfo is None:
            raise ValueError(f"config: deadline must have a time zone, got {value!r}")
    return plain


def _warn_of_slips(
    given: Iterable[Any], configurable: Mapping[Any, Any], *, flat: bool = False
) -> None:
    """Warn of a user's key that looks like a misspelt or misplaced setting: it sets nothing.

    Args:
        flat: the keys stand beside the settings, where users rarely put keys of their own.
    """
    others = (key for key in given if isinstance(key, str) and key not in _CONFIGURABLE)
    for key in islice(others, _MOST_COMPARED):
        if len(key) > _MOST_COMPARED:
            continue
        meant = _meant(key)
        if meant is None and flat and key in Options.__annotations__:
            meant = key
        if meant is None or (meant in COORDINATES and meant in configurable):
            continue
        why = "is not a setting"
        if meant == key:
            why = "has no effect here" if flat else "has no effect inside `configurable`"
        warn(f"config: {key!r} {why}; did you mean {_way_to_set(meant)}?")


def _way_to_set(name: str) -> str:
    """How a setting or an option is given."""
    if name in Options.__annotations__:
        return f"the option of the call, invoke(input, config, {name}=...)"
    if name in COORDINATES:
        return f'config = {{"configurable": {{"{name}": ...}}}}'
    return f'config = {{"{name}": ...}}'


@lru_cache(maxsize=1024)
def _meant(key: str) -> str | None:
    """The setting or option that a key is nearly spelt like, or None."""
    plain = "".join(f"_{c.lower()}" if c.isupper() else c for c in key).replace("-", "_").strip("_")
    return closest(plain, [*_CONFIG_KEYS, *COORDINATES, *_TELLING_OPTIONS], cutoff=0.85)


def warn_of_coordinates(config: Mapping[str, Any]) -> None:
    """Warn of a thread or checkpoint named beside the settings of a graph that stores nothing.

    Inside `configurable` it may be meant for others: traces are found by `thread_id`.
    """
    for key in COORDINATES:
        if config.get(key) is not None:
            warn(
                f"config: {key!r} has no effect: the graph has no checkpointer; give it one by "
                "compile(checkpointer=...)"
            )


def warn_of_context(config: RunnableConfig) -> None:
    """Warn of a context inside `configurable` if the call brings no context for a graph that takes
    one."""
    if "context" in config.get("configurable", ()):
        warn(
            "config: 'context' has no effect inside `configurable`; did you mean "
            f"{_way_to_set('context')}?"
        )


def merge_configs(*configs: RunnableConfig | None) -> RunnableConfig:
    """Later configs win; tags add up, metadata and configurable merge key by key.

    Args:
        configs: normalized.
    """
    merged: dict[str, Any] = {}
    for config in configs:
        for key, value in (config or NO_CONFIG).items():
            if key in ("metadata", "configurable"):
                merged[key] = {**merged.get(key, {}), **(value or {})}  # type: ignore[dict-item]
            elif key == "tags":
                old = merged.get(key, [])
                merged[key] = [*old, *(tag for tag in value or () if tag not in old)]  # type: ignore[attr-defined]
            elif value is not None:
                merged[key] = value
    return merged  # type: ignore[return-value]


def concurrency(configs: Sequence[Any]) -> int | None:
    """How many runs of a batch may be at work at once: what the first one's config says.

    Raises:
        TypeError, ValueError: see `normalize`.
    """
    if not configs or not configs[0]:
        return None
    _check_kinds(configs[0])
    return configs[0].get("max_concurrency")  # type: ignore[no-any-return]


def spread(
    config: AnyConfig | Sequence[AnyConfig] | None, count: int
) -> list[AnyConfig]:
    """One config per run.

    Raises:
        ValueError: a list of another length.
    """
    if config is None or isinstance(config, Mapping):
        return [config or {}] * count
    if len(config) != count:
        raise ValueError(
            f"batch must get one config, or one for each of its {count} inputs, got {len(config)}"
        )
    return list(config)


def inheritable(config: RunnableConfig) -> RunnableConfig:
    """What a nested run takes over from the config of the run around it."""
    inherited = dict(config)
    inherited.pop("run_name", None)
    configurable = dict(config.get("configurable") or {})
    # They say where the run around it stands; the nested one finds its own place.
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
        raise ValueError(f"recursion_limit must be an integer >= 1, got {limit!r}")
    return limit


def scalars(config: RunnableConfig, run_id: str | None) -> dict[str, Any]:
    """The part of a config that is kept in every checkpoint's metadata: plain values under plain
    names."""
    found: dict[str, Any] = {}
    for source in (config.get("configurable"), config.get("metadata")):
        for key, value in (source or {}).items():
            plain = isinstance(key, str) and isinstance(value, (str, int, float, bool))
            if plain and key not in _CONFIGURABLE and not key.startswith("__"):
                found[key] = value.replace("\0", "") if isinstance(value, str) else value
    if run_id is not None:
        found["run_id"] = run_id
    return found
