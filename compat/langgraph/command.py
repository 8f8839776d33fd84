"""`python -m stategraph langgraph app.py`: a program written for the peer, run by this engine."""

from __future__ import annotations

import argparse
import runpy
import sys
from typing import NoReturn


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """What the command takes."""
    parser.add_argument("--check", action="store_true", help="only name what it uses and lacks")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    return parser


def main(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Run or check the program; the exit code."""
    if given.check:
        from .check import check_program

        return check_program(given.program, module=given.module)
    run_program(given.program, given.arguments, module=given.module)


def run_program(program: str, arguments: list[str], *, module: bool) -> NoReturn:
    """Run a program as `__main__`, with `langgraph` served by this engine."""
    from . import install

    install()
    sys.argv = [program, *arguments]
    if module:
        sys.path.insert(0, "")
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
    raise SystemExit(0)
