"""Executors: what can be sent to a worker and what cannot, on our processes, on pools of the user's, on their
threads.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import pickle
import signal
import subprocess
import sys
import types
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Client
from typing import Any

import pytest
from kit import fleet
from kit.executor_suite import *
from kit.graphs import EMPTY, chain_of, thread_config
from kit.programs import output_of

import stategraph
from stategraph import InvalidGraphError, NodeBuilder, Pregel
from stategraph.channels import LastValue
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.executors import (
    ProcessExecutor,
    RemoteCall,
    frames,
    pickling,
    pools,
    resolve_executor,
    serve,
)
from stategraph.executors import processes as processes_module


def process_pool():
    return ProcessPoolExecutor(2, mp_context=forkserver())


def forkserver():
    """There is one in this process, for workers of a queue too: it has loaded what all of them need."""
    fleet.warm_up()
    return fleet.PROCESSES


@pytest.fixture(scope="module")
def processes():
    with ProcessExecutor(2) as found:
        yield found


@pytest.fixture(scope="module")
def pool():
    with process_pool() as found:
        assert found.submit(int).result() == 0  # now its threads are there
        yield found


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2, thread_name_prefix="stategraph") as found:
        yield found


@pytest.fixture(scope="module", params=["processes", "pool", "threads"])
def executor(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=["processes", "pool"])
def far(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def world(drive):
    """For tests that take their time on a cluster."""
    return drive


@pytest.fixture
def elsewhere(executor):
    """Whether functions leave this process."""
    return not isinstance(executor, ThreadPoolExecutor)


@pytest.fixture(scope="module")
def mortal(processes):
    """An executor that outlives its workers."""
    return processes


@pytest.fixture
def ends_for_real(far):
    """Whether a call whose time is up is ended."""
    return isinstance(far, ProcessExecutor)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [3, object(), ProcessPoolExecutor, ProcessExecutor, "process", "inline"])
def test_what_is_no_executor_is_refused_at_once(wrong):
    graph = StateGraph(State).add_node(count).add_edge(START, "count")
    run = graph.compile().invoke
    for give in (graph.compile, partial(StateGraph(State).add_node, count), partial(run, {}), task, entrypoint(executor=wrong)):
        with pytest.raises((TypeError, ValueError), match="executor must be \"threads\", \"processes\""):
            give(where) if isinstance(give, entrypoint) else give(executor=wrong)


def test_every_node_that_cannot_run_there_is_named_at_compile(processes, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    pickling._value_pickler.cache_clear()
    graph = StateGraph(State).add_node("lambda", lambda state: None).add_node(remembers).add_node(count)
    graph.add_node("nested", row(note_a))
    for name in graph.nodes:
        graph.add_edge(START, name)
    with pytest.raises(InvalidGraphError) as caught:
        graph.compile(executor=processes, store=InMemoryStore())
    one, two = caught.value.mistakes
    assert one.startswith("node 'lambda' cannot run on an executor: its function: ") and "install cloudpickle" in one
    assert two == (
        "node 'remembers' cannot run on an executor: its parameter 'store': the store (InMemoryStore) stays with the "
        "driver, because it lives in that process. A SqliteStore in a file (for workers on the driver's machine) or a "
        'PostgresStore can be used there; or give the node executor="threads"'
    )
    app = graph.compile(store=InMemoryStore())
    assert app.invoke(EMPTY)["n"] == 1, "here all of them can run"
    with pytest.raises(InvalidGraphError, match="'lambda'.*\n.*'remembers'"):
        app.invoke({"n": 1}, executor=processes)


def test_a_graph_as_a_node_is_no_function(processes):
    graph = StateGraph(State).add_node("nested", row(count), executor=processes).add_edge(START, "nested")
    with pytest.raises(InvalidGraphError, match="'nested' cannot run on an executor: it is a graph"):
        graph.compile()


def test_lambdas_and_closures_go_by_value(processes):
    step = 5
    assert row(("add", lambda state: {"n": state["n"] + step}), executor=processes).invoke({"n": 1})["n"] == 6


def test_a_function_that_a_task_has_wrapped_goes_by_name():
    blob = pickling.dump_function(square.function)
    assert pickling.loads(blob) is square.function and len(blob) < 200


class KeywordOnly(Exception):
    def __init__(self, a, *, b):
        super().__init__(f"{a} and {b}")
        self.b = b


class NoSuchFile(OSError):
    def __init__(self, path):
        super().__init__(2, "gone", path)


class WithAHint(KeyError):
    def __init__(self, key, hint):
        super().__init__(key)
        self.hint = hint


@pytest.mark.parametrize(
    "error",
    [KeywordOnly(1, b=2), NoSuchFile("/p"), WithAHint("k", "h"), SystemExit(3), StopIteration(5), OSError(2, "x", "f"),
     UnicodeDecodeError("utf-8", b"x", 0, 1, "y"), subprocess.CalledProcessError(1, ["a"], b"o"),
     WorkerLostError("n", "e", 3, "r"), InvalidGraphError(["a", "b"]), ImportError("no", name="m")],
)  # fmt: skip
def test_an_error_is_raised_unchanged(error):
    error.add_note("a note")
    found = pickling.unpack_error(pickling.pack_error(error))
    held = ("args", "code", "errno", "filename", "value", "start", "name")
    assert type(found) is type(error) and str(found) == str(error) and vars(found) == vars(error)
    assert [getattr(found, name, None) for name in held] == [getattr(error, name, None) for name in held]


def test_an_unpicklable_error_is_raised_as_text():
    error = Oops(1)
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    found = pickling.unpack_error(pickling.pack_error(error))
    assert (type(found).__name__, str(found)) == ("RemoteError", "kit.executor_graphs.Oops: oops 1")


# -- processes ----------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_a_task_may_die_three_times_in_each_run(processes, drive, tmp_path):
    app = deadly(executor=processes, checkpointer=InMemorySaver())
    thread = thread_config("1")
    with pytest.raises(WorkerLostError, match="ended by SIGKILL"):
        drive.invoke(app, {"texts": [str(tmp_path / "tries")], "n": 5}, thread)
    assert (tmp_path / "tries").read_text() == "xxx", "exactly"
    assert drive.invoke(app, None, thread)["log"] == ["survived", "a"]
    assert (tmp_path / "tries").read_text() == "xxxxxx"


def test_stopped_pools_leave_no_thread_and_no_file_behind(drive, pool):
    app = row(speaks)

    def listen(pool):
        assert list(drive.stream(app, {"n": 0}, stream_mode="custom", executor=pool))[-1] == "last"
        # The engine's own workers are shared by all runs: how many a run starts depends on how busy they are.
        threads = [thread for thread in threading.enumerate() if thread.name != "stategraph-worker"]
        return len(threads), len(os.listdir("/proc/self/fd"))

    before = listen(pool)
    for _ in range(2):
        with process_pool() as other:
            listen(other)
    del other
    due = time.monotonic() + LONG
    while (now := listen(pool)) > before and time.monotonic() < due:
        time.sleep(0.01)  # threads that have read to the end
    assert now <= before


@pytest.mark.parametrize("made", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_a_pool_that_is_shut_down_amid_a_run_says_so(tmp_path, drive, made):
    """Of three calls one has begun, and perhaps one more lies in the pool's pipe."""
    pool = made(1, **({} if made is ThreadPoolExecutor else {"mp_context": forkserver()}))
    graph = StateGraph(State).add_node(stays)
    graph.add_conditional_edges(START, lambda state: [Send("stays", state)] * 4, ["stays"])

    def shut_down():
        due = time.monotonic() + LONG
        while not [*tmp_path.iterdir()] and time.monotonic() < due:
            time.sleep(0.01)
        pool.shutdown(wait=False, cancel_futures=True)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=shut_down)
    thread.start()
    with pytest.raises((RuntimeError, WorkerLostError), match="was shut down before it began this call|after shutdown"):
        drive.invoke(graph.compile(executor=pool), {"texts": [str(tmp_path)]})
    thread.join()
    pool.shutdown()


