"""A queue of the graph `counting`, and what a worker has of it without its thread."""

import pytest
from kit.fleet import counting

from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.workers import Queue
from stategraph.workers.session import Terms, WorkerSession


@pytest.fixture
def queue(postgres):
    with Queue.from_conn_string(postgres, counting) as opened:
        opened.setup()
        yield opened


@pytest.fixture
def session(postgres, queue):
    with PostgresSaver.from_conn_string(postgres) as saver:
        saver.setup()
    opened = WorkerSession(postgres, Terms("counting", "tester", 3, 20)).open()
    yield opened
    opened.close()
