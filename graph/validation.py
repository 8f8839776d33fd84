"""What the keys of a state may hold, checked where `StateGraph(validate=...)` says so.

Pydantic does the checking, and is loaded when the first value comes. What it returns takes the
value's place.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from typing_extensions import TypedDict

from ..channels import Overwrite
from ..channels.aggregate import is_overwrite, overwritten_value
from ..pregel.errors import InvalidGraphError, InvalidUpdateError
from ..pregel.names import ROOT, START
from ..pregel.program.callables import signature_of
from ..pregel.program.results import refuse_lookalike
from ..pregel.program.writes import Draft, Pair, StateWriter, WriteScope, shortened
from .fields import config_of, infos_of
from .schema import Channel, Schema

MOST_REASONS = 3
"""How many of the faults of one value a message explains."""

_OF_THE_CLASS: Final = frozenset(
    {
        "alias_generator", "defer_build", "extra", "field_title_generator", "frozen",
        "json_schema_extra", "model_title_generator", "title", "validate_by_alias",
    }
)  # fmt: skip
"""Settings of a class that say nothing of the values of its fields."""


class Validator:
    """Makes the values of keys what their annotations say, or tells why that cannot be.

    Args:
        hints: key → annotation, with pydantic's constraints and validators in its metadata.
        config: pydantic's, of the class that declares the keys.
    """

    def __init__(self, hints: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self.hints: dict[str, Any] = dict(hints)
        self.config: dict[str, Any] = dict(config)

    def __reduce__(self) -> tuple[Any, ...]:
        return Validator, (self.hints, self.config)

    def __call__(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values as the annotations want them. Any key may be missing.

        Raises:
            ValueError: one does not fit.
        """
        validated: dict[str, Any] = self._adapter.validate_python(values)
        return validated

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter, with_config

        config: Any = {
            **{name: self.config[name] for name in self.config.keys() - _OF_THE_CLASS},
            "arbitrary_types_allowed": True,
            "populate_by_name": True,
        }
        keys = TypedDict("keys", self.hints, total=False)  # type: ignore[misc]
        return TypeAdapter(with_config(config)(keys))


class KeyValidators:
    """The validators of all keys of a state.

    Attributes:
        values: those of what the keys hold, one for each schema that declares some.
        updates: those of what may be written to them.
        folded: the keys to which something else is written than they hold.
    """

    def __init__(self, channels: Mapping[str, Channel], schemas: Iterable[Schema]) -> None:
        self.values: list[Validator] = []
        self.updates: list[Validator] = []
        self.folded: set[str] = set()
        known: set[str] = set()
        for schema in schemas:
            own = {key: channels[key] for key in schema.channels if key not in known}
            known.update(own)
            config = config_of(schema.cls)
            hints = {key: value_hint(schema, key) for key in own}
            updates = {key: update_hint(own[key], hint) for key, hint in hints.items()}
            self.folded.update(key for key in own if updates[key] != hints[key])
            self.values.append(Validator(hints, config))
            self.updates.append(Validator(updates, config))

    def check_updates(self, pairs: Sequence[Pair], who: str) -> list[Pair]:
        """What is written in place of these.

        Args:
            who: what brings them, as an error begins.

        Raises:
            InvalidUpdateError: one does not fit its key.
        """
        # A validator sees the values that come with its own. A key that is written several times,
        # or overwritten, is validated alone.
        together = dict(pairs)
        if len(together) < len(pairs) or any(map(is_overwrite, together.values())):
            return [(key, self._check_alone(key, value, who)) for key, value in pairs]
        return list(_validate(self.updates, together, who).items())

    def _check_alone(self, key: str, value: Any, who: str) -> Any:
        if is_overwrite(value):
            return Overwrite(_validate(self.values, {key: overwritten_value(value)}, who)[key])
        return _validate(self.updates, {key: value}, who)[key]

    def check_input(self, schema: Schema, whole: bool, given: Mapping[str, Any]) -> None:
        """Refuse an input that does not fit.

        Args:
            whole: nothing of the schema that is required may be missing, and validators of the
                whole model hold.
            given: what the input has for keys of the schema, under their names or aliases.

        Raises:
            InvalidUpdateError: naming the key.
        """
        values = {schema.aliases.get(name, name): value for name, value in given.items()}
        _validate(self.updates, values, "the input has")
        if not whole:
            return
        if missing := [key for key in schema.channels if key in schema.required - values.keys()]:
            listed = ", ".join(map(repr, missing))
            raise InvalidUpdateError(
                f"the input must have a value for {listed}, as {schema.cls.__name__} says"
            )
        if infos_of(schema.cls) and self.folded.isdisjoint(values):
            _coerce(schema, values, "the input has")

    def check_value(self, value: Any) -> None:
        """Refuse an input that does not fit a state that is one value.

        Raises:
            InvalidUpdateError: saying why.
        """
        refuse_lookalike(value)
        _validate(self.updates, {ROOT: value}, "the input is")

    def make_writer(self, scope: WriteScope, fixed: Sequence[Pair]) -> ValidatingWriter:
        """A writer that validates."""
        return ValidatingWriter(scope, fixed, self)

    def read(self, schema: Schema, values: dict[str, Any]) -> Any:
        """What a node is given of these values.

        Raises:
            InvalidUpdateError: one does not fit its key.
        """
        if infos_of(schema.cls):  # made by pydantic, which validates
            return _coerce(schema, values, "the state holds")
        checked = _validate(self.values, values, "the state holds")
        return checked if schema.coerce is None else schema.coerce(checked)


