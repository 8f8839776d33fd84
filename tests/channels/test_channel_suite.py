"""`stategraph.testing.check_channel`: our channels pass, so does a custom one, and each broken one fails."""

from __future__ import annotations

import operator
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit.drive import each_case
from kit.graphs import graph_of, thread_config

import stategraph.channels
from stategraph import InMemorySaver
from stategraph.channels import (
    MISSING,
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    ChannelStatus,
    EmptyChannelError,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Overwrite,
    Topic,
    UntrackedValue,
)
from stategraph.pregel.program.flow import JOIN_KINDS, Join
from stategraph.testing import CHANNEL_RULES, CheckFailed, check_channel


class MaxValue(BaseChannel[int, int, int]):
    """Keeps the greatest value written: as a user would write it from the docs."""

    def __init__(self, typ, key=""):
        super().__init__(typ, key)
        self.value = MISSING

    @property
    def step_scoped(self):
        return False

    def get(self):
        if self.value is MISSING:
            raise EmptyChannelError(f"{self.key}: nothing was written")
        return self.value  # type: ignore[no-any-return]

    def update(self, values):
        before = self.value
        for value in values:
            if isinstance(value, Overwrite):
                self.value = value.value
            elif self.value is MISSING or value > self.value:
                self.value = value
        return self.value is not before

    def from_checkpoint(self, stored):
        new = type(self)(self.typ, self.key)
        new.value = stored
        return new


EXAMPLES = {
    "LastValue": (partial(LastValue, int, key="k"), [1, None, 3]),
    "LastValueAfterFinish": (partial(LastValueAfterFinish, int, key="k"), [1, None, 3]),
    "AnyValue": (partial(AnyValue, str, key="k"), ["a", None]),
    "EphemeralValue": (partial(EphemeralValue, str, key="k"), ["a", None]),
    "EphemeralValue, no guard": (partial(EphemeralValue, str, False, key="k"), ["a", None]),
    "UntrackedValue": (partial(UntrackedValue, str, key="k"), ["a", None]),
    "UntrackedValue, no guard": (partial(UntrackedValue, str, False, key="k"), ["a", None]),
    "reducer": (partial(BinaryOperatorAggregate, list[int], operator.add, key="k"), [[1], [], [2, 3]]),
    "reducer in place": (partial(BinaryOperatorAggregate, dict[str, int], operator.ior), [{"a": 1}, {"b": 2}]),
    "reducer, starts empty": (partial(BinaryOperatorAggregate, Any, operator.add, key="k"), ["a", "b"]),
    "Topic": (partial(Topic, str, key="k"), ["a", ["b", "c"]]),
    "Topic, accumulate": (partial(Topic, str, accumulate=True, key="k"), ["a", ["b", "c"]]),
    "NamedBarrierValue": (partial(NamedBarrierValue, str, ["a", "b"], key="k"), ["a", "b"]),
    "NamedBarrierValue, more writes": (partial(NamedBarrierValue, str, ["a", "b"]), ["a", "b", "a", "b"]),
    "NamedBarrierValueAfterFinish": (partial(NamedBarrierValueAfterFinish, str, ["a", "b"], key="k"), ["a", "b"]),
    "MaxValue, a user's": (partial(MaxValue, int, key="k"), [2, 1, 3]),
}


@each_case("rule", CHANNEL_RULES)
@each_case("name", EXAMPLES)
def test_a_channel_keeps_the_rule(name, rule):
    make, writes = EXAMPLES[name]
    check_channel(make, writes, only=[rule])


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
@pytest.mark.parametrize("kind", JOIN_KINDS)
def test_the_channel_of_every_kind_of_join_passes(kind, deferred):
    check_channel(Join(("a", "b"), "z", deferred, kind).make_channel, ["a", "b"])


def test_every_channel_of_ours_is_checked():
    public = {name: getattr(stategraph.channels, name) for name in stategraph.channels.__all__}
    ours = {kind for kind in public.values() if isinstance(kind, type) and issubclass(kind, BaseChannel)}
    checked = {type(make()) for make, _ in EXAMPLES.values()}
    assert ours - {BaseChannel} <= checked


# -- each rule catches what it is there for --------------------------------------------------------------------------


class NoOverwrite(MaxValue):
    def update(self, values):
        self.value, before = max([*values, *([] if self.value is MISSING else [self.value])]), self.value
        return self.value is not before


class KeepsOverwrite(LastValue[int]):
    def update(self, values):
        self.value = values[-1] if values else self.value
        return bool(values)


class Silent(MaxValue):
    def update(self, values):
        super().update(values)
        return False


class Noisy(MaxValue):
    def update(self, values):
        super().update(values)
        return True


class ForeverDone(MaxValue):
    def finish(self):
        return self.is_available()


class DoneAtOnce(MaxValue):
    def consume(self):
        self.value, before = MISSING, self.value
        return before is MISSING


class LiveCheckpoint(BinaryOperatorAggregate[list[int]]):
    def update(self, values):
        self.value.extend(item for value in values if not isinstance(value, Overwrite) for item in value)  # type: ignore[union-attr]
        return bool(values)


class Forgetful(MaxValue):
    def checkpoint(self):
        return MISSING


class Unstorable(MaxValue):
    def checkpoint(self):
        return MISSING if self.value is MISSING else lambda: self.value

    def from_checkpoint(self, stored):
        return super().from_checkpoint(stored if stored is MISSING else stored())


class StoredAfterAll(MaxValue):
    stored = False


class Blind(MaxValue):
    def is_available(self):
        return True


class Changed(MaxValue):
    def describe(self):
        self.value = 7
        return super().describe()


class Wrong(MaxValue):
    def describe(self):
        return ChannelStatus("empty", "holds no value")


