"""The superstep as pure state: plan returns the tasks to run, apply folds in their writes. No saver and no driver
here.
"""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stategraph.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)
from stategraph.pregel import InternalError, InvalidUpdateError, NodeBuilder, PregelNode, Send
from stategraph.pregel.program.program import CompiledNode, freeze
from stategraph.pregel.schedule.machine import Machine

TASKS = "__pregel_tasks"


def cells(names):
    return {name: LastValue(int) for name in names}


def program(nodes, channels, inputs="a"):
    channels = cells(channels) if isinstance(channels, str) else channels
    built = {name: node.build() if isinstance(node, NodeBuilder) else node for name, node in nodes.items()}
    return freeze("test", built, channels, (inputs, inputs, None))


def on(*channels, only=False):
    return NodeBuilder().subscribe_only(*channels) if only else NodeBuilder().subscribe_to(*channels)


def started(prog, *writes):
    machine = Machine(prog)
    machine.apply_input(writes, ())
    return machine


def step(machine: Machine, **writes):
    """One superstep: each planned node writes what is given under its name."""
    tasks = machine.plan()
    for task in tasks:
        task.writes = list(writes.get(task.name, []))
        task.finished = True
    machine.apply(tasks)
    return tasks


def names(tasks):
    return [task.name for task in tasks]


def state(machine: Machine):
    """Everything that a superstep may change."""
    stored = machine.checkpoint("now")
    return {**stored, "channel_values": {k: repr(v) for k, v in stored["channel_values"].items()}, "step": machine.step,
            "tick": machine.tick, "expiring": set(machine.expiring), "held": set(machine.held)}  # fmt: skip


def chain():
    return program({"n1": on("a"), "n2": on("b")}, "abc")


# -- numbers --------------------------------------------------------------------------------------------------


def test_all_channels_changed_at_one_barrier_get_the_same_version():
    machine = started(program({"n": on("a")}, "abc"), ("a", 1))
    step(machine, n=[("b", 1), ("c", 1)])
    assert machine.versions == {"a": 1, "b": 2, "c": 2}


def test_a_barrier_that_changes_nothing_moves_no_version():
    machine = started(chain(), ("a", 1))
    step(machine)
    assert (machine.versions, machine.changed, machine.plan()) == ({"a": 1}, set(), [])


# -- who runs -------------------------------------------------------------------------------------------------


def test_sends_are_planned_first_in_send_order_then_nodes_by_name():
    prog = program({"z": on("b"), "B": on("b"), "m": on("b"), "n": on("a")}, "ab")
    machine = started(prog, ("a", 1))
    step(machine, n=[(TASKS, Send("z", 0)), ("b", 1), (TASKS, Send("m", 1)), (TASKS, Send("z", 2))])
    tasks = machine.plan()
    assert [(t.name, t.path, t.input) for t in tasks[:3]] == [
        ("z", ("__pregel_push", 0, False), 0),
        ("m", ("__pregel_push", 1, False), 1),
        ("z", ("__pregel_push", 2, False), 2),
    ]
    assert [t.path for t in tasks[3:]] == [("__pregel_pull", "B"), ("__pregel_pull", "m"), ("__pregel_pull", "z")]


def test_a_plan_without_coercion_applies_no_mapper():
    def never(_):
        raise AssertionError("looked at, not run")

    machine = started(program({"n": PregelNode(channels="a", triggers=("a",), mapper=never)}, "a"),
                      ("a", 1))  # fmt: skip
    assert machine.plan(coerce=False)[0].input == 1


def test_a_value_equal_to_the_old_one_triggers_again():
    machine = started(program({"n": on("a")}, "a"), ("a", 1))
    for _ in range(3):
        assert names(step(machine, n=[("a", 1)])) == ["n"]


def test_a_channel_with_a_default_triggers_no_node_until_written():
    """One rule everywhere (D5): a trigger must have moved, live as well as after loading."""
    prog = program({"x": on("a"), "y": on("agg")},
                   {**cells("ab"), "agg": BinaryOperatorAggregate(list, operator.add)})  # fmt: skip
    machine = started(prog, ("a", 1))
    assert names(step(machine, x=[("b", 1)])) == ["x"]
    assert machine.plan() == []
    assert Machine(prog, machine.checkpoint("now"), machine.step).plan() == []


