"""Executors: what crosses and what does not, on processes of our own, on pools of the user's, on their threads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

pytest.register_assert_rewrite("executor_suite")

from executor_suite import *  # noqa: E402, F403

from stategraph.executors import ProcessExecutor  # noqa: E402


def process_pool() -> Executor:
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver"))


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    with ProcessExecutor(2) as found:
        yield found


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with process_pool() as found:
        assert found.submit(int).result() == 0  # now its threads are there
        yield found


@pytest.fixture(scope="module")
def threads() -> Iterator[Any]:
    with ThreadPoolExecutor(2, thread_name_prefix="stategraph") as found:
        yield found


@pytest.fixture(scope="module", params=["processes", "pool", "threads"])
def executor(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=["processes", "pool"])
def far(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def elsewhere(executor: Any) -> bool:
    """Whether functions leave this process."""
    return not isinstance(executor, ThreadPoolExecutor)


@pytest.fixture(scope="module")
def mortal(processes: Any) -> Any:
    """An executor that outlives its workers."""
    return processes


@pytest.fixture
def ends_for_real(far: Any) -> bool:
    """Whether a call whose time is up is ended."""
    return isinstance(far, ProcessExecutor)
