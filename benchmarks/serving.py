"""A server under load: many open streams, runs at a fixed rate, and a reader who does not read.

    .compat/bin/python benchmarks/serving.py                  # in memory
    .compat/bin/python benchmarks/serving.py --db runs.db     # SQLite, or a postgresql:// URL
    .compat/bin/python benchmarks/serving.py --url http://127.0.0.1:2024 --pid 123    # any server
    .compat/bin/python benchmarks/serving.py --table          # the tables of benchmarks/SERVING.md
    .compat/bin/python benchmarks/serving.py --table --db postgresql://...    # with Postgres

The server and this client share the machine. Runs are sent when they are due, whether the earlier
ones have ended or not, and their latency counts from then: a server that falls behind shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

HERE = Path(__file__).resolve().parent

RUN = {"assistant_id": "flow", "input": {"log": ["x"]}, "if_not_exists": "create"}
STREAM = RUN | {"stream_mode": "custom", "on_disconnect": "cancel"}


class Connection:
    """One keep-alive connection. A library would cost more than the server."""

    def __init__(self, host, port):
        self._host, self._port = host, port
        self._reader = self._writer = None

    async def send(self, method, path, body=None):
        """Send a request; its status."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, limit=2**20
            )
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        head += f"Content-Length: {len(data)}\r\n"
        self._writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self._headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        return int(lines[0].split()[1])

    async def parts(self):
        """The parts of the body, as they come."""
        if "content-length" in self._headers:
            yield await self._reader.readexactly(int(self._headers["content-length"]))
            return
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    async def ask(self, method, path, body=None):
        """A status and the whole body."""
        status = await self.send(method, path, body)
        return status, b"".join([part async for part in self.parts()])

    def close(self):
        if self._writer is not None:
            self._writer.transport.abort()


class Load:
    def __init__(self, url, asked):
        place = urlsplit(url)
        self._place = place.hostname, place.port
        self._asked = asked
        self._free = []
        self.latencies, self.delays, self.errors, self.open = [], [], 0, 0
        self._last = 0.0

    async def measure(self):
        asked = self._asked
        readers = [asyncio.create_task(self._read(n)) for n in range(asked.streams)]
        slow = [await self._begin_not_reading() for _ in range(asked.slow)]
        for _ in range(1200):
            if self.open == asked.streams:
                break
            await asyncio.sleep(0.05)
        self.delays.clear()
        begun = time.perf_counter()
        runs = []
        for number in range(int(asked.rate * asked.seconds)):
            due = begun + number / asked.rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            runs.append(asyncio.create_task(self._run(due)))
        await asyncio.gather(*runs)
        self.took = time.perf_counter() - begun
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for connection in slow:
            connection.close()

    async def _run(self, due):
        connection, used = self._free.pop() if self._free else (Connection(*self._place), None)
        if used is not None and time.perf_counter() - used > 3:  # the server may be closing it
            connection.close()
            connection = Connection(*self._place)
        try:
            status, answer = await connection.ask("POST", f"/threads/{uuid4()}/runs/wait", RUN)
            assert status == 200 and json.loads(answer)["log"] == ["x", "a", "b", "c"], (
                status,
                answer,
            )
        except Exception as error:
            self.errors += 1
            if self.errors == 1:
                print("first error:", repr(error)[:300])
            return
        self.latencies.append(time.perf_counter() - due)
        self._free.append((connection, time.perf_counter()))

    async def _read(self, number):
        """Read a stream with an event each second, and note how late the events are."""
        await asyncio.sleep(number * self._asked.ramp / self._asked.streams)
        connection = Connection(*self._place)
        input = {"log": ["x"], "ticks": 100_000, "pause": 1.0}
        body = STREAM | {"input": input}
        try:
            status = await connection.send("POST", f"/threads/{uuid4()}/runs/stream", body)
            assert status == 200, status
            self.open += 1
            last = None
            async for part in connection.parts():
                now = time.perf_counter()
                if b"tick" in part:
                    if last is not None:
                        self.delays.append(now - last - 1.0)
                    last = now
        finally:
            connection.close()

    async def _begin_not_reading(self):
        connection = Connection(*self._place)
        input = {"log": [], "ticks": 100_000, "pause": 0.02, "size": 10_000}
        body = STREAM | {"input": input}
        await connection.send("POST", f"/threads/{uuid4()}/runs/stream", body)
        return connection


