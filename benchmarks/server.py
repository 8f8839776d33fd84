"""A Postgres server for the curves: the tests' own, in a temporary folder, on loopback, gone
afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from processes import ROOT


@contextmanager
def postgres() -> Iterator[Callable[[], str] | None]:
    """What makes an empty schema and gives its connection string; None where the server's programs
    are missing."""
    sys.path.append(str(ROOT / "tests"))
    try:
        import cluster
    except ImportError:  # no dev tools here
        yield None
        return
    finally:
        sys.path.pop()
    programs = cluster.programs()
    if programs is None:
        yield None
        return
    made = cluster.Cluster(programs)
    try:
        yield made.schema
    finally:
        made.remove()
