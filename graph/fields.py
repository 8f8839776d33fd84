"""What a class says of its fields besides their types (which may be left out, their defaults, the
other names they have outside), and how an instance is made of their values.

Pydantic's classes are known by what they have; it is not loaded for that.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, NotRequired, Required

import typing_extensions

Default = Callable[[], Any]
Maker = Callable[[dict[str, Any]], Any]

# From 3.13 on typing has a ReadOnly of its own, which typing_extensions then re-exports.
QUALIFIERS = (Required, NotRequired, typing_extensions.ReadOnly)


def infos_of(cls: Any) -> Mapping[str, Any]:
    """Pydantic's `FieldInfo`s of a model or of a dataclass made by pydantic; none of other
    classes."""
    found = getattr(cls, "__pydantic_fields__" if is_dataclass(cls) else "model_fields", None)
    return found if isinstance(found, Mapping) else {}


def config_of(cls: Any) -> Mapping[str, Any]:
    """Pydantic's config of a class."""
    if isinstance(found := getattr(cls, "model_config", None), Mapping):
        return found
    found = getattr(cls, "__pydantic_config__", None)
    return found if isinstance(found, Mapping) else {}


def declared_names(cls: Any) -> Iterable[str] | None:
    """The fields of a dataclass or a model; None for classes whose annotations all are fields."""
    if infos := infos_of(cls):
        return infos
    return [each.name for each in fields(cls)] if is_dataclass(cls) else None


def default_of(cls: Any, key: str) -> Default | None:
    """What makes the default of a field; None if it has none of its own."""
    info = infos_of(cls).get(key)
    if info is not None:
        # Not where the default is made of the fields before it.
        takes_data = getattr(info, "default_factory_takes_validated_data", None) is True
        if info.is_required() or takes_data:
            return None
        return partial(_model_default, cls, key)
    for each in fields(cls) if is_dataclass(cls) else ():
        if each.name == key and (each.default, each.default_factory) != (MISSING, MISSING):
            return partial(_field_default, cls, key)
    return None


def _model_default(cls: Any, key: str) -> Any:
    return infos_of(cls)[key].get_default(call_default_factory=True)


def _field_default(cls: Any, key: str) -> Any:
    [declared] = [each for each in fields(cls) if each.name == key]
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


def required_of(cls: Any, hints: Mapping[str, Any]) -> frozenset[str]:
    """The fields that must be given."""
    if infos := infos_of(cls):
        return frozenset(key for key, info in infos.items() if info.is_required())
    if is_dataclass(cls):
        return frozenset(
            each.name
            for each in fields(cls)
            if each.init and (each.default, each.default_factory) == (MISSING, MISSING)
        )
    if hasattr(cls, "_fields"):
        return frozenset(cls._fields) - frozenset(cls._field_defaults)
    total = getattr(cls, "__required_keys__", None)
    if total is None:  # a class with annotations, perhaps with values
        total = {key for key in hints if not any(key in vars(base) for base in cls.__mro__)}
    return frozenset(key for key, hint in hints.items() if _is_required(hint, key in total))


def _is_required(hint: Any, otherwise: bool) -> bool:
    """What `Required` and `NotRequired` say. Where annotations are strings, `__required_keys__`
    does not know them."""
    while (origin := typing.get_origin(hint)) in (Annotated, *QUALIFIERS):
        if origin in (Required, NotRequired):
            return origin is Required
        hint = typing.get_args(hint)[0]
    return otherwise


# -- aliases ---------------------------------------------------------------------------------------


