"""`SqliteSaver`: what is special about rows in SQLite. What all savers promise is checked by `test_conformance`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stategraph.checkpoint import DamagedError, InMemorySaver
from stategraph.checkpoint.base import address
from stategraph.checkpoint.sqlite import SqliteSaver


@pytest.fixture
def saver() -> Iterator[SqliteSaver]:
    with SqliteSaver.from_conn_string(":memory:", synchronous="off") as opened:
        yield opened


def checkpoint(id: str, value: Any) -> Any:
    return {
        "v": 1, "id": id, "ts": "2024-01-01T00:00:00+00:00", "channel_values": {"a": value},
        "channel_versions": {"a": 1}, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip


def test_a_checkpoint_may_be_put_again_as_its_own_parent(saver: SqliteSaver) -> None:
    found = []
    for each in (InMemorySaver(), saver):
        each.put(address("t", ""), checkpoint("1", "x" * 100), {}, {"a": 1})
        each.put(address("t", "", "1"), checkpoint("1", "y" * 100), {}, {"a": 1})
        found.append(each.get_tuple(address("t", "")))
    assert found[0] == found[1]


def test_links_that_lead_in_a_circle_are_damage(saver: SqliteSaver) -> None:
    for id, parent in (("1", None), ("2", "1"), ("3", "2")):
        saver.put(address("t", "", parent), checkpoint(id, id), {}, {"a": 1})
    saver._database.execute("UPDATE checkpoints SET link = seq WHERE checkpoint_id = '3'")
    with pytest.raises(DamagedError, match="checkpoint '2' is missing"):
        saver.get_tuple(address("t", ""))


def test_checkpoints_that_are_each_others_parents_end_without_one(saver: SqliteSaver) -> None:
    found = []
    for each in (InMemorySaver(), saver):
        each.put(address("t", "", "2"), checkpoint("1", 1), {}, {"a": 1})
        each.put(address("t", "", "1"), checkpoint("2", 2), {}, {"a": 1})
        each.prune(["t"], keep_last=1)
        found.append([*each.list(address("t", ""))])
    assert found[0] == found[1]
    assert found[1][0].parent_config is None
