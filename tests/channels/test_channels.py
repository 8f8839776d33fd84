"""The rules of single channels, one test each; what all channels promise is checked in test_channel_suite. No engine here."""

from __future__ import annotations

import json
import operator
import pickle
from collections import abc, deque
from dataclasses import asdict
from functools import partial
from typing import (  # noqa: UP035
    Annotated,
    Any,
    Dict,
    List,
    Literal,
    NotRequired,
    Optional,
    Required,
    Sequence,
    Set,
    TypedDict,
)

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import each_case

from stategraph import StateGraph
from stategraph.channels import (
    MISSING,
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    EmptyChannelError,
    EphemeralValue,
    InvalidUpdateError,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Overwrite,
    Topic,
    UntrackedValue,
)
from stategraph.channels.named_barrier import WaveBarrier

NAMES = ["a", "b", "c"]

MAKERS = {
    "LastValue": partial(LastValue, Any, key="k"),
    "LastValueAfterFinish": partial(LastValueAfterFinish, Any, key="k"),
    "AnyValue": partial(AnyValue, Any, key="k"),
    "EphemeralValue": partial(EphemeralValue, Any, key="k"),
    "EphemeralValue, no guard": partial(EphemeralValue, Any, False, key="k"),
    "UntrackedValue": partial(UntrackedValue, Any, key="k"),
    "UntrackedValue, no guard": partial(UntrackedValue, Any, False, key="k"),
    "reducer": partial(BinaryOperatorAggregate, list, operator.add, key="k"),
    "reducer, starts empty": partial(BinaryOperatorAggregate, Any, operator.add, key="k"),
    "Topic": partial(Topic, str, key="k"),
    "Topic, accumulate": partial(Topic, str, accumulate=True, key="k"),
    "NamedBarrierValue": partial(NamedBarrierValue, str, NAMES, key="k"),
    "NamedBarrierValueAfterFinish": partial(NamedBarrierValueAfterFinish, str, NAMES, key="k"),
}
TRACKED = [name for name in MAKERS if not name.startswith("Untracked")]


def preview(channel, values):
    """A copy that has taken the values: what a router reads."""
    copy = channel.copy()
    copy.update(values)
    return copy


@pytest.fixture(params=MAKERS)
def channel(request):
    return MAKERS[request.param]()


def state(channel):
    """All a built-in channel holds, whatever its class; what the last update has dropped is no part of it."""
    slots = {name for cls in type(channel).__mro__ for name in getattr(cls, "__slots__", ())}
    return {name: getattr(channel, name) for name in slots - {"dropped"}}


def good(channel):
    """One write this channel can take."""
    return ["x"] if isinstance(channel, BinaryOperatorAggregate) else "a"


# --- the contract ---------------------------------------------------------------------------------------


def test_channels_are_slotted_and_unhashable(channel):
    assert not hasattr(channel, "__dict__")
    with pytest.raises(TypeError):
        hash(channel)


def test_value_and_update_type_are_as_given():
    typ = Annotated[Sequence[int], "note"]
    for kind in (LastValue, AnyValue, EphemeralValue, UntrackedValue, LastValueAfterFinish):
        assert kind(typ).ValueType == kind(typ).UpdateType == typ
    made = BinaryOperatorAggregate(typ, operator.add)
    assert made.ValueType == made.UpdateType == typ


def test_reading_an_empty_channel_names_the_key():
    for name in MAKERS.keys() - {"reducer"}:
        empty = MAKERS[name]()
        assert not empty.is_available()
        with pytest.raises(EmptyChannelError, match="At key 'k'"):
            empty.get()
    with pytest.raises(EmptyChannelError, match=r"^this LastValue"):
        LastValue(int).get()


def test_none_is_a_value():
    for made in (LastValue(int), AnyValue(int), EphemeralValue(int), UntrackedValue(int)):
        assert made.update([None])
        assert made.is_available()
        assert made.get() is None


def test_an_empty_update_of_an_untouched_channel_changes_nothing(channel):
    before = state(channel)
    assert channel.update([]) is False
    assert state(channel) == before


