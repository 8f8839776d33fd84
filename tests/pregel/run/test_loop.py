"""The loop driven by hand: which effects it asks for, in which order, and what it does with the answers."""

from __future__ import annotations

import operator

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG

from stategraph.channels import BinaryOperatorAggregate, LastValue
from stategraph.checkpoint import InMemorySaver
from stategraph.pregel import (
    GraphRecursionError,
    NodeBuilder,
    Pregel,
)
from stategraph.pregel.run.config import Call
from stategraph.pregel.run.effects import Load, Save, Work
from stategraph.pregel.run.loop import carry_out
from stategraph.pregel.run.run import Run


def only(channel):
    return NodeBuilder().subscribe_only(channel)


def graph(nodes, saver=None, **kwargs):
    channels = {k: LastValue(int) for k in "abcd"}
    channels["log"] = BinaryOperatorAggregate(list, operator.add)
    return Pregel(
        nodes=nodes, channels=channels, input_channels="a", output_channels="log", checkpointer=saver, **kwargs
    )


def chain(saver=None, **kwargs):
    return graph({"n1": only("a"), "n2": only("b"), "n3": only("c")}, saver, **kwargs)


def parallel(saver=None):
    return graph({"x": only("a"), "y": only("a"), "z": only("a")}, saver)


class Saver(InMemorySaver):
    """Not quick, as far as the loop knows: early finishers are recorded."""

    in_memory = False


WAYS = {"n1": [("b", 1), ("log", ["n1"])], "n2": [("c", 1), ("log", ["n2"])], "n3": [("log", ["n3"])]}


class Hand:
    """Answers effects by hand and notes them.

    Args:
        outcome: what becomes of each task; by default it finishes with the writes of WAYS.
        together: whether all tasks of a superstep end at once, or one by one where the loop wants to know of each.
    """

    def __init__(self, outcome=None, *, together=True):
        self.outcome = outcome
        self.together = together
        self.notes = []
        self.waiting = []

    def run(self, app: Pregel, input, config=CONFIG, **call):
        run = Run(app, input, config, Call(**call))
        for effect in carry_out(run):
            self.answer(run, effect)
        return run

    def answer(self, run, effect):
        saver = run.thread.saver
        if isinstance(effect, Load):
            self.notes.append("load")
            effect.found = saver.get_tuple(run.settings.config)
            effect.head = saver.head(CONFIG)
        elif isinstance(effect, Save) and effect.commit is not None:
            self.notes.append(f"commit {effect.commit.metadata['source']} {effect.commit.metadata['step']}")
            saver.commit([effect.commit])
        elif isinstance(effect, Save):
            self.notes.append("record " + " ".join(sorted({c for w in effect.writes for c, _ in w[2]})))
            saver.record((run.thread.thread_id, run.ns), None, {effect.checkpoint_id: effect.writes})
        else:
            self.tasks(effect, together=self.together or not run.watched)

    def tasks(self, effect: Work, *, together):
        if not self.waiting:
            self.waiting = list(effect.tasks)
            self.notes.append("run " + " ".join(t.name for t in effect.tasks))
        ended, self.waiting = (self.waiting, []) if together else (self.waiting[:1], self.waiting[1:])
        for task in ended:
            self.end(task)
        effect.finished, effect.open = ended, len(self.waiting)

    def end(self, task):
        outcome = self.outcome(task) if self.outcome else None
        if isinstance(outcome, BaseException):
            task.error = outcome
        else:
            task.writes = list(WAYS.get(task.name, []) if outcome is None else outcome)
            task.finished = True


# -- order of effects -----------------------------------------------------------------------------------------


def test_without_saver_the_loop_only_runs_tasks():
    hand = Hand()
    run = hand.run(chain(), 1, None)
    assert hand.notes == ["run n1", "run n2", "run n3"]
    assert run.machine.output("log") == ["n1", "n2", "n3"]


def test_load_then_input_then_a_commit_after_each_superstep():
    hand = Hand()
    hand.run(chain(InMemorySaver()), 1)
    assert hand.notes == [
        "load", "commit input -1", "run n1", "commit loop 0", "run n2", "commit loop 1", "run n3", "commit loop 2",
    ]  # fmt: skip


