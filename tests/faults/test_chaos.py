"""The chaos campaign at its quick size. At full size: `make chaos`."""

import pytest

from faults import bugs_above, bugs_below, bugs_protocol, bugs_savers, rooms  # noqa: F401  # these fill BUGS and TRIALS
from faults.__main__ import main
from faults.campaign import QUICK, TRIALS, Bench, Round, Trial, run_trial
from faults.planted import BUGS
from stategraph.testing import Processes


@pytest.fixture(scope="module")
def processes():
    with Processes() as found:
        yield found


@pytest.mark.trial
@pytest.mark.parametrize("trial", [pytest.param(each, id=f"{each.promise}-{name}") for name, each in sorted(TRIALS.items())])
def test_every_guarantee_holds_at_the_quick_size(trial, processes):
    record = run_trial(trial, range(trial.rounds(QUICK)), processes=processes)
    assert not record.failures, "\n".join(record.failures)
    if record.skipped or not record.rounds:
        pytest.skip(record.skipped or "only at full size: make chaos")


def test_a_stopped_campaign_resumes(tmp_path):
    done = []
    trial = Trial("R0", "counts", "", 3, 9, lambda round: done.append(round.number))
    path = tmp_path / "counts.json"
    run_trial(trial, range(4), path=path)
    record = run_trial(trial, range(6), path=path)
    assert done == [0, 1, 2, 3, 4, 5] and record.rounds == 6


def test_a_failure_says_how_to_see_it_again():
    def run(round):
        assert round.number != 1, "one"

    record = run_trial(Trial("R0", "fails", "", 3, 9, run), range(3), seed=7)
    assert record.rounds == 3 and len(record.failures) == 1
    assert 'make chaos ARGS="--only fails --seed 7 --round 1"' in record.failures[0]


def test_a_round_is_a_function_of_its_seed_and_number():
    with Bench() as bench:
        drawn = [Round(bench, "any", 1, number).random.random() for number in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_planted_bug_is_removed_afterwards():
    bug = BUGS["fork_reuses_keys"]
    run_trial(TRIALS[bug.caught_by], range(1), bug="fork_reuses_keys")
    assert not run_trial(TRIALS[bug.caught_by], range(1)).failures


def test_the_command_line_lists_and_repeats(capsys):
    assert main(["--list", "--only", "R3"]) == 0
    assert "keys_are_stable" in capsys.readouterr().out
    assert main(["--only", "keys_are_stable", "--round", "3"]) == 0
    assert main(["--only", "keys_are_stable", "--round", "0", "--planted", "fork_reuses_keys"]) == 1
    assert "is the same on the fork" in capsys.readouterr().out
