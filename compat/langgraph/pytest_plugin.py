"""A test suite written for LangGraph runs on this engine.

    pytest -p stategraph.compat.langgraph.pytest_plugin

Or for good, in `pyproject.toml`: `addopts = "-p stategraph.compat.langgraph.pytest_plugin"`. pytest
loads it before any `conftest.py`, so that their imports find this engine.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from .finder import install

install()


def pytest_report_header() -> str:
    """What pytest prints above its results."""
    try:
        return f"langgraph: served by stategraph {version('stategraph')}"
    except PackageNotFoundError:
        return "langgraph: served by stategraph"
