"""Encrypted threads: what is stored cannot be read, swapped or taken from elsewhere without the key."""

import sqlite3
from itertools import combinations

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, EMPTY, thread_config
from kit.pausing_graphs import asks, graph

from stategraph import Command
from stategraph.checkpoint.errors import DamagedError, UnknownKeyError
from stategraph.checkpoint.integrity import Integrity
from stategraph.checkpoint.sqlite import SqliteSaver

encryption = pytest.importorskip("stategraph.checkpoint.encryption")
Encryption, key_id = encryption.Encryption, encryption.key_id
pytest.importorskip("cryptography")

KEY, OTHER = bytes(range(32)), bytes(32)
COLUMNS = {"checkpoints": "body", "channel_values": "data", "writes": "data"}


def opened(file, integrity):
    return SqliteSaver(file, synchronous="off", integrity=integrity)


def app_of(saver):
    return graph("S>q>z", q=asks("q"), checkpointer=saver)


SECRET = "the secret word " * 10


@pytest.fixture
def file(tmp_path, drive):
    """A file in which two threads have run to their ends."""
    saver = opened(tmp_path / "threads.db", Encryption(KEY))
    for thread in ("t", "2"):
        config = thread_config(thread)
        drive.invoke(app_of(saver), {"log": [SECRET]}, config)
        drive.invoke(app_of(saver), Command(resume=thread), config)
    saver.close()
    return tmp_path / "threads.db"


def test_what_is_stored_cannot_be_read_in_the_file(file):
    text = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"secret word" not in text


def test_with_the_key_it_is_as_it_was(file, drive):
    saver = opened(file, Encryption(KEY))
    assert drive.get_state(app_of(saver), CONFIG).values["log"] == [SECRET, ("q", "t"), "z"]
    saver.close()


@pytest.mark.parametrize("integrity", [Encryption(OTHER), None], ids=["another key", "no key"])
def test_without_the_key_it_is_refused(file, drive, integrity):
    saver = opened(file, integrity)
    with pytest.raises(DamagedError, match="thread 't'"):
        drive.get_state(app_of(saver), CONFIG)
    saver.close()


def test_what_was_never_encrypted_is_refused(tmp_path, drive):
    plain = opened(tmp_path / "plain.db", None)
    drive.invoke(app_of(plain), EMPTY, CONFIG)
    plain.close()
    saver = opened(tmp_path / "plain.db", Encryption(KEY))
    with pytest.raises(DamagedError, match="encrypted with another key"):
        drive.get_state(app_of(saver), CONFIG)
    saver.close()


def everything(saver):
    return [[*saver.list(thread_config(thread))] for thread in ("t", "2")]


def test_no_two_rows_can_be_swapped(file):
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
def test_a_key_of_another_kind_is_refused(key):
    with pytest.raises(ValueError, match="16, 24 or 32 bytes"):
        Encryption(key)


def test_the_key_is_not_shown():
    assert repr(Encryption(KEY)) == "Encryption(...)"


# -- several keys -----------------------------------------------------------------------------------------------


def test_the_first_key_encrypts_and_all_decrypt():
    old = Encryption(OTHER).protect(b"state", b"here")
    both = Encryption(KEY, OTHER)
    assert both.unprotect(old, b"here") == b"state"
    new = both.protect(b"state", b"here")
    assert Encryption(KEY).unprotect(new, b"here") == b"state"
    for integrity, row in ((Encryption(OTHER), new), (Encryption(KEY), old)):
        with pytest.raises(DamagedError, match="cannot be decrypted with this key"):
            integrity.unprotect(row, b"here")
    with pytest.raises(DamagedError, match="any of these keys"):
        both.unprotect(new, b"there")


def test_rows_of_earlier_releases_still_open():
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = b"n" * 12
    row = key_id(OTHER) + nonce + AESGCM(OTHER).encrypt(nonce, b"state", b"here")
    assert Encryption(KEY, OTHER).unprotect(row, b"here") == b"state"
    for altered in (b"", row[:11], row[:20], bytes([row[0] ^ 1]) + row[1:], row + b"x"):
        with pytest.raises(DamagedError):
            Encryption(KEY, OTHER).unprotect(altered, b"here")


