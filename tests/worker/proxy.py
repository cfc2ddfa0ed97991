"""A TCP proxy that reads Kafka's frames, so that a fault can name a step of the protocol."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self

from tests.waiting import wait_until

__all__ = ["Api", "Deed", "Fault", "Frame", "Proxy", "parse_request"]

Deed = Literal["pass", "hold request", "drop request", "repeat request", "hold reply", "drop reply"]


class Api(IntEnum):
    """Keys of Kafka's requests."""

    PRODUCE = 0
    FETCH = 1
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    ADD_OFFSETS = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Frame(NamedTuple):
    """A request as its header says; `data` is all of it, without the length in front."""

    api: int
    version: int
    correlation: int
    client: str
    data: bytes


def parse_request(data: bytes) -> Frame:
    """The header of a request (versions 1 and 2 of it begin alike)."""
    api, version, correlation, length = struct.unpack_from(">hhih", data)
    return Frame(api, version, correlation, data[10 : 10 + max(length, 0)].decode(), data)


@dataclass
class Fault:
    """What happens to the next `times` requests of an API, once `skip` of them have passed.

    `caught` counts them, and `replies` are what the broker said to them, whether or not the client heard it. `then` is
    called at each reply, before the client can hear it.
    """

    api: Api
    deed: Deed
    times: int = 1
    skip: int = 0
    then: Callable[[], None] = lambda: None
    caught: int = 0
    replies: list[bytes] = field(default_factory=list)
    held: list[Callable[[], None]] = field(default_factory=list)

    def wait_caught(self) -> None:
        """Waits until one was caught."""
        wait_until(lambda: self.caught > 0, f"a request of {self.api.name}")

    def wait_replies(self, number: int = 1) -> None:
        """Waits until the broker has answered so many of the requests that were caught."""
        wait_until(lambda: len(self.replies) >= number, f"{number} replies to {self.api.name}")

    def release(self) -> None:
        """Releases what is held, and lets everything pass from now on."""
        self.times = 0
        while self.held:
            self.held.pop(0)()


class Proxy:
    """Forwards connections from a port to another one, with faults on the way; it ends with the block.

    Args:
        latency: seconds that every frame takes in each direction. Frames that follow each other travel together.
    """

    def __init__(self, port: int, behind: int, *, latency: float = 0.0) -> None:
        self._behind, self.latency = behind, latency
        self.faults: list[Fault] = []
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._server = socket.create_server(("127.0.0.1", port))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _shut(self._server)
        for link in self._links:
            link.cut()

    def fault(
        self, api: Api, deed: Deed, *, times: int = 1, skip: int = 0, then: Callable[[], None] = lambda: None
    ) -> Fault:
        """Plans a fault for the next requests of an API."""
        fault = Fault(api, deed, times, skip, then)
        self.faults.append(fault)
        return fault

    def struck(self, frame: Frame) -> Fault | None:
        """The fault that this request meets."""
        with self._lock:
            for fault in self.faults:
                if fault.api != frame.api or fault.times <= 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                fault.caught += 1
                return fault
        return None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._behind))
            except OSError:
                _shut(client)
                continue
            link = _Link(self, client, broker)
            self._links.append(link)
            link.start()


class _Link:
    """One connection of a client and its twin to the broker, which outlives it as long as something is held."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        self._to_client, self._to_broker = _Wire(client, proxy.latency), _Wire(broker, proxy.latency)
        self._awaited: dict[int, list[Fault]] = {}
        self._holds = False

    def start(self) -> None:
        """Starts to forward."""
        for target in (self._requests, self._replies, self._to_client.run, self._to_broker.run):
            threading.Thread(target=target, name="proxy link", daemon=True).start()

    def cut(self) -> None:
        """Ends both connections, and what is on its way."""
        self._to_client.end(at_once=True)
        self._to_broker.end(at_once=True)

    def _requests(self) -> None:
        while (data := _frame(self._client)) is not None:
            frame = parse_request(data)
            fault = self._proxy.struck(frame)
            if fault is None:
                self._forward(data)
            else:
                self._strike(fault, frame)
        if not self._holds:
            self._to_broker.end()

    def _strike(self, fault: Fault, frame: Frame) -> None:
        if fault.deed == "drop request":
            return
        copies = 2 if fault.deed == "repeat request" else 1
        self._awaited[frame.correlation] = [fault] * copies
        if fault.deed == "hold request":
            self._holds = True
            fault.held.append(partial(self._forward, frame.data))
            return
        for _ in range(copies):
            self._forward(frame.data)

    def _replies(self) -> None:
        while (data := _frame(self._broker)) is not None:
            (correlation,) = struct.unpack_from(">i", data)
            faults = self._awaited.get(correlation)
            if not faults:
                self._to_client.send(data)
                continue
            fault = faults.pop()
            fault.then()
            fault.replies.append(data)
            if fault.deed == "hold reply":
                fault.held.append(partial(self._to_client.send, data))
            elif fault.deed != "drop reply" and not faults:
                self._to_client.send(data)
        self._to_client.end()

    def _forward(self, data: bytes) -> None:
        self._to_broker.send(data)


class _Wire:
    """One direction of a connection: frames leave it in order, each `latency` seconds after it was sent."""

    def __init__(self, end: socket.socket, latency: float) -> None:
        self._end, self._latency = end, latency
        self._frames: queue.SimpleQueue[tuple[float, bytes | None]] = queue.SimpleQueue()

    def send(self, data: bytes) -> None:
        """Puts a frame on its way."""
        self._frames.put((time.monotonic() + self._latency, data))

    def end(self, *, at_once: bool = False) -> None:
        """Closes the connection behind the frames on their way, or before them."""
        if at_once:
            _shut(self._end)
        self._frames.put((time.monotonic() + self._latency, None))

    def run(self) -> None:
        """Carries frames until the connection ends."""
        while True:
            due, data = self._frames.get()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            if data is None:
                _shut(self._end)
                return
            _send(self._end, data)


def _frame(end: socket.socket) -> bytes | None:
    """The next frame of a connection, None at its end."""
    head = _exactly(end, 4)
    return None if head is None else _exactly(end, struct.unpack(">i", head)[0])


def _exactly(end: socket.socket, number: int) -> bytes | None:
    data = bytearray()
    while len(data) < number:
        try:
            part = end.recv(min(number - len(data), 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def _send(end: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        end.sendall(struct.pack(">i", len(data)) + data)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
