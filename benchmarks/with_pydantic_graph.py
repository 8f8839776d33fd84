"""One case with pydantic-graph: `python with_pydantic_graph.py CASE` prints one number.

Its builder's steps are async functions that share one mutable state object: nothing is copied for
them, merged at a barrier or stored, and a step's return value goes to the next. So it has the async
cases without a saver only.
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("pydantic_graph"))
    return CASES[case]()


@dataclass
class Count:
    n: int = 0


def chain(length: int, rounds: int) -> Any:
    """Steps one after the other; the last leads back to the first until `rounds` are done."""
    from pydantic_graph import GraphBuilder, StepContext

    g = GraphBuilder(state_type=Count, output_type=str)

    async def tick(ctx: StepContext[Count, None, object]) -> str:
        ctx.state.n += 1
        return "again" if ctx.state.n < rounds * length else "end"

    steps = [g.step(tick, node_id=f"n{i}") for i in range(length)]
    for before, after in zip([g.start_node, *steps], steps, strict=False):
        g.add_edge(before, after)
    if rounds == 1:
        g.add_edge(steps[-1], g.end_node)
    else:
        choice = g.decision().branch(
            g.match(str, matches=lambda word: word == "again").to(steps[0])
        )
        g.add(g.edge_from(steps[-1]).to(choice.branch(g.match(str).to(g.end_node))))
    return g.build()


def spread() -> Any:
    """Its `map`: one run of a step for each item of its input, joined in a list."""
    from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

    g = GraphBuilder(input_type=list, output_type=list)

    async def items(ctx: StepContext[None, None, Any]) -> list[int]:
        return list(range(ctx.inputs))

    async def double(ctx: StepContext[None, None, int]) -> int:
        return 2 * ctx.inputs

    join = g.join(reduce_list_append, initial_factory=list)
    first, work = g.step(items, node_id="items"), g.step(double, node_id="double")
    g.add_edge(g.start_node, first)
    g.add(
        g.edge_from(first).map().to(work),
        g.edge_from(work).to(join),
        g.edge_from(join).to(g.end_node),
    )
    return g.build()


def timed(run: Any, units: int, calls: int = 1) -> float:
    """Seconds per unit; a round is so many calls."""
    from timing import abest

    async def work() -> None:
        for _ in range(calls):
            await run()

    return asyncio.run(abest(work, units * calls))


def p2_async() -> float:
    from sizes import INVOKES

    graph = chain(3, 1)
    return timed(lambda: graph.run(state=Count()), 1, INVOKES)


def p3() -> float:
    from sizes import STEPS

    graph = chain(1, STEPS)
    return timed(lambda: graph.run(state=Count()), STEPS)


def p7_async() -> float:
    from sizes import INVOKES

    graph = spread()
    return timed(lambda: graph.run(inputs=5), 1, INVOKES)


def p9() -> float:
    from sizes import SENDS

    graph = spread()
    return timed(lambda: graph.run(inputs=SENDS), SENDS)


CASES = {"P2-async": p2_async, "P3": p3, "P7-async": p7_async, "P9": p9}

print(main(sys.argv[1]))
