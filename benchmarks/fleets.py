"""A fleet's case: jobs of 1 or 3 nodes by one worker that runs four at once, on one durable
Postgres on loopback.

What a queue does is in the script of each engine. Here is what is the same for all: the server, the
counting, and what a job costs. Only the standard library is needed, since each engine has a virtual
environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import sizes

HERE = Path(__file__).resolve().parent
AT_ONCE = 4
"""Jobs that the worker runs at once."""
SECONDS = 120
"""After so many the jobs count as not done."""

Work = Callable[[str, int, "Meter"], None]
"""(connection string, nodes of a job, meter) → submit as many jobs as the meter says, and run them;
`meter.count` is called when the last node of a job runs."""


class Meter:
    """Counts jobs; the first of them warm up.

    Args:
        postmaster: the process id of the server.

    Attributes:
        submitted: how many jobs there must be: some more than are counted, so that no place is free
            before the last one has ended.
        wall, cpu: milliseconds per job, and of processor time, worker and server.
        stops: called when the last job was counted.
    """

    def __init__(self, warm: int, jobs: int, postmaster: int) -> None:
        self._last = warm + jobs
        self.submitted = self._last + 2 * AT_ONCE
        self._warm, self._jobs, self._postmaster = warm, jobs, postmaster
        self._lock, self._count = threading.Lock(), 0
        self._begin = (0.0, 0.0)
        self.wall = self.cpu = 0.0
        self.over = threading.Event()
        self.stops: list[Callable[[], object]] = []

    def count(self) -> None:
        """A job's last node has run. Any thread may say so."""
        with self._lock:
            self._count += 1
            if self._count == self._warm:
                self._begin = self._read()
            elif self._count == self._last:
                wall, cpu = self._read()
                self.wall = (wall - self._begin[0]) / self._jobs * 1e3
                self.cpu = (cpu - self._begin[1]) / self._jobs * 1e3
                self.over.set()

    def _read(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time() + server_cpu(self._postmaster)


def process_cpu(pid: int, parent: int | None = None) -> float:
    """Seconds of processor time that a process and its ended children have had; 0 if it is another
    one's child, or gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    mine = parent is None or int(fields[1]) == parent
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if mine else 0.0


def server_cpu(postmaster: int) -> float:
    """Processor time of a Postgres server, all its processes."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return process_cpu(postmaster) + sum(process_cpu(pid, postmaster) for pid in pids)


def measure(case: str, work: Work, jobs: int | None = None) -> float:
    """The number of a case: `P28-3` is milliseconds per job of 3 nodes, `P36-3` milliseconds of
    processor time, worker and server. `P36-exit` has 3 nodes."""
    meter = run(nodes_of(case), work, jobs)
    return meter.wall if case.startswith("P28") else meter.cpu


def nodes_of(case: str) -> int:
    """How many nodes a job of this case has."""
    return 1 if case.endswith("-1") else 3


def run(nodes: int, work: Work, jobs: int | None = None) -> Meter:
    """Let the worker do its jobs on a server of their own."""
    command = [str(ours()), str(HERE / "server.py")]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        postmaster, url = server.stdout.readline().strip().split(" ", 1)
        count = min(jobs or sizes.JOBS, sizes.JOBS)
        meter = Meter(max(1, count // 10), count, int(postmaster))
        failed: list[BaseException] = []

        def worker() -> None:
            try:
                work(url, nodes, meter)
            except BaseException as error:
                failed.append(error)
                meter.over.set()

        thread = threading.Thread(target=worker, daemon=True)
        thread.start()
        in_time = meter.over.wait(SECONDS)
        for stop in meter.stops:
            stop()
        if meter.stops:
            thread.join(SECONDS)
        if failed or not in_time:
            raise RuntimeError(f"the jobs were not done: {failed or 'in time'}")
        return meter
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def ours() -> Path:
    """The interpreter that has the tests' server."""
    return Path(
        os.environ.get("STATEGRAPH_PYTHON") or HERE.parent / ".venv" / "bin" / "python"
    )


def end(value: float) -> None:
    """Print the number, and end at once, whatever still runs."""
    print(value, flush=True)
    os._exit(0)
