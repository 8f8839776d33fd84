"""Ray: the suite of `test_executors.py` on a cluster of this machine."""

import os

import pytest
from kit.executor_suite import *

from stategraph.executors import resolve_executor

pytestmark = pytest.mark.trial

# Ray notices the end of a worker by its connections, and those are held by a child of the worker.
del test_a_worker_that_dies_is_detected_though_a_child_keeps_its_files_open


@pytest.fixture(autouse=True)
def no_leaks():
    """Threads of Ray's own come when it needs them, and stay."""


# Nothing of this leaves the machine. Workers find the functions of the suite by name.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONPATH": os.environ["PYTHONPATH"],  # where `kit` is
}


@pytest.fixture(scope="module")
def executor():
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        ray.init(
            num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
            logging_level="ERROR", object_store_memory=200 * 2**20,
        )  # fmt: skip
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def far(executor):
    return executor


@pytest.fixture(scope="module")
def mortal(executor):
    return executor


@pytest.fixture
def world():
    """For tests that take their time: waiting for a worker is the same in both."""
    return Drive(is_async=False)


@pytest.fixture
def elsewhere():
    return True


@pytest.fixture
def ends_for_real():
    return True


def test_the_module_means_its_cluster(executor):
    from stategraph.executors.ray import RayExecutor

    assert isinstance(resolve_executor(executor), RayExecutor)
    assert resolve_executor(executor) is resolve_executor(executor)


def test_a_trace_continues_in_its_workers(drive, executor):
    pytest.importorskip("opentelemetry.sdk")
    from kit import otel_nodes

    otel_nodes.check_trace(drive, executor)
