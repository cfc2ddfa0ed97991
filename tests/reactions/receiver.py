"""A receiver of webhooks that remembers idempotency keys, and tells senders when to die."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Receiver", "receiving"]

Judge = Callable[[str, str, int], str]
"""Says `ok`, `die` or `refuse` to a request: (path, event id, how many there were of this path, with this one)."""


class Receiver:
    """What has arrived, by path."""

    def __init__(self, judge: Judge) -> None:
        self.url = ""
        self.effects: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By path the event of each key: what a receiver that remembers keys has done."""
        self.posts: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self._judge, self._lock = judge, threading.Lock()

    def take(self, path: str, key: str, event: str) -> str:
        """Has the effect, unless the key is known or the request refused; the answer."""
        with self._lock:
            self.posts[path] += 1
            verdict = self._judge(path, event, self.posts[path])
            if verdict == "die":
                self.deaths[path] += 1
            if verdict != "refuse":
                self.effects[path].setdefault(key, event)
            return verdict


@contextmanager
def receiving(judge: Judge = lambda path, event, number: "ok") -> Iterator[Receiver]:
    """A receiver that listens at `url` while the block runs."""
    receiver = Receiver(judge)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            verdict = receiver.take(self.path, self.headers["Idempotency-Key"], self.headers["Event"])
            self.send_response(503 if verdict == "refuse" else 200)
            self.send_header("Content-Length", str(len(verdict)))
            self.end_headers()
            self.wfile.write(verdict.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing, since no test reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
