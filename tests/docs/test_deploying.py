"""The how-to on deploying a new version, walked through as it is written, on a real database."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.fleet import until

from stategraph import Command
from stategraph.lab import whatif
from stategraph.workers import Queue

PAGE = (Path(__file__).parents[2] / "docs/how-to/deploying.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def graphs():
    """The two versions of the page, as modules."""
    old, new, migration = PYTHON
    old = old[: old.index("old =")]
    new = new[: new.index("new =")]
    migration = migration.splitlines()[0]
    end = 'compile(name="shop", version='
    return f'{old}\napp = first.{end}"1")\n', f'{old}\n{new}\n{migration}\napp = second.{end}"2", migrate=migration)\n'


@pytest.mark.trial
def test_a_new_version_is_deployed_as_the_how_to_says(postgres, tmp_path):
    running, coming = tmp_path / "running", tmp_path / "coming"
    for folder, graph in zip((running, coming, running / "new"), (*graphs(), graphs()[1]), strict=True):
        folder.mkdir()
        (folder / "shop.py").write_text(graph)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    proof, cohort, rollout = ([line for line in block.splitlines() if line.startswith("stategraph")] for block in BLOCKS)

    def command(line):
        line = line.partition("#")[0].replace("postgresql://...", shlex.quote(postgres))
        return [sys.executable, "-P", "-m", *shlex.split(line)]

    def run(line, folder):
        return subprocess.run(command(line), cwd=folder, env=env, capture_output=True, text=True, timeout=120)

    with ExitStack() as stack, Queue.from_conn_string(postgres, "shop") as queue:
        queue.setup()

        def work(line):
            worker = stack.enter_context(subprocess.Popen(command(line), cwd=running, env=env, stderr=subprocess.DEVNULL))
            stack.callback(worker.kill)

        one, two, ramp, versions = rollout
        work(one)
        queue.submit("order 1", {"item": "tea", "price": 250})
        assert queue.result("order 1", wait=60).status == "paused"

        proved = run(proof[0], coming)
        assert (proved.returncode, proved.stdout.split("\n")[0]) == (0, "0 same, 0 migrates, 1 changes, 0 breaks"), proved
        saved = run(cohort[0], running)
        assert saved.returncode == 0, saved

        work(two)
        until(lambda: len(queue.versions()) == 2)
        assert "version 2 takes 10% of the new threads" in run(ramp, running).stdout
        told = run(versions, running).stdout
        assert "version 1\t0 jobs, 1 paused threads" in told and "10% of the new threads" in told, told
        queue.submit("order 1", Command(resume="yes"), run_id="answer")
        assert queue.result("order 1", run_id="answer", wait=60).value == {"item": "tea, yes, paid", "price": 250}
        assert "version 1\tdrained" in run(versions, running).stdout

    names = {}
    exec(graphs()[0], names)
    whatif(names["app"], running / "tests/cohort").check(different=0)
