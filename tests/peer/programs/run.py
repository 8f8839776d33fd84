"""Runs the programs that its input names, each in a fork of this process, which has imported what most of them import:
importing takes longer than running. Prints the exit status of each."""

import os
import runpy
import signal
import sys
import traceback

import deepagents  # noqa: F401
import langchain.agents  # noqa: F401
import langchain_openai  # noqa: F401
import langgraph_supervisor  # noqa: F401
import langgraph_swarm  # noqa: F401
import langmem  # noqa: F401
import program_cases  # noqa: F401
import trustcall  # noqa: F401


def run(program, output):
    """Run a program as `python` does; what it prints goes to a file."""
    signal.alarm(300)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv, status = [program], 0
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


for line in sys.stdin:
    if not (child := os.fork()):
        run(*line.split())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
