"""The routes of assistants (graphs with settings), their drawings and schemas."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from ..bodies import (
    AssistantBody,
    AssistantChange,
    AssistantSearch,
    DrawingQuery,
    Page,
    SubgraphsQuery,
    VersionBody,
)
from ..errors import Refused
from ..handlers import Handlers, route
from ..records import Record, containing, may_see, now, select
from ..service import answer, graph_assistant, new_assistant


class Assistants(Handlers):
    """The handlers of `/assistants`."""

    @route("POST /assistants")
    async def create(self, request: Request) -> Response:
        """Create an assistant."""
        owner = await self._user(request)
        body = await self._body(request, AssistantBody)
        if body.graph_id not in self._service.graphs:
            known = ", ".join(self._service.graphs)
            raise Refused(404, f"there is no graph {body.graph_id!r}; the graphs are: {known}")
        id = body.assistant_id or str(uuid4())
        create = partial(self._create, id, body, owner)
        return await self._records.change("assistants", id, create)

    async def _create(self, id: str, body: AssistantBody, owner: str | None) -> Response:
        found = await self._records.find("assistants", id)
        if found is not None:
            if body.if_exists == "do_nothing" and may_see(found, owner):
                return answer(select(found, None))
            raise Refused(409, f"there is an assistant {id!r} already")
        record = new_assistant(
            id,
            body.graph_id,
            owner or "",
            name=body.name or "Untitled",
            metadata=body.metadata,
            config=body.config,
            context=body.context,
            description=body.description,
        )
        await self._records.put(
            ("assistants", id, record),
            ("versions", "1", record, id),
            seen=[("assistants", id, None)],
        )
        return answer(select(record, None))

    @route("POST /assistants/search")
    async def search(self, request: Request) -> Response:
        """Send the assistants that match."""
        owner = await self._user(request)
        body = await self._body(request, AssistantSearch)
        found = await self._found(body, owner, body)
        return answer([select(each, body.select) for each in found])

    @route("POST /assistants/count")
    async def count(self, request: Request) -> Response:
        """Send how many assistants match."""
        owner = await self._user(request)
        body = await self._body(request, AssistantSearch)
        return answer(len(await self._found(body, owner, None)))

    async def _found(
        self, body: AssistantSearch, owner: str | None, page: Page | None
    ) -> list[Record]:
        wanted: dict[str, Any] = {}
        if body.metadata:
            wanted["metadata"] = containing(body.metadata)
        if body.graph_id is not None:
            wanted["graph_id"] = body.graph_id
        if body.name is not None:
            wanted["name"] = body.name
        cut = page.model_dump(include={*Page.model_fields} - {"select"}) if page else {}
        return await self._records.search("assistants", filter=wanted, owner=owner, **cut)

    @route("GET /assistants/{assistant_id}")
    async def get(self, request: Request) -> Response:
        """Send an assistant."""
        return answer(select(await self._one(request), None))

    async def _one(self, request: Request) -> Record:
        id = request.path_params["assistant_id"]
        return await self._service.assistant(id, await self._user(request))

    async def _own(self, request: Request) -> Record:
        """Return an assistant that the user may change."""
        assistant = await self._one(request)
        if assistant["assistant_id"] == graph_assistant(assistant["graph_id"]):
            graph = assistant["graph_id"]
            why = f"the assistant of the graph {graph!r} itself cannot be changed: create one"
            raise Refused(403, why)
        return assistant

    @route("PATCH /assistants/{assistant_id}")
    async def change(self, request: Request) -> Response:
        """Create a new version of an assistant, which becomes the latest."""
        await self._own(request)
        body = await self._body(request, AssistantChange)
        id = request.path_params["assistant_id"]
        return await self._records.change("assistants", id, partial(self._change, request, body))

    async def _change(self, request: Request, body: AssistantChange) -> Response:
        old = await self._own(request)
        given = {k: v for k, v in body.model_dump().items() if v is not None}
        if given.get("graph_id", old["graph_id"]) not in self._service.graphs:
            raise Refused(404, f"there is no graph {given['graph_id']!r}")
        if "metadata" in given:
            given["metadata"] = {**old["metadata"], **given["metadata"]}
        id = old["assistant_id"]
        versions = await self._records.search("versions", id)
        number = 1 + max(each["version"] for each in versions)
        new = {**old, **given, "version": number, "updated_at": now()}
        await self._records.put(
            ("assistants", id, new),
            ("versions", str(number), new, id),
            seen=[("assistants", id, old)],
        )
        return answer(select(new, None))

    @route("DELETE /assistants/{assistant_id}")
    async def delete(self, request: Request) -> Response:
        """Delete an assistant; its threads stay."""
        id = (await self._own(request))["assistant_id"]
        if request.query_params.get("delete_threads") == "true":
            raise Refused(422, "delete_threads is not offered: delete the threads one by one")
        async with self._records.lock("assistants", id):
            await self._records.put(("assistants", id, None))
            await self._records.delete_within("versions", id)
        return Response(status_code=204)

    @route("POST /assistants/{assistant_id}/versions")
    async def versions(self, request: Request) -> Response:
        """Send the versions of an assistant, the latest first."""
        id = (await self._one(request))["assistant_id"]
        body = await self._body(request, AssistantSearch)
        wanted = {"metadata": containing(body.metadata or {})}
        found = await self._records.search("versions", id, filter=wanted)
        found.sort(key=lambda each: int(each["version"]), reverse=True)
        page = found[body.offset : body.offset + body.limit]
        return answer([select(each, None) for each in page])

    @route("POST /assistants/{assistant_id}/latest")
    async def set_version(self, request: Request) -> Response:
        """Make an earlier version the latest again."""
        id = (await self._own(request))["assistant_id"]
        number = (await self._body(request, VersionBody)).version

        async def switch() -> Record:
            old = await self._own(request)
            version = await self._records.get("versions", str(number), id)
            record = {**version, "updated_at": now()}
            await self._records.put(("assistants", id, record), seen=[("assistants", id, old)])
            return record

        return answer(select(await self._records.change("assistants", id, switch), None))

    # -- its graph ---------------------------------------------------------------------------------

    @route("GET /assistants/{assistant_id}/graph")
    async def draw(self, request: Request) -> Response:
        """Send the nodes and edges of its graph."""
        app = self._service.graph((await self._one(request))["graph_id"])
        depth = self._query(request, DrawingQuery).xray
        drawing = await app.aget_graph(xray=depth)
        nodes = [{"id": id, "type": "runnable", "data": {"name": id}} for id in drawing.nodes]
        edges = [
            {"source": edge.source, "target": edge.target, "conditional": edge.conditional}
            for edge in drawing.edges
        ]
        return answer({"nodes": nodes, "edges": edges})

    @route("GET /assistants/{assistant_id}/schemas")
    async def schemas(self, request: Request) -> Response:
        """Send the JSON schemas of its graph."""
        name = (await self._one(request))["graph_id"]
        return answer({"graph_id": name, **_schemas(self._service.graph(name))})

    @route(
        "GET /assistants/{assistant_id}/subgraphs",
        "GET /assistants/{assistant_id}/subgraphs/{namespace:path}",
    )
    async def subgraphs(self, request: Request) -> Response:
        """Send the JSON schemas of the nested graphs, by namespace."""
        app = self._service.graph((await self._one(request))["graph_id"])
        namespace = request.path_params.get("namespace")
        recurse = self._query(request, SubgraphsQuery).recurse
        try:
            found = dict(app.get_subgraphs(namespace=namespace, recurse=recurse))
        except ValueError as error:
            raise Refused(404, str(error)) from None
        return answer({place: _schemas(inner) for place, inner in found.items()})


def _schemas(app: Any) -> dict[str, Any]:
    return {
        "input_schema": app.get_input_jsonschema(),
        "output_schema": app.get_output_jsonschema(),
        "state_schema": app.get_output_jsonschema(),
        "config_schema": {},
        "context_schema": app.get_context_jsonschema(),
    }
