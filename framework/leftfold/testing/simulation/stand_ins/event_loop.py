"""A stand-in for `asyncio` in simulated processes: event loops with the time and connections of the world."""

from __future__ import annotations

import asyncio as real_asyncio
import sys
from asyncio import base_events
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from leftfold.testing.simulation.environment import active
from leftfold.testing.simulation.scheduler import Killed, SimulatedProcess, Task
from leftfold.testing.simulation.stand_ins.sockets import Socket
from leftfold.testing.simulation.stand_ins.threads import Module, SimulatedEvent

__all__ = ["EventLoop", "asyncio"]

T = TypeVar("T")


class EventLoop(base_events.BaseEventLoop):
    """An event loop that runs in a task of a simulated process.

    Python has one running loop per operating-system thread, of which a world has one. So a loop is the running one
    only until it waits. A coroutine that blocks its loop, on a lock or a socket of a thread, blocks it here too; other
    code then finds the wrong running loop, so coroutines must not block.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = active().process
        self._selector = _Selector(self._process)

    def time(self) -> float:
        """Seconds since the world began."""
        return active().scheduler.now

    async def create_connection(  # type: ignore[override]  # only the options that are used
        self, protocol_factory: Callable[[], real_asyncio.BaseProtocol], host: Any = None, port: Any = None, **_: Any
    ) -> tuple[real_asyncio.Transport, real_asyncio.BaseProtocol]:
        """As of an event loop, for stream connections without TLS."""
        return await self._connected(protocol_factory, (host, port))

    async def create_unix_connection(  # type: ignore[override]  # as above
        self, protocol_factory: Callable[[], real_asyncio.BaseProtocol], path: Any = None, **_: Any
    ) -> tuple[real_asyncio.Transport, real_asyncio.BaseProtocol]:
        """As of an event loop."""
        return await self._connected(protocol_factory, path)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> real_asyncio.Future[T]:  # type: ignore[override]
        """As of an event loop; each call has a task of the process to itself."""
        future: real_asyncio.Future[T] = self.create_future()

        def settle(set_: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                set_(value)

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  # it is raised where the future is awaited
                self.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                self.call_soon_threadsafe(settle, future.set_result, result)

        active().scheduler.spawn(self._process, work, "executor")
        return future

    def run_forever(self) -> None:
        """As of an event loop; when its process has ended, its coroutines end at once, not when they are collected."""
        try:
            super().run_forever()
        finally:
            if self._process.code is not None:
                for task in _in_order(real_asyncio.all_tasks(self)):
                    with suppress(BaseException):
                        task.get_coro().close()
                self.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As of an event loop; a process that has ended reports no errors."""
        if self._process.code is None:
            super().call_exception_handler(context)

    def __del__(self) -> None:
        """Does nothing: a loop whose process has ended was never closed, and need not be."""

    async def _connected(
        self, factory: Callable[[], real_asyncio.BaseProtocol], address: Any
    ) -> tuple[real_asyncio.Transport, real_asyncio.BaseProtocol]:
        socket, opened = Socket(), self.create_future()

        def done(is_open: bool) -> None:
            if not self.is_closed():
                self.call_soon_threadsafe(lambda: None if opened.done() else opened.set_result(is_open))

        try:
            socket.begin_connect(address, done)
            if not await opened:
                raise ConnectionRefusedError(f"Connect call failed {address}")
        except BaseException:
            socket.close()
            raise
        protocol = factory()
        return _Transport(self, socket, protocol, self._selector), protocol

    def _process_events(self, event_list: Iterable[_Transport]) -> None:
        for transport in event_list:
            self.call_soon(transport.read)

    def _write_to_self(self) -> None:
        self._selector.wake()


def _in_order(tasks: Iterable[real_asyncio.Task[Any]]) -> list[real_asyncio.Task[Any]]:
    """Tasks in the order in which they were created, unless they are named."""
    return sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))


