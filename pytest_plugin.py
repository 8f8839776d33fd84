"""The pytest plugin: coverage of graphs, and runs that are recorded beside their tests.

pytest loads it in every project that has this package installed, so nothing of the package is
loaded before somebody asks for something. Without it: `-p no:stategraph`.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from .testing.coverage import Coverage
    from .testing.recording import Recording

SENT: Final = "stategraph_coverage"
"""Under this name a worker of pytest-xdist sends what has run in it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("stategraph", "graphs made with stategraph")
    group.addoption(
        "--graph-coverage",
        action="append",
        nargs="?",
        const="",
        default=None,
        metavar="MODULE:GRAPH",
        help="report which nodes, edges and answers of routers have run; a graph that is named is "
        "reported even if it does not run (repeatable)",
    )
    group.addoption(
        "--graph-coverage-fail-under",
        type=float,
        metavar="PERCENT",
        help="fail if less than this has run",
    )
    group.addoption(
        "--record-graphs",
        action="store_true",
        help="the fixture replay_graph writes its files anew",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure, where that is asked for."""
    asked = config.getoption("--graph-coverage")
    if asked is None and config.getoption("--graph-coverage-fail-under") is None:
        return
    config.pluginmanager.register(GraphCoveragePlugin(config, asked or []), "stategraph-coverage")


class GraphCoveragePlugin:
    """Measures a whole test run.

    Attributes:
        coverage: what has run so far.
    """

    def __init__(self, config: pytest.Config, targets: list[str]) -> None:
        from .graph.loader import find_graph
        from .pregel.errors import StateGraphError
        from .testing.coverage import measure_coverage

        try:
            graphs = [find_graph(target) for target in targets if target]
        except StateGraphError as error:
            raise pytest.UsageError(f"--graph-coverage: {error}") from error
        self.config = config
        self.failed: bool = False
        self._stack = ExitStack()
        self.coverage: Coverage = self._stack.enter_context(measure_coverage(*graphs))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Add what has run in a worker of pytest-xdist."""
        sent = getattr(node, "workeroutput", {}).get(SENT)
        if sent is not None:
            self.coverage.add(pickle.loads(sent))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail where too little has run."""
        self._stack.close()
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[SENT] = pickle.dumps(self.coverage)
            return
        least = self.config.getoption("--graph-coverage-fail-under")
        self.failed = least is not None and self.coverage.percent < least
        if self.failed and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show what has run."""
        terminalreporter.section("graph coverage")
        terminalreporter.write_line(self.coverage.report() or "no graph has run")
        least = self.config.getoption("--graph-coverage-fail-under")
        if self.failed:
            terminalreporter.write_line(
                f"{self.coverage.percent:.0f} % of the graphs has run, less than {least:g} %",
                red=True,
            )


@pytest.fixture
def graph_coverage() -> Iterator[Coverage]:
    """What runs of graphs in this test: a `stategraph.testing.Coverage`."""
    from .testing.coverage import measure_coverage

    with measure_coverage() as coverage:
        yield coverage


@pytest.fixture
def replay_graph(request: pytest.FixtureRequest) -> Callable[..., Recording]:
    """Replay a recorded run of a graph, whose file lies in the folder `recordings` beside the test:
    `replay_graph(app, input, answers=[...], recorded=["model"])`.

    With `pytest --record-graphs` the graph runs for real, and the file is written. Else the run is
    compared with the file; nodes in `recorded` do not run. A test may call it several times.
    """
    calls = 0

    def run(
        app: Any,
        *inputs: Any,
        answers: Any = (),
        recorded: Any = (),
        ignore: Any = (),
        **options: Any,
    ) -> Recording:
        nonlocal calls
        from .testing.asserts import CheckFailed
        from .testing.recorder import record, replay

        calls += 1
        suffix = "" if calls == 1 else f"-{calls}"
        folder = request.path.parent / "recordings"
        path = folder / f"{request.path.stem}-{_file_name(request.node.name)}{suffix}.json"
        if request.config.getoption("--record-graphs"):
            recording = record(app, *inputs, answers=answers, **options)
            folder.mkdir(exist_ok=True)
            recording.save(path)
            return recording
        if not path.exists():
            raise CheckFailed(
                f"{path} is not there: run pytest --record-graphs once, look at what it wrote, and "
                "keep it with the tests"
            )
        return replay(path, app, recorded=recorded, ignore=ignore, **options)

    return run


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_") or "graph"
