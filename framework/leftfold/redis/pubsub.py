"""Redis pub/sub for readers that wait for flushes: one subscription per event loop, and a thread for blocking ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from leftfold.errors import ContractError, InfrastructureError, LeftfoldError
from leftfold.model.position import Position
from leftfold.ports.flush import Generation
from leftfold.ports.notifications import PositionNotifier, Waiter
from leftfold.ports.queries import Rows
from leftfold.redis.connection.asyncio import PipelinedConnection, RoutedAsyncClient, open_pipelined
from leftfold.redis.connection.errors import ended, refuse_errors, unreachable
from leftfold.redis.connection.protocol import packed
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.topology import Topology
from leftfold.redis.keys import channel
from leftfold.redis.reads import compile_query

__all__ = ["BackgroundLoop", "LoopClients", "Subscriber"]


POLL_SECONDS = 0.05
IDLE_SECONDS = 10.0
"""How long a subscription without waiting readers stays open."""


class Subscriber:
    """Subscribes to the flushes of generations for waiting readers; connected while they wait, and a little longer.

    Redis delivers a message at most once, so one can be lost. While readers wait, the checkpoints are read every 50 ms,
    once for all readers of a generation; that also detects when another generation goes live.
    """

    def __init__(self, settings: RedisSettings, client: RoutedAsyncClient, topology: Topology) -> None:
        self._settings, self._client, self._topology = settings, client, topology
        self.notifier = PositionNotifier()
        self._connection: PipelinedConnection | None = None
        self._opening = asyncio.Lock()
        self._channels: dict[bytes, tuple[str, str]] = {}
        self._tokens: dict[str, tuple[str, ...]] = {}
        self._lock, self._used = threading.Lock(), 0.0
        self._polling: asyncio.Task[None] | None = None

    def is_subscribed(self, generation: Generation) -> bool:
        """Whether a generation is subscribed; any thread may ask, after it has added its waiter."""
        with self._lock:
            self._used = time.monotonic()
            return self._polling is not None and self._has_channel(generation)

    async def subscribe(self, generation: Generation) -> None:
        """Subscribes to every flush of a generation.

        Raises:
            InfrastructureError: the server cannot be reached, or refuses.
            ConfigurationError: the user may not subscribe to the channel.
        """
        async with self._opening:
            if not self._has_channel(generation):
                await self._subscribe([generation])
        with self._lock:
            self._used = time.monotonic()
            if self._polling is None:
                self._polling = asyncio.create_task(self._poll(), name="leftfold redis listens")

    async def aclose(self) -> None:
        """Ends the subscription."""
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
        await self._disconnect()

    def _has_channel(self, generation: Generation) -> bool:
        is_connected = self._connection is not None and self._connection.is_usable
        return is_connected and channel(generation.view, generation.id) in self._channels

    async def _subscribe(self, generations: Iterable[Generation]) -> None:
        names = {channel(g.view, g.id): (g.view, g.id) for g in generations}
        try:
            if self._connection is None or not self._connection.is_usable:
                names, self._channels = self._channels | names, {}
                self._connection = await self._connected()
            commands = [packed(b"SUBSCRIBE", name) for name in names]
            replies = await self._connection.exchange(commands)
        except OSError as error:
            raise unreachable(self._settings, error) from error
        refuse_errors(self._settings, replies, commands)
        self._channels |= names

    async def _connected(self) -> PipelinedConnection:
        """A connection to the first server that answers, among those that receive every message."""
        require_master, failure = self._settings.kind == "sentinel", OSError("no server is known")
        for server in await asyncio.to_thread(self._topology.masters):
            try:
                return await open_pipelined(server, self._received, require_master=require_master)
            except OSError as error:
                await asyncio.to_thread(self._topology.handle_error, error)
                failure = error
        raise failure

    def _received(self, name: bytes, message: bytes) -> None:
        view, id_ = self._channels.get(name, ("", ""))
        if self.notifier.is_awaited(view, id_):
            with suppress(ContractError):  # a message of another writer; the checkpoints are read anyway
                self.notifier.reached(view, id_, Position.from_json(message))

    async def _poll(self) -> None:
        """Reads checkpoints for waiting readers, reconnects after a loss, and disconnects when no reader waits."""
        while not self._is_over():
            await asyncio.sleep(POLL_SECONDS)
            awaited = self.notifier.generations()
            if awaited:
                await asyncio.gather(self._reconnect(awaited), *map(self._poll_generation, awaited))
        await self._disconnect()

    def _is_over(self) -> bool:
        with self._lock:
            over = not self.notifier.generations() and time.monotonic() - self._used > IDLE_SECONDS
            if over:
                self._polling = None
            return over

    async def _poll_generation(self, generation: Generation) -> None:
        try:
            whole = tuple(range(generation.buckets))
            snapshot = await self._client.ask(compile_query(Rows(generation, (), whole)))
            checkpoints = list(snapshot.checkpoints.values())  # decoded only here: one of them may be unreadable
        except LeftfoldError:
            self.notifier.changed(generation.view)  # waiting readers read again, and get the error there
            return
        if snapshot.live != generation.id or len(checkpoints) < generation.buckets:
            self.notifier.changed(generation.view)
            return
        tokens = tuple([checkpoint.token for checkpoint in checkpoints])
        if self._tokens.get(generation.id) != tokens:
            self._tokens = self._tokens | {generation.id: tokens}
            position = Position.union(checkpoint.position for checkpoint in checkpoints)
            self.notifier.reached(generation.view, generation.id, position)

    async def _reconnect(self, awaited: Iterable[Generation]) -> None:
        if all(map(self._has_channel, awaited)):
            return
        try:
            async with self._opening:
                await self._subscribe(awaited)
        except LeftfoldError:
            return  # the checkpoints are read meanwhile, and the next round tries again

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._channels, self._tokens = {}, {}
        if connection is not None:
            connection.close()
            await connection.closed


class LoopClient:
    """The connections and the subscription of one event loop, each opened at its first use."""

    def __init__(self, settings: RedisSettings, topology: Topology) -> None:
        self.client = RoutedAsyncClient(topology)
        self.subscriber = Subscriber(settings, self.client, topology)

    async def aclose(self) -> None:
        """Closes the subscription and the connections."""
        await self.subscriber.aclose()
        await self.client.aclose()


_Held: TypeAlias = AsyncGenerator[LoopClient, None]


class LoopClients:
    """Hands out the client of the running event loop.

    Each client lives in an asynchronous generator: `asyncio.run` and every other well-behaved runner closes those
    before the loop, which is the only moment when connections of a loop can be closed properly.
    """

    def __init__(self, settings: RedisSettings, topology: Topology) -> None:
        self._settings, self._topology = settings, topology
        self._clients: dict[asyncio.AbstractEventLoop, tuple[LoopClient, _Held]] = {}

    def current(self) -> LoopClient | None:
        """The client of this loop, or None before the first `get`."""
        found = self._clients.get(asyncio.get_running_loop())
        return None if found is None else found[0]

    async def get(self) -> LoopClient:
        """The client of this loop, made at the first call."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            self.drop_closed()
            held = self._hold(loop)
            found = await anext(held), held
            self._clients[loop] = found
        return found[0]

    def drop_closed(self) -> None:
        """Drops the clients of loops that were closed without their generators; their sockets close with them."""
        for loop in [loop for loop in list(self._clients) if loop.is_closed()]:
            self._clients.pop(loop, None)

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> _Held:
        client = LoopClient(self._settings, self._topology)
        try:
            yield client
        finally:
            self._clients.pop(loop, None)
            await client.aclose()

    async def aclose(self) -> None:
        """Closes the client of this loop now."""
        found = self._clients.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()


