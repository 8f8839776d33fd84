"""An empty saver of each kind, as fixtures that all tests have (`conftest.py`)."""

from contextlib import contextmanager

import pytest

from stategraph import InMemorySaver, SqliteSaver


@contextmanager
def opened_saver(kind, request, tmp_path, schema="postgres"):
    """An empty saver in memory, in a file, or in the schema of Postgres that a fixture gives."""
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), synchronous="off") as opened:
            yield opened
    else:
        url = request.getfixturevalue(schema)
        from stategraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url) as opened:
            yield opened


@pytest.fixture(params=["memory", "sqlite"])
def local_saver(request, tmp_path):
    """An empty saver of each kind that needs no server. A module may use it under the name `saver`."""
    with opened_saver(request.param, request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def saver(request, tmp_path):
    """An empty saver of each kind. The test's module has a fixture `postgres`, of `cluster`."""
    with opened_saver(request.param, request, tmp_path) as opened:
        yield opened