def test_a_pool_that_is_broken_says_what_to_do(drive, tmp_path):
    with process_pool() as pool:
        app = row(kills_its_worker, executor=pool)
        for _ in range(2):
            with pytest.raises(WorkerLostError, match=r"cannot be repaired: make a new pool, or use .*ProcessExecutor"):
                drive.invoke(app, {"texts": [str(tmp_path / "tries")], "n": 5})
    assert (tmp_path / "tries").read_text() == "x"


TRIAL = pytest.mark.trial


@pytest.mark.trial
@pytest.mark.parametrize("way", ["script", *(pytest.param(way, marks=TRIAL) for way in ("module", "stdin", "-c"))])
def test_a_script_needs_no_guard(tmp_path, way):
    code = (
        "from stategraph import StateGraph\nfrom typing import TypedDict\nfrom functools import cache\n"
        "class State(TypedDict):\n    n: int\n"
        "class Oops(Exception): pass\n"
        "@cache\ndef step(n): return 1 if n == 0 else step(n - 1)\n"
        "def count(state: State) -> State:\n    if state['n'] == 2: raise Oops\n    return {'n': state['n'] + step(3)}\n"
        "app = StateGraph(State).add_node(count).set_entry_point('count').compile(executor='processes')\n"
        "print(app.invoke({'n': 1}))\n"
        "try:\n    app.invoke({'n': 2})\nexcept Oops:\n    print('oops')\n"
    )
    (tmp_path / "script.py").write_text(code)
    words = {"script": [tmp_path / "script.py"], "module": ["-m", "script"], "stdin": ["-"], "-c": ["-c", code]}[way]
    command = [sys.executable, "-W", "error", *words]
    done = subprocess.run(command, cwd=tmp_path, input=code, capture_output=True, text=True)
    assert (done.stdout.split("\n"), done.stderr) == (["{'n': 2}", "oops", ""], "")


