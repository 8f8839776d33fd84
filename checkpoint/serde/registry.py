"""The registry of user types that may be stored: a table from types to their codecs, and from keys
to types.

Loading looks a type up here by its key and nowhere else: it imports nothing and resolves no name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from typing_extensions import is_typeddict

from .class_codecs import is_storable, make_codec
from .codec import Codec, key_of

AnyClass = TypeVar("AnyClass", bound=type)
Encode = Callable[[Any], Any]


class Registry:
    """A set of types that may be stored, in addition to those of a parent.

    Args:
        parent: the registry to search for types that are not registered here.
    """

    def __init__(self, parent: Registry | None = None) -> None:
        self._parent = parent
        self._by_type: dict[type, Codec] = {}
        self._by_key: dict[str, Codec] = {}
        self._bases: list[type] = []

    def register(
        self,
        cls: AnyClass,
        *,
        encode: Encode | None = None,
        decode: Encode | None = None,
        name: str | None = None,
        subclasses: bool = False,
    ) -> AnyClass:
        """Let instances of exactly this class be stored. Usable as a decorator.

        Dataclasses, enums, named tuples, pydantic models, exceptions and subclasses of `str` need
        nothing more. A TypedDict is a plain dict and needs no registering. Registering another
        class under the same key replaces the first, whose instances are refused from then on: they
        would be loaded as another type.

        Args:
            encode: instance → a value that can be stored. Give both or neither.
            decode: the reverse.
            name: the key in stored data, which should survive a move of the class;
                "module:qualname" by default.
            subclasses: also register all subclasses, including those defined later. The class may
                then be any base class, such as an abstract one. A process can load only the
                subclasses that it has defined.

        Raises:
            TypeError: this is not a class, or it needs `encode` and `decode`; or these are given
                for subclasses.

        >>> from dataclasses import dataclass
        >>> from stategraph.checkpoint import Serializer, register
        >>> @register
        ... @dataclass
        ... class Point:
        ...     x: int
        >>> serializer = Serializer()
        >>> serializer.loads(serializer.dumps(Point(1)))
        Point(x=1)
        """
        if is_typeddict(cls):
            return cls
        if not isinstance(cls, type):
            raise TypeError(f"register() must be given a class, got {cls!r}")
        key = name or key_of(cls)
        if subclasses:
            if encode is not None or decode is not None or cls is object:
                raise TypeError(
                    f"{key}: subclasses=True registers dataclasses, models and the like, by their "
                    "fields"
                )
            self._bases.append(cls)
            if not is_storable(cls):
                return cls
        if (encode is None) != (decode is None):
            raise TypeError(f"{key}: give both encode and decode, or neither")
        if encode is not None and decode is not None:
            self._add(Codec(cls, encode, decode, "form", key=key))
        else:
            self._add(make_codec(cls, key))
        return cls

    def find(self, cls: type) -> Codec | None:
        """How instances of exactly this class are stored, or None."""
        found = self._by_type.get(cls)
        if (
            found is None
            and self._bases
            and issubclass(cls, tuple(self._bases))
            and is_storable(cls)
        ):
            self.register(cls)
            return self._by_type[cls]
        if found is None and self._parent is not None:
            found = self._parent.find(cls)
            if found is not None and found.key in self._by_key:
                return None  # the key means another class here
        return found

    def find_named(self, key: str) -> Codec | None:
        """What was registered under this key, or None."""
        found = self._by_key.get(key)
        if found is None and self._parent is not None:
            found = self._parent.find_named(key)
        if found is None and self._bases:
            named = next(
                (cls for base in self._bases for cls in _below(base) if key_of(cls) == key), None
            )
            if named is None:
                return None
            return self.find(named)
        return found

    def learn(self, other: Registry) -> None:
        """Know what another registry was told itself, where this one knows nothing under the same
        key."""
        for key, codec in tuple(other._by_key.items()):
            # What this one was told itself goes first.
            if self.find_named(key) is None:
                self._add(codec)
        self._bases += [base for base in other._bases if base not in self._bases]

    def _add(self, codec: Codec) -> None:
        replaced = self._by_key.get(codec.key)
        if replaced is not None and replaced.cls is not codec.cls:
            # Its key means the new class from now on, so an old instance would come back as a new
            # one.
            self._by_type.pop(replaced.cls, None)
        self._by_key[codec.key] = codec
        self._by_type[codec.cls] = codec


def _below(cls: type) -> Iterator[type]:
    """The subclasses of a class, and theirs; of two of one name the newer first, as far as they
    have one parent."""
    subclasses: list[type] = type.__subclasses__(cls)
    for each in reversed(subclasses):
        yield each
        yield from _below(each)


DEFAULT = Registry()
"""What `register` fills and every `Serializer` starts from."""

register = DEFAULT.register
"""Lets instances of a class be stored by every checkpointer."""
