"""The search: from an empty thread, everything that clients may do next and that may happen meanwhile, each state once.

A state is what the storage holds and what the clients know: which answers were given, which acknowledged, which named
calls may be delivered again. Cheapest first, so what is found is found by its shortest trace.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from kit.graphs import thread_config

from stategraph import CheckpointConflictError, Command, UnknownInterruptError
from stategraph.checkpoint.errors import DamagedError

from .programs import Swapped
from .storage import STORAGES, Gated, canonical, shown
from .turns import Turns, stopped_clock
from .world import LOST, UNANSWERED, Dead, Process, Script, Stepped, World, scripts

INPUT, NONE, ANSWER = "input", "None", "answer"


DEEPEST = 60
"""Whatever is deeper is no state that anybody wants: a search that comes there is not complete."""


@dataclass(frozen=True)
class Call:
    """What a client calls.

    Attributes:
        answers: (question, its id, the answer).
        plain: the only answer is given without its id.
        again: it was called before under this run id.
    """

    kind: str
    answers: tuple[tuple[str, str, str], ...] = ()
    plain: bool = False
    run_id: str = ""
    again: bool = False

    @property
    def input(self):
        """What `invoke` is given."""
        if self.kind == INPUT:
            return {"log": []}
        if self.kind == NONE:
            return None
        if self.plain:
            return Command(resume=self.answers[0][2])
        return Command(resume={id: answer for _, id, answer in self.answers})

    def __str__(self):
        given = f"answer {', '.join(answer for _, _, answer in self.answers)}" if self.answers else self.kind
        form = " (plain)" if self.plain else ""
        name = f" as {self.run_id}" if self.run_id else ""
        return f"invoke({given}{form}){name}{', delivered again' if self.again else ''}"


@dataclass(frozen=True)
class Known:
    """What clients know.

    Attributes:
        given: question → how many answers were given.
        acknowledged: question → the answer whose call has returned.
        unsure: question → answers whose call has not returned: each may count, or not.
        calls: named calls that may be delivered again.
    """

    given: tuple[tuple[str, int], ...] = ()
    acknowledged: tuple[tuple[str, str], ...] = ()
    unsure: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()

    def text(self):
        return repr((self.acknowledged, self.unsure, self.calls))


@dataclass(eq=False)
class State:
    """A state that was reached."""

    content: Any
    known: Known
    faults: int = 0
    cost: int = 0
    before: State | None = None
    trace: tuple[str, ...] = ()
    depth: int = 0
    key: str = ""
    shown: tuple[str, ...] = ()
    ended: bool = False
    broken: bool = False

    def told(self):
        """How it was reached."""
        return [*(self.before.told() if self.before else ()), *self.trace]


@dataclass(frozen=True)
class Bounds:
    """How far to search.

    Attributes:
        faults: how many may happen on the way to a state: failures, deaths, cancellations, races, repeated deliveries.
        switches: how often, when two clients call at once, the other goes on though it need not.
        races: whether two clients may call at once.
        named: whether calls have run ids and may be delivered again.
        states: give up after so many.
    """

    faults: int = 1
    switches: int = 1
    races: bool = True
    named: bool = False
    states: int = 1_000_000


RULES = {
    "never stuck": "from every state, plain calls lead to the end if nothing goes wrong any more",
    "the next call goes on": "a call that get_state suggests raises nothing, unless something goes wrong or another client is faster",
    "what is shown is open": "no question that get_state shows is refused an answer because of a run that is gone",
    "get_state never lies": "what it shows is what the next call asks",
    "get_state shows it": "it never raises",
    "never damaged": "nothing that the engine has stored is read as damage",
    "never asked again": "not after its answer was acknowledged: the call that brought it returned",
    "one answer": "a question takes one answer: once one is acknowledged no other is",
    "what was acknowledged counts": "it is in the final state, whatever was given before",
    "what was given counts": "no answer is in the final state that nobody gave, or that was refused",
    "its own answer": "an answer reaches the question that it was given for",
    "the same end": "every task's result is in the final state once",
    "failures are told": "a call does not return as if all were well when something could not be stored",
    "refused in words": "who is slower than another client, or comes again, is told so: CheckpointConflictError, UnknownInterruptError",
}
"""What must hold of every state and every call."""


@dataclass
class Failure:
    """A broken rule, by the cheapest way to it."""

    rule: str
    what: str
    trace: list[str]
    count: int = 0

    def __str__(self):
        return "\n".join([f"{self.rule} ({self.count} x): {self.what}", *(f"    {line}" for line in self.trace)])


@dataclass
class Found:
    """What a search has seen."""

    states: int = 0
    runs: int = 0
    deepest: int = 0
    complete: bool = True
    failures: dict[str, Failure] = field(default_factory=dict)


class Explorer:
    """Explores one program on one storage."""

    def __init__(
        self, program, storage, durability, bounds: Bounds, *, is_async=True
    ):
        self.program, self.durability, self.bounds = program, durability, bounds
        self.loop, self.turns = (Stepped(), None) if is_async else (None, Turns())
        self.world = World(self.loop, self.turns)
        self.storage = STORAGES[storage]()
        self.clients = []
        for name in ("A", "B"):
            process = Process(name, self.world)
            self.world.processes.append(process)
            saver = Gated(process, self.storage.in_memory)
            self.storage.open(saver)
            self.clients.append((process, saver, program.build(process, saver, program.asks)))
        self.viewer = program.build(self.clients[0][0], self.storage.saver, program.asks)
        self.found = Found()
        self.seen = {}
        self.plain = []
        self.config = thread_config("t")

    def close(self):
        """Give back what is open."""
        if self.loop is not None:
            self.loop.close()
        self.storage.close()

    # -- one run --------------------------------------------------------------------------------------------

    def run(self, state: State, calls: Sequence[Call], script: Script, faults, switches):
        """Do calls side by side, from a state; how each ended: (its result, or what it raised)."""
        self._put(state)
        self.found.runs += 1
        return self.go_on(calls, script, faults, switches)

    def go_on(self, calls: Sequence[Call], script: Script, faults=0, switches=0):
        """The same from where the storage is."""
        self.world.begin(script, faults, switches)
        started = []
        for (process, saver, app), call in zip(self.clients, calls, strict=False):
            saver.gate_reads = len(calls) > 1  # what a lone client reads cannot change meanwhile
            client = self._client if self.loop is None else self._aclient
            started.append((process, partial(client, process, app, call)))
        return self.world.run(started)

    def _client(self, process: Process, app, call: Call):
        try:
            result = app.invoke(call.input, self._config(call), durability=self.durability)
        except BaseException as error:
            return Dead() if process.dead else error
        return Dead() if process.dead else result

    async def _aclient(self, process: Process, app, call: Call):
        try:
            result = await app.ainvoke(call.input, self._config(call), durability=self.durability)
        except BaseException as error:
            return Dead() if process.dead else error
        return Dead() if process.dead else result

    def _config(self, call: Call):
        return {**self.config, **({"run_id": call.run_id} if call.run_id else {})}

    def _put(self, state: State):
        self.storage.put(state.content, *(saver for _, saver, _ in self.clients))

    def _take(self):
        return self.storage.take(*(saver for _, saver, _ in self.clients))

    def look(self):
        """What `get_state` shows."""
        return self.viewer.get_state(self.config)

    # -- the search -----------------------------------------------------------------------------------------

    def search(self, *, most=inf):
        """Explore to the bounds, or until so many rules are found broken."""
        with stopped_clock(), self.turns.installed() if self.turns is not None else nullcontext():
            return self._search(most)

    def _search(self, most):
        number = itertools.count()
        heap = [(0, 0, next(number), State(self._take(), Known()))]
        while heap and len(self.found.failures) < most:
            _, _, _, state = heapq.heappop(heap)
            self._put(state)
            try:
                state.key = canonical(
                    f"{shown(self.storage.saver)}\n{self.storage.unread(state.content)}\n{state.known.text()}"
                )
                if state.key in self.seen:
                    continue
                view = self.look()
            except Exception as error:
                state.broken = True
                self.seen[state.key] = state
                rule = "never damaged" if isinstance(error, DamagedError) else "get_state shows it"
                self._fail(rule, f"get_state raises {error!r}", state, ())
                continue
            if len(self.seen) >= self.bounds.states:
                self.found.complete = False
                break
            self.seen[state.key] = state
            self.found.deepest = max(self.found.deepest, state.depth)
            self._check_state(state, view)
            if state.broken or state.depth > DEEPEST:
                self.found.complete &= state.broken
                continue
            for following in self.following(state, view):
                heapq.heappush(heap, (following.faults, following.cost, next(number), following))
        self.found.states = len(self.seen)
        if self.found.complete:
            self._check_ends()
        return self.found

    def following(self, state: State, view):
        """The states that the next call, or the next two at once, can lead to."""
        left = self.bounds.faults - state.faults
        calls = self.possible(state, view)
        for call in calls:
            if call.again and not left:
                continue
            yield from self.outcomes(state, [call], left - call.again)
        if self.bounds.races and left:
            for pair in self.pairs(calls):
                yield from self.outcomes(state, pair, left - 1)

    def pairs(self, calls: Sequence[Call]):
        """Two clients at once: both answer, the same or different questions, or one goes on, or one call comes twice."""
        for first, second in itertools.combinations_with_replacement(calls, 2):
            if first.plain or second.plain or first.again or second.again or first.kind == INPUT:
                continue
            if first is second and first.kind == ANSWER:
                if first.run_id:
                    yield [first, second]
                    continue
                second = replace(
                    second, answers=tuple((q, id, f"{q}={int(a.split('=')[1]) + 1}") for q, id, a in second.answers)
                )
            elif second.run_id:
                second = replace(second, run_id=second.run_id + "0")
            yield [first, self._other_answers(first, second)]

    def _other_answers(self, first: Call, second: Call):
        mine = {answer for _, _, answer in first.answers}
        answers = tuple(
            (q, id, a if a not in mine else f"{q}={int(a.split('=')[1]) + 1}") for q, id, a in second.answers
        )
        return replace(second, answers=answers)

    def possible(self, state: State, view):
        """The calls that a client may do now."""
        if view.created_at is None:
            return [Call(INPUT, run_id="run-0" if self.bounds.named else ""), *self._again(state)]
        given = dict(state.known.given)
        questions = [(q.value, q.id, f"{q.value}={given.get(q.value, 0) + 1}") for q in view.interrupts]
        calls = []
        if questions:
            calls += [Call(ANSWER, (each,)) for each in questions]
            if len(questions) == 1:
                calls.append(Call(ANSWER, tuple(questions), plain=True))
            else:
                calls.append(Call(ANSWER, tuple(questions)))
            if self.bounds.named:
                name = f"run-{1 + sum(given.values())}"
                calls = [replace(each, run_id=name) for each in calls]
        if view.next:
            calls.append(Call(NONE))
        return [*calls, *self._again(state)]

    def _again(self, state: State):
        return [replace(each, again=True) for each in state.known.calls] if self.bounds.named else []

    def outcomes(self, state: State, calls: Sequence[Call], faults):
        """Every way in which these calls can end."""
        switches = self.bounds.switches if len(calls) > 1 else 0
        for script in scripts():
            results = self.run(state, calls, script, faults, switches)
            happened = faults - self.world.faults
            trace = self._traced(calls, results)
            known = self.learn(state, calls, results, trace, bool(happened))
            used = state.faults + happened + (len(calls) - 1) + sum(call.again for call in calls)
            cost = state.cost + 1 + self.world.cost
            depth = state.depth + len(calls) + self.world.cost
            following = State(self._take(), known, used, cost, state, trace, depth)
            following.broken = any(isinstance(each, Swapped) for result in results for each in _causes(result))
            if len(calls) == 1 and not happened and not calls[0].again:
                self.plain.append((state, following))
                if not isinstance(results[0], BaseException):
                    self._check_call(state, calls[0], results[0], trace)
            yield following

    def _traced(self, calls: Sequence[Call], results):
        name = [process.name for process, _, _ in self.clients]
        began = [f"{who}: {call}" for who, call in zip(name, calls, strict=False)]
        ended = [f"{who}: ... {_told(result)}" for who, result in zip(name, results, strict=False)]
        return (*began, *(f"    {line}" for line in self.world.trace), *ended)

    # -- the rules ------------------------------------------------------------------------------------------

    def _fail(self, rule, what, state: State, trace, kind=""):
        """Note a broken rule; of each kind, the cheapest way to it."""
        assert rule in RULES, rule
        known = self.found.failures.setdefault(f"{rule} {kind}", Failure(rule, what, [*state.told(), *trace]))
        known.count += 1

    def learn(
        self, state: State, calls: Sequence[Call], results, trace, disturbed
    ):
        """What clients know after their calls ended like this; looks at what must hold of each ending."""
        known = state.known
        given, acknowledged, unsure, again = dict(known.given), dict(known.acknowledged), {*known.unsure}, known.calls
        for call, result in zip(calls, results, strict=True):
            for question, _, answer in call.answers:
                given[question] = max(given.get(question, 0), int(answer.split("=")[1]))
            if isinstance(result, BaseException):
                self._check_error(state, calls, call, result, trace, disturbed)
                if not isinstance(result, UnknownInterruptError):
                    unsure |= {answer for _, _, answer in call.answers}
            else:
                if len(calls) == 1 and any(line.endswith((LOST, UNANSWERED)) for line in self.world.trace):
                    self._fail("failures are told", f"{call.kind} returns", state, trace)
                asked = [each.value for each in result.get("__interrupt__", ())]
                for question, _, answer in call.answers:
                    old = acknowledged.get(question)
                    if old is not None and old != answer and not call.again:
                        self._fail("one answer", f"{question}: {answer} was acknowledged after {old}", state, trace)
                    if not call.again or old is None:
                        acknowledged[question] = answer
                        unsure -= {each for each in unsure if each.startswith(question + "=")}
                for question in asked:
                    # What a call beside this one was told may be newer than what this one was.
                    if question in dict(known.acknowledged) or any(question == each[0] for each in call.answers):
                        self._fail(
                            "never asked again", f"{question} is asked after {acknowledged[question]}", state, trace
                        )
            # An answer without its id that was never taken is one to whatever is asked when it comes again.
            again = tuple(each for each in again if not each.plain or each.answers[0][2] in acknowledged.values())
            if call.run_id and not call.again:
                again = (*again, call)
        return Known(
            tuple(sorted(given.items())), tuple(sorted(acknowledged.items())), tuple(sorted(unsure)), again[-2:]
        )

    def _check_error(
        self,
        state: State,
        calls: Sequence[Call],
        call: Call,
        error: BaseException,
        trace,
        disturbed,
    ):
        for each in _causes(error):
            if isinstance(each, DamagedError):
                self._fail("never damaged", f"a call raises {each}", state, trace)
                return
            if isinstance(each, Swapped):
                self._fail("its own answer", str(each), state, trace)
                return
        if disturbed or isinstance(error, Dead):
            return
        if len(calls) > 1 or call.again:
            if not isinstance(error, (CheckpointConflictError, UnknownInterruptError)):
                self._fail("refused in words", f"{call.kind} raises {error!r}", state, trace)
            return
        rule = "what is shown is open" if _refused(error) else "the next call goes on"
        self._fail(rule, f"{call.kind} raises {error!r}", state, trace, f"{call.kind} {type(error).__name__}")

    def _check_call(self, state: State, call: Call, result, trace):
        """A call that nothing has disturbed, and that did not fail."""
        asked = {each.value for each in result.get("__interrupt__", ())}
        try:
            shown = {each.value for each in self.look().interrupts}
        except Exception:
            return  # told of the state that follows
        if asked != shown:
            self._fail(
                "get_state never lies",
                f"{call.kind} asks {sorted(asked)}, then get_state shows {sorted(shown)}",
                state,
                trace,
            )
        elif call.kind == NONE and not set(state.shown) <= asked:
            self._fail(
                "get_state never lies",
                f"get_state shows {state.shown}, then invoke(None) asks {sorted(asked)}",
                state,
                trace,
            )

    def _check_state(self, state: State, view):
        """What must hold of every state."""
        acknowledged = dict(state.known.acknowledged)
        state.shown = tuple(each.value for each in view.interrupts)
        state.ended = view.created_at is not None and not view.next
        for question in state.shown:
            if question in acknowledged:
                self._fail("never asked again", f"get_state shows {question}", state, ())
        if not state.ended:
            return
        log = sorted(view.values["log"])
        answers = {f"{entry[0]}{n}": answer for entry in log for n, answer in enumerate(entry[1:], 1)}
        if log != self.program.finished({each: answers.get(each, "") for each in self.program.questions}):
            self._fail("the same end", f"the log is {log}", state, ())
        for question, answer in answers.items():
            if not answer.startswith(question + "="):
                self._fail("its own answer", f"{question} was given {answer}", state, ())
            elif question in acknowledged and answer != acknowledged[question]:
                self._fail(
                    "what was acknowledged counts",
                    f"{question}: {acknowledged[question]} was, {answer} counts",
                    state,
                    (),
                )
            elif question not in acknowledged and answer not in state.known.unsure:
                self._fail(
                    "what was given counts", f"{question}: {answer} counts, given were {state.known.unsure}", state, ()
                )

    def _check_ends(self):
        """Whether plain clients reach the end from every state, if all goes well from there on."""
        before = {}
        for state, following in self.plain:
            before.setdefault(following.key, []).append(state.key)
        reached = {key for key, state in self.seen.items() if state.ended}
        todo = [*reached]
        while todo:
            for key in before.get(todo.pop(), ()):
                if key not in reached:
                    reached.add(key)
                    todo.append(key)
        for key, state in self.seen.items():  # the cheapest first
            if key not in reached and not state.broken:
                self._fail("never stuck", f"no call leads to the end; get_state shows {list(state.shown)}", state, ())


def _told(result):
    if isinstance(result, Dead):
        return "died"
    if isinstance(result, BaseException):
        return f"{type(result).__name__}: {result}"[:300]
    asked = [each.value for each in result.get("__interrupt__", ())]
    return f"asks {', '.join(asked)}" if asked else f"ends with {result['log']}"


def _refused(error: BaseException):
    """Whether an answer was refused because another run is said to have answered."""
    return isinstance(error, UnknownInterruptError) and error.reason == "answered"


def _causes(error):
    while isinstance(error, BaseException):
        yield error
        error = error.__cause__ or error.__context__
