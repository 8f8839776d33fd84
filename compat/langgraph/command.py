"""`python -m stategraph langgraph app.py`: a program written for LangGraph, run by this engine."""

from __future__ import annotations

import argparse
import runpy
import sys

from .check import check_program
from .finder import install


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    check = "only list what the program uses that is missing here"
    parser.add_argument("--check", action="store_true", help=check)
    module = "PROGRAM is the name of a module"
    parser.add_argument("-m", dest="module", action="store_true", help=module)
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program")
    parser.set_defaults(run=main)


def main(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Run or check the program; the exit code."""
    if given.check:
        return check_program(given.program, module=given.module)
    run_program(given.program, given.arguments, module=given.module)
    return 0


def run_program(program: str, arguments: list[str], *, module: bool) -> None:
    """Run a program as `__main__`, with `langgraph` served by this engine."""
    install()
    sys.argv = [program, *arguments]
    if module:
        sys.path.insert(0, "")
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
