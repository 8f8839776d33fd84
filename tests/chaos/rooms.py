"""Imports every room of trials, which fills `campaign.TRIALS`. Nothing else."""

from . import (  # noqa: F401
    batches,
    faults,
    fleets,
    forks,
    held_loops,
    hostile,
    keys,
    kills,
    lag,
    outages,
    power,
    protocol,
    queues,
    races,
    repeats,
    savers,
    schedules,
    suites,
    swaps,
    travel,
)