def test_a_trigger_that_became_empty_runs_no_node():
    prog = program({"n": on("a"), "m": on("e")}, {"a": LastValue(int), "e": EphemeralValue(int)}, inputs=("a", "e"))
    machine = started(prog, ("a", 1), ("e", 1))
    assert names(step(machine)) == ["m", "n"]
    assert machine.versions["e"] == 2  # it expired
    assert machine.plan() == []


def test_any_of_several_triggers_is_enough_and_one_run_answers_all():
    prog = program({"n": on("a", "b")}, "ab", inputs=("a", "b"))
    machine = started(prog, ("b", 1))
    assert [t.input for t in machine.plan()] == [{"b": 1}]
    machine = started(prog, ("a", 1), ("b", 2))
    assert [t.input for t in step(machine)] == [{"a": 1, "b": 2}]
    assert machine.plan() == []


def test_a_node_whose_only_input_is_empty_waits_until_it_is_filled():
    held = NodeBuilder().subscribe_to("a", read=False).subscribe_only("b")
    prog = program({"held": held, "other": on("c")}, "abc", inputs=("a", "c"))
    machine = started(prog, ("a", 1), ("c", 1))
    assert names(step(machine, other=[("b", 7)])) == ["other"]
    assert machine.held == {"held"}
    [task] = machine.plan()
    assert (task.name, task.input, machine.held) == ("held", 7, set())


def test_a_waiting_node_does_not_keep_deferred_nodes_from_running():
    held = NodeBuilder().subscribe_to("h", read=False).subscribe_only("b")
    channels = {**cells("abh"), "fin": LastValueAfterFinish(int)}
    machine = started(program({"held": held, "src": on("a"), "late": on("fin")}, channels), ("a", 1))
    step(machine, src=[("fin", 5), ("h", 1)])
    assert names(step(machine, late=[("b", 7), ("fin", 6)])) == ["late"]
    assert names(step(machine)) == ["held"], "it can run now, so what waits for the end waits again"
    assert names(step(machine)) == ["late"]


def test_plan_may_be_asked_again_and_says_the_same():
    machine = started(chain(), ("a", 1))
    first, second = machine.plan(), machine.plan()
    assert [(t.path, t.input) for t in first] == [(t.path, t.input) for t in second]


def test_a_send_to_an_unknown_node_names_step_and_nearest_node():
    machine = started(chain(), ("a", 1))
    [task] = machine.plan()
    task.writes = [(TASKS, Send("n22", 1))]
    machine.apply([task])
    with pytest.raises(InvalidUpdateError, match=r"step 1.*'n22'.*did you mean 'n2'\?"):
        machine.plan()


# -- work follows what changed --------------------------------------------------------------------------------


def test_only_nodes_behind_a_changed_channel_are_checked(monkeypatch):
    channels = {f"c{i}": LastValue(int) for i in range(100)} | cells("a")
    nodes = {f"n{i:04}": on(f"c{i % 100}") for i in range(1000)} | {"start": on("a")}
    machine = started(program(nodes, channels), ("a", 1))
    looked_at = []
    real = Machine._is_triggered

    def counting(self: Machine, node: CompiledNode):
        looked_at.append(node.name)
        return real(self, node)

    monkeypatch.setattr(Machine, "_is_triggered", counting)
    step(machine, start=[("c7", 1)])
    assert looked_at == ["start"]
    looked_at.clear()
    assert len(machine.plan()) == 10
    assert looked_at == [f"n{i:04}" for i in range(7, 1000, 100)]


class Counting(LastValue[int]):
    """Counts how often it is read."""

    __slots__ = ("reads",)
    step_scoped = False

    def __init__(self, typ):
        super().__init__(typ)
        self.reads = []

    def get(self):
        self.reads.append(1)
        return super().get()


