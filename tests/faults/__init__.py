"""The chaos campaign: the promises of docs/explanation/reliability.md, each held against faults that are made on purpose.

`make chaos` runs all of it at full size, `tests/faults/test_chaos.py` at a quick one. Only the rooms are named here.
"""
