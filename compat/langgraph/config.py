"""Configs as LangGraph's programs read and make them."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables.config import RunnableConfig as RunnableConfig
from langchain_core.runnables.config import ensure_config as _ensure
from langchain_core.runnables.config import merge_configs as merge_configs
from langchain_core.runnables.config import patch_config as patch_config

from ...pregel.running import RUNNING
from .constants import CONF


def ensure_config(*configs: Any) -> Any:
    """A config with all its parts, merged from those given and that of the running node."""
    task = RUNNING.get()
    around = (task.config,) if task is not None else ()
    return _ensure(merge_configs(*around, *configs))


def patch_configurable(config: Any, patch: dict[str, Any]) -> Any:
    """A copy of a config with keys of `configurable` replaced."""
    given = config or {}
    return {**given, CONF: {**given.get(CONF, {}), **patch}}
