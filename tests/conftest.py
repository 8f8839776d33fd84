"""What every test has: `drive` for sync and async, savers, a watch for leaks, Hypothesis' profiles.

What tests import lives in `kit/`; a graph that one file needs stays in that file.
"""

import asyncio
import gc
import inspect
import os
import re
import shutil
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

# A commit to a disk waits for fsync, and tests commit all the time: they store in memory, where there is room.
# What a loss of power leaves is seen on simulated disks (faults/).
IN_MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)

pytest.register_assert_rewrite("kit")

from kit.drive import Drive, draw, forget_modules  # noqa: E402
from kit.savers import local_saver as local_saver  # noqa: E402
from kit.savers import saver as saver  # noqa: E402

with suppress(ModuleNotFoundError):  # `make lowest` has no psycopg
    from kit.cluster import emptied as emptied
    from kit.cluster import postgres as postgres

# Processes that tests start find `kit` too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=8)
settings.register_profile("ci", deadline=None, max_examples=12, print_blob=True)  # new examples; .ci/run gives the seed
settings.register_profile("full", deadline=None, max_examples=1000)
settings.load_profile("quick")  # `pytest --hypothesis-profile=full` searches longer, with new random graphs

LONGEST = """
    programs serve_restarts serve serve_sessions serve_command serve_fleet peer_effects parameters lab_threads
    chaos planted_bugs conformance page_views serve_ui benchmarks search typed serve_two_servers executors flow transaction workers
    postgres_saver races sleep counts stream_nested examples demo ray effect lab_calls spending serve_webhooks
    protocol store inbox pytest_plugin layout properties memory_keys processes nested_time_travel long_pruning
    call_threads extract job_durability public live docs delays once live_threads history_model
"""
"""The test files that take longest, in order. A worker is given a whole file: were a long one the last, all others would
wait for it."""

POOL_THREADS = "stategraph"
"""The names of the engine's own threads begin so. They are daemons, and outlive a run on purpose."""


@pytest.fixture(params=["sync", "async"], scope="module")  # not per function: hypothesis tests use it too
def drive(request):
    """Runs the test twice: once through the sync faces, once through the async ones."""
    return Drive(is_async=request.param == "async")


@pytest.fixture(autouse=True)
def no_leaks(request, monkeypatch):
    """Fails a test that leaves an asyncio task pending, a thread that is no daemon of the engine's, or a module of its
    folder `tmp_path`: another test would import it in the place of its own."""
    before, imported = set(threading.enumerate()), {*sys.modules}
    pending = []
    run = asyncio.run

    def watched_run(main, **kwargs):
        async def watched():
            try:
                return await main
            finally:
                pending.extend(await _pending_tasks())

        return run(watched(), **kwargs)

    monkeypatch.setattr(asyncio, "run", watched_run)
    yield
    assert not pending, f"asyncio tasks were left pending: {pending}"
    left = [thread for thread in threading.enumerate() if thread not in before and not _is_pool(thread)]
    for thread in left:
        thread.join(timeout=1)  # one that is about to end is no leak
    assert not [thread for thread in left if thread.is_alive()], f"threads were left running: {left}"
    if (folder := request.node.funcargs.get("tmp_path")) is not None:
        strangers = forget_modules(folder, imported)
        assert not strangers, f"modules were left in sys.modules: {strangers}"


async def _pending_tasks():
    """The tasks that do not end by themselves within a few turns of the loop."""
    others = set()
    for _ in range(10):
        others = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        if not others:
            break
        await asyncio.sleep(0)
    return [repr(task) for task in others]


def _is_pool(thread):
    return thread.daemon and thread.name.startswith(POOL_THREADS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run an `async def` test on an event loop of its own. One that hangs fails."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run():
        async with asyncio.timeout(60):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})

    asyncio.run(run())
    return True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip a file that imports packages of the peer's, where they are not installed, and say so.

    Each worker of pytest-xdist imports all files, and begins with its own part of each folder: a file that one has
    rewritten and compiled, the others only load.
    """
    report = yield
    missing = re.search(r"No module named '(lang\w+|deepagents|trustcall)", str(report.longrepr)) if report.failed else None
    if missing:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: needs {missing[1]}: make compat")
    if isinstance(collector, pytest.Directory) and report.passed:
        worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
        first = len(report.result) * int(worker.removeprefix("gw")) // int(workers)
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Make what was printed and logged fit for pytest-xdist, which sends no lone surrogates."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage meanwhile: it is a third of the time that collecting the tests takes. What was made stays to
    the end, some 600,000 objects, and is kept out of every later collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config):
    """Let tests leave connections to the collector, of which Python 3.13 and newer tell."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed database:ResourceWarning")


def pytest_collection_modifyitems(config, items):
    """The longest files come first, then some of each folder by turns, so that those that wait for a server run beside
    those that compute. All tests of a file stay together, in their order. Those that hold something against the clock may
    be repeated; no other test is. Of a test in both worlds that has other parameters every second combination is a trial:
    in memory it runs sync every day, on SQLite async. Of combinations, and of the cases of a trial, CI may draw a share
    (`kit.drive.draw`)."""
    combinations = {}
    for item in items:
        places = item.callspec.indices if hasattr(item, "callspec") else {}
        if "drive" in places and len(places) > 1 and sum(places.values()) % 2:
            item.add_marker(pytest.mark.trial)
        is_trial = item.get_closest_marker("trial") is not None
        if places and (is_trial or places.keys() & {"drive", "database"}):
            combinations.setdefault((item.parent.nodeid, item.originalname, is_trial), []).append(item)
        if item.get_closest_marker("clock") and item.config.pluginmanager.hasplugin("rerunfailures"):
            item.add_marker(pytest.mark.flaky(reruns=2))
    for name, found in combinations.items():
        for item in set(found).difference(draw(found, config, *name)):
            item.add_marker(pytest.mark.skip(reason="a case that was not drawn this time"))
    ranks = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST.split())}
    files, places = Counter(), {}
    for path in sorted({item.path for item in items}):
        files[path.parent] += 1
        places[path] = files[path.parent]
    items.sort(key=lambda item: (ranks.get(item.path.name, len(ranks)), places[item.path] / files[item.path.parent], item.path))


def pytest_sessionfinish():
    """Remove the server of Postgres: a process of pytest-xdist ends without what is registered with `atexit`."""
    if "kit.cluster" in sys.modules:
        sys.modules["kit.cluster"].remove_shared()


def pytest_terminal_summary(terminalreporter):
    """Say what was skipped, by reason, and what was repeated. The latter is kept in build/repeated.txt."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
    repeated = Counter(report.nodeid for report in terminalreporter.stats.get("rerun", ()))
    lines = [f"repeated {count} x: {name}" for name, count in repeated.items()]
    if lines:
        kept = Path(__file__).resolve().parents[1] / "build" / "repeated.txt"
        kept.parent.mkdir(exist_ok=True)
        with kept.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
    for line in lines:
        terminalreporter.write_line(line)
