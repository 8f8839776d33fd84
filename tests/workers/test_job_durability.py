"""How often a job's run stores is configured on the queue or on the job."""

import pytest
from kit import cluster
from kit.fleet import Fleet, counting, log_of, until, working

from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.workers import Queue

postgres = cluster.emptied
STEPS = 3


def given(**more):
    return {"log": [], "left": STEPS, **more}


def stored(postgres, thread):
    """How many checkpoints a thread has."""
    with PostgresSaver.from_conn_string(postgres) as saver:
        return len([*saver.list({"configurable": {"thread_id": thread}})])


@pytest.mark.parametrize(("of_queue", "of_job", "checkpoints"), [
    (None, None, STEPS + 2), ("sync", None, STEPS + 2), ("async", None, STEPS + 2), ("exit", None, 1),
    ("exit", "sync", STEPS + 2), (None, "exit", 1),
])  # fmt: skip
def test_a_job_s_durability_is_its_own_or_that_of_the_queue(drive, postgres, of_queue, of_job, checkpoints):
    with Queue.from_conn_string(postgres, counting, durability=of_queue) as queue, working(counting, postgres):
        drive.call(queue, "submit", "t", given(), durability=of_job)
        assert drive.call(queue, "result", "t", wait=30).unwrap()["log"] == [0, 1, 2]
    assert stored(postgres, "t") == checkpoints


def test_a_durability_that_does_not_exist_is_refused_where_it_is_given(postgres):
    wrong = "never"
    match = "durability must be 'sync', 'async' or 'exit', got 'never'"
    with pytest.raises(ValueError, match=match):
        Queue(postgres, counting, durability=wrong)
    with Queue.from_conn_string(postgres, counting) as queue:
        with pytest.raises(ValueError, match=match):
            queue.submit("t", given(), durability=wrong)
        with pytest.raises(ValueError, match=match):
            queue.submit_many([("t", given())], durability=wrong)
        assert queue.counts() == {}


@pytest.mark.parametrize(("durability", "repeated"), [("sync", {1}), ("exit", {0, 1})])
def test_a_killed_worker_s_job_resumes_from_its_last_step_or_starts_again(postgres, tmp_path, durability, repeated):
    """Killed amid the second step. With "exit" nothing was stored, so the first is done again too; either way the
    thread has each step once."""
    with Queue.from_conn_string(postgres, counting) as queue, Fleet(postgres, tmp_path) as workers:
        queue.setup()
        first = workers.start()
        queue.submit("t", given(pause=0.5), durability=durability)
        until(lambda: len(workers.notes.read()) == 2)
        workers.kill(first)
        workers.start()
        found = queue.result("t", wait=30)
        assert (found.unwrap()["log"], found.attempts) == ([0, 1, 2], 2)
        notes = workers.notes.read()
    done = [number for _, number, _ in notes]
    assert {number for number in done if done.count(number) == 2} == repeated
    keys = {number: {key for _, each, key in notes if each == number} for number in range(STEPS)}
    changed = {number for number, each in keys.items() if len(each) > 1}
    assert changed == (repeated if durability == "exit" else set()), "a receiver can drop what has one key"


def test_a_worker_that_shuts_down_gracefully_stores_the_progress_of_an_exit_job(postgres, tmp_path):
    with Queue.from_conn_string(postgres, counting) as queue, Fleet(postgres, tmp_path) as workers:
        queue.setup()
        first = workers.start()
        queue.submit("t", given(pause=0.5), durability="exit")
        until(lambda: len(workers.notes.read()) == 1)
        first.terminate()
        first.join()
        workers.start()
        assert log_of(queue) == [0, 1, 2]
        assert [number for _, number, _ in workers.notes.read()] == [0, 1, 2]
