"""An empty saver of each kind, as fixtures that all tests have (`conftest.py`)."""

from __future__ import annotations

import pytest

from stategraph import InMemorySaver, SqliteSaver


@pytest.fixture(params=["memory", "sqlite"])
def local_saver(request, tmp_path):
    """An empty saver of each kind that needs no server. A module may use it under the name `saver`."""
    if request.param == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as opened:
            yield opened


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def saver(request, tmp_path):
    """An empty saver of each kind. The test's module has a fixture `postgres`, of `cluster`."""
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as opened:
            yield opened
    else:
        url = request.getfixturevalue("postgres")
        from stategraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url) as opened:
            yield opened
