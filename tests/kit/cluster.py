"""A Postgres server of the tests' own: made in a temporary folder, on a free loopback port, gone afterwards.

Two fixtures that every test has give a connection string: `postgres` to a new schema, `emptied` to one in
which the package's tables stand, without rows. Making the tables takes five times as long as most tests, so a test takes
`postgres` only if it looks at how they are made, alters them, or makes roles of its own. Where the server's programs are
missing, such tests are skipped with that reason; with STATEGRAPH_REQUIRE_POSTGRES set they fail.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

REQUIRED = "STATEGRAPH_REQUIRE_POSTGRES"
ROOT = Path("/usr/lib/postgresql")  # Debian keeps the server's programs off the PATH
SETTINGS = (
    "fsync = off",
    "full_page_writes = off",
    "max_connections = 200",
    "autovacuum = off",
    "shared_buffers = 32MB",
    "log_min_messages = fatal",
)

EMPTY = """
DO $$
DECLARE
    kind "char";
    name text;
BEGIN
    SET LOCAL lock_timeout = '10s';
    SET LOCAL client_min_messages = error;
    CREATE SCHEMA IF NOT EXISTS {schema};
    FOR kind, name IN
        SELECT relkind, format('%I.%I', nspname, relname) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = '{schema}' AND relkind IN ('r', 'S') AND relname <> 'stategraph_migrations' ORDER BY relkind
    LOOP
        IF kind = 'S' THEN
            PERFORM setval(name::regclass, 1, false);
        ELSIF name NOT LIKE '{schema}.stategraph\\_%' THEN
            EXECUTE 'DROP TABLE ' || name;
        ELSE
            EXECUTE 'DELETE FROM ' || name;
        END IF;
    END LOOP;
END $$
"""


def programs():
    """The folder of initdb and pg_ctl, of the newest version there is."""
    found = sorted(ROOT.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None


class Cluster:
    """A server. It listens on one address, loopback by default, and on a socket in its folder."""

    def __init__(self, bin, host="127.0.0.1"):
        self._bin, self._host = bin, host
        self.folder = Path(tempfile.mkdtemp(prefix="stategraph-postgres-"))
        # initdb refuses to be run by root.
        self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "nobody", "nogroup")
        self._data = self.folder / "data"
        self._call("initdb", "-D", self._data, "-A", "trust", "-U", "tester", "-E", "UTF8", "--locale=C", "--no-sync")
        self.port = free_port()
        lines = [*SETTINGS, f"listen_addresses = '{host}'", f"port = {self.port}"]
        lines += [f"unix_socket_directories = '{self.folder}'"]
        with open(self._data / "postgresql.conf", "a") as config:
            config.write("\n".join(lines) + "\n")
        with open(self._data / "pg_hba.conf", "a") as clients:
            clients.write(f"host all all {host}/24 trust\n")
        self._names = count()
        self._console = None
        self._idle = []
        self.start()

    def _call(self, program, *args):
        command = [str(self._bin / program), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False, **self._user)  # type: ignore[call-overload]
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def start(self):
        """Start it and wait until it answers. A pipe would be kept open by the server, so its output goes to a file."""
        self._ctl("start", "-l", self.folder / "log")

    def stop(self, mode="fast"):
        """`fast` tells clients; `immediate` is a crash."""
        self._ctl("stop", "-m", mode)

    def _ctl(self, *args):
        command = [str(self._bin / "pg_ctl"), "-D", str(self._data), "-w", "-t", "60", *map(str, args)]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder, check=False, **self._user,  # type: ignore[call-overload]
        )  # fmt: skip
        assert done.returncode == 0, f"pg_ctl {args}: {(self.folder / 'log').read_text()[-2000:]}"

    def restart(self, mode="fast"):
        """Stop it and start it again, on the same port."""
        self.stop(mode)
        self.start()

    @property
    def address(self):
        """Where it listens, without a schema."""
        return f"host={self._host} port={self.port} user=tester dbname=postgres"

    def console(self, conninfo):
        """The same connection string, by way of the socket: for who sits at the server itself."""
        return f"{conninfo} host={self.folder}"

    def schema(self):
        """A connection string that sees a new, empty schema."""
        name = f"test_{next(self._names)}"
        self._execute(f"CREATE SCHEMA {name}")
        return self._address_of(name)

    @contextmanager
    def emptied(self):
        """A connection string that sees a schema of earlier tests, without what is not the package's and without rows.
        It is nobody else's until the end of the context."""
        name = self._idle.pop() if self._idle else f"used_{next(self._names)}"
        self._execute(EMPTY.format(schema=name))
        yield self._address_of(name)
        self._idle.append(name)

    def _address_of(self, schema):
        return f"{self.address} options='-c search_path={schema}'"

    def _execute(self, statement):
        """On a connection that is kept: a new one takes longer than all statements of most tests."""
        for _ in range(2):
            if self._console is None:
                self._console = psycopg.connect(self.console(self.address), autocommit=True)
            try:
                self._console.execute(statement)  # type: ignore[arg-type]
                return
            except psycopg.OperationalError:  # a test has restarted the server
                self._console.close()
                self._console = None
        raise ConnectionError(f"{statement} finds no server at {self.address}")

    def remove(self):
        """Stop it and delete its folder."""
        if self._console is not None:
            self._console.close()
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def found():
    """That folder; where there is none the test is skipped, or fails if such tests are required."""
    if (bin := programs()) is not None:
        return bin
    reason = "the programs of the Postgres server are not installed (initdb, pg_ctl)"
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}, and {REQUIRED} is set")
    pytest.skip(reason)


