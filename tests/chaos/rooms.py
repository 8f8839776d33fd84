"""Imports every room of trials, which fills `campaign.TRIALS`. Nothing else."""

from . import faults, fleets, hostile, keys, kills, lag, outages, power, races, savers, schedules, suites, travel  # noqa: F401
