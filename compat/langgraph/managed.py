"""LangGraph's types of managed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeGuard

from ...pregel.runtime import ManagedValue

ManagedValueSpec: TypeAlias = type[ManagedValue]
ManagedValueMapping: TypeAlias = Mapping[str, ManagedValueSpec]


def is_managed_value(value: Any) -> TypeGuard[ManagedValueSpec]:
    """Whether a value is a class of managed values."""
    return isinstance(value, type) and issubclass(value, ManagedValue)


class IsLastStepManager(ManagedValue):
    """Whether this is the last superstep after which LangGraph could end without an error."""

    name = "IsLastStep"

    @staticmethod
    def get(remaining_steps: int) -> bool:
        """The value; LangGraph counts the superstep that takes the input, too."""
        return remaining_steps == 2


class RemainingStepsManager(ManagedValue):
    """How many supersteps LangGraph's limit leaves."""

    name = "RemainingSteps"

    @staticmethod
    def get(remaining_steps: int) -> int:
        """The value; LangGraph counts the superstep that takes the input, too."""
        return remaining_steps - 1


IsLastStep = Annotated[bool, IsLastStepManager]
RemainingSteps = Annotated[int, RemainingStepsManager]
