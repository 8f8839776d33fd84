"""R14, R18: bytes from hostile or careless hands, values of any kind. Loading runs nothing, and what cannot come back the
same is refused."""

import resource
import sys
import time
import tracemalloc
from random import Random

import ormsgpack
from hypothesis import strategies as st
from kit import stored_values

from stategraph.checkpoint import InMemorySaver, UnserializableError
from stategraph.checkpoint.base import address
from stategraph.checkpoint.errors import DamagedError, UnknownTypeError
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import CheckFailed, assert_same
from stategraph.testing.hostile import ATTACKS

from .campaign import trial
from .stages import postgres, sqlite
from .travel import drawn

# -- R14 --------------------------------------------------------------------------------------------------------

PAYLOADS = 500


def loaded(seed, count):
    """Load mutated payloads and gadgets while Python reports what is done: how many, and the most bytes of one.

    Runs in a process of its own: what listens cannot be taken off again, and its memory is limited.
    """
    random, watch = Random(seed), stored_values.Watch()
    serializer = stored_values.fresh(*stored_values.KNOWN, stored_values.AppError)
    samples = [serializer.dumps(value)[1] for value in stored_values.EXACT.values()]
    samples += [ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(each))) for code in range(128) for each in stored_values.GADGETS]
    for warm in samples:
        _load(serializer, warm)  # zones and such are read once
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
    tracemalloc.start()
    most = 0
    for number in range(count):
        payload = stored_values.mutated(random.choice(samples), random) if number % 4 else random.choice(samples[-1500:])
        tracemalloc.reset_peak()
        before, began = tracemalloc.get_traced_memory()[0], time.thread_time()
        with watch.watching():
            _load(serializer, payload)
        took, size = time.thread_time() - began, tracemalloc.get_traced_memory()[1] - before
        most = max(most, size)
        if watch.events:
            raise CheckFailed(f"loading {payload.hex()} did {watch.events}")
        if size > 64 * 2**20 or took > 0.1:
            raise CheckFailed(f"loading {payload.hex():.200} took {took * 1000:.0f} ms and {size:,} bytes")
    return count, most


def _load(serializer, payload):
    try:
        serializer.loads(("msgpack", payload))
    except (DamagedError, UnknownTypeError):
        pass


@trial("R14", quick=2, full=10_000)
def hostile_payloads(round):
    """500 mutated payloads and gadgets are loaded under `sys.addaudithook`: nothing is imported, opened, compiled or run;
    at most 64 MiB and 100 ms each, typed errors only."""
    count, most = round.bench.one(loaded, f"{round.random.random()}", PAYLOADS)
    round.count("payloads", count)
    round.count("bytes at most, summed", most)


# -- R18 --------------------------------------------------------------------------------------------------------

ODD = st.sampled_from(
    [stored_values.MyDict(a=1), stored_values.marked("x"), object(), lambda: 1, iter([1]), stored_values.Thing(), Random(1), sys]
)
VALUES = st.one_of(stored_values.values, stored_values.values, st.lists(stored_values.values | ODD, max_size=3), st.sampled_from(ATTACKS))


def saver_of(round, serde):
    """In memory, SQLite and, now and then, Postgres."""
    kind = ("memory", "sqlite", "sqlite", "postgres")[round.number % 4]
    if kind == "memory":
        return InMemorySaver(serde=serde)
    if kind == "sqlite":
        return SqliteSaver(sqlite(round).address, synchronous="off", serde=serde)
    return PostgresSaver(postgres(round).address, serde=serde)


def stored(saver, last, value):
    """Store a value as the next checkpoint of a thread, in channels, metadata and writes; what then is read of it."""
    id = f"{last + 1}"
    checkpoint = {
        "v": 1, "id": id, "ts": "2024-01-01T00:00:00+00:00", "channel_values": {"a": value, "many": [value] * 3},
        "channel_versions": {"a": int(id), "many": int(id)}, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip
    config = address("t", "", str(last) if last else None)
    saver.put(config, checkpoint, {"run_id": "r"}, {"a": int(id), "many": int(id)})
    saver.put_writes(address("t", "", id), [("a", value)], "task")
    found = saver.get_tuple(address("t", ""))
    values = found.checkpoint["channel_values"]
    return [values["a"], *values["many"], *(write[2] for write in found.pending_writes)]


@trial("R18", quick=2, full=2_000)
def round_trips(round):
    """100 values of any kind in channels, writes and metadata of a saver, one after the other so that one may be stored
    as a change to the last: each comes back equal and of the same type, or is refused and nothing is stored. In memory,
    SQLite and, now and then, Postgres."""
    saver = saver_of(round, stored_values.fresh(*stored_values.KNOWN))
    last = 0

    def check(value):
        nonlocal last
        try:
            found = stored(saver, last, value)
        except UnserializableError:
            assert_same(saver.head(address("t", "")), str(last) if last else None, "head after a value was refused")
            round.count("refused")
            return
        last += 1
        for each in found:
            if not stored_values.same(each, value):
                raise CheckFailed(f"{type(saver).__name__}: {value!r:.300} came back as {each!r:.300}")
        round.count("values")

    try:
        drawn(round.random, 100 if not isinstance(saver, PostgresSaver) else 30, VALUES, check)
    finally:
        getattr(saver, "close", lambda: None)()
