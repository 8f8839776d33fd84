"""One case with LlamaIndex Workflows: `python with_llama_index.py CASE` prints one number.

A workflow is a class whose async steps take an event and return the next: there are no edges, no
state that is merged, no supersteps and no saver of its own. The number that goes round travels in
the event. So it has the async cases without a saver only.
"""

import asyncio
import sys
from typing import Any

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("workflows"))
    from timing import abest

    flow, units, calls = CASES[case]()

    async def work() -> None:
        for _ in range(calls):
            await flow.run()

    return asyncio.run(abest(work, units * calls))


def p2_async() -> tuple[Any, int, int]:
    from sizes import INVOKES
    from workflows import Workflow, step
    from workflows.events import Event, StartEvent, StopEvent

    class ToB(Event):
        n: int

    class ToC(Event):
        n: int

    class Chain(Workflow):
        @step
        async def a(self, event: StartEvent) -> ToB:
            return ToB(n=1)

        @step
        async def b(self, event: ToB) -> ToC:
            return ToC(n=event.n + 1)

        @step
        async def c(self, event: ToC) -> StopEvent:
            return StopEvent(result=event.n + 1)

    return Chain(timeout=None), 1, INVOKES


def p3() -> tuple[Any, int, int]:
    from sizes import STEPS
    from workflows import Workflow, step
    from workflows.events import Event, StartEvent, StopEvent

    class Tick(Event):
        n: int

    class Loop(Workflow):
        @step
        async def begin(self, event: StartEvent) -> Tick:
            return Tick(n=0)

        @step
        async def tick(self, event: Tick) -> Tick | StopEvent:
            n = event.n + 1
            return Tick(n=n) if n < STEPS else StopEvent(result=n)

    return Loop(timeout=None), STEPS, 1


def p7_async() -> tuple[Any, int, int]:
    from sizes import INVOKES
    from workflows import Context, Workflow, step
    from workflows.events import Event, StartEvent, StopEvent

    class Work(Event):
        i: int

    class Done(Event):
        i: int

    class Spread(Workflow):
        @step
        async def begin(self, context: Context, event: StartEvent) -> Work | None:
            for i in range(5):
                context.send_event(Work(i=i))

        @step(num_workers=5)
        async def work(self, event: Work) -> Done:
            return Done(i=2 * event.i)

        @step
        async def join(self, context: Context, event: Done) -> StopEvent | None:
            found = context.collect_events(event, [Done] * 5)
            return None if found is None else StopEvent(result=[done.i for done in found])

    return Spread(timeout=None), 1, INVOKES // 5 or 1


CASES = {"P2-async": p2_async, "P3": p3, "P7-async": p7_async}

print(main(sys.argv[1]))