def test_early_finishers_are_recorded_while_others_run_and_the_last_goes_with_the_commit():
    hand = Hand(lambda task: [("log", [task.name])], together=False)
    hand.run(parallel(Saver()), 1)
    assert hand.notes == ["load", "commit input -1", "run x y z", "record log", "record log", "commit loop 0"]


def test_a_quick_saver_needs_no_early_records():
    hand = Hand(lambda task: [("log", [task.name])], together=False)
    hand.run(parallel(InMemorySaver()), 1)
    assert hand.notes == ["load", "commit input -1", "run x y z", "commit loop 0"]


def test_an_error_in_the_input_stops_before_anything_is_stored():
    hand = Hand()
    app = chain(InMemorySaver())
    with pytest.raises(ValueError):
        hand.run(app, 1, interrupt_before=["nope"])
    assert hand.notes == []


# -- the limit (D2) -------------------------------------------------------------------------------------------


def ran(hand: Hand):
    return [note[4:] for note in hand.notes if note.startswith("run ")]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_limit_of_n_allows_n_supersteps_and_raises_only_if_work_is_left(limit):
    hand, app = Hand(), chain(InMemorySaver())
    config = {**CONFIG, "recursion_limit": limit}
    if limit < 3:
        with pytest.raises(GraphRecursionError, match=f"limit of {limit} supersteps.*work left: n{limit + 1}"):
            hand.run(app, 1, config)
    else:
        hand.run(app, 1, config)
    assert ran(hand) == ["n1", "n2", "n3"][:limit]


# -- breakpoints ----------------------------------------------------------------------------------------------


def stops(app: Pregel, **options):
    """The nodes that run between two stops, until a call runs nothing."""
    found = []
    given = 1
    while True:
        hand = Hand()
        run = hand.run(app, given, **options)
        found.append(ran(hand))
        given = None
        if run.output.questions is None:
            return found
        assert run.output.questions == ()


@each_case(
    "options, expected",
    [
        ({}, [["n1", "n2", "n3"]]),
        ({"interrupt_before": ["n2"]}, [["n1"], ["n2", "n3"]]),
        ({"interrupt_before": "n2"}, [["n1"], ["n2", "n3"]]),
        ({"interrupt_before": "*"}, [[], ["n1"], ["n2"], ["n3"]]),
        ({"interrupt_before": ["n1"]}, [[], ["n1", "n2", "n3"]]),
        ({"interrupt_after": ["n1"]}, [["n1"], ["n2", "n3"]]),
        ({"interrupt_after": "*"}, [["n1"], ["n2"], ["n3"], []]),
        ({"interrupt_after": ["n3"]}, [["n1", "n2", "n3"], []]),
        ({"interrupt_after": ["n1"], "interrupt_before": ["n2"]}, [["n1"], ["n2", "n3"]]),
    ],
)
def test_where_a_run_stops(options, expected):
    assert stops(chain(InMemorySaver()), **options) == expected


def test_breakpoints_of_the_graph_hold_and_a_call_may_switch_them_off():
    app = chain(InMemorySaver(), interrupt_before_nodes=["n2"], interrupt_after_nodes=["n2"])
    assert stops(app) == [["n1"], ["n2"], ["n3"]]
    app = chain(InMemorySaver(), interrupt_before_nodes=["n2"], interrupt_after_nodes="*")
    assert stops(app, interrupt_before=[], interrupt_after=[]) == [["n1", "n2", "n3"]]


def test_a_breakpoint_before_one_node_pauses_its_whole_superstep():
    hand = Hand()
    hand.run(parallel(InMemorySaver()), 1, interrupt_before=["y"])
    assert ran(hand) == []


def test_a_stop_after_a_node_that_wrote_nothing():
    hand = Hand(lambda task: [])
    run = hand.run(chain(InMemorySaver()), 1, interrupt_after=["n1"])
    assert (ran(hand), run.output.questions) == (["n1"], ())


def test_new_input_stops_again():
    app = chain(InMemorySaver())
    for _ in range(2):
        hand = Hand()
        hand.run(app, 1, interrupt_before=["n2"])
        assert ran(hand) == ["n1"]


# -- failure --------------------------------------------------------------------------------------------------


def failing(*names):
    return lambda task: ValueError(f"{task.name} failed") if task.name in names else [("log", [task.name])]


