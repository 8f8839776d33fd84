"""A run id on a queue is scoped to its thread, and a thread belongs to one graph: all pairs."""

from contextlib import ExitStack

import pytest
from kit import cluster
from kit.fleet import counting, log_of, queue_at_work

from stategraph.__main__ import main
from stategraph.workers import Queue

postgres = cluster.emptied
GIVEN = {"log": [], "left": 2}
PLACES = [(graph, thread) for graph in ("a", "b") for thread in ("t", "u")]


@pytest.fixture
def queues(postgres):
    with ExitStack() as stack:
        yield {name: stack.enter_context(Queue.from_conn_string(postgres, name)) for name in ("a", "b")}


@pytest.mark.parametrize("first", PLACES)
@pytest.mark.parametrize("second", PLACES)
def test_a_reused_run_id_is_one_job_two_jobs_or_an_error(queues, first, second):
    (graph, thread), (again, other) = first, second
    queues[graph].submit(thread, GIVEN, run_id="r")
    if thread == other and graph != again:
        with pytest.raises(ValueError, match=f"the job 'r' of thread '{thread}' belongs to the graph '{graph}'"):
            queues[again].submit_many([("v", GIVEN), (other, GIVEN)], run_ids=["s", "r"])
        assert again not in queues[again].counts(), "none was submitted"
        return
    queues[again].submit(other, GIVEN, run_id="r")
    assert sum(counts["waiting"] for counts in queues["a"].counts().values()) == (1 if first == second else 2)
    for name, of in ((graph, thread), (again, other)):
        found = queues[name].result(of, run_id="r", wait=0)
        assert (found.graph, found.thread_id) == (name, of)


def test_two_threads_under_one_run_id_are_both_run(postgres):
    with queue_at_work(counting, postgres) as queue:
        queue.submit_many([("t", GIVEN), ("u", {"log": [7], "left": 3})], run_ids=["r", "r"])
        assert log_of(queue, "r") == [0, 1]
        assert queue.result("u", run_id="r", wait=30).unwrap()["log"] == [7, 1, 2]


@pytest.mark.parametrize("mine", PLACES)
@pytest.mark.parametrize("asked", PLACES)
def test_nothing_reaches_a_job_of_another_graph_or_thread(queues, mine, asked):
    graph, thread = asked
    queues[mine[0]].submit(mine[1], GIVEN, run_id="r")
    queue = queues[graph]
    if mine == asked:
        assert queue.result(thread, wait=0).open and queue.result(thread, run_id="r", wait=0).open
        assert not queue.retry("r", thread_id=thread)
        assert queue.cancel("r", thread_id=thread)
        assert queue.forget() == 1
        return
    for named in ({}, {"run_id": "r"}):
        with pytest.raises(LookupError, match="has no job"):
            queue.result(thread, wait=0, **named)
    assert not queue.cancel("r", thread_id=thread) and not queue.retry("r", thread_id=thread)
    assert queues[mine[0]].cancel("r")
    if mine[0] != graph:
        assert not queue.cancel("r") and queue.forget() == 0
    assert queues[mine[0]].forget() == 1


def test_a_run_id_of_several_threads_is_cancelled_by_thread(queues):
    queue = queues["a"]
    queue.submit_many([("t", GIVEN), ("u", GIVEN)], run_ids=["r", "r"])
    for call in (queue.cancel, queue.retry):
        with pytest.raises(ValueError, match="of the threads 't', 'u' have the run_id 'r': pass thread_id"):
            call("r")
    assert queue.cancel("r", thread_id="u")
    assert [queue.result(thread).status for thread in ("u",)] == ["cancelled"]
    assert queue.result("t", wait=0).status == "waiting"


def test_the_command_line_names_a_job_by_thread_and_queue(queues, postgres, capsys):
    queues["a"].submit("t", GIVEN, run_id="r")
    queues["b"].submit("u", GIVEN, run_id="r")
    with pytest.raises(SystemExit):
        main(["queue", "--db", postgres, "--cancel", "r"])
    assert "thread 't' of 'a', thread 'u' of 'b'; say which" in capsys.readouterr().err
    assert main(["queue", "--db", postgres, "--cancel", "r", "--as", "b"]) == 0
    assert main(["queue", "--db", postgres, "--cancel", "r", "--thread", "t"]) == 0
    assert capsys.readouterr().out.splitlines() == ["r: cancelled"] * 2
    assert main(["queue", "--db", postgres, "--forget", "0", "--as", "b"]) == 0
    assert main(["queue", "--db", postgres, "--forget", "0"]) == 0
    assert capsys.readouterr().out.splitlines() == ["forgot 1 jobs"] * 2
