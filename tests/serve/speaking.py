"""Commands over a WebSocket, as a client without the SDK sends them."""

import orjson
from websockets.sync.client import connect


def speak(url, *said, headers=None, last=False, thread="made-by-the-client"):
    """What a WebSocket answers to commands, one after the other; with `last`, until a run has ended."""
    place = f"{url.replace('http', 'ws')}/threads/{thread}/stream/events"
    with connect(place, additional_headers=headers, proxy=None) as socket:
        heard = []
        for each in said:
            socket.send(each if isinstance(each, str) else orjson.dumps(each).decode())
            heard.append(orjson.loads(socket.recv(10)))
        while last and not (heard[-1].get("method") == "lifecycle" and is_end(heard[-1])):
            heard.append(orjson.loads(socket.recv(10)))
        return heard


def is_end(event):
    params = event["params"]
    return not params["namespace"] and params["data"]["event"] in ("completed", "failed", "interrupted")
