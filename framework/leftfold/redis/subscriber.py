"""One subscription per event loop, for everybody in it (or in threads) who waits for flushes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable

from leftfold.bells import Bells
from leftfold.errors import LeftfoldError
from leftfold.flush import Generation
from leftfold.position import Position
from leftfold.questions import Rows
from leftfold.redis.failures import refuse_errors, unreachable
from leftfold.redis.keys import channel
from leftfold.redis.line import Line
from leftfold.redis.multiplexer import open_line
from leftfold.redis.packing import packed
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology
from leftfold.redis.wording import Asker
from leftfold.redis.wordings import worded

__all__ = ["Subscriber"]

NET_SECONDS = 0.05
LINGER_SECONDS = 10.0


class Subscriber:
    """Hears of flushes and rings `bells`; it is connected only while somebody waits, and a little longer.

    A notice can be lost, since Redis delivers at most once. So while somebody waits, the marks are read every 50 ms,
    once for all who wait for a generation; that also finds out when another one goes live.

    Args:
        net: seconds between two looks at the marks.
    """

    def __init__(self, settings: RedisSettings, asker: Asker, topology: Topology, net: float = NET_SECONDS) -> None:
        self._settings, self._asker, self._topology, self._seconds = settings, asker, topology, net
        self.bells = Bells()
        self._line: Line | None = None
        self._opening = asyncio.Lock()
        self._heard: dict[bytes, tuple[str, str]] = {}
        self._tokens: dict[str, tuple[str, ...]] = {}
        self._lock, self._used = threading.Lock(), 0.0
        self._net: asyncio.Task[None] | None = None

    def hears(self, generation: Generation) -> bool:
        """Whether flushes of a generation are heard already; any thread may ask, once its bell hangs."""
        with self._lock:
            self._used = time.monotonic()
            return self._net is not None and self._is_heard(generation)

    async def subscribe(self, generation: Generation) -> None:
        """Hears of every flush of a generation from here on.

        Raises:
            InfrastructureError: the server cannot be reached, or refuses.
            ConfigurationError: the user may not hear of it.
        """
        async with self._opening:
            if not self._is_heard(generation):
                await self._subscribe([generation])
        with self._lock:
            self._used = time.monotonic()
            if self._net is None:
                self._net = asyncio.create_task(self._look_after(), name="leftfold redis listens")

    async def aclose(self) -> None:
        """Listens no more."""
        net, self._net = self._net, None
        if net is not None:
            net.cancel()
            await asyncio.gather(net, return_exceptions=True)
        await self._hang_up()

    def _is_heard(self, generation: Generation) -> bool:
        line = self._line
        return line is not None and line.usable and channel(generation.view, generation.id) in self._heard

    async def _subscribe(self, generations: Iterable[Generation]) -> None:
        names = {channel(g.view, g.id): (g.view, g.id) for g in generations}
        try:
            if self._line is None or not self._line.usable:
                names, self._heard = self._heard | names, {}
                self._line = await self._connected()
            commands = [packed(b"SUBSCRIBE", name) for name in names]
            replies = await self._line.exchange(commands)
        except OSError as error:
            raise unreachable(self._settings, error) from error
        refuse_errors(self._settings, replies, commands)
        self._heard |= names

    async def _connected(self) -> Line:
        """A connection to the first server that answers of those that hear everything."""
        leads, failure = self._settings.kind == "sentinel", OSError("nobody is there")
        for server in await asyncio.to_thread(self._topology.hearers):
            try:
                return await open_line(server, self._told, leads=leads)
            except OSError as error:
                await asyncio.to_thread(self._topology.met, error)
                failure = error
        raise failure

    def _told(self, name: bytes, message: bytes) -> None:
        view, id_ = self._heard.get(name, ("", ""))
        if self.bells.is_awaited(view, id_):
            self.bells.reached(view, id_, Position.from_json(message))

    async def _look_after(self) -> None:
        """Looks at the marks for those who wait, connects again when the line is lost, and hangs up in the end."""
        while not self._is_over():
            await asyncio.sleep(self._seconds)
            awaited = self.bells.generations()
            if awaited:
                await asyncio.gather(self._reconnect(awaited), *map(self._look, awaited))
        await self._hang_up()

    def _is_over(self) -> bool:
        with self._lock:
            over = not self.bells.generations() and time.monotonic() - self._used > LINGER_SECONDS
            if over:
                self._net = None
            return over

    async def _look(self, generation: Generation) -> None:
        try:
            whole = tuple(range(generation.buckets))
            snapshot = await self._asker.ask(worded(Rows(generation, (), whole)))
        except LeftfoldError:
            self.bells.changed(generation.view)  # whoever waits reads again, and is told of it there
            return
        if snapshot.live != generation.id or len(snapshot.marks) < generation.buckets:
            self.bells.changed(generation.view)
            return
        tokens = tuple([mark.token for mark in snapshot.marks.values()])
        if self._tokens.get(generation.id) != tokens:
            self._tokens = {generation.id: tokens} | self._tokens
            position = Position.union(mark.position for mark in snapshot.marks.values())
            self.bells.reached(generation.view, generation.id, position)

    async def _reconnect(self, awaited: Iterable[Generation]) -> None:
        if all(map(self._is_heard, awaited)):
            return
        try:
            async with self._opening:
                await self._subscribe(awaited)
        except LeftfoldError:
            return  # the marks are looked at meanwhile, and the next round tries again

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        self._heard, self._tokens = {}, {}
        if line is not None:
            line.close()
            await line.closed
