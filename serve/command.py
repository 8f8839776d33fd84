"""`python -m stategraph serve`: serve graphs over HTTP, in this process, until SIGTERM or SIGINT.

Only parses the command line; other modules do the work.
"""

from __future__ import annotations

import argparse
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from logging import INFO, FileHandler
from pathlib import Path
from typing import Any, NoReturn

from ..checkpoint.command import open_saver
from ..checkpoint.encryption import KEYS_HELP, encryption_of_keys
from ..checkpoint.errors import StorageError
from ..checkpoint.printable import printable
from ..checkpoint.sql.redact import is_conninfo
from ..extras import install_command
from ..graph.loader import OBSERVER_HELP, TARGET_HELP, find_graph, load
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError, likely
from ..pregel.log import LOG_FORMAT_HELP, configure_logging
from ..pregel.task.observers import add_observer

_SERVE = (
    "Serve graphs over HTTP, for the official clients of LangGraph's server and for a browser. On "
    "SIGTERM or SIGINT each run pauses after its current superstep, and the next server on the "
    "same database continues it. A second signal ends the server at once."
)

_DRAIN_SECONDS = 10
"""How many seconds runs may take to reach their next step when the server stops."""

_LAST_PORT = 65_535

_WORKERS = 4
"""How many runs of each graph this process does at once, by default."""

_MISTAKES = (OSError, ImportError, StateGraphError, StorageError, TypeError, ValueError)
"""What a wrong command line raises."""


