"""A stand-in for a model's server on this machine: speaks the chat-completions protocol, with answers written down."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = tuple[str, bytes]  # content type, body


def events(deltas):
    chunks = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    return "text/event-stream", "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"]).encode()


def whole(message):
    return "application/json", json.dumps({"choices": [{"message": {"role": "assistant", **message}}]}).encode()


@contextmanager
def server(answers: list[Answer]):
    """A stand-in for a model's server on this machine, and what it was asked: path, key, body. At the end: error 500."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, self.headers["Authorization"], body))
            if len(requests) > len(answers):
                self.send_response(500, "Oh")
                kind, content = "text/plain", b"no more answers"
            else:
                self.send_response(200)
                kind, content = answers[len(requests) - 1]
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}/v1", requests
        finally:
            httpd.shutdown()
            thread.join()