def test_a_channel_made_of_nothing_keeps_key_and_type(channel):
    live = channel.from_checkpoint(MISSING)
    assert (live.key, live.typ) == ("k", channel.typ)


def test_pickle_keeps_the_content(channel):
    channel.update([good(channel)])
    again = pickle.loads(pickle.dumps(channel))
    assert state(again) == state(channel)
    assert again == channel


def test_step_scoped_is_true_only_where_an_empty_update_may_change_something():
    scoped = {name for name, make in MAKERS.items() if make().step_scoped}
    assert scoped == {"AnyValue", "EphemeralValue", "EphemeralValue, no guard", "Topic"}


def test_exclusive_are_those_that_keep_one_value_and_refuse_several():
    exclusive = {name for name, make in MAKERS.items() if make().exclusive}
    assert exclusive == {"LastValue", "UntrackedValue"}


def test_equality_ignores_the_value_and_the_type():
    assert LastValue(int) == LastValue(str)
    assert AnyValue(int) == AnyValue(str)
    assert LastValue(int) != AnyValue(int)
    assert LastValueAfterFinish(int) == LastValueAfterFinish(str) != LastValue(str)
    assert EphemeralValue(int) == EphemeralValue(str) != EphemeralValue(int, False)
    assert UntrackedValue(int) == UntrackedValue(str) != UntrackedValue(int, guard=False)
    assert Topic(int) == Topic(str) != Topic(int, accumulate=True)
    assert NamedBarrierValue(str, ["a", "b"]) == NamedBarrierValue(int, {"b", "a"})
    assert NamedBarrierValue(str, ["a", "b"]) != NamedBarrierValue(str, ["a"])
    assert NamedBarrierValueAfterFinish(str, "ab") == NamedBarrierValueAfterFinish(str, "ba")
    assert NamedBarrierValue(str, "a") != NamedBarrierValueAfterFinish(str, "a")
    assert LastValue(int) != 1


# --- one value ------------------------------------------------------------------------------------------


def test_last_value_keeps_the_last_write():
    made = LastValue(int)
    assert made.update([1]) is True
    assert made.update([1]) is True  # written is changed, even if equal
    assert made.update([]) is False
    assert made.get() == made.checkpoint() == 1
    assert made.consume() is made.finish() is False


def test_last_value_refuses_two_writes_and_says_what_to_do():
    made = LastValue(int, key="total")
    made.update([0])
    with pytest.raises(InvalidUpdateError) as caught:
        made.update([1, 2])
    text = str(caught.value)
    assert text.startswith("At key 'total': LastValue can take only one value per step, but got 2.")
    assert "Annotated[" in text
    assert "INVALID_CONCURRENT_GRAPH_UPDATE" in text
    assert made.get() == 0


def test_any_value_takes_the_last_and_lives_one_step():
    made = AnyValue(str)
    assert made.update(["bar", "baz", "foo"])
    assert made.get() == "foo"
    assert made.update([]) is True
    assert not made.is_available()
    assert made.update([]) is False


def test_ephemeral_value_lives_one_step():
    made = EphemeralValue(int)
    assert made.update([1])
    assert made.get() == made.checkpoint() == 1
    assert made.update([]) is True
    assert made.update([]) is False
    assert made.checkpoint() is MISSING


@pytest.mark.parametrize("kind", [EphemeralValue, UntrackedValue])
def test_a_guard_refuses_two_writes_and_names_itself(kind):
    made = kind(int, key="k")
    made.update([0])
    with pytest.raises(InvalidUpdateError, match=rf"'k': {kind.__name__}\(guard=True\).*got 3.*guard=False"):
        made.update([1, 2, 3])
    assert made.get() == 0
    free = kind(int, False)
    assert free.update([1, 2])
    assert free.get() == 2


def test_untracked_value_lives_through_the_run_and_is_never_stored():
    made = UntrackedValue(int)
    made.update([5])
    assert made.update([]) is False
    assert made.get() == made.copy().get() == 5
    assert made.checkpoint() is MISSING
    assert not made.from_checkpoint(5).is_available()


