"""States and the config that most small graphs of tests have."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Count(TypedDict):
    n: int
