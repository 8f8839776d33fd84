"""What the keys of a state may hold, checked where `StateGraph(validate=...)` says so.

Pydantic does the checking, and is loaded when the first value comes. What it returns takes the
value's place.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, get_args

from ..channels import Overwrite
from ..channels.aggregate import is_overwrite, overwritten_value
from ..pregel.errors import InvalidGraphError, InvalidUpdateError
from ..pregel.names import START
from ..pregel.program.callables import signature_of
from ..pregel.program.writes import Draft, Pair, StateWriter, WriteScope
from ..pregel.types import Validated
from .schema import Channel, Schema

PLACES: tuple[str, ...] = get_args(Validated)
MOST_REASONS = 3
"""How many of the faults of one value a message explains."""


def read_places(validate: Validated | Sequence[Validated]) -> frozenset[str]:
    """Where values are validated.

    Raises:
        InvalidGraphError: it names no such place.
    """
    several = isinstance(validate, (list, tuple, set, frozenset))
    places: tuple[Any, ...] = tuple(validate) if several else (validate,)
    for place in places:
        if place not in PLACES:
            named = ", ".join(map(repr, PLACES))
            raise InvalidGraphError(f"validate must be one or several of {named}, got {place!r}")
    return frozenset(places)


class Validator:
    """Makes a value what an annotation says, or tells why that cannot be.

    Args:
        hint: the annotation, with pydantic's constraints and validators in its metadata.
    """

    def __init__(self, hint: Any) -> None:
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return Validator, (self.hint,)

    def __call__(self, value: Any) -> Any:
        """The value as the annotation wants it.

        Raises:
            ValueError: it does not fit.
        """
        return self._adapter.validate_python(value)

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import ConfigDict, TypeAdapter
        from pydantic.errors import PydanticUserError

        try:
            return TypeAdapter(self.hint, config=ConfigDict(arbitrary_types_allowed=True))
        except PydanticUserError:  # a class with a config of its own
            return TypeAdapter(self.hint)


class KeyValidators:
    """The validators of all keys of a state.

    Attributes:
        values: key → validator of what it holds.
        updates: key → validator of what may be written to it.
    """

    def __init__(self, channels: Mapping[str, Channel], schemas: Iterable[Schema]) -> None:
        hints: dict[str, Any] = {}
        for schema in schemas:
            for key, channel in schema.channels.items():
                hints.setdefault(key, _value_hint(schema.source, key, channel))
        self.values: dict[str, Validator] = {key: Validator(hint) for key, hint in hints.items()}
        self.updates: dict[str, Validator] = {
            key: Validator(_update_hint(channel, hints[key])) for key, channel in channels.items()
        }

    def check_update(self, key: str, value: Any, who: str) -> Any:
        """What is written in place of `value`.

        Args:
            who: what brings it, as an error begins.

        Raises:
            InvalidUpdateError: it does not fit its key.
        """
        if is_overwrite(value):
            return Overwrite(_validated(self.values, key, overwritten_value(value), who))
        return _validated(self.updates, key, value, who)

    def check_input(self, aliases: Mapping[str, str], key: str, value: Any) -> None:
        """Refuse an input's value that does not fit.

        Raises:
            InvalidUpdateError: naming the key.
        """
        self.check_update(aliases.get(key, key), value, "the input has")

    def make_writer(self, scope: WriteScope, fixed: Sequence[Pair]) -> ValidatingWriter:
        """A writer that validates."""
        return ValidatingWriter(scope, fixed, self)

    def read(
        self, coerce: Callable[[dict[str, Any]], Any] | None, values: dict[str, Any]
    ) -> Any:
        """What a node is given of these values.

        Raises:
            InvalidUpdateError: one does not fit its key.
        """
        checked = {
            key: _validated(self.values, key, value, "the state holds")
            for key, value in values.items()
        }
        return checked if coerce is None else coerce(checked)


def _validated(validators: Mapping[str, Validator], key: str, value: Any, who: str) -> Any:
    validator = validators.get(key)
    if validator is None:
        return value
    try:
        return validator(value)
    except ValueError as error:
        text = repr(value)
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise InvalidUpdateError(
            f"{who} {shown} for the key {key!r}, which does not fit: {_reasons(error)}"
        ) from error


def _reasons(error: Any) -> str:
    """Pydantic's reasons in one line."""
    faults = error.errors(include_url=False) if hasattr(error, "errors") else ()
    told = [
        f"{fault['msg']}" + (f" (at {'.'.join(map(str, fault['loc']))})" if fault["loc"] else "")
        for fault in faults[:MOST_REASONS]
    ]
    if len(faults) > MOST_REASONS:
        told.append(f"and {len(faults) - MOST_REASONS} more")
    return "; ".join(told) or str(error)


class ValidatingWriter(StateWriter):
    """A `StateWriter` that writes what the validators of the keys return."""

    def __init__(
        self, scope: WriteScope, fixed: Sequence[Pair], validators: KeyValidators
    ) -> None:
        super().__init__(scope, fixed)
        self.validators = validators

    def write(self, result: Any, task: Any) -> None:
        """Append the updates as validated, then the edges; nothing if one does not fit."""
        draft = Draft(task.name)
        super().write(result, draft)
        who = "the input has" if task.name == START else f"node {task.name!r} wrote"
        written = [
            (key, self.validators.check_update(key, value, who) if key in self.keys else value)
            for key, value in draft.writes
        ]
        task.writes.extend(written)


# -- annotations -----------------------------------------------------------------------------------


def _value_hint(source: Any, key: str, channel: Channel) -> Any:
    """The annotation of what a key holds; of a pydantic model with the field's validators."""
    cls = typing.get_origin(source) or source
    field = getattr(cls, "model_fields", {}).get(key)
    if field is None:
        return channel.ValueType
    from pydantic import AfterValidator, BeforeValidator, PlainValidator, WrapValidator

    kinds: Mapping[str, Any] = {
        "after": AfterValidator,
        "before": BeforeValidator,
        "plain": PlainValidator,
        "wrap": WrapValidator,
    }
    declared = cls.__pydantic_decorators__.field_validators.values()
    own = [
        kinds[each.info.mode](each.func)
        for each in declared
        if key in each.info.fields or "*" in each.info.fields
    ]
    metadata = (*field.metadata, *own)
    return Annotated[(field.annotation, *metadata)] if metadata else field.annotation


def _update_hint(channel: Channel, value_hint: Any) -> Any:
    """The annotation of what may be written: what the reducer's second parameter says, if it has
    one; without a reducer, what the key holds."""
    reducer = channel.reducer
    if reducer is None:
        return value_hint if channel.UpdateType == channel.ValueType else channel.UpdateType
    signature = signature_of(reducer)
    parameters = [] if signature is None else list(signature.parameters.values())
    if len(parameters) < 2 or parameters[1].annotation is parameters[1].empty:
        return value_hint
    try:
        hints = typing.get_type_hints(reducer, include_extras=True)
    except Exception:  # names that only a checker knows, or a callable without hints
        return Any
    return hints.get(parameters[1].name, Any)
