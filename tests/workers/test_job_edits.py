"""A started job whose thread was edited since: its worker died, it sleeps, or it was cancelled."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kit.fleet import job_of
from kit.graphs import CONFIG, Log, chain_of

from stategraph import InMemorySaver, Runtime
from stategraph.checkpoint import CheckpointConflictError
from stategraph.checkpoint.integrity import Integrity
from stategraph.checkpoint.serde import Serializer
from stategraph.pregel.clock import CLOCK
from stategraph.upgrade import Migration, prove
from stategraph.upgrade.proof import apply_migration
from stategraph.workers.jobs import JobCodec
from stategraph.workers.runner import JobRunner

FORM = JobCodec(Serializer(), Integrity())


class World:
    """A graph of two nodes on a thread with a past, and a job of it. Something happens in its second node."""

    def __init__(self):
        self.ahead = []
        self.naps = False
        self.app = chain_of(Log, first=self.first, second=self.second).compile(InMemorySaver())
        self.app.invoke({"log": ["past"]}, CONFIG)
        self.runner = JobRunner(self.app, FORM, lambda job, task: None)

    def first(self, state: Log):
        return {"log": ["first"]}

    def second(self, state: Log, runtime: Runtime):
        if self.ahead:
            self.ahead.pop()(self)
        if self.naps:
            runtime.sleep(timedelta(days=1))
        return {"log": ["second"]}

    def run(self, attempt=1):
        """How the job ends, and its value or its error."""
        job = job_of(FORM, {"log": ["job"]}, attempt)
        end = self.runner.run(job)
        if end.status == "waiting":
            return end.status, None
        value, _, error = FORM.read("outcome", job.name, end.outcome)
        return end.status, error or value

    @property
    def log(self):
        """What the thread holds after its past."""
        log = self.app.get_state(CONFIG).values["log"]
        return log[log.index("past") + 3 :]


def edit(world: World):
    """The state is changed; what was to run still is."""
    world.app.update_state(CONFIG, {"log": ["edit"]}, as_node="first")


def finish_by_hand(world: World):
    """The edit leaves nothing to do."""
    world.app.update_state(CONFIG, {"log": ["edit"]}, as_node="second")


def call(world: World):
    """Another run drops what was to do."""
    world.app.invoke({"log": ["call"]}, CONFIG)


def die(world: World):
    raise KeyboardInterrupt


@pytest.fixture
def world():
    return World()


def test_a_run_that_is_edited_while_running_continues_from_the_edit(world):
    world.ahead = [edit]
    status, value = world.run()
    assert (status, value["log"][-1]) == ("done", "second")
    assert world.log == ["job", "first", "edit", "second"]


@pytest.mark.parametrize("edits", [1, 2])
def test_a_job_whose_worker_died_resumes_from_an_edit(world, edits):
    world.ahead = [die]
    assert world.run()[0] == "failed"
    for _ in range(edits):
        edit(world)
    assert world.run(attempt=2)[0] == "done"
    assert world.log == ["job", "first", *["edit"] * edits, "second"]
    assert world.run(attempt=3)[0] == "done", "and then nothing is done again"
    assert world.log == ["job", "first", *["edit"] * edits, "second"]


def test_a_sleeping_job_resumes_from_an_edit(world, monkeypatch):
    world.naps = True
    assert world.run()[0] == "sleeping"
    world.app.update_state(CONFIG, {"log": ["edit"]})
    assert world.app.get_state(CONFIG).next == ("second",)
    later = CLOCK.time() + timedelta(days=2).total_seconds()
    monkeypatch.setattr(CLOCK, "time", lambda: later)
    assert world.run(attempt=2)[0] == "done"
    assert world.log == ["job", "first", "edit", "second"]


@pytest.mark.parametrize("happens", [call, finish_by_hand])
@pytest.mark.parametrize("dead", [True, False])
def test_a_job_whose_work_was_dropped_does_not_count_as_done(world, happens, dead):
    world.ahead = [die if dead else happens]
    ended = world.run()
    if dead:
        happens(world)
        ended = world.run(attempt=2)
    assert ended[0] == "failed" and isinstance(ended[1], CheckpointConflictError)
    assert world.log in (["job", "first", "call", "first", "second"], ["job", "first", "edit"])


@pytest.mark.parametrize("happens", [call, edit, finish_by_hand])
def test_a_job_that_had_ended_shows_what_it_had(world, happens):
    assert world.run()[0] == "done"
    happens(world)
    before = world.log
    assert world.run(attempt=2) == ("done", {"log": ["past", "first", "second", "job", "first", "second"]})
    assert world.log == before


@pytest.mark.parametrize("schedule", ["supersteps", "ready"])
@pytest.mark.parametrize("node", ["first", "second"])
def test_a_job_of_a_thread_that_a_newer_version_has_converted_is_left_to_its_workers(schedule, node):
    saver, dead = InMemorySaver(), []

    def work(name):
        def run(state: Log):
            if name == node and not dead:
                dead.append(name)
                raise KeyboardInterrupt
            return {"log": [name]}

        return run

    options = {"checkpointer": saver, "schedule": schedule}
    migration = Migration().rename_node("first", "one").rename_node("second", "two")
    old = chain_of(Log, first=work("first"), second=work("second")).compile(**options)
    new = chain_of(Log, one=work("first"), two=work("second")).compile(**options, migrate=migration)
    runners = [JobRunner(app, FORM, lambda job, task: None) for app in (old, new)]
    job = job_of(FORM, {"log": ["job"]})
    assert runners[0].run(job).status == "failed"
    [verdict] = prove(new, old).verdicts
    assert apply_migration(new, verdict)
    assert runners[0].run(job_of(FORM, {"log": ["job"]}, 2)).status == "left"
    assert runners[1].run(job_of(FORM, {"log": ["job"]}, 3)).status == "done"
    assert new.get_state(CONFIG).values["log"] == ["job", "first", "second"]
