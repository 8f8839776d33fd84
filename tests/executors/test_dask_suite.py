"""Dask: the suite of `test_executors.py` on a cluster of two worker processes."""

import pytest
from kit.dask_cluster import *
from kit.executor_suite import *

pytestmark = pytest.mark.trial


def test_many_calls_may_wait_for_long(drive, client):
    """Each looks up twice a second whether it is still wanted."""
    graph = StateGraph(State).add_node(rests)
    graph.add_conditional_edges(START, lambda state: [Send("rests", {"n": n}) for n in range(60)], ["rests"])
    assert drive.invoke(graph.compile(executor=client), {})["log"] == list(range(60))
