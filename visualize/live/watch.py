"""Live views of a run: the same call as `invoke`, with a view of the graph that is kept up to
date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import Unpack

from ...pregel.app import Pregel, check_compiled
from ...pregel.run.config import Options
from ...pregel.types import AnyConfig
from .view import RunView, ViewName, afind_earlier, find_earlier, show_call


def watch(
    app: Pregel,
    input: Any,
    config: AnyConfig | None = None,
    *,
    xray: bool | int = False,
    view: ViewName | RunView | None = None,
    **options: Unpack[Options],
) -> Any:
    """Run as `app.invoke(input, config, **options)` does, and show the graph's progress.

    Args:
        xray: show subgraphs too: True for all, a number for that many levels.
        view: "notebook" for a picture below the cell, "table" for a live table in a terminal (needs
            `rich`), "lines" for plain lines, one per superstep, or an object with the method of
            `RunView`. None chooses what fits.

    Returns:
        What `invoke` returns.

    Raises:
        TypeError: `app` is not a compiled graph.
        ModuleNotFoundError: the view needs a package that is not installed.
        ValueError: there is no such view.
        Exception: what `invoke` raises.
    """
    _check(app, options)
    with show_call(app, xray, view, options, find_earlier(app, input, config)):
        return app.invoke(input, config, **options)


async def awatch(
    app: Pregel,
    input: Any,
    config: AnyConfig | None = None,
    *,
    xray: bool | int = False,
    view: ViewName | RunView | None = None,
    **options: Unpack[Options],
) -> Any:
    """Do the same as `watch`, for coroutines."""
    _check(app, options)
    with show_call(app, xray, view, options, await afind_earlier(app, input, config)):
        return await app.ainvoke(input, config, **options)


def _check(app: Pregel, options: Mapping[str, Any]) -> None:
    check_compiled(app)
    if options.get("observer") is not None:
        raise TypeError("watch has an observer of its own: pass yours to invoke(progress=True)")
