"""R20: any sequence of inputs, answers, updates, edits, replays and branches makes the history that a plain model says,
in both worlds; and nothing that was there before ever changes.

`HISTORY_STEPS=1000000 pytest tests/properties/test_history_model.py` makes that many steps per world, with new sequences each time.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings

from properties.history_model import CALLS, STEPS, World, follow
from properties.history_model import runner as runner

WANTED = os.environ.get("HISTORY_STEPS")
EXAMPLES = max(1, int(WANTED or 100 * settings.default.max_examples) // CALLS)


@pytest.mark.trial
@settings(
    max_examples=EXAMPLES, derandomize=WANTED is None, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip
@given(STEPS)
def test_any_sequence_of_calls_makes_the_history_that_the_model_says(runner, steps):
    follow(World(runner), steps)


