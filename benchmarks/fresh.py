"""What a fresh process costs: the time of an import, and the memory held after it. Imports next to
nothing itself."""

from collections.abc import Callable
from time import perf_counter


def seconds(load: Callable[[], object]) -> float:
    """How long `load` takes."""
    start = perf_counter()
    load()
    return perf_counter() - start


def megabytes() -> float:
    """Resident memory of this process (Linux)."""
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def measure(case: str, load: Callable[[], object]) -> float:
    """P13-time in seconds, or P13-memory in MB."""
    spent = seconds(load)
    return spent if case == "P13-time" else megabytes()