@contextmanager
def server(asked):
    """The server of this checkout, in a process of its own."""
    if asked.url:
        yield asked.url, asked.pid
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-P",
        "-m",
        "stategraph",
        "serve",
        f"{HERE / 'served_flow.py'}:flow",
        "--port",
        str(port),
    ]
    command += ["--db", asked.db] if asked.db else []
    if asked.db and "://" in asked.db:  # each open stream is a run, which takes a place of a worker
        command += ["--workers", str(asked.streams + 200)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=None if asked.verbose else subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/ok", timeout=1)
                break
            except OSError:
                assert process.poll() is None, "the server did not start"
                time.sleep(0.05)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def used(pid):
    """The processor time of a process, in seconds, and the most memory it had, in MB."""
    if not pid:
        return 0.0, 0.0
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    most = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"), int(most) / 1024


def quantile(times, part):
    ordered = sorted(times) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000


def spread(times):
    return f"p50 {quantile(times, 0.5):.0f} ms, p99 {quantile(times, 0.99):.0f} ms"


def measure(asked):
    """Load one server, fresh if it is of this checkout; the load, and what it has cost."""
    with server(asked) as (url, pid):
        load = Load(url, asked)
        before, own = used(pid)[0], time.process_time()
        asyncio.run(load.measure())
        after, load.memory = used(pid)
        load.cpu, load.client = after - before, time.process_time() - own
    return load


def show(asked):
    load = measure(asked)
    where, late = asked.db or asked.url or "memory", load.delays
    rate = f"{len(load.latencies) / load.took:.0f} runs/s of {asked.rate:g} asked"
    print(f"{where}: {load.open} streams, {rate}, {load.errors} errors")
    print(f"  a run: {spread(load.latencies)}")
    print(f"  an event of a stream is late by: {spread(late)}")
    print(f"  the server: {load.cpu:.1f} s of processor time, {load.memory:.0f} MB")
    print(f"  the client: {load.client:.1f} s; load average {os.getloadavg()[0]:.1f}")


def show_tables(asked):
    """What stands in benchmarks/SERVING.md of this server."""
    with tempfile.TemporaryDirectory() as folder:
        names = {"in memory": None, "SQLite": f"{folder}/runs.db"}
        print("| server; streams open, runs asked | runs done | a run takes, p50; p99 "
              "| an event is late by, p50; p99 | most memory |\n|---|---|---|---|---|")  # fmt: skip
        loads = [("in memory", 0, 100)]
        loads += [(name, 1000, rate) for name in names for rate in (100, 200)]
        names |= {"Postgres, with the workers in its process": asked.db} if asked.db else {}
        loads += [(name, 1000, rate) for name in [*names][2:] for rate in (50, 80)]
        for name, streams, rate in loads:
            load = measure_one(asked, names[name], streams, rate)
            done = f"{len(load.latencies) / load.took:.0f}/s"
            done += f", {load.errors} failed" if load.errors else ""
            late = spread(load.delays).replace("p50 ", "").replace(", p99", ";") if streams else ""
            takes = spread(load.latencies).replace("p50 ", "").replace(", p99", ";")
            print(f"| {name}; {streams:,}, {rate}/s | {done} | {takes} | {late} "
                  f"| {load.memory:.0f} MB |", flush=True)  # fmt: skip
        print("\n| a run of three steps, beside no stream | processor time of the server |")
        print("|---|---|")
        for name, db in names.items():
            for rate in (50, 100) if db is asked.db and db else (50, 100, 200):
                load = measure_one(asked, db, 0, rate)
                each = load.cpu / max(1, len(load.latencies)) * 1000
                print(f"| {name}; {rate}/s | {each:.1f} ms |", flush=True)


def measure_one(asked, db, streams, rate):
    one = copy(asked)
    one.db, one.streams, one.rate = db, streams, float(rate)
    one.slow = asked.slow if streams else 0
    if db is not None and "://" not in db:
        for end in ("", "-wal", "-shm"):
            Path(db + end).unlink(missing_ok=True)
    return measure(one)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db")
    parser.add_argument("--url")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200.0, help="runs per second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--ramp", type=float, default=10.0, help="seconds in which the streams are opened"
    )
    text = "readers who never read, of streams with 50 events of 10 kB a second each"
    parser.add_argument("--slow", type=int, default=1, help=text)
    parser.add_argument("--verbose", action="store_true")
    text = "measure this server in memory and on SQLite, and print the tables of the documentation"
    parser.add_argument("--table", action="store_true", help=text)
    asked = parser.parse_args()
    if asked.table:
        show_tables(asked)
    else:
        show(asked)


if __name__ == "__main__":
    main()