def test_inputs_of_nodes_that_read_the_same_channels_are_read_once():
    channels = {"a": LastValue(int), "b": Counting(int), "c": LastValue(int)}
    nodes = {f"n{i}": on("a").read_from("b") for i in range(50)} | {"src": on("c")}
    machine = started(program(nodes, channels, inputs=("a", "b", "c")), ("b", 5), ("a", 1))
    reads = machine.channels["b"].reads  # type: ignore[attr-defined]
    reads.clear()
    tasks = machine.plan()
    assert len(tasks) == 50
    assert len(reads) == 1
    assert len({id(t.input) for t in tasks}) == 50, "each task has a dict of its own"


def test_an_unchanged_view_is_not_read_again_and_a_changed_key_is_carried_in():
    prog = program({"n": on("a").read_from("b", "c")}, {"a": LastValue(int), "b": Counting(int), "c": LastValue(int)},
                   inputs=("a", "b"))  # fmt: skip
    machine = started(prog, ("a", 1), ("b", 5))
    reads = machine.channels["b"].reads  # type: ignore[attr-defined]
    assert machine.plan()[0].input == {"a": 1, "b": 5}
    count = len(reads)
    step(machine, n=[("a", 2)])
    assert machine.plan()[0].input == {"a": 2, "b": 5}
    assert len(reads) == count
    step(machine, n=[("a", 3), ("c", 9)])
    assert machine.plan()[0].input == {"a": 3, "b": 5, "c": 9}


def test_a_key_that_empties_leaves_the_view():
    prog = program({"n": on("a").read_from("e")}, {"a": LastValue(int), "e": EphemeralValue(int)}, inputs=("a", "e"))
    machine = started(prog, ("a", 1), ("e", 5))
    assert step(machine, n=[("a", 2)])[0].input == {"a": 1, "e": 5}
    assert machine.plan()[0].input == {"a": 2}


def test_a_task_that_mutates_its_input_dict_affects_no_other():
    machine = started(program({"m": on("a"), "n": on("a")}, "a"), ("a", 1))
    first, second = machine.plan()
    first.input["a"] = "spoilt"
    first.input["more"] = 1
    assert second.input == {"a": 1}
    assert machine.plan()[0].input == {"a": 1}


def test_an_empty_step_touches_only_channels_that_react_to_it():
    class Touchy(EphemeralValue[int]):
        touched = 0

        def update(self, values):
            Touchy.touched += 1
            return super().update(values)

    prog = program({"n": on("a")}, {"a": LastValue(int), "t": Touchy(int), **{f"x{i}": Touchy(int) for i in range(50)}},
                   inputs=("a", "t"))  # fmt: skip
    machine = started(prog, ("a", 1), ("t", 1))
    Touchy.touched = 0
    step(machine, n=[("a", 2)])
    assert Touchy.touched == 1, "only the one that held a value"
    step(machine, n=[("a", 3)])
    assert Touchy.touched == 1


# -- apply ----------------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False))
def test_writes_apply_in_path_order_whatever_the_order_of_finishing(random):
    nodes = {name: on("b") for name in ("z", "B", "m")} | {"n": on("a"), "w": on("never")}
    channels = {**cells("ab"), "never": LastValue(int),
                "log": BinaryOperatorAggregate(list, operator.add)}  # fmt: skip
    machine = started(program(nodes, channels), ("a", 1))
    step(machine, n=[("b", 1), *((TASKS, Send("w", i)) for i in range(12))])
    tasks = machine.plan()
    for task in tasks:
        task.writes = [("log", [task.input if task.name == "w" else task.name])]
    random.shuffle(tasks)
    machine.apply(tasks)
    assert machine.channels["log"].get() == ["B", "m", "z", *range(12)]


class Refusing(LastValue[int]):
    """Takes everything but 13."""

    step_scoped = False

    def update(self, values):
        if 13 in values:
            self.value = 13
            raise ValueError("unlucky")
        return super().update(values)


