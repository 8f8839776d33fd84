"""Channels hold the state between supersteps. Each says how it takes writes and how long it keeps
them.

Import channels from here. They know nothing of nodes, checkpointers or the engine.
"""

from .aggregate import BinaryOperatorAggregate, Overwrite
from .base import MISSING, BaseChannel, ChannelStatus, EmptyChannelError, InvalidUpdateError
from .ephemeral_value import AnyValue, EphemeralValue
from .last_value import LastValue, LastValueAfterFinish, UntrackedValue
from .named_barrier import NamedBarrierValue, NamedBarrierValueAfterFinish
from .topic import Topic

__all__ = [
    "BaseChannel",
    "ChannelStatus",
    # one value
    "LastValue",
    "LastValueAfterFinish",
    "AnyValue",
    "EphemeralValue",
    "UntrackedValue",
    # many writes
    "BinaryOperatorAggregate",
    "Overwrite",
    "Topic",
    # joins
    "NamedBarrierValue",
    "NamedBarrierValueAfterFinish",
    # no value, and refusals
    "MISSING",
    "EmptyChannelError",
    "InvalidUpdateError",
]