def add_command(_: str, parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.description = _SERVE
    add = parser.add_argument
    text = f"{TARGET_HELP}. Clients call it NAME (default: the name after the colon). Or a "
    text += "langgraph.json: its graphs, env and auth are taken"
    add("graphs", nargs="+", metavar="[NAME=]GRAPH", help=text)
    place = "where threads and runs are stored: an SQLite file, or postgresql://..."
    add("--db", metavar="FILE-OR-URL", help=f"{place} (default: in memory)")
    add("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    add("--port", type=_port, default=2024, help="the port; 0 takes any free one (%(default)s)")
    who = "a function that takes a request and returns the user's id, or None to refuse it"
    add("--auth", metavar="MODULE:NAME", help=f"{who}; required unless --host is loopback")
    name = "a host name under which clients reach the server, besides loopback; may be repeated"
    add("--name", action="append", default=[], metavar="HOST", help=name)
    page = "the exact origin of another site whose pages may use the server; may be repeated"
    add("--origin", action="append", default=[], metavar="URL", help=page)
    text = "a further version of a graph whose threads are continued; may be repeated"
    add("--serves", action="append", default=[], metavar="VERSION", help=text)
    add("--keys", metavar="FILE", help=KEYS_HELP)
    add("--observer", action="append", default=[], metavar="MODULE:NAME", help=OBSERVER_HELP)
    many = "with a Postgres database: how many runs of each graph this process does at once"
    add("--workers", type=_number, metavar="N", help=f"{many} ({_WORKERS})")
    others = "leave all runs to workers: stategraph work GRAPH --as NAME --db URL"
    add("--no-workers", action="store_const", const=0, dest="workers", help=others)
    who = "with Postgres: a function that takes a user's id and the body of a request for a run, "
    who += "and returns the run's priority: higher ones go first"
    add("--priority", metavar="MODULE:NAME", help=who)
    text = "allow webhooks to addresses that begin with this URL; may be repeated"
    add("--webhooks", action="append", default=[], metavar="URL", help=text)
    who = "a user who may read /metrics and erase others; may be repeated"
    add("--operator", action="append", default=[], metavar="USER", help=who)
    text = "measure requests, runs and the queue, and serve that at /metrics for Prometheus"
    add("--metrics", action="store_true", help=text)
    text = "append a line of JSON to this file for each request that may change something"
    add("--audit-log", metavar="FILE", help=text)
    text = "restart when a Python file changes, in this folder or beside a graph: for development"
    add("--reload", action="store_true", help=text)
    text = "log each request"
    add("--access-log", action="store_true", help=text)
    add("--log-format", choices=("text", "json"), help=LOG_FORMAT_HELP)
    parser.set_defaults(run=_serve)


def _port(word: str) -> int:
    port = int(word) if word.isdecimal() and len(word) < 6 else -1
    if not 0 <= port <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to {_LAST_PORT}, got {word!r}")
    return port


def _number(word: str) -> int:
    if not (word.isascii() and word.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be an integer >= 0, got {word!r}")
    return int(word)


def _check(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    """End if an option would have no effect."""
    if asked.keys is not None and asked.db is None:
        parser.error("--keys needs --db: without it nothing is stored that could be encrypted")
    if asked.workers is not None and not (asked.db and is_conninfo(asked.db)):
        option = "--workers" if asked.workers else "--no-workers"
        why = "without Postgres the server does all runs itself"
        parser.error(f"{option} needs --db postgresql://...: {why}")


def _serve(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    try:
        from .app import LOOPBACK
        from .listening import listen_again
    except ImportError as error:
        parser.error(f"serving needs {error.name}: {install_command('serve')}")
    try:
        _read_deployment(asked)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        parser.error(f"the deployment file cannot be read: {error}")
    if asked.host not in LOOPBACK and not asked.auth:
        why = "without it, whoever reaches the port can use the server"
        parser.error(f"--host {asked.host} needs --auth: {why}")
    _check(parser, asked)
    if not asked.reload:
        return _run(parser, asked)
    files = (Path(place.rpartition("=")[2].partition(":")[0]) for place in asked.graphs)
    folders = {Path.cwd(), *(each.resolve().parent for each in files if each.suffix == ".py")}
    named = argparse.Namespace(**{**vars(asked), "parser": None, "run": None})
    again = partial(_run_again, parser.prog, named)
    with ExitStack() as stack:
        sockets = [*map(stack.enter_context, _open_sockets(parser, asked))]
        listen_again(again, sockets, folders)
    return 0


def _run_again(prog: str, asked: argparse.Namespace, sockets: Any) -> None:
    """Serve in a process that a changed file ends."""
    from ..graph import messages  # noqa: F401  threads hold its types; `__main__` is not run here

    _run(argparse.ArgumentParser(prog), asked, sockets)


def _run(parser: argparse.ArgumentParser, asked: argparse.Namespace, sockets: Any = None) -> int:
    """Serve until a signal comes, on these sockets or on those that it opens."""
    from .listening import listen
    from .operations.watch import AUDIT
    from .webhooks import Allowed

    with ExitStack() as stack:
        try:
            targets = _targets(asked.graphs)
            graphs = {name: find_graph(place) for name, place in targets.items()}
            configure_logging(asked.log_format)
            if asked.audit_log is not None:
                AUDIT.addHandler(FileHandler(asked.audit_log, encoding="utf-8"))
                AUDIT.setLevel(INFO)
                AUDIT.propagate = False
            for observer in asked.observer:
                add_observer(observer)
            auth = _load(asked.auth, "--auth") if asked.auth else None
            Allowed(asked.webhooks)  # refused here, if one is no URL
            sockets = sockets or _open_sockets(parser, asked)  # before the database is touched
            for each in sockets:
                stack.enter_context(each)
            app = _make_app(asked, graphs, targets, auth, stack)
        except _MISTAKES as error:
            parser.error(str(error))
        names = ", ".join(graphs)
        try:
            listen(
                app,
                sockets,
                announce=lambda url: print(f"stategraph serves {names} at {url}", flush=True),
                drain_seconds=_DRAIN_SECONDS,
                access_log=asked.access_log,
            )
        except StorageError as error:
            _fail(parser, str(error))
    return 0


def _open_sockets(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> Any:
    from .listening import open_sockets

    try:
        return open_sockets(asked.host, asked.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            way_out = "stop the program that listens there, or choose another port with --port"
            _fail(parser, f"port {asked.port} of {asked.host} is in use: {way_out}")
        unknown = isinstance(error, socket.gaierror)
        why = error.strerror if unknown else os.strerror(error.errno or 0)
        parser.error(f"port {asked.port} of {asked.host!r} cannot be used: {why}")


def _fail(parser: argparse.ArgumentParser, why: str) -> NoReturn:
    """End with exit code 1 and one line: the command line is right, but the server cannot start."""
    parser.exit(1, f"{parser.prog}: error: {printable(' '.join(why.split()))}\n")


def _make_app(
    asked: argparse.Namespace,
    graphs: Mapping[str, Pregel],
    targets: Mapping[str, str],
    auth: Any,
    stack: ExitStack,
) -> Any:
    """Create the app and open its database, which the stack closes."""
    from .app import LOOPBACK, create_app
    from .stores import lock_store

    saver: Any = None
    store: Any = None
    if asked.db is not None:
        serde = next(iter(graphs.values())).serde
        opened = open_saver(asked.db, serde, asked.keys, write=True, create=True)
        saver = stack.enter_context(opened)
        store = stack.enter_context(_store(asked.db, saver))
    queue = asked.db if asked.db and is_conninfo(asked.db) else None
    if store is not None and queue is None:
        with lock_store(store):  # fails here with a message, later with a trace
            pass
    return create_app(
        graphs,
        checkpointer=saver,
        store=store,
        auth=auth,
        webhooks=asked.webhooks,
        origins=asked.origin,
        hosts=frozenset({*LOOPBACK, asked.host, *asked.name}),
        drain_seconds=_DRAIN_SECONDS,
        queue=queue,
        workers=_WORKERS if asked.workers is None else asked.workers,
        integrity=encryption_of_keys(asked.keys, os.environ),
        operators=asked.operator,
        metrics=asked.metrics,
        serves=asked.serves,
        targets=targets,
        priority=_load(asked.priority, "--priority") if asked.priority else None,
    )


def _read_deployment(asked: argparse.Namespace) -> None:
    """Replace a LangGraph deployment file among the graphs by what it names."""
    from ..compat.deployment import read_deployment

    targets = []
    for target in asked.graphs:
        if target.endswith(".json"):
            found = read_deployment(Path(target))
            targets += found.graphs
            asked.auth = asked.auth or found.auth
        else:
            targets.append(target)
    asked.graphs = targets


def _targets(words: Sequence[str]) -> dict[str, str]:
    """Return where the graphs of the command line are found, by their names.

    Raises:
        ValueError: two graphs have the same name, or one cannot be part of a URL.
    """
    from .app import check_name

    found: dict[str, str] = {}
    for word in words:
        name, _, place = word.rpartition("=")
        name = name or _name_of(place)
        check_name(name)
        if name in found:
            raise ValueError(f"two graphs have the name {name!r}: write NAME={place}")
        found[name] = place
    return found


def _name_of(place: str) -> str:
    """Return the default name of a graph: the part after the colon, or the name of the module."""
    _, colon, name = place.rpartition(":")
    if colon:
        return name
    return Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


def _load(target: str, option: str) -> Any:
    """Load a function by its name on the command line."""
    place, _, name = target.rpartition(":")
    module = load(place) if place else None
    found = getattr(module, name, None)
    if not callable(found) and not hasattr(found, "authenticate"):
        meant = likely(name, vars(module)) if module else ""
        raise ValueError(f"{option} must be module:name of a function, got {target!r}{meant}")
    return found


def _store(db: str, saver: Any) -> Any:
    if is_conninfo(db):
        from ..store.postgres import PostgresStore

        return PostgresStore.from_conn_string(db)
    from ..store.sqlite import SqliteStore

    return SqliteStore.from_conn_string(os.fspath(db), saver=saver)
