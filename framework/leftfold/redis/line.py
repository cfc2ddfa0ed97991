"""One asyncio connection that many coroutines share: their commands leave together, replies come back in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

__all__ = ["Line"]


class _Owed:
    """Replies that one exchange waits for; they are counted off even if nobody waits any more."""

    __slots__ = ("count", "future", "replies")

    def __init__(self, count: int, future: asyncio.Future[list[Any]]) -> None:
        self.count, self.future, self.replies = count, future, list[Any]()


class Line(asyncio.Protocol):
    """Sends what all coroutines ask within one tick of the loop in one write, and hands replies out in order.

    When the server owes replies and says nothing for `timeout` seconds, the line is broken, as when the connection is
    lost: every exchange under way raises OSError, and the line is of no more use.

    Args:
        told: called with (channel, message) of what the connection has subscribed to.
    """

    def __init__(self, timeout: float, told: Callable[[bytes, bytes], None] | None = None) -> None:
        self._timeout, self._told = timeout, told
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=ConnectionError)
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._scheduled = self._paused = False
        self._owed: deque[_Owed] = deque()
        self._heard = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[BaseException | None] = self._loop.create_future()

    @property
    def usable(self) -> bool:
        """Whether it is open."""
        return self._transport is not None

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """Sends packed commands and returns their replies, errors of commands among them.

        Cancelling it gives up on the replies; the commands may have been sent.

        Raises:
            OSError: the connection is lost.
        """
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if not self._owed:
            self._heard = self._loop.time()
            self._watch()
        self._owed.append(_Owed(len(commands), future))
        self._outgoing += commands
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return await future

    def close(self) -> None:
        """Closes the connection; `closed` tells when it is."""
        self._break(ConnectionResetError("the connection was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = transport  # type: ignore[assignment]  # the loop gives stream protocols such a transport

    def data_received(self, data: bytes) -> None:
        """Some replies came."""
        self._heard = self._loop.time()
        gets, owed = self._reader.gets, self._owed
        try:
            self._reader.feed(data)
            while (reply := gets()) is not False:
                if self._told is not None and isinstance(reply, list) and reply[:1] == [b"message"]:
                    self._told(reply[1], reply[2])
                elif not owed:
                    raise ConnectionError(f"the server sent a reply that nobody asked for: {reply!r}")
                else:
                    first = owed[0]
                    first.replies.append(reply)
                    if len(first.replies) == first.count:
                        owed.popleft()
                        if not first.future.done():
                            first.future.set_result(first.replies)
        except ConnectionError as error:
            self._break(error)

    def pause_writing(self) -> None:
        """The server takes no more for now."""
        self._paused = True

    def resume_writing(self) -> None:
        """The server takes more."""
        self._paused = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._break(error or ConnectionResetError("the server closed the connection"))
        if not self.closed.done():
            self.closed.set_result(error)

    def _flush(self) -> None:
        self._scheduled = False
        if self._outgoing and not self._paused and self._transport is not None:
            data, self._outgoing = b"".join(self._outgoing), []
            self._transport.write(data)

    def _watch(self) -> None:
        if self._watchdog is None:
            self._watchdog = self._loop.call_at(self._heard + self._timeout, self._check)

    def _check(self) -> None:
        self._watchdog = None
        if not self._owed:
            return
        if self._loop.time() - self._heard >= self._timeout:
            self._break(TimeoutError(f"no reply for {self._timeout:g} s"))
        else:
            self._watch()

    def _break(self, error: BaseException) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        while self._owed:
            future = self._owed.popleft().future
            if not future.done():
                future.set_exception(ConnectionResetError(str(error)))
        self._outgoing.clear()
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()
