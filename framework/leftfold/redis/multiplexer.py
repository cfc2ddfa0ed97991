"""The asyncio connection of one event loop, opened when needed and again after it was lost."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from leftfold.redis.failures import refuse_errors, unreachable
from leftfold.redis.line import Line
from leftfold.redis.packing import packed
from leftfold.redis.sentinels import ROLE, why_no_master
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology, topology_of
from leftfold.redis.wire import greeting
from leftfold.redis.wording import Command, Wording

__all__ = ["Multiplexer", "open_line"]

A = TypeVar("A")


async def open_line(
    server: RedisSettings, told: Callable[[bytes, bytes], None] | None = None, *, leads: bool = False
) -> Line:
    """Connects and logs in.

    Args:
        leads: the server is asked for its role, and refused unless it is a master.

    Raises:
        OSError: the server cannot be reached, or does not lead.
        ConfigurationError: it refuses the login.
    """
    line = Line(server.timeout, told)
    try:
        try:
            async with asyncio.timeout(server.connect_timeout):
                await _dial(server, line)
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"no answer for {server.connect_timeout:g} s") from error
        hello = [*greeting(server), *([ROLE] if leads else ())]
        replies = await line.exchange(hello) if hello else []
        refuse_errors(server, replies, hello)
        if leads and (why := why_no_master(replies[-1], server)):
            raise ConnectionError(why)
    except BaseException:
        line.close()
        raise
    return line


async def _dial(settings: RedisSettings, line: Line) -> None:
    loop = asyncio.get_running_loop()
    if settings.socket_path is not None:
        await loop.create_unix_connection(lambda: line, settings.socket_path)
        return
    trust = None
    if settings.encrypted:
        trust = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
    transport, _ = await loop.create_connection(
        lambda: line, settings.host, settings.port, ssl=trust, server_hostname=settings.host if trust else None
    )
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Multiplexer:
    """Asks for any number of coroutines of one loop over one connection, to the one server or the master.

    A question under way when the connection is lost fails, and the next one connects again. Behind sentinels it is
    asked once more, of whoever leads then.
    """

    def __init__(self, settings: RedisSettings, topology: Topology | None = None) -> None:
        self._settings, self._topology = settings, topology or topology_of(settings)
        self._line: Line | None = None
        self._opening: asyncio.Task[Line] | None = None

    async def ask(self, wording: Wording[A]) -> A:
        """The answer to a question.

        Raises:
            InfrastructureError: the server cannot be reached, or refuses a command.
            ConfigurationError: the user may not ask that.
        """
        try:
            try:
                replies = await self.exchange(wording.commands)
            except OSError as error:
                if not await self._met(error):
                    raise
                replies = await self.exchange(wording.commands)
        except OSError as error:
            await self._met(error)
            raise unreachable(self._settings, error) from error
        refuse_errors(self._settings, replies, wording.commands)
        return wording.answer(replies)

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Sends commands and returns their replies, errors of commands among them.

        Raises:
            OSError: the connection is lost. InfrastructureError: there is none to be had.
        """
        line = self._line
        if line is None or not line.usable:
            line = await self._opened()
        return await line.exchange([packed(*command) for command in commands])

    async def _met(self, error: OSError) -> bool:
        """Whether another server may lead now; threads that find out hold the topology, so a thread waits for it."""
        return self._settings.kind != "server" and await asyncio.to_thread(self._topology.met, error)

    async def aclose(self) -> None:
        """Closes the connection."""
        if self._opening is not None:
            self._opening.cancel()
        line, self._line = self._line, None
        if line is not None:
            line.close()
            await line.closed

    async def _opened(self) -> Line:
        """The line that is being opened, whoever began that; one who gives up waiting does not stop it."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="leftfold redis connects")
            self._opening.add_done_callback(_seen)
        return await asyncio.shield(self._opening)

    async def _open(self) -> Line:
        try:
            server = self._topology.known(b"")
            if server is None:
                server = await asyncio.to_thread(self._topology.server, b"")
            self._line = await open_line(server, leads=self._settings.kind == "sentinel")
            return self._line
        finally:
            self._opening = None


def _seen(task: asyncio.Task[Line]) -> None:
    """Whoever waited was told of the failure; if nobody waits any more, nobody needs to be."""
    if not task.cancelled():
        task.exception()
