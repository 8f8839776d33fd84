"""Configs as the peer's programs read and make them."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables.config import RunnableConfig as RunnableConfig
from langchain_core.runnables.config import ensure_config as _ensure
from langchain_core.runnables.config import merge_configs as _merge
from langchain_core.runnables.config import patch_config as _patch

from ...pregel.running import RUNNING
from ...pregel.runtime import get_config as _get_config
from .constants import CONF


def get_config() -> Any:
    """The config of the running node.

    Raises:
        RuntimeError: called outside of a node.
    """
    return _get_config()


def ensure_config(*configs: Any) -> Any:
    """A config with all its parts, merged from those given and that of the running node."""
    task = RUNNING.get()
    around = (task.config,) if task is not None else ()
    return _ensure(_merge(*around, *configs))


def merge_configs(*configs: Any) -> Any:
    """One config from several; later ones win."""
    return _merge(*configs)


def patch_config(config: Any, **changes: Any) -> Any:
    """A copy of a config with parts replaced."""
    return _patch(config, **changes)


def patch_configurable(config: Any, patch: dict[str, Any]) -> Any:
    """A copy of a config with keys of `configurable` replaced."""
    given = config or {}
    return {**given, CONF: {**given.get(CONF, {}), **patch}}
