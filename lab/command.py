"""`python -m stategraph lab`: runs stored threads again with one thing changed, or answers a
question about one. Other modules do the work."""

from __future__ import annotations

import argparse
import sqlite3
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime
from html import escape
from pathlib import Path
from traceback import print_exc
from typing import Any, Final, get_args

from ..checkpoint.base import address
from ..checkpoint.command import open_saver
from ..checkpoint.encryption import KEYS_HELP
from ..checkpoint.printable import printable_lines
from ..graph.loader import TARGET_HELP, NotFoundError, find_graph, load
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError
from ..testing.asserts import CheckFailed
from ..testing.clock import virtual_time
from ..testing.recording import End
from .compare import compare
from .langgraph import read_langgraph
from .since import since
from .threads import find_threads
from .trials import Trials
from .whatif import whatif
from .why import why, why_not

_FUNCTION = "NODE=MODULE:NAME"


def add_command(_: str, parser: argparse.ArgumentParser) -> None:
    """Add this as a command of `python -m stategraph`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    about = "run stored threads again with one thing changed; nodes that are not changed do not run"
    run = commands.add_parser("run", help=about, description=about)
    place = run.add_mutually_exclusive_group(required=True)
    text = "the threads are in this file (of --save) or folder of recordings"
    place.add_argument("--recordings", type=Path, metavar="PATH", help=text)
    _add_place(run, place)
    add = run.add_argument
    add("--thread", action="append", metavar="ID", help="a thread; may be repeated")
    add("--last", type=int, metavar="N", default=20, help="the newest N threads (%(default)s)")
    add("--status", choices=get_args(End), help="only threads that stand so")
    text = "only threads last used {} a time, such as 2026-11-27 or 2026-11-27T12:00Z"
    for name in ("after", "before"):
        add(f"--{name}", type=_time, metavar="TIME", help=text.format(name))
    add("--variant", metavar="MODULE:GRAPH", help="another graph; nodes that are the same are kept")
    text = "replace a node by a function; may be repeated"
    add("--replace", action="append", default=[], metavar=_FUNCTION, help=text)
    text = "a further node that really runs; may be repeated"
    add("--live", action="append", default=[], metavar="NODE", help=text)
    text = "what is called where a node that does not run is given something new; may be repeated"
    add("--effect", action="append", default=[], metavar=_FUNCTION, help=text)
    text = (
        "what becomes of a call that is not recorded: NAME=live, NAME=refuse (default), or "
        "NAME=MODULE:NAME of a function; NAME is that of a task, tool, model or effect, a kind of "
        "call, or *; may be repeated"
    )
    add("--call", action="append", default=[], metavar="NAME=POLICY", help=text)
    text = "where the trials start: a node, at its first run, or a checkpoint's id"
    add("--from", dest="from_", default="", metavar="NODE-OR-ID", help=text)
    text = "a function of the states at the end, before and now: below 0, or False, is worse"
    text = f"{text}; may be repeated"
    add("--judge", action="append", default=[], metavar="MODULE:NAME", help=text)
    text = "exit with code 1 if more than so many trials differ: a number, or a share such as 5%%"
    add("--different", metavar="MOST", help=text)
    add("--worse", metavar="MOST", help="the same for trials that the judge calls worse")
    add("--report", type=Path, metavar="FILE", help="write the trials to an HTML file")
    add("--save", type=Path, metavar="FILE", help="write the threads to a file, to run them again")
    text = "keep the threads of the trials in an SQLite file, or postgresql://..."
    add("--keep", metavar="FILE-OR-URL", help=text)
    run.set_defaults(lab=_run)
    for name, (ask, about, what) in _QUESTIONS.items():
        question = commands.add_parser(name, help=about, description=about)
        _add_place(question, question.add_mutually_exclusive_group(required=True))
        question.add_argument("wanted", metavar=what[0], help=what[1])
        question.add_argument("--thread", required=True, metavar="ID", help="the thread's id")
        text = "as it was then (default: the newest)"
        question.add_argument("--checkpoint", metavar="ID", help=text)
        question.add_argument("--report", type=Path, metavar="FILE", help="write it as a page, too")
        if ask is _ask_why:
            text = "how many generations of what tasks had read are followed (%(default)s)"
            question.add_argument("--depth", type=int, default=3, metavar="N", help=text)
        question.set_defaults(lab=_answer, ask=ask)
    parser.set_defaults(run=main)


def _add_place(parser: argparse.ArgumentParser, place: Any) -> None:
    parser.add_argument("graph", help=f"the graph that ran the threads: {TARGET_HELP}")
    text = "an SQLite file, or postgresql://...; it is only read"
    place.add_argument("--db", metavar="FILE-OR-URL", help=text)
    text = "the database is one of LangGraph's checkpointers"
    parser.add_argument("--langgraph", action="store_true", help=text)
    parser.add_argument("--keys", metavar="FILE", help=KEYS_HELP)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Execute the command; exit with code 2 and a message if it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the graph are for its authors
            graph = find_graph(asked.graph)
        if asked.db is None:
            opened: Any = nullcontext()
        elif asked.langgraph:
            opened = nullcontext(read_langgraph(asked.db, graph))
        else:
            opened = open_saver(asked.db, graph.serde, asked.keys)
        with opened as saver:
            return int(asked.lab(graph.copy({"checkpointer": saver}), asked))
    except CheckFailed as error:
        print(printable_lines(str(error)))
        return 1
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}" if error.strerror else str(error))
    except sqlite3.Error as error:
        parser.error(f"{asked.db} cannot be read: {error}")
    except (StateGraphError, ValueError, TypeError) as error:
        parser.error(str(error))
    except Exception:  # of a judge or a predicate; 1 would mean that the gate has failed
        print_exc()
        return 2


def _answer(app: Pregel, asked: argparse.Namespace) -> int:
    where = address(asked.thread, "", asked.checkpoint)
    found = asked.ask(app, where, asked)
    print(printable_lines(str(found)))
    if asked.report is not None:
        drawn = getattr(found, "draw_html", lambda: f"<pre>{escape(str(found))}</pre>")()
        asked.report.write_text(_page(asked.graph, drawn), "utf-8")
    return 0


def _ask_why(app: Pregel, where: Any, asked: argparse.Namespace) -> object:
    return why(app, where, asked.wanted, depth=asked.depth)


def _ask_why_not(app: Pregel, where: Any, asked: argparse.Namespace) -> object:
    return why_not(app, where, asked.wanted)


def _ask_since(app: Pregel, where: Any, asked: argparse.Namespace) -> object:
    found = since(app, where, _function(asked.wanted))
    return "it does not hold at the end" if found is None else found


def _ask_compare(app: Pregel, where: Any, asked: argparse.Namespace) -> object:
    return compare(app, where, address(asked.wanted, ""))


_QUESTIONS: Final = {
    "why": (
        _ask_why,
        "say which tasks made a value what it is, back to the input",
        ("path", "the value, such as order.total or messages.-1.content"),
    ),
    "why-not": (
        _ask_why_not,
        "say why a node did not run, or does not run now",
        ("node", "its name; in a nested graph its path, such as research:search"),
    ),
    "since": (
        _ask_since,
        "find the step since which something has held of the state",
        ("MODULE:NAME", "a function of the state's values"),
    ),
    "compare": (
        _ask_compare,
        "put two threads side by side, aligned by the nodes that ran",
        ("other", "the id of the other thread"),
    ),
}


def _run(app: Pregel, asked: argparse.Namespace) -> int:
    if asked.variant and asked.replace:
        raise NotFoundError("--variant and --replace exclude each other")
    if asked.recordings and (asked.thread or asked.status or asked.after or asked.before):
        raise NotFoundError("--recordings runs all that are there: it takes no choice of threads")
    Trials(()).check(different=asked.different, worse=asked.worse)  # refuses bad limits early
    variant: Any = find_graph(asked.variant) if asked.variant else _functions(asked.replace)
    kept: Any = nullcontext()
    if asked.keep:
        kept = open_saver(asked.keep, app.serde, asked.keys, create=True)
    # Retries do not wait, and nothing else runs in this process.
    with kept as saver, virtual_time():
        trials = whatif(
            app,
            asked.recordings
            or asked.thread
            or find_threads(
                app,
                last=asked.last,
                status=asked.status,
                after=asked.after,
                before=asked.before,
            ),
            saver=saver,
            variant=variant or None,
            live="*" if "*" in asked.live else asked.live,
            effects=_functions(asked.effect),
            calls=_functions(asked.call, "live", "refuse"),
            from_=asked.from_,
            judge={name.rpartition(":")[2]: _function(name) for name in asked.judge},
        )
    if not len(trials):
        raise NotFoundError(f"{asked.db or asked.recordings} has no such threads")
    print(printable_lines(trials.draw_text()))
    if asked.save is not None:
        trials.save(asked.save)
    if asked.report is not None:
        asked.report.write_text(_page(asked.graph, trials.draw_html()), "utf-8")
    trials.check(different=asked.different, worse=asked.worse)
    return 0


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a time, got {text!r}") from error


def _functions(named: Iterable[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in named:
        node, equals, target = each.partition("=")
        if not equals:
            raise NotFoundError(f"must be {_FUNCTION}, got {each!r}")
        found[node] = target if target in words else _function(target)
    return found


def _function(target: str) -> Any:
    place, _, name = target.rpartition(":")
    found = getattr(load(place), name, None) if place else None
    if not callable(found):
        raise NotFoundError(f"must be MODULE:NAME of a function, got {target!r}")
    return found


def _page(graph: str, body: str) -> str:
    return (
        "<!doctype html><meta charset=utf-8>"
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; "
        "style-src 'unsafe-inline'\"><meta name=viewport content='width=device-width'>"
        f"<title>{escape(graph)}: the lab</title>{body}"
    )
