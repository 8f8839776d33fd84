"""What is specific to Dask, and one run on a cluster. The whole suite of executors: `test_dask_suite.py`."""

import pytest
from kit.dask_cluster import *
from kit.executor_graphs import row, where
from kit.executor_suite import play

from stategraph.executors import resolve_executor

pytestmark = pytest.mark.trial


def test_a_client_means_one_executor(client):
    from stategraph.executors.dask import DaskExecutor

    assert resolve_executor(client) is resolve_executor(client)
    assert isinstance(resolve_executor(client), DaskExecutor)


def test_a_run_is_equal_to_the_local_one(drive, client):
    assert play(drive, "questions", executor=client) == play(drive, "questions")


def test_a_closed_client_says_so(drive, client):
    other = type(client)(client.scheduler.address)
    other.close()
    for size in (1, 100_000):
        with pytest.raises(RuntimeError, match="this distributed.Client is closed"):
            drive.invoke(row(where, executor=other), {"log": ["x" * size]})


def test_a_trace_continues_in_its_workers(drive, executor):
    pytest.importorskip("opentelemetry.sdk")
    from kit import otel_nodes

    otel_nodes.check_trace(drive, executor)