@pytest.mark.parametrize("culprit", ["first", "middle", "last"])
def test_apply_is_all_or_nothing(culprit):
    channels = {
        "a": LastValue(int), "e": EphemeralValue(int), "bar": NamedBarrierValue(str, {"x"}),
        "log": BinaryOperatorAggregate(list, lambda old, new: (old.extend(new), old)[1]),
        "topic": Topic(int, accumulate=True), "first": Refusing(int), "middle": Refusing(int), "last": Refusing(int),
    }  # fmt: skip
    prog = program({"n": on("a", "bar")}, channels, inputs=tuple(channels))
    machine = started(prog, ("a", 1), ("e", 1), ("bar", "x"), ("log", [1]), ("topic", 1))
    before = state(machine)
    [task] = machine.plan()
    task.writes = [("first", 1), ("log", [2]), ("topic", 2), ("middle", 1), ("bar", "x"), ("last", 1)]
    task.writes = [(k, 13 if k == culprit else v) for k, v in task.writes]
    with pytest.raises(ValueError, match="unlucky") as caught:
        machine.apply([task])
    assert state(machine) == before
    [note] = caught.value.__notes__
    assert f"step 0, key '{culprit}', written by n" in note
    assert [t.input for t in machine.plan()] == [task.input]
    task.writes = [("middle", 1)]
    machine.apply([task])
    assert machine.channels["middle"].get() == 1


@pytest.mark.parametrize("method", ["consume", "finish", "update_empty", "is_available"])
def test_apply_is_all_or_nothing_also_when_a_channel_of_the_users_fails(method):
    breaks = set()

    def reach(place):
        if place in breaks:
            raise ValueError("broken")

    class Broken(LastValue[int]):
        def update(self, values):
            reach("" if values else "update_empty")
            return super().update(values)

        def consume(self):
            reach("consume")
            return False

        def finish(self):
            reach("finish")
            return False

        def is_available(self):
            reach("is_available")
            return super().is_available()

    prog = program({"n": on("a", "x")}, {"a": LastValue(int), "x": Broken(int), "b": LastValue(int)}, inputs=("a", "x"))
    machine = started(prog, ("a", 1), ("x", 1))
    before = state(machine)
    [task] = machine.plan()
    task.writes = [("b", 1), *([("x", 2)] if method == "is_available" else [])]
    breaks.add(method)
    with pytest.raises(ValueError, match="broken"):
        machine.apply([task])
    breaks.clear()
    assert state(machine) == before


def test_a_write_to_a_channel_the_program_lacks_is_our_own_mistake_and_applies_nothing():
    machine = started(chain(), ("a", 1))
    before = state(machine)
    [task] = machine.plan()
    task.writes = [("b", 1), ("nope", 1)]
    with pytest.raises(InternalError, match="step 0.*'nope'"):
        machine.apply([task])
    assert state(machine) == before


def test_step_scoped_channels_last_one_superstep():
    channels = {"a": LastValue(int), "e": EphemeralValue(int), "y": AnyValue(int), "t": Topic(int), "all": Topic(int, True),
                "u": UntrackedValue(int)}  # fmt: skip
    machine = started(program({"n": on("a")}, channels), ("a", 1))
    step(machine, n=[("a", 2), ("e", 1), ("y", 1), ("t", 1), ("all", 1), ("u", 1)])
    assert machine.output(tuple("eytu")) == {"e": 1, "y": 1, "t": [1], "u": 1}
    step(machine, n=[("a", 3)])
    assert machine.output(("e", "y", "t", "all", "u")) == {"all": [1], "u": 1}


def test_a_barrier_fires_once_and_starts_over():
    prog = program({"x": on("a"), "y": on("a"), "join": on("bar")},
                   {"a": LastValue(int), "bar": NamedBarrierValue(str, {"x", "y"})})  # fmt: skip
    machine = started(prog, ("a", 1))
    assert names(step(machine, x=[("bar", "x"), ("a", 2)])) == ["x", "y"]
    assert names(step(machine, y=[("bar", "y")])) == ["x", "y"]
    assert names(step(machine)) == ["join"]
    assert machine.plan() == []
    assert (machine.channels["bar"].checkpoint(), machine.versions["bar"]) == (set(), 4), "it was used at the fourth barrier"