def test_last_value_after_finish_shows_itself_once_at_the_end():
    made = LastValueAfterFinish(int)
    assert made.update([1, 5])
    assert not made.is_available()
    assert made.checkpoint() == (5, False)
    assert made.consume() is False
    assert made.finish() is True
    assert made.finish() is False
    assert made.get() == 5
    assert made.checkpoint() == (5, True)
    assert made.update([]) is False
    assert made.update([6])  # a write hides it again
    assert not made.is_available()
    made.finish()
    assert made.consume() is True
    assert made.checkpoint() is MISSING
    assert made.finish() is False


def test_after_finish_is_restored_from_any_pair():
    assert LastValueAfterFinish(int).from_checkpoint([5, True]).get() == 5
    back = NamedBarrierValueAfterFinish(str, NAMES).from_checkpoint([NAMES, True])
    assert back.is_available()


# --- overwrite ------------------------------------------------------------------------------------------


@each_case("kind", [LastValue, AnyValue, EphemeralValue, UntrackedValue, LastValueAfterFinish])
def test_overwrite_on_a_channel_without_reducer_is_a_plain_write(kind):
    made = kind(int)
    made.update([Overwrite(3)])
    made.finish()
    assert made.get() == 3


def test_two_overwrites_are_two_writes_for_last_value():
    with pytest.raises(InvalidUpdateError):
        LastValue(int).update([Overwrite(1), Overwrite(2)])


OVERWRITES = [Overwrite([7]), {"__overwrite__": [7]}, {"type": "__overwrite__", "value": [7], "by": "json"}]


@pytest.mark.parametrize("write", OVERWRITES)
def test_an_overwrite_wins_wholesale_in_every_form(write):
    made = BinaryOperatorAggregate(list, operator.add)
    made.update([[0]])
    assert made.update([[1], write, [2]])
    empty = BinaryOperatorAggregate(Any, operator.add)
    empty.update([write])
    assert made.get() == empty.get() == [7]


def test_overwrite_does_not_call_the_operator():
    made = BinaryOperatorAggregate(int, lambda a, b: pytest.fail("called"))
    made.update([1, Overwrite(None), 2])
    assert made.get() is None
    assert made.is_available()


@each_case(
    "write",
    [{"__overwrite__": 1, "b": 2}, {"type": "__overwrite__"}, {"type": "no", "value": 1}, {"type": 1}, {}],
)
def test_other_dicts_are_no_overwrite(write):
    made = BinaryOperatorAggregate(dict, operator.or_)
    made.update([{"old": 0}, write])
    assert made.get() == {"old": 0, **write}


def test_two_overwrites_in_one_step_are_refused_and_nothing_changes():
    made = BinaryOperatorAggregate(list, operator.add, key="log")
    made.update([[0]])
    with pytest.raises(InvalidUpdateError) as caught:
        made.update([Overwrite([1]), [2], {"__overwrite__": [3]}])
    for part in ("'log'", "one Overwrite", "got 2", "INVALID_CONCURRENT_GRAPH_UPDATE"):
        assert part in str(caught.value)
    assert made.get() == [0]


def test_overwrite_is_a_value_object():
    assert Overwrite([1]) == Overwrite([1]) != Overwrite([2])
    assert repr(Overwrite(1)) == "Overwrite(value=1)"
    assert not hasattr(Overwrite(1), "__dict__")
    assert pickle.loads(pickle.dumps(Overwrite(1))) == Overwrite(1)
    with pytest.raises(AttributeError):
        Overwrite(1).value = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        type("Mine", (Overwrite,), {})


def test_overwrite_survives_json():
    made = BinaryOperatorAggregate(int, operator.add)
    made.update([1, json.loads(json.dumps(asdict(Overwrite(9))))])
    assert made.get() == 9


# --- reducers -------------------------------------------------------------------------------------------


class NeedsArguments:
    def __init__(self, needed): ...