def test_a_reader_without_a_key_tells_an_encrypted_row_from_a_damaged_one():
    with pytest.raises(UnknownKeyError, match="it is encrypted, and no key was given"):
        Integrity().unprotect(Encryption(KEY).protect(b"state", b"here"), b"here")
    with pytest.raises(DamagedError, match="its checksum does not match") as damaged:
        Integrity().unprotect(Integrity().protect(b"state", b"here"), b"there")
    assert not isinstance(damaged.value, UnknownKeyError)


def test_a_thread_that_is_read_without_its_key_asks_for_the_key(tmp_path):
    app_of(opened(tmp_path / "threads.db", Encryption(KEY))).invoke(EMPTY, CONFIG)
    with pytest.raises(UnknownKeyError, match="it is encrypted, and no key was given. Give the key of this row"):
        app_of(opened(tmp_path / "threads.db", Integrity())).get_state(CONFIG)


def test_no_bit_of_a_row_can_be_changed():
    integrity = Encryption(KEY, OTHER)
    row = integrity.protect(b"state", b"here")
    for at in range(8 * len(row)):
        altered = bytearray(row)
        altered[at // 8] ^= 1 << at % 8
        with pytest.raises(DamagedError):
            integrity.unprotect(bytes(altered), b"here")


def test_keys_are_rotated_while_a_thread_continues(tmp_path, drive):
    """Each step under another first key, the older ones behind it; deltas build on rows of older keys."""
    keys = [bytes([number]) * 32 for number in range(6)]
    for number in range(len(keys)):
        saver = opened(tmp_path / "threads.db", Encryption(*reversed(keys[: number + 1])))
        drive.invoke(app_of(saver), {"log": [f"{SECRET}{number}"]}, CONFIG)
        drive.invoke(app_of(saver), Command(resume=number), CONFIG)
        saver.close()
    saver = opened(tmp_path / "threads.db", Encryption(*reversed(keys)))
    assert [word for word in drive.get_state(app_of(saver), CONFIG).values["log"] if SECRET in word] == [
        f"{SECRET}{number}" for number in range(len(keys))
    ]
    saver.copy_thread("t", "copy")  # writes it anew, under the newest key
    saver.delete_thread("t")
    saver.close()
    saver = opened(tmp_path / "threads.db", Encryption(keys[-1]))
    copied = drive.get_state(app_of(saver), thread_config("copy"))
    assert copied.values["log"][-1] == "z"
    saver.close()


@pytest.mark.parametrize("text", [OTHER.hex(), "AAAAAAAAAAAAAAAAAAAAAA==", "AAAAAAAAAAAAAAAAAAAAAA", f"\n{KEY.hex()},\t{OTHER.hex()} \n"])
def test_keys_are_read_from_a_text(text):
    assert Encryption.from_text(text).unprotect(Encryption.from_text(text).protect(b"state", b""), b"") == b"state"


@each_case("text", ["", " ,", "secret", f"{KEY.hex()} 12", "€" * 22])
def test_a_text_without_keys_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="must be 16, 24 or 32 bytes") as told:
        Encryption.from_text(text)
    assert "secret" not in str(told.value).replace("secrets.token_bytes", "")


def test_a_thread_is_read_with_keys_of_a_file_or_of_the_environment(file, tmp_path, monkeypatch, capsys):
    from stategraph.__main__ import main

    keys = tmp_path / "keys"
    keys.write_text(f"{OTHER.hex()}\n{KEY.hex()}\n")
    assert main(["show", "--db", str(file), "--thread", "t", "--keys", str(keys)]) == 0
    assert "secret word" in capsys.readouterr().out
    monkeypatch.setenv("STATEGRAPH_KEYS", KEY.hex())
    assert main(["history", "--db", str(file), "--thread", "t"]) == 0
    monkeypatch.setenv("STATEGRAPH_KEYS", OTHER.hex())
    for words in (["show", "--thread", "t"], ["threads"], ["show", "--thread", "t", "--keys", str(tmp_path / "none")]):
        capsys.readouterr()
        try:
            code = main([words[0], "--db", str(file), *words[1:]])
        except SystemExit as left:
            code = left.code
        shown = capsys.readouterr()
        told = shown.err + shown.out  # `threads` names each damaged thread in its list
        assert code and "secret word" not in told
        assert "cannot be decrypted with this key" in told or "No such file" in told
        assert OTHER.hex() not in told
