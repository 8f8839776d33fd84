"""What every test of the server has."""

import pytest
from kit.drive import forget_modules
from serving import opened


@pytest.fixture(params=("sqlite", "postgres", "postgres with keys"))
def database(request, tmp_path):
    """The arguments of `create_app` for a server on each database: a session ends the same on all of them."""
    place = tmp_path / "served.db" if request.param.startswith("sqlite") else request.getfixturevalue("postgres")
    with opened(request.param, place) as options:
        yield options


@pytest.fixture(autouse=True)
def no_leaks(tmp_path):
    """Servers, clients and receivers have tasks and threads that end by themselves; modules do not."""
    yield
    forget_modules(tmp_path)
