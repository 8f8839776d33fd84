"""Several versions of a graph in one fleet: a thread stays with its version until a run of it is done, new ones are
shared out, and what nobody serves is told.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
from kit.fleet import until, working
from kit.graphs import Log, chain_of, graph_of

from stategraph import Command, interrupt
from stategraph.__main__ import main
from stategraph.workers import Queue, Worker


def shop(version):
    """A graph that asks, and whose nodes tell its version."""

    def ask(state):
        return {"log": [version, interrupt("go?")]}

    def pay(state):
        return {"log": [version]}

    return chain_of(Log, ask=ask, pay=pay).compile(name="shop", version=version)


@pytest.fixture
def queue(postgres):
    with Queue.from_conn_string(postgres, "shop", serde=shop(None).serde) as opened:
        opened.setup()
        yield opened


def submit(queue, *names, given=None):
    """The logs of threads after another run of each."""
    runs = [queue.submit(name, given or {"log": []}) for name in names]
    return [queue.result(name, run_id=run, wait=60).value["log"] for name, run in zip(names, runs, strict=True)]


def test_an_answer_goes_to_the_version_that_asked(postgres, queue):
    names = [f"t{number}" for number in range(6)]
    with working(shop("1"), postgres):
        submit(queue, *names)
    with working(shop("2"), postgres):
        answers = [queue.submit(name, Command(resume="yes")) for name in names]
        assert submit(queue, "new") == [[]]  # it asks
        assert {(job.status, job.attempts) for job in queue.jobs()} == {("waiting", 0)}
        with working(shop("1"), postgres):
            found = [queue.result(name, run_id=run, wait=60) for name, run in zip(names, answers, strict=True)]
        assert all(each.value["log"] == ["1", "yes", "1"] for each in found)
        assert submit(queue, "new", given=Command(resume="yes")) == [["2", "yes", "2"]]
        # At rest a thread is free.
        assert submit(queue, "t0") == [["1", "yes", "1"]]
        assert submit(queue, "t0", given=Command(resume="ok"))[0][3:] == ["2", "ok", "2"]


def test_a_worker_continues_the_threads_of_versions_that_it_serves(postgres, queue):
    with working(shop("1"), postgres):
        submit(queue, "t")
    with working(shop("2"), postgres, serves=["1"]):
        assert submit(queue, "t", given=Command(resume="yes")) == [["2", "yes", "2"]]


def test_a_graph_without_a_version_leaves_those_of_versions_alone(postgres, queue):
    with working(shop("1"), postgres):
        submit(queue, "t")
    with working(shop(None), postgres):
        run = queue.submit("t", Command(resume="yes"))
        assert submit(queue, "free") == [[]]
        assert [job.run_id for job in queue.jobs()] == [run]
    with working(shop("1"), postgres):
        assert queue.result("t", run_id=run, wait=60).value["log"] == ["1", "yes", "1"]


@pytest.mark.trial
def test_new_threads_go_to_the_newest_version_or_a_share_of_them(postgres, queue):
    with ExitStack() as fleet:
        for version in "12":
            fleet.enter_context(working(shop(version), postgres))
            until(lambda version=version: [each.version for each in queue.versions()][:1] == [version])

        def count_new(percent, place):
            assert queue.ramp(percent) == "2"
            names = [f"{place}{number}" for number in range(40)]
            submit(queue, *names)
            return sum(log[0] == "2" for log in submit(queue, *names, given=Command(resume="yes")))

        assert count_new(100, "all ") == 40
        assert count_new(0, "none ") == 0
        assert 2 <= count_new(30, "some ") <= 25


def test_versions_tell_what_waits_and_what_nobody_serves(postgres, queue, capsys):
    with working(shop("1"), postgres):
        submit(queue, "t", "u")
    with working(shop("2"), postgres):
        queue.submit("t", Command(resume="yes"))
        until(lambda: len(queue.versions()) == 2)
        second, first = queue.versions()
        assert (second.version, second.drained, second.workers) == ("2", True, 1)
        assert (first.version, first.jobs, first.paused, first.abandoned) == ("1", 1, 1, True)
        assert main(["queue", "--db", postgres, "--versions"]) == 0
        out = capsys.readouterr().out
        assert "version 1\t1 jobs, 1 paused threads" in out and "NOT SERVED by any worker" in out
        assert "version 2\tdrained\tserved by 1" in out
        assert main(["queue", "--db", postgres, "--as", "shop", "--ramp", "10%"]) == 0
        assert "version 2 takes 10% of the new threads" in capsys.readouterr().out
        assert main(["queue", "--db", postgres, "--as", "shop", "--rollback"]) == 0
        assert queue.versions()[0].share == 0


@pytest.mark.parametrize("last", [None, "1"])
def test_a_job_that_the_newest_version_cannot_run_is_left_to_any_other(postgres, queue, last):
    """A thread of before there were versions, which the newest cannot continue."""
    with working(shop(None), postgres):
        submit(queue, "t")
    other = graph_of(Log, "S>other").compile(name="shop", version="2")
    with working(other, postgres):
        run = queue.submit("t", Command(resume="yes"))
        until(lambda: [job.attempts for job in queue.jobs()] == [1])
        until(lambda: [job.status for job in queue.jobs()] == ["waiting"])
        with working(shop(last), postgres):
            assert queue.result("t", run_id=run, wait=60).value["log"] == [last, "yes", last]


def test_serving_other_versions_needs_one_of_its_own(postgres):
    with pytest.raises(ValueError, match="serves= needs a graph with a version"):
        Worker(shop(None), postgres, serves=["1"])


@pytest.mark.parametrize("part", ["workers", "threads"])
def test_a_worker_ends_when_a_newer_release_has_changed_the_tables(postgres, queue, caplog, part):
    worker = Worker(shop(None), postgres, poll=0.05)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(worker.run)
        assert submit(queue, "t") == [[]]
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"INSERT INTO stategraph_migrations VALUES ('{part}', 1000)")
        assert ended.result(60) is None
    assert "takes no more jobs: a newer stategraph has changed the tables" in caplog.text
    queue.submit("t", Command(resume="yes"), run_id="later")
    assert [job.status for job in queue.jobs()] == ["waiting"]
