"""Spellings that LangGraph has replaced: they work, with its warnings."""

from __future__ import annotations

import warnings as _warnings
from collections.abc import Mapping
from typing import Any, Final

from .warnings import (
    LangGraphDeprecatedSinceV05,
    LangGraphDeprecatedSinceV10,
    LangGraphDeprecationWarning,
)

_REPLACED: Final[Mapping[str, tuple[str, type[LangGraphDeprecationWarning]]]] = {
    "config_schema": ("context_schema", LangGraphDeprecatedSinceV10),
    "input": ("input_schema", LangGraphDeprecatedSinceV05),
    "output": ("output_schema", LangGraphDeprecatedSinceV05),
    "retry": ("retry_policy", LangGraphDeprecatedSinceV05),
}


def rename(deprecated: Mapping[str, Any], *, level: int = 3) -> dict[str, Any]:
    """Keyword arguments under the names that they have today; each old one with a warning.

    Args:
        level: how many calls up the program is that used them.

    Raises:
        TypeError: one of them never existed.
    """
    found = {}
    for old, value in deprecated.items():
        if old not in _REPLACED:
            raise TypeError(f"unexpected keyword argument {old!r}")
        new, category = _REPLACED[old]
        text = f"`{old}` is deprecated and will be removed. Please use `{new}` instead"
        _warnings.warn(category(text), stacklevel=level)
        if value is not None:
            found[new] = value
    return found
