"""The engine: a frozen graph, a pure machine, one loop, two drivers. Start reading at
`run/loop.py`."""

from .app import Pregel
from .errors import *  # noqa: F403
from .errors import __all__ as _errors
from .policies import NodePolicies
from .program.node import NodeBuilder, PregelNode
from .program.version import rename_node
from .program.writes import (
    PASSTHROUGH,
    SKIP_WRITE,
    ChannelWrite,
    ChannelWriteEntry,
    ChannelWriteTupleEntry,
    Writer,
)
from .types import *  # noqa: F403
from .types import __all__ as _types

__all__ = [
    "Pregel",
    "NodeBuilder",
    "NodePolicies",
    "PregelNode",
    "Writer",
    "ChannelWrite",
    "ChannelWriteEntry",
    "ChannelWriteTupleEntry",
    "PASSTHROUGH",
    "SKIP_WRITE",
    "rename_node",
    *_types,
    *_errors,
]