class Speechless(MaxValue):
    def describe(self):
        return "fine"


class Strange(MaxValue):
    def preview(self, values):
        return -1


class PerValue(MaxValue):
    def __eq__(self, other):
        return isinstance(other, MaxValue) and self.value == other.value


class Greedy(BaseChannel[list[int], Any, list[int]]):
    """Takes its first write for its own, and counts what it never dropped."""

    dropped = 1

    def __init__(self, typ, key=""):
        super().__init__(typ, key)
        self.value = []

    def get(self):
        return self.value

    def update(self, values):
        for value in values:
            value = value.value if isinstance(value, Overwrite) else value
            value[:0] = self.value
            self.value = value
        return bool(values)

    def from_checkpoint(self, stored):
        new = type(self)(self.typ, self.key)
        new.value = [] if stored is MISSING else list(stored)
        return new


class Unrefused(LastValue[int]):
    def update(self, values):
        self.value = values[0] if values else MISSING
        return super().update(values)


class NotBlank(EphemeralValue[int]):
    """Says that it is shared, and comes back otherwise than it began."""

    shares_blank = True
    __slots__ = ("used",)

    def __init__(self, typ):
        super().__init__(typ)
        self.used = 0

    def update(self, values):
        self.used += 1
        return super().update(values)

    def describe(self):
        return ChannelStatus(super().describe().state, f"was used {self.used} times")


class Shared(LastValue[int]):
    def copy(self):
        return self


BROKEN = {
    "an_overwrite_replaces_or_is_refused": (lambda: NoOverwrite(int), [1, 2]),
    "an_update_that_changes_something_says_so": (lambda: Silent(int), [1, 2]),
    "an_update_without_writes_changes_only_step_scoped_channels": (lambda: Noisy(int), [1, 2]),
    "consume_and_finish_say_what_they_change": (lambda: ForeverDone(int), [1, 2]),
    "a_fresh_channel_has_nothing_to_consume_or_finish": (lambda: DoneAtOnce(int), [1, 2]),
    "a_checkpoint_does_not_change_afterwards": (lambda: LiveCheckpoint(list[int], operator.add), [[1], [2]]),
    "a_checkpoint_brings_it_back": (lambda: Forgetful(int), [1, 2]),
    "get_agrees_with_is_available": (lambda: Blind(int), [1, 2]),
    "reading_changes_nothing": (lambda: Changed(int), [1, 2]),
    "describe_says_how_it_stands": (lambda: Wrong(int), [1, 2]),
    "a_preview_is_what_an_update_gives": (lambda: Strange(int), [1, 2]),
    "equality_is_about_the_declaration": (lambda: PerValue(int), [1, 2]),
    "writes_stay_as_they_are": (lambda: Greedy(list), [[1], [2]]),
    "what_was_dropped_is_counted": (lambda: Greedy(list), [[1], [2]]),
    "several_writes_are_taken_in_order_or_refused": (lambda: Unrefused(int), [1, 2]),
    "a_blank_that_is_shared_is_blank": (lambda: NotBlank(int), [1, 2]),
    "a_copy_is_equal_and_independent": (lambda: Shared(int), [1, 2]),
    "a_template_stays_fresh": (lambda: Shared(int), [1, 2]),
}
MORE = [
    ("an_overwrite_replaces_or_is_refused", lambda: KeepsOverwrite(int)),
    ("a_checkpoint_brings_it_back", lambda: Unstorable(int)),
    ("a_checkpoint_brings_it_back", lambda: StoredAfterAll(int)),
    ("describe_says_how_it_stands", lambda: Speechless(int)),
    ("several_writes_are_taken_in_order_or_refused", lambda: type("Lax", (AnyValue,), {"exclusive": True})(int)),
]


def test_a_broken_channel_is_known_for_every_rule():
    assert BROKEN.keys() == CHANNEL_RULES.keys()


@each_case("rule", BROKEN)
def test_a_rule_that_is_broken_is_named(rule):
    with pytest.raises(CheckFailed, match=rf"breaks the contract of a channel:\n(.*\n)*  {rule}: "):
        check_channel(*BROKEN[rule])


@each_case("rule, make", MORE)
def test_it_is_broken_in_other_ways_too(rule, make):
    with pytest.raises(CheckFailed, match=f"  {rule}: "):
        check_channel(make, [1, 2], only=[rule])


def test_what_cannot_be_checked_is_said():
    with pytest.raises(ValueError, match=r"writes must be at least two values, got \[1\]"):
        check_channel(lambda: LastValue(int), [1])
    with pytest.raises(ValueError, match=r"only must name some of .*, got \['nope'\]"):
        check_channel(lambda: LastValue(int), [1, 2], only=["nope"])


def test_the_example_of_the_readme_passes():
    readme = (Path(__file__).parents[2] / "testing" / "README.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "check_channel" in block]
    exec(example, {})


# -- and the engine does with it what it says ------------------------------------------------------------------------


class State(TypedDict):
    best: Annotated[int, MaxValue]


def test_a_graph_takes_a_channel_of_a_user_s(drive):
    builder = graph_of(State, "S>low S>high [low,high]>E", low=lambda state: {"best": 1}, high=lambda state: {"best": 9})
    app = builder.compile(InMemorySaver())
    config = thread_config("1")
    assert drive.invoke(app, {"best": 5}, config) == {"best": 9}
    assert drive.invoke(app, {"best": 2}, config) == {"best": 9}
    assert drive.get_state(app, config).values == {"best": 9}


def test_only_a_class_that_says_so_itself_shares_its_blank():
    assert LastValue.shares_blank and not KeepsOverwrite.shares_blank and NotBlank.shares_blank
