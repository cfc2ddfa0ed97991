"""Stand-ins for the modules `socket` and `select` in simulated processes: the calls of a blocking stream client."""

from __future__ import annotations

import errno
import select as real_select
import socket as real_socket
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Self, TypeAlias

from leftfold.testing.simulation.environment import active
from leftfold.testing.simulation.network import Address, Link, Network, name_of
from leftfold.testing.simulation.scheduler import Task
from leftfold.testing.simulation.stand_ins.threads import Module

__all__ = ["Poll", "Socket", "select", "socket"]

_Bytes: TypeAlias = bytes | bytearray | memoryview
_CONNECT_SECONDS = 127.0
"""How long Linux tries to connect without a timeout."""
_NUMBERS = count(1_000_000)
"""Numbers that are no file descriptors: the real `select` refuses them."""


def _network() -> Network:
    found: Network | None = active().parts.get("network")
    if found is None:
        raise RuntimeError("this world has no network; make one: Network(world)")
    return found


class Socket:
    """`socket.socket`, of the process that creates it; its connection is one of the world's network."""

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        world = active()
        self._network = _network()
        self._scheduler, self._process = world.scheduler, world.process
        self.family = real_socket.AF_INET if family == -1 else family
        self.type, self.proto = real_socket.SOCK_STREAM if type == -1 else type, max(proto, 0)
        self._number = next(_NUMBERS)
        self._timeout: float | None = None
        self._address: Address | None = None
        self._link: Link | None = None
        self._incoming = bytearray()
        self._error: OSError | None = None
        self._is_ended = self._is_closed = False
        self._waiting: dict[Task, int] = {}
        self._process.at_end.append(self._abandon)

    def connect(self, address: Any) -> None:
        """As of `socket.socket`; an address is the name and the port of a listening host, or a path."""
        answers: list[bool] = []

        def done(is_open: bool) -> None:
            answers.append(is_open)
            self._notify()

        self.begin_connect(address, done)
        end = self._end_of_wait(_CONNECT_SECONDS if self._timeout is None else self._timeout)
        while not answers:
            if not self._wait_until(end):
                self._abandon()
                raise TimeoutError("timed out")
        if not answers[0]:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    def begin_connect(self, address: Any, done: Callable[[bool], None]) -> None:
        """Connects without waiting; `done` gets whether the connection is open, or is never called."""
        self._begin("redis connect")
        place: Address = address if isinstance(address, str) else (str(address[0]), int(address[1]))
        host = self._network.hosts.get(place)
        if host is None:
            self._scheduler.call_later(2 * self._network.hop(), lambda: done(False))
            return
        link = Link(self._network, self._process, host, self)

        def answered(is_open: bool) -> None:
            if is_open:
                self._address = place
            else:
                self._link = None
            done(is_open)

        self._link = link
        link.connect(answered)

    def send(self, data: _Bytes, flags: int = 0) -> int:
        """As of `socket.socket`; it sends all data."""
        self._send(bytes(data))
        return len(data)

    def sendall(self, data: _Bytes, flags: int = 0) -> None:
        """As of `socket.socket`."""
        self._send(bytes(data))

    def sendmsg(self, buffers: Iterable[_Bytes], *more: Any) -> int:
        """As of `socket.socket`; it sends all data."""
        data = b"".join(buffers)
        self._send(data)
        return len(data)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As of `socket.socket`."""
        self._begin("redis recv")
        end = self._end_of_wait(self._timeout)
        while not self.is_readable:
            if self._timeout == 0 or flags & real_socket.MSG_DONTWAIT:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            if not self._wait_until(end):
                raise TimeoutError("timed out")
        data = bytes(self._incoming[:bufsize])
        if not data and self._error is not None:
            error, self._error, self._is_ended = self._error, None, True
            raise error
        if not flags & real_socket.MSG_PEEK:
            del self._incoming[: len(data)]
        return data

    def recv_into(self, buffer: bytearray | memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """As of `socket.socket`."""
        data = self.recv(nbytes or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)

    def settimeout(self, value: float | None) -> None:
        """As of `socket.socket`."""
        self._timeout = value

    def gettimeout(self) -> float | None:
        """As of `socket.socket`."""
        return self._timeout

    def setblocking(self, flag: bool) -> None:
        """As of `socket.socket`."""
        self._timeout = None if flag else 0.0

    def setsockopt(self, *_: Any) -> None:
        """As of `socket.socket`; options have no effect."""

    def getsockopt(self, *_: Any) -> int:
        """As of `socket.socket`."""
        return 0

    def getpeername(self) -> Address:
        """As of `socket.socket`."""
        if self._address is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._address

    def getsockname(self) -> Address:
        """As of `socket.socket`."""
        return self._process.name, self._number

    def fileno(self) -> int:
        """A number that is no file descriptor."""
        return -1 if self._is_closed else self._number

    def shutdown(self, how: int) -> None:
        """As of `socket.socket`; either direction ends both."""
        if self._link is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        self._abandon()

    def close(self) -> None:
        """As of `socket.socket`; it takes no time, and may be called outside the process."""
        if not self._is_closed:
            self._is_closed = True
            self._abandon()
            if self._abandon in self._process.at_end:
                self._process.at_end.remove(self._abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_readable(self) -> bool:
        """Whether `recv` would return at once."""
        return bool(self._incoming) or self._is_ended or self._is_closed or self._error is not None

    def add_waiter(self, task: Task) -> None:
        """Wakes a task, which is about to wait, at the next arrival."""
        self._waiting[task] = task.turn

    def arrived(self, data: bytes) -> None:
        """Handles bytes from the server."""
        if self._link is not None:
            self._incoming += data
            self._notify()

    def arrived_end(self) -> None:
        """Handles the end of the connection by the server."""
        self._is_ended = True
        self._notify()

    def arrived_reset(self) -> None:
        """Handles the loss of the connection."""
        if self._link is not None:
            self._error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            self._notify()

    def _begin(self, what: str) -> None:
        self._process.step(what)
        if self._is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def send_at_once(self, data: bytes) -> None:
        """Sends data without letting other tasks run."""
        what = name_of(data)
        self._begin(what)
        if self._error is not None:
            error, self._error, self._is_ended = self._error, None, True
            raise error
        if self._link is None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self._link.send(data, what)

    def _send(self, data: bytes) -> None:
        self.send_at_once(data)
        # A system call: another thread may run meanwhile.
        self._scheduler.wait(self._scheduler.jitter())

    def _abandon(self) -> None:
        """Closes the connection, after the data sent on it."""
        link, self._link = self._link, None
        self._is_ended = True
        if link is not None:
            link.close()
        self._notify()

    def _end_of_wait(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._scheduler.now + timeout

    def _wait_until(self, end: float | None) -> bool:
        """Waits for an arrival; False at the timeout."""
        task = self._scheduler.current
        remaining = None if end is None else end - self._scheduler.now
        if task is None or (remaining is not None and remaining <= 0):
            return False
        self.add_waiter(task)
        self._scheduler.wait(remaining)
        return True

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for task, turn in waiting.items():
            self._scheduler.wake_later(task, turn)


def _create_connection(address: tuple[str, int], timeout: Any = None, source_address: Any = None, **_: Any) -> Socket:
    made = Socket()
    try:
        made.settimeout(timeout if isinstance(timeout, int | float) else None)
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def _getaddrinfo(
    host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
) -> list[tuple[Any, ...]]:
    """One address, for names of hosts that listen or have listened, and for numeric addresses."""
    names = {address[0] for address in _network().hosts if not isinstance(address, str)}
    if host not in names and not str(host).replace(".", "").isdigit():
        raise real_socket.gaierror(real_socket.EAI_NONAME, "Name or service not known")
    return [(real_socket.AF_INET, type or real_socket.SOCK_STREAM, real_socket.IPPROTO_TCP, "", (host, int(port)))]


class Poll:
    """`select.poll` over simulated sockets."""

    def __init__(self) -> None:
        self._sockets: dict[int, tuple[Socket, int]] = {}

    def register(self, fd: Socket, eventmask: int = real_select.POLLIN | real_select.POLLOUT) -> None:
        """As of `select.poll`."""
        self._sockets[fd.fileno()] = fd, eventmask

    def unregister(self, fd: Socket) -> None:
        """As of `select.poll`."""
        self._sockets = {number: entry for number, entry in self._sockets.items() if entry[0] is not fd}

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """As of `select.poll`.

        Args:
            timeout: milliseconds; None or less than 0 = for ever.
        """
        world = active()
        scheduler, task = world.scheduler, world.scheduler.current
        end = None if timeout is None or timeout < 0 else scheduler.now + timeout / 1000
        while not (found := self._found()):
            remaining = None if end is None else end - scheduler.now
            if task is None or (remaining is not None and remaining <= 0):
                break
            for socket_, _ in self._sockets.values():
                socket_.add_waiter(task)
            scheduler.wait(remaining)
        return found

    def _found(self) -> list[tuple[int, int]]:
        found = []
        for number, (socket_, mask) in self._sockets.items():
            events = mask & real_select.POLLOUT
            if socket_.is_readable:
                events |= mask & real_select.POLLIN
            if events:
                found.append((number, events))
        return found


socket = Module(
    real_socket,
    socket=Socket,
    SocketType=Socket,
    create_connection=_create_connection,
    getaddrinfo=_getaddrinfo,
    gethostname=lambda: "simulated",
)
select = Module(real_select, poll=Poll)