@pytest.mark.trial
def test_unpicklable_globals_of_a_scripts_function_are_reported_at_compile():
    code = (
        "from stategraph import START, StateGraph\nimport threading\n"
        "lock = threading.Lock()\n"
        "def guard(): return lock.locked()\n"
        "def count(state): return {'n': guard()}\n"
        "graph = StateGraph(dict).add_node(count).add_edge(START, 'count')\n"
        "try:\n    graph.compile(executor='processes')\nexcept Exception as error:\n    print(error)\n"
    )
    assert (
        "node 'count' cannot run on an executor: its function, which uses 'guard', which uses 'lock': "
        "cannot pickle '_thread.lock' object"
    ) in output_of(sys.executable, "-W", "error", "-c", code)


def speaks_of_what_is_only_there(state: State):
    module = sys.modules["only_there"] = types.ModuleType("only_there")
    exec("class Thing: ...", vars(module))
    stategraph.get_stream_writer()(module.Thing())


@pytest.mark.trial
def test_an_event_that_the_driver_cannot_load_names_its_node(drive, far):
    why = "node 'speaks_of_what_is_only_there' .* an event: cannot be loaded by the driver: .*No module named 'only_there'"
    with pytest.raises(ShippingError, match=why):
        drive.stream(row(speaks_of_what_is_only_there, executor=far), {}, stream_mode="custom")


def tells_later(state: State):
    """Leaves a thread behind that speaks when it is let."""
    write, folder = stategraph.get_stream_writer(), Path(state["texts"][0])

    def speak():
        while not (folder / "go").exists():
            time.sleep(0.01)
        write("of a call that is over")
        (folder / "told").touch()

    threading.Thread(target=speak, daemon=True).start()


def lets_it_tell(state: State):
    folder = Path(state["texts"][0])
    (folder / "go").touch()
    while not (folder / "told").exists():
        time.sleep(0.01)
    stategraph.get_stream_writer()("of this call")


@pytest.mark.trial
def test_late_messages_of_a_call_are_not_taken_for_another_runs(tmp_path):
    with ProcessExecutor(1) as one:
        for node, heard in ((tells_later, []), (lets_it_tell, ["of this call"])):
            app = row(node, executor=one)
            assert list(app.stream({"texts": [str(tmp_path)]}, stream_mode="custom")) == heard


def test_a_value_nested_too_deep_is_named_briefly(processes):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ShippingError, match=r'state\["log"\]: .*recursion') as caught:
        row(where, executor=processes).invoke({"log": deep})
    assert len(str(caught.value)) < 200