class Explodes:
    def __init__(self):
        raise RuntimeError


@each_case(
    "typ, initial",
    [
        *((typ, []) for typ in (list, list[int], List, List[int], Sequence[int], abc.Sequence)),  # noqa: UP006
        *((typ, []) for typ in (Annotated[list, 1], Required[list[int]], abc.MutableSequence[int])),
        *((typ, set()) for typ in (set, Set[int], abc.Set, abc.MutableSet[int])),  # noqa: UP006
        *((typ, {}) for typ in (dict, Dict[str, int], abc.Mapping, NotRequired[dict], abc.MutableMapping)),  # noqa: UP006
        *((typ, typ()) for typ in (int, float, str, tuple, frozenset)),
        (tuple[int, ...], ()),
        (Annotated[NotRequired[Annotated[abc.Mapping[str, int], 1]], 2], {}),
        *((typ, MISSING) for typ in (Optional[int], int | None, Any, None)),
        *((typ, MISSING) for typ in (abc.Callable, abc.Iterable, abc.Hashable, type[int])),
        *((typ, MISSING) for typ in (Literal["a"], NeedsArguments, Explodes, "a string", 5)),
    ],
)
def test_initial_value(typ, initial):
    made = BinaryOperatorAggregate(typ, operator.add)
    assert made.ValueType is made.UpdateType is typ
    assert made.checkpoint() == initial
    assert type(made.checkpoint()) is type(initial)
    assert made.from_checkpoint(MISSING).checkpoint() == initial


def test_a_reducer_folds_in_order():
    made = BinaryOperatorAggregate(str, lambda value, write: f"({value}{write})")
    assert made.update(["a", "b"])
    assert made.update([]) is False
    assert made.update(["c"])
    assert made.get() == "(((a)b)c)"


def test_an_empty_reducer_takes_the_first_write_unreduced():
    made = BinaryOperatorAggregate(int | None, operator.sub)
    assert made.update([10, 1])
    assert made.get() == 9


def test_a_reducer_may_take_an_item_or_a_list():
    def extend(value, write):
        return value + (write if isinstance(write, list) else [write])

    made = BinaryOperatorAggregate(list[int], extend)
    made.update([1, [2, 3], 4])
    assert made.get() == [1, 2, 3, 4]


def test_a_builtin_without_signature_is_a_reducer():
    made = BinaryOperatorAggregate(int, max)
    made.update([3, 1])
    assert made.get() == 3


def test_reducers_are_equal_by_their_operator_alone():
    def of(reducer):
        return BinaryOperatorAggregate(int, reducer)

    bound = deque[int]()
    keep = partial(max, 0)
    assert of(operator.add) == BinaryOperatorAggregate(list, operator.add)
    assert of(operator.add) != of(operator.mul)
    assert of(lambda a, b: a) != of(lambda a, b: a)
    assert of(operator.add) != of(lambda a, b: a + b)
    assert of(keep) == of(keep) != of(partial(max, 0))  # a partial has no __name__
    assert of(bound.count) == of(bound.count)


def test_a_reducer_that_raises_changes_nothing():
    made = BinaryOperatorAggregate(int, operator.add)
    made.update([1])
    with pytest.raises(TypeError):
        made.update([1, "x"])
    assert made.get() == 1


@pytest.mark.parametrize("typ", [list, list | None])
def test_a_preview_never_touches_the_value_or_the_writes(typ):
    live = BinaryOperatorAggregate(typ, operator.iadd)
    writes = [[1], [2]]
    assert preview(live, writes).get() == [1, 2]
    assert preview(live, writes).get() == [1, 2]
    assert writes == [[1], [2]]
    live.update(writes)
    assert writes == [[1], [2]]
    assert preview(live, [[3]]).get() == [1, 2, 3]
    assert live.get() == [1, 2]


class Bag:
    """Deep inside, `copy.copy` would share the items; its own `copy` does not."""

    def __init__(self, *items):
        self.items = list(items)

    def copy(self):
        return Bag(*self.items)

    def add(self, item):
        self.items.append(item)
        return self


