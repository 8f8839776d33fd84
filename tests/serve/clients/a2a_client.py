"""A session of the official A2A client with a server; prints what it has seen as JSON."""

import asyncio
import json
import sys
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, A2AClientJSONError, ClientConfig, ClientFactory
from a2a.types import DataPart, Message, Part, Role, Task, TaskIdParams, TaskQueryParams, TextPart


def say(text, **place):
    part = Part(root=TextPart(text=text)) if isinstance(text, str) else Part(root=DataPart(data=text))
    return Message(role=Role.user, message_id=str(uuid4()), parts=[part], **place)


def shown(task):
    parts = [each.root for artifact in task.artifacts or () for each in artifact.parts]
    asked = [each.root for each in task.status.message.parts] if task.status.message else []
    return {
        "state": task.status.state.value,
        "text": "".join(each.text for each in parts if each.kind == "text"),
        "data": [each.data for each in parts if each.kind == "data"],
        "said": [each.text for each in asked if each.kind == "text"],
    }


async def last(client, message):
    found = None
    async for each in client.send_message(message):
        found = each[0] if isinstance(each, tuple) else each
    assert isinstance(found, Task), found
    return found


async def wrong(call):
    try:
        await call
    except A2AClientJSONError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def main(url):
    seen = {}
    async with httpx.AsyncClient(timeout=30) as http:
        cards = {name: await A2ACardResolver(http, f"{url}/a2a/{name}").get_agent_card() for name in ("desk", "flow")}
        default = await A2ACardResolver(http, url).get_agent_card()
        seen["cards"] = [default.name, cards["flow"].name, cards["flow"].protocol_version]
        streaming, waiting = (ClientFactory(ClientConfig(httpx_client=http, streaming=each)) for each in (True, False))
        desk, flow = streaming.create(cards["desk"]), waiting.create(cards["flow"])

        kinds = []
        async for found, event in desk.send_message(say("good day")):
            kinds.append(event.kind if event else "task")
            task = found
        seen["streamed"] = {"kinds": kinds, **shown(task)}
        joined = [each async for each in desk.resubscribe(TaskIdParams(id=task.id))]
        seen["joined"] = [shown(joined[-1][0]), joined[-1][1].kind]
        seen["again"] = shown(await desk.get_task(TaskQueryParams(id=task.id)))

        asking = await last(waiting.create(cards["desk"]), say("approve", context_id=task.context_id))
        seen["asking"] = shown(asking)
        place = {"context_id": asking.context_id, "task_id": asking.id}
        answered = await last(desk, say({"approved": True}, **place))
        seen["answered"] = {**shown(answered), "is_same": answered.id == asking.id}
        seen["kept"] = shown(await desk.get_task(TaskQueryParams(id=task.id)))["text"]
        seen["failed"] = shown(await last(desk, say("fail")))

        polling = ClientFactory(ClientConfig(httpx_client=http, streaming=False, polling=True)).create(cards["flow"])
        slow = await last(polling, say({"log": [], "topic": "slow"}))
        seen["begun"] = slow.status.state.value
        seen["cancelled"] = shown(await flow.cancel_task(TaskIdParams(id=slow.id)))["state"]
        seen["done"] = shown(await last(flow, say({"log": ["x"]})))
        seen["wrong"] = [
            await wrong(last(flow, say("only text"))),
            await wrong(flow.cancel_task(TaskIdParams(id=slow.id))),
            await wrong(flow.get_task(TaskQueryParams(id="unknown:unknown"))),
            await wrong(last(desk, say("more", task_id=task.id))),
        ]
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1]))