def test_a_closed_executor_says_so(drive):
    with ProcessExecutor(1) as processes:
        app = row(where, executor=processes)
        (pid,) = drive.invoke(app, {})["log"]
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(RuntimeError, match="<ProcessExecutor 1 processes> is closed"):
        drive.invoke(app, {})


@pytest.mark.trial
def test_there_are_no_more_processes_than_wanted(drive):
    with ProcessExecutor(1) as processes:
        graph = StateGraph(State).add_node(where)
        graph.add_conditional_edges(START, lambda state: [Send("where", {})] * 20, ["where"])
        assert len(set(drive.invoke(graph.compile(executor=processes), {})["log"])) == 1
    with pytest.raises(ValueError, match="integer >= 1"):
        ProcessExecutor(0)


@pytest.mark.trial
def test_waiting_for_a_worker_does_not_count_for_a_timeout(drive):
    with ProcessExecutor(1) as processes:
        graph = StateGraph(State).add_node(takes_its_time, timeout=1.2)
        graph.add_conditional_edges(START, lambda state: [Send("takes_its_time", {})] * 4, ["takes_its_time"])
        assert drive.invoke(graph.compile(executor=processes), {})["log"] == ["done"] * 4, "1.6 seconds in all"


def test_a_graph_inside_runs_where_the_one_around_it_does(drive, processes):
    pinned = row(where, executor="threads")
    inside, repeated, here = drive.invoke(
        chain_of(State, inside=row(where), pinned=pinned).compile(executor=processes), {}
    )["log"]
    assert inside == repeated != here == os.getpid()


def test_a_task_runs_where_it_says_or_where_the_run_does(drive, processes):
    @task(executor=processes)
    def far():
        return os.getpid()

    @task(executor="threads")
    def near():
        return os.getpid()

    @entrypoint()
    def flow(_):
        return [f().result() == os.getpid() for f in (pid_of_a_task, far, near)]

    assert drive.invoke(flow, 1) == [True, False, True]
    assert drive.invoke(flow, 1, executor=processes) == [False, False, True]


def test_a_large_value_goes_once_to_each_process_and_is_let_go(drive, monkeypatch):
    sizes = []
    put = frames.Frames.put
    monkeypatch.setattr(frames.Frames, "put", lambda self, frame: (sizes.append(len(frame.body)), put(self, frame))[1])
    graph = StateGraph(State)
    for node, before in (("a", START), ("b", START), ("c", ["a", "b"]), ("d", ["a", "b"])):
        graph.add_node(node, lambda state: {"log": [len(state["texts"])]}).add_edge(before, node)
    with ProcessExecutor(1) as process:
        app = graph.compile(executor=process)
        assert drive.invoke(app, {"texts": [str(n) for n in range(20_000)]})["log"] == [20_000] * 4
        (worker,) = process._workers
    assert len([size for size in sizes if size > 64 * 1024]) == 2  # one for each superstep
    assert len(worker._there) == 1