A = TypeVar("A")


class BackgroundLoop:
    """An event loop in a thread of its own, for blocking waiters; from the first one until `close`."""

    def __init__(self, settings: RedisSettings, topology: Topology) -> None:
        self._settings, self._topology = settings, topology
        self._lock, self._closed = threading.Lock(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: LoopClient | None = None

    def listen(self, generation: Generation, wanted: Position | None) -> Waiter:
        """A waiter that is notified from now on.

        Raises:
            InfrastructureError: the server cannot be reached, or refuses; or this process was forked since the first.
        """
        client = self._start()
        waiter = client.subscriber.notifier.waiter(generation, wanted)
        try:
            if not client.subscriber.is_subscribed(generation):
                self._run(client.subscriber.subscribe(generation))
        except BaseException:
            waiter.close()
            raise
        return waiter

    def close(self) -> None:
        """Ends the thread and its connections, and wakes the waiters: what they read then says what happened.

        In a forked process it does nothing: the thread is not there.
        """
        if self._is_forked:
            return
        with self._lock:
            self._closed = True
            loop, thread, client = self._loop, self._thread, self._client
            self._loop = self._thread = self._client = None
        if loop is None or thread is None or client is None:
            return
        notifier = client.subscriber.notifier
        for generation in notifier.generations():
            notifier.changed(generation.view)
        asyncio.run_coroutine_threadsafe(_shut_down(client), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    @property
    def _is_forked(self) -> bool:
        """Whether this process was forked from the one in which the thread runs."""
        thread = self._thread
        return thread is not None and not thread.is_alive() and not self._closed

    def _start(self) -> LoopClient:
        if self._is_forked:
            raise InfrastructureError(
                f"the connection to redis at {self._settings.address} was made before this process was forked, and "
                f"nothing can wait by it here; connect in the forked process: connect(app)"
            )
        with self._lock:
            if self._closed:
                raise ended(self._settings)
            if self._client is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name="leftfold redis", daemon=True)
                thread.start()
                self._thread = thread
                self._client = self._run(_new_client(self._settings, self._topology))
            return self._client

    def _run(self, work: Coroutine[Any, Any, A]) -> A:
        loop = self._loop
        if loop is None:
            work.close()
            raise ended(self._settings)
        outcome = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return outcome.result()
        except BaseException:
            if outcome.cancelled():
                raise ended(self._settings) from None
            raise


async def _new_client(settings: RedisSettings, topology: Topology) -> LoopClient:
    """A client that belongs to the running loop."""
    return LoopClient(settings, topology)


async def _shut_down(client: LoopClient) -> None:
    """Cancels all tasks of the loop, also those of threads that were interrupted while they waited, and closes."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.aclose()
