"""A Postgres server for the benchmarks: the tests' own, in a temporary folder, on loopback, gone
afterwards.

`python server.py` makes a durable one, prints the process id and an address, and removes it when
its input ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from processes import ROOT

DURABLE = ("fsync = on", "full_page_writes = on", "autovacuum = on", "max_connections = 200")


@contextmanager
def made(durable: bool = False) -> Iterator[Any]:
    """A server, as durable as it comes or as quick; None where its programs are missing."""
    sys.path.append(str(ROOT / "tests"))
    try:
        from kit import cluster
    except ImportError:  # no dev tools here
        yield None
        return
    finally:
        sys.path.pop()
    programs = cluster.programs()
    if programs is None:
        yield None
        return
    server = cluster.Cluster(programs)
    try:
        if durable:
            with open(server.folder / "data" / "postgresql.conf", "a") as config:
                config.write("\n".join(DURABLE) + "\n")
            server.restart()
        yield server
    finally:
        server.remove()


@contextmanager
def postgres() -> Iterator[Callable[[], str] | None]:
    """What makes an empty schema and gives its connection string; None where the server's programs
    are missing."""
    with made() as server:
        yield None if server is None else server.schema


def main() -> None:
    with made(durable=True) as server:
        postmaster = (server.folder / "data" / "postmaster.pid").read_text().split()[0]
        print(postmaster, server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