def test_a_preview_asks_an_object_to_copy_itself():
    live = BinaryOperatorAggregate(Bag, Bag.add)
    assert preview(live, [1]).get().items == [1]
    assert live.get().items == []


def test_a_preview_shares_what_cannot_be_copied():
    live = BinaryOperatorAggregate(Any, lambda value, write: value)
    live.update([(n for n in "ab")])
    assert preview(live, [1]).get() is live.get()


def test_copying_a_reducer_channel_shares_the_value():
    made = BinaryOperatorAggregate(list, operator.add)
    assert made.copy().get() is made.get()


# --- topics ---------------------------------------------------------------------------------------------


def test_a_topic_has_the_items_of_the_last_step():
    made = Topic(int)
    assert made.update([1, 2])
    assert made.update([[3], (4, 5)])  # a list is opened, one level; a tuple is an item
    assert made.get() == [3, (4, 5)]
    assert made.update([]) is True
    assert made.checkpoint() == []
    assert made.update([]) is False


def test_an_accumulating_topic_has_all_items():
    made = Topic(int, accumulate=True)
    assert made.update([1, [2, [3]]])
    assert made.update([]) is False
    assert made.update([[]]) is False
    assert made.update([4])
    assert made.get() == [1, 2, [3], 4]


def test_an_empty_list_empties_a_topic():
    made = Topic(int)
    assert made.update([[]]) is False
    made.update([1])
    assert made.update([[]]) is True
    assert not made.is_available()


def test_topic_types():
    assert Topic(int).ValueType == abc.Sequence[int]
    assert Topic(int).UpdateType == int | list[int]


@pytest.mark.parametrize("accumulate", [False, True])
def test_an_overwrite_replaces_all_items(accumulate):
    made = Topic(int, accumulate)
    made.update([1, 2])
    assert made.update([3, Overwrite([8, 9]), 4])
    assert made.get() == [8, 9]
    with pytest.raises(InvalidUpdateError, match="one Overwrite"):
        made.update([Overwrite(1), Overwrite(2)])
    assert made.get() == [8, 9]
    assert made.update([Overwrite([])])
    assert not made.is_available()


def test_a_topic_returns_copies():
    made = Topic(int)
    made.update([1])
    made.get().append(2)
    made.checkpoint().append(3)
    assert made.get() == [1]


# --- barriers -------------------------------------------------------------------------------------------

BARRIERS = [NamedBarrierValue, NamedBarrierValueAfterFinish]


def test_a_barrier_opens_when_all_names_were_seen():
    made = NamedBarrierValue(str, ["b", "a"], key="join")
    assert made.update(["a"]) is True
    assert made.update(["a"]) is False
    assert made.consume() is False
    with pytest.raises(EmptyChannelError, match=r"'join'.* waits for 'b'"):
        made.get()
    assert made.update(["b", "b"]) is True
    assert made.get() is None
    assert made.consume() is True
    assert made.checkpoint() == set()


def test_a_barrier_counts_across_runs():
    half = NamedBarrierValue(str, NAMES)
    half.update(["a", "c"])
    later = NamedBarrierValue(str, NAMES).from_checkpoint(sorted(half.checkpoint()))
    later.update(["b"])
    assert later.is_available()


def test_a_barrier_after_finish_opens_at_the_end():
    made = NamedBarrierValueAfterFinish(str, ["a"])
    assert made.checkpoint() == (set(), False)
    assert made.finish() is False
    made.update(["a"])
    assert not made.is_available()
    with pytest.raises(EmptyChannelError, match="end of the run"):
        made.get()
    assert made.consume() is False
    assert made.finish() is True
    assert made.finish() is False
    assert made.get() is None
    assert made.update(["a"]) is False  # a write does not close it
    assert made.is_available()
    assert made.copy().is_available()
    assert made.checkpoint() == ({"a"}, True)
    assert made.consume() is True
    assert made.checkpoint() == (set(), False)


