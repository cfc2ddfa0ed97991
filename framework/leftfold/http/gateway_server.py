"""The server of a gateway: uvicorn with limits for slow and large requests, and an end that fails no request."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leftfold.http.access import Access
from leftfold.http.problems import PROBLEM_JSON, Problem, ProblemError, problem_response, refusal

__all__ = ["BODY_SECONDS", "MAX_BODY_BYTES", "PART_SECONDS", "GatewayServer", "RequestLimits"]

_MAX_HEADER_BYTES = 65_536
"""The longest request line with its headers."""
MAX_BODY_BYTES = 1_048_576
BODY_SECONDS = 30.0
PART_SECONDS = "leftfold.part_seconds"
"""Where a batch finds how long each of its lines may take."""
_MOST_BODIES = 256
"""How many bodies of the largest size all running requests may hold together."""
_HEAD_SECONDS = 10.0
_LINGER_SECONDS = 2.0
_DRAIN_SECONDS = 10
_MAX_CONNECTIONS = 20_000
_STALL_SECONDS = 30.0
_SETTINGS: dict[str, Any] = {
    # Longer than the 60 seconds for which load balancers keep idle connections: one that the server closes first
    # fails the request that is just on its way.
    "timeout_keep_alive": 75,
    # uvicorn counts idle connections as load here, so that idle ones would fail the requests of others. Connections
    # have a limit of their own below, and bodies one of their bytes in the gateway.
    "limit_concurrency": None,
    # Connections that wait to be accepted; the kernel's own limit (net.core.somaxconn) is 4096 by default.
    "backlog": 2048,
    "timeout_graceful_shutdown": _DRAIN_SECONDS,
    "ws": "none",
    "ws_max_size": 1_000_000,  # of a message to the console, as in its own protocol; uvicorn would hold 16 MB of each
    # The address of a caller is that of its connection, by which proxies are known: no header may change it.
    "proxy_headers": False,
    "server_header": False,
    "access_log": False,
    "log_level": "warning",
}


class RequestLimits:
    """Refuses headers and bodies that are too large or too slow; batches are read line by line, however large.

    The body of a command is read for callers alone who have said who they are: others could fill what all may hold.
    """

    def __init__(
        self, app: ASGIApp, access: Access, max_bytes: int = MAX_BODY_BYTES, body_seconds: float = BODY_SECONDS
    ) -> None:
        self._app, self._max, self._seconds, self._access = app, max_bytes, body_seconds, access
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or refuses one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_command = scope["method"] == "POST" and scope["path"].startswith("/commands/")
        is_batch, size, has_more = is_command and scope["path"].endswith(":batch"), 0, True
        scope[PART_SECONDS] = self._seconds
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def limited() -> Message:
            nonlocal size, has_more
            if is_batch or not has_more:  # a batch limits the time of its lines; else it waits for the connection's end
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise refusal(408, f"the body took more than {self._seconds:g} s") from error
            has_more = message.get("more_body", False)
            length = len(message.get("body", b""))
            size += length
            self._held += length
            if size > self._max:
                raise refusal(413, f"the body has more than {self._max:,} bytes")
            if self._held > _MOST_BODIES * self._max:
                raise refusal(503, "the bodies of all requests together are too large at the moment")
            return message

        try:
            self._check_size(scope["headers"], is_batch=is_batch)
            if is_command:
                await self._access.principal(Request(scope))
        except ProblemError as error:
            await problem_response(error, scope)(scope, receive, send)
            return
        try:
            await self._app(scope, limited, send)
        finally:
            self._held -= size

    def _check_size(self, headers: Iterable[tuple[bytes, bytes]], *, is_batch: bool) -> None:
        if sum(len(name) + len(value) for name, value in headers) > _MAX_HEADER_BYTES:
            raise refusal(431, f"the headers have more than {_MAX_HEADER_BYTES:,} bytes")
        length = dict(headers).get(b"content-length", b"")
        if length.isdigit() and (len(length) > 15 or int(length) > self._max) and not is_batch:
            raise refusal(413, f"the body has more than {self._max:,} bytes")


class GatewayServer(uvicorn.Server):
    """A server of a gateway, which drains when it ends.

    It first stops listening; what had connected is still answered. Connections that are kept open end with their next
    answer, for which it waits two seconds, and running requests have ten.

    Args:
        host, port: where it listens; port 0 is a free one. head_seconds: how long a request line with its headers may
            take, and the rest of a body that was refused before its end. max_connections: further ones are refused.
        stall_seconds: how long a client may read nothing of its answer; then the connection ends.
        options: further settings of uvicorn.
    """

    def __init__(
        self,
        api: FastAPI,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        head_seconds: float = _HEAD_SECONDS,
        max_connections: int = _MAX_CONNECTIONS,
        stall_seconds: float = _STALL_SECONDS,
        **options: Any,
    ) -> None:
        self._api = api
        limits = {
            "head_seconds": head_seconds,
            "max_connections": max_connections,
            "stall_seconds": stall_seconds,
        }
        protocol = type("LimitedConnection", (_Connection,), limits)
        super().__init__(uvicorn.Config(_Answered(api), host=host, port=port, http=protocol, **(_SETTINGS | options)))

    @property
    def port(self) -> int:
        """The port on which it listens, once it has started."""
        found: int = self.servers[0].sockets[0].getsockname()[1]
        return found

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening and waits for the answers of running requests."""
        # Requests that come from now on get this header, and uvicorn closes their connections behind the answer.
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        await self._stop_listening()
        # Listeners come back elsewhere, and continue behind their last event.
        await asyncio.gather(*(end() for end in getattr(self._api.state, "feeds", ())))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LINGER_SECONDS
        while self.server_state.connections and loop.time() < deadline and not self.force_exit:  # noqa: ASYNC110  # as uvicorn
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    async def _stop_listening(self) -> None:
        """Closes the listeners, and accepts what has connected: closing alone would reset it."""
        loop, waiting = asyncio.get_running_loop(), list[socket.socket]()
        for server in self.servers:
            kept = [socket.socket(fileno=os.dup(one.fileno())) for one in server.sockets]
            server.close()
            for listener in kept:
                with listener:
                    listener.setblocking(False)
                    while True:
                        try:
                            waiting.append(listener.accept()[0])
                        except OSError:
                            break
        for one in waiting:
            one.setblocking(False)
            await loop.connect_accepted_socket(self._protocol, one, ssl=self.config.ssl)

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return made


