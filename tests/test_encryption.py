"""Encrypted threads: what is stored cannot be read, swapped or taken from elsewhere without the key."""

from __future__ import annotations

import sqlite3
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from paused import CFG, asks, graph, says

from stategraph import START, Command
from stategraph.checkpoint import DamagedError
from stategraph.checkpoint.sqlite import SqliteSaver

Encryption = pytest.importorskip("stategraph.checkpoint.encryption").Encryption
pytest.importorskip("cryptography")

KEY, OTHER = bytes(range(32)), bytes(32)
COLUMNS = {"checkpoints": "body", "channel_values": "data", "writes": "data"}


def opened(file: Path, seal: Any) -> SqliteSaver:
    return SqliteSaver(file, synchronous="off", seal=seal)


def app_of(saver: Any) -> Any:
    return graph({"q": asks("q"), "z": says("z")}, (START, "q"), ("q", "z"), checkpointer=saver)


SECRET = "the secret word " * 10


@pytest.fixture
def file(tmp_path: Path, drive: Any) -> Path:
    """A file in which two threads have run to their ends."""
    saver = opened(tmp_path / "threads.db", Encryption(KEY))
    for thread in ("1", "2"):
        config = {"configurable": {"thread_id": thread}}
        drive.invoke(app_of(saver), {"log": [SECRET]}, config)
        drive.invoke(app_of(saver), Command(resume=thread), config)
    saver.close()
    return tmp_path / "threads.db"


def test_what_is_stored_cannot_be_read_in_the_file(file: Path) -> None:
    text = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"secret word" not in text


def test_with_the_key_it_is_as_it_was(file: Path, drive: Any) -> None:
    saver = opened(file, Encryption(KEY))
    assert drive.get_state(app_of(saver), CFG).values["log"] == [SECRET, ("q", "1"), "z"]
    saver.close()


@pytest.mark.parametrize("seal", [Encryption(OTHER), None], ids=["another key", "no key"])
def test_without_the_key_it_is_refused(file: Path, drive: Any, seal: Any) -> None:
    saver = opened(file, seal)
    with pytest.raises(DamagedError, match="thread '1'"):
        drive.get_state(app_of(saver), CFG)
    saver.close()


def test_what_was_never_encrypted_is_refused(tmp_path: Path, drive: Any) -> None:
    plain = opened(tmp_path / "plain.db", None)
    drive.invoke(app_of(plain), {"log": []}, CFG)
    plain.close()
    saver = opened(tmp_path / "plain.db", Encryption(KEY))
    with pytest.raises(DamagedError, match="never encrypted"):
        drive.get_state(app_of(saver), CFG)
    saver.close()


def everything(saver: Any) -> Any:
    return [[*saver.list({"configurable": {"thread_id": thread}})] for thread in ("1", "2")]


def test_no_two_rows_can_be_swapped(file: Path) -> None:
    """Every pair of rows of a table, within a thread and across threads."""
    raw = sqlite3.connect(file)
    tried = 0
    for table, column in COLUMNS.items():
        rows = raw.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
        for (first, a), (second, b) in combinations(rows, 2):
            for pair in (((b, first), (a, second)), ((a, first), (b, second))):
                raw.executemany(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", pair)
                raw.commit()
                saver = opened(file, Encryption(KEY))
                if pair[0][0] is b:
                    tried += 1
                    with pytest.raises(DamagedError):
                        everything(saver)
                saver.close()
    assert tried > 50
    raw.close()


@pytest.mark.parametrize("key", [b"", b"short", "x" * 32, None])
def test_a_key_of_another_kind_is_refused(key: Any) -> None:
    with pytest.raises(ValueError, match="16, 24 or 32 bytes"):
        Encryption(key)


def test_the_key_is_not_shown() -> None:
    assert repr(Encryption(KEY)) == "Encryption(...)"