def test_m19_one_failure_applies_nothing_and_keeps_what_siblings_wrote():
    app, hand = parallel(InMemorySaver()), Hand(failing("y"))
    with pytest.raises(ValueError, match="y failed"):
        hand.run(app, 1)
    assert hand.notes == ["load", "commit input -1", "run x y z", "record __error__ __traceback__ log"]
    again = Hand(failing())
    run = again.run(app, None)
    assert again.notes == ["load", "run y", "commit loop 0"]
    assert run.machine.output("log") == ["x", "y", "z"]


@pytest.mark.parametrize("order", [["x", "z"], ["z", "x"]])
def test_of_several_failures_the_first_in_path_order_is_raised_and_the_others_named(order):
    """D7, whatever the order of finishing."""
    hand = Hand(failing("x", "z"))
    run = Run(parallel(), 1, None, Call())
    loop = carry_out(run)
    effect = next(loop)
    assert isinstance(effect, Work)
    tasks = sorted(effect.tasks, key=lambda t: ["y", *order].index(t.name))
    for task in tasks:
        hand.end(task)
    effect.finished = tasks
    with pytest.raises(ValueError, match="x failed") as caught:
        next(loop)
    assert caught.value.__notes__ == ["Task 'z' failed as well: ValueError('z failed')"]


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_the_process_wins_and_is_not_stored(fatal):
    app = parallel(InMemorySaver())
    with pytest.raises(fatal):
        Hand(lambda t: fatal() if t.name == "z" else ValueError() if t.name == "x" else [("log", ["y"])]).run(app, 1)
    again = Hand(failing())
    again.run(app, None)
    assert ran(again) == ["x z"]


# -- ending early ---------------------------------------------------------------------------------------------


def opened(app: Pregel, **call):
    """A loop that stands in the superstep after n1."""
    run = Run(app, 1, CONFIG if app.checkpointer else None, Call(**call))
    loop, hand = carry_out(run), Hand()
    for effect in loop:
        if isinstance(effect, Work) and effect.tasks[0].name == "n2":
            break
        hand.answer(run, effect)
    return run, loop, hand


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_driver_that_fails_throws_and_what_was_done_is_kept(durability):
    app = chain(InMemorySaver())
    run, loop, hand = opened(app, durability=durability)
    with pytest.raises(OSError, match="down"):
        effect = loop.throw(OSError("down"))  # type: ignore[attr-defined]
        while True:
            hand.answer(run, effect)
            effect = next(loop)
    assert hand.notes[-1] == "commit loop 0"
    again = Hand()
    again.run(app, None)
    assert ran(again) == ["n2", "n3"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_closed_loop_ends_quietly(durability):
    _, loop, _ = opened(chain(InMemorySaver()), durability=durability)
    loop.close()  # type: ignore[attr-defined]
    assert next(loop, "over") == "over"


def test_tasks_that_ended_before_the_driver_failed_are_kept():
    app, hand = parallel(InMemorySaver()), Hand(failing())
    run = Run(app, 1, CONFIG, Call())
    loop = carry_out(run)
    for effect in loop:
        if isinstance(effect, Work):
            break
        hand.answer(run, effect)
    hand.end(effect.tasks[1])
    with pytest.raises(OSError, match="down"):
        effect = loop.throw(OSError("down"))
        while True:
            hand.answer(run, effect)
            effect = next(loop)
    again = Hand(failing())
    again.run(app, None)
    assert ran(again) == ["x z"]


# -- going on -------------------------------------------------------------------------------------------------


def test_step_numbers_continue_with_a_second_input():
    app = chain(InMemorySaver())
    Hand().run(app, 1)
    hand = Hand()
    hand.run(app, 1)
    assert [n for n in hand.notes if n.startswith("commit")] == [
        f"commit {s}" for s in ("input 3", "loop 4", "loop 5", "loop 6")
    ]


def test_an_error_in_a_mapper_keeps_the_thread_as_it_was():
    from stategraph.pregel import PregelNode

    def mapper(value):
        raise TypeError("no such shape")

    app = graph({"n1": only("a"), "m": PregelNode(channels="b", triggers=["b"], mapper=mapper)}, InMemorySaver())  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="no such shape") as caught:
        Hand().run(app, 1)
    assert "'m'" in caught.value.__notes__[0]
    assert app.get_state(CONFIG).next == ("m",)
