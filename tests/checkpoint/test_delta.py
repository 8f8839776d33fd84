"""Deltas: whatever two payloads are, the second comes back exactly; what grew by a little costs a little."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import each_case

from stategraph import Send
from stategraph.checkpoint import Serializer
from stategraph.checkpoint.serde.delta import (
    apply_deltas,
    compose_deltas,
    is_outweighed,
    length_after,
    make_delta,
)
from stategraph.checkpoint.serde.msgpack import unpackb

serializer = Serializer()

TEXTS = st.text(max_size=20)
ITEMS = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.dictionaries(TEXTS, TEXTS, max_size=3))
VALUES = st.one_of(st.lists(ITEMS, max_size=80), st.dictionaries(TEXTS, ITEMS, max_size=80), st.sets(TEXTS, max_size=80))


def payload(value):
    return serializer.dumps(value)[1]


@given(st.lists(VALUES, min_size=2, max_size=6))
def test_a_chain_of_deltas_gives_every_payload_back(values):
    whole, deltas = payload(values[0]), []
    last = whole
    for value in values[1:]:
        new = payload(value)
        delta = make_delta(last, new)
        if delta is None:
            whole, deltas = new, []
        else:
            deltas.append(delta)
        assert apply_deltas(whole, deltas) == new
        last = new


@given(st.lists(VALUES, min_size=2, max_size=8), st.integers(min_value=0, max_value=6))
def test_one_delta_does_what_several_do(values, split):
    """Also where those are made of several themselves."""
    payloads, deltas = [payload(values[0])], []
    for value in values[1:]:
        new = payload(value)
        delta = make_delta(payloads[-1], new)
        if delta is not None:
            assert length_after(unpackb(delta)) == len(new)
            payloads, deltas = [*payloads, new], [*deltas, delta]
    runs = [(at, run) for at, run in ((0, deltas[:split]), (split, deltas[split:])) if run]
    joined = [compose_deltas(len(payloads[at]), run) for at, run in runs]
    assert apply_deltas(payloads[0], joined) == payloads[-1]
    assert apply_deltas(payloads[0], [compose_deltas(len(payloads[0]), joined)]) == payloads[-1]


def test_removed_bytes_are_in_no_delta():
    lists = [BIG, [*BIG, "x" * 500], [*BIG, "short"]]
    payloads = [payload(value) for value in lists]
    deltas = [make_delta(*pair) for pair in pairwise(payloads)]
    joined = compose_deltas(len(payloads[0]), [delta for delta in deltas if delta is not None])
    assert len(joined) < 50 and apply_deltas(payloads[0], [joined]) == payloads[2]


@given(st.binary(max_size=400), st.binary(max_size=400), st.binary(max_size=400))
def test_any_bytes_can_be_restored_from_a_delta(front, middle, back):
    old, new = front + back, front + middle + back
    for a, b in ((old, new), (new, old)):
        delta = make_delta(a, b)
        assert delta is None or apply_deltas(a, [delta]) == b


PIECES = st.lists(st.tuples(st.binary(max_size=4), st.sampled_from([b"", b"ab" * 40, bytes(range(200))])), max_size=12)


@given(PIECES, PIECES, st.randoms(use_true_random=False))
def test_changes_in_many_places_are_restored(old, other, random):
    new = [random.choice(pair) for pair in zip(old, other, strict=False)] + old[len(other) :]
    a, b = (b"".join(small + large for small, large in pieces) for pieces in (old, new))
    delta = make_delta(a, b)
    assert delta is None or apply_deltas(a, [delta]) == b


BIG = [f"item {n}" for n in range(1000)]
CHANGES = {
    "list append": (BIG, [*BIG, "one more"]),
    "list append over a length that takes more bytes": ([text * 5 for text in BIG[:15]], [text * 5 for text in BIG[:16]]),
    "list item replaced": (BIG, [*BIG[:500], "other", *BIG[501:]]),
    "list item removed": (BIG, [*BIG[:500], *BIG[501:]]),
    "dict key set": (dict.fromkeys(BIG, 1), {**dict.fromkeys(BIG, 1), BIG[500]: 2}),
    "dict key added": (dict.fromkeys(BIG, 1), {**dict.fromkeys(BIG, 1), "new": 2}),
    "dict key deleted": (dict.fromkeys(BIG, 1), dict.fromkeys([*BIG[:500], *BIG[501:]], 1)),
    "set item added": (set(BIG), {*BIG, "new"}),
    "list in a dict grown": ({"a": BIG, "b": BIG}, {"a": [*BIG, "new"], "b": BIG}),
    "list in a list in a dict grown": ({"a": [1, BIG], "b": 1}, {"a": [1, [*BIG, "new"]], "b": 1}),
    "list in an object in a dict grown": ({"a": Send("n", BIG), "b": 1}, {"a": Send("n", [*BIG, "new"]), "b": 1}),
    "two lists in a dict grown": ({"a": BIG, "b": BIG}, {"a": [*BIG, "new"], "b": [*BIG, "newer"]}),
    "list in a dict cut": ({"a": BIG, "b": BIG}, {"a": [*BIG[:500], *BIG[501:]], "b": BIG}),
    "lists in a dict grown at two ends": ({"a": BIG, "b": BIG}, {"a": ["new", *BIG], "b": [*BIG, "newer"]}),
    "text grown": ("x" * 1000, "x" * 1000 + "y"),
}


@each_case("name", CHANGES)
def test_a_small_change_is_a_small_delta(name):
    old, new = map(payload, CHANGES[name])
    delta = make_delta(old, new)
    assert delta is not None and len(delta) < 80
    assert apply_deltas(old, [delta]) == new


def test_what_differs_everywhere_is_stored_whole():
    assert make_delta(payload(BIG), payload([text.upper() for text in BIG])) is None


def test_a_nested_edit_is_seen_though_the_outer_object_is_the_same():
    value = [{"n": [1]} for _ in range(100)]
    old = payload(value)
    value[50]["n"].append(2)
    delta = make_delta(old, payload(value))
    assert delta is not None and serializer.loads(("msgpack", apply_deltas(old, [delta]))) == value


def test_deltas_are_replaced_by_a_full_value_once_they_are_larger():
    assert not is_outweighed(1000, 3, 5000)
    assert is_outweighed(5000, 3, 5000)
    assert is_outweighed(10, 1001, 5_000_000)


def test_a_delta_for_something_longer_is_refused():
    delta = make_delta(payload(BIG), payload([*BIG, 1]))
    assert delta is not None
    with pytest.raises(ValueError, match="does not match"):
        apply_deltas(b"short", [delta])
