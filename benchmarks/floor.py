"""The floor of one case: `python floor.py CASE` prints one number. The floors themselves are in
`floors.py`."""

import sys

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        # Two standard modules that an engine with async faces and a database needs.
        return fresh.measure(case, lambda: [__import__("asyncio"), __import__("sqlite3")])
    if case.startswith("P26"):
        return fresh.process("-c", "import asyncio, sqlite3")
    from floors import FLOORS

    return FLOORS[case]()


print(main(sys.argv[1]))
