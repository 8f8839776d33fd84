"""Fresh processes that run a job and may be killed in the middle of it, and the ledger in which
they note what they did.

One server process imports everything once and forks for each job, so a hundred kills cost a few
seconds. It has no threads, so its forks are safe. Jobs are top-level functions of a module.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import IO, Any, NamedTuple

Job = tuple[Any, ...]
"""(function, argument, ...): what a process does; all of it can be pickled"""


class CannotStart(Exception):
    """A job cannot be run in another process; the text says why."""


class ProcessEnd(NamedTuple):
    """How a process ended.

    Attributes:
        killed: by SIGKILL.
        result: what its function returned, if it did.
        error: what it raised, in words, or how else it died; empty if all went well.
    """

    killed: bool
    result: Any
    error: str


class Processes:
    """Starts processes. A context manager.

    >>> with Processes() as processes:
    ...     processes.run((sum, [1, 2]))
    [ProcessEnd(killed=False, result=3, error='')]

    Raises:
        CannotStart: there is no `fork` here.
    """

    def __enter__(self) -> Processes:
        if not hasattr(os, "fork"):
            raise CannotStart("processes are forked, which this system cannot do")
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._server:
            assert self._server.stdin is not None
            self._server.stdin.close()

    def run(self, *jobs: Job) -> list[ProcessEnd]:
        """Run jobs in parallel, each in its own process; wait for all.

        Raises:
            CannotStart: a function is not at the top level of a module.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        _send(self._server.stdin, (_modules(jobs), _pickled(jobs)))
        return _receive(self._server.stdout)  # type: ignore[no-any-return]  # the server sends this

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run one job that must not fail, and return its result.

        Raises:
            RuntimeError: it failed, or was killed.
        """
        (ended,) = self.run((function, *args))
        if ended.killed or ended.error:
            raise RuntimeError(ended.error or "the process was killed")
        return ended.result


_SERVER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from stategraph.testing.processes "
    "import serve; serve()"
)


def _pickled(jobs: Sequence[Job]) -> bytes:
    try:
        data = pickle.dumps(jobs)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CannotStart(
            f"other processes cannot find it: put the class at the top of a module ({error})"
        ) from error
    if b"__main__" in data:
        raise CannotStart(
            "other processes cannot find it: put the class in a module, not in the script that runs"
        )
    return data


def _modules(jobs: Sequence[Job]) -> dict[str, str]:
    """The files of the modules that jobs need: a test module may have no name that can be
    imported."""
    names = {
        getattr(each, "__module__", None) or ""
        for job in jobs
        for part in job
        for each in (part, type(part))
    }
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {name: file for name, file in files.items() if file}


def _send(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    length = stream.read(8)
    if len(length) < 8:
        raise EOFError("the process that starts processes has ended")
    return pickle.loads(stream.read(int.from_bytes(length, "big")))


def serve() -> None:
    """What the server does until its input ends: fork for each job, and tell how they ended."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what jobs print must not get between the answers
    while True:
        try:
            modules, jobs = _receive(requests)
        except EOFError:
            return
        _load(modules)
        _send(answers, [_end(*each) for each in [_start(job) for job in pickle.loads(jobs)]])


def _load(modules: dict[str, str]) -> None:
    for name, file in modules.items():
        try:
            import_module(name)
        except ImportError:
            spec = spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            sys.modules[name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)


def _start(job: Job) -> tuple[int, int]:
    """(process id, the pipe on which its result will come)"""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.close(reading)
        function, *args = job
        try:
            outcome = (function(*args), "")
        except BaseException as error:  # told to whoever started this
            outcome = (None, f"{type(error).__name__}: {error}")
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(outcome))
    finally:
        os._exit(0)


def _end(pid: int, reading: int) -> ProcessEnd:
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == -signal.SIGKILL:
        return ProcessEnd(True, None, "")
    result, error = (
        pickle.loads(data) if data else (None, f"it ended with exit code {status} and no result")
    )
    return ProcessEnd(False, result, error)


# -- what a job may hold ---------------------------------------------------------------------------


class KillAt:
    """Kills this process with SIGKILL at the n-th call of any Python or C function inside its
    `with` blocks, so that a checkpointer can be stopped between any two things it does.

    Args:
        at: which; None never kills.

    Attributes:
        calls: how many there were so far.

    >>> with KillAt(None) as never:
    ...     _ = len("abc"), str(1)
    >>> never.calls >= 2
    True
    """

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.calls: int = 0

    def _count(self, _frame: Any, event: str, _arg: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1
            if self.calls == self.at:
                kill()

    def __enter__(self) -> KillAt:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def around(self, owner: Any, *methods: str) -> None:
        """Count inside these methods of an object."""

        def watched(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return method(*args, **kwargs)

            return call

        for name in methods:
            setattr(owner, name, watched(getattr(owner, name)))


def kill() -> None:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Ledger:
    """A file in which processes note what they did, one line each. The notes survive a kill.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger(Path(folder, "ledger"))
    ...     ledger.note("paid", 7)
    ...     ledger.read()
    [['paid', 7]]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, *words: Any) -> None:
        """Add a line."""
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(words).encode() + b"\n")

    def read(self) -> list[list[Any]]:
        """All lines, in the order noted."""
        return (
            [json.loads(line) for line in self.path.read_bytes().splitlines()]
            if self.path.exists()
            else []
        )
