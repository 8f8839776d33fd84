"""Retention: the pure decisions, and savers that prune while runs continue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from kit.graphs import EMPTY, chain_of
from kit.pausing_graphs import graph

from stategraph import END, InMemorySaver
from stategraph.checkpoint import Retention
from stategraph.checkpoint.retention import EVERY, RetentionLimits
from stategraph.checkpoint.sqlite import SqliteSaver

NOW = datetime.now(UTC)


def aged(*days):
    """Checkpoints of these ages in days, named by them."""
    return [(str(each), (NOW - timedelta(days=each)).timestamp(), place) for place, each in enumerate(days, 1)]


def kept(limits: RetentionLimits, *days):
    return sorted(choose(limits, "", aged(*days)), key=float)


def choose(limits: RetentionLimits, namespace, made, parents=None, around=None):
    return limits.choose_kept(namespace, made, around or {}, lambda id: {"parents": parents or {}}, lambda id: ())


def test_without_limits_the_newest_stays():
    assert kept(RetentionLimits(), 3, 2, 1) == ["1"]


def test_the_last_ones_stay():
    assert kept(RetentionLimits(keep_last=2), 3, 2, 1) == ["1", "2"]
    assert kept(RetentionLimits(keep_last=0), 3, 2, 1) == []
    assert kept(RetentionLimits(keep_last=9), 3, 2, 1) == ["1", "2", "3"]


def test_what_is_older_goes_but_never_the_newest():
    assert kept(RetentionLimits(older_than=timedelta(days=2.5)), 3, 2, 1) == ["1", "2"]
    assert kept(RetentionLimits(older_than=timedelta(days=0.5)), 3, 2, 1) == ["1"]


def test_with_both_a_checkpoint_must_pass_both():
    assert kept(RetentionLimits(keep_last=2, older_than=timedelta(days=1.5)), 3, 2, 1) == ["1"]
    assert kept(RetentionLimits(keep_last=1, older_than=timedelta(days=9)), 3, 2, 1) == ["1"]


def test_a_memory_inside_stays_as_it_was_at_each_checkpoint_around_it():
    inside = aged(9, 8, 7, 6, 5)  # 1 to 5 in the order of all
    limits = RetentionLimits(keep_last=1)
    assert sorted(choose(limits, "n", inside, {"": "x"}, {"": {"a": 0, "b": 3, "c": 5, "d": 9}})) == ["5", "6", "8"]
    assert choose(limits, "n:task", inside, {"": "a"}, {"": {"a": 3}}) == {"5": 5}


def test_a_nested_history_of_one_task_goes_with_the_checkpoint_around_it():
    inside = aged(2, 1)
    assert not choose(RetentionLimits(), "n:task", inside, {"": "gone"}, {"": {"here": 3}})
    assert not choose(RetentionLimits(), "n:task", inside, {"": "gone"}, {"": {}})
    assert choose(RetentionLimits(), "n:task", inside, {"": "stored later"}, {"": {"here": 1}})
    assert choose(RetentionLimits(), "n:task", inside, {"": "here"}, {"": {"here": 1}})
    assert choose(RetentionLimits(), "n", inside, {"": "gone"}, {"": {"here": 1}})  # a history of its own stays


@pytest.mark.parametrize("wrong", [{"keep_last": -1}, {"keep_last": 0}, {}])
def test_a_retention_that_keeps_nothing_to_resume_from_is_refused(wrong):
    with pytest.raises(ValueError, match="Retention|keep_last"):
        Retention(**wrong)


def test_an_age_is_a_timedelta():
    with pytest.raises(TypeError, match="timedelta"):
        Retention(older_than=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [InMemorySaver, lambda **options: SqliteSaver(":memory:", **options)])
def test_a_saver_refuses_at_once_what_is_no_retention(make):
    with pytest.raises(TypeError, match=r"Retention\(keep_last=10\), got 5"):
        make(retention=5)


@pytest.fixture(params=["memory", "sqlite"])
def saver(request):
    retention = Retention(keep_last=3)
    if request.param == "memory":
        yield InMemorySaver(retention=retention)
    else:
        with SqliteSaver.from_conn_string(":memory:", retention=retention) as opened:
            yield opened


def test_a_saver_with_a_retention_prunes_during_a_run_and_the_run_continues(drive, saver):
    thread = drive.on(
        chain_of(dict, x=lambda state: {"n": state["n"] + 1, "big": "x" * 500})
        .add_conditional_edges("x", lambda s: "x" if s["n"] < 5 * EVERY else END, ["x", END])
        .compile(saver)
    )
    most = 0
    for goal in range(1, 4):
        thread.invoke({"n": 5 * EVERY - 60 * goal, "big": ""})
        most = max(most, len(thread.history()))
    assert 3 <= most <= 3 + EVERY
    assert thread.state.values["n"] == 5 * EVERY


def test_without_one_all_stays(drive):
    thread = drive.on(graph("S>x"))
    for _ in range(EVERY):
        thread.invoke(EMPTY)
    assert len(thread.history()) == 3 * EVERY
