"""The peer's types of managed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ...pregel.runtime import ManagedValue

ManagedValueSpec: TypeAlias = type[ManagedValue]
ManagedValueMapping: TypeAlias = Mapping[str, ManagedValueSpec]
