"""R4: the power goes. With synchronous="full" every step that was told stored is there; with "normal" perhaps not the
last ones, but nothing is there by half."""

from stategraph.checkpoint.base import address
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import CheckFailed, Commits, assert_same

from .campaign import Skipped, trial

STEPS = 40
IMAGES = 20
"""Images of one recording."""


def _disk():
    try:
        from . import disk
    except ModuleNotFoundError as error:
        raise Skipped(f"images of a disk need apsw: {error}") from error
    return disk


def recorded(folder, random, synchronous):
    """A thread of many steps on a disk that remembers: its events, and what each step must hold."""
    disk = _disk()
    folder.mkdir()
    with disk.recording(f"chaos-{random.randrange(10**9)}") as vfs:
        with SqliteSaver.from_conn_string(str(folder / "threads.db"), synchronous=synchronous) as saver:
            saver._database.execute(f"PRAGMA wal_autocheckpoint={random.choice([2, 7, 30])}").close()
            run = Commits(lambda method, *args: getattr(saver, method)(*args), saver)
            for step in range(STEPS):
                long = ["x" * 50] * random.randrange(1, 60) if random.random() < 0.7 else ["y" * 3000] * random.randrange(9)
                writes = [("task", [("a", step)])] if step and random.random() < 0.5 else ()
                run.step(f"{step}", a=step, long=long, writes=writes)
                vfs.events.append(disk.Told(f"{step}"))
                if step == STEPS // 2 and random.random() < 0.5:
                    saver.prune(["t"], keep_last=STEPS)
        return vfs.events, run.expected


def losing_power(round, synchronous):
    """Record one thread, cut the power at any places, and look at what is left."""
    disk, random = _disk(), round.random
    events, expected = recorded(round.folder / "real", random, synchronous)
    begin = next(n for n, event in enumerate(events) if isinstance(event, disk.Told))
    ids = [*expected]
    for number in range(IMAGES):
        at = random.randrange(begin + 1, len(events) + 1)
        told = [event.what for event in events[:at] if isinstance(event, disk.Told)]
        folder = round.folder / f"{number}"
        folder.mkdir()
        disk.image(events, at, random, folder)
        where = f"synchronous={synchronous!r}, power lost after event {at} of {len(events)}"
        with SqliteSaver.from_conn_string(str(folder / "threads.db"), synchronous="off") as saver:
            (sound,) = saver._database.execute("PRAGMA integrity_check").fetchone()
            assert_same(sound, "ok", f"{where}: integrity")
            found = [*saver.list(address("t", ""))][::-1]
            left = [each.checkpoint["id"] for each in found]
            assert_same(left, ids[: len(left)], f"{where}: the steps that are left")
            for each in found:
                assert_same(each.checkpoint, expected[each.checkpoint["id"]], f"{where}: checkpoint")
            assert_same(saver.head(address("t", "")), left[-1] if left else None, f"{where}: head")
        if synchronous == "full" and len(left) < len(told):
            raise CheckFailed(f"{where}: {len(told)} steps were told stored, {len(left)} are there")
        round.count("images")
        round.count("steps told stored", len(told))
        round.count("of these lost", max(0, len(told) - len(left)))


@trial("R4", quick=2, full=1_000)
def power_lost_full(round):
    """40 steps with synchronous="full" on a disk that remembers; 20 images of what a loss of power may leave, any part
    of the unsynced sectors, torn at 512 or 4096 bytes. Every step told stored is there, and the file is sound."""
    losing_power(round, "full")


@trial("R4", quick=2, full=1_000)
def power_lost_normal(round):
    """The same with "normal": the steps that are there are the first ones, whole."""
    losing_power(round, "normal")


