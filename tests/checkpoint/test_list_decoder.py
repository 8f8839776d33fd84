"""Lists that are decoded again as they grow: each caller gets what `Serializer.loads` gives, and no other's."""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.graphs import chain_of, thread_config

from stategraph import END
from stategraph.checkpoint import DamagedError, Serializer
from stategraph.checkpoint.serde.delta import OPENING, SharedBlob
from stategraph.checkpoint.serde.list_decoder import LEAST_BYTES, MOST_BYTES, ListDecoder

SERIALIZER = Serializer()
LONG = "x" * 100

MAKES = {
    "texts": lambda n: f"{n} {LONG}",
    "scalars": lambda n: [n, 0.5, None, True, b"bytes", LONG][n % 6],
    "chat": lambda n: {"role": "user", "content": f"{n} {LONG}", "name": None},
    "nested": lambda n: {"role": "user", "content": [LONG], "number": n},
    "lists": lambda n: [n, LONG],
    "objects": lambda n: (n, LONG),
}


def types_of(value):
    """The types in a value, however deep; equal values may differ in them."""
    if isinstance(value, dict):
        return {key: types_of(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(types_of, value)]
    return type(value)


def spoil(value):
    """Change all that can be changed in a list."""
    for each in value:
        if isinstance(each, dict):
            each["content"] = each["more"] = "spoilt"
        elif isinstance(each, list):
            each.append("spoilt")
    value.append("spoilt")


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(MAKES)), st.integers(0, 5), st.integers(0, 40), st.booleans()), max_size=8
    )
)
def test_values_are_those_that_were_stored_whatever_was_decoded_before(steps):
    """A list begins with another, or goes on with items of its own, of one kind or of two."""
    decoder, items = ListDecoder(MOST_BYTES), []
    for kind, kept, added, as_view in steps:
        items = [*items[: len(items) * kept // 5], *(MAKES[kind](n) for n in range(added))]
        form, payload = SERIALIZER.dumps(items)
        for _ in range(2):
            value = decoder.loads(SERIALIZER.loads, "items", (form, memoryview(payload) if as_view else payload))
            assert value == items
            assert types_of(value) == types_of(items)
            spoil(value)


def decoding(decoder, *values):
    """How many bytes are decoded for each of some values, one after the other."""
    counts = []

    def loads(blob):
        counts[-1] += len(blob[1])
        return SERIALIZER.loads(blob)

    for value in values:
        counts.append(0)
        assert decoder.loads(loads, "items", SERIALIZER.dumps(value)) == value
    return counts


@pytest.mark.parametrize("kind", ["texts", "scalars", "chat"])
def test_what_a_list_has_in_common_with_the_one_before_is_not_decoded(kind):
    items = [MAKES[kind](n) for n in range(300)]
    first, same, shorter, longer = decoding(ListDecoder(MOST_BYTES), items, items, items[:200], [*items, *items[:5]])
    assert first == len(SERIALIZER.dumps(items)[1])
    assert same == shorter == 0
    assert 0 < longer <= first / 10


@pytest.mark.parametrize("kind", ["nested", "lists", "objects"])
def test_items_that_callers_could_change_are_not_kept(kind):
    items = [MAKES[kind](n) for n in range(300)]
    assert decoding(ListDecoder(MOST_BYTES), items, items)[1] == len(SERIALIZER.dumps(items)[1])


def test_no_more_bytes_are_kept_than_allowed():
    decoder, lists = ListDecoder(100_000), {n: [f"{n} {LONG}"] * 100 for n in range(10)}
    counts = []

    def loads(blob):
        counts.append(len(blob[1]))
        return SERIALIZER.loads(blob)

    for n, value in lists.items():
        decoder.loads(loads, n, SERIALIZER.dumps(value))
    for n, value in reversed(lists.items()):  # the newest are known
        decoder.loads(loads, n, SERIALIZER.dumps(value))
    assert 10 < len(counts) < 20
    assert decoding(decoder, ["x" * 200_000] * 20) == decoding(ListDecoder(0), ["x" * 200_000] * 20)


def test_a_long_list_is_not_kept_for_a_short_one_that_shares_its_bytes():
    decoder, held = ListDecoder(100_000), []
    short = [f"{n} {LONG}" for n in range(20)]
    opening = SERIALIZER.dumps(short)[1][:3]
    for n in range(10):
        form, _, buffer, _ = SharedBlob.share(SERIALIZER.dumps([*short, *([LONG] for _ in range(500))]))
        shared = SharedBlob(form, opening, buffer, OPENING + len(SERIALIZER.dumps(short)[1]) - 3)
        held.append(sys.getrefcount(buffer))
        assert [decoder.loads(SERIALIZER.loads, n, shared) for _ in range(2)] == [short, short]
        held.append(sys.getrefcount(buffer))
    assert held[::2] == held[1::2]


def test_another_format_is_refused_as_always():
    decoder, (form, payload) = ListDecoder(MOST_BYTES), SERIALIZER.dumps([LONG] * 20)
    assert len(payload) >= LEAST_BYTES
    decoder.loads(SERIALIZER.loads, "items", (form, payload))
    with pytest.raises(DamagedError, match="unknown format"):
        decoder.loads(SERIALIZER.loads, "items", ("other", payload))


class Chat(TypedDict):
    messages: Annotated[list[Any], operator.add]


@pytest.mark.parametrize("limit", [None, 10])
@pytest.mark.parametrize("kind", ["texts", "chat", "nested"])
def test_nobody_sees_what_another_changes(saver, kind, limit):
    app = chain_of(Chat, say=lambda state: {"messages": [MAKES[kind](len(state["messages"]))]})
    app = app.add_conditional_edges("say", lambda s: "say" if len(s["messages"]) < 40 else END)
    app, config = app.compile(saver), thread_config()
    app.invoke({"messages": []}, config)
    stored = [MAKES[kind](n) for n in range(40)]
    for _ in range(2):
        head = app.get_state(config).values["messages"]
        assert head == stored
        spoil(head)
        for each in app.get_state_history(config, limit=limit):
            found = each.values.get("messages", [])
            assert found == stored[: len(found)]
            spoil(found)
    app.update_state(config, {"messages": ["more"]})
    assert app.get_state(config).values["messages"] == [*stored, "more"]


def test_a_serializer_of_a_users_own_decodes_everything(local_saver):
    class Mine(Serializer):
        def loads(self, blob):
            value = super().loads(blob)
            return [each.upper() for each in value] if isinstance(value, list) and value and isinstance(value[0], str) else value

    local_saver.serde = Mine()
    app, config = chain_of(Chat, say=lambda state: {"messages": [LONG] * 20}).compile(local_saver), thread_config()
    app.invoke({"messages": []}, config)
    for _ in range(2):
        assert app.get_state(config).values["messages"] == [LONG.upper()] * 20
