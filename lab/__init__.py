"""The lab: stored threads run again with one thing changed, and asked why and since when.

`whatif` runs threads again and says what would have been different; `why` leads from a value to the
tasks that made it; `since` finds the step from which on something holds; `compare` puts two threads
side by side. Threads are only read. This module only collects names.
"""

from .calls import Call, Usage
from .compare import Comparison, compare
from .langgraph import read_langgraph
from .since import Since, since
from .threads import find_threads
from .trials import Trial, Trials
from .whatif import awhatif, whatif
from .why import Cause, Why, why, why_not

__all__ = [
    "Call",
    "Cause",
    "Comparison",
    "Since",
    "Trial",
    "Trials",
    "Usage",
    "Why",
    "awhatif",
    "compare",
    "find_threads",
    "read_langgraph",
    "since",
    "whatif",
    "why",
    "why_not",
]