class ValidatingWriter(StateWriter):
    """A `StateWriter` that writes what the validators of the keys return."""

    def __init__(self, scope: WriteScope, fixed: Sequence[Pair], validators: KeyValidators) -> None:
        super().__init__(scope, fixed)
        self.validators = validators

    def write(self, result: Any, task: Any) -> None:
        """Append the updates as validated, then the edges; nothing if one does not fit."""
        draft = Draft(task.name)
        super().write(result, draft)
        who = "the input has" if task.name == START else f"node {task.name!r} wrote"
        updates = [pair for pair in draft.writes if pair[0] in self.keys]
        checked = iter(self.validators.check_updates(updates, who))
        task.writes.extend(next(checked) if pair[0] in self.keys else pair for pair in draft.writes)


# -- errors ----------------------------------------------------------------------------------------


def _validate(
    validators: Iterable[Validator], values: Mapping[str, Any], who: str
) -> dict[str, Any]:
    """The values as validated, in their order; those of keys that nobody validates as they are."""
    checked = dict(values)
    for validator in validators:
        given = {key: values[key] for key in validator.hints if key in values}
        if given:
            checked.update(_explained(validator, given, who))
    return checked


def _coerce(schema: Schema, values: dict[str, Any], who: str) -> Any:
    assert schema.coerce is not None
    return _explained(schema.coerce, values, who, schema.aliases)


def _explained(
    validate: Callable[[dict[str, Any]], Any],
    values: dict[str, Any],
    who: str,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """What the validators return.

    Raises:
        InvalidUpdateError: naming the first key that does not fit, and its value.
        InvalidGraphError: pydantic cannot validate such types.
    """
    try:
        return validate(values)
    except ValueError as error:
        raise InvalidUpdateError(_explain(error, values, who, aliases)) from error
    except Exception as error:
        from pydantic.errors import PydanticUserError

        keys = ", ".join(map(repr, values))
        if isinstance(error, PydanticUserError):
            raise InvalidGraphError(f"pydantic cannot validate the keys {keys}: {error}") from error
        error.add_note(f"in a validator, called for what {who} for {keys}")
        raise


def _explain(error: Any, values: Mapping[str, Any], who: str, aliases: Mapping[str, str]) -> str:
    faults = error.errors(include_url=False) if hasattr(error, "errors") else ()
    of_keys: dict[str, list[str]] = {}
    for fault in faults:
        name, place = (fault["loc"] or ("",))[0], ".".join(map(str, fault["loc"][1:]))
        reason = f"{fault['msg']}" + (f" (at {place})" if place else "")
        of_keys.setdefault(aliases.get(name, name), []).append(reason)
    for key, reasons in of_keys.items():
        if len(reasons) > MOST_REASONS:
            reasons[MOST_REASONS:] = [f"and {len(reasons) - MOST_REASONS} more"]
        why = "; ".join(reasons)
        if key not in values:  # it is missing, or the fault is of no key alone
            what = f"nothing for the key {key!r}" if key else "values that do not fit"
            return f"{who} {what}: {why}"
        others = ", ".join(map(repr, list(of_keys)[1:]))
        more = f". Others do not fit either: {others}" if others else ""
        where = "" if key == ROOT else f" for the key {key!r}"
        return f"{who} {shortened(values[key])}{where}, which does not fit: {why}{more}"
    return f"{who} values that do not fit: {error}"


# -- annotations -----------------------------------------------------------------------------------


def value_hint(schema: Schema, key: str) -> Any:
    """The annotation of what a key holds; of a pydantic model with the field's validators."""
    info = infos_of(schema.cls).get(key)
    if info is None:
        return schema.channels[key].ValueType
    from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WrapValidator

    kinds: Mapping[str, Any] = {
        "after": AfterValidator,
        "before": BeforeValidator,
        "plain": PlainValidator,
        "wrap": WrapValidator,
    }
    annotation = info.annotation
    if isinstance(annotation, TypeVar) or getattr(annotation, "__parameters__", None):
        annotation = schema.channels[key].ValueType  # of a dataclass with type arguments
    metadata = list(info.metadata)
    if info.discriminator is not None:
        metadata.append(Field(discriminator=info.discriminator))
    for each in schema.cls.__pydantic_decorators__.field_validators.values():
        if key in each.info.fields or "*" in each.info.fields:
            metadata.append(kinds[each.info.mode](each.func))
    return Annotated[(annotation, *metadata)] if metadata else annotation


def update_hint(channel: Channel, value_hint: Any) -> Any:
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
