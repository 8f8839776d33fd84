"""The channels of one run, as they are read: inputs, outputs, and what they would be with further writes.

Reading only. What changes a channel is in `machine`, which tells what to look at anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...channels.base import BaseChannel, EmptyChannelError
from ..program.program import Program, Reader
from ..program.writes import Pair

Channel = BaseChannel[Any, Any, Any]


class Cells:
    """The live channels of a program. The `Machine` that extends this fills them in.

    Attributes:
        views: what each selection showed when it was last read; kept up to date by `refresh`.
        remaining: supersteps this call may still take, the next one counted.
    """

    __slots__ = ("channels", "program", "remaining", "views")

    program: Program
    channels: dict[str, Channel]
    views: dict[Reader, dict[str, Any]]
    remaining: int

    def read(self, reader: Reader) -> dict[str, Any]:
        """The selected channels that hold a value, as a dict of the caller's own."""
        view = self.views.get(reader)
        if view is None:
            view = self.views[reader] = self.select(reader.keys)
        values = view.copy()
        for key, managed in reader.managed:
            values[key] = managed.get(self.remaining)
        return values

    def preview(self, reader: Reader, writes: Sequence[Pair]) -> dict[str, Any]:
        """`read` as it will be if these writes alone are applied. The channels stay as they are."""
        values = self.read(reader)
        readers = self.program.readers
        for channel, updates in grouped(writes).items():
            if reader in readers.get(channel, ()):
                try:
                    values[channel] = self.channels[channel].preview(updates)
                except EmptyChannelError:
                    values.pop(channel, None)
        return values

    def select(self, keys: Iterable[str]) -> dict[str, Any]:
        """The named channels that hold a value, in the order named."""
        channels, values = self.channels, {}
        for key in keys:
            try:
                values[key] = channels[key].get()
            except EmptyChannelError:
                continue
        return values

    def output(self, keys: str | Sequence[str]) -> Any:
        """A bare value (None if there is none) for a str, else a dict."""
        if isinstance(keys, str):
            return self.select((keys,)).get(keys)
        return self.select(keys)

    def output_with(self, keys: str | Sequence[str], writes: Sequence[Pair]) -> Any:
        """`output` as it would be with these writes applied. The channels stay as they are."""
        images = {}
        for name, values in grouped(writes).items():
            images[name] = self.channels[name].copy()
            images[name].update(values)
        live, self.channels = self.channels, {**self.channels, **images}
        try:
            return self.output(keys)
        finally:
            self.channels = live

    def refresh(self, name: str, channel: Channel | None) -> None:
        """Carry a change into the views that show it; a key that comes or goes makes a view be read anew."""
        views = self.views
        for reader in self.program.readers[name]:
            view = views.get(reader)
            if view is None:
                continue
            if channel is not None and name in view:
                view[name] = channel.get()
            elif channel is not None or name in view:
                del views[reader]


def grouped(writes: Iterable[Pair]) -> dict[str, list[Any]]:
    """channel → values, in write order."""
    found: dict[str, list[Any]] = {}
    for channel, value in writes:
        if channel in found:
            found[channel].append(value)
        else:
            found[channel] = [value]
    return found
