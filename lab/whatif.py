"""`whatif`: stored threads run again with one thing changed.

A node that is not replaced does not run: what it did is taken from the record, by the node's name
and what it is given. So nothing is paid, mailed or asked again. A node that is given something new
has no record; what happens then is its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace as replace_fields
from functools import partial
from time import perf_counter
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, Literal

from ..channels.base import check_kind
from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.keys import canonical_key
from ..checkpoint.serde.json_form import from_json
from ..pregel.app import Pregel, check_compiled
from ..pregel.errors import nearest
from ..pregel.names import NS_END
from ..pregel.steps import Steps, arun_steps, run_steps
from ..pregel.types import Interrupt
from ..store import InMemoryStore
from ..testing.answers import AnswerBook
from ..testing.comparing import Difference, find_difference, hide_ids
from ..testing.fakes import find_node, replace
from ..testing.recorder import Player, Stage, StageCall, Tape, list_nodes
from ..testing.recording import RecordedRun, RecordedTask, Recording
from ..testing.thread_reader import ThreadError, read_thread
from ..visualize.trace.diff import diff
from ..visualize.trace.values import format_value
from .calls import Call, CallTape, Policies, Unrecorded, check_policies, count_usage
from .start import copy_until, keep
from .threads import Threads, read_recordings
from .trials import Trial, Trials

Judge = Callable[[Any, Any], float | bool]
Judges = Judge | Mapping[str, Judge]
_OURS: Final = f"{__name__.partition('.')[0]}.prebuilt"
_RECORDED: Final = ("record", "again")
LONGEST: Final = 200
"""Characters that are shown of what a node was given."""


def whatif(
    app: Pregel[Any, Any, Any, Any],
    threads: Threads,
    *,
    saver: BaseCheckpointSaver | None = None,
    variant: Pregel[Any, Any, Any, Any] | Mapping[str, Any] | None = None,
    live: Collection[str] | Literal["*"] = (),
    effects: Mapping[str, Callable[..., Any]] | None = None,
    calls: Policies = "refuse",
    answers: Mapping[Any, Any] | Callable[[Interrupt], Any] | None = None,
    from_: str = "",
    edit: Mapping[str, Any] | None = None,
    judge: Judges | None = None,
    prices: Mapping[str, tuple[float, float]] | None = None,
    ignore: Collection[str] = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Trials:
    """Run stored threads again with one thing changed, to the end, and say what is different.

    Threads are only read; trials run in memory. Inputs and answers come from the record. Nodes that
    are replaced run, and routers, joins and reducers; all others give what is recorded for what
    they are given. A trial in which such a node is given something new ends there, as refused,
    unless `effects` has a function for it.

    The calls of a node that runs do not run: `@task`s, tools, `runtime.once`, transactions and
    models give what is recorded, by function and arguments. A call that is not recorded has a
    policy. Sleeps are over at once; retries wait as always, but for `testing.virtual_time`.
    Anything else that such a node does is done.

    Args:
        app: the graph that ran the threads, with its checkpointer.
        threads: an id, several (`find_threads`), or the newest so many; a dict of metadata that
            they must have; or recordings, their files and folders, or the file of a cohort
            (`Trials.save`).
        saver: where the threads of the trials are kept, to be looked at. Each has its own id
            (`Trial.kept_as`), and {"whatif_of": thread} in the metadata of its checkpoints.
        variant: what is changed. A dict of nodes, as for `testing.replace`; or another graph, of
            which the nodes run whose code, or the plain values that it holds, is not that of `app`.
            None is the baseline: nothing is changed.
        live: further nodes that run, by their names; "*" for all.
        effects: by node, what is called in place of it when it is given something new.
        calls: what becomes of calls that are not recorded: "refuse": the trial ends there; "live":
            they are made; or a function of the `Call`, which returns the result. Or a dict of
            these by name (of a `@task`, tool or model, or the key of an effect), by kind ("task",
            "tool", "once", "transaction", "chat"), or for "*". A node that `variant` replaces asks
            its models itself.
        answers: other answers to questions than the recorded ones: by what is asked, or a function
            of the `Interrupt`, which returns `testing.OPEN` for the recorded one. The nodes that
            ask must run (`live`): what they would do with another answer is not recorded.
        from_: where trials of stored threads start: the name of a node: at its first run; or the id
            of a checkpoint. What comes before is copied. By default, at the first input.
        edit: keys of the state and the values that they have there. It needs `from_`.
        judge: is given the states at the end, before and now, and returns a score: below 0 means
            worse. A bool says whether it is as good. Several have names, in a dict.
        prices: dollars per million tokens of input and of output, by the name of the model, as of
            a `Budget`; by default those of the graph's own budget.
        ignore: keys and fields whose values are not compared, at any depth.
        config, context: as for `invoke`.

    Raises:
        TypeError: a graph is not compiled, or a judge returns no number.
        ValueError: there is no such node or thread, or the checkpointer is missing.
        Exception: what a judge raises.
    """
    changes = saver, variant, live, effects or {}, calls, answers, from_, edit or {}
    lab = _Lab(app, *changes, judge, prices, ignore, config, context)
    return run_steps(lab.run(threads, Stage.invoke))


async def awhatif(
    app: Pregel[Any, Any, Any, Any],
    threads: Threads,
    *,
    saver: BaseCheckpointSaver | None = None,
    variant: Pregel[Any, Any, Any, Any] | Mapping[str, Any] | None = None,
    live: Collection[str] | Literal["*"] = (),
    effects: Mapping[str, Callable[..., Any]] | None = None,
    calls: Policies = "refuse",
    answers: Mapping[Any, Any] | Callable[[Interrupt], Any] | None = None,
    from_: str = "",
    edit: Mapping[str, Any] | None = None,
    judge: Judges | None = None,
    prices: Mapping[str, tuple[float, float]] | None = None,
    ignore: Collection[str] = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Trials:
    """`whatif` for coroutines; also for graphs in which a node that runs is async only."""
    changes = saver, variant, live, effects or {}, calls, answers, from_, edit or {}
    lab = _Lab(app, *changes, judge, prices, ignore, config, context)
    return await arun_steps(lab.run(threads, Stage.ainvoke))


# -- which nodes run -------------------------------------------------------------------------------


def _changed_nodes(app: Pregel, other: Pregel, inside: str = "") -> list[str]:
    """The paths of the nodes of another graph whose functions are not those of this one."""
    if other is app:
        return []
    found: list[str] = []
    known, new = app.program, other.program
    for name in list_nodes(other):
        graphs = known.nested.get(name), new.nested.get(name)
        if isinstance(graphs[0], Pregel) and isinstance(graphs[1], Pregel):
            found += _changed_nodes(graphs[0], graphs[1], f"{inside}{name}{NS_END}")
        elif name not in known.nodes or _body_of(known.nodes[name].source) != _body_of(
            new.nodes[name].source
        ):
            found.append(inside + name)
    return found


def _body_of(function: Any) -> Any:
    """What tells functions apart: their code, and the plain values that they hold. Objects, such as
    clients, count by their types; the nodes and tools of this package by what they are made of."""
    if isinstance(function, partial):
        held = _held(function.args), _held(sorted(function.keywords.items()))
        return _body_of(function.func), held
    if isinstance(function, MethodType):
        return _body_of(function.__func__), _held(function.__self__)
    code = getattr(function, "__code__", None)
    if code is None:
        return _held(function)
    cells = getattr(function, "__closure__", None) or ()
    return _code(code), [_held(cell.cell_contents) for cell in cells], _held(function.__defaults__)


def _code(code: CodeType) -> Any:
    """Code without the place where it stands."""
    consts = [_code(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, consts, code.co_names


def _held(value: Any) -> Any:
    if isinstance(value, FunctionType | MethodType | partial):
        return _body_of(value)
    kind = type(value)
    if kind.__module__.startswith(_OURS) and hasattr(value, "__dict__"):
        value = {name: each for name, each in vars(value).items() if not name.startswith("_")}
    if isinstance(value, Mapping):
        return kind, [(key, _held(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return kind, [_held(each) for each in value]
    try:
        return canonical_key(value)
    except Exception:
        return f"{kind.__module__}.{kind.__qualname__}"


def _find_taped(
    app: Pregel, changed: Collection[str], live: Collection[str] | Literal["*"], inside: str = ""
) -> list[str]:
    """The paths of the nodes that do not run. Of a node that holds a graph in which something runs,
    those inside."""
    if live == "*":
        return []
    if not list_nodes(app):
        raise ValueError(
            f"graph {app.name!r} has no nodes whose results can be taken from the record (an "
            'entrypoint, or a raw Pregel): live="*" runs it, with its calls from the record'
        )
    run = {*changed, *live}
    for path in run if not inside else ():
        find_node(app, path)
    found: list[str] = []
    for name in list_nodes(app):
        path = inside + name
        nested = app.program.nested.get(name)
        if path in run:
            continue
        if nested is not None and any(each.startswith(path + NS_END) for each in run):
            found += _find_taped(nested, changed, live, path + NS_END)
        else:
            found.append(path)
    return found


# -- one trial -------------------------------------------------------------------------------------


class _KnownTape(Tape):
    """A node that gives what is recorded for what it is given, and nothing else."""

    def __init__(self, path: str, app: Pregel, effect: Callable[..., Any] | None) -> None:
        super().__init__(path, app)
        self._effect = effect

    def begin(self, run: RecordedRun) -> None:
        """Give what is recorded of this run."""
        super().begin(run)
        self.given: list[RecordedTask] = []

    def __call__(self, state: Any) -> Any:
        try:
            return super().__call__(state)
        except Unrecorded:
            if self._effect is None:
                raise
            return self._effect(state)

    def answered(self, question: Mapping[str, Any], answer: Any) -> None:
        """Refuse another answer: what the node would do with it is not recorded."""
        if self._form(answer) != question.get("answer"):
            asked = format_value(from_json(question["asks"], self.serde), LONGEST)
            text = f"{self.path}: {asked} answered {format_value(answer, LONGEST)}"
            raise Unrecorded(text, self.path, "answer")

    def _find(self, state: Any) -> RecordedTask:
        with self._lock:
            given = hide_ids(self._form(state))
            for task in self.tasks:
                if hide_ids(task.input) == given:
                    self.given.append(task)
                    return task
            # The same call as before has the same result, however often it is made.
            for task in self.given:
                if hide_ids(task.input) == given:
                    self.tasks.append(task)
                    return task
            # A task that has asked goes on in a state with what was posted meanwhile.
            for task in self.given:
                if any(task is each for each in self.tasks):
                    return task
        raise Unrecorded(f"{self.path}({format_value(state, LONGEST)})", self.path, "input")


class _Lab:
    """A change, and the trials of it; for the arguments see `whatif`."""

    def __init__(
        self,
        app: Pregel,
        saver: BaseCheckpointSaver | None,
        variant: Pregel | Mapping[str, Any] | None,
        live: Collection[str] | Literal["*"],
        effects: Mapping[str, Callable[..., Any]],
        calls: Policies,
        answers: Mapping[Any, Any] | Callable[[Interrupt], Any] | None,
        from_: str,
        edit: Mapping[str, Any],
        judge: Judges | None,
        prices: Mapping[str, tuple[float, float]] | None,
        ignore: Collection[str],
        config: Mapping[str, Any] | None,
        context: Any,
    ) -> None:
        check_compiled(app)
        replaced = variant if isinstance(variant, Mapping) else {}
        played = replace(app, replaced) if isinstance(variant, Mapping) else variant or app
        check_compiled(played)
        changed = list(replaced) or _changed_nodes(app, played)
        check_kind("live", live, Collection, 'a list of nodes or "*"')
        self._taped = _find_taped(played, changed, live)
        check_kind("effects", effects, Mapping, "a dict of nodes and functions")
        for name in effects:
            find_node(played, name)
        check_policies(calls)
        check_kind("saver", saver, BaseCheckpointSaver | None, "a checkpointer")
        check_kind("from_", from_, str, "the name of a node or the id of a checkpoint")
        check_kind("edit", edit, Mapping, "a dict of keys")
        check_kind("ignore", ignore, Collection, "a list of keys")
        check_kind("judge", judge, Callable | Mapping | None, "a function, or a dict of functions")
        if edit and not from_:
            raise ValueError("an edit needs from_: the name of a node, or the id of a checkpoint")
        for key in edit:
            if key not in app.program.scope.keys:
                raise ValueError(f"edit: no key {key!r}; {nearest(key, app.program.scope.keys)}")
        self._stored, self._saver, self._from, self._edit = app, saver, from_, edit
        self._app = played.copy({"store": InMemoryStore(), "cache": None, "observers": ()})
        self._effects, self._ignore = effects, ignore
        self._options = config, context
        self._book = AnswerBook(answers) if answers is not None else None
        own = (each.prices for each in app.budgets)
        self._prices = next(filter(None, own), {}) if prices is None else prices
        self._judges = judge if isinstance(judge, Mapping) else {"score": judge} if judge else {}
        for name, ask in self._judges.items():
            check_kind(f"judge {name!r}", ask, Callable, "a function")
        self._policies, self._changed, self._free = calls, frozenset(changed), frozenset(replaced)
        self._ran = list_nodes(played) if live == "*" else [*dict.fromkeys([*changed, *live])]

    def run(self, threads: Threads, call: StageCall) -> Steps[Trials]:
        """Run threads, one after the other."""
        trials: list[Trial] = []
        for name, found in read_recordings(self._stored, threads):
            if isinstance(found, str):
                trials.append(Trial(thread=name, unreadable=found))
            else:
                trials.append((yield from self._trial(name, found, call)))
        return Trials(tuple(trials), tuple(self._ran), self._unused(trials))

    def _unused(self, trials: Collection[Trial]) -> tuple[Any, ...]:
        called = {name for each in trials for call in each.calls for name in (call.kind, call.name)}
        named = self._policies if isinstance(self._policies, Mapping) else ()
        unasked = self._book.unasked if self._book is not None else ()
        return (*unasked, *(name for name in named if name not in {*called, "*"}))

    def _trial(self, name: str, found: Recording, call: StageCall) -> Steps[Trial]:
        began = perf_counter()
        nodes = {path: _KnownTape(path, self._app, self._effects.get(path)) for path in self._taped}
        tape = CallTape(found, self._app.serde, self._policies, self._changed, self._free)
        config, context = self._options
        player = Player(found, self._app, nodes, config, context=context, observer=tape)
        refused: Unrecorded | None = None
        begun = 0
        if self._from:
            try:
                begun = copy_until(self._stored, name, self._from, self._edit, player.stage)
            except ThreadError as error:
                return Trial(thread=name, unreadable=str(error))
        try:
            yield from player.play(call, None if self._book is None else self._book.find, begun)
        except Unrecorded as unknown:
            refused = unknown
        try:
            now = read_thread(player.stage.app, player.stage.thread)
        except ThreadError as error:  # a run has ended before anything was stored
            why = f"{type(player.error).__name__}: {player.error}" if player.error else str(error)
            return Trial(thread=name, before=found, refused=str(refused or why), end="failed")
        trial = self._compared(name, found, now, refused)
        return replace_fields(
            trial,
            nondeterministic=self._nondeterministic(trial.difference, tape.calls),
            calls=tuple(tape.calls),
            seconds=perf_counter() - began,
            kept_as=keep(player.stage, self._saver, name) if self._saver is not None else "",
        )

    def _nondeterministic(self, first: Difference | None, calls: Collection[Call]) -> str:
        """The node that did something else though it is the same and was given the same."""
        if first is None or not first.what.startswith(("write", "question")):
            return ""
        other = {*self._changed, *(each.node for each in calls if each.came not in _RECORDED)}
        return "" if first.node in other or first.node in self._taped else first.node

    def _compared(
        self, name: str, before: Recording, now: Recording, refused: Unrecorded | None
    ) -> Trial:
        last, new, serde = before.runs[-1], now.runs[-1], self._app.serde
        scores: dict[str, float] = {}
        for judge, ask in self._judges.items() if not refused else ():
            try:
                said = ask(from_json(last.state, serde), from_json(new.state, serde))
            except Exception as error:
                error.add_note(f"judge {judge!r}, thread {name!r}")
                raise
            try:
                scores[judge] = (0.0 if said else -1.0) if isinstance(said, bool) else float(said)
            except (TypeError, ValueError):
                text = f"judge {judge!r} must return a number or a bool, got {said!r:.80}"
                raise TypeError(f"{text} (thread {name!r})") from None
        first = find_difference(before, now, ignore=self._ignore, skip_inside=self._taped)
        if refused is not None and (first is None or not first.now):  # it has ended there
            where = "its end" if first is None else first.where
            place = f"{where.partition(', node ')[0]}, node {refused.node!r}"
            text = str(refused)
            first = Difference(place, refused.what, "", "recorded", text, refused.node)
        return Trial(
            thread=name,
            difference=first,
            changes=diff(hide_ids(last.state), hide_ids(new.state)),
            end="refused" if refused else new.end,
            end_before=last.end,
            refused="" if refused is None else str(refused),
            steps=sum(len(run.steps) for run in now.runs),
            steps_before=sum(len(run.steps) for run in before.runs),
            usage=count_usage(now, self._prices),
            usage_before=count_usage(before, self._prices),
            scores=scores,
            before=before,
            now=now,
        )