@pytest.mark.parametrize("kind", BARRIERS)
def test_an_unknown_name_is_refused_and_nothing_is_noted(kind):
    made = kind(str, ["b", "a"], key="join")
    with pytest.raises(InvalidUpdateError, match=r"'join': value 'z' is not in \{'a', 'b'\}"):
        made.update(["a", "z"])
    with pytest.raises(InvalidUpdateError, match="not hashable"):
        made.update(["a", ["not hashable"]])
    assert made.seen == frozenset()


@pytest.mark.parametrize("kind", BARRIERS)
def test_a_barrier_forgets_names_it_no_longer_waits_for(kind):
    old = kind(str, ["a", "gone"])
    old.update(["a", "gone"])
    new = kind(str, ["a"]).from_checkpoint(old.checkpoint())
    assert new.seen == {"a"}
    assert new.update(["a"]) is False


def test_a_barrier_without_names_is_open_and_cannot_be_consumed():
    made = NamedBarrierValue(str, [])
    assert made.is_available()
    assert made.consume() is False


@pytest.mark.parametrize("kind", BARRIERS)
def test_a_barrier_returns_copies(kind):
    made = kind(str, NAMES)
    made.update(["a"])
    stored = made.checkpoint()
    (stored if isinstance(stored, set) else stored[0]).clear()
    assert made.seen == {"a"}


# --- channels of one's own ------------------------------------------------------------------------------


class Highest(LastValue[int]):
    def update(self, values):
        return super().update([max(values)]) if values else False


class Logged(BinaryOperatorAggregate[int]):
    """Adds a slot, a `__dict__` and a container that `update` changes."""

    __slots__ = ("__dict__", "__private", "log")

    def __init__(self, typ):
        super().__init__(typ, operator.add)
        self.log = []
        self.extra = "kept"
        self.__private = 1

    def update(self, values):
        self.log.extend(values)
        return super().update(values)

    def private(self):
        return self.__private


def test_a_subclass_with_its_own_update_counts_as_step_scoped():
    assert Highest(int).step_scoped
    assert not type("Plain", (LastValue,), {})(int).step_scoped
    deaf = type("Deaf", (LastValue,), {"update": Highest.update, "step_scoped": False})
    assert not deaf(int).step_scoped


def test_a_subclass_with_its_own_update_is_not_exclusive_until_it_says_so():
    assert not Highest(int).exclusive
    assert type("Plain", (LastValue,), {})(int).exclusive
    assert type("Counted", (LastValue,), {"update": Highest.update, "exclusive": True})(int).exclusive


def test_a_subclass_is_copied_whole():
    template = Logged(int)
    live = template.from_checkpoint(MISSING)
    live.update([1])
    twin = live.copy()
    twin.update([2])
    assert type(twin) is Logged
    assert (twin.get(), twin.log, twin.extra, twin.private()) == (3, [1, 2], "kept", 1)
    assert (live.get(), live.log) == (1, [1])
    assert (template.get(), template.log) == (0, [])


@each_case("make", MAKERS.values())
def test_every_channel_can_be_subclassed(make):
    sub = type("Sub", (make.func,), {})
    made = sub(*make.args, **make.keywords)
    made.note = [1]
    made.update([good(made)])
    twin = made.copy()
    twin.note.append(2)
    assert type(twin) is sub
    assert state(twin) == state(made)
    assert (made.note, twin.note) == ([1], [1, 2])


def test_a_channel_from_scratch_needs_three_methods():
    class Counter(BaseChannel[int, Any, int]):
        __slots__ = ("count",)

        def get(self):
            if not getattr(self, "count", 0):
                raise EmptyChannelError
            return self.count

        def update(self, values):
            self.count = getattr(self, "count", 0) + len(values)
            return bool(values)

        def from_checkpoint(self, stored):
            new = Counter(self.typ, self.key)
            new.count = 0 if stored is MISSING else stored
            return new

    made = Counter(int)
    assert made.step_scoped
    assert made.checkpoint() is MISSING
    assert made.update(["x", "y"])
    assert preview(made, ["z"]).get() == 3
    assert made.copy().get() == made.checkpoint() == 2