def test_a_send_to_a_node_does_not_use_up_the_barrier_it_waits_for():
    """Only a node that ran because of its channels has used them."""
    prog = program({"join": on("bar"), "n": on("a")}, {"a": LastValue(int), "bar": NamedBarrierValue(str, {"x"})})
    machine = started(prog, ("a", 1))
    step(machine, n=[(TASKS, Send("join", 0)), ("bar", "x")])
    push, pull = machine.plan()
    machine.apply([push])
    assert machine.channels["bar"].is_available()
    machine.apply([pull])
    assert not machine.channels["bar"].is_available()


def test_a_channel_that_reacts_to_use_and_to_an_empty_step_gets_both():
    class Both(EphemeralValue[int]):
        used = False

        def consume(self):
            self.used = True
            return True

        def update(self, values):
            if not values:
                assert self.used, "the empty step came to a copy that had not been used"
            return super().update(values)

        def copy(self):
            new = super().copy()
            new.used = self.used
            return new

    machine = started(program({"n": on("x")}, {"x": Both(int)}, inputs="x"), ("x", 1))
    step(machine)


def test_sends_leave_one_trace_for_their_node_in_seen():
    machine = started(program({"n": on("a"), "w": on("b")}, "ab"), ("a", 1))
    step(machine, n=[(TASKS, Send("w", 1)), (TASKS, Send("w", 2))])
    step(machine)
    assert machine.seen == {"__input__": {}, "n": {"a": 1}, "w": {TASKS: 2}}


def test_a_node_that_was_only_sent_to_runs_when_its_trigger_is_written():
    machine = started(program({"n": on("a"), "w": on("b")}, "ab"), ("a", 1))
    step(machine, n=[(TASKS, Send("w", 1))])
    step(machine, w=[("b", 1)])
    assert names(machine.plan()) == ["w"]


# -- finish and deferred nodes --------------------------------------------------------------------------------


def test_after_finish_is_shown_once_nothing_else_can_run():
    """MISSION M5: input both, the node runs with (123, None) and then with (123, 456)."""
    prog = program({"n": on("foo", "bar")}, {"foo": LastValue(int), "bar": LastValueAfterFinish(int)}, ("foo", "bar"))
    machine = started(prog, ("foo", 123), ("bar", 456))
    assert machine.checkpoint("now")["channel_values"]["bar"] == (456, False)
    assert [step(machine)[0].input, step(machine)[0].input] == [{"foo": 123}, {"foo": 123, "bar": 456}]
    assert (machine.plan(), machine.versions["bar"]) == ([], 3)


def deferred():
    """n → w, and `late`, which waits for the end."""
    channels = {**cells("abc"), "fin": LastValueAfterFinish(int)}
    return program({"n": on("a"), "w": on("b"), "late": on("fin")}, channels)


def test_a_change_without_subscribers_does_not_delay_deferred_nodes():
    machine = started(deferred(), ("a", 1))
    step(machine, n=[("fin", 1), ("c", 1)])
    assert names(machine.plan()) == ["late"]


def test_a_deferred_node_waits_although_a_later_superstep_wrote_nothing():
    machine = started(deferred(), ("a", 1))
    step(machine, n=[("b", 1), ("fin", 1)])
    step(machine)  # w writes nothing
    assert names(machine.plan()) == ["late"]


def test_a_deferred_node_armed_again_runs_again():
    prog = program({"a1": on("a"), "c": on("cf"), "d": on("df")},
                   {"a": LastValue(int), "cf": LastValueAfterFinish(int), "df": LastValueAfterFinish(int)})  # fmt: skip
    machine = started(prog, ("a", 1))
    step(machine, a1=[("cf", 1), ("df", 1)])
    assert names(step(machine, c=[("df", 2)])) == ["c", "d"]
    assert names(step(machine)) == ["d"]
    assert machine.plan() == []


