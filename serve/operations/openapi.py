"""`/openapi.json`: a description of the server's API, and `/docs`, the same as a page.

What a handler reads is found in the annotations of its parameters, by which it is called. So no
table can differ from what is served.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from inspect import cleandoc, isroutine, unwrap
from typing import Any, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

REFS = "#/components/schemas/{model}"
_OF_PAGE = re.compile("/(page/|$)")


def describe_api(routes: Iterable[Any], version: str) -> dict[str, Any]:
    """Return the description of an API in OpenAPI 3.1.

    Args:
        routes: those of the server. Mounted apps and what only the page asks for are left out.
        version: that of the server.
    """
    api = [each for each in routes if isinstance(each, Route) and not _OF_PAGE.match(each.path)]
    found = [(route, _find_models(route.endpoint)) for route in api]
    models = {model for _, read in found for model in read.values()}
    named = sorted(models, key=lambda model: model.__name__)
    ordered: list[Any] = [(each, "validation") for each in named]
    names, schemas = models_json_schema(ordered, ref_template=REFS)
    paths: dict[str, dict[str, Any]] = {}
    for route, read in found:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            refs = {how: names[model, "validation"] for how, model in read.items()}
            place = paths.setdefault(route.path_format, {})
            place[method.lower()] = _describe(route, method, refs, schemas["$defs"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "stategraph", "version": version},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _describe(
    route: Route, method: str, refs: dict[str, Any], schemas: dict[str, Any]
) -> dict[str, Any]:
    about = cleandoc(route.endpoint.__doc__ or "")
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path_format)
    ]
    told: dict[str, Any] = {
        "summary": " ".join(about.split("\n\n")[0].split()),
        "operationId": f"{method.lower()}{re.sub(r'[^a-z_]+', '_', route.path_format)}",
        "responses": {"200": {"description": "done"}, "4XX": {"description": "refused: `detail`"}},
    }
    body, query = refs.get("body"), refs.get("query")
    if {"GET", "POST"} <= (route.methods or set()):  # the same, said in the query or in the body
        body, query = (None, query or body) if method == "GET" else (body, None)
    if query is not None:
        fields = schemas[query["$ref"].rpartition("/")[2]].get("properties", {})
        parameters += [{"name": n, "in": "query", "schema": each} for n, each in fields.items()]
    if body is not None:
        told["requestBody"] = {"content": {"application/json": {"schema": body}}}
    if parameters:
        told["parameters"] = parameters
    return told


def _find_models(handler: Any) -> dict[str, type[BaseModel]]:
    """Return the models of what a handler reads, by "body" and "query"."""
    wanted = get_type_hints(unwrap(handler)) if isroutine(handler) else {}
    return {how: wanted[how] for how in ("body", "query") if how in wanted}


def draw_api(described: dict[str, Any]) -> str:
    """Return the description as a page."""
    rows = []
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            shown = escape(json.dumps(told, indent=2, ensure_ascii=False))
            head = f"<code>{method.upper()} {escape(path)}</code> {escape(told['summary'])}"
            rows.append(f"<details><summary>{head}</summary><pre>{shown}</pre></details>")
    schemas = escape(json.dumps(described["components"], indent=2, ensure_ascii=False))
    return (
        "<!doctype html><meta charset=utf-8><title>stategraph: the server's API</title>"
        '<meta name=viewport content="width=device-width">'
        "<h1>The server's API</h1><p>For programs: <a href=openapi.json>openapi.json</a></p>"
        f"{''.join(rows)}<h2>Schemas</h2><details><summary>all</summary><pre>{schemas}</pre></details>"
    )
