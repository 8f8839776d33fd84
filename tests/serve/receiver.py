"""A receiver of webhooks on loopback."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stategraph.serve import webhooks


class Receiver(ThreadingHTTPServer):
    """Answers with the statuses that it is given, then with 200, and keeps what it was sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = []
        self.got = []
        self.place = f"http://127.0.0.1:{self.server_port}/hooks"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, json.loads(body)))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"{self.server.place}/redirected")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_): ...


@pytest.fixture
def receiver(monkeypatch):
    monkeypatch.setattr(webhooks, "PAUSES", (0.0, 0.0))
    with Receiver() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()
