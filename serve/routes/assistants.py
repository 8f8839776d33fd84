"""The routes of assistants (graphs with settings), their drawings and schemas."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from starlette.requests import Request

from ..bodies import (
    AssistantBody,
    AssistantChange,
    AssistantSearch,
    DrawingQuery,
    SubgraphsQuery,
    VersionBody,
)
from ..errors import Refused
from ..handlers import Handlers, User, route
from ..records import Put, Record, may_see, now, select
from ..service import graph_assistant, new_assistant


class Assistants(Handlers):
    """The handlers of `/assistants`."""

    @route("POST /assistants")
    async def create(self, owner: User, body: AssistantBody) -> Record:
        """Create an assistant."""
        if body.graph_id not in self._service.graphs:
            known = ", ".join(self._service.graphs)
            raise Refused(404, f"there is no graph {body.graph_id!r}; the graphs are: {known}")
        id = body.assistant_id or str(uuid4())
        given = body.model_dump(exclude={"assistant_id", "if_exists"})

        async def make() -> Record:
            found = await self._records.find("assistants", id)
            if found is not None:
                if body.if_exists == "do_nothing" and may_see(found, owner):
                    return found
                raise Refused(409, f"there is an assistant {id!r} already")
            record = new_assistant(id, owner or "", **{**given, "name": body.name or "Untitled"})
            await self._put(None, record)
            return record

        return select(await self._records.change("assistants", id, make), None)

    async def _put(self, old: Record | None, new: Record) -> None:
        """Store an assistant, also as one of its versions."""
        id = new["assistant_id"]
        version: Put = ("versions", str(new["version"]), new, id)
        seen: Put = ("assistants", id, old)
        await self._records.put(("assistants", id, new), version, seen=[seen])

    @route("POST /assistants/search")
    async def search(self, owner: User, body: AssistantSearch) -> list[Record]:
        """Send the assistants that match."""
        return await self._search("assistants", owner, body)

    @route("POST /assistants/count")
    async def count(self, owner: User, body: AssistantSearch) -> int:
        """Send how many assistants match."""
        return await self._records.count("assistants", body.filter, owner)

    @route("GET /assistants/{assistant_id}")
    async def get(self, assistant: Record) -> Record:
        """Send an assistant."""
        return select(assistant, None)

    async def _own(self, id: str, owner: User) -> Record:
        """Return an assistant that the user may change."""
        assistant = await self._service.assistant(id, owner)
        if assistant["assistant_id"] == graph_assistant(assistant["graph_id"]):
            graph = assistant["graph_id"]
            why = f"the assistant of the graph {graph!r} itself cannot be changed: create one"
            raise Refused(403, why)
        return assistant

    @route("PATCH /assistants/{assistant_id}")
    async def change(self, assistant_id: str, owner: User, body: AssistantChange) -> Record:
        """Create a new version of an assistant, which becomes the latest."""
        given = body.model_dump(exclude_none=True)

        async def change() -> Record:
            old = await self._own(assistant_id, owner)
            if given.get("graph_id", old["graph_id"]) not in self._service.graphs:
                raise Refused(404, f"there is no graph {given['graph_id']!r}")
            metadata = {**old["metadata"], **given.get("metadata", {})}
            versions = await self._records.search("versions", old["assistant_id"])
            number = 1 + max(each["version"] for each in versions)
            more = {"metadata": metadata, "version": number, "updated_at": now()}
            new = {**old, **given, **more}
            await self._put(old, new)
            return new

        return select(await self._records.change("assistants", assistant_id, change), None)

    @route("DELETE /assistants/{assistant_id}")
    async def delete(self, request: Request, assistant_id: str, owner: User) -> None:
        """Delete an assistant; its threads stay."""
        id = (await self._own(assistant_id, owner))["assistant_id"]
        if request.query_params.get("delete_threads") == "true":
            raise Refused(422, "delete_threads is not offered: delete the threads one by one")
        await self._records.delete("assistants", id, "versions")

    @route("POST /assistants/{assistant_id}/versions")
    async def versions(self, assistant: Record, body: AssistantSearch) -> list[Record]:
        """Send the versions of an assistant, the latest first."""
        id = assistant["assistant_id"]
        found = await self._records.search("versions", id, filter=body.filter)
        found.sort(key=lambda each: int(each["version"]), reverse=True)
        page = found[body.offset : body.offset + body.limit]
        return [select(each, None) for each in page]

    @route("POST /assistants/{assistant_id}/latest")
    async def set_version(self, assistant_id: str, owner: User, body: VersionBody) -> Record:
        """Make an earlier version the latest again."""
        id = (await self._own(assistant_id, owner))["assistant_id"]

        async def switch() -> Record:
            old = await self._own(id, owner)
            version = await self._records.get("versions", str(body.version), id)
            record = {**version, "updated_at": now()}
            await self._records.replace("assistants", id, old, record)
            return record

        return select(await self._records.change("assistants", id, switch), None)

    # -- its graph ---------------------------------------------------------------------------------

    @route("GET /assistants/{assistant_id}/graph")
    async def draw(self, assistant: Record, query: DrawingQuery) -> Record:
        """Send the nodes and edges of its graph."""
        app = self._service.graph(assistant["graph_id"])
        drawing = await app.aget_graph(xray=query.xray)
        nodes = [{"id": id, "type": "runnable", "data": {"name": id}} for id in drawing.nodes]
        edges = [
            {"source": edge.source, "target": edge.target, "conditional": edge.conditional}
            for edge in drawing.edges
        ]
        return {"nodes": nodes, "edges": edges}

    @route("GET /assistants/{assistant_id}/schemas")
    async def schemas(self, assistant: Record) -> Record:
        """Send the JSON schemas of its graph."""
        graph_id = assistant["graph_id"]
        return {"graph_id": graph_id, **_schemas(self._service.graph(graph_id))}

    @route(
        "GET /assistants/{assistant_id}/subgraphs",
        "GET /assistants/{assistant_id}/subgraphs/{namespace:path}",
    )
    async def subgraphs(
        self, assistant: Record, namespace: str | None, query: SubgraphsQuery
    ) -> Record:
        """Send the JSON schemas of the nested graphs, by namespace."""
        app = self._service.graph(assistant["graph_id"])
        try:
            found = dict(app.get_subgraphs(namespace=namespace, recurse=query.recurse))
        except ValueError as error:
            raise Refused(404, str(error)) from None
        return {place: _schemas(inner) for place, inner in found.items()}


def _schemas(app: Any) -> dict[str, Any]:
    return {
        "input_schema": app.get_input_jsonschema(),
        "output_schema": app.get_output_jsonschema(),
        "state_schema": app.get_output_jsonschema(),
        "config_schema": {},
        "context_schema": app.get_context_jsonschema(),
    }
