"""`python -m stategraph serve`: serve graphs over HTTP, in this process, until SIGTERM or SIGINT.

Only parses the command line; other modules do the work.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.command import open_saver
from ..checkpoint.encryption import KEYS_HELP, encryption_of_keys
from ..checkpoint.errors import StorageError
from ..checkpoint.serde import Serializer
from ..checkpoint.sql.redact import is_conninfo
from ..extras import install_command
from ..graph.loader import OBSERVER_HELP, TARGET_HELP, find_graph, load
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError, likely
from ..pregel.observers import add_observer
from ..store.base import BaseStore

_SERVE = (
    "Serve graphs over HTTP, for the official clients of LangGraph's server and for a browser. On "
    "SIGTERM or SIGINT each run pauses after its current superstep, and the next server on the "
    "same database continues it. A second signal ends the server at once."
)

_COLLECTOR = (10_000, 5, 50)
"""The thresholds of the garbage collector; Python's own are (700, 10, 10). The second is low, so
that what open streams and runs hold moves soon to the oldest generation: these objects are alive,
so a look at them finds little and takes long."""

_DRAIN_SECONDS = 10
"""How many seconds runs may take to reach their next step when the server stops."""


def add_command(_: str, parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.description = _SERVE
    add = parser.add_argument
    text = f"{TARGET_HELP}. Clients call it NAME (default: the name after the colon)"
    add("graphs", nargs="+", metavar="[NAME=]GRAPH", help=text)
    place = "where threads and runs are stored: an SQLite file, or postgresql://..."
    add("--db", metavar="FILE-OR-URL", help=f"{place} (default: in memory)")
    add("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    add("--port", type=int, default=2024, help="the port; 0 takes any free one (%(default)s)")
    who = "a function that takes a request and returns the user's id, or None to refuse it"
    add("--auth", metavar="MODULE:NAME", help=f"{who}; required unless --host is loopback")
    name = "a host name under which clients reach the server, besides loopback; may be repeated"
    add("--name", action="append", default=[], metavar="HOST", help=name)
    add("--keys", metavar="FILE", help=KEYS_HELP)
    add("--observer", action="append", default=[], metavar="MODULE:NAME", help=OBSERVER_HELP)
    many = "with a Postgres database: how many runs of each graph this process does at once"
    add("--workers", type=int, default=4, metavar="N", help=f"{many} (%(default)s)")
    others = "leave all runs to workers: stategraph work GRAPH --as NAME --db URL"
    add("--no-workers", action="store_const", const=0, dest="workers", help=others)
    text = "allow webhooks to addresses that begin with this URL; may be repeated"
    add("--webhooks", action="append", default=[], metavar="URL", help=text)
    text = "log each request"
    add("--access-log", action="store_true", help=text)
    parser.set_defaults(run=_serve)


def _serve(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    try:
        import uvicorn  # noqa: F401 - to say what is missing before graphs are loaded

        from .app import LOOPBACK, create_app
        from .store_lock import StoreLock
    except ImportError as error:
        parser.error(f"serving needs {error.name}: {install_command('serve')}")
    if asked.host not in LOOPBACK and not asked.auth:
        why = "without it, whoever reaches the port can use the server"
        parser.error(f"--host {asked.host} needs --auth: {why}")
    try:
        graphs = _graphs(asked.graphs)
        for observer in asked.observer:
            add_observer(observer)
        auth = _load(asked.auth) if asked.auth else None
        serde = next(iter(graphs.values())).serde
        with _storage(asked, serde) as (saver, store):
            queue = asked.db if asked.db and is_conninfo(asked.db) else None
            if store is not None and queue is None:
                with StoreLock(store):  # fails here with a message, later with a trace
                    pass
            app = create_app(
                graphs,
                checkpointer=saver,
                store=store,
                auth=auth,
                webhooks=asked.webhooks,
                hosts=frozenset({*LOOPBACK, asked.host, *asked.name}),
                drain_seconds=_DRAIN_SECONDS,
                queue=queue,
                workers=asked.workers,
                integrity=encryption_of_keys(asked.keys, os.environ),
            )
            return _listen(app, graphs, asked)
    except (OSError, StateGraphError, StorageError, TypeError, ValueError) as error:
        parser.error(str(error))


def _listen(app: Any, graphs: Iterable[str], asked: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Runs then pause at once, without waiting for the last client
    to close its stream. A second signal ends the server without waiting for the runs."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.begin_to_stop()
            if self.should_exit:
                self.force_exit = True
                super().handle_exit(sig, frame)  # uvicorn re-raises it, which ends the process
            else:
                self.should_exit = True  # a clean exit, once everything is closed

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                _calm_collector()
                place = self.servers[0].sockets[0].getsockname()
                address = f"[{place[0]}]" if ":" in place[0] else place[0]
                names = ", ".join(graphs)
                print(f"stategraph serves {names} at http://{address}:{place[1]}", flush=True)

    config = uvicorn.Config(
        app,
        host=asked.host,
        port=asked.port,
        log_level="info",
        access_log=asked.access_log,
        timeout_graceful_shutdown=_DRAIN_SECONDS + 5,
    )
    server = Server(config)
    with suppress(KeyboardInterrupt):
        server.run()
    return 0 if server.started else 1


def _calm_collector() -> None:
    """Make the garbage collector run less often and skip all objects that exist now: each
    collection stops all requests, and these objects live until the server ends."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)


def _graphs(targets: Sequence[str]) -> dict[str, Pregel]:
    """Load the graphs named on the command line and return them by name.

    Raises:
        ValueError: two graphs have the same name.
    """
    found: dict[str, Pregel] = {}
    for target in targets:
        name, _, place = target.rpartition("=")
        graph = find_graph(place)
        name = name or _name_of(place)
        if name in found:
            raise ValueError(f"two graphs have the name {name!r}: write NAME={place}")
        found[name] = graph
    return found


def _name_of(place: str) -> str:
    """Return the default name of a graph: the part after the colon, or the name of the module."""
    _, colon, name = place.rpartition(":")
    if colon:
        return name
    return Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


def _load(target: str) -> Any:
    """Load a function by its name on the command line."""
    place, _, name = target.rpartition(":")
    module = load(place) if place else None
    found = getattr(module, name, None)
    if not callable(found):
        meant = likely(name, vars(module)) if module else ""
        raise ValueError(f"--auth must be module:name of a function, got {target!r}{meant}")
    return found


@contextmanager
def _storage(
    asked: argparse.Namespace, serde: Serializer
) -> Iterator[tuple[BaseCheckpointSaver | None, BaseStore | None]]:
    """Open the saver and the store for `--db`."""
    if asked.db is None:
        yield None, None
        return
    with ExitStack() as stack:
        saver = stack.enter_context(
            open_saver(asked.db, serde, asked.keys, write=True, create=True)
        )
        yield saver, stack.enter_context(_store(asked.db, saver))


def _store(db: str, saver: Any) -> Any:
    if is_conninfo(db):
        from ..store.postgres import PostgresStore

        return PostgresStore.from_conn_string(db)
    from ..store.sqlite import SqliteStore

    return SqliteStore.from_conn_string(os.fspath(db), saver=saver)
