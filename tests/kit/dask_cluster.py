"""A Dask cluster of two worker processes, and what the suite of executors asks of its place: fixtures to be imported."""

from contextlib import suppress

import pytest

from kit.drive import Drive
from kit.executor_suite import LONG


@pytest.fixture(autouse=True)
def no_leaks():
    """Threads of Dask's own come when it needs them, and stay."""


@pytest.fixture(scope="module")
def client():
    """Loads Dask, which takes half a second: only in the process whose tests use it."""
    distributed = pytest.importorskip("distributed")
    import dask

    settings = {
        "distributed.scheduler.allowed-failures": 0,  # so that it is the engine that counts
        "distributed.comm.timeouts.connect": "10s",
        "distributed.admin.system-monitor.gil.enabled": False,
    }
    with (
        dask.config.set(settings),
        suppress(KeyError),  # of Dask's own: a cluster that closes may look for a worker that it has removed already
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


@pytest.fixture(autouse=True)
def all_workers(client):
    """Those that an earlier test has killed are back; a nanny whose worker dies while it starts gives up. The cluster drops
    a nanny whose worker is not back after 15 seconds, though that may just have come; the scheduler counts both."""
    for _ in range(10):
        client.cluster.scale(2)
        with suppress(TimeoutError):
            client.wait_for_workers(2, timeout=LONG / 10)
            if len(client.cluster.workers) == len(client.run(int, on_error="ignore")) == 2:
                return
    raise TimeoutError("the workers do not come back")


@pytest.fixture(scope="module")
def executor(client):
    return client


@pytest.fixture(scope="module")
def far(client):
    return client


@pytest.fixture(scope="module")
def mortal(client):
    return client


@pytest.fixture
def world():
    """For tests that take their time: waiting for a worker is the same in both."""
    return Drive(is_async=False)


@pytest.fixture
def elsewhere():
    return True


@pytest.fixture
def ends_for_real():
    return False
