"""Bugs planted into schedule="ready": its tables and laws notice each of them."""

import pytest
import test_ready_edits as edits
import test_ready_exit as exits
import test_ready_features as features
import test_ready_properties as laws
import test_ready_races as races
from hypothesis import Phase, given, settings
from kit import flow_graphs
from kit.drive import Drive
from kit.planted import is_misfit
from kit.ready_graphs import build, ends_in, ready, show
from test_ready import EMPTY, EXAMPLES
from test_ready import test_a_task_reads_the_state_in_which_it_has_started as check_what_is_read
from test_ready_deferred import GRAPHS as DEFERRED
from test_ready_deferred import nowhere
from test_ready_exit import CALLED
from test_ready_joins import ONE_BY_ONE as JOINS

import stategraph.pregel.run.origins as origins
import stategraph.pregel.run.recording as recording
import stategraph.pregel.schedule.joins as joins
import stategraph.pregel.schedule.races as race
import stategraph.pregel.schedule.rules as rules
from stategraph import InMemorySaver
from stategraph.pregel.run.recording import Recording
from stategraph.pregel.run.run import Run
from stategraph.pregel.schedule.joins import BarrierTransition
from stategraph.pregel.schedule.machine import Machine
from stategraph.pregel.schedule.races import Races
from stategraph.pregel.schedule.slots import OpenTasks
from stategraph.pregel.task.task import in_path_order

pytestmark = [pytest.mark.trial, pytest.mark.filterwarnings("ignore")]
CONFIG = {"configurable": {"thread_id": "t"}, "recursion_limit": 40}