@pytest.fixture
def hears_ctrl_c():
    """Programs started in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.trial
@pytest.mark.parametrize("made", [two_stay, two_tasks_stay])
def test_ctrl_c_ends_the_calls_under_way(hears_ctrl_c, tmp_path, made):
    def interrupt():
        due = time.monotonic() + LONG
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < due:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)  # a real one: what waits for a lock does not hear of another

    with ProcessExecutor(2) as processes:
        app = made(executor=processes)
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            app.invoke({"texts": [str(tmp_path)]})
        for held in tmp_path.iterdir():
            until_gone(int(held.name.split()[1]))


@pytest.mark.trial
def test_ctrl_c_at_any_line_costs_the_executor_no_worker():
    with ProcessExecutor(1) as pool:
        app = row(where, executor=pool)
        for begin, functions in (
            (lambda: app.invoke({}), {"take", "_claim", "give_back"}),
            (lambda: [pool.drop(worker) for worker in [*pool._workers]], {"take", "_claim"}),
        ):
            for place in itertools.count(1):
                begin()
                if not (line := interrupted_at(place, functions, lambda: app.invoke({}))):
                    break
                gone = [worker for worker in pool._workers if worker not in pool._idle]
                assert not gone and len(pool._workers) <= 1, f"line {line}"


def interrupted_at(place, functions, work):
    """The line of `processes` where the work was interrupted, the so many'th that is run in these functions; 0 if there
    are fewer."""
    lines = []

    def look(frame, event, _):
        if event == "line" and frame.f_code.co_name in functions:
            lines.append(frame.f_lineno)
            if len(lines) == place:
                raise KeyboardInterrupt
        return look

    before = sys.gettrace()
    sys.settrace(lambda frame, *event: look if frame.f_code.co_filename == processes_module.__file__ else None)
    try:
        work()
    except KeyboardInterrupt:
        return lines[-1]
    finally:
        sys.settrace(before)
    return 0


def test_an_executor_that_is_closed_while_a_worker_starts_leaves_none(drive, monkeypatch):
    pool, started, start = ProcessExecutor(1), [], processes_module._Worker.start

    def start_late(worker):
        pool.close()
        start(worker)
        started.append(worker)

    monkeypatch.setattr(processes_module._Worker, "start", start_late)
    with pytest.raises(RuntimeError, match="is closed"):
        drive.invoke(row(where, executor=pool), {})
    (worker,) = started
    assert worker.process.poll() is not None and worker.frames._end.fileno() < 0


def test_a_child_of_a_fork_has_workers_of_its_own(processes):
    app = row(where, executor=processes)
    (ours,) = app.invoke({})["log"]
    end, theirs = multiprocessing.Pipe()

    def run():
        theirs.send((app.invoke({})["log"][0], [worker.frames._end.fileno() < 0 for worker in processes_module._inherited]))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    try:
        assert end.poll(LONG)
        there, closed = end.recv()
    finally:
        child.join(LONG)
    assert there != ours and closed and all(closed), "the pipes of its parent's workers end with its parent"
    assert app.invoke({})["log"] == [ours], "the parent keeps its own"


def test_the_name_of_an_executor_means_one_shared_pool(drive):
    assert resolve_executor("processes") is resolve_executor("processes")
    assert drive.invoke(row(where, executor="processes"), {})["log"] != [os.getpid()]


# -- a place of one's own -----------------------------------------------------------------------------------------


class Inline(stategraph.executors.Executor):
    """Carries bytes to the same thread."""

    name = "inline"

    def __init__(self):
        self.calls = []
        self.shared = []

    def submit(self, call: RemoteCall, on_event):
        self.calls.append(call)
        answer = serve(call.payload, [self.shared[part] for part in call.parts], on_event)

        class Flight:
            def result(self, timeout=None):
                return answer

            def cancel(self): ...

        return Flight()

    def share(self, blob):
        self.shared.append(blob)
        return len(self.shared) - 1


@pytest.mark.parametrize("story", STORIES)
def test_a_custom_executor(drive, story):
    assert play(drive, story, executor=Inline()) == play(drive, story)


def test_a_worker_that_cannot_reach_its_driver_says_so(tmp_path):
    inline = Inline()
    assert list(row(speaks, executor=inline).stream({"n": 0}, stream_mode="custom"))[-1] == "last"
    answer, told = pools.run_call(inline.calls[0].payload, (), (str(tmp_path / "nowhere"), b"key"), "id")
    error = pickling.unpack_error(pickling.loads(answer).error)
    assert "a worker cannot reach its driver" in str(error) and told[1] == 0


@pytest.mark.parametrize(
    "sent", [b"no mail", pickle.dumps("not three"), pickle.dumps((["no id"], "", b""))], ids=["bytes", "text", "list"]
)
def test_mail_that_is_none_ends_its_line_and_no_other(sent, drive, pool):
    mailbox = pools.open_mailbox()
    with Client(mailbox.address, authkey=mailbox.key) as line:
        line.send_bytes(sent)
        assert line.poll(LONG)
        with pytest.raises(EOFError):
            line.recv()
    assert drive.stream(row(speaks, executor=pool), {"n": 0}, stream_mode="custom")[-1] == "last"


def test_a_raw_node_runs_on_an_executor(drive):
    inline = Inline()
    node = NodeBuilder().subscribe_only("a").do(str).do(len).set_executor(inline).write_to("b")
    app = Pregel(nodes={"n": node}, channels={"a": LastValue(int), "b": LastValue(int)}, input_channels="a", output_channels="b")
    assert drive.invoke(app, 12345) == 5
    assert [call.node for call in inline.calls] == ["n"]


def test_only_the_keys_that_a_node_names_go_along(drive):
    class Few(TypedDict):
        n: int

    def few(state: Few):
        return {"log": [sorted(state)]}

    inline = Inline()
    assert drive.invoke(row(("few", few), executor=inline), {"n": 1, "texts": ["x" * 100_000]})["log"] == [["n"]]
    assert inline.shared == [] and len(inline.calls[0].payload) < 3_000


def test_bytes_are_not_pickled(drive):
    """They are not pickled, neither apart nor in the payload; pickled ones are not taken for them."""

    class Blobs(TypedDict):
        large: bytes
        small: bytes
        text: str
        found: list[Any]

    def see(state: Blobs):
        return {"found": [state["large"], state["small"], state["text"]]}

    inline = Inline()
    app = chain_of(Blobs, see=see).compile(executor=inline)
    given = {"large": b"x" * 100_000, "small": pickle.dumps("small"), "text": "y" * 100_000}
    assert drive.invoke(app, given)["found"] == [*given.values()]
    assert inline.shared[0] is given["large"]


def test_a_send_of_nothing_but_bytes_arrives(drive):
    class Found(TypedDict, total=False):
        found: Annotated[list[int], operator.add]

    def measure(blob):
        return {"found": [len(blob)]}

    def sends(state: Found):
        return [Send("measure", b"x" * size) for size in (1, 100_000)]

    graph = StateGraph(Found).add_node(measure).add_conditional_edges(START, sends, ["measure"])
    assert drive.invoke(graph.compile(executor=Inline()), {})["found"] == [1, 100_000]


# -- drivers that die ---------------------------------------------------------------------------------------------


def is_free(path):
    """Whether no process holds the lock of this file."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.trial
