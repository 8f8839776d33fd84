"""The demo: a graph reads a folder of Python files concurrently, its process is killed, another one
resumes it, a person answers a question, and a page shows what happened.

    stategraph demo [FOLDER] [--out FOLDER]

`list_files` finds the files, each `read` is one task, `count` adds up, `ask` asks how to rank, and
`rank` sorts. The graph comes first, as a user would write it; below it is the program that shows
it. `stategraph demo` itself starts the processes that read, with an option that the help hides.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from stategraph import (
    END,
    START,
    Command,
    RunnableConfig,
    Send,
    SqliteSaver,
    StateGraph,
    StateSnapshot,
    StreamWriter,
    __version__,
    interrupt,
    report,
    timeline,
)

SKIPPED = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
MEASURES = ("lines", "functions", "imports")
FUNCTION = re.compile(rb"^\s*(?:async )?def ", re.MULTILINE)
IMPORT = re.compile(rb"^\s*(?:import|from) +(\w+)", re.MULTILINE)

# -- the graph -------------------------------------------------------------------------------------


class File(TypedDict):
    """The input of one task."""

    path: str


class Facts(TypedDict):
    """The result of one task."""

    path: str
    lines: int
    functions: int
    imports: list[str]


class State(TypedDict):
    """The state. Many tasks write `facts` in one superstep; the reducer, +, joins their lists in a
    fixed order."""

    folder: str
    files: list[str]
    facts: Annotated[list[Facts], add]
    totals: dict[str, int]
    measure: str
    table: list[tuple[str, int]]


def list_files(state: State) -> dict[str, Any]:
    """List all Python files of the folder, except tests."""
    return {"files": [str(path) for path in find_files(Path(state["folder"]))]}


def one_task_per_file(state: State) -> list[Send]:
    """Map: return one task per file."""
    return [Send("read", {"path": path}) for path in state["files"]]


def read(file: File, writer: StreamWriter) -> dict[str, Any]:
    """Read one file, and report it to the stream."""
    source = Path(file["path"]).read_bytes()
    facts = Facts(
        path=file["path"],
        lines=len(source.splitlines()),
        functions=len(FUNCTION.findall(source)),
        imports=[name.decode() for name in IMPORT.findall(source)],
    )
    writer(file["path"])
    return {"facts": [facts]}


def count(state: State) -> dict[str, Any]:
    """Reduce: add up the facts, once, after all files."""
    facts = state["facts"]
    return {
        "totals": {
            "files": len(facts),
            "lines": sum(each["lines"] for each in facts),
            "functions": sum(each["functions"] for each in facts),
            "imports": sum(len(each["imports"]) for each in facts),
        }
    }


def ask(state: State) -> dict[str, Any]:
    """Ask a person until the answer is valid. No process has to run meanwhile."""
    question = f"Rank by {', '.join(MEASURES[:-1])} or {MEASURES[-1]}?"
    answer = interrupt(question)
    while answer not in MEASURES:
        answer = interrupt(f"{answer!r} is none of them. {question}")
    return {"measure": answer}


def rank(state: State) -> dict[str, Any]:
    """Rank files by lines or functions, or modules by how often they are imported."""
    facts, measure = state["facts"], state["measure"]
    if measure == "imports":
        numbers = Counter(name for each in facts for name in each["imports"])
    else:
        folder = state["folder"]
        numbers = Counter(
            {os.path.relpath(each["path"], folder): Counter(each)[measure] for each in facts}
        )
    return {"table": sorted(numbers.items(), key=lambda row: (-row[1], row[0]))[:5]}


def build(read: Callable[..., Any] = read) -> StateGraph[State]:
    """Return the graph. `compile` decides where its threads are stored."""
    graph = StateGraph(State)
    graph.add_node("list_files", list_files)
    graph.add_node("read", read)
    graph.add_node("count", count)
    graph.add_node("ask", ask)
    graph.add_node("rank", rank)
    graph.add_edge(START, "list_files")
    graph.add_conditional_edges("list_files", one_task_per_file, ["read"])
    graph.add_edge("read", "count")
    graph.add_edge("count", "ask")
    graph.add_edge("ask", "rank")
    graph.add_edge("rank", END)
    return graph


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, sorted by name."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        for path in (Path(place, name) for name in sorted(files) if name.endswith(".py")):
            if path.is_file() and os.access(path, os.R_OK):
                yield path


# -- a process that reads --------------------------------------------------------------------------

THREAD: RunnableConfig = {
    "configurable": {"thread_id": "demo"},
    "max_concurrency": os.cpu_count() or 2,
}


class Doomed:
    """A `read` that kills its process after a number of files, as `kill -9` does.

    Attributes:
        shown: set when these files are shown; the kill waits for it.
    """

    def __init__(self, files: int) -> None:
        self.shown = threading.Event()
        if not files:
            self.shown.set()
        self._left = files
        self._lock = threading.Lock()

    def __call__(self, file: File, writer: StreamWriter) -> dict[str, Any]:
        """Read one file, or kill the process."""
        with self._lock:
            self._left -= 1
        if self._left < 0:
            self.shown.wait()
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return read(file, writer)


def read_files(folder: Path, store: Path, kill_after: int | None) -> None:
    """Run the graph until it asks. Resume the thread if the file already has it."""
    with SqliteSaver.from_conn_string(str(store)) as saver:
        doomed = None if kill_after is None else Doomed(kill_after)
        app = build(doomed or read).compile(checkpointer=saver, name="demo")
        stored = app.get_state(THREAD)
        given = {"folder": str(folder)} if stored.metadata is None else None
        bar = Bar(len([*find_files(folder)]), count_read(stored))
        for name in app.stream(given, THREAD, stream_mode="custom"):
            bar.advance(os.path.relpath(name, folder))
            if doomed and bar.done == kill_after:
                doomed.shown.set()


def count_read(stored: StateSnapshot) -> int:
    """Return how many files have been read, according to what is stored; this includes the finished
    tasks of an unfinished superstep."""
    return len(stored.values.get("facts", ()))


class Bar:
    """A progress bar: one changing line in a terminal, otherwise a line for each quarter."""

    WIDTH = 32

    def __init__(self, total: int, done: int) -> None:
        self.done: int = done
        self._total = total
        self._live = sys.stdout.isatty()
        utf = (sys.stdout.encoding or "").lower().startswith("utf")
        self._signs = "█░" if utf else "#."

    def advance(self, name: str) -> None:
        """Count one more file."""
        before, self.done = self.done, self.done + 1
        if self._live:
            full = self.WIDTH * self.done // self._total
            bar = self._signs[0] * full + self._signs[1] * (self.WIDTH - full)
            room = shutil.get_terminal_size().columns - self.WIDTH - 24
            shown = name if len(name) <= room else name[: max(0, room)]
            text = f"   {bar} {self.done:,} of {self._total:,}  {shown}"
            print(f"\r\x1b[K{text}", end="", flush=True)
        elif before * 4 // self._total < self.done * 4 // self._total:
            print(f"   {self.done:,} of {self._total:,} files", flush=True)


# -- the program -----------------------------------------------------------------------------------


def run(folder: Path, out: Path) -> None:
    """Run the whole demo, and write the page and the database of the thread into a folder.

    Raises:
        RuntimeError: a process that reads has ended in an unexpected way.
    """
    files = len([*find_files(folder)])
    python = os.path.relpath(sys.executable)
    out.mkdir(parents=True, exist_ok=True)
    store, page = out / "stategraph-demo.db", out / "report.html"
    for end in ("", "-wal", "-shm"):
        Path(f"{store}{end}").unlink(missing_ok=True)
    print(f"stategraph {__version__} reads {folder}")

    say_title(1, "The graph, drawn from the table that runs")
    utf = (sys.stdout.encoding or "").lower().startswith("utf")
    show_indented(build().compile().get_graph().draw_ascii(unicode=utf))

    say_title(2, f"One task for each file ({files:,}), side by side in one superstep")
    code, process = start_reader(folder, store, files // 2)
    if code in (0, 1, 2):
        raise RuntimeError(f"the process that reads must be killed, got its exit code {code}")
    print(f"   process {process} was killed in the middle of the superstep (kill -9)")

    with SqliteSaver.from_conn_string(str(store)) as saver:
        app = build().compile(checkpointer=saver, name="demo")
        say_title(3, f"Another process continues from what is stored in {store}")
        kept = count_read(app.get_state(THREAD))
        print(f"   done before the kill, and not done again: {kept:,} of {files:,}")
        code, process = start_reader(folder, store, None)
        if code:
            raise RuntimeError(f"the process that reads must end with code 0, got {code}")

        say_title(4, "A question; the thread waits in its file, and no process with it")
        while questions := app.get_state(THREAD).interrupts:
            app.invoke(Command(resume=answer(questions[0].value)), THREAD)

        result = app.get_state(THREAD).values
        say_title(5, f"The result: the most {result['measure']}")
        for name, number in result["table"]:
            print(f"   {number:>8,}  {name}")
        totals = ", ".join(f"{number:,} {what}" for what, number in result["totals"].items())
        print(f"   of {totals}")

        say_title(6, "What ran when, in both processes")
        show_indented(timeline(app, THREAD).draw_text(width=90))
        report(app, THREAD, page)
    print(f"\nwrote {page}: each step, task and value of this run; open it in a browser")
    print(f"wrote {store}: the thread. To list its steps:")
    print(f"   {python} -m stategraph history --db {store} --thread demo")


def start_reader(folder: Path, store: Path, kill_after: int | None) -> tuple[int, int]:
    """Run a process that reads, and return its exit code and its process id."""
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "stategraph", "demo", str(folder), "--out", str(store)]
    command += ["--reader", "none" if kill_after is None else str(kill_after)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        code = process.wait()
    if sys.stdout.isatty():
        print()  # ends the progress line
    return code, process.pid


def say_title(number: int, text: str) -> None:
    """Print the title of a part."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{number}  {text}{plain}", flush=True)