@cache
def shared():
    """The server that most tests use; made when the first asks for it."""
    made = Cluster(found())
    atexit.register(remove_shared)
    return made


def remove_shared():
    """Remove that server, if there is one."""
    if shared.cache_info().currsize:
        shared().remove()
        shared.cache_clear()


@pytest.fixture
def postgres():
    """A connection string to a new schema of the tests' server."""
    return shared().schema()


@pytest.fixture
def emptied():
    """A connection string to a schema of the tests' server in which the package's tables may stand, without rows."""
    with shared().emptied() as conninfo:
        yield conninfo


class Proxy:
    """Stands between a client and the server, and can lose what passes.

    `lose = "question"`: the next bytes from the client are dropped, and its connection is cut. `lose = "answer"`: they
    reach the server, which does what they ask; its answer is dropped, and the connection is cut. `after` lets so many
    of these pass first. `lose = "both"`: nothing passes any more, and nothing is cut.
    """

    def __init__(self, port):
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lose = None
        self.after = 0
        self.lost = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets = []
        self._threads[0].start()

    def address(self, conninfo):
        """The connection string of the server, by way of this proxy."""
        return f"{conninfo} port={self.port}"

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            self._sockets += [client, server]
            pairs = [(client, server, "question"), (server, client, "answer")]
            self._threads += [threading.Thread(target=self._pass_on, args=pair) for pair in pairs]
            for thread in self._threads[-2:]:
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, what):
        try:
            while data := source.recv(65536):
                if self.lose == "both":
                    self.lost.set()
                elif self.lose == what and self.after:
                    self.after -= 1
                    target.sendall(data)
                elif self.lose == what:
                    self.lose = None
                    self.lost.set()
                    break
                else:
                    target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


class Traced:
    """A connection that writes down what it sends; each `Sync` or `Query` is a round trip."""

    def __init__(self, conninfo, path):
        self.connection = psycopg.connect(conninfo, autocommit=True)
        self._path = path
        self._file = open(path, "w")  # noqa: SIM115
        self.connection.pgconn.trace(self._file.fileno())

    def trips(self):
        """How many since the last time this was asked."""
        self.connection.pgconn.untrace()
        lines = self._path.read_text().splitlines()
        self._file.truncate(0)
        self._file.seek(0)
        self.connection.pgconn.trace(self._file.fileno())
        return sum(line.split("\t")[1:2] == ["F"] and line.split("\t")[3:4] in (["Sync"], ["Query"]) for line in lines)

    def close(self):
        self.connection.close()
        self._file.close()


def as_url(conninfo):
    """The address of the tests' Postgres cluster as a URL, which the command line knows it by."""
    given = conninfo_to_dict(conninfo)
    options = quote(str(given["options"]))
    return f"postgresql://{given['user']}@{given['host']}:{given['port']}/{given['dbname']}?options={options}"