def input_names(cls: Any, hints: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Field → the other names under which it may be given, the first of which stands for it."""
    found = {}
    for key, info in _infos(cls, hints):
        alias = getattr(info, "validation_alias", None)
        alias = info.alias if alias is None else alias
        choices = getattr(alias, "choices", (alias,))
        if names := tuple(each for each in choices if isinstance(each, str)):
            found[key] = names
    return found


def unnamed(cls: Any) -> bool:
    """Whether a field can be given as part of another value only (`AliasPath`), so that pydantic's
    constructor does not take it under a name."""
    named = input_names(cls, {})
    return any(
        info.validation_alias is not None and key not in named
        for key, info in infos_of(cls).items()
    )


def output_names(cls: Any, hints: Mapping[str, Any]) -> dict[str, str]:
    """Field → its name outside, of a class whose config has `serialize_by_alias`."""
    if config_of(cls).get("serialize_by_alias") is not True:
        return {}
    found = {}
    for key, info in _infos(cls, hints):
        alias = getattr(info, "serialization_alias", None)
        alias = info.alias if alias is None else alias
        if isinstance(alias, str) and alias != key:
            found[key] = alias
    return found


def _infos(cls: Any, hints: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The fields that pydantic's `Field` says something of, also in the annotations of a TypedDict
    or dataclass."""
    if infos := infos_of(cls):
        return infos.items()
    return [
        (key, item)
        for key, hint in hints.items()
        for item in metadata_of(hint)
        if hasattr(item, "validation_alias")
    ]


def metadata_of(hint: Any) -> tuple[Any, ...]:
    """What `Annotated` says besides the type, also inside of `Required` and its like."""
    return getattr(strip(hint), "__metadata__", ())


def strip(hint: Any) -> Any:
    """An annotation without `Required` and its like, around it or inside of `Annotated`."""
    while typing.get_origin(hint) in QUALIFIERS:
        hint = typing.get_args(hint)[0]
    metadata = getattr(hint, "__metadata__", ())
    inner = typing.get_args(hint)[0] if metadata else None
    if typing.get_origin(inner) in QUALIFIERS:
        return Annotated[(strip(inner), *metadata)]
    return hint


# -- instances -------------------------------------------------------------------------------------


def maker_of(schema: Any, cls: type) -> Maker | None:
    """How nodes get a schema: pydantic validates at every node's entry, a dataclass or NamedTuple
    only binds. None where they get a dict.

    Args:
        schema: the class, or the class with type arguments.
        cls: the class.
    """
    if infos_of(cls) and unnamed(cls):
        return partial(_validated, schema)
    names = {key: names[0] for key, names in input_names(cls, {}).items()}
    if is_dataclass(cls):
        if later := [each.name for each in fields(cls) if not each.init]:
            return partial(_built, cls, names, later)
    elif not infos_of(cls) and not hasattr(cls, "_fields"):
        return None
    return partial(_renamed, cls, names) if names else partial(_bound, cls)


# Partials of functions at the top of a module: a compiled graph can be pickled.


def _bound(cls: Any, values: dict[str, Any]) -> Any:
    try:
        return cls(**values)
    except TypeError as error:  # a model says itself what is missing
        missing = required_of(cls, {}) - values.keys()
        if infos_of(cls) or not missing:
            raise
        names = ", ".join(map(repr, sorted(missing)))
        raise TypeError(
            f"{cls.__name__} cannot be made: nothing has written {names} yet. Give it in the "
            "input, write it in a node before, or give the field a default"
        ) from error


def _renamed(cls: Any, names: Mapping[str, str], values: dict[str, Any]) -> Any:
    return _bound(cls, {names.get(key, key): value for key, value in values.items()})


def _validated(schema: Any, values: dict[str, Any]) -> Any:
    """For a model whose constructor has no name for one of its fields."""
    from pydantic import TypeAdapter

    return TypeAdapter(schema).validate_python(values, by_alias=True, by_name=True)


def _built(cls: Any, names: Mapping[str, str], later: list[str], values: dict[str, Any]) -> Any:
    """For a dataclass with fields that its constructor does not take: they are set afterwards."""
    given = {key: value for key, value in values.items() if key not in later}
    made = _renamed(cls, names, given)
    for key in later:
        if key in values:
            object.__setattr__(made, key, values[key])  # also of a frozen dataclass
    return made