def show_indented(text: str) -> None:
    """Print a text, indented."""
    for line in text.rstrip().splitlines():
        print(f"   {line}".rstrip())


def answer(question: str) -> str:
    """Return the answer from the terminal, or the first measure if there is no terminal."""
    print(f"   {question} [{MEASURES[0]}] ", end="", flush=True)
    if not sys.stdin.isatty():
        print(f"{MEASURES[0]}   (no terminal: the default)")
        return MEASURES[0]
    return sys.stdin.readline().strip() or MEASURES[0]


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Declare the arguments of the program."""
    text = "a folder of Python files (default: the standard library)"
    parser.add_argument("folder", nargs="?", type=Path, help=text)
    out = Path("stategraph-demo")
    text = "the folder to write the thread and the page into (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help=text)
    parser.add_argument("--reader", metavar="FILES", help=argparse.SUPPRESS)
    return parser


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """Add the demo as a command of `stategraph`."""
    add_arguments(parser).set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Run the demo with parsed arguments; invalid ones end it with a message and exit code 2."""
    folder = Path(asked.folder or sysconfig.get_path("stdlib")).resolve()
    if asked.reader is not None:
        read_files(folder, asked.out, None if asked.reader == "none" else int(asked.reader))
        return 0
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        parser.error(f"FOLDER must be a folder, got {asked.folder}, which {wrong}")
    if next(find_files(folder), None) is None:
        parser.error(f"FOLDER must hold Python files, got {folder}, which holds none")
    try:
        run(folder, asked.out)
    except OSError as error:
        parser.error(f"{error.filename or asked.out}: {error.strerror}")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def parse(words: Sequence[str] | None = None) -> int:
    """Run the demo as a standalone program."""
    parser = add_arguments(argparse.ArgumentParser("demo", description="What stategraph is for."))
    return main(parser, parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(parse())