# -- input ----------------------------------------------------------------------------------------------------


def test_new_input_drops_pending_work_and_empties_step_scoped_channels():
    prog = program({"n": on("a"), "m": on("b"), "w": on("c")},
                   {**cells("abc"), "e": EphemeralValue(int)})  # fmt: skip
    machine = started(prog, ("a", 1))
    step(machine, n=[("b", 1), ("e", 1), (TASKS, Send("w", 1))])
    machine.apply_input([("a", 2)], machine.plan(coerce=False))
    assert names(machine.plan()) == ["n"]
    assert machine.output(("a", "b", "e")) == {"a": 2, "b": 1}
    assert machine.step == 2


def test_a_refused_input_leaves_the_machine_as_it_was():
    machine = started(program({"n": on("a")}, {"a": Refusing(int), "e": EphemeralValue(int)}, ("a", "e")), ("e", 1))
    before = state(machine)
    with pytest.raises(ValueError, match="unlucky"):
        machine.apply_input([("a", 13)], machine.plan(coerce=False))
    assert state(machine) == before


def test_writes_of_a_command_take_no_step_and_expire_nothing():
    prog = program({"n": on("a"), "w": on("b")}, {**cells("ab"), "e": EphemeralValue(int)},
                   ("a", "e"))  # fmt: skip
    machine = started(prog, ("a", 1), ("e", 1))
    machine.apply_writes([("b", 1)])
    assert machine.step == 0
    assert machine.output("e") == 1
    assert names(machine.plan()) == ["n", "w"]


def test_sends_of_a_command_are_planned_after_pending_sends():
    machine = started(program({"n": on("a"), "w": on("b")}, "ab"), ("a", 1))
    step(machine, n=[(TASKS, Send("w", 0))])
    machine.apply_writes([(TASKS, Send("w", 1))])
    assert [t.input for t in machine.plan()] == [0, 1]


# -- looking --------------------------------------------------------------------------------------------------


def test_a_preview_shows_a_tasks_own_writes_and_changes_nothing():
    channels = {"a": LastValue(int), "log": BinaryOperatorAggregate(list, lambda o, n: (o.extend(n), o)[1]),
                "e": EphemeralValue(int)}  # fmt: skip
    node = on("a").read_from("log", "e")
    prog = program({"n": node}, channels, ("a", "log", "e"))
    machine = started(prog, ("a", 1), ("log", [1]), ("e", 5))
    reader = prog.nodes["n"].reads
    assert not isinstance(reader, str)
    assert machine.preview(reader, [("log", [2]), ("a", 7)]) == {"a": 7, "log": [1, 2], "e": 5}
    assert machine.read(reader) == {"a": 1, "log": [1], "e": 5}


def test_an_output_with_writes_leaves_the_live_channels_in_place():
    machine = started(chain(), ("a", 1))
    assert machine.output_with(("a", "b"), [("b", 2)]) == {"a": 1, "b": 2}
    with pytest.raises(InvalidUpdateError):
        machine.output_with(("a", "b"), [("b", 2), ("b", 3)])
    assert machine.output(("a", "b")) == {"a": 1}


@given(st.lists(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=4), max_size=6))
def test_loading_a_checkpoint_between_any_two_steps_changes_nothing(script):
    channels = {"a": BinaryOperatorAggregate(int, operator.add), "b": EphemeralValue(int, guard=False),
                "c": Topic(int), "d": LastValueAfterFinish(int)}  # fmt: skip
    prog = program({f"n{k}": on(k).read_from(*"abcd") for k in "abcd"}, channels)
    live = started(prog, ("a", 1))
    for writes in script:
        loaded = Machine(prog, live.checkpoint("now"), live.step)
        tasks, again = live.plan(), loaded.plan()
        assert [(t.path, t.input) for t in tasks] == [(t.path, t.input) for t in again]
        for plan in (tasks, again):
            if plan:
                plan[0].writes = list(writes)
        live.apply(tasks)
        loaded.apply(again)
        assert state(live) == state(loaded)
