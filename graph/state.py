"""The keys of a graph's state, gathered from all of its schemas. How one schema is read is in
`schema`."""

from __future__ import annotations

from typing import Any

from ..channels import LastValue
from ..pregel.errors import InvalidGraphError
from ..pregel.names import ROOT
from .schema import Channel, Schema, describe_declaration, not_a_schema, read_schema


class StateKeys:
    """The keys of all schemas together.

    Attributes:
        channels: key → channel, in the order declared.
        managed: keys that the engine computes.
        schemas: the schemas as read, by what the user gave.
        first_values: whether a key with a reducer starts with the default of its field.
    """

    def __init__(self, state_schema: Any, first_values: bool = True) -> None:
        self.state_schema = state_schema
        self.first_values = first_values
        self.channels: dict[str, Channel] = {}
        self.managed: dict[str, Any] = {}
        self.schemas: dict[Any, Schema] = {}

    def add(self, schema: Any) -> Schema:
        """Read a schema and merge its keys with those known.

        Raises:
            InvalidGraphError: a key is declared in two ways that cannot both hold.
        """
        try:
            known = self.schemas.get(schema)
        except TypeError:
            raise InvalidGraphError(not_a_schema(schema)) from None
        if known is not None:
            return known
        read = read_schema(schema, self.first_values)
        self._check_kind(schema, read)
        self._check_channels(schema, read)
        self._check_managed(read)
        for key, channel in read.channels.items():
            self.channels.setdefault(key, channel)
        self.managed.update(read.managed)
        self.schemas[schema] = read
        return read

    def _check_kind(self, schema: Any, read: Schema) -> None:
        if self.channels and read.channels and read.root != (ROOT in self.channels):
            raise InvalidGraphError(
                f"{schema!r} cannot be combined with {self.state_schema!r}: "
                "one is a state with keys, the other is one value"
            )

    def _check_channels(self, schema: Any, read: Schema) -> None:
        for key, channel in read.channels.items():
            mine = self.channels.get(key, channel)
            if key in self.managed:
                raise InvalidGraphError(
                    f"key {key!r} is a managed value in one schema and a stored value in another"
                )
            # A plain annotation says nothing of the channel: a node's own schema may repeat a key
            # without its reducer.
            if mine != channel and not isinstance(channel, LastValue):
                raise InvalidGraphError(
                    f"key {key!r} is declared as {describe_declaration(mine)} and, by {schema!r}, "
                    f"as {describe_declaration(channel)}"
                )

    def _check_managed(self, read: Schema) -> None:
        for key, managed in read.managed.items():
            if key in self.channels or self.managed.get(key, managed) is not managed:
                raise InvalidGraphError(
                    f"key {key!r} is declared as {managed.name} and as something else"
                )
