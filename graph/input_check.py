"""Looks at the input of a StateGraph before anything is stored. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..checkpoint.base import INTERRUPT, SLEEP
from ..pregel.errors import InvalidUpdateError, nearest, warn
from ..pregel.program.results import (
    NO_UPDATES,
    advice,
    find_lookalike,
    is_record,
    record_fields,
    record_items,
)
from ..pregel.program.writes import list_names
from ..pregel.run.nested import is_graph_node
from ..pregel.running import RUNNING

MOST_KEYS = 5
"""How many wrong keys a message explains."""


@dataclass(slots=True, eq=False)
class InputCheck:
    """Refuses an input that this graph cannot take.

    Attributes:
        keys: those of the input schema, which are taken, and their aliases.
        state: the state's other keys → why they are not taken from an input.
        lenient: other keys are legal: a router at START is shown them, or `extra_keys="ignore"`.
        validate: refuses values that do not fit their keys; None if the input is not validated.
        forbids: the schema allows no other keys.
    """

    keys: Final[frozenset[str]]
    state: Final[Mapping[str, str]]
    lenient: Final[bool]
    validate: Final[Callable[[Mapping[str, Any]], None] | None] = None
    forbids: Final[bool] = False

    def __call__(self, value: Any) -> None:
        """Refuse an input that no key can be read from; warn of keys that are dropped.

        A graph inside another is given the keys of both by design, so they are not mistakes there.

        Raises:
            InvalidUpdateError: it is neither a dict nor a schema instance, has no key of the input
                schema, or does not fit it.
        """
        given = _read_keys(value)
        if self.validate is not None:
            items = value.items() if isinstance(value, Mapping) else record_items(value)
            self.validate({key: item for key, item in items if key in self.keys})
        lenient = self.lenient and not self.forbids
        if lenient or self.keys.issuperset(given) or is_graph_node(RUNNING.get()):
            return
        # The output of a call has this one besides; it may be given back as an input.
        others = [key for key in given if key not in self.keys and key not in (INTERRUPT, SLEEP)]
        if not others:
            return
        text = f"the input has {self._explain(others)}"
        if self.forbids:
            raise InvalidUpdateError(f'{text}; and the config of its schema has extra="forbid"')
        if self.keys.isdisjoint(given):
            known = list_names(self.keys)
            text += f"; an input needs at least one of the keys {known}"
            if "resume" in others:
                text += "; to answer a question, pass Command(resume=...)"
            raise InvalidUpdateError(text)
        if isinstance(value, Mapping) and RUNNING.get() is None:
            warn(f"{text}; dropped")

    def _explain(self, others: Sequence[Any]) -> str:
        """Each key that an input cannot bring, and why."""
        reasons = []
        for key in others[:MOST_KEYS]:
            if key in self.state:
                reasons.append(f"{key!r}, {self.state[key]}")
            else:
                reasons.append(f"the unknown key {key!r} ({nearest(key, self.keys)})")
        if len(others) > MOST_KEYS:
            reasons.append("...")
        return ", ".join(reasons)


def _read_keys(value: Any) -> Iterable[Any]:
    """The keys that an input brings."""
    if isinstance(value, Mapping):
        return value
    is_update = is_record(value) and not isinstance(value, NO_UPDATES)
    if is_update and find_lookalike(value) is None:
        return record_fields(type(value))
    raise InvalidUpdateError(
        "the input of this graph must be a dict of state keys or a schema instance, "
        f"got {type(value).__name__}: {value!r}{advice(value)}"
    )
