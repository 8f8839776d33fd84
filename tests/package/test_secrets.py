"""No error, note, cause, log or repr shows a password of a connection string, however it is malformed."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress

import pytest

from stategraph.__main__ import main
from stategraph.checkpoint.sql.redact import redact
from stategraph.checkpoint.sqlite import SqliteSaver

pytest.importorskip("psycopg")

SECRET = "hunTer2"
PORT = 1  # nobody listens there
URLS = [
    f"postgresql://me:{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}@127.0.0.1:{PORT}/db?connect_timeout=x",
    f"postgresql://me:{SECRET}@127.0.0.1:notaport/db",
    f"postgresql://me:{SECRET}@127.0.0.1:99999999/db",
    f"postgresql://me:{SECRET}@[::1/db",
    f"postgresql://me:{SECRET}@[]/db",
    f"postgresql://me:{SECRET}@[::1]x/db",
    f"postgresql://me:{SECRET}@127.0.0.1:{PORT}/db?unknown=1",
    f"postgresql://me:{SECRET}@127.0.0.1:{PORT}/db?sslmode",
    f"postgresql://me:{SECRET}@127.0.0.1:{PORT}/db?a=b=c",
    f"postgresql://me:%zz{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}%@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}%00@127.0.0.1:{PORT}/db",
    f"postgresql://me:pa/{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}/x@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}:x@127.0.0.1:{PORT}/db",
    f"postgresql://me:x:{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql://me:p@{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}@x@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}?x@127.0.0.1:{PORT}/db",
    f"postgresql://me:x?{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET}#x@127.0.0.1:{PORT}/db",
    f"postgresql://me:{SECRET} x@127.0.0.1:{PORT}/db",
    f"postgresql://me:[{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql://127.0.0.1:{PORT}/db?user=me&password={SECRET}&x",
    f"postgresql://127.0.0.1:{PORT}/db?password={SECRET}%zz",
    f"postgres:me:{SECRET}@127.0.0.1:{PORT}/db",
    f"postgresql:/me:{SECRET}@127.0.0.1:{PORT}/db",
    f"mysql://me:{SECRET}@127.0.0.1:{PORT}/db",
    f"host=127.0.0.1 port={PORT} user=me password={SECRET}",
    f"host=127.0.0.1 port={PORT} password={SECRET} x y",
    f"host=127.0.0.1 port={PORT} password=my {SECRET} dbname=db",
    f"host=127.0.0.1 port={PORT} password='{SECRET}",
    f"host=127.0.0.1 port={PORT} password = '{SECRET}' {SECRET}",
]


def told(error: BaseException):
    """All that anybody could print of an error."""
    parts = traceback.format_exception(error)
    seen = [error]
    while seen:
        each = seen.pop()
        if each is not None:
            parts += [repr(each), str(each), *getattr(each, "__notes__", ())]
            seen += [each.__cause__, each.__context__]
    return "\n".join(parts)


@pytest.mark.parametrize("url", URLS)
def test_no_error_shows_a_password(url, caplog, capsys, tmp_path, monkeypatch):
    from stategraph.checkpoint.postgres import PostgresSaver
    from stategraph.store.postgres import PostgresStore
    from stategraph.workers import Queue

    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    text = []
    for cls in (PostgresSaver, PostgresStore, Queue, SqliteSaver):
        opened = None
        try:
            options = {} if cls in (SqliteSaver, Queue) else {"timeout": 2.0}
            opened = cls(url, *(["graph"] if cls is Queue else []), **options)
            text.append(repr(opened))
            opened.setup()
        except Exception as error:
            text.append(told(error))
        finally:
            if opened is not None:
                opened.close()
    for command in ("threads", "queue"):
        with suppress(SystemExit):
            main([command, "--db", url])
    out = capsys.readouterr()
    assert SECRET not in "\n".join([*text, out.out, out.err, caplog.text])


def test_what_is_no_secret_stays():
    text = 'connection to server at "db.example", port 5432 failed: password authentication failed for user "me"'
    assert redact(text, "postgresql://me:s3cret@db.example:5432/app") == text