class _Answered:
    """The application, whose requests get an answer also when uvicorn cancels them because the server ends."""

    def __init__(self, api: ASGIApp) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._api(scope, receive, begin)
        except asyncio.CancelledError:
            if has_begun or scope["type"] != "http":
                raise
            await problem_response(refusal(503, "this gateway ends; ask again"), scope)(scope, receive, send)


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem_response(refusal(503, "this gateway has as many connections as it may have"), scope)
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)


class _Connection(HttpToolsProtocol):
    """A connection whose requests have limits before the gateway sees them; uvicorn limits only the time between them.

    What is refused here gets a problem document as everything else. The connection then ends for writing, and what
    still comes is thrown away for a moment: closing it with unread bytes would take the answer from the client.
    """

    head_seconds = _HEAD_SECONDS
    max_connections = _MAX_CONNECTIONS
    stall_seconds = _STALL_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _waiting: asyncio.TimerHandle | None = None
    """It ends the wait for a client that reads nothing of its answer."""
    _is_refused = False
    _part = ""
    """What of a request is being read: its head, its body, or neither."""
    _head_bytes = _trailer_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        elif len(self.connections) > self.max_connections:
            self.app = _refuse_connection
        self._start_timer(self.head_seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_waiting()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_progress()

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def _await_progress(self, unread: float = inf) -> None:
        """Ends the connection when its client reads nothing for a while; what was not sent yet is thrown away."""
        if (size := self.transport.get_write_buffer_size()) < unread:
            self._waiting = self.loop.call_later(self.stall_seconds, self._await_progress, size)
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._part != "head":
            self._head_bytes = 0
        elif self._head_bytes > _MAX_HEADER_BYTES:  # the parser keeps headers of any size
            self._refuse(refusal(431, f"the headers have more than {_MAX_HEADER_BYTES:,} bytes").problem)
        if self._trailer_bytes > _MAX_HEADER_BYTES:
            self.transport.close()
        self._watch()

    def on_message_begin(self) -> None:
        self._part = "head"
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # uvicorn would add the trailers of a body to its headers, which proxies and the limit above have let through.
        if self._part == "body":
            self._trailer_bytes += len(name) + len(value)
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._part, self._trailer_bytes = "body", 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._part = ""
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        self._refuse(refusal(400, "this is no HTTP request").problem)

    def _watch(self) -> None:
        """Starts the timer of a head, or of the rest of a body that was answered before its end; else stops it."""
        if self._is_refused or self.transport.is_closing():
            return
        if self._part == "head":
            self._start_timer(self.head_seconds, self._late)
        elif self._part == "body" and self.cycle.response_complete:
            self._start_timer(self.head_seconds, self.transport.close)
        else:
            self._stop_timer()

    def _late(self) -> None:
        if self._part == "head":
            self._refuse(refusal(408, f"the headers took more than {self.head_seconds:g} s").problem)
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        self._is_refused = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        body = problem.model_dump_json().encode()
        head = f"HTTP/1.1 {problem.status} {problem.title}\r\ncontent-type: {PROBLEM_JSON}\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._start_timer(_LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def _start_timer(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
