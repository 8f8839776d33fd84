"""`python -m stategraph work|queue`: run a worker in its own process, and inspect the queue.

Only parses the command line; other modules do the work.
"""

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
from ..graph.loader import OBSERVER_HELP, TARGET_HELP, find_graph
from ..pregel.errors import StateGraphError
from ..pregel.log import LOG_FORMAT_HELP, configure_logging

if TYPE_CHECKING:
    from .queue import Queue
    from .worker import Worker


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of the two commands, and set `run`, which takes the parser and the
    parsed arguments."""
    parser.add_argument(
        "--db", required=True, metavar="URL", help="the database of the queue: postgresql://..."
    )
    if name == "work":
        parser.description = _WORK
        _add_work(parser)
    else:
        parser.description = _QUEUE
        _add_queue(parser)


def _add_work(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("graph", help=TARGET_HELP)
    add(
        "--as",
        dest="name",
        metavar="NAME",
        help="the name of the queue (default: the name given to compile)",
    )
    add(
        "--concurrency",
        type=int,
        default=4,
        metavar="N",
        help="how many jobs to run at once (%(default)s)",
    )
    add(
        "--limit",
        type=int,
        metavar="N",
        help="how many jobs of this graph all workers together may run at once; the limit is "
        "stored in the database, 0 removes it",
    )
    label = "the worker's name in listings (default: the machine's name)"
    add("--label", metavar="TEXT", help=label)
    between = "how often to look for work that no notice announced (%(default)s)"
    add("--poll", type=float, default=1.0, metavar="SECONDS", help=between)
    add(
        "--tries",
        type=int,
        default=3,
        metavar="N",
        help="how many workers a job may kill before it is parked (%(default)s)",
    )
    text = "a further version of the graph whose threads it continues; may be repeated"
    add("--serves", action="append", default=[], metavar="VERSION", help=text)
    add("--keys", metavar="FILE", help=KEYS_HELP)
    add("--observer", action="append", default=[], metavar="MODULE:NAME", help=OBSERVER_HELP)
    add("--log-format", choices=("text", "json"), help=LOG_FORMAT_HELP)
    parser.set_defaults(run=_work)


def _add_queue(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--retry", metavar="RUN", help="retry a parked job, by its run id")
    add("--cancel", metavar="RUN", help="cancel a job, by its run id")
    text = "with --retry or --cancel: the job's thread, if several jobs have the same run id"
    add("--thread", metavar="ID", help=text)
    add("--as", dest="name", metavar="NAME", help="show only the jobs of this graph (default: all)")
    text = "take all jobs from a worker that hangs, by its number in the list"
    add("--evict", type=int, metavar="WORKER", help=text)
    text = "delete the records of jobs that ended more than so many days ago"
    add("--forget", type=float, metavar="DAYS", help=text)
    add("--unschedule", metavar="NAME", help="delete a schedule; jobs that it has submitted stay")
    text = "show what waits for which version of a graph, and which workers serve it"
    add("--versions", action="store_true", help=text)
    text = "let the newest version take so many percent of the new threads (with --as)"
    add("--ramp", type=_percent, metavar="PERCENT", help=text)
    text = "send new threads back to the other versions (with --as)"
    add("--rollback", dest="ramp", action="store_const", const=0, help=text)
    add("--list", type=int, default=20, metavar="N", help="show at most N jobs (%(default)s)")
    parser.set_defaults(run=_queue)


def _percent(text: str) -> int:
    return int(text.removesuffix("%"))


_WORK = (
    "Run jobs of a graph from a queue on Postgres. On SIGTERM or SIGINT each run stops after its "
    "current superstep, and its job goes back to the queue. A second signal ends the worker at "
    "once."
)
_QUEUE = (
    "Show the workers, schedules and jobs of a queue; with an option, change them. It needs no "
    "encryption key, because it reads nothing that is encrypted."
)


def _work(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _report_errors(parser):
        from .worker import Worker

        graph = find_graph(asked.graph)
        configure_logging(asked.log_format)
        worker = Worker(
            graph,
            asked.db,
            name=asked.name,
            label=asked.label,
            concurrency=asked.concurrency,
            poll=asked.poll,
            tries=asked.tries,
            integrity=encryption_of_keys(asked.keys, os.environ),
            observer=asked.observer or None,
            serves=asked.serves,
        )
        if asked.limit is not None:
            worker.limit(asked.limit or None)
        _stop_on_signals(worker)
        doing = f"working for the queue {worker.name!r}, {asked.concurrency} jobs at once"
        print(doing, file=sys.stderr, flush=True)
        worker.run()
    return 0


def _stop_on_signals(worker: Worker) -> None:
    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _queue(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _report_errors(parser):
        from .queue import Queue

        with Queue.from_conn_string(asked.db, asked.name or "any") as queue:
            if asked.versions:
                _show_versions(queue, asked.name)
            elif not _change(queue, asked):
                _show(queue, asked.list)
    return 0


def _change(queue: Queue, asked: argparse.Namespace) -> bool:
    """Make the requested changes and print their results. Return whether any was requested."""
    if asked.retry is not None:
        target = _queue_of_job(queue, asked, asked.retry)
        known = target.retry(asked.retry, thread_id=asked.thread)
        _print_change(asked.retry, known, "waits again")
    if asked.cancel is not None:
        target = _queue_of_job(queue, asked, asked.cancel)
        known = target.cancel(asked.cancel, thread_id=asked.thread)
        _print_change(asked.cancel, known, "cancelled")
    if asked.evict is not None:
        known = any(worker.id == asked.evict for worker in queue.workers())
        freed = queue.evict(asked.evict)
        print(f"{freed} jobs went back to the queue" if known else "there is no such worker")
    if asked.forget is not None:
        _forget(queue, asked)
    if asked.unschedule is not None:
        _unschedule(queue, asked)
    if asked.ramp is not None:
        if asked.name is None:
            raise ValueError("--ramp and --rollback need --as NAME, the graph of the versions")
        _print_row(f"version {queue.ramp(asked.ramp)} takes {asked.ramp}% of the new threads")
    changes = (asked.ramp, asked.retry, asked.cancel, asked.evict, asked.forget, asked.unschedule)
    return any(change is not None for change in changes)


def _unschedule(queue: Queue, asked: argparse.Namespace) -> None:
    name = asked.unschedule
    graphs = [
        each.graph
        for each in queue.schedules()
        if each.name == name and asked.name in (None, each.graph)
    ]
    if len(graphs) > 1:
        raise ValueError(f"several graphs have the schedule {name!r}: {graphs}; say which by --as")
    known = any(queue.of_graph(graph).unschedule(name) for graph in graphs)
    _print_row(f"{name}: {'no longer a schedule' if known else 'there is no such schedule'}")


def _forget(queue: Queue, asked: argparse.Namespace) -> None:
    graphs = [asked.name] if asked.name else [*queue.counts()] or [queue.graph]
    age = timedelta(days=asked.forget)
    print(f"forgot {sum(queue.of_graph(graph).forget(age) for graph in graphs)} jobs")


def _print_change(run_id: str, known: bool, done: str) -> None:
    _print_row(f"{run_id}: {done if known else 'there is no such job'}")


def _queue_of_job(queue: Queue, asked: argparse.Namespace, run_id: str) -> Queue:
    """Return the queue of a job.

    Raises:
        ValueError: several jobs have this run id.
    """
    found = [
        job
        for job in queue.named(run_id)
        if asked.name in (None, job.graph) and asked.thread in (None, job.thread_id)
    ]
    if len(found) > 1:
        places = ", ".join(f"thread {job.thread_id!r} of {job.graph!r}" for job in found)
        raise ValueError(
            f"several jobs have the run id {run_id!r}: {places}; say which by --thread and --as"
        )
    return queue.of_graph(found[0].graph) if found else queue


def _show(queue: Queue, most: int) -> None:
    """Print the number of jobs in each status, the workers, the schedules, and at most this many
    jobs that have not ended."""
    from .jobs import TIMED

    for graph, counts in queue.counts().items():
        numbers = ", ".join(f"{number:,} {status}" for status, number in counts.items())
        _print_row(f"{graph}: {numbers}")
    for worker in queue.workers():
        leaving = ", leaving" if worker.leaving else ""
        running = f"{worker.running} running{leaving}"
        _print_row(f"worker {worker.id}", worker.graph, worker.name, running)
    for each in queue.schedules():
        when = f"{each.cron} ({each.tz})"
        _print_row(f"schedule {each.name}", each.graph, when, f"next {each.next_at.isoformat()}")
    for job in queue.jobs(limit=most):
        error = [job.error] if job.error else []
        place = (job.run_id, job.graph, job.thread_id)
        due = [f"at {job.run_at.isoformat()}"] if job.run_at and job.status in TIMED else []
        _print_row(*place, job.status, f"priority {job.priority}", *due, *error)


def _show_versions(queue: Queue, name: str | None) -> None:
    """Print each version with what waits for it, and a warning if nobody serves it."""
    for each in queue.versions():
        if name not in (None, each.graph):
            continue
        waits = f"{each.jobs} jobs, {each.paused} paused threads, for {each.seconds:.0f} s"
        standing = "drained" if each.drained else waits
        served = "NOT SERVED by any worker" if each.abandoned else f"served by {each.workers}"
        share = [] if each.share in (None, 100) else [f"{each.share}% of the new threads"]
        _print_row(each.graph, f"version {each.version}", standing, served, *share)


_REPORTED = (
    StateGraphError,
    StorageError,
    ImportError,
    TypeError,
    ValueError,
    OverflowError,
    OSError,
)


@contextmanager
def _report_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Turn expected errors into a one-line message of the command."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of the output has closed it
    except _REPORTED as error:
        parser.error(str(error))


def _print_row(*fields: object) -> None:
    """Print fields, separated by tabs. Control characters are escaped, so that users' text cannot
    control the terminal."""
    print("\t".join(map(printable, fields)))
