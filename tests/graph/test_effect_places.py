"""Calls that must not be repeated are not, on workers and on a server: the rule of `test_effect.py` in other places."""

from __future__ import annotations

from collections import Counter

import pytest
from kit import cluster
from kit.graphs import Log, chain_of
from kit.places import Failed, calling

from stategraph import effect

postgres = cluster.emptied


@pytest.mark.parametrize("place", ["workers", "server"])
def test_two_hundred_and_nine_calls_are_not_made_again_by_a_replay(place, request):
    received = Counter()
    failures = [RuntimeError("lost")]

    @effect("irreversible")
    def trade(order: int) -> int:
        received[order] += 1
        return order

    def node(state: Log):
        found = [trade(n) for n in range(209)]
        if failures:
            raise failures.pop()
        return {"log": found}

    url = request.getfixturevalue("postgres") if place == "workers" else ""
    with calling(place, chain_of(Log, pay=node).compile(), url) as call:
        with pytest.raises(Failed):
            call("t", {"log": []})
        assert len(call("t", None)["log"]) == 209
    assert received == dict.fromkeys(range(209), 1)