def symptoms():
    """What does not come out as the tables and laws say, found as one asks for more."""
    table = {name: (graph, *rest, "") for name, (graph, *rest) in EXAMPLES.items()}
    for name, (graph, deferred, steps) in DEFERRED.items():
        table[f"deferred: {name}"] = graph, dict.fromkeys("xy", nowhere), [*"abcxyzw"], steps, deferred
    graphs = {
        name: (build(graph, routes, deferred=deferred), order, steps)
        for name, (graph, routes, order, steps, deferred) in table.items()
    }
    for name, (graph, script, order, steps) in JOINS.items():
        graphs[f"join: {name}"] = flow_graphs.build(graph, script), order, steps
    for name, (builder, order, steps) in graphs.items():
        app = ready(builder)
        try:
            with ends_in(*order):
                app.invoke(EMPTY, CONFIG)
            if show([*app.get_state_history(CONFIG)]) != steps:
                yield name, "other steps"
        except Exception as error:
            yield name, error
    sync = Drive(is_async=False)
    for check in (
        check_what_is_read,
        races.test_losers_leave_with_the_end_of_the_winner,
        races.test_no_state_has_a_winner_and_a_loser,
        races.test_a_handler_runs_when_no_other_racer_can_win,
        races.test_a_race_whose_racers_all_failed_is_a_failure_and_with_finish_the_others_continue,
        races.test_a_breakpoint_stops_a_whole_race,
        races.test_losers_count_in_no_join_and_block_none,
        races.test_a_deferred_node_does_not_wait_for_losers,
    ):
        races.RAN.clear()
        try:
            check(sync, **({"wait": "reachable"} if "join" in check.__name__ else {}))
        except BaseException as error:  # also "did not raise"
            yield check.__name__, error
    CALLED.clear()
    try:
        exits.test_finished_work_is_not_repeated(sync, InMemorySaver(), "exit", "exit")
        features.test_a_nested_graph_resumes_where_it_stopped(sync, InMemorySaver(), "ready", "ready", exits.EXIT)
        exits.test_a_run_resumes_from_a_checkpoint_of_a_nested_graph(sync, InMemorySaver(), "ready")
        exits.test_a_call_that_ends_stores_one_checkpoint(sync, InMemorySaver())
        edits.test_a_task_that_resumes_after_an_edit_keeps_its_id_for_itself(sync)
    except BaseException as error:  # also "did not raise"
        yield "exit or edit", error
    try:
        races.test_found_together_the_first_in_path_order_wins()
    except Exception as error:
        yield "who wins of those found together", error
    few = settings(max_examples=30, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
    for law in (
        laws.test_stopped_anywhere_and_resumed_is_never_stopped,
        laws.test_the_tasks_and_the_final_state_are_as_in_supersteps,
        laws.test_one_at_a_time_the_history_is_a_function_of_the_input,
    ):
        inner = law.hypothesis.inner_test  # type: ignore[attr-defined]
        values = law.hypothesis._given_kwargs  # type: ignore[attr-defined]
        try:
            few(given(**values)(inner))()
        except BaseException as error:
            yield law.__name__, error


def noticed():
    """The first symptom that is no misfit of the patch."""
    return next((found for found in symptoms() if not is_misfit(found[1])), None)


def nothing_holds(waiting, running, holders):
    return list(waiting)


def everything_holds(waiting, running, holders):
    return [] if running else list(waiting)


def start_again_from_the_head(run, found):
    origins.requeue_stored(run.machine, found.checkpoint)


def read_the_present(self, machine, found=None):
    return self


def consume_at_the_end(self, tasks):
    if self.open is None:
        apply(self, tasks)
        return
    self.open.starting, starting = list(tasks), self.open.starting
    apply(self, tasks)
    self.open.starting = [task for task in starting if task not in tasks]


def wake_all(self, fresh):
    self.finish_channels(fresh, self.program.kinds.finishers)


def without(name, method):
    """The method of a transition that does not know this of it."""

    def forgetful(self, *args):
        known = getattr(self, name)
        setattr(self, name, ())
        try:
            return method(self, *args)
        finally:
            setattr(self, name, known)

    return forgetful


def end_waves_at_once(machine, *args):
    machine.open, open_tasks = None, machine.open
    store_waves(machine, *args)
    machine.open = open_tasks


def keep_slots(self, task):
    leave(self, task)


def store_each_step(self, *args):
    init(self, *args)
    self.exits, self.stores_steps = False, self.exits or self.stores_steps


def end_at_once(self, states):
    return [task for task, state in states.items() if state == "aside"]


def start_apart(send):
    return None


def lose_no_slot(self, winners):
    return ()


apply, leave, init, store_waves = Machine.apply, OpenTasks._leave, Recording.__init__, joins._store_waves
BUGS = {
    "nobody waits for anybody": (rules, "find_free", nothing_holds),
    "everybody waits for all that runs": (rules, "find_free", everything_holds),
    "a resume starts from the newest state": (origins, "take_up", start_again_from_the_head),
    "tasks read the state as it goes on": (Run, "pin_to", read_the_present),
    "a trigger that waits expires": (Machine, "held_triggers", lambda self: set()),
    "triggers are consumed at the end": (Machine, "apply", consume_at_the_end),
    "deferred nodes wake at once": (Machine, "_finish", wake_all),
    "an open task is never late": (BarrierTransition, "_find_late", without("left", BarrierTransition._find_late)),
    "an open task holds no join back": (BarrierTransition, "_find_blockers", without("left", BarrierTransition._find_blockers)),
    "a wave ends when its join opens": (joins, "_store_waves", end_waves_at_once),
    "what ends with the start of a wave is not late": (BarrierTransition, "_comes_late", without("left_joins", BarrierTransition._comes_late)),
    "a slot is not emptied": (OpenTasks, "_leave", keep_slots),
    "what goes on after an edit shares its id": (origins, "KEPT", "nothing"),
    "with durability exit records are left behind": (Recording, "_carry", lambda *given: []),
    "with durability exit nobody knows what goes on in the stored checkpoint": (recording, "CONTINUES", "nothing"),
    "with durability exit each step is stored": (Recording, "__init__", store_each_step),
    "losers stay open": (Machine, "find_losers", lose_no_slot),
    "losers hold joins back": (joins, "BarrierTransition", lambda *args, lost=(), **named: BarrierTransition(*args, **named)),
    "a failure counts before the race is over": (Races, "note_failure", lambda self, task: True),
    "a handler does not wait for the race": (Races, "take_over", end_at_once),
    "racers start one by one": (rules, "race_of_send", start_apart),
    "the last in path order wins": (race, "in_path_order", lambda tasks: [*reversed(in_path_order(tasks))]),
}


def test_without_a_bug_nothing_is_noticed():
    assert [*symptoms()] == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(monkeypatch, bug):
    target, name, replacement = BUGS[bug]
    monkeypatch.setattr(target, name, replacement)
    assert noticed()