# --- properties -----------------------------------------------------------------------------------------


lists = st.lists(st.integers(), max_size=3)
values = st.one_of(st.sampled_from([*NAMES, "z"]), st.integers(), st.none(), lists)
writes = st.one_of(values, values.map(Overwrite), lists.map(lambda v: {"__overwrite__": v}))
steps = st.lists(st.one_of(st.sampled_from(["consume", "finish"]), st.lists(writes, max_size=3)), max_size=6)


def play(channel, steps):
    """The channel after `steps`, run as the engine runs them: on copies, which are dropped if they raise."""
    for step in steps:
        held, twin = state(channel), channel.copy()
        assert state(twin) == held
        try:
            changed = getattr(twin, step)() if isinstance(step, str) else twin.update(step)
        except (InvalidUpdateError, TypeError):
            assert state(twin) == held  # all or nothing
            continue
        assert state(channel) == held  # a copy is a copy
        assert changed is True or state(twin) == held  # False means untouched
        channel = twin
    return channel


@given(st.sampled_from(sorted(MAKERS)), steps)
def test_updates_are_whole_or_nothing_and_never_reach_the_original(name, steps):
    play(MAKERS[name](), steps)


@given(st.sampled_from(TRACKED), steps)
def test_checkpoint_then_from_checkpoint_is_identity(name, steps):
    live = play(MAKERS[name](), steps)
    again = MAKERS[name]().from_checkpoint(live.checkpoint())
    assert state(again) == state(live)
    assert again.is_available() == live.is_available()


@given(st.sampled_from(sorted(MAKERS)), steps)
def test_after_an_empty_update_another_one_changes_nothing(name, steps):
    live = play(MAKERS[name](), steps)
    changed = live.update([])
    assert live.step_scoped or not changed
    assert live.update([]) is False


@given(st.lists(st.one_of(st.integers(), lists), max_size=5), st.lists(st.integers(), max_size=5))
def test_an_accumulating_topic_is_the_sum_of_its_steps(first, second):
    once, twice = Topic(int, accumulate=True), Topic(int, accumulate=True)
    once.update([*first, *second])
    twice.update(first)
    twice.update(second)
    assert once.checkpoint() == twice.checkpoint()


class Louder(LastValue[Any]):
    def get(self):
        return f"{super().get()}!"


@each_case("updates", [[], ["a"], [Overwrite("a")], ["a", "b"]])
@each_case("make", [*MAKERS.values(), partial(Louder, Any, key="k")])
def test_a_preview_is_what_an_update_would_give_and_changes_nothing(make, updates):
    def outcome(channel, *steps):
        try:
            return [getattr(channel, step)(*[updates] * (step != "get")) for step in steps][-1]
        except (InvalidUpdateError, EmptyChannelError, TypeError) as error:
            return type(error)

    empty = make()
    filled = empty.copy()
    outcome(filled, "update") if updates else None
    for channel in (empty, filled):
        before = outcome(channel, "get")
        assert outcome(channel, "preview") == outcome(channel.copy(), "update", "get")
        assert outcome(channel, "get") == before


def test_an_update_that_returns_none_is_an_error():
    class Best(LastValue):
        def update(self, values):
            self.value = values[-1]

    class State(TypedDict):
        best: Annotated[int, Best]

    app = StateGraph(State).add_node("a", lambda state: {"best": 2}).add_edge("__start__", "a").compile()
    with pytest.raises(TypeError, match=r"Best.update\(\) must return whether it has changed the channel, got None"):
        app.invoke({"best": 1})


def test_a_wave_that_opens_by_a_name_that_had_come_has_changed():
    names = {"a", "b", "c"}
    before = WaveBarrier(str, names, 3)
    before.update(["a", "b"])
    stored = WaveBarrier(str, names, 2).from_checkpoint(before.checkpoint())
    assert stored.update(["a"]) and stored.is_available()
