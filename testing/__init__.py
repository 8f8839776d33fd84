"""Tools for testing graphs, such as running single nodes and fakes, and checks that checkpointers,
yours and ours, keep their guarantees under concurrency, kills, damage and hostile data.

Checkpointers: subclass `SaverChecks` for pytest, or call `check_saver`. README.md explains each
check. This module only collects names."""

from ..graph.loader import find_graph
from .answers import OPEN, Answers
from .asserts import CheckFailed, assert_same, difference
from .channels import CHANNEL_RULES, Example, check_channel
from .clock import VirtualTime, virtual_time
from .concurrency import Attempt, check_race
from .conformance import CHECKS, Check
from .coverage import Coverage, GraphCoverage, Outcome, measure_coverage
from .damage import damage_sqlite
from .fakes import replace, replaced
from .harness import Commits, Harness, Mode
from .models import ScriptedModel, tool_call
from .node_runs import NodeRun, arun_node, run_node
from .processes import CannotStart, KillAt, Ledger, ProcessEnd, Processes, kill
from .queue_clock import QueueClock, queue_clock
from .recorder import ReplayDiffers, arecord, areplay, record, replay
from .recording import RecordedRun, RecordedTask, Recording
from .storage import wrong_clock
from .suite import Case, CaseResult, SaverChecks, SuiteReport, check_saver
from .survival import Survival, survives
from .thread_reader import ThreadError, read_thread

__all__ = [
    # test a graph
    "run_node",
    "arun_node",
    "NodeRun",
    "Answers",
    "OPEN",
    "replace",
    "replaced",
    "find_graph",
    # record runs
    "record",
    "arecord",
    "replay",
    "areplay",
    "read_thread",
    "Recording",
    "RecordedRun",
    "RecordedTask",
    "ReplayDiffers",
    "ThreadError",
    # measure what has run
    "measure_coverage",
    "Coverage",
    "GraphCoverage",
    "Outcome",
    # kill, deliver again, race
    "survives",
    "Survival",
    "virtual_time",
    "VirtualTime",
    "queue_clock",
    "QueueClock",
    # run the suite
    "SaverChecks",
    "check_saver",
    "SuiteReport",
    "CaseResult",
    "Case",
    "Check",
    "CheckFailed",
    "CHECKS",
    # check a channel
    "check_channel",
    "CHANNEL_RULES",
    "Example",
    # write checks of your own
    "Harness",
    "Mode",
    "Commits",
    "assert_same",
    "difference",
    # test agents
    "ScriptedModel",
    "tool_call",
    # kill, and look at what is left
    "Processes",
    "ProcessEnd",
    "CannotStart",
    "KillAt",
    "kill",
    "Ledger",
    "Attempt",
    "check_race",
    # do harm
    "damage_sqlite",
    "wrong_clock",
]
