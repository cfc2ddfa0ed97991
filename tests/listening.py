"""An HTTP server on this machine whose answers are those of a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

__all__ = ["Request", "listening"]


class Request(NamedTuple):
    """A request as it came."""

    path: str
    headers: Message
    body: bytes


@contextmanager
def listening(answer: Callable[[Request], tuple[int, bytes]]) -> Iterator[str]:
    """The address of a server that listens until the block ends.

    Args:
        answer: status and body of the answer to a request.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, text = answer(Request(self.path, self.headers, body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815  # as http.server calls it

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing, since no test reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