def test_another_driver_resumes_after_a_kill(processes, drive, tmp_path):
    code = f"from kit import executor_graphs; executor_graphs.be_a_driver({str(tmp_path)!r})"
    driver = subprocess.Popen([sys.executable, "-c", code])
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        app = six_tasks(checkpointer=saver, executor=processes)
        due = time.monotonic() + LONG
        try:
            while time.monotonic() < due and not (
                sum(t.result is not None for t in app.get_state(ONE_BY_ONE).tasks) >= 3 and (tmp_path / "held").exists()
            ):
                time.sleep(0.01)
        finally:
            driver.kill()
            driver.wait()
        try:
            while not is_free(tmp_path / "held"):
                assert time.monotonic() < due, "the worker has outlived its driver"
                time.sleep(0.01)
        finally:
            (tmp_path / "over").touch()
        assert drive.invoke(app, None, ONE_BY_ONE)["log"] == [0, 1, 2, 3, 4, 5]
    assert (tmp_path / "log").read_text().split() == ["0", "1", "2", "3", "3", "4", "5"]


def test_an_effect_needs_an_executor_that_brings_answers(drive, tmp_path):
    with pytest.raises(RuntimeError, match=r"runtime.once\('charge'\) needs an answer from the driver.*`send_request`.*\"processes\""):
        drive.invoke(paying(pays, Inline(), InMemorySaver()), {"texts": [str(tmp_path)]}, CONFIG)
    assert charged(tmp_path) == []


def test_an_effect_on_a_pool_needs_the_parameter(drive, pool, tmp_path):
    """By which the driver knows that the call needs a way back; a process has one anyway."""
    with pytest.raises(RuntimeError, match=r"must have a parameter `runtime: Runtime`"):
        drive.invoke(paying(pays_without_the_parameter, pool, InMemorySaver()), {"texts": [str(tmp_path)]}, CONFIG)
    assert charged(tmp_path) == []
    app = paying(pays_without_the_parameter, "processes", InMemorySaver())
    assert drive.invoke(app, {"texts": [str(tmp_path)]}, CONFIG)["log"] == ["receipt for book"]
