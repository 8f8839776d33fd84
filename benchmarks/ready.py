"""20 branches of unequal length into one node: wall time over the critical path.

`python benchmarks/ready.py` runs each engine in a fresh process, in turn, and prints the best of
its rounds. "one node each": branch number i is a node of (i + 1) * 50 ms. "unequal nodes": each
branch has ten nodes of random length, 5 to 100 ms, so that a barrier waits for the slowest of 20.
Behind all of them runs the node that joins them.
"""

import asyncio
import operator
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

BRANCHES, STEP, ROUNDS = 20, 0.05, 5
ENGINES = {
    "ready": ".venv",
    "ready, stored in memory": ".venv",
    "supersteps": ".venv",
    "pydantic-graph": ".bench-others",
    "LlamaIndex Workflows": ".bench-others",
}


def lengths(kind: str) -> list[list[float]]:
    """Of each branch the seconds of its steps."""
    if kind == "one node each":
        return [[STEP * (number + 1)] for number in range(BRANCHES)]
    dice = random.Random(1)
    return [[dice.uniform(0.1, 2) * STEP for _ in range(10)] for _ in range(BRANCHES)]


def ours(steps: list[list[float]], schedule: Any, saved: bool) -> Callable[[], Awaitable[Any]]:
    from typing_extensions import TypedDict

    from stategraph import START, InMemorySaver, StateGraph

    class State(TypedDict, total=False):
        done: Annotated[int, operator.add]

    def make(seconds: float) -> Any:
        async def node(state: State) -> State:
            await asyncio.sleep(seconds)
            return {"done": 1}

        return node

    async def last(state: State) -> State:
        return {"done": 1}

    graph = StateGraph(State)
    graph.add_node("last", last)
    ends = []
    for branch, each in enumerate(steps):
        before = START
        for number, seconds in enumerate(each):
            name = f"b{branch}_{number}"
            graph.add_node(name, make(seconds)).add_edge(before, name)
            before = name
        ends.append(before)
    graph.add_edge(ends, "last")
    app = graph.compile(InMemorySaver() if saved else None, schedule=schedule)
    count = iter(range(10**6))

    async def run() -> None:
        config = {"configurable": {"thread_id": str(next(count))}} if saved else {}
        found = await app.ainvoke({"done": 0}, config)
        assert found["done"] == sum(map(len, steps)) + 1

    return run


def pydantic_graph(steps: list[list[float]]) -> Callable[[], Awaitable[Any]]:
    from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

    g = GraphBuilder(output_type=list)
    join = g.join(reduce_list_append, initial_factory=list)
    edges = []
    for branch, each in enumerate(steps):
        made = []
        for number, seconds in enumerate(each):

            async def node(ctx: StepContext[None, None, Any], seconds: float = seconds) -> int:
                await asyncio.sleep(seconds)
                return 1

            made.append(g.step(node, node_id=f"b{branch}_{number}"))
        for before, after in zip(made, [*made[1:], join], strict=True):
            g.add_edge(before, after)
        edges.append(made[0])
    g.add(g.edge_from(g.start_node).to(*edges))
    g.add_edge(join, g.end_node)
    graph = g.build()

    async def run() -> None:
        assert len(await graph.run(inputs=None)) == len(steps)

    return run


def llama_index(steps: list[list[float]]) -> Callable[[], Awaitable[Any]]:
    from workflows import Context, Workflow, step
    from workflows.events import Event, StartEvent, StopEvent

    class Work(Event):
        branch: int
        number: int

    class Done(Event):
        branch: int

    class Spread(Workflow):
        @step
        async def begin(self, context: Context, event: StartEvent) -> Work | None:
            for branch in range(len(steps)):
                context.send_event(Work(branch=branch, number=0))

        @step(num_workers=len(steps))
        async def work(self, event: Work) -> Work | Done:
            await asyncio.sleep(steps[event.branch][event.number])
            if event.number + 1 < len(steps[event.branch]):
                return Work(branch=event.branch, number=event.number + 1)
            return Done(branch=event.branch)

        @step
        async def last(self, context: Context, event: Done) -> StopEvent | None:
            found = context.collect_events(event, [Done] * len(steps))
            return None if found is None else StopEvent(result=len(found))

    async def run() -> None:
        assert await Spread(timeout=None).run() == len(steps)

    return run


def measure(engine: str, kind: str) -> float:
    """Wall time over the critical path: the best of the rounds."""
    steps = lengths(kind)
    if engine == "pydantic-graph":
        run = pydantic_graph(steps)
    elif engine == "LlamaIndex Workflows":
        run = llama_index(steps)
    else:
        run = ours(steps, "supersteps" if engine == "supersteps" else "ready", "," in engine)

    async def work() -> list[float]:
        await run()  # warm
        found = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await run()
            found.append(time.perf_counter() - began)
        return found

    return min(asyncio.run(work())) / max(map(sum, steps))


def main(root: Path) -> None:
    for kind in ("one node each", "unequal nodes"):
        print(f"{kind}: wall time over the critical path")
        for engine, venv in ENGINES.items():
            python = root / venv / "bin" / "python"
            if not python.exists():
                print(f"  {engine:26} - (make {'others' if 'others' in venv else 'test'})")
                continue
            command = [str(python), "-P", __file__, engine, kind]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            shown = done.stdout.strip() or done.stderr.strip().splitlines()[-1]
            print(f"  {engine:26} {shown}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(f"{measure(*sys.argv[1:]):.3f}")
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
