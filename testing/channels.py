"""Checks for your own channels: `check_channel` checks them for what the engine relies on.

Each rule is one function. It gets an `Example`, makes the channels that it needs, and fails with a
sentence. pytest is not needed: your test calls `check_channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

from ..channels import (
    MISSING,
    BaseChannel,
    ChannelStatus,
    EmptyChannelError,
    InvalidUpdateError,
    Overwrite,
)
from ..checkpoint.serde.serializer import Serializer
from .asserts import CheckFailed, difference

Channel = BaseChannel[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """A channel to check.

    Attributes:
        make: returns a fresh channel, to which nothing was written.
        writes: values to write, each in a separate superstep.
    """

    make: Callable[[], Channel]
    writes: Sequence[Any]

    def write(self, count: int) -> Channel:
        """Return a channel after this number of the writes."""
        channel = self.make()
        for value in self.writes[:count]:
            channel.update([deepcopy(value)])
        return channel

    def states(self) -> list[Channel]:
        """A fresh channel, and one after each write: as it is, finished, finished and consumed."""
        found = [self.make()]
        for count in range(1, len(self.writes) + 1):
            written, finished, consumed = (self.write(count) for _ in range(3))
            for channel in (finished, consumed):
                channel.finish()
            consumed.consume()
            found += [written, finished, consumed]
        return found


def check_channel(
    make: Callable[[], Channel], writes: Sequence[Any], *, only: Collection[str] = ()
) -> None:
    """Check that a channel keeps the contract of `BaseChannel`.

    Args:
        make: returns a fresh channel, such as `lambda: MaxValue(int)`. It is called many times.
        writes: at least two values to write, each in a separate superstep.
        only: names of rules (see `CHANNEL_RULES`); all by default.

    Raises:
        CheckFailed: with a sentence for every rule that the channel breaks.
        ValueError: there are fewer than two writes, or a rule of `only` does not exist.

    >>> from stategraph.channels import LastValue
    >>> check_channel(lambda: LastValue(int), [1, 2])
    """
    if len(writes) < 2:
        raise ValueError(f"writes must be at least two values, got {writes!r}")
    unknown = sorted(set(only) - CHANNEL_RULES.keys())
    if unknown:
        raise ValueError(f"only must name some of {sorted(CHANNEL_RULES)}, got {unknown}")
    example = Example(make, writes)
    broken = []
    for name, rule in CHANNEL_RULES.items():
        if only and name not in only:
            continue
        try:
            rule(example)
        except CheckFailed as error:
            broken.append(f"{name}: {error}")
        except Exception as error:
            broken.append(f"{name}: the channel raised {error!r}")
    if broken:
        kind = type(make()).__name__
        raise CheckFailed("\n  ".join([f"{kind} breaks the contract of a channel:", *broken]))


Rule = Callable[[Example], None]
AnyRule = TypeVar("AnyRule", bound=Rule)

CHANNEL_RULES: dict[str, Rule] = {}
"""Every rule by name; its docstring says why it matters."""


def _rule(function: AnyRule) -> AnyRule:
    CHANNEL_RULES[function.__name__] = function
    return function


# -- reading --------------------------------------------------------------------------------------


@_rule
def get_agrees_with_is_available(example: Example) -> None:
    """The engine asks `is_available` before it reads, and reads before it asks."""
    for channel in example.states():
        try:
            channel.get()
            readable = True
        except EmptyChannelError:
            readable = False
        if channel.is_available() is not readable:
            way = "returns a value" if readable else "raises EmptyChannelError"
            said = channel.is_available()
            raise CheckFailed(f"is_available() must agree with get(), got {said!r}; get() {way}")


@_rule
def reading_changes_nothing(example: Example) -> None:
    """Drawings, snapshots and `explain` look at live channels."""
    for channel in example.states():
        before = _observe(channel)
        channel.describe()
        channel.checkpoint()
        repr(channel)
        _assert_equal(_observe(channel), before, "after it was read")


@_rule
def describe_says_how_it_stands(example: Example) -> None:
    """`explain` shows it, and decides by it whether a node waits."""
    for channel in example.states():
        status = channel.describe()
        if not isinstance(status, ChannelStatus):
            raise CheckFailed(f"describe() must return a ChannelStatus, got {status!r}")
        if (status.state == "available") is not channel.is_available():
            said = channel.is_available()
            raise CheckFailed(f"describe() says {status.state!r} where is_available() is {said}")
        if not status.text or list(status.missing) != sorted(status.missing):
            raise CheckFailed(f"describe() must give a text and sorted names, got {status!r}")


@_rule
def a_preview_is_what_an_update_gives(example: Example) -> None:
    """A router is shown the state as it will be, and nothing is changed for that."""
    for channel in example.states():
        value, before = example.writes[0], _observe(channel)
        updated = channel.copy()
        updated.update([deepcopy(value)])
        try:
            shown = channel.preview([deepcopy(value)])
        except EmptyChannelError:
            shown = MISSING
        _assert_equal(shown, _observe(updated)["value"], "preview()")
        _assert_equal(_observe(channel), before, "after preview()")


# -- updating -------------------------------------------------------------------------------------


@_rule
def an_update_that_changes_something_says_so(example: Example) -> None:
    """The result moves the version: nodes that wait run if it is True, and never if it is not."""
    for channel in example.states():
        for value in example.writes:
            changed = channel.copy()
            said = changed.update([deepcopy(value)])
            _assert_told(said, channel, changed, f"update([{value!r}])")


@_rule
def an_update_without_writes_changes_only_step_scoped_channels(example: Example) -> None:
    """The engine does not call it for others. Where it changes something it says so."""
    for channel in example.states():
        changed = channel.copy()
        said = changed.update([])
        _assert_told(said, channel, changed, "update([])")
        if said and not channel.step_scoped:
            raise CheckFailed("update([]) must return False where step_scoped is False")
        if said and changed.update([]):
            raise CheckFailed("update([]) must return False the second time: nothing is left")


@_rule
def writes_stay_as_they_are(example: Example) -> None:
    """What a node wrote is stored and streamed as well."""
    given = deepcopy(list(example.writes))
    channel = example.make()
    for value in given:
        channel.update([value])
    _assert_equal(given, list(example.writes), "the writes after update()")


@_rule
def several_writes_are_taken_in_order_or_refused(example: Example) -> None:
    """Tasks of one superstep write together: twice the same gives the same; a refusal is an
    `InvalidUpdateError` and changes nothing."""
    first, second = example.make(), example.make()
    for channel in (first, second):
        before = _observe(channel)
        try:
            channel.update(deepcopy(list(example.writes)))
        except InvalidUpdateError:
            _assert_equal(_observe(channel), before, "after a refused update()")
        else:
            if channel.exclusive:
                raise CheckFailed("update() must refuse several writes where exclusive is True")
    _assert_equal(_observe(first), _observe(second), "the same writes")


@_rule
def an_overwrite_replaces_or_is_refused(example: Example) -> None:
    """`Overwrite(value)` is legal on every key: what was there before does not show through, and
    the wrapper itself is never the value. A channel without values refuses it."""
    value = example.writes[-1]
    results = []
    for channel in example.states():
        before = _observe(channel)
        try:
            channel.update([Overwrite(deepcopy(value))])
        except InvalidUpdateError:
            _assert_equal(_observe(channel), before, "after a refused Overwrite")
            continue
        channel.finish()
        results.append(_observe(channel))
        if isinstance(results[-1]["value"], Overwrite):
            raise CheckFailed("update([Overwrite(value)]) must take the value out of the Overwrite")
    for found in results:
        _assert_equal(found, results[0], "Overwrite(value) on top of other writes")


@_rule
def what_was_dropped_is_counted(example: Example) -> None:
    """A graph warns of writes that were lost to another."""
    for channel in example.states():
        if not isinstance(channel.dropped, int) or channel.dropped:
            raise CheckFailed(f"dropped must be 0 after single writes, got {channel.dropped!r}")


# -- the end of a wait ----------------------------------------------------------------------------


@_rule
def consume_and_finish_say_what_they_change(example: Example) -> None:
    """True moves the version, so that a second True without a change would never let a run end."""
    for channel in example.states():
        for name in ("consume", "finish"):
            changed = channel.copy()
            said = getattr(changed, name)()
            _assert_told(said, channel, changed, f"{name}()")
            if said and getattr(changed, name)():
                raise CheckFailed(f"{name}() must return False the second time")


@_rule
def a_fresh_channel_has_nothing_to_consume_or_finish(example: Example) -> None:
    """Else a graph would go on before anything was written."""
    for name in ("consume", "finish"):
        if getattr(example.make(), name)():
            raise CheckFailed(f"{name}() of a fresh channel must return False")


# -- storing and copying --------------------------------------------------------------------------


@_rule
def a_checkpoint_brings_it_back(example: Example) -> None:
    """A resumed run goes on as if it had never stopped; a channel that is not stored starts
    afresh."""
    for channel in example.states():
        stored = channel.checkpoint()
        if not channel.stored and stored is not MISSING:
            raise CheckFailed(f"checkpoint() must be MISSING where stored is False, got {stored!r}")
        again = example.make().from_checkpoint(_pass_through_storage(stored, channel.typ))
        expected = channel if channel.stored else example.make()
        _assert_equal(_observe(again), _observe(expected), "the channel made of its checkpoint")
        _assert_alike(again, expected.copy(), example, "the channel made of its checkpoint")


@_rule
def a_checkpoint_does_not_change_afterwards(example: Example) -> None:
    """It is stored after the next superstep has begun."""
    for channel in example.states():
        stored = channel.checkpoint()
        before = deepcopy(stored)
        later = channel.copy()
        later.update([deepcopy(example.writes[-1])])
        _assert_equal(stored, before, "an earlier checkpoint")


@_rule
def a_copy_is_equal_and_independent(example: Example) -> None:
    """The engine updates a copy and drops it if the superstep fails."""
    for channel in example.states():
        before, copy = _observe(channel), channel.copy()
        _assert_equal(_observe(copy), before, "the copy")
        for value in example.writes:
            copy.update([deepcopy(value)])
        copy.finish()
        copy.consume()
        _assert_equal(_observe(channel), before, "the original after its copy was updated")
        if (copy.key, copy.typ) != (channel.key, channel.typ):
            raise CheckFailed("copy() must keep key and typ")


@_rule
def a_template_stays_fresh(example: Example) -> None:
    """All runs of a graph start from one template, whatever it or they have held."""
    fresh = _observe(example.make())
    for template in example.states():
        before = _observe(template)
        live = template.from_checkpoint(MISSING)
        _assert_equal(_observe(live), fresh, "from_checkpoint(MISSING)")
        live.update([deepcopy(example.writes[0])])
        _assert_equal(_observe(template), before, "the template of an updated channel")


@_rule
def a_blank_that_is_shared_is_blank(example: Example) -> None:
    """With `shares_blank` the engine uses the template where the channel is empty."""
    for channel in example.states():
        if channel.shares_blank and channel.update([]) and not channel.is_available():
            fresh = example.make()
            _assert_equal(_observe(channel), _observe(fresh), "the emptied channel")
            _assert_alike(channel, fresh, example, "the emptied channel")


# -- declaring ------------------------------------------------------------------------------------


@_rule
def equality_is_about_the_declaration(example: Example) -> None:
    """Two schemas may declare one key if they declare the same channel; values do not count."""
    for channel in example.states():
        if channel != example.make() or not channel == example.make():
            raise CheckFailed(
                "two channels made with the same arguments must be equal, whatever they hold"
            )
        if channel == object():
            raise CheckFailed("a channel must not be equal to something that is not a channel")


# -- comparing ------------------------------------------------------------------------------------


def _observe(channel: Channel) -> dict[str, Any]:
    """All that can be seen of a channel from outside, as values of its own."""
    try:
        value = channel.get()
    except EmptyChannelError:
        value = MISSING
    return deepcopy(
        {
            "available": channel.is_available(),
            "value": value,
            "checkpoint": channel.checkpoint(),
            "status": channel.describe(),
        }
    )


def _assert_equal(got: Any, expected: Any, what: str) -> None:
    found = difference(got, expected)
    if found is not None:
        path, one, two = found
        raise CheckFailed(f"{what}{path}: must be {two!r}, got {one!r}")


def _assert_alike(one: Channel, two: Channel, example: Example, what: str) -> None:
    """Both take the same further writes in the same way."""
    for value in example.writes:
        said = [channel.update([deepcopy(value)]) for channel in (one, two)]
        said += [channel.finish() for channel in (one, two)]
        if said[0] is not said[1] or said[2] is not said[3]:
            raise CheckFailed(f"{what} must take further writes as the original does")
        _assert_equal(_observe(one), _observe(two), f"{what} after a further write")


def _assert_told(said: Any, before: Channel, after: Channel, call: str) -> None:
    if not isinstance(said, bool):
        raise CheckFailed(f"{call} must return True or False, got {said!r}")
    if not said and difference(_observe(after), _observe(before)) is not None:
        raise CheckFailed(f"{call} must return True: it has changed the channel")


def _pass_through_storage(stored: Any, typ: Any) -> Any:
    """What a checkpointer gives back of it. The types that an annotation names may be stored."""
    if stored is MISSING:
        return MISSING
    serializer = Serializer()
    serializer.register_schema(typ)
    return serializer.loads(serializer.dumps(stored))