class _Selector:
    """The selector in which a loop waits: for data, for a call from another thread, or for its next timer."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self.transports: dict[_Transport, None] = {}
        self._is_woken = False
        self._waiting: tuple[Task, int] | None = None

    def select(self, timeout: float | None) -> list[_Transport]:
        """The transports with data to read; waits for so many seconds, None = for ever.

        Raises:
            Killed: the process has ended.
        """
        if self._process.code is not None:
            raise Killed  # a task or a callback may have suppressed it
        found = self._readable()
        if not found and not self._is_woken:
            self._wait(timeout)
            found = self._readable()
        self._is_woken = False
        return found

    def wake(self) -> None:
        """Ends the present wait, or the next one."""
        self._is_woken = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            active().scheduler.wake_later(*waiting)

    def close(self) -> None:
        """Does nothing."""

    def _readable(self) -> list[_Transport]:
        return [transport for transport in self.transports if transport.socket.is_readable]

    def _wait(self, timeout: float | None) -> None:
        scheduler = active().scheduler
        task, running, hooks = scheduler.current, _get_running_loop(), sys.get_asyncgen_hooks()
        if task is None:
            raise RuntimeError("an event loop runs outside a simulated process")
        self._waiting = task, task.turn
        for transport in self.transports:
            transport.socket.add_waiter(task)
        _set_running_loop(None)
        sys.set_asyncgen_hooks(None, None)
        try:
            # A busy loop must let time pass, too.
            scheduler.wait(timeout if timeout is None else max(timeout, scheduler.jitter()))
        finally:
            self._waiting = None
            _set_running_loop(running)
            sys.set_asyncgen_hooks(*hooks)


class _Transport(real_asyncio.Transport):
    """One connection of an event loop."""

    def __init__(
        self, loop: EventLoop, socket: Socket, protocol: real_asyncio.BaseProtocol, selector: _Selector
    ) -> None:
        super().__init__({"socket": socket})
        socket.setblocking(False)
        self._loop, self.socket, self._protocol, self._selector = loop, socket, protocol, selector
        self._is_closing = False
        selector.transports[self] = None
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As of a transport."""
        if not self._is_closing:
            try:
                self.socket.send_at_once(bytes(data))
            except OSError as error:
                self._end(error)

    def close(self) -> None:
        """As of a transport; written data still arrives."""
        self._end(None)

    def abort(self) -> None:
        """As of a transport."""
        self._end(None)

    def is_closing(self) -> bool:
        """As of a transport."""
        return self._is_closing

    def read(self) -> None:
        """Passes received data to the protocol."""
        if self._is_closing or not self.socket.is_readable:
            return
        try:
            data = self.socket.recv(262_144)
        except OSError as error:
            self._end(error)
            return
        protocol = self._protocol
        if data and isinstance(protocol, real_asyncio.Protocol):
            protocol.data_received(data)
        elif not data:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._selector.transports.pop(self, None)
            self.socket.close()
            self._loop.call_soon(self._protocol.connection_lost, error)


class _Result:
    """The result of `run_coroutine_threadsafe`, for a task that waits for the coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: real_asyncio.AbstractEventLoop) -> None:
        self._coroutine, self._loop = coroutine, loop
        self._task: real_asyncio.Task[Any] | None = None
        self._is_done = SimulatedEvent()
        loop.call_soon_threadsafe(self._start)

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the result.

        Raises:
            TimeoutError: it takes longer than so many seconds.
        """
        if not self._is_done.wait(timeout) or self._task is None:
            raise TimeoutError
        return self._task.result()

    def cancelled(self) -> bool:
        """Whether the coroutine was cancelled."""
        return self._task is not None and self._task.cancelled()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(lambda _: self._is_done.set())


def _run(main: Coroutine[Any, Any, T]) -> T:
    loop = EventLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        if not loop.is_closed():
            _end(loop)


def _end(loop: EventLoop) -> None:
    """Cancels the tasks that still run in a loop, and closes it."""
    rest = _in_order(real_asyncio.all_tasks(loop))
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(real_asyncio.gather(*rest, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


asyncio = Module(real_asyncio, new_event_loop=EventLoop, run=_run, run_coroutine_threadsafe=_Result)
