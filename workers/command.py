"""`python -m stategraph work|queue`: a worker in a process of its own, and a look at the queue. Reads the command line,
and does no work itself."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..checkpoint.encryption import KEYS_HELP, encryption_of_keys
from ..checkpoint.errors import StorageError
from ..checkpoint.printable import printable
from ..graph.builder import StateGraph
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError
from ..visualize.command import load, only, pick

if TYPE_CHECKING:
    from .queue import Queue
    from .worker import Worker


def add_commands(commands: Any) -> None:
    """Give a command line these two commands; each sets `run`, which takes the parser and what was asked."""
    work = commands.add_parser("work", help="run jobs of a graph from a Postgres queue", description=_WORK)
    work.add_argument("graph", help="module:name or path/to/file.py:name of a graph, a builder, or a function for one")
    work.add_argument("--as", dest="name", metavar="NAME", help="of the queue, if it is not the graph's own")
    work.add_argument("--concurrency", type=int, default=4, metavar="N", help="jobs at once (%(default)s)")
    work.add_argument("--limit", type=int, metavar="N", help="runs at once over all workers; is kept, 0 lifts it")
    work.add_argument("--label", metavar="TEXT", help="what lists of workers show (default: the machine's name)")
    work.add_argument("--poll", type=float, default=1.0, metavar="SECONDS", help="between two looks (%(default)s)")
    work.add_argument("--tries", type=int, default=3, metavar="N", help="deaths that park a job (%(default)s)")
    work.add_argument("--keys", metavar="FILE", help=KEYS_HELP)
    queue = commands.add_parser("queue", help="what waits, runs and is parked", description=_QUEUE)
    queue.add_argument("--retry", metavar="RUN", help="try a parked job again")
    queue.add_argument("--cancel", metavar="RUN", help="take a job back")
    queue.add_argument("--thread", metavar="ID", help="of the job, where several have its run id")
    queue.add_argument("--as", dest="name", metavar="NAME", help="only jobs of this queue are meant")
    queue.add_argument("--evict", type=int, metavar="WORKER", help="cut a worker that hangs off from its jobs")
    queue.add_argument("--forget", type=float, metavar="DAYS", help="forget jobs that ended longer ago")
    queue.add_argument("--list", type=int, default=20, metavar="N", help="show at most so many jobs (%(default)s)")
    for parser, run in ((work, _work), (queue, _queue)):
        parser.add_argument("--db", required=True, metavar="URL", help="postgresql://...")
        parser.set_defaults(parser=parser, run=run)


_WORK = (
    "Run jobs of a graph from a Postgres queue, until SIGTERM or SIGINT: then each run ends with its superstep, and "
    "its job goes back to the queue. A second signal ends the worker at once."
)
_QUEUE = "Show workers and jobs. For who looks after the queue. Needs no key: it opens nothing that is encrypted."


def _work(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _told(parser):
        from .worker import Worker

        worker = Worker(
            _graph(asked.graph), asked.db, name=asked.name, label=asked.label,
            concurrency=asked.concurrency, poll=asked.poll, tries=asked.tries,
            integrity=encryption_of_keys(asked.keys, os.environ),
        )  # fmt: skip
        if asked.limit is not None:
            worker.limit(asked.limit or None)
        _stopped_by_signals(worker)
        print(f"working for the queue {worker.name!r}, {asked.concurrency} jobs at once", file=sys.stderr, flush=True)
        worker.run()
    return 0


def _stopped_by_signals(worker: Worker) -> None:
    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # the next one ends it at once
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _queue(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _told(parser):
        from .queue import Queue

        with Queue.from_conn_string(asked.db, asked.name or "any") as queue:
            return _looked_after(queue, asked)


def _of_job(queue: Queue, asked: argparse.Namespace, run_id: str) -> Queue:
    """The queue that a job is in.

    Raises:
        ValueError: several jobs have this run id.
    """
    found = [
        job for job in queue.named(run_id)
        if asked.name in (None, job.graph) and asked.thread in (None, job.thread_id)
    ]  # fmt: skip
    if len(found) > 1:
        places = ", ".join(f"thread {job.thread_id!r} of {job.graph!r}" for job in found)
        raise ValueError(f"several jobs have the run id {run_id!r}: {places}; say which by --thread and --as")
    return queue.of_graph(found[0].graph) if found else queue


def _looked_after(queue: Queue, asked: argparse.Namespace) -> int:
    for run_id, call, done in (
        (asked.retry, "retry", "waits again"), (asked.cancel, "cancel", "cancelled")
    ):  # fmt: skip
        if run_id is not None:
            known = getattr(_of_job(queue, asked, run_id), call)(run_id, thread_id=asked.thread)
            _print_row(f"{run_id}: {done if known else 'there is no such job'}")
    if asked.evict is not None:
        known = any(worker.id == asked.evict for worker in queue.workers())
        print(f"{queue.evict(asked.evict)} jobs went back to the queue" if known else "there is no such worker")
    if asked.forget is not None:
        graphs = [asked.name] if asked.name else [*queue.counts()] or [queue.graph]
        print(f"forgot {sum(queue.of_graph(each).forget(timedelta(days=asked.forget)) for each in graphs)} jobs")
    if (asked.retry, asked.cancel, asked.evict, asked.forget) != (None,) * 4:
        return 0
    for graph, counts in queue.counts().items():
        _print_row(f"{graph}: {', '.join(f'{number:,} {status}' for status, number in counts.items())}")
    for worker in queue.workers():
        leaving = ", leaving" if worker.leaving else ""
        _print_row(f"worker {worker.id}", worker.graph, worker.name, f"{worker.running} running{leaving}")
    for job in queue.jobs(limit=asked.list):
        told = [job.error] if job.error else []
        _print_row(job.run_id, job.graph, job.thread_id, job.status, f"priority {job.priority}", *told)
    return 0


def _graph(target: str) -> Pregel:
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    module = load(place)
    found = pick(module, name or only(module, place), place)
    return found.compile() if isinstance(found, StateGraph) else found


@contextmanager
def _told(parser: argparse.ArgumentParser) -> Iterator[None]:
    """What goes wrong ends the command with a sentence."""
    try:
        yield
    except (StateGraphError, StorageError, ImportError, TypeError, ValueError, OverflowError, OSError) as error:
        parser.error(str(error))


def _print_row(*fields: object) -> None:
    """Print fields, with tabs between them. Whatever users wrote in them, it steers no terminal."""
    print("\t".join(map(printable, fields)))
