"""Machines for tests: hosts as network namespaces, a switch between them, and cables that can be pulled.

There is no way out of such a network, and none in. Where namespaces cannot be made, tests are skipped with the reason;
with STATEGRAPH_REQUIRE_NAMESPACES set they fail.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from kit import cluster
from kit.lossy_link import BadLine, tap
from stategraph.pregel.drivers.pool import POOL

REQUIRED = "STATEGRAPH_REQUIRE_NAMESPACES"
NAMED = Path("/run/netns")  # where `ip netns` keeps its namespaces
OWN = Path("/proc/thread-self/ns/net")
HOME = os.open(OWN, os.O_RDONLY) if OWN.exists() else None  # of the thread that imports this, on no machine
NETWORK = 0x40000000  # CLONE_NEWNET of linux/sched.h
NUMBERS = count(1)


def ip(*words: object):
    """What `ip` prints."""
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def enter(name):
    """Move this thread, and those that it starts, to a machine. Connections stay where they were made."""
    with (NAMED / name).open() as place:
        _move(place.fileno())


def _move(place):
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is there from Python 3.12 on
    if libc.setns(place, NETWORK):
        raise OSError(ctypes.get_errno(), "this thread cannot be moved to another network namespace")


@contextmanager
def _moved(place):
    with OWN.open() as before:
        _move(place)
        _bring_workers(place)
        try:
            yield
        finally:
            _move(before.fileno())
            _bring_workers(before.fileno())


def _bring_workers(place):
    """Move the threads that the engine keeps for tasks as well: they serve all who are in this process."""
    deadline = time.monotonic() + 1  # one that an abandoned task keeps busy stays where it is
    while POOL._idle < sum(thread.name == "stategraph-worker" for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    idle = POOL._idle
    together = threading.Barrier(idle + 1)

    def come():
        _move(place)
        together.wait(10)

    for _ in range(idle):
        POOL.submit(come)
    together.wait(10)


@contextmanager
def outside():
    """What this thread does is done on no machine of ours, so that it outlives them."""
    at_home = HOME is None or os.path.samestat(OWN.stat(), os.fstat(HOME))
    with nullcontext() if HOME is None or at_home else _moved(HOME):  # who is not root may not even stay
        yield


class Host:
    """A machine on the network.

    Attributes:
        name: for `enter`.
        address: where others reach it.
    """

    def __init__(self, switch, number, quality=None):
        self._switch, self._port, self._number = switch, f"port{number}", number
        self.name, self.address = f"{switch}-{number}", f"10.77.0.{number}"
        self._quality, self._line = quality, None
        self.switch_on()

    def switch_on(self):
        """Start the machine, with nothing on it; again after a loss of power."""
        ip("netns", "add", self.name)
        self._cable()
        ip("-n", self.name, "link", "set", "eth0", "address", f"02:00:00:00:00:{self._number:02x}")  # always the same
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", self.name, "link", "set", device, "up")
        ip("-n", self._switch, "link", "set", self._port, "up")
        self.plug()

    def _cable(self):
        if self._quality is None:
            peer = ("peer", "name", self._port, "netns", self._switch)
            ip("-n", self.name, "link", "add", "eth0", "type", "veth", *peer)
            return
        with self.inside():
            here = tap("eth0")
        with (NAMED / self._switch).open() as place, _moved(place.fileno()):
            there = tap(self._port)
        self._line = BadLine((here, there), *self._quality)

    def plug(self):
        """Put the cable into the switch."""
        ip("-n", self._switch, "link", "set", self._port, "master", "switch")

    def pull(self):
        """Pull the cable at the far end, behind the switch: what is sent vanishes, and no side hears of it."""
        ip("-n", self._switch, "link", "set", self._port, "nomaster")

    def lose_power(self):
        """All that runs here ends, and nothing of that gets out: no connection is closed for the other side."""
        self.pull()
        if self._line is not None:
            self._line.close()
        else:
            ip("-n", self._switch, "link", "delete", self._port)
        there = {*ip("netns", "pids", self.name).split()} - {str(os.getpid())}  # this very thread may be on it
        for process in there:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        ip("netns", "delete", self.name)
        deadline = time.monotonic() + 10
        while any(Path("/proc", process).exists() for process in there) and time.monotonic() < deadline:
            time.sleep(0.01)

    @contextmanager
    def inside(self):
        """What this thread does is done on this machine."""
        with (NAMED / self.name).open() as place, _moved(place.fileno()):
            yield


class Network:
    """A switch, and the hosts that are plugged into it. A context manager; nothing of it is left afterwards."""

    def __init__(self):
        self._name, self._numbers = f"stategraph-{os.getpid()}-{next(NUMBERS)}", count(1)
        self.hosts = []

    def __enter__(self):
        ip("netns", "add", self._name)
        try:
            ip("-n", self._name, "link", "add", "switch", "up", "type", "bridge")
        except OSError:
            ip("netns", "delete", self._name)
            raise
        return self

    def __exit__(self, *_):
        self.remove(self.hosts)
        ip("netns", "delete", self._name)

    def remove(self, hosts):
        """Take machines away, with all that runs on them."""
        for host in [*hosts]:
            self.hosts.remove(host)
            with suppress(OSError):  # it has lost its power already
                host.lose_power()

    def host(self, quality=None):
        """One more machine; its cable may delay what passes, by seconds, and lose some of it, by chance."""
        self.hosts.append(Host(self._name, next(self._numbers), quality))
        return self.hosts[-1]


@contextmanager
def postgres_on(host: Host):
    """A server on a machine, to be reached there only."""
    with host.inside():
        made = cluster.Cluster(cluster.found(), host.address)
    try:
        yield made
    finally:
        made.remove()


@cache
def missing():
    """Why there can be no such network here; None if there can."""
    if not hasattr(os, "geteuid") or os.geteuid() or shutil.which("ip") is None:
        return "network namespaces need Linux, root, and the program ip (Debian: iproute2)"
    try:
        with Network() as network:
            network.host()
    except OSError as error:
        return f"network namespaces cannot be made here: {error}"
    return None


def require():
    """Skip the test, or fail it if these tests are required, where there can be no such network."""
    if reason := missing():
        if os.environ.get(REQUIRED):
            pytest.fail(f"{reason}, and {REQUIRED} is set")
        pytest.skip(reason)
